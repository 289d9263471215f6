"""The page about trials: its script prints what it shows, and all of its code runs."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

import pa_trial as pytorch
from tests.launching import Launch

PAGE = Path(__file__).parents[2] / "docs" / "trials.md"
VARYING = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|\d+(\.\d+)?")


def blocks(language: str) -> list[str]:
    """The blocks of code in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)


def without_figures(text: str) -> list[str]:
    """The lines of a text, without what differs from machine to machine."""
    return [VARYING.sub("N", line) for line in text.splitlines()]


def test_the_first_script_prints_what_is_shown_and_continues(launch: Launch) -> None:
    """Run twice, it trains once; asked for more, it trains what is missing."""
    script = blocks("python")[0]
    for shown, changed in zip(blocks("text"), [script, script, script.replace("Epoch(4)", "Epoch(6)")], strict=True):
        assert without_figures(launch(changed).output) == without_figures(shown)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """All names that the code of the page defines."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.py").write_text("\n\n".join(blocks("python")))
    return runpy.run_path("page.py", run_name="__main__")


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
