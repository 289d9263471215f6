"""A check or a plan leaves no trace: a run after it is the run that it would have been."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pa_preflight import check, plan
from tests.support.held_state import OTHERS, PLACES, WAYS, make
from tests.support.pa_preflight.configurations import Configuration, changed, state_of
from tests.support.pa_preflight.corpus import HEALTHY

EACH_TIME = (0, 2, 3, 4, 5, 7, 8)
"""Seeds whose configurations have, together, each model, optimizer, loader, evaluation and schedule that there is."""
SEEDS = [pytest.param(seed, marks=[] if seed in EACH_TIME else [pytest.mark.more_cases]) for seed in range(50)]


@pytest.mark.parametrize("look", [check, plan])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_look_before_the_run_changes_nothing(look: Callable[..., object], seed: int) -> None:
    """Weights, gradients, modes, optimizer, history and random numbers, right after it and after the run."""
    configuration = Configuration.random(seed)
    checked = configuration.make()
    before = state_of(checked)
    look(checked.trainer, **checked.arguments)
    assert changed(before, state_of(checked)) == []
    checked.trainer.train(**checked.arguments)
    after_look = state_of(checked)

    unchecked = configuration.make()
    assert changed(before, state_of(unchecked)) == []
    unchecked.trainer.train(**unchecked.arguments)
    assert changed(after_look, state_of(unchecked)) == []
    assert "model" in changed(before, after_look)


ONE_EACH = [(way, PLACES[number % len(PLACES)]) for number, way in enumerate(WAYS)]


@pytest.mark.parametrize("look", [check, plan])
@pytest.mark.parametrize(
    ("way", "place"),
    [
        *ONE_EACH[::5],
        *((other, "") for other in OTHERS),
        *(pytest.param(*one, marks=pytest.mark.more_cases) for number, one in enumerate(ONE_EACH) if number % 5),
    ],
)
def test_whatever_holds_state_is_left_as_it_was(look: Callable[..., object], way: str, place: str) -> None:
    """The run after a look is the run without, wherever the script keeps what its steps and samples move."""
    looked = make(way, place)
    look(looked.trainer, **looked.arguments)
    after_look = looked.weights_after()
    assert make(way, place).weights_after() == after_look


def test_no_hook_of_an_optimizer_stays() -> None:
    """What the check has watched updates with is gone after it."""
    script = HEALTHY["regression"]()
    hooks = {name: value for name, value in vars(script.trainer.optimizer).items() if name.endswith("hooks")}
    before = {name: dict(value) for name, value in hooks.items()}
    check(script.trainer, **script.arguments)
    assert {name: dict(value) for name, value in hooks.items()} == before
    assert before
