"""The code in the READMEs runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.launching import Launch

ROOT = Path(__file__).parents[2]
READMES = [ROOT / "README.md", *sorted(ROOT.glob("packages/*/README.md"))]


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_the_python_code_of_a_readme_runs(launch: Launch, readme: Path) -> None:
    """What a README shows can be copied into a file and run as it stands."""
    blocks = re.findall(r"^```python\n(.*?)^```", readme.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert blocks != []
    assert launch("\n".join(blocks)).status == 0
