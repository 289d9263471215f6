"""The evaluations of a custom training loop: their loaders, modes, events, batches and means."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, cast

import torch

from pa_core.any_trainer import AnyTrainer, CallEvent, TrainerCallback
from pa_core.batch_structure import count_samples
from pa_core.callbacks.limit_batches import LimitBatchesCallback
from pa_core.data.batch_count import BatchCount
from pa_core.data.custom_loader import innermost, is_keyed
from pa_core.data.given_data import GivenData
from pa_core.data.loaders import Loaders, batches_on_device, count_steps, end_workers
from pa_core.own_loop.evaluated_batch import EvaluatedBatch
from pa_core.tracking.metric_prefix import INTERMEDIATE_PREFIX, recording_with_prefix
from pa_core.types import BatchT, SizedIterable

__all__ = ["EvaluationHooks", "Evaluations"]


@dataclass(frozen=True)
class EvaluationHooks:
    """What a run does around its evaluations and their batches.

    Attributes:
        evaluating: Called with the name of an evaluation, returns its context, which has separate means and restores
            the models' modes.
        call_epoch_event: Called with the first and the last event, and with whether the training epoch continues
            afterwards.
        call_event: Calls the events of each batch.
        record: Called after the last batch, with the metric name of the loss and the number of batches of a custom
            data loader.
    """

    evaluating: Callable[[str | None], AbstractContextManager[None]]
    call_epoch_event: Callable[[Callable[Concatenate[Any, Any, ...], None], bool], None]
    call_event: CallEvent
    record: Callable[[str, BatchCount | None], None]


class Evaluations(Generic[BatchT]):
    """Runs the evaluations of a run, one at a time, and keeps their loaders for the next ones.

    Args:
        loaders: Makes and splits the loaders of the run.
        hooks: What the run does meanwhile.

    Attributes:
        batch: The current batch; None between evaluations.
    """

    def __init__(self, loaders: Loaders, hooks: EvaluationHooks) -> None:
        self.batch: EvaluatedBatch | None = None
        self._loaders = loaders
        self._hooks = hooks
        self._open = ExitStack()
        self._made: dict[str | None, tuple[GivenData, int, SizedIterable]] = {}

    def loader(
        self,
        run: AnyTrainer,
        data: GivenData,
        batch_size: int,
        name: str | None,
        create: Callable[[int, dict[str, Any] | None], SizedIterable],
    ) -> SizedIterable:
        """Return the loader of an evaluation: the one of the last time, so that its workers need not start again.

        Args:
            run: The run.
            data: What to evaluate.
            batch_size: Samples in a batch of one process.
            name: The name of the evaluation; each name has a loader, which is replaced when its arguments change.
            create: Called with the batch size and the arguments for the loader if a new one of a dataset is needed.
        """
        made = self._made.get(name)
        if made is not None:
            before, size, loader = made
            if before.data is data.data and (before.kwargs, size) == (data.kwargs, batch_size):
                return loader
            end_workers(loader)
        loader = cast("SizedIterable", self._loaders.take(data, create, batch_size))
        for callback in run.callback_handler.callbacks:
            if isinstance(callback, LimitBatchesCallback):
                loader = callback.limited(loader)
        split = self._loaders.split(loader)
        self._made[name] = data, batch_size, split
        return split

    def batches(self, run: AnyTrainer, name: str | None, *, is_intermediate: bool) -> Iterator[BatchT]:
        """Evaluate ``run.eval_dataloader`` once: iterate over its batches, and record the means of what was logged.

        Args:
            run: The run.
            name: What the names of the metrics begin with; None for "eval".
            is_intermediate: Whether the training epoch continues afterwards.
        """
        prefix = f"{name}_" if name is not None else INTERMEDIATE_PREFIX if is_intermediate else ""
        with ExitStack() as self._open:
            self._open.callback(self._forget_batch)
            evaluating = self._hooks.evaluating(name)
            for context in (recording_with_prefix(run.run_history, prefix), evaluating, torch.no_grad()):
                self._open.enter_context(context)
            for model in run.named_models().values():
                model.eval()
            self._hooks.call_epoch_event(TrainerCallback.on_eval_epoch_start, is_intermediate)
            loader = cast("SizedIterable", run.eval_dataloader)  # a callback may have limited it
            count = self._loaders.count_batches(loader, "evaluation")
            for step, batch in enumerate(batches_on_device(loader, run.device, count), start=1):
                self._hooks.call_event(TrainerCallback.on_eval_step_start)
                with run.step_means.step():
                    samples = _count_samples(batch, step, loader, run.process_index)
                    run.step_means.count_samples(samples)
                    self.batch = evaluated = EvaluatedBatch(run.loss_tracker, samples)
                    yield batch
                    output = {"loss": evaluated.loss, "model_outputs": None, "batch_size": samples}
                    self._hooks.call_event(
                        TrainerCallback.on_eval_step_end, batch=batch, batch_output=output, step=step
                    )
            yield from self._batch_to_stand_in(run, loader)
            self._hooks.record("eval_loss_epoch" if name is None else "loss_epoch", count)
            self._hooks.call_epoch_event(TrainerCallback.on_eval_epoch_end, is_intermediate)

    def _batch_to_stand_in(self, run: AnyTrainer, loader: SizedIterable) -> Iterator[BatchT]:
        """The last step, in which other processes have the only samples: the batch of the first of them."""
        keyed, last = innermost(loader), (count_steps(loader) or 0) - 1
        if is_keyed(keyed) and not keyed.split.piece(last, run.process_index):
            with run.step_means.step():
                run.step_means.count_samples(0)
                self.batch = EvaluatedBatch(run.loss_tracker, samples=0)
                yield keyed.fetch_for(last, rank=0)

    def leave(self) -> None:
        """Leave the evaluation that is in progress, if any, without recording its means."""
        self._open.close()

    def end(self) -> None:
        """Leave the evaluation that is in progress, and end the workers of all loaders."""
        self.leave()
        end_workers(*(loader for *_, loader in self._made.values()))

    def _forget_batch(self) -> None:
        self.batch = None


def _count_samples(batch: object, step: int, loader: SizedIterable, rank: int) -> int:
    keyed = innermost(loader)
    return len(keyed.split.piece(step - 1, rank)) if is_keyed(keyed) else count_samples(batch)
