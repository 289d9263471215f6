"""The exchange of gradients between processes, which turns their batches into a common update.

`Exchange` is the protocol, which you can implement for another communication library. There are three implementations:
`Alone` for one process, `Averaged` for several, and `Tree` for runs that are bit-for-bit identical on any number of
processes. A trainer or a run gets its exchange from ``create_exchange``; override this method to return your own
exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, Protocol, TypeAlias, cast

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
"""The number of updates that are compared; most steps that depend on all weights are detected in the second update."""

_AFTER_UPDATE: Final = -1
_EVALUATION: Final = -2
_AFTER_EVALUATION: Final = -3
"""The last part of the key of random numbers, in place of the index of a micro-batch."""


class Exchange(Protocol):
    """The protocol of gradient exchanges, which combine the gradients of all processes into a common update.

    Implement it to exchange gradients with another communication library, or in another way. Override
    ``create_exchange`` of your trainer or ``Run`` to return an instance. Each trainer or run has a single exchange,
    which it uses for all of its runs. You never call the methods yourself: a training run calls them in this order, on
    every process::

        add                         for each part, after all modules are placed on the device
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

    An *update* is a step of the optimizers, with the gradients of one or more batches. A *part* is a set of modules
    that the same optimizers train: a trainer has a single part, and a ``Run`` with several optimizers has a part for
    each.

    Every process calls these methods the same number of times, even a process that has no sample in a batch, so the
    methods may communicate with the other processes. The remaining methods, for example `holds_gradients`, answer
    questions. They are called between these calls, and must not communicate. An error that a method raises ends the
    run.

    Derive from `Alone`, whose methods do nothing, and override the methods that you need. For several processes, you
    need at least `finish`, which replaces each gradient with its mean over the processes and adds up the flags, and the
    ``num_averaged`` attribute. To change a detail of the default exchange on several processes, derive from `Averaged`.

    Example:
        >>> import torch
        >>> from pa_core import Trainer, gather_objects
        >>> from pa_core.engine.exchange import Alone
        >>> from pa_core.testing import make_regression
        >>> class Pickled(Alone):  # short and slow: gradients are sent as Python objects
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
        """The number of processes that gradients are averaged over; 1 if they are summed or not exchanged.

        A trainer or run reads this constant once, when it creates its parts. It multiplies each loss so that the mean
        of the gradients over this number of processes is the gradient of the mean loss over all samples of the update.
        Return the number of processes, for example 8, if `finish` divides by that number, and 1 if `finish` only adds
        gradients up.
        """
        ...

    @property
    def is_exact(self) -> bool:
        """Whether weights are bit-for-bit identical on any number of processes, a constant.

        A trainer or run with ``reproducible="any_processes"`` requires True, and raises
        ``UnsupportedConfigurationError`` otherwise. With True, each update is divided by position into the same
        micro-batches (batches that one process computes at a time) on any number of processes. The exchange then has to
        add up their gradients in a fixed order, and has to implement `repeating`. An exchange that averages returns
        False.
        """
        ...

    @property
    def shares_buffers(self) -> bool:
        """Whether all processes use the same model buffers, for example the running statistics of batch norm.

        If this constant is True, `start_batch` or `finish` has to make the buffers equal, and evaluations, predictions
        and training states use the buffers of the first process. If False, each process keeps its own buffers, and
        training states save the buffers of each process.
        """
        ...

    def add(self, part: Part, called: Mapping[str, nn.Module], *, overlaps: bool) -> None:
        """Begin to exchange the gradients of a part.

        Called once for each part in each training run, on every process, after all modules were placed on the device
        and before the first epoch. Create communication buffers or register hooks here, and remove them in `close`. In
        a later run the method is called again with the same part. It may communicate.

        Args:
            part: The modules to train and their optimizers. ``part.modules`` (a dictionary by name) are on the device
                of the run, and stay the same until `close`. ``part.parameters()`` yields the parameters of the
                optimizers. Leave out parameters for which ``part.is_plain(parameter)`` is False, because
                ``fully_shard`` exchanges their gradients itself.
            called: All modules that the steps of the run call, by name: the modules of the part, and modules that no
                optimizer trains. Exchanges that synchronize buffers need these modules.
            overlaps: Whether each batch has a single backward pass, so that a gradient is complete as soon as autograd
                has computed it and may be sent during the pass. False if a script calls ``backward`` itself, because a
                parameter may then get gradients from several passes. It is always False in a ``Run``.

        Example:
            >>> from pa_core.engine.exchange import Alone
            >>> class SendInHooks(Alone):
            ...     handles = []
            ...     def add(self, part, called, *, overlaps):
            ...         for parameter in part.parameters():
            ...             if parameter.requires_grad and part.is_plain(parameter):
            ...                 self.handles.append(parameter.register_post_accumulate_grad_hook(self.send))
            ...     def close(self):
            ...         while self.handles:
            ...             self.handles.pop().remove()
            ...     def send(self, parameter):
            ...         ...  # begin to send parameter.grad
        """
        ...

    def close(self) -> None:
        """Remove all hooks from modules and forget all parts, because the run has ended.

        Called once at the end of each run, even after an exception, and in runs without training, in which `add` was
        not called. Do not communicate here: after an exception, other processes may not call this method. The exchange
        must stay usable, because the next run of the trainer calls `add` again.
        """
        ...

    def start_epoch(self, models: Callable[[], Mapping[str, nn.Module]]) -> None:
        """Begin the training of an epoch, and forget the gradients of an unfinished update.

        Called on every process after the callbacks' ``on_train_epoch_start``, before the first batch. Callbacks may
        have added layers or buffers there, so an exchange that keeps lists of parameters or buffers has to make new
        lists here.

        Args:
            models: Returns all models of the run, by name; call it if you need their parameters or buffers.

        Example:
            >>> from pa_core.engine.exchange import Alone
            >>> class KnowBuffers(Alone):
            ...     def start_epoch(self, models):
            ...         self.buffers = [buffer for model in models().values() for buffer in model.buffers()]
            ...     def end_epoch(self):
            ...         self.buffers = []
        """
        ...

    def end_epoch(self) -> None:
        """End the training of an epoch.

        Called on every process after the last update of the epoch, before its mean loss is recorded and before its
        evaluation. Release memory that only training needs, and forget an update that was not finished.
        """
        ...

    def start_batch(self, place: BatchPlace) -> None:
        """Begin a batch of an update, before its forward pass.

        Called on every process for each batch. In the first batch of an update (``place.starts_group``), an exchange
        whose `shares_buffers` is True can send the buffers of the first process to the others.

        Args:
            place: The place of the batch in its update. If ``place.is_empty``, this process has no sample in the batch,
                but still calls this method and must take part in the communication.

        Example:
            >>> import torch.distributed as dist
            >>> from pa_core.engine.exchange import Alone
            >>> class ShareBuffers(Alone):
            ...     def start_epoch(self, models):
            ...         self.buffers = [buffer for model in models().values() for buffer in model.buffers()]
            ...     def start_batch(self, place):
            ...         if place.starts_group:
            ...             for buffer in self.buffers:
            ...                 dist.broadcast(buffer, src=0)
        """
        ...

    def start_last_pass(self, part: Part, *, overlaps: bool) -> None:
        """Prepare for the backward pass of the last batch of an update, during which gradients may be sent.

        A trainer calls this once for each update, on every process, after the forward pass of the last batch. A ``Run``
        calls it before each backward pass of the last batch, so a further call for the same part before `finish` must
        have no effect. The backward passes of this process follow, if it has any, and then `finish`, which has to send
        the gradients that were not sent by then.

        Args:
            part: The part whose gradients the pass computes.
            overlaps: Whether every process has a backward pass in this batch. If False, do not wait for other processes
                during the pass, because a process without a sample has no pass; send everything in `finish`.

        Example:
            >>> from pa_core.engine.exchange import Alone
            >>> class SendInHooks(Alone):  # the hooks read this attribute
            ...     sends = False
            ...     def start_last_pass(self, part, *, overlaps):
            ...         self.sends = overlaps
            ...     def end_update(self):
            ...         self.sends = False
        """
        ...

    def finish(self, part: Part, flags: Callable[[], Sequence[float]]) -> Tensor | None:
        """Replace the gradients of the part with their means over the processes, and add up the flags.

        Called on every process after the last backward pass of an update and before its optimizer step, once for each
        part that is stepped. Until then, ``parameter.grad`` is the sum over the batches of this process. On a process
        without a sample it may be None, which counts as zero. In fp16, gradients are still multiplied by the loss
        scale. This is the only method that an exchange for several processes has to implement.

        If `num_averaged` is 1, replace the gradients with their sums instead. When the method returns,
        ``parameter.grad`` must be the same on all processes, because the run clips it and steps the optimizer.

        Args:
            part: The trained part. ``part.parameters()`` yields its parameters; leave out parameters for which
                ``part.is_plain(parameter)`` is False.
            flags: Returns six numbers of this process; call it once. With these numbers, processes request a stop, a
                training state or a preemption from each other, learn which state is written, and exchange how many
                items (for example tokens) they had. Add up each number over the processes, in float32 or float64, for
                example in the same message as the gradients.

        Returns:
            The six sums, a tensor of shape ``(6,)`` on the device of the run. Return None only on a single process,
            which then acts on its own flags.

        Example:
            >>> import torch
            >>> import torch.distributed as dist
            >>> from pa_core.engine.exchange import Alone
            >>> class AllReduced(Alone):
            ...     def __init__(self):
            ...         self.num_averaged = dist.get_world_size()
            ...     def finish(self, part, flags):
            ...         for parameter in part.parameters():
            ...             if parameter.requires_grad and part.is_plain(parameter):
            ...                 if parameter.grad is None:
            ...                     parameter.grad = torch.zeros_like(parameter)
            ...                 dist.all_reduce(parameter.grad)
            ...                 parameter.grad /= self.num_averaged
            ...         sums = torch.tensor(flags(), dtype=torch.float32, device=parameter.device)
            ...         dist.all_reduce(sums)
            ...         return sums
        """
        ...

    def end_step(self, part: Part) -> None:
        """End the step of a part, in a run with several parts.

        Called on every process after the optimizer of the part was stepped and its gradients were used. A run with a
        single part calls only `end_update`. Backward passes of other parts may follow in the same update. They may also
        compute gradients of this part, and the exchange must not send these gradients.

        Args:
            part: The part that was stepped.

        Example:
            >>> from pa_core.engine.exchange import Alone
            >>> class SendInHooks(Alone):  # the hooks send gradients of these parts only
            ...     sent = set()
            ...     def start_last_pass(self, part, *, overlaps):
            ...         if overlaps:
            ...             self.sent.add(part)
            ...     def end_step(self, part):
            ...         self.sent.discard(part)
            ...     def end_update(self):
            ...         self.sent.clear()
        """
        ...

    def end_update(self) -> int | None:
        """End an update, after its steps and before the callbacks' ``on_optimizer_step_end``.

        Called on every process. It ends the update for all parts, even for parts without an `end_step` call. In fp16 it
        is also called if steps were skipped because gradients overflowed.

        Returns:
            A number of samples, which is the weight that values logged by this process in ``on_optimizer_step_end``
            have in the mean of the epoch. Most exchanges return None, which stands for the number of samples in the
            last batch of this process.
        """
        ...

    def drop_update(self) -> None:
        """Drop an update that is not made: forget its gradients, and send nothing.

        Called on every process if a process requested a stop, and if the script left the update. It is also called at
        the end of each training run, between two updates, where there is nothing to drop.
        """
        ...

    def average_each_pass(self, part: Part) -> None:
        """Exchange the gradients of each backward pass at its end, from now on until `close`.

        Called once after `add`, only for a trainer that overrides ``_run_train_epoch`` with its own loop. Such a loop
        does not call `start_batch`, `start_last_pass` and `finish`, so the exchange has to act in the backward pass
        itself, for example in hooks. Raise ``UnsupportedConfigurationError`` if your exchange cannot do so.

        Args:
            part: The trained part.

        Example:
            >>> from pa_core import UnsupportedConfigurationError
            >>> from pa_core.engine.exchange import Alone
            >>> class AveragedLate(Alone):
            ...     def average_each_pass(self, part):
            ...         raise UnsupportedConfigurationError("Do not override _run_train_epoch.")
        """
        ...

    def holds_gradients(self, part: Part) -> bool:
        """Return whether the exchange itself holds gradients of earlier batches of the update.

        Called before a step and, in the first updates of a run, around backward passes. If no ``parameter.grad`` is set
        and the result is False, the run concludes that the script has not called ``backward``, and raises an error.
        Answer for this process alone, without communication.

        Args:
            part: The trained part.

        Returns:
            True if gradients of the update were moved out of ``parameter.grad``. An exchange that leaves gradients
            there until `finish` returns False.

        Example:
            >>> from pa_core.engine.exchange import Alone
            >>> class Collected(Alone):
            ...     def __init__(self):
            ...         self.collected = {}  # the gradients of earlier batches, by their part
            ...     def holds_gradients(self, part):
            ...         return bool(self.collected.get(part))
            >>> Collected().holds_gradients(part=None)
            False
        """
        ...

    def require_no_gradients(self, part: Part) -> None:
        """Raise an error if a step has run its own backward pass, and the exchange cannot use its gradients.

        Called in the first updates of a trainer, after ``calculate_train_batch_loss`` and before the backward pass of
        the trainer. A new gradient at this point comes from a backward pass in ``calculate_train_batch_loss``. An
        exchange that adds up all gradients, no matter where they were computed, does nothing.

        Args:
            part: The trained part; call ``part.has_gradients()`` to find out whether a gradient is set.

        Raises:
            ConfigurationError: The step ran its own backward pass.

        Example:
            >>> from pa_core import ConfigurationError
            >>> from pa_core.engine.exchange import Alone
            >>> class Strict(Alone):
            ...     def require_no_gradients(self, part):
            ...         if part.has_gradients():
            ...             raise ConfigurationError("Do not call loss.backward() in a step.")
        """
        ...

    def repeating(self, place: BatchPlace) -> AbstractContextManager[None]:
        """Return a context in which a batch can be computed repeatedly, exactly as in its update.

        Called only if `is_exact` is True, before the first update of a run. The run computes the first batch several
        times, each time within a new context, to check that the step depends on nothing but its batch.

        Args:
            place: The place of the batch in its update; ``place.micro_batch`` is its index.

        Returns:
            A context manager. On entering, it seeds the random number generators for the batch; on leaving, it restores
            the buffers of the models.

        Example:
            >>> from contextlib import contextmanager
            >>> import torch
            >>> from pa_core.engine.exchange import Alone
            >>> class Exact(Alone):
            ...     is_exact = True
            ...     def start_epoch(self, models):
            ...         self.buffers = [buffer for model in models().values() for buffer in model.buffers()]
            ...     @contextmanager
            ...     def repeating(self, place):
            ...         before = [buffer.clone() for buffer in self.buffers]
            ...         torch.manual_seed(place.micro_batch or 0)
            ...         yield
            ...         for buffer, value in zip(self.buffers, before):
            ...             buffer.copy_(value)
        """
        ...

    def batches_to_evaluate(self, loader: SizedIterable, batches: Iterable[Any], *, is_trial: bool) -> Iterable[Any]:
        """Return the batches of an evaluation, in their order.

        Called once on every process for each evaluation of a set. The run evaluates each batch as soon as it is
        yielded, so a generator can act before and after each batch, for example to seed random numbers. Most exchanges
        return ``batches``. Do not communicate here, because processes may have different numbers of batches.

        Args:
            loader: The loader of the batches, for its length and for the positions of its samples.
            batches: The batches of this process, on the device; iterate over them once.
            is_trial: Whether only the first batches are evaluated and nothing is recorded, as ``sanity_eval_steps``
                does before training. The loader may then be limited to its first batches, even in a reproducible run.

        Returns:
            An iterable over the batches, which is iterated over once.

        Raises:
            ConfigurationError: `is_exact` is True, and the batches of this loader cannot be divided by position.

        Example:
            >>> import torch
            >>> from pa_core.engine.exchange import Alone
            >>> class Seeded(Alone):
            ...     def batches_to_evaluate(self, loader, batches, *, is_trial):
            ...         for step, batch in enumerate(batches):
            ...             torch.manual_seed(step)
            ...             yield batch
            >>> list(Seeded().batches_to_evaluate(None, ["first", "second"], is_trial=False))
            ['first', 'second']
        """
        ...

    def has_fewer_batches(self, loader: SizedIterable) -> bool:
        """Return whether this process has one batch fewer than other processes in an evaluation.

        Called after the last batch of this process. If True, the process takes part in the exchange of a preemption
        request in place of the missing batch; otherwise, the other processes would wait for it. Answer from the loader,
        without communication. Exchanges that do not divide batches themselves return False.

        Args:
            loader: The evaluation loader that `batches_to_evaluate` was called with.

        Example:
            >>> from pa_core.engine.exchange import Alone
            >>> class Divided(Alone):  # each process evaluates every other batch
            ...     def __init__(self, rank, num_processes):
            ...         self.rank, self.num_processes = rank, num_processes
            ...     def batches_to_evaluate(self, loader, batches, *, is_trial):
            ...         return list(batches)[self.rank :: self.num_processes]
            ...     def has_fewer_batches(self, loader):
            ...         return 0 < len(loader) % self.num_processes <= self.rank
            >>> Divided(rank=1, num_processes=2).has_fewer_batches(["first", "second", "third"])
            True
        """
        ...


