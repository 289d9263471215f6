"""Common decisions of all processes of a run: to stop, to save a training state, to be preempted."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from signal import Signals
from typing import Final, cast

import torch
from torch import Tensor
from typing_extensions import override

from pa_core._device_reads import copy_to_host, to_device
from pa_core.distributed.collectives import gather_objects, sum_over_processes, values_of_all
from pa_core.distributed.comparison import Describe, require_same
from pa_core.errors import NonFiniteLossError, StopTrainingError
from pa_core.tracking import StepMeans

NUM_FLAGS: Final = 6
"""The number of flags in ``RankSync.local_flags``."""

_UPDATES_UNTIL_READ = 2
"""Updates to wait on an accelerator before agreed flags are read, so that reading does not synchronise."""


@dataclass
class Request:
    """An action that any process may request, and that all of them then perform after the same update.

    Attributes:
        is_requested: Whether this process requests it.
        is_agreed: Whether all processes know about the request.
    """

    is_requested: bool = False
    is_agreed: bool = False

    def agree(self, num_requests: float) -> None:
        """Set whether any process requests it.

        Args:
            num_requests: The number of processes that request it, including this process.
        """
        if num_requests > 0:
            self.is_requested, self.is_agreed = False, True

    def clear(self) -> None:
        """Forget the request."""
        self.is_requested = self.is_agreed = False

    def pop(self) -> bool:
        """Return whether all processes do it now, and clear the request."""
        agreed, self.is_agreed = self.is_agreed, False
        return agreed


@dataclass
class PreemptionRequest(Request):
    """The request to save a training state and end.

    Attributes:
        cause: The reason of the first request of this process, and its signal; None if this process made no request.
    """

    cause: tuple[str, Signals | None] | None = None

    @override
    def clear(self) -> None:
        """Forget the request and its cause."""
        super().clear()
        self.cause = None

    def pop_cause(self) -> tuple[str, Signals | None]:
        """Return the cause of the lowest rank with a cause, and clear it; every process must call this."""
        of_each = gather_objects(self.cause)
        self.cause = None
        return next(filter(None, of_each), ("", None))


class LateReader:
    """Reads small tensors of an accelerator without waiting, a fixed number of calls later.

    All processes read the tensors of the same update, because each counts its own calls. On the CPU, tensors are read
    at once.

    Args:
        delay: The number of further calls after which a tensor is read. After two updates, the copy has arrived.

    Example:
        >>> import torch
        >>> reader = LateReader(delay=1)
        >>> [reader.read(torch.tensor([value])) for value in (1.0, 2.0, 3.0)]
        [None, [1.0], [2.0]]
    """

    def __init__(self, delay: int) -> None:
        self._delay = delay
        self._under_way: deque[tuple[Tensor, torch.Event | None]] = deque()

    def read(self, values: Tensor, *, at_once: bool = False) -> list[float] | None:
        """Queue the values of this call, and return the values of ``delay`` calls ago, or None.

        Args:
            values: A small tensor.
            at_once: Whether to wait for these values and return them, and drop pending values.
        """
        if at_once:
            self._under_way.clear()
        self._under_way.append((values, None) if values.is_cpu else copy_to_host(values))
        if len(self._under_way) <= self._delay and not at_once:
            return None
        on_host, copied = self._under_way.popleft()
        if copied is not None:
            copied.synchronize()
        return _to_list(on_host)


class RankSync:
    """Keeps the requests of the processes of a run, so that all of them act on a request at the same update.

    Before an update, the flags of all processes and their numbers of items are added up together with the gradients. If
    the processes exchange flags between updates, a digest of the values that must stay the same is sent with them.

    Args:
        device: The device of the run.
        num_processes: The number of processes; a single process acts on its own flags at once.
        describe: A function that returns the values that must stay the same on all processes.
        preempt: The request of the trainer for preemption, which may be older than the run; None for a new request.

    Attributes:
        stop: The error that ends the run, or None.
        save: The request for a training state.
        preempt: The request to save a training state and end.
        is_pending: Whether a save or a preemption may be due at the next safe point. True at first, because preemption
            may already have been requested.
        quiet: The names of events and hooks in which no process makes a request: ``together`` exchanges nothing after
            them. All processes have the same names, because ``add_up`` agrees on them.
        num_written: The number of the last training state that this process, the first, has written completely; 0 on
            the others. The thread that writes may set it with ``record_written``.
        num_durable: The same number, once all processes know it.
        reader: Reads the flags of each update.

    Example:
        >>> import torch
        >>> rank_sync = RankSync(torch.device("cpu"), num_processes=1)
        >>> rank_sync.request_save()
        >>> rank_sync.local_flags(items=12.0)  # stop, a loss that is not finite, save, preempt, written states, items
        [False, False, True, False, 0, 12.0]
        >>> rank_sync.act_on(torch.tensor(rank_sync.local_flags(items=12.0)), at_once=False)
        tensor(12.)
        >>> rank_sync.pop_requests()
        (True, False)
    """

    def __init__(
        self,
        device: torch.device,
        num_processes: int,
        describe: Describe = dict,
        preempt: PreemptionRequest | None = None,
    ) -> None:
        self._device = device
        self._num_processes = num_processes
        self._describe = describe
        self.stop: StopTrainingError | None = None
        self.save: Request = Request()
        self.preempt: PreemptionRequest = preempt or PreemptionRequest()
        self.is_pending: bool = True
        self.quiet: set[str] = set()
        self.num_written: int = 0
        self.num_durable: float = 0
        self.reader: LateReader = LateReader(delay=0 if device.type == "cpu" else _UPDATES_UNTIL_READ)

    def local_flags(self, items: float) -> list[float]:
        """Return the flags of this process for an update.

        Args:
            items: The items of this process in the update.
        """
        return [
            self.stop is not None,
            _is_not_finite(self.stop),
            self.save.is_requested,
            self.preempt.is_requested,
            self.num_written,
            items,
        ]

    def request_save(self) -> None:
        """Request that all processes save a training state after the same update."""
        self.save.is_requested = self.is_pending = True

    def request_preemption(self, reason: str = "", signal: Signals | None = None) -> None:
        """Request that all processes save a training state after the same update, and end.

        Args:
            reason: The reason; only the reason of the first request counts.
            signal: The signal that is the reason, or None.
        """
        if self.preempt.cause is None:
            self.preempt.cause = (reason, signal)
        self.preempt.is_requested = self.is_pending = True

    def record_written(self, number: int) -> None:
        """Record that a training state is written completely; all processes know after one of the next updates.

        Args:
            number: The number of the state in the run, from 1.
        """
        self.num_written = number
        self.is_pending = True

    def pop_requests(self) -> tuple[bool, bool]:
        """Return whether all processes save a state now, and whether they are preempted; then clear the requests."""
        self.is_pending = False
        if self._num_processes == 1:
            self.num_durable = self.num_written
            self.save.agree(self.save.is_requested)
            self.preempt.agree(self.preempt.is_requested)
        return self.save.pop(), self.preempt.pop()

    def record_stop(self, error: StopTrainingError) -> None:
        """Record a request to end the run: the first error, unless a later error is a loss that is not finite.

        Args:
            error: The reason for the request.
        """
        if self.stop is None or (_is_not_finite(error) and not _is_not_finite(self.stop)):
            self.stop = error

    def stop_if_alone(self) -> None:
        """Stop if this is the only process; several processes exchange the request with the next update.

        Raises:
            StopTrainingError: The only process of the run requested a stop.
        """
        if self._num_processes == 1 and self.stop is not None:
            raise self.stop

    def request_stop(self, error: StopTrainingError) -> None:
        """Stop at once if this is the only process; otherwise, take part in the current step until all processes know.

        Args:
            error: The reason for the request.

        Raises:
            StopTrainingError: This is the only process.
        """
        self.record_stop(error)
        del error  # its traceback refers to this frame, too
        self.stop_if_alone()

    @contextmanager
    def together(self, describe: Describe | None = None, place: str = "") -> Generator[None]:
        """Raise the ``StopTrainingError`` of any process within the context on all processes.

        If the place is in ``quiet``, processes exchange nothing. A request that a process makes there nevertheless is
        kept for the next exchange.

        Args:
            describe: A function that returns the values that must be the same when the context ends; None for the
                values of the whole run.
            place: The name of the event or hook that is called within the context.

        Raises:
            RanksDifferError: The values differ.
            StopTrainingError: A process requested a stop, within the context or earlier.
        """
        try:
            yield
        except StopTrainingError as error:
            self.request_stop(error)
        if self._num_processes > 1 and place not in self.quiet:
            self._apply(_to_list(self._sums(self._own_flags(), describe or self._describe)))
        self.stop_if_alone()

    def act_on(self, sums: Tensor, *, at_once: bool, may_stop: bool = True) -> Tensor:
        """Act on the requests of the processes, and return the items of all of them; every process must call this.

        On an accelerator the flags are read two updates later, so that reading does not block.

        Args:
            sums: The sums of ``local_flags`` over all processes, exchanged with the gradients of the update.
            at_once: Whether to wait for the flags. The first update of an epoch must not be made if a process requested
                a stop when the epoch started.
            may_stop: Whether this update may act on a stop. Pass False for further optimizers of an update whose first
                optimizer was stepped; the requests are then left to the next update.

        Returns:
            The number of items, a tensor on the device.

        Raises:
            StopTrainingError: A process requested a stop.
        """
        if may_stop:
            flags = self.reader.read(sums, at_once=at_once)
            if flags is not None:
                self._apply(flags)
        return sums[-1]

    def agree_on_preemption(self) -> None:
        """Exchange now whether a process requested preemption; every process must call this.

        Other requests of a process wait for the next update.
        """
        requests = (
            self.preempt.is_requested if self._num_processes == 1 else sum_over_processes(self._own_flags())[3].item()
        )
        self._agree(0.0, requests)

    def add_up(self, means: StepMeans, missing: float, requests: Mapping[str, bool]) -> float:
        """Add up the means of an epoch over all processes; every process must call this.

        It takes one exchange, and two more if values were logged.

        Args:
            means: The means of the epoch.
            missing: A number of this process.
            requests: The names of events and hooks to come, with whether this process may make a request in them. On
                all processes, the names in which none of them may are in ``quiet`` afterwards, and the others are not.

        Returns:
            The sum of ``missing``.

        Raises:
            RanksDifferError: Values that must stay the same on all processes differ.
            StopTrainingError: A process requested a stop.
        """
        if self._num_processes == 1:
            return missing
        totals = means.losses.totals().to(self._device)
        numbers = [*self.local_flags(items=0.0), *requests.values(), len(means), missing]
        sums = self._sums(torch.cat((totals, to_device(numbers, totals.dtype, self._device))), self._describe)
        means.losses.load_totals(sums[: len(totals)])
        *flags, num_logged, all_missing = _to_list(sums[len(totals) :])
        self._apply(flags)
        self.quiet -= requests.keys()
        self.quiet |= {name for name, number in zip(requests, flags[NUM_FLAGS:], strict=True) if number == 0}
        if num_logged > 0:
            means.load_totals(gather_objects(means.totals()))
        return all_missing

    def raise_non_finite_loss(self) -> None:
        """Raise the error that ended the run if a loss was not finite, and always drop it.

        Its traceback refers to the batch and the graph of the last step, which would stay in memory.

        Raises:
            NonFiniteLossError: A loss was not finite.
        """
        stop, self.stop = self.stop, None
        try:
            if isinstance(stop, NonFiniteLossError):
                raise stop
        finally:
            del stop  # the traceback refers to this frame, too

    def _sums(self, values: Tensor, describe: Describe) -> Tensor:
        """Add up values over all processes, and compare a digest of the values that must be the same."""
        exchanged: list[Tensor] = []

        def exchange(digest: list[int]) -> list[list[float]]:
            of_each = values_of_all(torch.cat((values, to_device(digest, values.dtype, self._device)))).cpu()
            exchanged.append(of_each[:, : len(values)])
            return [_to_list(row) for row in of_each[:, len(values) :]]

        require_same(describe, exchange)
        return exchanged[0].sum(0)

    def _own_flags(self) -> Tensor:
        return to_device(self.local_flags(items=0.0), torch.float32, self._device)

    def _agree(self, save: float, preempt: float) -> None:
        self.save.agree(save)
        self.preempt.agree(preempt)
        self.is_pending |= save + preempt > 0

    def _apply(self, flags: list[float]) -> None:
        """Act on the flags of all processes."""
        stop, not_finite, save, preempt, written, *_ = flags
        self._agree(save, preempt)
        if written > self.num_durable:
            self.num_durable, self.is_pending = written, True
        if stop > 0:
            own = None if self.stop is None else (_is_not_finite(self.stop), _reason(self.stop))
            raise _agreed_stop(self.stop, gather_objects(own), not_finite=not_finite > 0)


def _to_list(values: Tensor) -> list[float]:
    return cast("list[float]", values.tolist())  # pyright: ignore[reportUnknownMemberType]  # not annotated by torch


def _is_not_finite(stop: StopTrainingError | None) -> bool:
    return isinstance(stop, NonFiniteLossError)


def _reason(stop: StopTrainingError) -> str:
    """Return the text of an error on one line."""
    if isinstance(stop, NonFiniteLossError):
        return f"{stop.problem} ({stop.given})"
    return (str(stop) or type(stop).__name__).splitlines()[0]


def _agreed_stop(
    own: StopTrainingError | None, of_each: Sequence[tuple[bool, str] | None], *, not_finite: bool
) -> StopTrainingError:
    """Return the error that ends the run here; a loss that is not finite has precedence."""
    if own is not None and (_is_not_finite(own) or not not_finite):
        return own
    requests = (
        (rank, request[1]) for rank, request in enumerate(of_each) if request is not None and request[0] is not_finite
    )
    rank, reason = next(requests)
    if not_finite:
        return NonFiniteLossError("A loss on another process is not finite.", given=f"on rank {rank}: {reason}")
    return StopTrainingError(f"Rank {rank} requested a stop: {reason}")
