"""A callback that ends a run whose loss is not finite."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from torch import Tensor
from typing_extensions import override

from pa_core._device_reads import ScalarTransfer
from pa_core.engine.any_trainer import AnyTrainer, TrainerCallback
from pa_core.errors import NonFiniteLossError
from pa_core.steps.default_step import why_not_finite
from pa_core.types import BatchOutput


class TerminateOnNaNCallback(TrainerCallback):
    """End the run when a training or evaluation loss is NaN or infinite.

    It is a default callback, so that a diverged run does not waste time. Name it in ``callbacks=[...]`` if your list
    replaces the default callbacks, or leave it out to keep training despite such a loss. It has no arguments and no
    state.

    On the CPU, each loss is checked at once, so that no update is made with a loss that is not finite. On an
    accelerator, such a check would block every step, so the loss is copied in the background and checked a few steps
    later. The remaining losses are checked when the epoch ends or a training state is saved, before any metrics of the
    epoch are reported. Each process checks the losses of its batches, and all processes end the run together. A batch
    whose step returns ``num_items_in_batch=0`` does not count, and may have any loss.

    Raises:
        NonFiniteLossError: A loss is not finite. The last events of the run are called as usual; then ``train()`` or
            ``evaluate()`` raises this error, which is an ``ArithmeticError``. Its message names the batch and says how
            to fix the run.

    Example:
        >>> import torch
        >>> from pa_core import Trainer, TerminateOnNaNCallback
        >>> model = torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=1e38)
        >>> samples = torch.utils.data.TensorDataset(torch.ones(32, 1), torch.zeros(32, 1))
        >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[TerminateOnNaNCallback])
        >>> trainer.train(samples, num_epochs=1)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        pa_core.errors.NonFiniteLossError: The training loss is not finite...
    """

    only_observes = True  # on a CPU, where no loss is left to check at the end of an epoch

    def __init__(self) -> None:
        self._losses = ScalarTransfer[tuple[str, str]]()  # each tagged with its name and its place

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Drop the losses of an earlier run.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._start(trainer)

    @override
    def on_evaluation_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Drop the losses of an earlier run.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._start(trainer)

    @override
    def on_train_step_end(
        self, trainer: AnyTrainer, batch: Any, batch_output: BatchOutput, *, step: int = 0, **kwargs: Any
    ) -> None:
        """Check the loss of a training batch or, on an accelerator, begin to copy it.

        Args:
            trainer: The trainer.
            batch: The batch, on the device.
            batch_output: The outputs of the step; only its loss and number of items are read.
            step: The number of the batch in the epoch, from 1.
            **kwargs: Not used.

        Raises:
            NonFiniteLossError: A loss is not finite.
        """
        self._look_at(trainer, batch, batch_output, "training", step)

    @override
    def on_eval_step_end(
        self, trainer: AnyTrainer, batch: Any, batch_output: BatchOutput, *, step: int = 0, **kwargs: Any
    ) -> None:
        """Check the loss of an evaluation batch or, on an accelerator, begin to copy it.

        Args:
            trainer: The trainer.
            batch: The batch, on the device.
            batch_output: The outputs of the step; only its loss and number of items are read.
            step: The number of the batch in the epoch, from 1.
            **kwargs: Not used.

        Raises:
            NonFiniteLossError: A loss is not finite.
        """
        self._look_at(trainer, batch, batch_output, "evaluation", step)

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Wait for the losses that have not been checked yet, and check them.

        Args:
            trainer: The trainer.
            **kwargs: Not used.

        Raises:
            NonFiniteLossError: A loss is not finite.
        """
        self._require_finite(self._losses.wait_for_all())

    @override
    def on_eval_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Wait for the training losses, so that a diverged model is not evaluated.

        Args:
            trainer: The trainer.
            **kwargs: Not used.

        Raises:
            NonFiniteLossError: A loss is not finite.
        """
        self._require_finite(self._losses.wait_for_all())

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Wait for the losses that have not been checked yet, and check them.

        Args:
            trainer: The trainer.
            **kwargs: Not used.

        Raises:
            NonFiniteLossError: A loss is not finite.
        """
        self._require_finite(self._losses.wait_for_all())

    @override
    def on_training_state_save(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Wait for the losses that have not been checked yet, so that a diverged run is not saved.

        Args:
            trainer: The trainer.
            **kwargs: Not used.

        Raises:
            NonFiniteLossError: A loss is not finite.
        """
        self._require_finite(self._losses.wait_for_all())

    def _start(self, trainer: AnyTrainer) -> None:
        self._losses.clear()
        self.only_observes = trainer.device.type == "cpu"

    def _look_at(self, trainer: AnyTrainer, batch: Any, output: BatchOutput, phase: str, step: int) -> None:
        loss: Tensor = output["loss"]
        if loss.is_cpu and math.isfinite(loss.item()):
            return
        if output.get("num_items_in_batch", 1) == 0:
            return
        name, place = f"{phase} loss", f"at batch {step} of epoch {trainer.run_history.current_epoch}"
        if loss.is_cpu and (reason := _reason(trainer, batch, step)) is not None:
            raise _not_finite(name, f"loss={loss.item()} {place}, {reason[0]}", reason[1])
        self._losses.send(loss, (name, place))
        self._require_finite(self._losses.arrived())

    def _require_finite(self, losses: Iterable[tuple[tuple[str, str], float]]) -> None:
        for (name, place), value in losses:
            if not math.isfinite(value):
                advice = "Lower the learning rate, clip the gradients with gradient_clip_norm, or check the data of "
                raise _not_finite(name, f"loss={value} {place}", f"{advice}this batch.")


def _not_finite(name: str, given: str, do: str) -> NonFiniteLossError:
    do += " To continue regardless, leave TerminateOnNaNCallback out of the callbacks."
    return NonFiniteLossError(f"The {name} is not finite.", given=given, do=do)


def _reason(trainer: AnyTrainer, batch: Any, step: int) -> tuple[str, str] | None:
    """Explain the loss of a batch by its contents, with advice; None if they do not explain it."""
    reason, sample, do = why_not_finite(batch, trainer.loss_func)
    if not reason:
        return None
    if sample is not None:
        number = trainer._number_in_dataset(step, sample)  # pyright: ignore[reportPrivateUsage]  # nobody else needs it
        reason += f" in sample {sample} of the batch" + ("" if number is None else f", number {number} of the dataset")
    return reason, do
