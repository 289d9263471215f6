"""Running on a part of the batches, and evaluating after a number of updates."""

from __future__ import annotations

import os
import warnings
from types import TracebackType
from typing import Any, Self, cast

from typing_extensions import override

from pa_core.any_trainer import AnyTrainer
from pa_core.callbacks.base import CallbackHandler, TrainerCallback
from pa_core.data import DataLoaderSlice
from pa_core.data.custom_loader import is_slice
from pa_core.errors import ConfigurationError
from pa_core.run_config import check_count
from pa_core.types import SizedIterable

__all__ = [
    "LimitBatches",
    "LimitBatchesCallback",
    "LimitEvalStepsCallback",
    "StepBasedEvaluationCallback",
    "add_limit_of_environment",
    "apply_limit_of_environment",
    "batch_limit_from_environment",
]

_VARIABLE = "PT_ACC_LIMIT_BATCHES"


class LimitBatchesCallback(TrainerCallback):
    """Limits every training and evaluation epoch to its first batches, to try a program out quickly.

    The loaders are cut before the run is set up, so that the run config, the scheduler and the progress bars
    count what really runs.

    Args:
        num_batches: The number of batches of each process in an epoch; a loader that has fewer is left as it
            is.

    Raises:
        ConfigurationError: ``num_batches`` is no positive whole number.

    Example:
        >>> import torch
        >>> from pa_core import LimitBatchesCallback, Trainer
        >>> model = torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> samples = torch.utils.data.TensorDataset(torch.ones(80, 1), torch.ones(80, 1))
        >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[LimitBatchesCallback(2)])
        >>> trainer.train(samples, num_epochs=1, per_device_batch_size=8)
        >>> trainer.run_config.num_update_steps_per_epoch
        2
    """

    def __init__(self, num_batches: int) -> None:
        check_count("num_batches", num_batches)
        self.num_batches = num_batches

    @override
    def on_prepare_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Replace the loaders of the run by their first batches."""
        # A trainer that has only evaluated so far has no training loader, and one that trained has that of then.
        training = cast("SizedIterable | None", trainer.train_dataloader)
        if training is not None:
            trainer.train_dataloader = _first_batches(training, self.num_batches)
        if trainer.eval_dataloader is not None:
            trainer.eval_dataloader = _first_batches(trainer.eval_dataloader, self.num_batches)


class LimitBatches:
    """Limits every training and evaluation epoch of the trainers that are made within the context.

    Such a trainer has a ``LimitBatchesCallback``, which limits it wherever it is trained. A trainer that was made
    before is limited, with a warning, in the runs that start within the context.

    The context sets the environment variable ``PT_ACC_LIMIT_BATCHES``, which processes started within it see too,
    and restores its former value. Setting the variable for a script limits all of its trainers.

    Args:
        num_batches: The number of batches of each process in an epoch.

    Raises:
        ConfigurationError: ``num_batches`` is no positive whole number.

    Example:
        >>> import torch
        >>> from pa_core import LimitBatches, Trainer
        >>> model = torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> samples = torch.utils.data.TensorDataset(torch.ones(80, 1), torch.ones(80, 1))
        >>> with LimitBatches(3):
        ...     trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[])
        >>> trainer.train(samples, num_epochs=1, per_device_batch_size=8)
        >>> trainer.num_updates_completed
        3
    """

    def __init__(self, num_batches: int) -> None:
        check_count("num_batches", num_batches)
        self.num_batches = num_batches
        self._before: list[str | None] = []

    def __enter__(self) -> Self:
        self._before.append(os.environ.get(_VARIABLE))
        os.environ[_VARIABLE] = str(self.num_batches)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        before = self._before.pop()
        if before is None:
            os.environ.pop(_VARIABLE, None)
        else:
            os.environ[_VARIABLE] = before


def batch_limit_from_environment() -> int | None:
    """Return the number of batches that ``PT_ACC_LIMIT_BATCHES`` limits an epoch to; None if it is not set.

    Raises:
        ConfigurationError: The variable holds something else than a positive whole number.

    Example:
        >>> batch_limit_from_environment() is None
        True
    """
    text = os.environ.get(_VARIABLE, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ConfigurationError(
            f"The environment variable {_VARIABLE} is not usable.",
            given=f"{_VARIABLE}={os.environ[_VARIABLE]!r}",
            expected="a whole number of at least 1",
            do=f"Set it to the number of batches of an epoch, or unset it: unset {_VARIABLE}",
        )
    return int(text)


def add_limit_of_environment(handler: CallbackHandler[Any]) -> None:
    """Give a trainer that is being made the ``LimitBatchesCallback`` that ``PT_ACC_LIMIT_BATCHES`` asks for.

    It comes last, so that it limits what other callbacks have put in the place of the loaders. One that was passed to
    the trainer stays if it limits at least as much.

    Raises:
        ConfigurationError: The variable holds something else than a positive whole number.
    """
    limit = batch_limit_from_environment()
    if limit is None or _limits_to(handler, limit):
        return
    for callback in list(handler.callbacks):
        if type(callback) is LimitBatchesCallback:
            handler.remove_callback(callback)
    handler.add_callback(LimitBatchesCallback(limit))


def apply_limit_of_environment(trainer: AnyTrainer) -> None:
    """Limit a run that starts within ``LimitBatches`` although its trainer was made outside, and say so.

    Raises:
        ConfigurationError: The variable holds something else than a positive whole number.
    """
    limit = batch_limit_from_environment()
    if limit is None or _limits_to(trainer.callback_handler, limit):
        return
    warnings.warn(
        f"This run is limited to {limit} batches an epoch by LimitBatches or the environment variable {_VARIABLE}, "
        "which was set after the trainer was made. Make the trainer within the context too, or train it outside.",
        UserWarning,
        stacklevel=3,
    )
    LimitBatchesCallback(limit).on_prepare_start(trainer)


def _limits_to(handler: CallbackHandler[Any], limit: int) -> bool:
    return any(isinstance(one, LimitBatchesCallback) and one.num_batches <= limit for one in handler.callbacks)


class StepBasedEvaluationCallback(TrainerCallback):
    """Evaluates in the middle of the training epochs, after every so many optimizer updates.

    The updates are counted over the whole run. Where an epoch ends with the update that is due, only the
    epoch's own evaluation runs, as it would evaluate the same weights a second time.

    Everything that is recorded in these evaluations has the prefix ``intermediate_``: the loss is
    ``intermediate_eval_loss_epoch``, a metric ``accuracy`` that a callback records is ``intermediate_accuracy``. The
    names without it keep one value an epoch, that of the evaluation after the epoch. To keep the best model of all
    evaluations within the epochs, give ``SaveBestModelCallback`` the name with the prefix.

    Args:
        eval_every_n_steps: The number of optimizer updates from one evaluation to the next.

    Raises:
        ConfigurationError: ``eval_every_n_steps`` is no positive whole number, or the run has no evaluation
            dataset.

    Example:
        >>> import torch
        >>> from pa_core import StepBasedEvaluationCallback, Trainer
        >>> model = torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> samples = torch.utils.data.TensorDataset(torch.ones(80, 1), torch.ones(80, 1))
        >>> evaluate_often = StepBasedEvaluationCallback(4)
        >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[evaluate_often])
        >>> trainer.train(samples, num_epochs=1, eval_dataset=samples, per_device_batch_size=8)
        >>> [record.update for record in trainer.run_history.records("intermediate_eval_loss_epoch")]
        [4, 8]
        >>> [record.update for record in trainer.run_history.records("eval_loss_epoch")]
        [10]
    """

    def __init__(self, eval_every_n_steps: int) -> None:
        check_count("eval_every_n_steps", eval_every_n_steps)
        self.eval_every_n_steps = eval_every_n_steps

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Refuse a run that has nothing to evaluate."""
        if trainer.eval_dataloader is None:
            raise ConfigurationError(
                "There is nothing to evaluate in the middle of the epochs.",
                given="StepBasedEvaluationCallback in a run without an evaluation dataset",
                expected="an evaluation dataset",
                do="Pass eval_dataset to train(), or leave the callback out.",
            )

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        """Evaluate if it is time."""
        config = trainer.run_config
        ends_an_epoch = update % config.num_update_steps_per_epoch == 0 or update == config.max_num_train_steps
        if update % self.eval_every_n_steps == 0 and not ends_an_epoch:
            trainer.run_evaluation_epoch(is_intermediate=True)


