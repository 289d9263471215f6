"""What the guide to fine-tuning shows can be copied and run."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import torch

GUIDE = Path(__file__).parents[3] / "docs" / "finetuning.md"


def test_the_code_of_the_guide_runs(tmp_path: Path) -> None:
    """The blocks of the page, one after the other, run without a warning, and what they assert holds."""
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), flags=re.DOTALL | re.MULTILINE)
    script = tmp_path / "guide.py"
    script.write_text("\n".join(blocks))
    torch.manual_seed(0)

    after = runpy.run_path(str(script))

    assert after["epoch"] == 3
    assert all(parameter.requires_grad for parameter in after["model"].parameters())