class Alone:
    """The exchange of a single process, which exchanges nothing; the base class for your own exchanges.

    Trainers and runs on one process use it. For several processes, derive from it, override at least `finish`, and set
    ``num_averaged``. `Exchange` describes the order of the calls, and has an example for several processes. Derive from
    `Averaged` instead to change a detail of the default exchange.

    Attributes:
        num_averaged: The number of processes that gradients are averaged over: 1. Set it to the number of processes in
            a class that averages.
        is_exact: Whether weights are bit-for-bit identical on any number of processes: False, so that
            ``reproducible="any_processes"`` raises ``UnsupportedConfigurationError``.
        shares_buffers: Whether all processes use the same model buffers: True.

    Example:
        >>> import torch
        >>> from pa_core import Trainer
        >>> from pa_core.engine.exchange import Alone
        >>> from pa_core.testing import make_regression
        >>> class CountUpdates(Alone):
        ...     num_updates = 0
        ...     def end_update(self):
        ...         self.num_updates += 1
        >>> exchange = CountUpdates()
        >>> class CountingTrainer(Trainer):
        ...     def create_exchange(self):
        ...         return exchange
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = CountingTrainer(model, torch.nn.MSELoss(), optimizer, callbacks=[])
        >>> trainer.train(make_regression(16), num_epochs=1, per_device_batch_size=4)
        >>> exchange.num_updates
        4
    """

    num_averaged: int = 1
    is_exact: bool = False
    shares_buffers: bool = True

    def add(self, part: Part, called: Mapping[str, nn.Module], *, overlaps: bool) -> None:
        """Do nothing when a training run begins.

        The run calls this once for each part, after its modules were placed on the device. Override it to create
        communication buffers or to register hooks, and remove these in ``close``. See the example in `Exchange.add`.

        Args:
            part: The modules to train (``part.modules``), with their optimizers.
            called: All modules that the steps of the run call, by name, even modules that no optimizer trains.
            overlaps: Whether each batch has a single backward pass, so that gradients may be sent during the pass.
        """

    def close(self) -> None:
        """Do nothing at the end of a run.

        The run calls this once, even after an exception. Override it to remove the hooks that your ``add`` registered;
        do not communicate in it.
        """

    def start_epoch(self, models: Callable[[], Mapping[str, nn.Module]]) -> None:
        """Do nothing when the training of an epoch begins.

        The run calls this after the callbacks' ``on_train_epoch_start``. Override it if your exchange keeps lists of
        parameters or buffers, which callbacks may have changed there. See the example in `Exchange.start_epoch`.

        Args:
            models: Returns all models of the run, by name.
        """

    def end_epoch(self) -> None:
        """Do nothing when the training of an epoch ends.

        The run calls this after the last update of the epoch, before its evaluation. Override it to release resources
        of your ``start_epoch``.
        """

    def start_batch(self, place: BatchPlace) -> None:
        """Do nothing before the forward pass of a batch.

        The run calls this for each batch of an update, on every process. Override it, for example, to send the buffers
        of the first process to all others in the first batch of an update. See the example in `Exchange.start_batch`.

        Args:
            place: The place of the batch in its update: ``place.starts_group`` is True for its first batch, and
                ``place.is_empty`` if this process has no sample in it.
        """

    def start_last_pass(self, part: Part, *, overlaps: bool) -> None:
        """Do nothing before the backward pass of the last batch of an update.

        The run calls this after the forward pass of that batch. Override it to send gradients during the backward pass,
        for example from hooks. Without an override, ``finish`` sends all gradients after the pass. See the example in
        `Exchange.start_last_pass`.

        Args:
            part: The part whose gradients the pass computes.
            overlaps: Whether every process has a backward pass in this batch; if False, do not wait for other processes
                during the pass.
        """

    def finish(self, part: Part, flags: Callable[[], Sequence[float]]) -> Tensor | None:
        """Leave the gradients unchanged.

        The run calls this after the last backward pass of an update and before the optimizer step. Override it for
        several processes: replace ``parameter.grad`` of each of ``part.parameters()`` with its mean over the processes
        (None counts as zero), and add up the flags. See the example in `Exchange.finish`.

        Args:
            part: The trained part.
            flags: Not called here. It returns six numbers of this process, for example whether it requests a stop.

        Returns:
            None, because there are no other processes. An override returns the sums of the six flags over all
            processes, a tensor of shape ``(6,)`` on the device of the run.
        """
        return None

    def end_step(self, part: Part) -> None:
        """Do nothing after the optimizer step of one of several parts.

        A ``Run`` with several optimizers calls this after each step; other runs call only ``end_update``. Override it
        if your exchange sends gradients in hooks, which must ignore this part for the rest of the update. See the
        example in `Exchange.end_step`.

        Args:
            part: The part whose optimizer was stepped.
        """

    def end_update(self) -> int | None:
        """Do nothing after the optimizer steps of an update.

        The run calls this before the callbacks' ``on_optimizer_step_end``. Override it to count updates, or to prepare
        your exchange for the next update.

        Returns:
            None, so that values which are logged after the update are weighted by the number of samples in the last
            batch of this process. An override may return a different number.
        """
        return None

    def drop_update(self) -> None:
        """Do nothing if an update is not made, because a process requested a stop or the script left the update.

        The run calls this instead of ``end_update``, and once at the end of each training run. Override it to forget
        gradients that your exchange holds.
        """

    def average_each_pass(self, part: Part) -> None:
        """Do nothing for a trainer that overrides ``_run_train_epoch`` with its own loop.

        The trainer calls this once, after ``add``. Such a loop does not call ``finish``, so for several processes,
        override this method to average gradients at the end of each backward pass, for example in hooks, or to raise an
        error. See the example in `Exchange.average_each_pass`.

        Args:
            part: The trained part.
        """

    def holds_gradients(self, part: Part) -> bool:
        """Return False, because all gradients of the update are in ``parameter.grad``.

        The run calls this to find out whether a script has called ``backward``. Override it if your exchange moves
        gradients elsewhere before ``finish``. See the example in `Exchange.holds_gradients`.

        Args:
            part: The trained part.
        """
        return False

    def require_no_gradients(self, part: Part) -> None:
        """Do nothing, because gradients from a step's own backward pass are added to the update as well.

        A trainer calls this in its first updates, after ``calculate_train_batch_loss``. Override it to raise a
        ``ConfigurationError`` if ``part.has_gradients()`` and your exchange would lose or scale such gradients. See the
        example in `Exchange.require_no_gradients`.

        Args:
            part: The trained part.
        """

    def repeating(self, place: BatchPlace) -> AbstractContextManager[None]:
        """Return a context that does nothing.

        A run calls this only for an exchange whose ``is_exact`` is True, to compute its first batch several times. In
        such an exchange, override it to seed the random numbers on entering, and to restore the buffers of the models
        on leaving. See the example in `Exchange.repeating`.

        Args:
            place: The place of the batch in its update.
        """
        return nullcontext()

    def batches_to_evaluate(self, loader: SizedIterable, batches: Iterable[Any], *, is_trial: bool) -> Iterable[Any]:
        """Return the batches of an evaluation unchanged.

        The run calls this once for each evaluation, and evaluates each batch as soon as it is yielded. Override it with
        a generator to act before or after each batch; do not communicate in it, because processes may have different
        numbers of batches.

        Args:
            loader: The loader of the batches.
            batches: The batches of this process, on the device.
            is_trial: Whether only the first batches are evaluated and nothing is recorded, as ``sanity_eval_steps``
                does.

        Returns:
            The ``batches`` argument itself.

        Example:
            >>> from pa_core.engine.exchange import Alone
            >>> class CountEvaluated(Alone):
            ...     num_batches = 0
            ...     def batches_to_evaluate(self, loader, batches, *, is_trial):
            ...         for batch in batches:
            ...             self.num_batches += 1
            ...             yield batch
            >>> list(CountEvaluated().batches_to_evaluate(None, ["first", "second"], is_trial=False))
            ['first', 'second']
        """
        return batches

    def has_fewer_batches(self, loader: SizedIterable) -> bool:
        """Return False, because all processes have the same number of batches in an evaluation.

        The run calls this after the last batch of this process. Override it only if your exchange divides batches
        itself. See the example in `Exchange.has_fewer_batches`.

        Args:
            loader: The evaluation loader.
        """
        return False


