"""Scripts with a mistake in what they save."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import SGD
from typing_extensions import override

from pa_core import SaveTrainingStateCallback, TrainerCallback
from pa_core.testing import make_classification
from tests.support.pa_preflight.scripts import Planting, Script, perceptron, script

planted = Planting()


class _Notes(TrainerCallback):
    """Has a state that it may not get back."""

    def __init__(self, state: dict[str, Any], *, keeps_what_it_loads: bool) -> None:
        self.state, self.keeps_what_it_loads = state, keeps_what_it_loads

    @override
    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        return self.state

    @override
    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a state, or nothing."""
        self.state = state_dict if self.keeps_what_it_loads else {}


def _saving(made: Script, *callbacks: TrainerCallback, **options: Any) -> Script:
    for one in (*callbacks, SaveTrainingStateCallback(Path(tempfile.gettempdir(), "states"), **options)):
        made.trainer.callback_handler.add_callback(one)
    return made


@planted("state-not-saved")
def path_in_a_state() -> Script:
    """A callback has a path in its state, and not a string."""
    notes = _Notes({"file": Path("log")}, keeps_what_it_loads=True)
    return _saving(script(perceptron(4, 3), nn.CrossEntropyLoss(), make_classification(96)), notes)


@planted("state-not-loaded")
def state_that_is_forgotten() -> Script:
    """A callback returns a state, and does not load it."""
    notes = _Notes({"seen": 3}, keeps_what_it_loads=False)
    return _saving(script(perceptron(4, 3), nn.CrossEntropyLoss(), make_classification(96)), notes)


@planted("disk-too-small")
def state_after_each_update() -> Script:
    """Each of 40,000 updates saves 32 MB, and all states are kept."""
    model = perceptron(4, 3, hidden=1_000_000)
    data, optimizer = make_classification(32), SGD(model.parameters(), lr=1e-4)
    made = script(model, nn.CrossEntropyLoss(), data, optimizer=optimizer, max_num_train_steps=40_000)
    return _saving(made, save_every_n_steps=1)
