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

    ``create_exchange`` of a trainer or a run returns its exchange; override that method for another communication
    library. A trainer has an exchange for all of its runs. You never call the methods: a run calls them in this order::

        add                         for each part, after all modules are placed
        for each epoch:
            start_epoch
            for each update:
                for each batch:
                    start_batch     then the forward pass; before the backward passes of the last batch:
                    start_last_pass
                finish              for each part whose optimizer is stepped, before the step
                end_step            after the step, if there are several parts
                end_update          or drop_update, if no step is made
            end_epoch
        close

    Every process calls each method equally often, even one without a sample, so methods may communicate with the other
    processes. The other methods answer questions: they are called between these, and must not communicate.

    An exchange for several processes has to implement `finish`: it replaces each gradient with its mean over the
    processes, and adds up the flags. Derive from `Alone`, whose other methods can stay as they are.

    Example:
        >>> import torch
        >>> from pa_core import Trainer, gather_objects
        >>> from pa_core.engine.exchange import Alone
        >>> from pa_core.testing import make_regression
        >>> class Pickled(Alone):  # short and slow: gradients travel as objects
        ...     def __init__(self, num_processes):
        ...         self.num_averaged = num_processes
        ...     def finish(self, part, flags):
        ...         for parameter in part.parameters():
        ...             if parameter.requires_grad:
        ...                 own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        ...                 parameter.grad = sum(gather_objects(own)) / self.num_averaged
        ...         return torch.tensor(gather_objects(list(flags()))).sum(0).to(parameter.device)
        >>> class PickledTrainer(Trainer):
        ...     def create_exchange(self):
        ...         return Pickled(self.num_processes)
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = PickledTrainer(model, torch.nn.MSELoss(), optimizer, callbacks=[])
        >>> trainer.train(make_regression(64), num_epochs=1)
        >>> trainer.num_updates_completed
        8
    """

    @property
    def num_averaged(self) -> int:
        """The number of processes that a gradient is averaged over; 1 if gradients are added up or not exchanged.

        The trainer multiplies each loss so that the mean of the gradients over this number of processes is the gradient
        of the mean loss over all samples of the update.
        """
        ...

    @property
    def is_exact(self) -> bool:
        """Whether weights are bit-for-bit identical on any number of processes, as ``reproducible`` requires.

        If True, batches are micro-batches that are divided by position, each computed as if it were the only batch. An
        exchange that averages returns False.
        """
        ...

    @property
    def shares_buffers(self) -> bool:
        """Whether all processes have the same buffers of the models, for example the statistics of batch norm.

        If True, evaluations, predictions and training states use the buffers of the first process. If False, each
        process keeps its own buffers.
        """
        ...

    def add(self, part: Part, called: Mapping[str, nn.Module], *, overlaps: bool) -> None:
        """Begin to exchange the gradients of a part; called once in each training run, on every process.

        Args:
            part: The trained part. ``part.modules`` are on the device of the run, and are the same until `close`.
                ``part.parameters()`` are the parameters of its optimizers. An exchange leaves out parameters for which
                ``part.is_plain(parameter)`` is False, because ``fully_shard`` exchanges their gradients.
            called: All modules that the steps of the run call, by name: the trained modules, and modules without an
                optimizer.
            overlaps: Whether each batch has a single backward pass, during which gradients may be sent. False if a
                script calls ``backward`` itself: a parameter may then get gradients from several passes.
        """
        ...

    def close(self) -> None:
        """Remove all hooks from modules, because the run has ended.

        Called at the end of each run, even after an exception and in runs without training, in which `add` was not
        called. The trainer may call `add` again in its next run.
        """
        ...

    def start_epoch(self, models: Callable[[], Mapping[str, nn.Module]]) -> None:
        """Begin the training of an epoch, after ``on_train_epoch_start``, and forget an unfinished update.

        Callbacks may have added layers or buffers, so an exchange that keeps lists of them makes new lists here.

        Args:
            models: Returns all models of the run, by name.
        """
        ...

    def end_epoch(self) -> None:
        """End the training of an epoch, before its loss is recorded and before its evaluation."""
        ...

    def start_batch(self, place: BatchPlace) -> None:
        """Begin a batch, before its forward pass.

        Called for each batch of an update. The first batch has ``place.starts_group``: there, an exchange that shares
        buffers sends them to the other processes.

        Args:
            place: The place of the batch in the update. If ``place.is_empty``, this process has no sample in it, but
                must take part in the communication.
        """
        ...

    def start_last_pass(self, part: Part, *, overlaps: bool) -> None:
        """Begin the last backward passes of an update, during which gradients may be sent.

        Called once for each part, after the forward pass of the last batch. Then follow the backward passes of this
        process, if any, and `finish`, which must send the gradients that were not sent by then.

        Args:
            part: The part that the passes train.
            overlaps: Whether all processes have a sample in this batch, and so a backward pass. If False, do not wait
                for another process during the pass, because it may have none.
        """
        ...

    def finish(self, part: Part, flags: Callable[[], Sequence[float]]) -> Tensor | None:
        """Replace the gradients of the part with their means over the processes, and add up the flags.

        Called before the optimizer is stepped, after the last backward pass. Until then, ``parameter.grad`` is the sum
        over the batches of this process, or None on a process that had no sample, which counts as zero.

        Args:
            part: The trained part.
            flags: Call it once. It returns five numbers of this process, with which processes tell each other to stop,
                to save a training state or to be preempted, and how many items they had. Add up each number over the
                processes, in float32 or float64.

        Returns:
            The five sums, a tensor on the device of the run; None on one process, which then acts on its own flags.
        """
        ...

    def end_step(self, part: Part) -> None:
        """End the step of a part, if the run has several parts: its optimizer was stepped, and the gradients were used.

        Backward passes of other parts may follow in the same update; they may also compute gradients of this part,
        which must not be sent any more.

        Args:
            part: The trained part.
        """
        ...

    def end_update(self) -> int | None:
        """End an update, after its steps and before ``on_optimizer_step_end``.

        It ends all parts, even parts without a call of `end_step`. In fp16, steps may have been skipped because
        gradients overflowed.

        Returns:
            The weight, a number of samples, of values that this process logs in ``on_optimizer_step_end``; None, in
            most exchanges, for the number of samples of its last batch.
        """
        ...

    def drop_update(self) -> None:
        """Drop an update that is not made; nothing is sent for it.

        Called if a process requested a stop, or if the script left the update. It is also called at the end of each
        training run, between two updates, and then has no effect.
        """
        ...

    def average_each_pass(self, part: Part) -> None:
        """Exchange the gradients of each backward pass at its end, from now on.

        Called once after `add`, only for a trainer that overrides ``_run_train_epoch`` with a loop that does not call
        the other methods for its batches.

        Args:
            part: The trained part.
        """
        ...

    def holds_gradients(self, part: Part) -> bool:
        """Return whether the exchange itself holds gradients of earlier batches of the update.

        A run calls this before a step and in its first updates: if no ``parameter.grad`` is set and the result is
        False, the script has not called ``backward``. An exchange that leaves gradients in ``parameter.grad`` until
        `finish` returns False.

        Args:
            part: The trained part.
        """
        ...

    def require_no_gradients(self, part: Part) -> None:
        """Raise an error for gradients before the backward pass of a batch, if the exchange cannot add them up.

        Called in the first updates of a trainer, after ``calculate_train_batch_loss``: a gradient that is new there is
        from a backward pass in this method. An exchange that adds up all gradients does nothing.

        Args:
            part: The trained part.

        Raises:
            ConfigurationError: A step ran its own backward pass.
        """
        ...

    def repeating(self, place: BatchPlace) -> AbstractContextManager[None]:
        """Return a context in which a batch can be computed repeatedly as in its update, without changing buffers.

        Only called if `is_exact`, before the first update, to check that a step depends on nothing but its batch.

        Args:
            place: The place of the batch in the update.

        Returns:
            A context that begins with the random numbers of the batch, and restores the buffers at its end.
        """
        ...

    def batches_to_evaluate(self, loader: SizedIterable, batches: Iterable[Any], *, is_trial: bool) -> Iterable[Any]:
        """Return the batches of an evaluation, which may be iterated over once.

        Called once in each evaluation of a set. The evaluation computes each batch when it is yielded, so a generator
        can act before and after each. Most exchanges return ``batches``.

        Args:
            loader: The loader of the batches, for its length and the positions of its samples.
            batches: The batches of this process, on the device.
            is_trial: Whether only the first batches are evaluated and nothing is recorded, as in ``sanity_eval_steps``.
                The loader may then be limited to its first batches, even in a reproducible run.

        Returns:
            The batches to evaluate, in their order.

        Raises:
            ConfigurationError: The exchange is exact, and cannot divide the batches of the loader by position.
        """
        ...

    def has_fewer_batches(self, loader: SizedIterable) -> bool:
        """Return whether this process has no batch in the last step of an evaluation, in which others have a batch.

        Called after the last batch of this process. If True, the process takes part in the exchange of a preemption in
        place of the missing step. Most exchanges return False.

        Args:
            loader: The loader.
        """
        ...


class Alone:
    """The exchange of one process, which exchanges nothing; the base class of other exchanges.

    A run on one process uses it. Derive from it and override the methods that your exchange needs, at least `finish`,
    and set ``num_averaged``. See `Exchange` for the order of the calls, and for an example on several processes.

    Example:
        >>> from pa_core.engine.exchange import Alone
        >>> class CountUpdates(Alone):
        ...     num_updates = 0
        ...     def end_update(self):
        ...         self.num_updates += 1
        >>> exchange = CountUpdates()
        >>> exchange.end_update()
        >>> exchange.num_updates
        1
    """

    num_averaged: int = 1
    is_exact: bool = False
    shares_buffers: bool = True

    def add(self, part: Part, called: Mapping[str, nn.Module], *, overlaps: bool) -> None:
        """Do nothing when a training run begins; for several processes, prepare messages, or register hooks.

        Args:
            part: The trained part.
            called: All modules that the steps of the run call, by name.
            overlaps: Whether each batch has a single backward pass.
        """

    def close(self) -> None:
        """Do nothing at the end of a run; remove the hooks that your ``add`` registered."""

    def start_epoch(self, models: Callable[[], Mapping[str, nn.Module]]) -> None:
        """Do nothing when an epoch begins; find parameters and buffers again if your exchange keeps lists of them.

        Args:
            models: Returns all models of the run, by name.
        """

    def end_epoch(self) -> None:
        """Do nothing when the training of an epoch ends; release what your ``start_epoch`` prepared."""

    def start_batch(self, place: BatchPlace) -> None:
        """Do nothing before the forward pass of a batch; for several processes, send the buffers in the first batch.

        Args:
            place: The place of the batch in the update; its first batch has ``place.starts_group``.
        """

    def start_last_pass(self, part: Part, *, overlaps: bool) -> None:
        """Do nothing before the last backward passes of an update; for several processes, send gradients during them.

        Args:
            part: The part that the passes train.
            overlaps: Whether all processes have such a pass.
        """

    def finish(self, part: Part, flags: Callable[[], Sequence[float]]) -> Tensor | None:
        """Leave the gradients unchanged; for several processes, average them and add up the flags.

        Called before each step of the optimizers.

        Args:
            part: The trained part.
            flags: Returns the flags of this process.

        Returns:
            None, because there are no other processes.
        """
        return None

    def end_step(self, part: Part) -> None:
        """Do nothing after a step of one of several parts; stop sending the gradients of this part.

        Args:
            part: The trained part.
        """

    def end_update(self) -> int | None:
        """Do nothing after the steps of an update; prepare your exchange for the next update.

        Returns:
            None, so that values which are logged after the update are weighted by the number of samples in the last
            batch of this process.
        """
        return None

    def drop_update(self) -> None:
        """Do nothing if an update is not made; forget gradients that your exchange holds."""

    def average_each_pass(self, part: Part) -> None:
        """Do nothing; for several processes, average the gradients at the end of each backward pass from now on.

        Args:
            part: The trained part.
        """

    def holds_gradients(self, part: Part) -> bool:
        """Return False: the gradients are in ``parameter.grad``. Override it if your exchange keeps them elsewhere.

        Args:
            part: The trained part.
        """
        return False

    def require_no_gradients(self, part: Part) -> None:
        """Do nothing: gradients that a step computes itself are added to the update like any others.

        Args:
            part: The trained part.
        """

    def repeating(self, place: BatchPlace) -> AbstractContextManager[None]:
        """Return a context that does nothing; override it in an exchange whose ``is_exact`` is True.

        Args:
            place: The place of the batch in the update.
        """
        return nullcontext()

    def batches_to_evaluate(self, loader: SizedIterable, batches: Iterable[Any], *, is_trial: bool) -> Iterable[Any]:
        """Return the batches unchanged; override it to act before or after each batch of an evaluation.

        Args:
            loader: The loader of the batches.
            batches: The batches of this process, on the device.
            is_trial: Whether only the first batches are evaluated and nothing is recorded.
        """
        return batches

    def has_fewer_batches(self, loader: SizedIterable) -> bool:
        """Return False: all processes have the same number of batches in an evaluation.

        Args:
            loader: The loader.
        """
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

    Runs on several processes use it unless they are ``reproducible``. All processes begin each update with the buffers
    of the first process, for example statistics of batch norm, unless the launcher turns the broadcast of buffers off.
    Derive from it to change one part of the exchange.

    Args:
        accelerator: The accelerator of the trainer, whose ``DistributedDataParallelKwargs`` set the size of messages
            and the dtype in which gradients are sent.

    Example:
        >>> from accelerate import Accelerator
        >>> from pa_core.engine.exchange import Averaged
        >>> exchange = Averaged(Accelerator())
        >>> exchange.num_averaged, exchange.is_exact  # the number of processes
        (1, False)
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
        """Begin to average the gradients of a part, unless ``fully_shard`` averages them.

        Args:
            part: The trained part.
            called: Not used: only trained modules have gradients.
            overlaps: Not used: `start_last_pass` tells it for each update.
        """
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
        """Remove all hooks from modules at the end of a run."""
        for exchange in self._exchanges.values():
            exchange.close()
        self._exchanges, self._num_compared, self._buffers = {}, {}, None

    @override
    def start_epoch(self, models: Callable[[], Mapping[str, nn.Module]]) -> None:
        """Find the buffers of the models, unless the launcher turns their broadcast off.

        Args:
            models: Returns all models of the run, by name.
        """
        for exchange in self._exchanges.values():
            exchange.end_update()
        self._buffers = _BufferPlaces(models().values()) if self.shares_buffers else None

    @override
    def end_epoch(self) -> None:
        """Stop sharing buffers until the next epoch."""
        self._buffers = None

    @override
    def start_batch(self, place: BatchPlace) -> None:
        """Copy the buffers of the first process to all others, once in each update.

        Args:
            place: The place of the batch in the update.
        """
        if place.starts_group and self._buffers is not None:
            broadcast_tensors(self._buffers.tensors())

    @override
    def start_last_pass(self, part: Part, *, overlaps: bool) -> None:
        """Begin to send gradients as soon as they are computed.

        Args:
            part: The part that the passes train.
            overlaps: False sends nothing during the passes, and everything in `finish`.
        """
        self._exchanges[part].open(overlaps=overlaps)

    @override
    def finish(self, part: Part, flags: Callable[[], Sequence[float]]) -> Tensor | None:
        """Send the remaining gradients, wait for the means, and set them in the parameters.

        Args:
            part: The trained part.
            flags: Returns the flags of this process.

        Returns:
            The sums of the flags, on the device.

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
        """Stop exchanging the gradients of the part until the next update.

        Args:
            part: The trained part.
        """
        self._exchanges[part].end_update()

    @override
    def drop_update(self) -> None:
        """Stop exchanging gradients until the next update."""
        for exchange in self._exchanges.values():
            exchange.end_update()

    @override
    def end_update(self) -> int | None:
        """Stop exchanging gradients until the next update.

        Returns:
            None, so that values which are logged after the update are weighted by the number of samples in the last
            batch of this process.
        """
        for exchange in self._exchanges.values():
            exchange.end_update()
        return None

    @override
    def average_each_pass(self, part: Part) -> None:
        """Average gradients at the end of each backward pass from now on.

        Args:
            part: The trained part.
        """
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

    Runs with ``reproducible="any_processes"`` use it. An update is divided into micro-batches by position. Each of them
    draws from its own RNGs and begins with the buffers from before the update, so that it does not matter who computes
    them.

    Args:
        accelerator: The accelerator of the trainer.
        place: Returns the seed of the run and the number of its updates so far, the seeds of random numbers.

    Example:
        >>> from accelerate import Accelerator
        >>> from pa_core.engine.exchange import Tree
        >>> exchange = Tree(Accelerator(), lambda: (0, 0))
        >>> exchange.num_averaged, exchange.is_exact  # gradients are added up, not averaged
        (1, True)
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
        """Begin to add up the gradients of a part, and to average the buffers of all called modules.

        Args:
            part: The trained part.
            called: The modules whose buffers are averaged over the micro-batches of an update, by name.
            overlaps: Whether gradients may be sent during the backward pass of each micro-batch.
        """
        self._trees[part] = GradientTree(part.modules.values(), NUM_FLAGS, called=called)
        self._overlaps = overlaps

    @override
    def close(self) -> None:
        """Remove all hooks from modules at the end of a run."""
        for tree in self._trees.values():
            tree.close()
        self._trees = {}

    @override
    def start_epoch(self, models: Callable[[], Mapping[str, nn.Module]]) -> None:
        """Find the parameters and buffers again, and forget an unfinished update.

        Args:
            models: Not used: `add` was passed the modules.
        """
        for tree in self._trees.values():
            tree.find()
            tree.end_update()

    @override
    def end_epoch(self) -> None:
        """Drop an update that is not made."""
        self.drop_update()

    @override
    def start_batch(self, place: BatchPlace) -> None:
        """Collect the gradients of the previous batch, seed the random numbers of this batch, and restore buffers.

        Args:
            place: The place of the batch in the update; its ``micro_batch`` decides its random numbers and its place in
                the tree.
        """
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
        """Set the sums of the gradients in the parameters, and the means in the buffers.

        Args:
            part: The trained part.
            flags: Returns the flags of this process; not called on one process.

        Returns:
            The sums of the flags, on the device; None on one process.
        """
        self._end_batch()
        if self._is_alone:
            self._trees[part].finish(())
            return None
        return self._trees[part].finish(flags())

    @override
    def end_step(self, part: Part) -> None:
        """Keep the averaged buffers after the step of a part.

        Args:
            part: The trained part.
        """
        self._trees[part].end_update()

    @override
    def end_update(self) -> int | None:
        """Keep the averaged buffers, and seed the random numbers between two updates.

        Returns:
            On the first process the number of samples of the update, the weight of its logged values; 0 on the others.
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
        """Return whether the tree has collected gradients of earlier batches.

        They are no longer in ``parameter.grad`` then, until `finish` sets their sums.

        Args:
            part: The trained part.
        """
        return self._trees[part].has_gradients

    @override
    def require_no_gradients(self, part: Part) -> None:
        """Raise an error for gradients of this batch, which the tree would scale together with the trainer's.

        Args:
            part: The trained part.

        Raises:
            ConfigurationError: A step ran its own backward pass.
        """
        if part.has_gradients():
            raise own_backward_pass()

    @override
    @contextmanager
    def repeating(self, place: BatchPlace) -> Generator[None]:
        """Return a context that seeds the random numbers of a batch, and restores the buffers afterwards.

        Args:
            place: The place of the batch in the update.
        """
        for tree in self._trees.values():
            tree.save_buffers()
        self._seed(place.micro_batch or 0)
        yield
        for tree in self._trees.values():
            tree.restore_buffers()

    @override
    def batches_to_evaluate(self, loader: SizedIterable, batches: Iterable[Any], *, is_trial: bool) -> Iterator[Any]:
        """Iterate over the batches, each with random numbers from its position and with the same buffers.

        Args:
            loader: The loader, which makes its batches by position. It may be limited to its first batches if
                ``is_trial``.
            batches: The batches of this process, on the device.
            is_trial: Whether only the first batches are evaluated and nothing is recorded.

        Raises:
            ConfigurationError: The loader has its own order; or it is limited, and ``is_trial`` is False.
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
        """Return whether the last piece of this process is empty: it has no sample in the last step.

        Args:
            loader: The loader of the evaluation.
        """
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