_BufferPlaces: TypeAlias = list[tuple[dict[str, Tensor | None], str]]


def _find_buffer_places(modules: Iterable[nn.Module]) -> _BufferPlaces:
    """Return the places of buffers in modules, in which a forward pass may put other tensors."""
    parts = dict.fromkeys(part for module in modules for part in module.modules())
    held: list[dict[str, Tensor | None]] = [vars(part)[BUFFERS] for part in parts]
    return [(buffers, name) for buffers in held for name in buffers]


def _buffers_at(places: _BufferPlaces) -> list[Tensor]:
    """Return the current buffers, each tensor once."""
    there = (buffers.get(name) for buffers, name in places)
    return list({id(buffer): buffer for buffer in there if buffer is not None}.values())


class Averaged(Alone):
    """The default exchange for several processes; it averages gradients during the last backward pass of each update.

    Trainers and runs on several processes use it unless they are ``reproducible="any_processes"``. Gradients are sent
    in buckets while autograd still computes others, together with the flags that processes use to agree on stops. All
    processes begin each update with the buffers of the first process, for example the statistics of batch norm, unless
    accelerate's ``DistributedDataParallelKwargs(broadcast_buffers=False)`` turns this off. Derive from it, and return
    an instance from ``create_exchange``, to change a detail; derive from `Alone` for another communication library.

    Args:
        accelerator: The accelerator of the trainer. Its ``DistributedDataParallelKwargs`` set the size of messages
            (``bucket_cap_mb``; 25 MiB by default) and the dtype in which gradients are sent (``comm_hook``; by default
            the dtype of the gradients).

    Attributes:
        num_averaged: The number of processes.
        is_exact: False, because rounding depends on the number of processes.
        shares_buffers: Whether the buffers of the first process are sent to the others; True by default.

    Example:
        >>> from accelerate import Accelerator
        >>> from pa_core import Trainer
        >>> from pa_core.engine.exchange import Averaged
        >>> class CountBatches(Averaged):
        ...     num_batches = 0
        ...     def start_batch(self, place):
        ...         super().start_batch(place)
        ...         self.num_batches += 1
        >>> class CountingTrainer(Trainer):
        ...     def create_exchange(self):
        ...         return CountBatches(Accelerator())
        >>> exchange = CountBatches(Accelerator())
        >>> exchange.num_averaged, exchange.is_exact  # on a single process
        (1, False)
    """

    def __init__(self, accelerator: _accelerate.AcceleratorLike) -> None:
        self.num_averaged: int = accelerator.num_processes
        self.shares_buffers: bool = _accelerate.broadcasts_buffers(accelerator)
        self._accelerator = accelerator
        self._exchanges: dict[Part, GradientExchange] = {}
        self._num_compared: dict[Part, int] = {}
        self._buffers: _BufferPlaces = []

    @override
    def add(self, part: Part, called: Mapping[str, nn.Module], *, overlaps: bool) -> None:
        """Begin to average the gradients of a part, unless ``fully_shard`` averages them.

        The run calls this once for each part, before its first epoch. It registers hooks on the parameters, which
        ``close`` removes. If you override it, call ``super().add(...)``.

        Args:
            part: The modules to train, with their optimizers.
            called: Not used, because only trained modules have gradients.
            overlaps: Not used, because ``start_last_pass`` is passed the value for each update.
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
        """Remove all hooks from modules, and forget all parts.

        The run calls this at its end, even after an exception. The exchange can be used for another run afterwards. An
        override has to call ``super().close()``.
        """
        for exchange in self._exchanges.values():
            exchange.close()
        self._exchanges, self._num_compared, self._buffers = {}, {}, []

    @override
    def start_epoch(self, models: Callable[[], Mapping[str, nn.Module]]) -> None:
        """Forget an unfinished update, and find the buffers of the models again.

        The run calls this before the first batch of each epoch, after the callbacks' ``on_train_epoch_start``, which
        may have added layers. Buffers are found only if ``shares_buffers`` is True. An override has to call
        ``super().start_epoch(...)``.

        Args:
            models: Returns all models of the run, by name.
        """
        for exchange in self._exchanges.values():
            exchange.end_update()
        self._buffers = _find_buffer_places(models().values()) if self.shares_buffers else []

    @override
    def end_epoch(self) -> None:
        """Stop sharing buffers until the next epoch.

        The run calls this after the last update of an epoch, before its evaluation. An override has to call
        ``super().end_epoch()``.
        """
        self._buffers = []

    @override
    def start_batch(self, place: BatchPlace) -> None:
        """Copy the buffers of the first process to all others in the first batch of each update.

        The run calls this on every process before each forward pass. Nothing is sent in other batches, or if
        ``shares_buffers`` is False. An override has to call ``super().start_batch(...)``.

        Args:
            place: The place of the batch in its update; only ``place.starts_group`` is used.
        """
        if place.starts_group and self._buffers:
            broadcast_tensors(_buffers_at(self._buffers))

    @override
    def start_last_pass(self, part: Part, *, overlaps: bool) -> None:
        """Begin to send gradients as soon as the backward pass computes them.

        The run calls this after the forward pass of the last batch of an update. A second call before ``finish`` has no
        effect. An override has to call ``super().start_last_pass(...)``.

        Args:
            part: The part whose gradients the pass computes.
            overlaps: Whether every process has a backward pass in this batch. If False, nothing is sent during the
                pass, and ``finish`` sends everything.
        """
        self._exchanges[part].open(overlaps=overlaps)

    @override
    def finish(self, part: Part, flags: Callable[[], Sequence[float]]) -> Tensor | None:
        """Send the remaining gradients, wait for the means, and set the means as ``parameter.grad``.

        The run calls this on every process after the last backward pass of an update and before the optimizer step. The
        first updates also compare weights or optimizer settings between the processes. An override has to call
        ``super().finish(...)``.

        Args:
            part: The trained part.
            flags: Returns six numbers of this process: whether it requests a stop, has a loss that is not finite,
                requests a training state, or is preempted, the last state that it has written, and its number of items.
                It is called once.

        Returns:
            The sums of these numbers over all processes, a tensor of shape ``(6,)`` on the device.

        Raises:
            RanksDifferError: In the first updates of a sharded model, the processes have different optimizer settings,
                for example learning rates.
            UnsupportedConfigurationError: The processes have different weights before the first update, because a step
                updates a module itself.
        """
        exchange = self._exchanges[part]
        sums = exchange.finish(flags())
        if self._num_compared[part] <= _NUM_COMPARED:  # afterwards, because gradients may still be being sent
            self._compare(part, exchange)
        return sums

    @override
    def end_step(self, part: Part) -> None:
        """Stop exchanging the gradients of a part until the next update.

        A ``Run`` with several optimizers calls this after each optimizer step, because backward passes of other parts
        may follow. An override has to call ``super().end_step(...)``.

        Args:
            part: The part whose optimizer was stepped.
        """
        self._exchanges[part].end_update()

    @override
    def drop_update(self) -> None:
        """Drop an update that is not made, and stop exchanging gradients until the next update.

        The run calls this on every process if a process requested a stop or the script left the update. The gradients
        of the dropped update are not sent. An override has to call ``super().drop_update()``.
        """
        for exchange in self._exchanges.values():
            exchange.end_update()

    @override
    def end_update(self) -> int | None:
        """Stop exchanging the gradients of all parts until the next update.

        The run calls this after the optimizer steps, before the callbacks' ``on_optimizer_step_end``. An override has
        to call ``super().end_update()``.

        Returns:
            None, so that values which are logged after the update are weighted by the number of samples in the last
            batch of this process.
        """
        for exchange in self._exchanges.values():
            exchange.end_update()
        return None

    @override
    def average_each_pass(self, part: Part) -> None:
        """Average gradients at the end of each backward pass from now on, until ``close``.

        A trainer calls this once after ``add`` if it overrides ``_run_train_epoch`` with its own loop, which does not
        call ``finish``. Every process then has to run the same number of backward passes. An override has to call
        ``super().average_each_pass(...)``.

        Args:
            part: The trained part.
        """
        self._exchanges[part].average_each_pass()

    def _compare(self, part: Part, exchange: GradientExchange) -> None:
        """Compare weights before the first update and, for shards, optimizer settings after the first updates."""
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
    """The exchange for reproducible runs; it sums gradients in a fixed order, no matter which process computed them.

    Runs with ``reproducible="any_processes"`` use it, so that their weights are bit-for-bit identical on any number of
    processes. Each update is divided by position into micro-batches, the batches that a process computes at a time, and
    their gradients are added up in a fixed binary tree. Each micro-batch has its own random numbers, and begins with
    the buffers from before the update. `Averaged` is faster, and is right for all other runs.

    You need not create or call it yourself. Derive from it only to observe or change a detail of reproducible runs, and
    return an instance from ``create_exchange`` of your trainer. Each method that you override has to call the method of
    this class with ``super()``, because the fixed order depends on it.

    Args:
        accelerator: The accelerator of the trainer, for the device and the rank.
        place: Returns the seed of the run and the number of its completed updates; random numbers depend on both.

    Attributes:
        num_averaged: 1, because gradients are summed and not averaged.
        is_exact: True.
        shares_buffers: True.

    Example:
        >>> from accelerate import Accelerator
        >>> from pa_core import Trainer
        >>> from pa_core.engine.exchange import Tree
        >>> class CountUpdates(Tree):
        ...     num_updates = 0
        ...     def end_update(self):
        ...         self.num_updates += 1
        ...         return super().end_update()
        >>> exchange = CountUpdates(Accelerator(), lambda: (0, 0))
        >>> exchange.num_averaged, exchange.is_exact
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

        The run calls this once for each part, before its first epoch. It registers hooks, which ``close`` removes. An
        override has to call ``super().add(...)``.

        Args:
            part: The modules to train, with their optimizers.
            called: The modules whose buffers are averaged over the micro-batches of an update, by name.
            overlaps: Whether gradients may be sent during the backward pass, because each batch has a single pass.
        """
        self._trees[part] = GradientTree(part.modules.values(), 0 if self._is_alone else NUM_FLAGS, called=called)
        self._overlaps = overlaps

    @override
    def close(self) -> None:
        """Remove all hooks from modules, and forget all parts.

        The run calls this at its end, even after an exception. The exchange can be used for another run afterwards. An
        override has to call ``super().close()``.
        """
        for tree in self._trees.values():
            tree.close()
        self._trees = {}

    @override
    def start_epoch(self, models: Callable[[], Mapping[str, nn.Module]]) -> None:
        """Find the parameters and buffers again, and forget an unfinished update.

        The run calls this before the first batch of each epoch, after the callbacks' ``on_train_epoch_start``, which
        may have added layers. An override has to call ``super().start_epoch(...)``.

        Args:
            models: Not used, because ``add`` was passed the modules.
        """
        for tree in self._trees.values():
            tree.find()
            tree.end_update()

    @override
    def end_epoch(self) -> None:
        """Drop an unfinished update, and restore the buffers from before it.

        The run calls this after the last update of an epoch, before its evaluation. An override has to call
        ``super().end_epoch()``.
        """
        self.drop_update()

    @override
    def start_batch(self, place: BatchPlace) -> None:
        """Collect the gradients of the previous batch, seed the random numbers of this batch, and restore the buffers.

        The run calls this on every process before each forward pass. An override has to call
        ``super().start_batch(...)``.

        Args:
            place: The place of the batch in its update. The seed and the order of the sum depend on
                ``place.micro_batch``, the index of the batch in the update. It is None on a process without a sample in
                this step, where nothing is seeded.
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
        """Set the sums of the gradients as ``parameter.grad``, and the means of the buffers over the micro-batches.

        The run calls this on every process after the last backward pass of an update and before the optimizer step. An
        override has to call ``super().finish(...)``.

        Args:
            part: The trained part.
            flags: Returns six numbers of this process: whether it requests a stop, has a loss that is not finite,
                requests a training state, or is preempted, the last state that it has written, and its number of items.
                It is called once, or not at all on a single process.

        Returns:
            The sums of these numbers over all processes, a tensor of shape ``(6,)`` on the device; None on a single
            process.
        """
        self._end_batch()
        if self._is_alone:
            self._trees[part].finish(())
            return None
        return self._trees[part].finish(flags())

    @override
    def end_step(self, part: Part) -> None:
        """Keep the averaged buffers after the optimizer step of a part.

        A ``Run`` with several optimizers calls this after each optimizer step. An override has to call
        ``super().end_step(...)``.

        Args:
            part: The part whose optimizer was stepped.
        """
        self._trees[part].end_update()

    @override
    def end_update(self) -> int | None:
        """Keep the averaged buffers, and seed the random numbers that callbacks draw between two updates.

        The run calls this after the optimizer steps, before the callbacks' ``on_optimizer_step_end``. An override has
        to call ``super().end_update()``.

        Returns:
            The number of samples of the update on the first process, and 0 on the others, so that values that are
            logged after the update count once, no matter how many processes there are.
        """
        for tree in self._trees.values():
            tree.end_update()
        self._seed(_AFTER_UPDATE)
        return self._samples if self._rank == 0 else 0

    @override
    def drop_update(self) -> None:
        """Forget the collected gradients of an update that is not made, and restore the buffers from before it.

        The run calls this if a process requested a stop or the script left the update, and once at the end of each
        training run. An override has to call ``super().drop_update()``.
        """
        self._place_of_batch = None
        for tree in self._trees.values():
            tree.drop_update()

    @override
    def holds_gradients(self, part: Part) -> bool:
        """Return whether the tree has collected gradients of earlier batches of the update.

        The run calls this to find out whether a script has called ``backward``. Once collected, gradients are removed
        from ``parameter.grad``; ``finish`` writes their sums there. An override has to call
        ``super().holds_gradients(...)``.

        Args:
            part: The trained part.

        Returns:
            True if gradients of earlier batches of the update were collected and ``finish`` has not set their sums yet.
        """
        return self._trees[part].has_gradients

    @override
    def require_no_gradients(self, part: Part) -> None:
        """Raise an error if a step has run its own backward pass, whose gradients the tree would scale a second time.

        A trainer calls this in its first updates, after ``calculate_train_batch_loss`` and before its own backward
        pass. An override has to call ``super().require_no_gradients(...)``.

        Args:
            part: The trained part.

        Raises:
            ConfigurationError: A gradient is set, so the step has run its own backward pass. Return the loss instead.
        """
        if part.has_gradients():
            raise own_backward_pass()

    @override
    @contextmanager
    def repeating(self, place: BatchPlace) -> Generator[None]:
        """Return a context in which a batch can be computed again exactly as in its update.

        On entering, the context seeds the random number generators for the batch; on leaving, it restores the buffers
        of the modules. The run computes its first batch several times in such contexts, to check that the step depends
        on nothing but its batch. You need not call it yourself. An override has to call ``super().repeating(...)``.

        Args:
            place: The place of the batch in its update; the seed depends on ``place.micro_batch``, its index in the
                update.

        Returns:
            A context manager that yields None.
        """
        for tree in self._trees.values():
            tree.save_buffers()
        self._seed(place.micro_batch or 0)
        yield
        for tree in self._trees.values():
            tree.restore_buffers()

    @override
    def batches_to_evaluate(self, loader: SizedIterable, batches: Iterable[Any], *, is_trial: bool) -> Iterator[Any]:
        """Yield the batches of an evaluation so that the result of a batch does not depend on its process.

        Before each batch, the random number generators are seeded with the position of its first sample in the
        evaluation, and after each batch, the buffers of the modules are restored to their values at the start of the
        evaluation. So even a layer that draws random numbers or updates its buffers gives the same results on any
        number of processes. The run calls this once for each evaluation, and evaluates each batch as soon as it is
        yielded; you need not call it yourself. Override it to act before or after each batch, and call
        ``super().batches_to_evaluate(...)``.

        Args:
            loader: The loader of the batches. It has to be the loader that the run makes from a dataset without a
                custom sampler, because only such a loader says at which position each batch begins.
            batches: The batches of this process, on the device.
            is_trial: Whether only the first batches are evaluated and nothing is recorded, as ``sanity_eval_steps``
                does; the loader may then be limited to its first batches.

        Returns:
            An iterator over ``batches``, in their order.

        Raises:
            ConfigurationError: The loader is a custom loader or has its own sampler; or it is limited, and ``is_trial``
                is False.

        Example:
            >>> from pa_core.engine.exchange import Tree
            >>> class CountEvaluated(Tree):  # return an instance from create_exchange of a trainer
            ...     num_batches = 0
            ...     def batches_to_evaluate(self, loader, batches, *, is_trial):
            ...         for batch in super().batches_to_evaluate(loader, batches, is_trial=is_trial):
            ...             self.num_batches += 1
            ...             yield batch
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
        """Return whether this process has no sample in the last step of an evaluation, while others have samples.

        The run calls this after the last batch of this process. If the result is True, this process still takes part in
        the exchange of a preemption request that the other processes make in their last step. Samples are divided by
        position, so the last step may not have enough samples for all processes. An override has to call
        ``super().has_fewer_batches(...)``.

        Args:
            loader: The evaluation loader. For a custom loader, the result is False.

        Returns:
            Whether other processes have one batch more.
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
