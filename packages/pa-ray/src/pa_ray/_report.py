"""Reports training states and metrics to Ray Train and Ray Tune."""

from __future__ import annotations

from numbers import Real
from pathlib import Path
from typing import Any

from torch import Tensor
from typing_extensions import override

from pa_core import AnyTrainer, SaveTrainingStateCallback, TrainerCallback
from pa_core.user_warnings import warn_user
from pa_ray._session import Session, api_of, find_session


class ReportToRay(TrainerCallback):
    """Reports each training state to Ray as its checkpoint, with the latest metrics of the run.

    Use it together with ``SaveTrainingStateCallback``, in a function that is passed to ``train_on_ray`` or to a
    ``ray.tune.Tuner``. Each state is reported as soon as it is on the disk, so Ray has as many reports as there are
    states. Metrics are not reported on their own, because Ray keeps the metrics of a training only together with a
    checkpoint. Ray copies the state to its ``storage_path``.

    A report contains the latest value of each metric of the run history that is a number, by its full name, for example
    ``eval_loss_epoch``, and:

    - ``epoch``: the number of completed epochs;
    - ``update``: the number of optimizer updates in the state.

    Both continue after a restart, so pass one of them to schedulers of Ray Tune as ``time_attr``. In a script that Ray
    has not started, the callback does nothing.

    Example:
        >>> from pa_core import DEFAULT_CALLBACKS, SaveTrainingStateCallback
        >>> from pa_ray import ReportToRay
        >>> callbacks = [*DEFAULT_CALLBACKS, SaveTrainingStateCallback("states", save_every_n_epochs=1), ReportToRay()]
    """

    def __init__(self) -> None:
        self._session: Session | None = None

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Find out which part of Ray has started the process.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._session = find_session()
        callbacks = trainer.callback_handler.callbacks
        if self._session is not None and not any(
            isinstance(callback, SaveTrainingStateCallback) for callback in callbacks
        ):
            warn_user(
                "ReportToRay reports the metrics of a run when a training state is saved, but no "
                "SaveTrainingStateCallback saves states. Pass SaveTrainingStateCallback(..., save_every_n_epochs=1), "
                "for example."
            )

    @override
    def on_training_state_saved(self, trainer: AnyTrainer, path: Path, update: int, **kwargs: Any) -> None:
        """Report a state and the latest metrics.

        Args:
            trainer: The trainer.
            path: The directory of the state.
            update: The number of optimizer updates that the state contains.
            **kwargs: Not used.
        """
        if self._session is None:
            return
        history = trainer.run_history
        metrics = {name: _as_number(history.get_latest_metric(name)) for name in history.get_metric_names()}
        known = {name: number for name, number in metrics.items() if number is not None}
        report = {**known, "epoch": trainer.num_epochs_completed, "update": update}
        api = api_of(self._session)
        # All processes of Ray Train have to report, and Ray merges the files of all reported checkpoints.
        checkpoint = api.Checkpoint.from_directory(path) if trainer.is_main_process else None
        api.report(report, checkpoint=checkpoint)


def _as_number(value: object) -> float | None:
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value)
    return float(value) if isinstance(value, Real) else None
