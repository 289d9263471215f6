"""The notebook runs from top to bottom, as who opens it runs it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

nbformat: Any = pytest.importorskip("nbformat")
nbclient: Any = pytest.importorskip("nbclient")

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_run.ipynb"


def outputs_of(cell: Any) -> str:
    """What a cell printed."""
    return "".join(one.text for one in cell.outputs if one.output_type == "stream")


@pytest.mark.whole_proof
def test_the_notebook_trains_and_shows_what_it_found(tmp_path: Path) -> None:
    """Two runs of one trainer share ten epochs and a picture, and each digit is predicted."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=100, resources={"metadata": {"path": str(tmp_path)}}).execute()

    _, first, second, last = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert "Training ended: 5 epochs" in outputs_of(first)
    assert re.search(r"^ +10 ", outputs_of(second), re.MULTILINE)
    assert any("image/png" in one.get("data", {}) for one in second.outputs)
    (share,) = re.findall(r"^([\d.]+)% of 297 digits recognised$", outputs_of(last), re.MULTILINE)
    assert float(share) > 90
    assert outputs_of(last).count("predicted") == 3


def test_the_notebook_is_stored_without_outputs() -> None:
    """Its outputs are those of whoever runs it; stored ones would be out of date."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
