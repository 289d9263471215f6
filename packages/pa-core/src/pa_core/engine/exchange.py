"""How what each process has computed for an update becomes the update of all of them.

`Exchange` is the protocol, and the one place where another engine can be added. There are three implementations:
`Alone` for one process, `Averaged` for several, and `Tree` for runs that are bit-for-bit identical on any number of
them. A trainer or a run gets its exchange from ``create_exchange``; override that for another one.
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
"""Most steps that depend on all weights show in the second of them, as the first one begins with constants."""

_AFTER_UPDATE: Final = -1
_EVALUATION: Final = -2
_AFTER_EVALUATION: Final = -3
"""What extends the key of an update where no index of a micro-batch does."""


class Exchange(Protocol):
    """Makes one update of what the processes have computed; a trainer has one, for all of its runs.

    In a run it is called in this order::

        add                         for each part, when all modules are placed
        for each epoch:
            start_epoch
            for each update:
                for each batch:
                    start_batch     then the forward pass; before the backward passes of the last batch:
                    start_last_pass
                finish              for each part whose optimizer is stepped, before the step
                end_step            after the step, where there are several parts
                end_update          or drop_update, where no step is made
            end_epoch
        close

    Every process calls each method equally often, even one without a sample.
    Derive from `Alone` to change only some of them.
    """

    @property
    def num_averaged(self) -> int:
        """The number of processes that a gradient is averaged over; 1 where gradients are added up or stay."""
        ...

    @property
    def is_exact(self) -> bool:
        """Whether weights are bit-for-bit identical on any number of processes, as ``reproducible`` requests it.

        Then batches are micro-batches that were cut by position, each computed as if it were the only one.
        """
        ...

    @property
    def shares_buffers(self) -> bool:
        """Whether all processes have the buffers of the models in common; otherwise, each process keeps its own."""
        ...

    def add(self, part: Part, called: Mapping[str, nn.Module], *, overlaps: bool) -> None:
        """Begin to exchange what a part needs.

        Args:
            part: What is trained.
            called: All modules that the steps of the run call, by name.
            overlaps: Whether each batch has one backward pass, during which gradients may be sent.
        """
        ...

    def close(self) -> None:
        """Leave all modules alone, as the run has ended."""
        ...

    def start_epoch(self, models: Callable[[], Mapping[str, nn.Module]]) -> None:
        """Begin the training of an epoch, and forget an update that was not finished; layers may have been added.

        Args:
            models: Returns all models of the run, by name.
        """
        ...

    def end_epoch(self) -> None:
        """End the training of an epoch."""
        ...

    def start_batch(self, place: BatchPlace) -> None:
        """Begin a batch, after the one before; the first one of an update begins that.

        Args:
            place: Its place in the update; perhaps this process has no sample in it.
        """
        ...

    def start_last_pass(self, part: Part, *, overlaps: bool) -> None:
        """Begin the backward passes of the last batch of an update.

        Args:
            part: What it trains.
            overlaps: Whether all processes have such a pass.
        """
        ...

    def finish(self, part: Part, flags: Callable[[], Sequence[float]]) -> Tensor | None:
        """Let parameters have the gradients of the update, and add up the flags of the processes.

        Args:
            part: What is trained.
            flags: Returns what the other processes must know of this one: numbers of a fixed length.

        Returns:
            The sums of the flags over the processes, on the device; None on one process.
        """
        ...

    def end_step(self, part: Part) -> None:
        """End the step of one of several parts: its gradients were used, and others may still be computed.

        Args:
            part: What was trained.
        """
        ...

    def end_update(self) -> int | None:
        """End an update, and all steps that are left, before its last event; an overflow in fp16 may have skipped them.

        Returns:
            The weight of values that this process logs from now on; None for the samples of its last batch.
        """
        ...

    def drop_update(self) -> None:
        """Forget an update that is not made; does nothing between two updates."""
        ...

    def average_each_pass(self, part: Part) -> None:
        """Exchange the gradients of each backward pass from here on, for an epoch that a script has written itself.

        Args:
            part: What is trained.
        """
        ...

    def holds_gradients(self, part: Part) -> bool:
        """Return whether earlier batches of the update had gradients that the parameters do not show.

        Args:
            part: What is trained.
        """
        ...

    def require_no_gradients(self, part: Part) -> None:
        """Raise an error for gradients before the backward pass of a batch, which the exchange does not add up.

        Called in the first updates of a trainer.

        Args:
            part: What is trained.

        Raises:
            ConfigurationError: A step has run its own backward pass.
        """
        ...

    def repeating(self, place: BatchPlace) -> AbstractContextManager[None]:
        """Return a context in which a batch is computed as it will be, as often as one likes, and leaves no buffers.

        Args:
            place: Its place in the update.
        """
        ...

    def batches_to_evaluate(self, loader: SizedIterable, batches: Iterable[Any], *, is_trial: bool) -> Iterable[Any]:
        """Return the batches of an evaluation, which may be iterated over once.

        Args:
            loader: The loader.
            batches: Its batches, on the device.
            is_trial: Whether the evaluation is left after the first batches, and nothing is recorded.
        """
        ...

    def has_fewer_batches(self, loader: SizedIterable) -> bool:
        """Return whether an evaluation gives this process no batch in its last step, where others have one.

        Args:
            loader: The loader.
        """
        ...


class Alone:
    """Leaves gradients as they are, for one process."""

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
        """Return None, as there is nobody to tell."""
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
        """Return False: gradients are where the backward pass has put them."""
        return False

    def require_no_gradients(self, part: Part) -> None:
        """Do nothing: gradients of a step are part of the update."""

    def repeating(self, place: BatchPlace) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return nullcontext()

    def batches_to_evaluate(self, loader: SizedIterable, batches: Iterable[Any], *, is_trial: bool) -> Iterable[Any]:
        """Return the batches as they are."""
        return batches

    def has_fewer_batches(self, loader: SizedIterable) -> bool:
        """Return False: processes have equally many batches."""
        return False


class _BufferPlaces:
    """Where modules keep their buffers, found once: a forward pass may put other tensors there.

    Args:
        modules: The modules, as they are. Layers and names of buffers that come later are not found.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        parts = dict.fromkeys(part for module in modules for part in module.modules())
        held: list[dict[str, Tensor | None]] = [vars(part)[BUFFERS] for part in parts]
        self._places = [(buffers, name) for buffers in held for name in buffers]

    def tensors(self) -> list[Tensor]:
        """Return what is there now, each tensor once."""
        there = (buffers.get(name) for buffers, name in self._places)
        return list({id(one): one for one in there if one is not None}.values())


