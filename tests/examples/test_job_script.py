"""The files of the Slurm example are the blocks of docs/several-machines.md; `tests/slurm` runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "slurm"


@pytest.mark.parametrize(
    ("name", "before"), [("train.py", "<!-- file: train.py -->\n```python\n"), ("job.sbatch", "```bash\n")]
)
def test_page_and_folder_have_the_same_files(name: str, before: str) -> None:
    """There is one script for Slurm, and one job; copy the block of the page into the file after a change."""
    page = (ROOT / "docs" / "several-machines.md").read_text()

    assert f"{before}{(FOLDER / name).read_text()}```\n" in page
