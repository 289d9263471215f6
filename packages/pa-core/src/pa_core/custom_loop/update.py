"""An optimizer update in a custom loop: its batches, its backward passes and its steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, Generic, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from pa_core.custom_loop import mistakes
from pa_core.custom_loop.evaluations import Evaluations
from pa_core.custom_loop.run_part import RunPart
from pa_core.data.custom_loader import length_of
from pa_core.distributed import gather_objects
from pa_core.engine.any_trainer import TrainerCallback
from pa_core.engine.micro_batches import BatchPlace
from pa_core.engine.session import Session
from pa_core.engine.update import BEFORE_FIRST, AnyUpdate, Batches
from pa_core.errors import BatchOutputError, ConfigurationError
from pa_core.run_config import check_count
from pa_core.steps.batch_structure import count_samples
from pa_core.steps.default_step import name_backward_pass, require_count
from pa_core.types import BatchT
from pa_data import move_to_device
from pa_data.batches import is_mapping

_SEVERAL = "For several updates from a batch, write for part in run.batches(parts): ... in its body."

_GRAPH_IS_GONE = "Trying to backward through the graph a second time"
"""The beginning of torch's error message."""


_NO_BATCHES = Batches(())


class Update(AnyUpdate, Generic[BatchT]):
    """An optimizer update: iterate over its batches, call ``backward`` for each of them, and then ``step``.

    ``Run.updates`` yields the updates of a run; you do not construct them. You call ``backward`` and ``step``, and read
    ``number``, ``is_empty`` and ``is_at_last_batch``; the run calls the other methods. The gradient of an update is
    computed for the mean loss over all of its samples, on all processes, no matter how many batches they are divided
    into.

    Args:
        session: The state of the run, which the run passes.
        batches: The batches of this update and of the updates after it.
        parts: The trained models of the run with their optimizers, by name.
        evaluations: The evaluations of the run; training within an evaluation raises an error.
        is_inner: Whether the script made the batches, in the body of a batch of the training loader. False by default.

    Attributes:
        number: The number of the update in the run, counted from 1.
        place: The place of the current batch in the update.

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
        ...         _ = update.step()
        >>> update.number, run.num_updates_completed
        (1, 1)
    """

    def __init__(
        self,
        session: Session,
        batches: Batches,
        parts: Mapping[str, RunPart],
        evaluations: Evaluations[Any],
        *,
        is_inner: bool = False,
    ) -> None:
        super().__init__(session, batches)
        self._parts = parts
        self._are_several = len(parts) > 1
        self._only = None if self._are_several else next(iter(parts.values()))
        self._evaluations = evaluations
        self._is_inner = is_inner
        self._batch: Any = None
        self._samples = 0
        self._is_in_batch = self._is_over = self._has_inner = False
        self._losses: dict[str, tuple[Tensor, int]] = {}
        self._logged: set[str] = set()
        self._with_gradients: set[str] = set()
        self._exchanged: set[str] = set()
        self._stepped: set[str] = set()

    def start_inner_updates(self) -> BatchPlace:
        """Suspend this update so that nested updates can run, and return the place of its current batch.

        ``run.updates(batches)`` calls this; you need not call it yourself.

        Returns:
            The place of the current batch, whose number and weight the nested updates use.

        Raises:
            ConfigurationError: The update is over, there is no batch, or there are gradients without a step, to which
                the gradients of other updates would be added.
        """
        if self._is_over:
            raise mistakes.update_is_over(self.number, "updates(batches)")
        if self.place is BEFORE_FIRST:
            raise mistakes.no_batch(self.number, "updates(batches)")
        if self._with_gradients - self._stepped:
            raise ConfigurationError(
                f"updates(batches) was called between the backward pass and the step of update {self.number}. "
                "Step first, or add the batch itself to the nested updates: run.updates([*batches, batch])."
            )
        self._has_inner = True
        return self.place

    def __iter__(self) -> Iterator[BatchT]:
        """Iterate over the batches of this process, on the device."""
        return self

    def __next__(self) -> BatchT:
        """Return the next batch."""
        if self._is_over:
            raise mistakes.update_is_over(self.number, "the next batch")
        if self._is_in_batch:
            self._finish_batch()
        if self.place.ends_group:
            raise StopIteration
        if self._are_several:
            self._log_losses()
        if self.place is not BEFORE_FIRST:
            self._session.means.end_step()
        self._losses, self._logged = {}, set()
        batch = self._start_inner_batch() if self._is_inner else self._start_next_batch()
        self._batch, self._is_in_batch = batch, True
        self._samples = 0 if self.place.is_empty else self.place.samples or count_samples(batch)
        started: BatchT = batch
        return started

    def _start_inner_batch(self) -> Any:
        self.place, batch = self._batches.pop()
        self._session.means.is_in_step = True
        self._session.exchange.start_batch(self.place)
        return batch

    def backward(
        self, loss: Tensor, *, model: str | None = None, num_items: int | None = None, retain_graph: bool = False
    ) -> None:
        """Compute the gradients of a loss, and add them to the gradients of the update.

        You call it for each batch, in place of ``loss.backward()``, on every process; several calls for a batch add up.
        With several processes, gradients are exchanged only with the last batch. With several models, only the
        gradients of ``model`` change. The loss is also recorded, as ``train_loss_epoch``.

        Args:
            loss: The mean loss over the samples of the current batch, a tensor with one element and a graph. You need
                not divide it by the number of batches.
            model: With several optimizers, the name of the model whose gradients are computed. None, the default, is
                for a single optimizer.
            num_items: The number of items in the batch of this process, if the loss is a mean over items other than
                samples, for example tokens. None, the default, counts samples.
            retain_graph: Whether to keep the graph for a further backward pass. False, the default, frees its memory.

        Raises:
            ConfigurationError: There is no batch, the model is unknown or has been stepped, or the loss is not a single
                number with a graph.
            BatchOutputError: ``num_items`` is not a whole number, is only given in some calls, or differs between two
                backward passes over the same batch.

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
            ...         print(update.number, update.step())
            1 True
            2 True
        """
        if self._evaluations.is_in_batch:
            raise mistakes.evaluates("backward(...)")
        part = self._only if model is None and self._only else self._find(model, "backward(loss, model=...)")
        if self._is_over:
            raise mistakes.update_is_over(self.number, "backward(...)")
        if self.place is BEFORE_FIRST:
            raise mistakes.no_batch(self.number, "backward(...)")
        if self._stepped:
            self._require_unstepped(part)
        if part.name in self._with_gradients and not self.place.is_empty and part.has_lost_gradients():
            raise mistakes.no_gradients_left(part.name)
        part.require_gradients_of(loss)
        items = None if num_items is None else require_count(num_items, "num_items in backward(...)")
        items = 0 if items is not None and self.place.is_empty else items
        weight = self._samples if items is None else items
        is_first = not self._losses
        self._record_loss(part.name, loss, weight)
        part.check_precision(loss)
        through = part.loss_of_padding(loss, self._session.gathered_empty) if self.place.is_empty else loss
        run_pass = partial(part.run_pass, retain_graph=retain_graph)
        try:
            self._add_gradients(part, through, run_pass, self._samples, items)
        except RuntimeError as error:
            name_backward_pass(error, self._batch, f"batch {self.place.step}")
            if _GRAPH_IS_GONE in str(error):
                raise mistakes.graph_is_gone(part.name, is_of_this_batch=not is_first) from error
            raise
        self._with_gradients.add(part.name)
        if self.place.ends_group:
            self._exchanged.add(part.name)

    def _record_loss(self, name: str, loss: Tensor, weight: int) -> None:
        """Add a loss to the reported loss of the batch."""
        reported = loss.detach().reshape(())
        if name in self._losses:
            before, weight_before = self._losses[name]
            if weight_before != weight:
                raise BatchOutputError(
                    f"The losses of a batch are means over different numbers of items: num_items={weight_before} in "
                    f"its first backward pass, and num_items={weight} in a later pass. Divide each loss by the same "
                    "number of items, and pass that number."
                )
            reported = before + reported
        self._losses[name] = reported, weight

    def _require_unstepped(self, part: RunPart) -> None:
        if part.name in self._stepped:
            raise ConfigurationError(
                f"backward(...) for {part.name!r} was called after the step of its optimizer in the same update. Step "
                f"after the last backward pass, or add the losses up and call backward(...) once. {_SEVERAL}"
            )
        if part.exchange.is_exact:
            raise ConfigurationError(
                f"backward(...) for {part.name!r} was called after a step in an update of a reproducible run, and "
                "other processes may have computed micro-batches with the weights before that step. Step after all "
                "backward passes of the update."
            )

    def step(self, name: str | None = None) -> bool:
        """Update the weights: clip the gradients, step optimizer and scheduler, and clear the gradients.

        You call it once after the last batch of the update, on every process; with several optimizers, once for each.
        ``Run.step`` may be called after each batch, and does nothing before the last.

        Args:
            name: With several optimizers, the name of the optimizer to step. None, the default, is for a single
                optimizer.

        Returns:
            Whether the update was made; False if gradients overflowed in fp16.

        Raises:
            ConfigurationError: The update has batches left, the last batch had no backward pass, the optimizer is
                unknown, it was already stepped, or its parameters have no gradients.
            StopTrainingError: A process requested the end of the run; no step was made. The block of the run catches
                it.

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
            ...         print(update.number, update.step())
            1 True
            2 True
        """
        if self._evaluations.is_in_batch:
            raise mistakes.evaluates("step()")
        part = self._only if name is None and self._only else self._find(name, "step(name)")
        if self._is_over:
            raise mistakes.update_is_over(self.number, "step()")
        place = self.place
        if not place.ends_group:
            raise ConfigurationError(
                "update.step() was called while batches of the update are left. Move it after the loop, or call "
                "run.step(), which steps after the last batch only."
            )
        if part.name in self._stepped:
            raise ConfigurationError(
                f"The optimizer {part.name!r} was stepped twice in an update. Remove the second call. {_SEVERAL}"
            )
        if part.name not in self._with_gradients:
            raise ConfigurationError(
                f"A step of {part.name!r} without its backward pass in this update has no gradients to step with. "
                "Call update.backward(loss) or run.backward(loss) instead of loss.backward()."
            )
        if part.name not in self._exchanged:
            raise ConfigurationError(
                f"A step of {part.name!r} after backward passes of earlier batches of the update only: the pass of "
                "the last batch exchanges gradients between processes. Call backward(loss) for each batch; a loss "
                "that should not count can be multiplied by 0."
            )
        if not place.is_empty and part.has_lost_gradients():
            raise mistakes.no_gradients_left(part.name)
        return self._step(part)

    def _step(self, part: RunPart) -> bool:
        if self._are_several:
            self._log_losses(part.name)
        if self._is_in_batch:
            self._finish_batch()
        session, is_first = self._session, not self._stepped
        if is_first:
            session.require_update_of_batch()
            session.rank_sync.stop_if_alone()
        if part.first_updates_left > 0:
            part.let_go_of_gradients()
        at_once = session.progress.steps_in_epoch == 0 and session.updates_of_batch == 0
        is_made = self._make_step(part, at_once=at_once, is_first=is_first)
        session.updates_of_batch += is_first
        self._stepped.add(part.name)
        if self._are_several:  # the update ends with its body
            session.exchange.end_step(part)
        else:
            self._finish(is_made=is_made)
        return is_made

    def finish(self) -> None:
        """End the update, and check that its gradients were used.

        The run calls this after the body of the update; you need not call it yourself.

        Raises:
            ConfigurationError: The update was not stepped, or it has gradients without a step, which no training state
                would contain.
        """
        if self._is_in_batch:
            self._finish_batch()
        self.close()
        if self._stepped == self._with_gradients and self._stepped:
            return
        left = [name for name in self._parts if name in self._with_gradients - self._stepped]
        if left and self._stepped:
            raise ConfigurationError(
                "An update was left with gradients that no step used.",
                given=f"update {self.number} with a backward pass of {left[0]!r}, and no step of it",
                do=f"Call update.step({left[0]!r}) too, or leave its backward pass out of updates without its step.",
            )
        if not self._stepped and (left or not self._has_inner):
            raise ConfigurationError(
                "An update was left without a step.",
                given=f"update {self.number}, {'with' if bool(left) else 'without'} a backward pass, and no step",
                do="Call update.step() after the loop over the batches of the update, or run.step() after each batch.",
            )

    def end(self) -> None:
        """Call ``on_optimizer_step_end`` for an update of several optimizers, if any of them was stepped.

        The run calls this after the body of the update; you need not call it yourself. With a single optimizer,
        ``step`` has already called the event.
        """
        if self._are_several and self._stepped:
            self._finish(is_made=True)

    def close(self) -> None:
        """Release the batches, because a script may keep the update, which would keep a batch on the device.

        The run calls this after the body of the update; you need not call it yourself. Afterwards ``backward`` and
        ``step`` raise a ``ConfigurationError``, and ``number`` can still be read.
        """
        if self._are_several:
            self._log_losses()
        self._is_over = True
        self._batch, self._batches = None, _NO_BATCHES
        self._session.gathered_empty.clear()

    def _finish_batch(self) -> None:
        """Count a batch after its backward passes, and report its loss to callbacks."""
        self._is_in_batch = False
        place, session = self.place, self._session
        batch, self._batch = self._batch, None
        if not self._is_inner:
            session.progress.samples_in_group += place.global_samples or self._samples * session.setup.num_processes
        if self._has_inner and not self._losses:
            session.progress.steps_in_epoch = place.step
            self._count_group(makes_update=False)
            session.means.count_samples(self._samples)
            session.means.end_step()
            return
        if place.is_empty:
            return
        session.means.count_samples(self._samples)
        loss, weight = torch.zeros(()), 0
        for loss_of_one, weight_of_one in self._losses.values():
            loss = loss_of_one if weight == 0 else loss + loss_of_one
            weight = max(weight, weight_of_one)
        if self._losses:
            session.means.losses.update(loss, weight)
        output = {"loss": loss, "model_outputs": None, "batch_size": self._samples}
        if self._losses and weight == 0 < self._samples:
            output["num_items_in_batch"] = 0
        self._session.call(TrainerCallback.on_train_step_end, batch=batch, batch_output=output, step=place.step)

    def _log_losses(self, *names: str) -> None:
        """Log the losses of several models, after passes that may have followed the step of another model."""
        means = self._session.means
        if not means.is_in_step or self.is_empty:
            return
        for name in names or tuple(self._losses):
            if name in self._losses and name not in self._logged:
                self._logged.add(name)
                loss, weight = self._losses[name]
                means.log(f"{name}_loss", loss, count=weight)

    def _find(self, name: str | None, call: str) -> RunPart:
        if name is None or name not in self._parts:
            raise mistakes.unclear_name(name, self._parts, call)
        return self._parts[name]


