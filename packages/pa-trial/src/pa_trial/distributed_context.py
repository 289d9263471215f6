"""The processes of a training as users see them: their ranks, and collectives for picklable values."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from pa_trial.errors import ConfigurationError, InternalException, UsageError
from pa_trial.rank_group import RankGroup, connect

_T = TypeVar("_T")

_NUMBERS = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")


class DistributedContext:
    """The ranks of the processes of a training, and collectives that exchange Python values between them.

    In a trial, use ``context.distributed``, which ``init`` creates. Exchange only small values that coordinate work,
    because values are pickled. For tensors during training, use torch's collectives. Create a context yourself only
    outside of a trial, or to pass it to ``init(distributed=...)``; `from_torch_distributed` reads the numbers that
    torchrun sets.

    All ranks must make the same calls in the same order. The ranks may be processes, or threads of a process, each with
    its own context. The first call that needs connections opens them. It uses torch's process group if the group has
    this size, or else the connections of torchrun. Only if there is neither, the chief (rank 0) listens on
    ``pub_port + port_offset``. Pass either all of the first six arguments or none of them; without them, this process
    is the only rank.

    Args:
        rank: The index of this process among all processes, from 0.
        size: The number of processes.
        local_rank: The index of this process on its machine, from 0.
        local_size: The number of processes on this machine.
        cross_rank: The index of this machine, from 0.
        cross_size: The number of machines.
        chief_ip: The address of the machine of rank 0; needed only if there are several machines.
        pub_port: The port on which the chief listens if the processes are not connected yet. The default is
            Determined's port.
        pull_port: Not used, because connected ranks exchange values over gloo, on any free ports.
        port_offset: A number that is added to the port, so that trainings on the same machine do not use the same port.
        force_tcp: Not used, as all connections are made by TCP.
        max_wait_seconds: The number of seconds that a rank waits for another rank in a call; the default is ten
            minutes, and None waits forever.

    Attributes:
        rank: As passed. ``size``, ``local_rank``, ``local_size``, ``cross_rank`` and ``cross_size`` are also
            attributes. If these arguments were not passed, the ranks are 0 and the sizes are 1.

    Raises:
        ConfigurationError: Some of the six numbers are missing, or they do not fit together.
        UsageError: There are several machines, but no ``chief_ip`` was passed.

    Example:
        >>> from pa_trial import DistributedContext
        >>> with DistributedContext() as distributed:  # a single process
        ...     distributed.rank, distributed.size, distributed.allgather("alone")
        (0, 1, ['alone'])
    """

    def __init__(
        self,
        *,
        rank: int | None = None,
        size: int | None = None,
        local_rank: int | None = None,
        local_size: int | None = None,
        cross_rank: int | None = None,
        cross_size: int | None = None,
        chief_ip: str | None = None,
        pub_port: int = 12360,
        pull_port: int = 12376,
        port_offset: int = 0,
        force_tcp: bool = False,
        max_wait_seconds: float | None = 600.0,
    ) -> None:
        given = (rank, size, local_rank, local_size, cross_rank, cross_size)
        numbers = _checked(dict(zip(_NUMBERS, given, strict=True)))
        self.rank: int = numbers["rank"]
        self.size: int = numbers["size"]
        self.local_rank: int = numbers["local_rank"]
        self.local_size: int = numbers["local_size"]
        self.cross_rank: int = numbers["cross_rank"]
        self.cross_size: int = numbers["cross_size"]
        if self.local_size != self.size and chief_ip is None:
            problem = f"The address of the chief is not known: size={size}, local_size={local_size}, and no chief_ip."
            raise UsageError(problem, do="Pass chief_ip, the address of the machine of rank 0, or set MASTER_ADDR.")
        self._chief_ip = "127.0.0.1" if self.cross_size == 1 or chief_ip is None else chief_ip
        self._port = pub_port + port_offset
        self._max_wait_seconds = max_wait_seconds
        self._groups: tuple[RankGroup, RankGroup] | None = None
        self._is_closed = False

    @classmethod
    def from_torch_distributed(cls, chief_ip: str | None = None, *, max_wait_seconds: float | None = 600.0) -> Self:
        """Return the context of a process that torchrun has started, or that has the variables that torchrun sets.

        ``init`` calls it by default, so call it only to exchange values outside of a trial, or to choose the maximum
        waiting time. Without ``RANK`` and ``WORLD_SIZE``, this process is the only rank. Without the variables for
        several machines, all processes are on this machine.

        Args:
            chief_ip: The address of the machine of rank 0. The default, None, reads it from ``DET_CHIEF_IP`` or else
                ``MASTER_ADDR``, which torchrun sets.
            max_wait_seconds: The number of seconds that a rank waits for another rank in a call; the default is ten
                minutes, and None waits forever.

        Returns:
            The context; use it in a ``with`` statement, or call ``close`` at the end.

        Raises:
            ConfigurationError: The variables do not fit together.
            UsageError: There are several machines, but the address of rank 0 is not known.

        Example:
            >>> from pa_trial import DistributedContext
            >>> with DistributedContext.from_torch_distributed() as distributed:  # here without torchrun
            ...     distributed.size
            1
        """
        numbers = _numbers_in_environment("LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
        return cls(**numbers, chief_ip=_chief_ip(chief_ip), max_wait_seconds=max_wait_seconds)

    @classmethod
    def from_deepspeed(cls, chief_ip: str | None = None) -> Self:
        """Return the context of a process that has the variables of DeepSpeed's launcher.

        Pass it to ``init(distributed=...)``. With torchrun and ``accelerate launch``, leave ``distributed`` out, or
        call `from_torch_distributed`. The variables are ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_SIZE``,
        ``CROSS_RANK`` and ``CROSS_SIZE``. Without ``RANK`` and ``WORLD_SIZE``, this process is the only rank.

        Args:
            chief_ip: The address of the machine of rank 0. The default, None, reads it from ``DET_CHIEF_IP`` or else
                ``MASTER_ADDR``.

        Returns:
            The context; use it in a ``with`` statement, or call ``close`` at the end.

        Raises:
            ConfigurationError: The variables do not fit together.
            UsageError: There are several machines, but the address of rank 0 is not known.

        Example:
            >>> import pa_trial
            >>> with pa_trial.init(distributed=pa_trial.DistributedContext.from_deepspeed()) as context:
            ...     context.distributed.size
            1
        """
        numbers = _numbers_in_environment("LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
        return cls(**numbers, chief_ip=_chief_ip(chief_ip))

    @classmethod
    def from_horovod(cls, hvd: Any, chief_ip: str | None = None) -> Self:
        """Return the context of a process that Horovod has started, to exchange Python values in a script for Horovod.

        Only ranks and sizes are read from Horovod. You cannot train with this context, because ``Trainer.fit``
        exchanges gradients only between processes that torchrun has started.

        Args:
            hvd: The ``horovod.torch`` module, after ``hvd.init()``.
            chief_ip: The address of the machine of rank 0. The default, None, reads it from ``DET_CHIEF_IP`` or else
                ``MASTER_ADDR``.

        Returns:
            The context; use it in a ``with`` statement, or call ``close`` at the end.

        Raises:
            UsageError: There are several machines, but the address of rank 0 is not known.

        Example::

            import horovod.torch as hvd
            from pa_trial import DistributedContext

            hvd.init()
            with DistributedContext.from_horovod(hvd) as distributed:
                print(distributed.allgather(hvd.rank()))
        """
        return cls(**{name: getattr(hvd, name)() for name in _NUMBERS}, chief_ip=_chief_ip(chief_ip))

    def get_rank(self) -> int:
        """Return the index of this process among all processes, from 0; it is 0 on the chief.

        The ``rank`` attribute is the same.
        """
        return self.rank

    def get_local_rank(self) -> int:
        """Return the index of this process on its machine, from 0. The ``local_rank`` attribute is the same."""
        return self.local_rank

    def get_size(self) -> int:
        """Return the number of processes of the training; 1 without a launcher. The ``size`` attribute is the same."""
        return self.size

    def get_num_agents(self) -> int:
        """Return the number of machines of the training; 1 without a launcher.

        Determined calls machines agents. The ``cross_size`` attribute is the same.
        """
        return self.cross_size

    def gather(self, stuff: _T) -> list[_T] | None:
        """Return the values of all ranks on the chief, and None on other ranks.

        Use it to log or write something about all processes. Every rank has to call it. `allgather` returns the values
        on all ranks.

        Args:
            stuff: A picklable value.

        Returns:
            On rank 0, a list with the value of each rank, in their order; None on other ranks.

        Raises:
            InternalException: The context is closed, or the chief cannot be reached.
            OtherProcessError: Another rank has failed, has left, or has not made the call in time.

        Example:
            >>> from pa_trial import DistributedContext
            >>> with DistributedContext() as distributed:
            ...     seconds = distributed.gather(0.5)
            ...     if distributed.rank == 0:
            ...         print(max(seconds))
            0.5
        """
        everything = self.allgather(stuff)
        return everything if self.rank == 0 else None

    def allgather(self, stuff: _T) -> list[_T]:
        """Return the values of all ranks on every rank.

        Use it if each process needs the values of the others. Every rank has to call it. `gather` returns the values
        only on the chief.

        Args:
            stuff: A picklable value.

        Returns:
            A list with the value of each rank, in their order.

        Raises:
            InternalException: The context is closed, or the chief cannot be reached.
            OtherProcessError: Another rank has failed, has left, or has not made the call in time.

        Example:
            >>> from pa_trial import DistributedContext
            >>> with DistributedContext() as distributed:  # with torchrun, a value of each process
            ...     distributed.allgather({"rank": distributed.rank})
            [{'rank': 0}]
        """
        return self._allgather(stuff, self.size, of_machine=False)

    def broadcast(self, stuff: _T) -> _T:
        """Return the chief's value on all ranks.

        Use it for a decision that all ranks have to share, such as the name of a run. Every rank has to call it.

        Args:
            stuff: A picklable value; only the value of rank 0 is used.

        Returns:
            The value of rank 0.

        Raises:
            InternalException: The context is closed, or the chief cannot be reached.
            OtherProcessError: Another rank has failed, has left, or has not made the call in time.

        Example:
            >>> from pa_trial import DistributedContext
            >>> with DistributedContext() as distributed:
            ...     distributed.broadcast("20261129-run" if distributed.rank == 0 else None)
            '20261129-run'
        """
        return cast("_T", self.allgather(stuff if self.rank == 0 else None)[0])

    def gather_local(self, stuff: _T) -> list[_T] | None:
        """Return the values of all ranks of this machine on the first of them, and None on its other ranks.

        Every rank of the machine has to call it. `gather` does the same for all machines together, and
        `allgather_local` returns the values on each rank of the machine.

        Args:
            stuff: A picklable value.

        Returns:
            On ``local_rank`` 0, a list with the value of each rank of the machine, in their order; None on the others.

        Raises:
            InternalException: The context is closed, or the chief cannot be reached.
            OtherProcessError: Another rank has failed, has left, or has not made the call in time.

        Example:
            >>> from pa_trial import DistributedContext
            >>> with DistributedContext() as distributed:
            ...     distributed.gather_local("this process")
            ['this process']
        """
        everything = self.allgather_local(stuff)
        return everything if self.local_rank == 0 else None

    def allgather_local(self, stuff: _T) -> list[_T]:
        """Return the values of this machine's ranks on each of these ranks.

        Every rank of the machine has to call it. `allgather` does the same for all machines together.

        Args:
            stuff: A picklable value.

        Returns:
            A list with the value of each rank of the machine, in their order.

        Raises:
            InternalException: The context is closed, or the chief cannot be reached.
            OtherProcessError: Another rank has failed, has left, or has not made the call in time.

        Example:
            >>> from pa_trial import DistributedContext
            >>> with DistributedContext() as distributed:
            ...     distributed.allgather_local(distributed.local_rank)
            [0]
        """
        return self._allgather(stuff, self.local_size, of_machine=True)

    def broadcast_local(self, stuff: _T | None = None) -> _T | None:
        """Return the value of this machine's first rank on all ranks of the machine.

        Use it for a decision that each machine makes separately, such as a folder on its disk. Every rank of the
        machine has to call it. `broadcast` does the same for all machines together.

        Args:
            stuff: A picklable value; only the value of ``local_rank`` 0 is used, so other ranks can leave it out.

        Returns:
            The value of the rank with ``local_rank`` 0.

        Raises:
            InternalException: The context is closed, or the chief cannot be reached.
            OtherProcessError: Another rank has failed, has left, or has not made the call in time.

        Example:
            >>> from pa_trial import DistributedContext
            >>> with DistributedContext() as distributed:
            ...     distributed.broadcast_local("/tmp/cache" if distributed.local_rank == 0 else None)
            '/tmp/cache'
        """
        return self.allgather_local(stuff if self.local_rank == 0 else None)[0]

    def close(self) -> None:
        """End the connections; collectives raise ``InternalException`` afterwards.

        A ``with`` statement calls it, and ``init`` calls it for ``context.distributed``. Call it yourself only for a
        context that you created without ``with``. A second call does nothing.
        """
        self._is_closed = True
        self._groups = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _allgather(self, stuff: _T, size: int, *, of_machine: bool) -> list[_T]:
        if self._is_closed:
            raise InternalException("This DistributedContext is closed: call collectives within the block of init().")
        if size == 1:
            return [stuff]
        if self._groups is None:
            self._groups = self._connect()
        return self._groups[of_machine].allgather(stuff)

    def _connect(self) -> tuple[RankGroup, RankGroup]:
        """Connect all ranks, and the ranks of each machine."""
        store = connect(self.rank, self.size, self._chief_ip, self._port)
        everybody = list(range(self.size))
        here = everybody[self.rank - self.local_rank :][: self.local_size]
        wait = self._max_wait_seconds
        machine = RankGroup(store, f"machine/{self.cross_rank}", here, self.local_rank, wait)
        world = RankGroup(store, "world", everybody, self.rank, wait)
        world.allgather(None)  # the chief keeps the store, which the others need until here
        return world, machine


def _checked(given: dict[str, int | None]) -> dict[str, int]:
    numbers = {name: value for name, value in given.items() if value is not None}
    if not numbers:
        return {name: int(name.endswith("size")) for name in given}
    fits = len(numbers) == len(given) and all(
        0 <= numbers[f"{kind}rank"] < numbers[f"{kind}size"] for kind in ("", "local_", "cross_")
    )
    if not fits:
        raise ConfigurationError(
            "Pass all six of these numbers, each rank from 0 to below its size, or none for a single process.",
            given=", ".join(f"{name}={value}" for name, value in given.items()),
            do="Use DistributedContext.from_torch_distributed(), which reads the variables of torchrun.",
        )
    return numbers


def _numbers_in_environment(local_size: str, cross_rank: str, cross_size: str) -> dict[str, Any]:
    """Return the six numbers from the variables of a launcher, some of them by their names; None outside a launcher."""
    variables = os.environ
    if "RANK" not in variables or "WORLD_SIZE" not in variables:
        return {}
    return {
        "rank": int(variables["RANK"]),
        "size": int(variables["WORLD_SIZE"]),
        "local_rank": int(variables.get("LOCAL_RANK", variables["RANK"])),
        "local_size": int(variables.get(local_size, variables["WORLD_SIZE"])),
        "cross_rank": int(variables.get(cross_rank, 0)),
        "cross_size": int(variables.get(cross_size, 1)),
    }


def _chief_ip(chief_ip: str | None) -> str | None:
    return chief_ip or os.environ.get("DET_CHIEF_IP") or os.environ.get("MASTER_ADDR")
