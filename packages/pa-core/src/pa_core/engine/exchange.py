"""The exchange of gradients between processes, which makes a common update of their batches.

`Exchange` is the protocol, which you can implement for another communication library. There are three implementations:
`Alone` for one process, `Averaged` for several, and `Tree` for runs that are bit-for-bit identical on any number of
them. A trainer or a run gets its exchange from ``create_exchange``; override that for your own exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, Protocol, cast

import torch
from torch import Tensor, nn
from typing_extensions import override

from pa_core import _accelerate
from pa_core._torch import BUFFERS
from pa_core.data.custom_loader import innermost, is_keyed
from pa_core.distributed.collectives import broadcast_tensors, values_of_all
from pa_core.distributed.comparison import require_same_settings
from pa_core.distributed.rank_sync import NUM_FLAGS
from pa_core.engine.micro_batches import BatchPlace
from pa_core.engine.parts import Part
from pa_core.engine.reproducible_checks import require_own_batches
from pa_core.errors import ArgumentTypeError, ConfigurationError, UnsupportedConfigurationError
from pa_core.steps.default_step import own_backward_pass
from pa_core.types import SizedIterable
from pa_data.rng import seed_rng
from pa_distributed.gradient_tree import GradientTree
from pa_distributed.gradients import GradientExchange

__all__ = ["Alone", "Averaged", "BatchPlace", "Exchange", "Part", "Tree"]

_NUM_COMPARED: Final = 2
"""The number of updates that are compared: most steps that depend on all weights show in the second update."""

_AFTER_UPDATE: Final = -1
_EVALUATION: Final = -2
_AFTER_EVALUATION: Final = -3
"""The last part of the key of random numbers, in place of the index of a micro-batch."""


class Exchange(Protocol):
    """The protocol of exchanges, which make a common update of the gradients of all processes.

    A trainer has an exchange for all of its runs. In a run, its methods are called in this order::

        add                         for each part, after all modules are placed for each epoch: start_epoch for each
        update: for each batch: start_batch     then the forward pass; before the backward passes of the last batch:
        start_last_pass finish              for each part whose optimizer is stepped, before the step end_step
        after the step, if there are several parts end_update          or drop_update, if no step is made end_epoch
        close

    Every process calls each method equally often, even one without a sample. Derive from `Alone` to implement only some
    of the methods.
    """

    @property
    def num_averaged(self) -> int:
        """The number of processes that a gradient is averaged over; 1 if gradients are added up or not exchanged."""
        ...

    @property
    def is_exact(self) -> bool:
        """Whether weights are bit-for-bit identical on any number of processes, as ``reproducible`` requires.

        Then batches are micro-batches that are divided by position, each computed as if it were the only batch.
        """
        ...

    @property
    def shares_buffers(self) -> bool:
        """Whether all processes have the same buffers of the models; otherwise, each process keeps its own buffers."""
        ...

    def add(self, part: Part, called: Mapping[str, nn.Module], *, overlaps: bool) -> None:
        """Begin to exchange the gradients of a part.

        Args:
            part: The trained part.
            called: All modules that the steps of the run call, by name.
            overlaps: Whether each batch has a single backward pass, during which gradients may be sent.
        """
        ...

    def close(self) -> None:
        """Remove all hooks from modules, because the run has ended."""
        ...

    def start_epoch(self, models: Callable[[], Mapping[str, nn.Module]]) -> None:
        """Begin the training of an epoch, and drop an unfinished update; layers may have been added.

        Args:
            models: Returns all models of the run, by name.
        """
        ...

    def end_epoch(self) -> None:
        """End the training of an epoch."""
        ...

    def start_batch(self, place: BatchPlace) -> None:
        """Begin a batch; the first batch begins the update.

        Args:
            place: The place of the batch in the update; this process may have no sample in it.
        """
        ...

    def start_last_pass(self, part: Part, *, overlaps: bool) -> None:
        """Begin the backward passes of the last batch of an update.

        Args:
            part: The part that it trains.
            overlaps: Whether all processes have such a pass.
        """
        ...

    def finish(self, part: Part, flags: Callable[[], Sequence[float]]) -> Tensor | None:
        """Set the gradients of the update in the parameters, and add up the flags of the processes.

        Args:
            part: The trained part.
            flags: Returns the flags of this process for the others: a sequence of numbers of a fixed length.

        Returns:
            The sums of the flags over the processes, on the device; None on one process.
        """
        ...

    def end_step(self, part: Part) -> None:
        """End the step of a part, when there are several: its gradients were used, and others may still be computed.

        Args:
            part: The trained part.
        """
        ...

    def end_update(self) -> int | None:
        """End an update and its remaining steps, before its last event; an overflow in fp16 may have skipped steps.

        Returns:
            The weight of values that this process logs from now on; None for the samples of its last batch.
        """
        ...

    def drop_update(self) -> None:
        """Drop an update that is not made; has no effect between two updates."""
        ...

    def average_each_pass(self, part: Part) -> None:
        """Exchange the gradients of each backward pass from now on, for epochs that a script implements itself.

        Args:
            part: The trained part.
        """
        ...

    def holds_gradients(self, part: Part) -> bool:
        """Return whether earlier batches of the update had gradients that the parameters do not show.

        Args:
            part: The trained part.
        """
        ...

    def require_no_gradients(self, part: Part) -> None:
        """Raise an error for gradients before the backward pass of a batch, which the exchange does not add up.

        Called in the first updates of a trainer.

        Args:
            part: The trained part.

        Raises:
            ConfigurationError: A step ran its own backward pass.
        """
        ...

    def repeating(self, place: BatchPlace) -> AbstractContextManager[None]:
        """Return a context in which a batch can be computed repeatedly as in its update, without changing buffers.

        Args:
            place: The place of the batch in the update.
        """
        ...

    def batches_to_evaluate(self, loader: SizedIterable, batches: Iterable[Any], *, is_trial: bool) -> Iterable[Any]:
        """Return the batches of an evaluation, which may be iterated over once.

        Args:
            loader: The loader.
            batches: The batches of the loader, on the device.
            is_trial: Whether the evaluation ends after the first batches, and does not record metrics.
        """
        ...

    def has_fewer_batches(self, loader: SizedIterable) -> bool:
        """Return whether this process has no batch in the last step of an evaluation, in which others have a batch.

        Args:
            loader: The loader.
        """
        ...


class Alone:
    """Does not exchange gradients, for one process; the base class of other exchanges."""

    num_averaged: int = 1
    is_exact: bool = False
    shares_buffers: bool = True

    def add(self, part: Part, called: Mapping[str, nn.Module], *, overlaps: bool) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def start_epoch(self, models: Callable[[], Mapping[str, nn.Module]]) -> None:
        """Do nothing."""

    def end_epoch(self) -> None:
        """Do nothing."""

    def start_batch(self, place: BatchPlace) -> None:
        """Do nothing."""

    def start_last_pass(self, part: Part, *, overlaps: bool) -> None:
        """Do nothing."""

    def finish(self, part: Part, flags: Callable[[], Sequence[float]]) -> Tensor | None:
        """Return None, because there are no other processes."""
        return None

    def end_step(self, part: Part) -> None:
        """Do nothing."""

    def end_update(self) -> int | None:
        """Return None."""
        return None

    def drop_update(self) -> None:
        """Do nothing."""

    def average_each_pass(self, part: Part) -> None:
        """Do nothing."""

    def holds_gradients(self, part: Part) -> bool:
        """Return False: gradients are in the parameters."""
        return False

    def require_no_gradients(self, part: Part) -> None:
        """Do nothing: gradients of a step are part of the update."""

    def repeating(self, place: BatchPlace) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return nullcontext()

    def batches_to_evaluate(self, loader: SizedIterable, batches: Iterable[Any], *, is_trial: bool) -> Iterable[Any]:
        """Return the batches unchanged."""
        return batches

    def has_fewer_batches(self, loader: SizedIterable) -> bool:
        """Return False: processes have the same number of batches."""
        return False


class _BufferPlaces:
    """The places of buffers in modules, found once; a forward pass may assign other tensors.

    Args:
        modules: The modules. Layers and buffers that are added later are not found.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        parts = dict.fromkeys(part for module in modules for part in module.modules())
        held: list[dict[str, Tensor | None]] = [vars(part)[BUFFERS] for part in parts]
        self._places = [(buffers, name) for buffers in held for name in buffers]

    def tensors(self) -> list[Tensor]:
        """Return the current buffers, each tensor once."""
        there = (buffers.get(name) for buffers, name in self._places)
        return list({id(buffer): buffer for buffer in there if buffer is not None}.values())


