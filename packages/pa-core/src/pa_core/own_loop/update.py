"""One optimizer update in a custom loop: its batches, its backward passes and its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic

import torch
from torch import Tensor

from pa_core.accumulation import MicroBatch
from pa_core.batch_structure import count_samples
from pa_core.errors import BatchOutputError, ConfigurationError
from pa_core.own_loop import mistakes
from pa_core.own_loop.trained_model import TrainedModel
from pa_core.step_output import require_count
from pa_core.types import BatchT

__all__ = ["FinishedBatch", "LossReport", "Update", "UpdateHooks"]

_SEVERAL = "For several updates out of one batch, write for part in run.batches(parts): ... in its body."

_GRAPH_IS_GONE = "Trying to backward through the graph a second time"
"""What the error of torch begins with."""


@dataclass(frozen=True)
class LossReport:
    """The loss of a batch as it is reported.

    Attributes:
        loss: The sum of what was passed to ``backward`` for one model: several passes over it add up.
        weight: How many samples, or items such as tokens, it is the mean over.
    """

    loss: Tensor
    weight: int


@dataclass(frozen=True)
class FinishedBatch:
    """A batch whose backward passes are over.

    Attributes:
        part: The part of the batch in the update.
        batch: The batch.
        samples: The number of its samples that count.
        reports: Its losses, by the name of what they train.
        has_made_way: Whether its body has trained on other batches, and not on this one.
    """

    part: MicroBatch
    batch: Any
    samples: int
    reports: Mapping[str, LossReport]
    has_made_way: bool = False

    def loss(self) -> Tensor:
        """Return the sum of its losses, zero without any."""
        losses = [report.loss for report in self.reports.values()]
        if len(losses) > 1:
            return torch.stack(losses).sum()
        return losses[0] if losses else torch.zeros(())


@dataclass(frozen=True)
class UpdateHooks:
    """What a run does in the course of an update.

    Attributes:
        start_batch: Called with the part that a batch has in the update, and the batch; returns what to hand out.
        report_loss: Called with the part of a batch, the name of what is trained, and its loss, once no more of it can
            come: before its step, or when the next batch or the end of the update does. None where all is one loss.
        finish_batch: Called when the body of a batch is over, or the first step is about to be made.
        backward: Called with what is trained, the loss, the part of the batch, and whether to keep the graph.
        make_step: Called with what is to be stepped, the part of the last batch, and whether it is the first step.
    """

    start_batch: Callable[[MicroBatch, Any], Any]
    report_loss: Callable[[MicroBatch, str, LossReport], None] | None
    finish_batch: Callable[[FinishedBatch], None]
    backward: Callable[[TrainedModel, Tensor, MicroBatch, bool], None]
    make_step: Callable[[TrainedModel, MicroBatch, bool], None]


class Update(Generic[BatchT]):
    """One optimizer update: iterate over it for its batches, call ``backward`` for each of them, and then ``step``.

    ``Run.updates`` yields the updates of a run. The gradient of an update is the gradient of the mean loss over all of
    its samples, on all processes, no matter how many batches they come in.

    Args:
        number: The number of the update in the run, counted from 1.
        batches: The batches of the epoch from this update on, each with its part in the update.
        trained: What the run trains, by name.
        hooks: What the run does meanwhile.

    Attributes:
        number: The number of the update in the run, counted from 1.

    Example:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from pa_core import Run
        >>> model = torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> samples = TensorDataset(torch.ones(16, 1))
        >>> with Run(model, optimizer, samples, num_epochs=1, gradient_accumulation_steps=2) as run:
        ...     for update in run.updates():
        ...         for (inputs,) in update:
        ...             update.backward(model(inputs).square().mean())
        ...         update.step()
        >>> update.number, run.num_updates_completed
        (1, 1)
    """

    def __init__(
        self,
        number: int,
        batches: Iterator[tuple[MicroBatch, Any]],
        trained: Mapping[str, TrainedModel],
        hooks: UpdateHooks,
    ) -> None:
        self.number: int = number
        self._batches = batches
        self._trained = trained
        self._hooks = hooks
        self._part: MicroBatch | None = None
        self._batch: Any = None
        self._samples = 0
        self._is_in_batch = False
        self._is_over = False
        self._has_made_way = False
        self._reports: dict[str, LossReport] = {}
        self._reported: set[str] = set()
        self._with_gradients: set[str] = set()
        self._exchanged: set[str] = set()
        self._stepped: set[str] = set()

    @property
    def is_empty(self) -> bool:
        """Whether the present batch is there only because other processes still have samples, and weighs nothing.

        On several processes, the last batch of an epoch may have fewer samples than there are processes. Those without
        one get a batch of another process, so that the loop is the same on all of them. Its losses, and what is logged
        for it, count for nothing, even if they are not finite.
        """
        return self._part is not None and self._part.is_empty

    @property
    def is_at_last_batch(self) -> bool:
        """Whether the present batch is the last one of the update, after which ``step`` can be called."""
        return self._part is not None and self._part.ends_group

    @property
    def is_stepped(self) -> bool:
        """Whether an optimizer has made its step."""
        return bool(self._stepped)

    def make_way(self) -> MicroBatch:
        """Let updates over other batches come in the body of the present one; return the part of this one.

        Raises:
            ConfigurationError: There is no batch, or there are gradients that were not stepped with, to which the
                gradients of other updates would be added.
        """
        self._require_under_way("updates(batches)")
        if self._part is None:
            raise mistakes.no_batch(self.number, "updates(batches)")
        if self._with_gradients - self._stepped:
            raise ConfigurationError(
                f"updates(batches) came between the backward pass of an update and its step, in update {self.number}. "
                "Step first, or make the loss of the batch itself one of the updates: run.updates([*batches, batch])."
            )
        self._has_made_way = True
        return self._part

    def __iter__(self) -> Iterator[BatchT]:
        """Iterate over the batches of this process, on the device."""
        return self

    def __next__(self) -> BatchT:
        """Return the next batch."""
        self._require_under_way("the next batch")
        self._finish_batch()
        if self.is_at_last_batch:
            raise StopIteration
        if self._hooks.report_loss:
            self._report_losses(self._hooks.report_loss)
            self._reported = set()
        self._reports = {}
        part, batch = next(self._batches)
        batch = self._hooks.start_batch(part, batch)
        self._part, self._batch, self._is_in_batch = part, batch, True
        self._samples = 0 if part.is_empty else part.samples or count_samples(batch)
        handed_out: BatchT = batch
        return handed_out

    def backward(
        self, loss: Tensor, *, model: str | None = None, num_items: int | None = None, retain_graph: bool = False
    ) -> None:
        """Run the backward pass of a loss; on several processes, gradients are exchanged with the last batch alone.

        With several models, it adds to the gradients of one of them and leaves the gradients of the others alone.

        Args:
            loss: The mean loss over the samples of the present batch.
            model: With several optimizers, the name of the model whose gradients are computed.
            num_items: If the loss is a mean over something else than samples, such as tokens, how many there are.
            retain_graph: Whether another backward pass goes through the graph of this one.

        Raises:
            ConfigurationError: There is no batch, the model is unknown or has been stepped, or the loss is not a single
                number with a graph.
            BatchOutputError: ``num_items`` is not a whole number; some calls of a run pass it, and others do not; or
                two passes over a batch differ in it.
        """
        trained = self._find(model, "backward(loss, model=...)")
        self._require_under_way("backward(...)")
        if self._part is None:
            raise mistakes.no_batch(self.number, "backward(...)")
        if trained.name in self._stepped:
            raise ConfigurationError(
                f"backward(...) for {trained.name!r} came after the step of its optimizer in the same update. Step "
                f"after the last backward pass, or add the losses up and call backward(...) once. {_SEVERAL}"
            )
        if trained.name in self._with_gradients and not self.is_empty and not trained.has_gradients():
            raise mistakes.no_gradients_left(trained.name)
        trained.require_gradients_of(loss)
        items = None if num_items is None else require_count(num_items, "backward(...)")
        items = 0 if self.is_empty and items is not None else items
        weight = trained.accumulation.take_counts(self._samples, items)
        is_first, before = not self._reports, self._reports.get(trained.name)
        if before is not None and before.weight != weight:
            raise BatchOutputError(
                f"The losses of one batch are means over different numbers of items: num_items={before.weight} in its "
                f"first backward pass, and num_items={weight} in a later one. Divide each loss by the same number of "
                "items, and pass that number."
            )
        reported = loss.detach().reshape(())
        self._reports[trained.name] = LossReport(reported if before is None else before.loss + reported, weight)
        try:
            self._hooks.backward(trained, loss, self._part, retain_graph)
        except RuntimeError as error:
            if _GRAPH_IS_GONE in str(error):
                raise mistakes.graph_is_gone(trained.name, is_of_this_batch=not is_first) from error
            raise
        self._with_gradients.add(trained.name)
        if self._part.ends_group:
            self._exchanged.add(trained.name)

    def step(self, name: str | None = None) -> None:
        """Update the weights: the processes agree, gradients are clipped, optimizer and scheduler step, gradients go.

        Args:
            name: With several optimizers, the name of the one to step.

        Raises:
            ConfigurationError: Batches of the update are left, the last one had no backward pass, the optimizer is
                unknown, it has been stepped, or its parameters have no gradients.
            StopTrainingError: A process requested the end of the run; no step was made.
        """
        trained = self._find(name, "step(name)")
        self._require_under_way("step()")
        part = self._part
        if part is None or not part.ends_group:
            raise ConfigurationError(
                "update.step() was called while batches of the update are left. Move it after the loop, or call "
                "run.step(), which steps after the last batch only."
            )
        if trained.name in self._stepped:
            raise ConfigurationError(
                f"The optimizer {trained.name!r} was stepped twice in one update. Remove one of the two calls. "
                f"{_SEVERAL}"
            )
        if trained.name not in self._with_gradients:
            raise ConfigurationError(
                f"A step of {trained.name!r} without its backward pass in this update has no gradients to step with. "
                "Call update.backward(loss) or run.backward(loss) instead of loss.backward()."
            )
        if trained.name not in self._exchanged:
            raise ConfigurationError(
                f"A step of {trained.name!r} after backward passes of earlier batches of the update only: the pass of "
                "the last batch exchanges gradients between processes. Call backward(loss) for each batch; a loss "
                "that should not count can be multiplied by 0."
            )
        if not part.is_empty and not trained.has_gradients():
            raise mistakes.no_gradients_left(trained.name)
        if self._hooks.report_loss:
            self._report_losses(self._hooks.report_loss, trained.name)
        self._finish_batch()
        self._hooks.make_step(trained, part, not self._stepped)
        self._stepped.add(trained.name)

    def finish(self) -> None:
        """End the update; the run calls this before the next one.

        Raises:
            ConfigurationError: It was not stepped, or there are gradients that were not stepped with: no training state
                would have them.
        """
        self._finish_batch()
        self.close()
        left = [name for name in self._trained if name in self._with_gradients - self._stepped]
        if left and self._stepped:
            raise ConfigurationError(
                "An update was left with gradients that no step has used.",
                given=f"update {self.number} with a backward pass of {left[0]!r}, and no step of it",
                do=f"Call update.step({left[0]!r}) too, or leave its backward pass out of updates without its step.",
            )
        if not self._stepped and (left or not self._has_made_way):
            raise ConfigurationError(
                "An update was left without a step.",
                given=f"update {self.number}, {'with' if bool(left) else 'without'} a backward pass, and no step",
                do="Call update.step() after the loop over the batches of the update, or run.step() after each batch.",
            )

    def close(self) -> None:
        """Forget the batches: a script may keep the update, and a batch would stay on the device with it."""
        if self._hooks.report_loss:
            self._report_losses(self._hooks.report_loss)
        self._is_over = True
        self._batch, self._batches = None, iter(())

    def _finish_batch(self) -> None:
        if self._is_in_batch and self._part is not None:
            self._is_in_batch = False
            batch, self._batch = self._batch, None
            has_made_way = self._has_made_way and not self._reports
            self._hooks.finish_batch(FinishedBatch(self._part, batch, self._samples, self._reports, has_made_way))

    def _report_losses(self, report: Callable[[MicroBatch, str, LossReport], None], *names: str) -> None:
        """Report the losses of some models, or of all, to which passes after the step of another one may have added."""
        for name in names or tuple(self._reports):
            if self._part is not None and name in self._reports.keys() - self._reported:
                self._reported.add(name)
                report(self._part, name, self._reports[name])

    def _find(self, name: str | None, call: str) -> TrainedModel:
        if name is None and len(self._trained) == 1:
            return next(iter(self._trained.values()))
        if name is None or name not in self._trained:
            raise mistakes.unclear_name(name, self._trained, call)
        return self._trained[name]

    def _require_under_way(self, what: str) -> None:
        if self._is_over:
            raise ConfigurationError(
                f"This update is over: {what} of update {self.number}, after the loop had continued. Use the update "
                "that run.updates() yielded last."
            )
