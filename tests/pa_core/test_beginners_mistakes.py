"""What beginners get wrong: one clear error each, whose advice is right, since the script runs once it was followed."""

from __future__ import annotations

import math
from typing import Any

import pytest

import pa_core
from pa_core import BatchMismatchError, ExplainedError, Trainer
from tests.pa_core.beginners_mistakes import MISTAKES


def run_script(text: str) -> dict[str, Any]:
    """Run a script in this process, and return its names."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, "script.py", "exec"), names)  # scripts of our own
    return names


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gives_one_clear_error_whose_advice_is_right(name: str) -> None:
    """The error names what was given, keeps torch's own as its cause, and the script runs with what it advises."""
    mistake = MISTAKES[name]
    with pytest.raises(getattr(pa_core, mistake.error)) as caught:
        run_script(mistake.broken)

    error = caught.value
    assert isinstance(error, ExplainedError)
    for part in mistake.given:
        assert part in error.given
    assert error.do == mistake.do
    assert str(error).splitlines()[1].startswith("  given: ")
    if isinstance(error, BatchMismatchError):
        assert isinstance(error, type(error.__cause__) if error.__cause__ is not None else ValueError)

    trainer = next((value for value in run_script(mistake.mended).values() if isinstance(value, Trainer)), None)
    if trainer is not None:
        assert math.isfinite(trainer.run_history.get_latest_metric("train_loss_epoch"))