class Averaged(Alone):
    """Averages gradients over the processes during the last backward pass, together with the flags.

    All processes begin each update with the buffers of the first process, for example statistics of batch norm.

    Args:
        accelerator: The accelerator of the trainer.
    """

    def __init__(self, accelerator: _accelerate.AcceleratorLike) -> None:
        self.num_averaged: int = accelerator.num_processes
        self.shares_buffers: bool = _accelerate.broadcasts_buffers(accelerator)
        self._accelerator = accelerator
        self._exchanges: dict[Part, GradientExchange] = {}
        self._num_compared: dict[Part, int] = {}
        self._buffers: _BufferPlaces | None = None

    @override
    def add(self, part: Part, called: Mapping[str, nn.Module], *, overlaps: bool) -> None:
        """Begin to average the gradients of a part, unless ``fully_shard`` averages them."""
        bucket_bytes, dtype = _accelerate.settings_of_exchange(self._accelerator)
        self._num_compared[part] = 0
        self._exchanges[part] = GradientExchange(
            part.modules.values(),
            NUM_FLAGS,
            _accelerate.device_of(self._accelerator),
            includes=part.is_plain,
            bucket_bytes=bucket_bytes,
            dtype=dtype,
        )

    @override
    def close(self) -> None:
        """Remove all hooks from modules."""
        for exchange in self._exchanges.values():
            exchange.close()
        self._exchanges, self._num_compared, self._buffers = {}, {}, None

    @override
    def start_epoch(self, models: Callable[[], Mapping[str, nn.Module]]) -> None:
        """Find the buffers of the models, unless the launcher turns their broadcast off."""
        for exchange in self._exchanges.values():
            exchange.end_update()
        self._buffers = _BufferPlaces(models().values()) if self.shares_buffers else None

    @override
    def end_epoch(self) -> None:
        """Stop sharing buffers."""
        self._buffers = None

    @override
    def start_batch(self, place: BatchPlace) -> None:
        """Copy the buffers of the first process to all others, once in each update."""
        if place.starts_group and self._buffers is not None:
            broadcast_tensors(self._buffers.tensors())

    @override
    def start_last_pass(self, part: Part, *, overlaps: bool) -> None:
        """Begin to send gradients as soon as they are computed."""
        self._exchanges[part].open(overlaps=overlaps)

    @override
    def finish(self, part: Part, flags: Callable[[], Sequence[float]]) -> Tensor | None:
        """Average the gradients, and return the sums of the flags.

        Raises:
            RanksDifferError: The settings of optimizers that only see the shards of their process differ.
            UnsupportedConfigurationError: The weights of the processes differ before the first update.
        """
        exchange = self._exchanges[part]
        sums = exchange.finish(flags())
        if self._num_compared[part] <= _NUM_COMPARED:  # afterwards, because gradients may still be being sent
            self._compare(part, exchange)
        return sums

    @override
    def end_step(self, part: Part) -> None:
        """Stop exchanging the gradients of the part."""
        self._exchanges[part].end_update()

    @override
    def drop_update(self) -> None:
        """Stop exchanging gradients."""
        for exchange in self._exchanges.values():
            exchange.end_update()

    @override
    def end_update(self) -> int | None:
        """Stop exchanging gradients."""
        for exchange in self._exchanges.values():
            exchange.end_update()
        return None

    @override
    def average_each_pass(self, part: Part) -> None:
        """Average gradients at the end of each backward pass."""
        self._exchanges[part].average_each_pass()

    def _compare(self, part: Part, exchange: GradientExchange) -> None:
        """Compare weights before the first update, and settings of optimizers of shards after the first updates."""
        if self._num_compared[part] == 0:
            _require_same_weights(part.modules, exchange)
        elif part.is_sharded:
            require_same_settings(part.optimizers)
        self._num_compared[part] += 1


