"""The loop is written down for its readers; what is written is what happens."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch.optim.lr_scheduler import StepLR

from pa_core import Trainer
from pa_core.engine.any_trainer import EVENT_NAMES
from pa_core.testing import RecordingCallback
from tests.small_runs import make_trainer, samples

PAGE = Path(__file__).parents[3] / "docs" / "run.md"
METHOD = re.compile(r"(create|calculate|train|training|eval|backward|optimizer|scheduler)_\w+")
CALLED = sorted(name for name in vars(Trainer) if METHOD.fullmatch(name))


def calls_of_a_run() -> list[str]:
    """Every method that may be overridden and every event, in the order in which an epoch of one batch calls them."""
    recorder = RecordingCallback()

    def noting(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            recorder.events.append(name)
            return method(*args, **kwargs)

        return noted

    methods = {name: noting(name, vars(Trainer)[name]) for name in CALLED}
    trainer = make_trainer(type("Noted", (Trainer,), methods), recorder)
    recorder.events.clear()
    trainer.train(samples(2), 1, samples(2), create_scheduler_fn=partial(StepLR, step_size=1))
    return recorder.events


def named(text: str) -> list[str]:
    """The methods and events that a text names, in its order."""
    return [name for name in re.findall(r"\w+", text) if name in CALLED or name in EVENT_NAMES]


@pytest.mark.parametrize("text", [str(Trainer.__doc__), PAGE.read_text()], ids=["docstring", "page"])
def test_the_loop_as_it_is_written_is_the_loop_as_it_runs(text: str) -> None:
    """Neither leaves out a method or an event, nor has two of them in another order."""
    loop = text[text.index("train()") : text.index("Args:" if "Args:" in text else "</details>")]
    written = named(loop)
    calls = [name for name in calls_of_a_run() if "Args:" in text or not name.startswith("create_")]
    assert written == calls


@pytest.mark.parametrize(("picture", "shown"), [("loop", r"\w+"), ("events", r"on_\w+")])
def test_the_loop_as_it_is_drawn_is_the_loop_as_it_runs(picture: str, shown: str) -> None:
    """The picture of the loop shows each method and each event at its place, that of the events only those."""
    drawn = named((PAGE.parent / "pictures" / "drawn" / f"{picture}.svg").read_text())
    assert drawn == [name for name in calls_of_a_run() if re.fullmatch(shown, name)]
