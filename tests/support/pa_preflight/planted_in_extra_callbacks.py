"""Mistakes in the settings of callbacks of pa-callbacks-extra, which is not everywhere where checks are tested."""

from __future__ import annotations

from pa_callbacks_extra import EarlyStoppingCallback, ModelEmaCallback
from pa_core import SaveBestModelCallback
from tests.support.pa_preflight.planted_in_settings import with_callback
from tests.support.pa_preflight.scripts import Planting, Script

planted = Planting()


@planted("callback-settings", do="small next to the loss")
def improvements_larger_than_the_loss() -> Script:
    """The loss would have to improve by more than it is."""
    return with_callback(EarlyStoppingCallback(early_stopping_patience=1, early_stopping_threshold=100.0))


@planted("callback-settings", do="smaller patience")
def patience_of_more_than_the_run() -> Script:
    """A patience of ten epochs, in a run of three."""
    return with_callback(EarlyStoppingCallback(early_stopping_patience=10, early_stopping_threshold=0.0))


@planted("callback-settings", do="smaller decay")
def average_of_more_than_the_run() -> Script:
    """The average looks back over 10,000 updates, in a run of 45."""
    return with_callback(ModelEmaCallback(decay=0.9999))


@planted("callback-settings", do="share that the average keeps")
def average_with_the_share_of_the_new() -> Script:
    """The decay is the share of the newest weights, as batch norm has it."""
    return with_callback(ModelEmaCallback(decay=0.01))


@planted("callback-settings", do="its own save_path")
def two_models_in_one_file() -> Script:
    """The best model and the best average are saved to the same file."""
    one = with_callback(SaveBestModelCallback("best.pt"))
    one.trainer.callback_handler.add_callback(ModelEmaCallback(decay=0.9, save_path="best.pt"))
    return one
