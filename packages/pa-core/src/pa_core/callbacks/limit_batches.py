"""Callbacks that run only the first batches of loaders."""

from __future__ import annotations

from typing import Any, cast

from typing_extensions import override

from pa_core.data.batch_limit import BATCH_LIMIT_VARIABLE, DataLoaderSlice, batch_limit_from_environment
from pa_core.data.custom_loader import is_slice
from pa_core.engine.any_trainer import AnyTrainer, CallbackHandler, TrainerCallback
from pa_core.run_config import check_count
from pa_core.types import SizedIterable
from pa_core.user_warnings import warn_user


class LimitBatchesCallback(TrainerCallback):
    """Limit every training and evaluation epoch to its first batches, to try out a script quickly.

    Pass it to the trainers that you want to limit. ``LimitBatches`` limits the trainers of a script that you do not
    want to edit, and ``LimitEvalStepsCallback`` limits evaluations only.

    The loaders are limited before the run is set up, so the run config, the scheduler and the progress bars count only
    these batches. Predictions are not limited, because their file has a row for each sample. To try out ``predict()``,
    pass it a ``torch.utils.data.Subset``. Nothing is kept in training states.

    Args:
        num_batches: The number of batches of each process in an epoch, at least 1. With gradient accumulation, several
            batches make an optimizer update. A loader with fewer batches is not shortened.

    Attributes:
        num_batches: The value that was passed.

    Raises:
        ConfigurationError: ``num_batches`` is not a positive whole number.

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
        """Replace the training loader and the evaluation loaders of the run with loaders of their first batches.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        # The training loader is None before the first training, and that of the previous training in an evaluation.
        training = cast("SizedIterable | None", trainer.train_dataloader)
        if training is not None:
            trainer.train_dataloader = self.limited(training)
        trainer.change_eval_dataloaders(self.limited)

    @override
    def on_prediction_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Print that predictions are not limited, because all samples of the dataset are predicted.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        trainer.print(f"predict() is not limited to {self.num_batches} batches: it predicts all samples of the dataset")

    def limited(self, loader: SizedIterable) -> SizedIterable:
        """Return a loader of the first ``num_batches`` batches of another loader.

        The callback calls this for the loaders of each run. Call it yourself for loaders that the trainer does not know
        about, for example a second training loader that your step reads.

        Args:
            loader: An iterable of batches (not of samples) that has a length and can be iterated over repeatedly, for
                example a ``torch.utils.data.DataLoader``. It is not changed.

        Returns:
            A loader with a length of at most ``num_batches``, on each process. It is ``loader`` itself if an earlier
            call already limited it to at most this number of batches.

        Example:
            >>> from pa_core import LimitBatchesCallback
            >>> first_two = LimitBatchesCallback(2).limited([[0, 1], [2, 3], [4, 5]])
            >>> len(first_two), list(first_two)
            (2, [[0, 1], [2, 3]])
        """
        return first_batches(loader, self.num_batches)


def add_limit_of_environment(handler: CallbackHandler[Any]) -> None:
    """Add the ``LimitBatchesCallback`` that ``PT_ACC_LIMIT_BATCHES`` requests to a new trainer.

    It is the last callback, so that it also limits loaders that other callbacks replaced. A ``LimitBatchesCallback``
    that was passed to the trainer stays if it limits at least as much.

    Raises:
        ConfigurationError: The variable is not a positive whole number.
    """
    limit = batch_limit_from_environment()
    if limit is None or _limits_to(handler, limit):
        return
    for callback in list(handler.callbacks):
        if type(callback) is LimitBatchesCallback:
            handler.remove_callback(callback)
    handler.add_callback(LimitBatchesCallback(limit))


def apply_limit_of_environment(trainer: AnyTrainer) -> None:
    """Limit a run that starts within ``LimitBatches`` although its trainer was created outside, and warn about it.

    Raises:
        ConfigurationError: The variable is not a positive whole number.
    """
    limit = batch_limit_from_environment()
    if limit is None or _limits_to(trainer.callback_handler, limit):
        return
    warn_user(
        f"This run is limited to {limit} batches an epoch by LimitBatches or the environment variable "
        f"{BATCH_LIMIT_VARIABLE}, which was set after the trainer was made. Make the trainer within the context too, "
        "or train it outside."
    )
    LimitBatchesCallback(limit).on_prepare_start(trainer)


