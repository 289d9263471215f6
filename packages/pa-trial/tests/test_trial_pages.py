"""The pages about trials: each trial can be trained, and each difference from Determined has a test beside this."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

import pa_trial
import pa_trial as pytorch

PAGE = Path(__file__).parents[3] / "docs" / "trials.md"


def blocks(language: str) -> list[str]:
    """The blocks of code in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """All names that the code of the page defines."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    first, *others = blocks("python")
    Path("train.py").write_text(first)
    Path("page.py").write_text("\n\n".join(others))
    runpy.run_path("train.py", run_name="__main__")
    return runpy.run_path("page.py")


@pytest.mark.timeout(100)
def test_all_code_of_the_page_runs(page: dict[str, Any], tmp_path: Path) -> None:
    """Each trial on the page trains, validates and saves."""
    trials = {name: value for name, value in page.items() if isinstance(value, type) and name.endswith("Trial")}
    assert len(trials) >= 4
    for name, trial_class in trials.items():
        hparams = {"lr": 0.01, "global_batch_size": 50}
        with pytorch.init(hparams=hparams, checkpoint_dir=tmp_path / name, seed=1) as context:
            trainer = pytorch.Trainer(trial_class(context), context)
            trainer.fit(max_length=pytorch.Epoch(1), checkpoint_policy="none", test_mode=True)
        assert len(list((tmp_path / name).rglob("metadata.json"))) == 1


HERE = Path(__file__).parent
DOCS = HERE.parents[2] / "docs"
OF_DETERMINED = DOCS / "migrating-from-determined.md"
ALL_DIFFERENCES = DOCS / "maintainers" / "differences-from-determined.md"


def test_each_row_names_a_test() -> None:
    """A difference cannot be written down without a test, nor a test be removed from under it."""
    rows = [line for line in ALL_DIFFERENCES.read_text().splitlines() if re.match(r"\| (?!what|---)", line)]
    named = {name for row in rows for name in re.findall(r"^\| <!-- (\w+) -->", row)}
    tests = {name for path in HERE.glob("test_*.py") for name in re.findall(r"def test_(\w+)", path.read_text())}
    assert all(row.startswith("| <!-- ") for row in rows)
    assert named - tests == set()


def test_each_import_that_the_page_names_works() -> None:
    """What takes the place of a name of Determined's is there."""
    named = set(re.findall(r"`pa_trial\.(\w+)", OF_DETERMINED.read_text()))
    assert {"DistributedContext", "InvalidHP", "get_cluster_info"} <= named <= {*pa_trial.__all__, "errors"}
