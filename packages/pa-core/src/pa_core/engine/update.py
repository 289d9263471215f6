"""An update of the weights, from its first batch to its last event, which ``Trainer`` and ``Run`` iterate over."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

from torch import Tensor

from pa_core import _accelerate
from pa_core.engine.any_trainer import TrainerCallback
from pa_core.engine.micro_batches import BatchPlace
from pa_core.engine.parts import Part, zero_loss_of_padding
from pa_core.engine.session import Session
from pa_core.errors import StopTrainingError
from pa_core.steps.default_step import ITEMS, check_step_output, count_items, name_backward_pass
from pa_core.training_state.progress import Phase
from pa_core.types import SizedIterable

__all__ = ["BEFORE_FIRST", "AnyUpdate", "Batches", "TrainerUpdate", "updates_of_epoch"]


_STEP_START = TrainerCallback.on_train_step_start.__name__
_STEP_END = TrainerCallback.on_train_step_end.__name__
_UPDATE_END = TrainerCallback.on_optimizer_step_end.__name__


class Batches:
    """The remaining batches of an epoch with their places; ``has_next`` fetches the next batch early.

    It is a context that drops the loader at its end, because the traceback of an error would keep workers alive.

    Args:
        batches: The batches with their places.
    """

    def __init__(self, batches: Iterable[tuple[BatchPlace, Any]]) -> None:
        self._batches = iter(batches)
        self._next: tuple[BatchPlace, Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._batches, self._next = iter(()), None

    def has_next(self) -> bool:
        """Return whether there is another batch, which is fetched for it."""
        if self._next is None:
            self._next = next(self._batches, None)
        return self._next is not None

    def pop(self) -> tuple[BatchPlace, Any]:
        """Return the next batch, without keeping a reference."""
        popped, self._next = self._next, None
        return next(self._batches) if popped is None else popped


BEFORE_FIRST = BatchPlace(0, 0.0, ends_group=False)
"""The place before the first batch of an update."""


class AnyUpdate:
    """An update: its batches, the backward passes of their losses, and the step that changes the weights.

    Args:
        session: The run.
        batches: The batches of this update and of the updates after it.

    Attributes:
        number: The number of the update in the run, counted from 1.
        place: The place of the current batch in the update.
    """

    def __init__(self, session: Session, batches: Batches) -> None:
        self._session = session
        self._batches = batches
        session.checkpointer.next_phase = None
        self.number: int = session.progress.updates + 1
        self.place: BatchPlace = BEFORE_FIRST

    @property
    def is_empty(self) -> bool:
        """Whether this process has no sample in the current batch, while other processes have some.

        It is False before the first batch and with one process. With several processes, the last batch of an epoch may
        have fewer samples than there are processes. In a ``Run``, a process without a sample gets a padding batch, the
        batch of another process, so that the loop is the same on all of them. In a ``Trainer``, no loss is computed on
        such a process, unless the model is sharded, and it only takes part in the exchange. The losses and logged
        values of a padding batch are ignored, even if they are not finite.

        Read it in a loop that counts samples; ``Run.is_padding_batch`` also covers evaluations.

        Example:
            >>> import torch
            >>> from pa_core import Run
            >>> from pa_core.testing import make_regression
            >>> model = torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> num_samples = 0
            >>> with Run(model, optimizer, make_regression(32), num_epochs=1, gradient_accumulation_steps=2) as run:
            ...     for update in run.updates():
            ...         for inputs, targets in update:
            ...             update.backward((model(inputs) - targets).square().mean())
            ...             num_samples += 0 if update.is_empty else len(inputs)
            ...         _ = update.step()
            >>> num_samples
            32
        """
        return self.place.is_empty

    @property
    def is_at_last_batch(self) -> bool:
        """Whether the current batch is the last of the update, after which ``step`` can be called.

        It is False before the first batch. Read it in the body of the loop over the batches, for work that is done once
        in each update.

        Example:
            >>> import torch
            >>> from pa_core import Run
            >>> from pa_core.testing import make_regression
            >>> model = torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> with Run(model, optimizer, make_regression(32), num_epochs=1, gradient_accumulation_steps=2) as run:
            ...     for update in run.updates():
            ...         for inputs, targets in update:
            ...             update.backward((model(inputs) - targets).square().mean())
            ...             print(update.number, update.is_at_last_batch)
            ...         _ = update.step()
            1 False
            1 True
            2 False
            2 True
        """
        return self.place.ends_group

    # A batch

    def _start_next_batch(self) -> Any:
        """Begin the next batch, and return it; None if no loss is computed for it."""
        self.place, batch = self._batches.pop()
        session, place = self._session, self.place
        session.progress.step = place.step
        session.means.is_in_step = True
        session.exchange.start_batch(place)
        if place.is_empty:
            return session.padding_batch(place) if session.has_padding_batches else None
        if session.keeps_batch:
            session.last_batch = batch
        if _STEP_START in session.trainer.callback_handler.heard:
            session.call(_STEP_START)
        return batch

    def _add_gradients(
        self, part: Part, loss: Tensor | None, run_pass: Callable[[Tensor], None], samples: int, items: int | None
    ) -> None:
        """Add the gradients of a loss to the update, by its share, or none without a loss.

        In the last batch of an update, the gradients are exchanged.
        """
        place, accumulation, exchange = self.place, part.accumulation, self._session.exchange
        if place.ends_group:
            exchange.start_last_pass(part, overlaps=not place.some_are_empty)
        if loss is None:
            return
        scaled = accumulation.scale_loss(loss, place, samples, items)
        adds_nothing = accumulation.counts_nothing and not place.is_empty
        if part.is_split or adds_nothing:
            with part.passing(ends_update=place.ends_group, adds_nothing=adds_nothing):
                run_pass(scaled)
        else:
            run_pass(scaled)

    # The step

    def _make_step(self, part: Part, *, at_once: bool, is_first: bool = True) -> bool:
        """Update the weights with the gradients of the batches.

        With several processes, it waits for the gradients and flags of all of them; on an accelerator, flags are read
        two updates late, so that the host does not wait. The first updates also compare weights. In fp16 it waits for
        the device, to know whether gradients overflowed. States are written when the update has ended.

        Args:
            part: The part to update.
            at_once: Whether to wait for the flags of the other processes, instead of reading them late.
            is_first: Whether no other optimizer of the update has been stepped.

        Returns:
            Whether the update was made; False if the gradients overflowed in fp16.

        Raises:
            StopTrainingError: A process requested a stop.
        """
        session = self._session
        progress = session.progress
        progress.steps_in_epoch = progress.step

        # agree: all processes stop, save or are preempted at the same update
        own_items = part.accumulation.items
        totals = session.exchange.finish(part, partial(session.rank_sync.local_flags, own_items))
        items = own_items if totals is None else self._act_on(totals, at_once=at_once, may_stop=is_first)
        counts = part.accumulation
        others_may_count = totals is not None and (counts.counts_items is not False or counts.counts_samples)
        if own_items > 0 or others_may_count:
            counts.scale_gradients(part.parameters, items)

        # update; unscaled here, because overridden methods of a user may not handle a scaler
        scaler = session.setup.accelerator.scaler
        overflowed = scaler is not None and _accelerate.unscale(scaler, *part.optimizers.values())
        first_updates = session.own_steps.first_updates
        if first_updates is not None:
            first_updates.begin_update()
            session.own_steps.require_positions(session.arguments.stepping)
        try:
            session.update_weights(part, overflowed)
        except StopTrainingError as error:
            session.rank_sync.request_stop(error)
        if first_updates is not None and not first_updates.end_update():
            session.own_steps.stop()

        # count
        if is_first:
            self._count_group(makes_update=not overflowed)
        unchecked = session.checkpointer.unchecked_optimizers
        if unchecked and not overflowed:
            for name in unchecked & part.optimizers.keys():
                session.checkpointer.check_optimizer(name, session.trainer)
        return not overflowed

    def _count_group(self, *, makes_update: bool) -> None:
        """Add the samples of the group to the epoch and the clock, and count its update."""
        progress, clock = self._session.progress, self._session.trainer.run_history.clock
        clock.samples += progress.samples_in_group
        progress.samples_in_epoch += progress.samples_in_group
        progress.samples_in_group = 0
        if makes_update:
            progress.updates += 1
            clock.update += 1

    def _act_on(self, totals: Tensor, *, at_once: bool, may_stop: bool) -> Tensor:
        """Act on the requests of all processes, and return the items of the update."""
        try:
            return self._session.rank_sync.act_on(totals, at_once=at_once, may_stop=may_stop)
        except StopTrainingError:
            self._session.exchange.drop_update()
            raise

    def _finish(self, *, is_made: bool) -> None:
        """End the update; its event is called between two steps, where evaluations are possible."""
        session, means, checkpointer = self._session, self._session.means, self._session.checkpointer
        samples = session.exchange.end_update()
        if is_made:
            if samples is not None:
                means.count_samples(samples)
            if _UPDATE_END in session.trainer.callback_handler.heard:
                checkpointer.is_between_steps = True
                try:
                    session.call(_UPDATE_END, update=session.progress.updates)
                finally:
                    checkpointer.is_between_steps = False
        means.end_step()


class TrainerUpdate(AnyUpdate):
    """An update of a trainer: iterate over its batches, call ``backward`` for batches with samples, then ``step``.

    Args:
        session: The run.
        batches: The batches of this update and of the updates after it.
        part: The trained part.
        run_pass: Runs the backward pass of a loss that was scaled to its share of the update.
    """

    def __init__(self, session: Session, batches: Batches, part: Part, run_pass: Callable[[Tensor], None]) -> None:
        super().__init__(session, batches)
        self._part = part
        self._run_pass = run_pass
        self._samples = 0
        self._items: int | None = None

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the batches of this process on the device; None if it has no sample and may skip the batch."""
        session = self._session
        while True:
            yield self._start_next_batch()
            place = self.place
            samples = place.global_samples or self._part.accumulation.last_batch_size * session.setup.num_processes
            session.progress.samples_in_group += samples
            if place.ends_group:
                return
            session.means.end_step()

    def report(self, batch: Any, output: Mapping[str, Any]) -> Tensor:
        """Report the loss of a step, and return it.

        Args:
            batch: The batch.
            output: The outputs of ``calculate_train_batch_loss``.

        Raises:
            BatchOutputError: The output cannot be used.
        """
        session = self._session
        loss = check_step_output(output, "calculate_train_batch_loss", trained=session.trainer.model)
        self._items = count_items(output, "calculate_train_batch_loss") if ITEMS in output else None
        self._samples = samples = output["batch_size"]
        session.means.add(loss, samples if self._items is None else self._items, samples)
        if _STEP_END in session.trainer.callback_handler.heard:
            session.call(_STEP_END, batch=batch, batch_output=output, step=self.place.step)
        return loss

    def backward(self, loss: Tensor, batch: Any) -> None:
        """Add the gradients of a loss to the update; only the loss keeps the outputs of the step during the pass.

        Args:
            loss: The loss, from ``report``.
            batch: The batch, for messages.
        """
        session = self._session
        first_updates = session.own_steps.first_updates
        if first_updates is not None:
            first_updates.before_backward()
        try:
            self._add_gradients(self._part, loss, self._run_pass, self._samples, self._items)
        except RuntimeError as error:
            callbacks = session.trainer.callback_handler.callbacks
            name_backward_pass(error, batch, f"training step {self.place.step}", callbacks)
            raise
        if first_updates is not None:
            first_updates.after_backward()

    def follow_others(self, loss: Tensor | None) -> None:
        """Run the backward pass of a padding batch together with the other processes, without adding gradients.

        Args:
            loss: The loss of the batch, which may not be finite; None if it was not computed.
        """
        self._add_gradients(self._part, None if loss is None else zero_loss_of_padding(loss), self._run_pass, 0, None)

    def step(self) -> None:
        """Make the update, and call its event.

        Raises:
            StopTrainingError: A process requested a stop.
        """
        at_once = self._session.progress.steps_in_epoch == 0  # the same on all processes
        self._finish(is_made=self._make_step(self._part, at_once=at_once))


@contextmanager
def updates_of_epoch(
    session: Session, train_dl: SizedIterable, part: Part, run_pass: Callable[[Tensor], None]
) -> Generator[Iterator[TrainerUpdate]]:
    """Return the context of the remaining updates of an epoch, which iterates over them.

    After each update, a training state may be saved.

    Args:
        session: The run.
        train_dl: The loader of the epoch.
        part: The trained part.
        run_pass: Runs the backward pass of a scaled loss.
    """
    with Batches(session.batches(train_dl)) as batches:
        yield _updates(session, batches, part, run_pass)


def _updates(
    session: Session, batches: Batches, part: Part, run_pass: Callable[[Tensor], None]
) -> Iterator[TrainerUpdate]:
    checkpointer, rank_sync = session.checkpointer, session.rank_sync
    progress, last = session.progress, session.trainer.run_config.max_num_train_steps
    while progress.updates != last and batches.has_next():
        yield TrainerUpdate(session, batches, part, run_pass)
        checkpointer.next_phase = Phase.STEP
        if rank_sync.is_pending:
            session.checkpoint_if_requested(Phase.STEP)
