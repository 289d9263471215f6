"""What one update trains: what each batch weighs in it, and the gradients that all processes have in common."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import chain, islice
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import BatchSampler

from pa_core import _accelerate
from pa_core._torch import foreach
from pa_core.attributes import temporarily
from pa_core.data.batch_count import BatchCount
from pa_core.data.custom_loader import batches_of_slices, innermost, is_keyed
from pa_core.data.split_sampler import split_sampler
from pa_core.distributed import gather_objects
from pa_core.distributed.collectives import values_of_all
from pa_core.distributed.comparison import require_same_settings
from pa_core.distributed.rank_sync import NUM_FLAGS
from pa_core.errors import BatchOutputError, StopTrainingError, UnsupportedConfigurationError
from pa_core.model_tensors import (
    is_sharded_module,
    local_pieces,
    parameters_of,
    parameters_of_module,
    unwrap_model,
)
from pa_core.sharding.sharded_modules import ShardedModules
from pa_core.types import SizedIterable, StatefulScheduler
from pa_data import MicroBatchSplit, Split
from pa_distributed.gradient_tree import GradientTree
from pa_distributed.gradients import GradientExchange

_NUM_UPDATES = 2
"""Most steps that depend on all weights show in the second of them, as the first one begins with constants."""


class MicroBatch(NamedTuple):
    """The part that one process has in one step of an epoch.

    Attributes:
        step: The number of the step in its epoch, counted from 1.
        weight: The factor on the mean loss of this process, such that the averaged gradients of the group are the
            gradients of the mean over all of its samples.
        ends_group: Whether an optimizer update follows.
        global_samples: The number of samples in this step over all processes; None if the loader is not ours and
            cannot say.
        samples: The number of samples of this process; None as above.
        is_empty: Whether this process has no sample in this step, while others do.
        some_are_empty: Whether any process may have none, as all of them know.
        micro_batch: The number of the micro-batch in an update that is cut by position; None where it is empty, or the
            update is not cut so.
        num_micro_batches: The number of micro-batches of such an update.

    Example:
        >>> MicroBatch(step=3, weight=0.25, ends_group=True, global_samples=8).is_empty
        False
    """

    step: int
    weight: float
    ends_group: bool
    global_samples: int | None = None
    is_empty: bool = False
    samples: int | None = None
    some_are_empty: bool = False
    micro_batch: int | None = None
    num_micro_batches: int = 0


class Accumulation:
    """Makes the gradient of an update the gradient of the mean over all its samples, or all its items such as tokens.

    A batch weighs as many samples as it has of the update, which the loader knows beforehand: ``MicroBatch.weight``.
    Items are counted by the step itself, and how many an update has is known when its last batch has been counted,
    after most of its backward passes. So each batch is weighed by its items over a nominal number, and at the end the
    gradients are multiplied once by what is missing. The nominal number keeps losses in the range that gradient scalers
    expect; it is a power of two, so that it changes no digit of the result.

    A run has one for each optimizer.

    Args:
        num_processes: The number of processes, over which gradients are averaged.
        nominal: The nominal number of a run that is resumed; by default it is taken from the first update.
        counted_by: What the script gives the number of items as, for messages.
        weighs_all: Whether the only batch of an update is weighed, too, as others are on any number of processes.

    Attributes:
        items: The items of this process in the current update so far; 0 where losses are means over samples.
        counts_samples: Whether samples are counted as items where a step counts none. This is the case for a stream, as
            nobody knows beforehand how many an update has.
        counts_nothing: Whether the last batch was counted as one without a sample or an item.
        nominal: The nominal number, None before the first update that counts items.

    Example:
        >>> import torch
        >>> parameter = torch.nn.Parameter(torch.zeros(()))
        >>> accumulation = Accumulation(num_processes=1)
        >>> for step, mean_loss, tokens in ((1, 1.0, 3), (2, 5.0, 1)):  # the mean over the four tokens is 2
        ...     part = MicroBatch(step, weight=0.5, ends_group=step == 2)
        ...     _ = accumulation.take_counts(batch_size=1, items=tokens)
        ...     accumulation.weigh(parameter * mean_loss, part).backward()
        >>> accumulation.normalise(lambda: [parameter], accumulation.items)
        >>> parameter.grad
        tensor(2.)
    """

    def __init__(self, num_processes: int, *, counted_by: str = "num_items_in_batch", weighs_all: bool = False) -> None:
        self._num_processes = num_processes
        self._weighs_all = weighs_all
        self._counted_by = counted_by
        self._counts_items: bool | None = None
        self._items_of_step: int | None = None
        self._last_batch_size = 0
        self._counted: MicroBatch | None = None
        self.nominal: float | None = None
        self.items: float = 0.0
        self.counts_samples: bool = False
        self.counts_nothing: bool = False

    def take_counts(self, batch_size: int, items: int | None = None) -> int:
        """Take note of what a batch holds, before its loss is weighed; return the weight of the loss in reports.

        Args:
            batch_size: The number of its samples.
            items: The number of items that its loss is the mean over; None if that is the samples.

        Raises:
            BatchOutputError: Other batches of the run count their items, and this one does not, or the reverse.
        """
        if self._counts_items is None:
            self._counts_items = items is not None
        if self._counts_items != (items is not None):
            raise BatchOutputError(
                "Some steps of this run count their items, and others do not.",
                given=f"{self._counted_by} in earlier steps, and none in this one"
                if items is None
                else f"{self._counted_by}={items} in this step, and none in earlier ones",
                do=f"Give {self._counted_by} in every step, even if it is 0.",
            )
        self._last_batch_size = batch_size
        self._items_of_step = batch_size if items is None and self.counts_samples else items
        weight = batch_size if items is None else items
        self.counts_nothing = weight == 0
        return weight

    def weigh(self, loss: Tensor, part: MicroBatch) -> Tensor:
        """Scale the mean loss of a batch to its share of the update, and count its items.

        Args:
            loss: The mean over the samples, or over the items given to ``take_counts``.
            part: The part of the batch in the update.
        """
        weight, items = part.weight, self._items_of_step
        self._items_of_step = None
        is_alone = weight == 1 and self._num_processes == 1 and not self._weighs_all
        if items is not None and not is_alone:
            if part is not self._counted:  # a further pass over the same batch has the same items
                self.items += items
            self._counted = part
            weight = items / (self.nominal or 1.0)
        return loss if weight == 1 else loss * weight

    def samples_of(self, part: MicroBatch) -> int:
        """Return the number of samples of a step on all processes, as far as anyone knows.

        Args:
            part: The part of the last batch that ``take_counts`` was told of.
        """
        return part.global_samples or self._last_batch_size * self._num_processes

    def normalise(self, parameters: Callable[[], Iterable[Tensor]], total: float | Tensor) -> None:
        """Turn the gradients of an update into the gradients of the mean over its items, if it counts items.

        Args:
            parameters: Returns the parameters whose gradients were accumulated, and averaged over the processes; not
                called in an update that counts no items.
            total: The items of the update on all processes. A tensor on the device is not waited for, except after the
                first update.
        """
        if isinstance(total, Tensor) and self._counts_items is not None:
            has_items = self._counts_items or self.counts_samples
        else:  # a process without a sample so far learns it from the others
            has_items = float(total) > 0
        if not has_items:
            return
        nominal = self.nominal or 1.0
        if self.nominal is None and float(total) > 0:
            self.nominal = _power_of_two(float(total) / self._num_processes)
        gradients = local_pieces(parameter.grad for parameter in parameters() if parameter.grad is not None)
        if gradients:
            # Without any item all gradients are zero, and stay so.
            at_least_one = total.clamp(min=1) if isinstance(total, Tensor) else max(total, 1)
            factor = nominal * self._num_processes / at_least_one
            foreach("mul_", gradients, factor)
        self.items = 0.0


@contextmanager
def counting_samples(trained: Iterable[Trained]) -> Generator[None]:
    """Within the context, weigh batches by their samples, as nobody knows beforehand how many an update has.

    Args:
        trained: What the batches are trained on.
    """
    with ExitStack() as contexts:
        for one in trained:
            contexts.enter_context(temporarily(one.accumulation, counts_samples=True))
        yield


def forget_gradients(model: nn.Module, *optimizers: Optimizer) -> None:
    """Clear what a run that stopped left behind, including the gradients of parameters that no optimizer holds.

    Args:
        model: The model of the run.
        *optimizers: Its optimizers.
    """
    model.zero_grad()
    ShardedModules(model).forget_local_gradients()
    for optimizer in optimizers:
        optimizer.zero_grad()


def _power_of_two(number: float) -> float:
    return 2.0 ** round(math.log2(number)) if number > 0 else 1.0


def micro_batches(
    loader: SizedIterable,
    batches: Iterable[Any],
    *,
    accumulation_steps: int,
    rank: int,
    num_processes: int,
    steps_done: int = 0,
    count: BatchCount | None = None,
) -> Iterator[tuple[MicroBatch, Any]]:
    """Iterate over the batches of an epoch together with the part that each has in its update.

    Args:
        loader: The loader of the epoch, which knows the sizes of its batches if it is ours.
        batches: Its batches, on the device.
        accumulation_steps: The number of batches of each process in an update; the last group of an epoch may be
            shorter, and weighs what it holds.
        rank: The rank of this process.
        num_processes: The number of processes.
        steps_done: The number of steps of the epoch that lie before the first of the batches.
        count: Counts the batches of a custom loader.
    """
    keyed, limit = innermost(loader), batches_of_slices(loader)
    if not is_keyed(keyed):
        count = BatchCount(loader, "training") if count is None else count
        count.given = steps_done
        if count.expected is None:
            return _of_stream(count, batches, accumulation_steps)
        sizes = _known_sizes(loader, num_processes)
        own = _of_custom_loader(count, sizes, batches, accumulation_steps, num_processes)
        return chain(own, _without_samples(count, steps_done, accumulation_steps)) if count.is_per_process else own
    limit = None if limit is None else limit - steps_done
    return _of_keyed_loader(keyed.split, limit, batches, accumulation_steps, rank, steps_done)


def _of_keyed_loader(
    split: Split, limit: int | None, batches: Iterable[Any], accumulation_steps: int, rank: int, steps_done: int
) -> Iterator[tuple[MicroBatch, Any]]:
    """Where the split tells the sizes: read only for steps that are not full, as it takes as long as fetching."""
    arriving = iter(batches)
    steps = len(split) if limit is None else min(len(split), limit)
    cut = split if isinstance(split, MicroBatchSplit) else None
    share = split.num_processes if cut is None else 1  # gradients are averaged, or added up
    full, size_of_full = split.num_full_steps, split.batch_size * split.num_processes
    for first in range(0, steps, accumulation_steps):
        group = range(first, min(first + accumulation_steps, steps))
        block = range(0) if cut is None else cut.block(first, rank)
        num_micro_batches = 0 if cut is None else cut.num_micro_batches(first)
        sizes = [size_of_full if step < full else split.size(step) for step in group]
        total = sum(sizes)
        for step, size in zip(group, sizes, strict=True):
            mine = split.batch_size if step < full else len(split.piece(step, rank))
            part = MicroBatch(
                steps_done + step + 1,
                weight=mine * share / total,
                ends_group=step == group[-1],
                global_samples=size,
                is_empty=mine == 0,
                samples=mine,
                some_are_empty=step >= full and not split.piece(step, split.num_processes - 1),
                micro_batch=block[step - first] if step - first < len(block) else None,
                num_micro_batches=num_micro_batches,
            )
            yield part, None if mine == 0 else next(arriving)


def _known_sizes(loader: SizedIterable, num_processes: int) -> Callable[[int], int] | None:
    """The number of samples that this process has in a step of a custom data loader, where its sampler tells.

    On several processes accelerate fills the last batches up, so that all are of one size. A sampler that has split
    the samples itself gives each process as many.
    """
    custom = innermost(loader)
    sampler = getattr(custom, "batch_sampler", None)
    is_split = num_processes == 1 or split_sampler(custom) is not None
    if not is_split or not isinstance(sampler, BatchSampler):
        return None
    samples: Any = sampler.sampler
    try:
        total = len(samples)
    except (TypeError, NotImplementedError):
        return None
    return lambda step: max(1, min(sampler.batch_size, total - step * sampler.batch_size))


def _of_custom_loader(
    count: BatchCount,
    size: Callable[[int], int] | None,
    batches: Iterable[Any],
    accumulation_steps: int,
    num_processes: int,
) -> Iterator[tuple[MicroBatch, Any]]:
    """Where nothing tells the sizes, the batches of a group weigh the same.

    Within a group one batch is read ahead, so that the group of the last batch is closed even where the length was not
    true, unless other processes may have more batches. Between two updates none is, so that a training state need not
    know of it; but the loader comes to its end with the last batch, as it may draw random numbers for that. What
    it has beyond its length is left.
    """
    arriving, expected = iter(batches), cast("int", count.expected)
    first = count.given
    batch = next(arriving, _END)
    while batch is not _END and count.given < expected:
        step, group = count.given, range(first, min(first + accumulation_steps, expected))
        is_full = step + 1 == first + accumulation_steps
        is_last = step + 1 == expected
        upcoming = _NOT_YET if is_full and not is_last else next(arriving, _END)
        part = MicroBatch(
            step + 1,
            weight=1 / len(group) if size is None else size(step) / sum(map(size, group)),
            ends_group=is_full or is_last or (upcoming is _END and not count.is_per_process),
            global_samples=None if size is None else size(step) * num_processes,
            samples=None if size is None else size(step),
            some_are_empty=count.may_differ,
        )
        count.given += 1
        count.has_more = is_last and upcoming is not _END
        first = count.given if is_full else first
        yield part, batch
        batch = next(arriving, _END) if upcoming is _NOT_YET else upcoming
    count.has_ended = batch is _END


def _of_stream(count: BatchCount, batches: Iterable[Any], accumulation_steps: int) -> Iterator[tuple[MicroBatch, Any]]:
    """Where only the end of a stream tells how long it is, and each process may have its own stream.

    The batches of an update are fetched together, and the processes tell each other how many they have: the epoch ends
    when none has any. How much each batch weighs follows from the samples that are counted, see `Accumulation`.
    """
    arriving, step = iter(batches), count.given
    while True:
        group = deque(islice(arriving, accumulation_steps))
        of_each = gather_objects(len(group)) if count.is_per_process else [len(group)]
        fewest, most = min(of_each), max(of_each)
        if most == 0:
            break
        for number in range(most):
            step += 1
            count.given = step
            part = MicroBatch(
                step,
                weight=1 / accumulation_steps if group else 0.0,
                ends_group=number + 1 == most,
                is_empty=not group,
                some_are_empty=number >= fewest,
            )
            yield part, group.popleft() if group else None
    count.has_ended = True


def _without_samples(count: BatchCount, first: int, accumulation_steps: int) -> Iterator[tuple[MicroBatch, Any]]:
    """The steps in which other processes may still have batches, and would wait for this one."""
    expected = cast("int", count.expected)
    for step in range(count.given, expected):
        ends_group = (step + 1 - first) % accumulation_steps == 0 or step + 1 == expected
        yield MicroBatch(step + 1, 0.0, ends_group, is_empty=True, some_are_empty=count.may_differ), None


_END, _NOT_YET = object(), object()


_NOTHING = nullcontext[None]()


class Trained:
    """Modules that are trained by one loss, and whose gradients are exchanged together on several processes.

    ``fully_shard`` exchanges the gradients of what it was applied to, and ``GradientExchange`` all others.

    Args:
        accelerator: The accelerator of the run.
        reproducible: Whether gradients are added up in an order that does not follow the processes.
        counted_by: What the script gives the number of items as, for messages.

    Attributes:
        optimizers: The optimizers that are stepped together, by name.
        schedulers: Their schedulers, by name.
        accumulation: What the batches weigh in the updates.
        is_sharded: Whether some of the weights are split over the processes, so that all of them call the modules
            equally often.
        is_reproducible: As passed.
    """

    def __init__(
        self, accelerator: _accelerate.AcceleratorLike, *, reproducible: bool, counted_by: str = "num_items_in_batch"
    ) -> None:
        self.optimizers: dict[str, Optimizer] = {}
        self.schedulers: dict[str, StatefulScheduler] = {}
        num_averaged = 1 if reproducible else accelerator.num_processes
        self.accumulation: Accumulation = Accumulation(num_averaged, counted_by=counted_by, weighs_all=reproducible)
        self.is_reproducible: bool = reproducible
        self.is_sharded: bool = False
        self._accelerator = accelerator
        self._modules: dict[str, nn.Module] = {}
        self._sharded: ShardedModules | None = None
        self._plain: set[int] = set()
        self._exchange: GradientExchange | GradientTree | None = None
        self._num_compared = 0

    def start(self, modules: Mapping[str, nn.Module], called: Mapping[str, nn.Module]) -> None:
        """Begin to train; the modules are placed already.

        Args:
            modules: What is trained, by name.
            called: In a reproducible run, those whose buffers this looks after.
        """
        self._modules = {name: unwrap_model(one, keep_torch_compile=False) for name, one in modules.items()}
        if any(map(is_sharded_module, self._modules.values())):
            self._sharded = ShardedModules(nn.ModuleList(self._modules.values()))
            self._plain = {id(parameter) for parameter in self._sharded.plain_parameters()}
        self.is_sharded = self._sharded is not None and self._accelerator.num_processes > 1
        if self.is_reproducible:
            self._exchange = GradientTree(self._modules.values(), NUM_FLAGS, called=called)
        elif self._accelerator.num_processes > 1:
            bucket_bytes, dtype = _accelerate.settings_of_exchange(self._accelerator)
            self._exchange = GradientExchange(
                self._modules.values(),
                NUM_FLAGS,
                _accelerate.device_of(self._accelerator),
                includes=None if self._sharded is None else lambda one: id(one) in self._plain,
                bucket_bytes=bucket_bytes,
                dtype=dtype,
            )

    @property
    def tree(self) -> GradientTree:
        """What adds up the gradients of a reproducible run, while it trains."""
        assert isinstance(self._exchange, GradientTree)
        return self._exchange

    def close(self) -> None:
        """End the training."""
        if self._exchange is not None:
            self._exchange.close()
        self._exchange, self._modules, self._sharded = None, {}, None

    def start_epoch(self) -> None:
        """Forget an update that was not finished."""
        self.accumulation.items = 0.0
        if self.is_reproducible:
            self.tree.find()
        self.end_update()

    def in_batch(self, part: MicroBatch) -> AbstractContextManager[None]:
        """Return the context of the backward passes of one batch; the last batch of an update exchanges the gradients.

        Args:
            part: The part of the batch in the update.
        """
        if isinstance(self._exchange, GradientExchange) and part.ends_group:
            self._exchange.open(overlaps=not part.some_are_empty)
        if self._sharded is None:
            return _NOTHING
        self._sharded.follow_unfreezing()
        return _NOTHING if part.ends_group else self._sharded.keeping_gradients_local()

    @contextmanager
    def adding_nothing(self) -> Generator[None]:
        """Let backward passes add zeros: the loss is a mean over nothing, and the gradients of 0/0 are NaN.

        The passes are made all the same, as other processes may exchange something in them.
        """
        parameters = [one for module in self._modules.values() for one in parameters_of_module(module)]
        trainable: Any = self.graph_tensors([one for one in parameters if one.requires_grad])  # torch annotates in part
        hooks = [one.register_hook(torch.zeros_like) for one in trainable if one.requires_grad]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def exchange_each_pass(self) -> None:
        """Exchange the gradients of each backward pass, for an epoch that a script has written itself."""
        if isinstance(self._exchange, GradientExchange):
            self._exchange.average_each_pass()

    def require_stop_elsewhere(self, error: StopTrainingError) -> None:
        """Raise an error for a stop within a step of a sharded model, whose pieces the other processes wait for.

        Args:
            error: What the step has raised.

        Raises:
            UnsupportedConfigurationError: The model is sharded.
        """
        if self.is_sharded:
            raise UnsupportedConfigurationError(
                "A process has stopped within the step of a sharded model, for which the others wait. Raise "
                "StopTrainingError in a callback, such as in on_train_step_end."
            ) from error

    def finish_exchange(self, flags: Sequence[float]) -> Tensor:
        """Average the gradients of the update over the processes; every process of a run with an exchange calls this.

        Args:
            flags: The flags of this process.

        Returns:
            The sums of the flags of all processes, on the device.
        """
        assert self._exchange is not None
        if isinstance(self._exchange, GradientExchange) and self._num_compared <= _NUM_UPDATES:
            self._compare(self._exchange)
        return self._exchange.finish(flags)

    def end_update(self) -> None:
        """End an update: from here on, gradients stay on their process."""
        if self._exchange is not None:
            self._exchange.end_update()

    def graph_tensors(self, parameters: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return what stands for parameters in the graph of a loss: while sharded ones are gathered, other tensors.

        Args:
            parameters: Parameters of the modules.
        """
        return parameters if self._sharded is None else self._sharded.unsharded(parameters)

    def step(self) -> None:
        """Step the optimizers."""
        for optimizer in self.optimizers.values():
            optimizer.step()

    def zero_grad(self) -> None:
        """Clear the gradients of what the optimizers update."""
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()

    def parameters(self) -> Iterator[Tensor]:
        """Iterate over what the optimizers update.

        Others of the modules may have gradients too, which nobody clears and which must not count.
        """
        for optimizer in self.optimizers.values():
            yield from parameters_of(optimizer)

    def has_gradients(self) -> bool:
        """Whether any parameter that the optimizers update has a gradient; mostly the first one tells.

        Parameters do not show some of the gradients before they are exchanged.
        """
        if any(parameter.grad is not None for parameter in self.parameters()):
            return True
        if self.is_reproducible:
            return self.tree.has_gradients
        return self._sharded is not None and self._sharded.has_local_gradients()

    def _compare(self, exchange: GradientExchange) -> None:
        """Compare weights before the first update, and after the first ones what optimizers make of their shards."""
        if self._num_compared == 0:
            self._require_same_weights(exchange)
        elif self.is_sharded:
            require_same_settings(self.optimizers)
        self._num_compared += 1

    def _require_same_weights(self, exchange: GradientExchange) -> None:
        """Raise an error for modules that steps have updated before the first exchange of gradients."""
        for name, module in self._modules.items():
            own = [one.detach().double().square().sum() for one in exchange.parameters_of(module)]
            if own and not _same_on_all_processes(torch.stack(own)):
                raise UnsupportedConfigurationError(
                    f"The module {name!r} has drifted apart on the processes before the first update.",
                    given="steps that run a backward pass and their own update, whose gradients are not averaged",
                    do="Add its loss to the one that is returned; for a separate loss and separate updates, use Run.",
                )


def _same_on_all_processes(values: Tensor) -> bool:
    of_each = values_of_all(values)
    return bool((of_each == of_each[0]).all())


def zero_loss_of_stand_in(loss: Tensor) -> Tensor:
    """Return a loss whose gradients are zero, and whose backward pass goes through the same graph as another loss.

    Args:
        loss: The loss of a batch that stands in for one of another process; perhaps it is not finite.

    Example:
        >>> import torch
        >>> weight = torch.ones(1, requires_grad=True)
        >>> zero_loss_of_stand_in((weight * float("inf")).sum()).item()
        0.0
    """
    real = torch.view_as_real(loss) if loss.is_complex() else loss
    return real.nan_to_num(0.0, 0.0, 0.0).sum() * 0.0