class LimitEvalStepsCallback(TrainerCallback):
    """Limits evaluation epochs to their first batches, so that frequent evaluations stay cheap.

    Args:
        num_eval_steps: The number of batches of each process to evaluate.
        limit_intermediate_only: Whether only evaluations in the middle of a training epoch are limited, and
            the one that follows the epoch is complete. If False, all are.

    Raises:
        ConfigurationError: ``num_eval_steps`` is no positive whole number.

    Example:
        >>> from pa_core import LimitEvalStepsCallback, StepBasedEvaluationCallback
        >>> often_and_cheap = [StepBasedEvaluationCallback(100), LimitEvalStepsCallback(10)]
    """

    def __init__(self, num_eval_steps: int, limit_intermediate_only: bool = True) -> None:
        check_count("num_eval_steps", num_eval_steps)
        self.num_eval_steps = num_eval_steps
        self.limit_intermediate_only = limit_intermediate_only
        self._whole: SizedIterable | None = None

    @override
    def on_eval_epoch_start(self, trainer: AnyTrainer, *, is_intermediate: bool = False, **kwargs: Any) -> None:
        """Put the first batches in the place of the whole loader."""
        self._restore(trainer)
        loader = trainer.eval_dataloader
        is_limited = is_intermediate or not self.limit_intermediate_only
        if is_limited and loader is not None:
            self._whole = loader
            trainer.eval_dataloader = _first_batches(loader, self.num_eval_steps)

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Put the whole loader back."""
        self._restore(trainer)

    @override
    def on_stop_training_error(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Put the whole loader back."""
        self._restore(trainer)

    @override
    def on_exception(self, trainer: AnyTrainer, exception: BaseException, **kwargs: Any) -> None:
        """Put the whole loader back."""
        self._restore(trainer)

    def _restore(self, trainer: AnyTrainer) -> None:
        if self._whole is not None:
            trainer.eval_dataloader = self._whole
            self._whole = None


def _first_batches(loader: SizedIterable, number: int) -> SizedIterable:
    # Not left out for a short loader: its length may differ between processes, and they have to agree.
    is_limited = is_slice(loader) and loader.slice_size <= number
    return loader if is_limited else DataLoaderSlice(loader, number)