def batches_of_loop(
    batches: Iterable[Any], around: BatchPlace, *, device: torch.device, accumulation_steps: int, samples: int | None
) -> Iterator[tuple[BatchPlace, Any]]:
    """Iterate over batches and the place of each in its update, the same number of times on all processes.

    A process that has no batch left repeats its own batch, or the batch of another process, with the weight 0. If all
    processes know the number of their batches, they exchange the number once; otherwise, they exchange it before each
    update.

    Args:
        batches: The batches of this process. The batches of an update are fetched together.
        around: The place of the batch of the training loader in whose body they are trained on; all batches of a
            process in a padding batch are also padding.
        device: The device that they are moved to.
        accumulation_steps: The number of batches of each process in an update.
        samples: The number of samples of each batch; None for the size of the first dimension.

    Raises:
        ConfigurationError: ``batches`` is a single batch or a dataset; or ``samples`` is not a positive number.

    Example:
        >>> around = BatchPlace(step=1, weight=1.0, ends_group=True)
        >>> places = batches_of_loop(
        ...     torch.zeros(5, 3).split(2), around, device=torch.device("cpu"), accumulation_steps=2, samples=None
        ... )
        >>> [(len(batch), place.ends_group) for place, batch in places]
        [(2, False), (2, True), (1, True)]
    """
    is_dataset = isinstance(batches, Dataset) and not isinstance(batches, IterableDataset)
    if isinstance(batches, Tensor | str) or is_dataset or is_mapping(batches):
        raise mistakes.not_batches(batches)
    if samples is not None:
        check_count("num_samples", samples)
    arriving = iter(batches)
    left = gather_objects(length_of(batches))
    while True:
        group = [move_to_device(batch, device) for batch in islice(arriving, accumulation_steps)]
        if None in left:
            of_each = gather_objects(len(group))
        else:
            of_each = [min(cast("int", number), accumulation_steps) for number in left]
            left = [cast("int", number) - len_of_group for number, len_of_group in zip(left, of_each, strict=True)]
        most = max(of_each)
        if most == 0:
            return
        stand_in = group[-1] if group else None
        if 0 in of_each:  # pickled on the CPU, because the processes have different devices
            of_others = gather_objects([move_to_device(batch, "cpu") for batch in group[:1]])
            stand_in = (
                stand_in if group else move_to_device(next(batches[0] for batches in of_others if batches), device)
            )
        for number in range(most):
            is_empty = around.is_empty or number >= len(group)
            batch = group[number] if number < len(group) else stand_in
            ends_group, starts_group = number + 1 == most, number == 0
            place = BatchPlace(
                around.step, 1 / most, ends_group, is_empty=is_empty, samples=samples, starts_group=starts_group
            )
            yield place, batch