def _limits_to(handler: CallbackHandler[Any], limit: int) -> bool:
    return any(
        isinstance(callback, LimitBatchesCallback) and callback.num_batches <= limit for callback in handler.callbacks
    )


class LimitEvalStepsCallback(TrainerCallback):
    """Limit evaluation epochs to their first batches, so that frequent evaluations stay cheap.

    Use it with ``StepBasedEvaluationCallback``, which evaluates within training epochs. ``LimitBatchesCallback`` also
    limits the training. The metrics of a limited evaluation cover only the evaluated batches. They are the same batches
    each time, unless the evaluation loader shuffles. Nothing is kept in training states.

    Args:
        num_eval_steps: The number of batches of each process to evaluate, at least 1. A set with fewer batches is
            evaluated completely.
        limit_intermediate_only: Whether only evaluations within a training epoch are limited. The default, True, leaves
            the evaluation after each epoch and ``evaluate()`` complete, because their metrics are usually compared and
            reported. If False, every evaluation is limited.

    Attributes:
        num_eval_steps: The value that was passed.
        limit_intermediate_only: The value that was passed.

    Raises:
        ConfigurationError: ``num_eval_steps`` is not a positive whole number.

    Example:
        >>> import torch
        >>> from pa_core import LimitEvalStepsCallback, Trainer
        >>> from pa_core.testing import make_regression
        >>> class CountBatches(Trainer):
        ...     evaluated = 0
        ...     def calculate_eval_batch_loss(self, batch):
        ...         self.evaluated += 1
        ...         return super().calculate_eval_batch_loss(batch)
        >>> limit = LimitEvalStepsCallback(2, limit_intermediate_only=False)
        >>> trainer = CountBatches(torch.nn.Linear(4, 1), torch.nn.MSELoss(), None, callbacks=[limit])
        >>> _ = trainer.evaluate(make_regression(64), per_device_batch_size=8)
        >>> trainer.evaluated
        2
    """

    def __init__(self, num_eval_steps: int, limit_intermediate_only: bool = True) -> None:
        check_count("num_eval_steps", num_eval_steps)
        self.num_eval_steps = num_eval_steps
        self.limit_intermediate_only = limit_intermediate_only
        self._whole: SizedIterable | None = None
        self._limited: SizedIterable | None = None

    @override
    def on_eval_epoch_start(self, trainer: AnyTrainer, *, is_intermediate: bool = False, **kwargs: Any) -> None:
        """Replace ``trainer.eval_dataloader`` with a loader of its first batches, if this evaluation is limited.

        Args:
            trainer: The trainer.
            is_intermediate: Whether the evaluation is within a training epoch.
            **kwargs: Not used.
        """
        self._restore(trainer)
        loader = trainer.eval_dataloader
        is_limited = is_intermediate or not self.limit_intermediate_only
        if is_limited and loader is not None:
            self._whole, self._limited = loader, first_batches(loader, self.num_eval_steps)
            trainer.eval_dataloader = self._limited

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Restore the whole loader after the evaluation.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._restore(trainer)

    @override
    def on_stop_training_error(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Restore the whole loader, because the evaluation does not end.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._restore(trainer)

    @override
    def on_exception(self, trainer: AnyTrainer, exception: BaseException, **kwargs: Any) -> None:
        """Restore the whole loader, because the evaluation does not end.

        Args:
            trainer: The trainer.
            exception: The exception.
            **kwargs: Not used.
        """
        self._restore(trainer)

    def _restore(self, trainer: AnyTrainer) -> None:
        # After an error, the trainer may already have the loader of another evaluation set.
        if self._whole is not None and trainer.eval_dataloader is self._limited:
            trainer.eval_dataloader = self._whole
        self._whole = self._limited = None


def first_batches(loader: SizedIterable, number: int) -> SizedIterable:
    """Return the first batches of a loader.

    Args:
        loader: The loader.
        number: The number of batches.
    """
    # Short loaders are wrapped too: lengths may differ between processes, which have to agree.
    is_limited = is_slice(loader) and loader.slice_size <= number
    return loader if is_limited else DataLoaderSlice(loader, number)