def _require_same_weights(modules: Mapping[str, nn.Module], exchange: GradientExchange) -> None:
    """Raise an error for modules that steps updated before the first exchange of gradients."""
    for name, module in modules.items():
        own = [parameter.detach().double().square().sum() for parameter in exchange.parameters_of(module)]
        if own and not _same_on_all_processes(torch.stack(own)):
            raise UnsupportedConfigurationError(
                f"The module {name!r} differs between the processes before the first update.",
                given="steps that run a backward pass and their own update, whose gradients are not averaged",
                do="Add its loss to the returned loss; for a separate loss and separate updates, use Run.",
            )


def _same_on_all_processes(values: Tensor) -> bool:
    of_each = values_of_all(values)
    return bool((of_each == of_each[0]).all())


class Tree(Alone):
    """Adds up the gradients of micro-batches in a fixed tree, no matter which process computed them.

    An update is divided into micro-batches by position. Each of them draws from its own RNGs and begins with the
    buffers from before the update, so that it does not matter who computes them.

    Args:
        accelerator: The accelerator of the trainer.
        place: Returns the seed of the run and the number of its updates so far, the seeds of random numbers.
    """

    is_exact: bool = True

    def __init__(self, accelerator: _accelerate.AcceleratorLike, place: Callable[[], tuple[int, int]]) -> None:
        self._rank: int = accelerator.process_index
        self._is_alone = accelerator.num_processes == 1
        self._device = _accelerate.device_of(accelerator)
        self._place = place
        self._trees: dict[Part, GradientTree] = {}
        self._overlaps = False
        self._place_of_batch: BatchPlace | None = None
        self._samples = 0  # the number of samples of the update so far

    @override
    def add(self, part: Part, called: Mapping[str, nn.Module], *, overlaps: bool) -> None:
        """Begin to add up the gradients of a part, and to average the buffers of all called modules."""
        self._trees[part] = GradientTree(part.modules.values(), NUM_FLAGS, called=called)
        self._overlaps = overlaps

    @override
    def close(self) -> None:
        """Remove all hooks from modules."""
        for tree in self._trees.values():
            tree.close()
        self._trees = {}

    @override
    def start_epoch(self, models: Callable[[], Mapping[str, nn.Module]]) -> None:
        """Find the parameters and buffers again."""
        for tree in self._trees.values():
            tree.find()
            tree.end_update()

    @override
    def end_epoch(self) -> None:
        """Drop an update that is not made."""
        self.drop_update()

    @override
    def start_batch(self, place: BatchPlace) -> None:
        """Collect the gradients of the previous batch, seed the random numbers of this batch, and restore buffers."""
        if place.starts_group:
            self._samples = 0
            for tree in self._trees.values():
                tree.start_update(place.num_micro_batches)
        else:
            self._end_batch()
        self._samples += place.global_samples or 0
        self._place_of_batch = place
        if place.micro_batch is not None:
            self._seed(place.micro_batch)
            for tree in self._trees.values():
                tree.start_batch(overlaps=self._overlaps)

    def _end_batch(self) -> None:
        """Collect the gradients of the batch in progress, if any."""
        place, self._place_of_batch = self._place_of_batch, None
        if place is not None and place.micro_batch is not None:
            for tree in self._trees.values():
                tree.end_batch(place.weight)

    @override
    def finish(self, part: Part, flags: Callable[[], Sequence[float]]) -> Tensor | None:
        """Set the sums of the gradients in the parameters, and the means in the buffers."""
        self._end_batch()
        if self._is_alone:
            self._trees[part].finish(())
            return None
        return self._trees[part].finish(flags())

    @override
    def end_step(self, part: Part) -> None:
        """Keep the buffers."""
        self._trees[part].end_update()

    @override
    def end_update(self) -> int | None:
        """Keep the buffers, and seed the random numbers between two updates.

        Returns:
            On the first process the samples of the update, the weight of its logged values; 0 on the others.
        """
        for tree in self._trees.values():
            tree.end_update()
        self._seed(_AFTER_UPDATE)
        return self._samples if self._rank == 0 else 0

    @override
    def drop_update(self) -> None:
        """Restore the buffers from before an update that is not made."""
        self._place_of_batch = None
        for tree in self._trees.values():
            tree.drop_update()

    @override
    def holds_gradients(self, part: Part) -> bool:
        """Return whether the tree has collected gradients."""
        return self._trees[part].has_gradients

    @override
    def require_no_gradients(self, part: Part) -> None:
        """Raise an error for gradients of this batch, which the tree would scale together with the trainer's.

        Raises:
            ConfigurationError: A step ran its own backward pass.
        """
        if part.has_gradients():
            raise own_backward_pass()

    @override
    @contextmanager
    def repeating(self, place: BatchPlace) -> Generator[None]:
        """Seed the random numbers of a batch, and restore the buffers afterwards."""
        for tree in self._trees.values():
            tree.save_buffers()
        self._seed(place.micro_batch or 0)
        yield
        for tree in self._trees.values():
            tree.restore_buffers()

    @override
    def batches_to_evaluate(self, loader: SizedIterable, batches: Iterable[Any], *, is_trial: bool) -> Iterator[Any]:
        """Iterate over the batches, each with random numbers from its position and with the same buffers.

        Raises:
            ConfigurationError: The loader is limited, or has its own order.
        """
        keyed = require_own_batches(loader, may_be_limited=is_trial)
        for tree in self._trees.values():
            tree.save_buffers()
        for step, batch in enumerate(batches):
            self._seed(_EVALUATION, keyed.split.piece(step, keyed.rank).start)
            yield batch
            for tree in self._trees.values():
                tree.restore_buffers()
        self._seed(_AFTER_EVALUATION)

    @override
    def has_fewer_batches(self, loader: SizedIterable) -> bool:
        """Return whether the last piece of this process is empty."""
        keyed = innermost(loader)
        return is_keyed(keyed) and not keyed.split.piece(-1 % len(keyed.split), keyed.rank)

    def _seed(self, *place: int) -> None:
        seed_rng(0, *self._place(), *place, device=self._device)