class Averaged(Alone):
    """Averages gradients over the processes during the last backward pass, with the flags behind them.

    All processes begin each update with the buffers of the first one, such as statistics of batch norm.

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
        """Leave all modules alone."""
        for exchange in self._exchanges.values():
            exchange.close()
        self._exchanges, self._num_compared, self._buffers = {}, {}, None

    @override
    def start_epoch(self, models: Callable[[], Mapping[str, nn.Module]]) -> None:
        """Find the buffers of the models, unless the launcher was told to leave them alone."""
        for exchange in self._exchanges.values():
            exchange.end_update()
        self._buffers = _BufferPlaces(models().values()) if self.shares_buffers else None

    @override
    def end_epoch(self) -> None:
        """From here on, buffers are left alone."""
        self._buffers = None

    @override
    def start_batch(self, place: BatchPlace) -> None:
        """Give all processes the buffers of the first one, once in each update."""
        if place.starts_group and self._buffers is not None:
            broadcast_tensors(self._buffers.tensors())

    @override
    def start_last_pass(self, part: Part, *, overlaps: bool) -> None:
        """Begin to send gradients as they come."""
        self._exchanges[part].open(overlaps=overlaps)

    @override
    def finish(self, part: Part, flags: Callable[[], Sequence[float]]) -> Tensor | None:
        """Average the gradients, and return the sums of the flags.

        Raises:
            RanksDifferError: The settings of optimizers that see the shards of their process alone have parted.
            UnsupportedConfigurationError: The weights of the processes have parted before the first update.
        """
        exchange = self._exchanges[part]
        sums = exchange.finish(flags())
        if self._num_compared[part] <= _NUM_COMPARED:  # afterwards, as gradients may be under way since the pass
            self._compare(part, exchange)
        return sums

    @override
    def end_step(self, part: Part) -> None:
        """From here on, gradients of the part stay on their process."""
        self._exchanges[part].end_update()

    @override
    def drop_update(self) -> None:
        """From here on, gradients stay on their process."""
        for exchange in self._exchanges.values():
            exchange.end_update()

    @override
    def end_update(self) -> int | None:
        """From here on, gradients stay on their process."""
        for exchange in self._exchanges.values():
            exchange.end_update()
        return None

    @override
    def average_each_pass(self, part: Part) -> None:
        """Average at the end of each backward pass."""
        self._exchanges[part].average_each_pass()

    def _compare(self, part: Part, exchange: GradientExchange) -> None:
        """Compare weights before the first update, and after the first ones what optimizers make of their shards."""
        if self._num_compared[part] == 0:
            _require_same_weights(part.modules, exchange)
        elif part.is_sharded:
            require_same_settings(part.optimizers)
        self._num_compared[part] += 1


def _require_same_weights(modules: Mapping[str, nn.Module], exchange: GradientExchange) -> None:
    """Raise an error for modules that steps have updated before the first exchange of gradients."""
    for name, module in modules.items():
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


class Tree(Alone):
    """Adds up the gradients of micro-batches in a fixed tree, whoever has computed them.

    An update is cut into micro-batches by position. Each of them draws from its own RNGs and begins with the buffers
    from before the update, so that it does not matter who computes them.

    Args:
        accelerator: The accelerator of the trainer.
        place: Returns the seed of the run and the number of its updates so far, which random numbers follow from.
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
        self._samples = 0  # of the batches of the update so far

    @override
    def add(self, part: Part, called: Mapping[str, nn.Module], *, overlaps: bool) -> None:
        """Begin to add up the gradients of a part, and look after the buffers of all modules that are called."""
        self._trees[part] = GradientTree(part.modules.values(), NUM_FLAGS, called=called)
        self._overlaps = overlaps

    @override
    def close(self) -> None:
        """Leave all modules alone."""
        for tree in self._trees.values():
            tree.close()
        self._trees = {}

    @override
    def start_epoch(self, models: Callable[[], Mapping[str, nn.Module]]) -> None:
        """Look again for parameters and buffers."""
        for tree in self._trees.values():
            tree.find()
            tree.end_update()

    @override
    def end_epoch(self) -> None:
        """Forget an update that is not made."""
        self.drop_update()

    @override
    def start_batch(self, place: BatchPlace) -> None:
        """Take the gradients of the batch before; seed what is drawn in this one, and put buffers back."""
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
        """Take the gradients of the batch in progress, if there is one."""
        place, self._place_of_batch = self._place_of_batch, None
        if place is not None and place.micro_batch is not None:
            for tree in self._trees.values():
                tree.end_batch(place.weight)

    @override
    def finish(self, part: Part, flags: Callable[[], Sequence[float]]) -> Tensor | None:
        """Give the parameters the sums of the gradients, and the buffers what follows."""
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
        """Keep the buffers, and seed what is drawn between two updates.

        Returns:
            On the first process the samples of the update, for which what it logs counts; 0 on the others.
        """
        for tree in self._trees.values():
            tree.end_update()
        self._seed(_AFTER_UPDATE)
        return self._samples if self._rank == 0 else 0

    @override
    def drop_update(self) -> None:
        """Let the buffers be what they were before an update that is not made."""
        self._place_of_batch = None
        for tree in self._trees.values():
            tree.drop_update()

    @override
    def holds_gradients(self, part: Part) -> bool:
        """Return whether the tree has taken some."""
        return self._trees[part].has_gradients

    @override
    def require_no_gradients(self, part: Part) -> None:
        """Raise an error for gradients of this batch, which the tree would weigh together with the trainer's.

        Raises:
            ConfigurationError: A step has run its own backward pass.
        """
        if part.has_gradients():
            raise own_backward_pass()

    @override
    @contextmanager
    def repeating(self, place: BatchPlace) -> Generator[None]:
        """Seed what the batch draws, and put the buffers back afterwards."""
        for tree in self._trees.values():
            tree.save_buffers()
        self._seed(place.micro_batch or 0)
        yield
        for tree in self._trees.values():
            tree.restore_buffers()

    @override
    def batches_to_evaluate(self, loader: SizedIterable, batches: Iterable[Any], *, is_trial: bool) -> Iterator[Any]:
        """Iterate over the batches; what each draws follows from its position, and each begins with the same buffers.

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
    """Return the exchange of a trainer as it was requested and launched.

    Args:
        accelerator: The accelerator of the trainer.
        place: Returns the seed of the run and the number of its updates so far.
        reproducible: Whether runs are bit-for-bit identical on any number of processes.
    """
    if reproducible:
        return Tree(accelerator, place)
    return Averaged(accelerator) if accelerator.num_processes > 1 else Alone()


def check_exchange(exchange: object, *, reproducible: bool) -> None:
    """Raise an error for anything that a trainer cannot use as its exchange.

    Args:
        exchange: What ``create_exchange`` has returned.
        reproducible: Whether reproducible runs were requested.

    Raises:
        ArgumentTypeError: It is a class, None, or an object without some of the methods.
        UnsupportedConfigurationError: It makes no reproducible runs, and they were requested.
    """
    missing = [name for name in vars(Exchange) if not name.startswith("_") and not hasattr(exchange, name)]
    if missing or isinstance(exchange, type):
        given = f"the class {exchange.__name__}" if isinstance(exchange, type) else type(exchange).__name__
        raise ArgumentTypeError(
            "create_exchange has returned no exchange.",
            given=f"{given}, without {', '.join(missing)}" if missing and exchange is not None else given,
            do="Return an instance of a class that derives from pa_core.engine.exchange.Alone, which has all methods.",
        )
    if reproducible and not cast("Exchange", exchange).is_exact:
        raise UnsupportedConfigurationError(
            "The exchange of this trainer makes no reproducible runs.",
            given=f"{type(exchange).__name__}, whose is_exact is False",
            do="Leave reproducible out.",
        )


def require_between_steps(exchange: Exchange, what: str, *, is_in_step: bool) -> None:
    """Raise an error within a step of a reproducible run, as not all processes have as many steps.

    Args:
        exchange: The exchange of the run.
        what: What was called.
        is_in_step: Whether a step is in progress.

    Raises:
        ConfigurationError: One is.
    """
    if exchange.is_exact and is_in_step:
        raise ConfigurationError(
            f"{what} within a step of a reproducible run, where not all processes have as many steps, and which "
            "samples it would see follows their number.",
            do="Call it between two updates, or log the mean of each batch with log(name, value).",
        )
