"""What the tests of damaged states have in common."""

from __future__ import annotations

import pytest

from pa_core import SaveTrainingStateCallback
from pa_core.storage import StateFolder
from tests.support.pa_core.damage.saved_runs import EPOCHS, SavedRuns, make
from tests.support.pa_core.training_states.small_runs import InterruptAt, Interrupted, train


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> SavedRuns:
    """States after the updates 5 and 10 of a run of 14."""
    folder = tmp_path_factory.mktemp("states")
    saving = SaveTrainingStateCallback(folder, save_every_n_steps=5)
    with pytest.raises(Interrupted):
        train(make(saving, InterruptAt("on_train_step_end", 11)), EPOCHS)
    return SavedRuns(folder, StateFolder(folder).records()[-1].path, train(make(), EPOCHS))
