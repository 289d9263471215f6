"""The evaluations of a custom training loop: their loaders, modes, events, batches and means."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Generic, cast

import torch
from torch import Tensor

from pa_core._attributes import temporarily
from pa_core.callbacks.limit_batches import LimitBatchesCallback
from pa_core.data.custom_loader import count_steps, end_workers, innermost, is_keyed
from pa_core.data.data_arguments import DataArgument
from pa_core.engine.any_trainer import TrainerCallback
from pa_core.engine.session import Session
from pa_core.steps.batch_structure import count_samples
from pa_core.tracking import MetricValue
from pa_core.tracking.epoch_means import logged_twice, single_number
from pa_core.tracking.run_history import INTERMEDIATE_PREFIX, recording_with_prefix
from pa_core.types import BatchT, SizedIterable


class Evaluations(Generic[BatchT]):
    """Runs the evaluations of a run, one at a time, and keeps their loaders for the next evaluations.

    Args:
        session: The run.

    Attributes:
        is_in_batch: Whether an evaluation is in the body of a batch.
        samples: The number of samples in that batch; 0 for a padding batch.
    """

    def __init__(self, session: Session) -> None:
        self.is_in_batch: bool = False
        self.samples: int = 0
        self._session = session
        self._loss: Tensor | None = None
        self._counts_nothing = False
        self._open = ExitStack()
        self._made: dict[str | None, tuple[DataArgument, int, SizedIterable]] = {}

    def loader(
        self,
        data: DataArgument,
        batch_size: int,
        name: str | None,
        create: Callable[[int, dict[str, Any] | None], SizedIterable],
    ) -> SizedIterable:
        """Return the loader of an evaluation; a loader that exists is used again, with its workers.

        Args:
            data: The data to evaluate.
            batch_size: The number of samples in a batch of one process.
            name: The name of the evaluation; each name has a loader, which is replaced if its arguments change.
            create: Called with the batch size and the arguments for the loader if a new loader is needed.
        """
        made = self._made.get(name)
        if made is not None:
            before, size, loader = made
            if before.data is data.data and (before.kwargs, size) == (data.kwargs, batch_size):
                return loader
            end_workers(loader)
        loaders = self._session.setup.loaders
        loader = cast("SizedIterable", loaders.get_or_create(data, create, batch_size))
        for callback in self._session.trainer.callback_handler.callbacks:
            if isinstance(callback, LimitBatchesCallback):
                loader = callback.limited(loader)
        split = loaders.split(loader, compares=False)  # not all processes may have reached this yet
        self._made[name] = data, batch_size, split
        return split

    def batches(self, name: str | None, *, is_intermediate: bool) -> Iterator[BatchT]:
        """Evaluate ``run.eval_dataloader`` once: iterate over its batches, and record the means of the logged values.

        Args:
            name: The first part of the names of the metrics; None for "eval".
            is_intermediate: Whether the training epoch continues afterwards.
        """
        session, run = self._session, self._session.trainer
        within: dict[str, Any] = {"is_intermediate": True} if is_intermediate else {}
        prefix = f"{name}_" if name is not None else INTERMEDIATE_PREFIX if is_intermediate else ""
        with ExitStack() as self._open:
            if prefix:  # an evaluation besides the usual one after an epoch
                self._open.enter_context(session.preserved_random_numbers())
            for context in (recording_with_prefix(run.run_history, prefix), self._evaluating(name), torch.no_grad()):
                self._open.enter_context(context)
            session.call_together(TrainerCallback.on_eval_epoch_start, **within)
            loader = cast("SizedIterable", run.eval_dataloader)  # a callback may have limited it
            count = session.setup.loaders.count_batches(loader, "evaluation")
            keyed = innermost(loader)
            for step, batch in session.batches_to_evaluate(loader, count):
                session.call(TrainerCallback.on_eval_step_start)
                piece = keyed.split.piece(step - 1, run.process_index) if is_keyed(keyed) else None
                with self._step(count_samples(batch) if piece is None else len(piece)):
                    yield batch
                    loss = torch.zeros(()) if self._loss is None else self._loss
                    output = {"loss": loss, "model_outputs": None, "batch_size": self.samples}
                    if self._counts_nothing:
                        output["num_items_in_batch"] = 0
                    session.call(TrainerCallback.on_eval_step_end, batch=batch, batch_output=output, step=step)
            last = (count_steps(loader) or 0) - 1
            if is_keyed(keyed) and not keyed.split.piece(last, run.process_index):
                with self._step(0):  # only other processes have samples in the last step
                    yield keyed.fetch_for(last, rank=0)
            session.rank_sync.stop_if_alone()
            session.record_means("eval_loss_epoch" if name is None else "loss_epoch", count)
            session.call_together(TrainerCallback.on_eval_epoch_end, **within)

    @contextmanager
    def _evaluating(self, name: str | None) -> Generator[None]:
        with self._session.evaluating(), temporarily(self._session.eval_sets, name=name):
            for model in self._session.trainer.named_models().values():
                model.eval()
            with temporarily(self, is_in_batch=False):
                yield

    @contextmanager
    def _step(self, samples: int) -> Generator[None]:
        means = self._session.means
        with means.step():
            means.count_samples(samples)
            self.is_in_batch, self.samples, self._loss, self._counts_nothing = True, samples, None, False
            yield

    def log_loss(self, value: MetricValue, num_items: int | None = None) -> None:
        """Add the loss of the batch.

        Args:
            value: The mean over its samples, or over its items.
            num_items: The number of items; None for the samples.

        Raises:
            ConfigurationError: The loss was already logged, or is not a single number.
        """
        if self._loss is not None:
            raise logged_twice("loss")
        number = single_number("loss", value)
        self._loss = number if isinstance(number, Tensor) else torch.tensor(float(number))
        self._counts_nothing = num_items == 0
        if self.samples > 0:  # a loss that is not finite would spoil the mean even with the weight 0
            self._session.means.losses.update(self._loss, self.samples if num_items is None else num_items)

    def abort(self) -> None:
        """End the evaluation in progress, if any, without recording its means."""
        self._open.close()

    def end(self) -> None:
        """End the evaluation in progress, and the workers of all loaders."""
        self.abort()
        end_workers(*(loader for *_, loader in self._made.values()))