def create_exchange(
    accelerator: _accelerate.AcceleratorLike, place: Callable[[], tuple[int, int]], *, reproducible: bool
) -> Exchange:
    """Return the default exchange of a trainer for its arguments and number of processes.

    Args:
        accelerator: The accelerator of the trainer.
        place: Returns the seed of the run and the number of its updates so far.
        reproducible: Whether runs are bit-for-bit identical on any number of processes.
    """
    if reproducible:
        return Tree(accelerator, place)
    return Averaged(accelerator) if accelerator.num_processes > 1 else Alone()


def check_exchange(exchange: object, *, reproducible: bool) -> None:
    """Raise an error for an object that a trainer cannot use as its exchange.

    Args:
        exchange: The result of ``create_exchange``.
        reproducible: Whether reproducible runs were requested.

    Raises:
        ArgumentTypeError: The result is a class, None, or an object without some of the methods.
        UnsupportedConfigurationError: Reproducible runs were requested, but the exchange does not support them.
    """
    missing = [name for name in vars(Exchange) if not name.startswith("_") and not hasattr(exchange, name)]
    if missing or isinstance(exchange, type):
        given = f"the class {exchange.__name__}" if isinstance(exchange, type) else type(exchange).__name__
        raise ArgumentTypeError(
            "create_exchange did not return an exchange.",
            given=f"{given}, without {', '.join(missing)}" if missing and exchange is not None else given,
            do="Return an instance of a class that derives from pa_core.engine.exchange.Alone, which has all methods.",
        )
    if reproducible and not cast("Exchange", exchange).is_exact:
        raise UnsupportedConfigurationError(
            "The exchange of this trainer does not support reproducible runs.",
            given=f"{type(exchange).__name__}, whose is_exact is False",
            do="Leave reproducible out.",
        )


def require_between_steps(exchange: Exchange, what: str, *, is_in_step: bool) -> None:
    """Raise an error within a step of a reproducible run, because processes have different numbers of steps.

    Args:
        exchange: The exchange of the run.
        what: The name of the call.
        is_in_step: Whether a step is in progress.

    Raises:
        ConfigurationError: A step is in progress.
    """
    if exchange.is_exact and is_in_step:
        raise ConfigurationError(
            f"{what} was called within a step of a reproducible run. Processes have different numbers of steps, so "
            "its samples would depend on their number.",
            do="Call it between two updates, or log the mean of each batch with log(name, value).",
        )
