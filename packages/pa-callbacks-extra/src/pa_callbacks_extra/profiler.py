"""Profiles the time and memory of some updates."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch.profiler import ProfilerActivity, profile, schedule  # pyright: ignore[reportUnknownVariableType]  # of torch
from typing_extensions import override

from pa_core import AnyTrainer, TrainerCallback
from pa_core.callbacks import check_count
from pa_core.distributed import rank

_MEMORY: Any = torch.cuda.memory  # the functions called here are documented, but have no types
_ROWS = 10
_BESIDE_OPERATORS = "(outside of operators: Python, data, waiting)"


class _Operator(Protocol):
    """The totals that torch counts for the calls to an operator; times are in microseconds."""

    key: str
    count: int

    @property
    def self_cpu_time_total(self) -> float: ...
    @property
    def self_device_time_total(self) -> float: ...


class ProfilerCallback(TrainerCallback):
    """Profiles the time and memory of some updates with ``torch.profiler``.

    Use it to find out why a step is slow or needs much memory; remove it for the real run. Each process writes a trace,
    ``rank_0.pt.trace.json`` and so on, which you can open in https://ui.perfetto.dev or TensorBoard. On CUDA, it also
    writes ``rank_0.memory.pickle``, which lists each allocation with the lines of code that made it; open this file in
    https://pytorch.org/memory_viz. Files from an earlier run in the folder are replaced. When the run ends, the
    callback prints a table of the operators that took the most time, in milliseconds.

    Updates are counted from the start of ``train()``, even in a resumed run. Updates before and after the measured
    updates are not slowed down. An evaluation between recorded updates is recorded too. If the run ends or fails during
    these updates, the updates recorded so far are written, so after an out-of-memory error the files show all
    allocations. If the run is too short, a ``UserWarning`` is given. The callback adds nothing to training states.

    Place it last, so that the work that other callbacks do after an update is measured as part of this update.

    Args:
        folder: The folder for the files, which is created if necessary. A relative path, such as the default, is in the
            working directory.
        wait: The number of updates before anything is measured, at least 0. The default, 5, leaves out compilation, the
            choice of algorithms and the first allocations.
        warmup: The number of updates that are measured and discarded, because starting the profiler slows them down; at
            least 1. The default is 2, because the first measured update is the slowest.
        active: The number of updates that are recorded, at least 1. The default, 3, is enough to see a pattern and
            gives a file of a few megabytes.
        record_shapes: Whether the trace includes the shapes of the operators' inputs. The default is False, because
            recording them takes time.
        profile_memory: Whether the trace includes the amount of memory that each operator allocates and frees. The
            default is False, because recording it takes time, and the memory snapshot shows more.
        with_stack: Whether the trace includes the line of Python code that called each operator. The default is False,
            because this slows down the recorded updates.
        memory_snapshot: Whether to write ``rank_0.memory.pickle``. The default is True. It has no effect without CUDA.

    Attributes:
        folder: The folder for the files, as a path. The other arguments are attributes too.
        trace: The path of the trace that the last run wrote on this process; None if it wrote none.

    Raises:
        ConfigurationError: A number of updates is not a whole number, or is too small.
        OSError: ``train()`` raises it if the folder cannot be created, or the trace cannot be written.

    Example:
        >>> import tempfile, torch
        >>> from pa_callbacks_extra import ProfilerCallback
        >>> from pa_core import Trainer
        >>> model = torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> samples = torch.utils.data.TensorDataset(torch.ones(96, 1), torch.ones(96, 1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     profiler = ProfilerCallback(folder)
        ...     Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[profiler]).train(samples, num_epochs=1)
        ...     print(profiler.trace.name)  # doctest: +ELLIPSIS
        Profile of 3 updates, until update 10: ...
        rank_0.pt.trace.json
    """

    def __init__(
        self,
        folder: str | Path = "profile",
        *,
        wait: int = 5,
        warmup: int = 2,
        active: int = 3,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        memory_snapshot: bool = True,
    ) -> None:
        check_count("wait", wait, minimum=0)
        check_count("warmup", warmup)
        check_count("active", active)
        self.folder: Path = Path(folder)
        self.wait = wait
        self.warmup = warmup
        self.active = active
        self.record_shapes = record_shapes
        self.profile_memory = profile_memory
        self.with_stack = with_stack
        self.memory_snapshot = memory_snapshot
        self.trace: Path | None = None
        self._updates = 0
        self._device = torch.device("cpu")
        self._profile: profile | None = None
        self._report = ""

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Create the folder now, so that an error costs no training time.

        Args:
            trainer: The trainer.
            **kwargs: Not used.

        Raises:
            OSError: The folder cannot be created.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.trace, self._updates, self._device, self._report = None, 0, trainer.device, ""
        if self.wait == 0:
            self._start()

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        """Begin with the first measured update, and end after the last.

        Args:
            trainer: The trainer.
            update: Not used, because updates are counted from the start of ``train()``.
            **kwargs: Not used.

        Raises:
            OSError: The trace cannot be written.
        """
        self._updates += 1
        if self._profile is not None:
            self._profile.step()
            if self._updates == self.wait + self.warmup + self.active:
                self._stop(trainer)
        elif self._updates == self.wait:
            self._start()

    @override
    def on_training_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Write the recorded updates of a short run, and print the table.

        Args:
            trainer: The trainer.
            **kwargs: Not used.

        Raises:
            OSError: The trace cannot be written.
        """
        self._stop(trainer)
        if self._updates < (needed := self.wait + self.warmup + self.active) and not trainer.was_complete:
            warnings.warn(
                f"The run ended after {self._updates} updates, so only {self._recorded} of {self.active} updates were "
                f"profiled. ProfilerCallback(wait={self.wait}, warmup={self.warmup}, active={self.active}) needs "
                f"{needed}. Train for longer, or pass a smaller wait.",
                UserWarning,
                stacklevel=2,
            )
        self._print_report(trainer)

    @override
    def on_exception(self, trainer: AnyTrainer, exception: BaseException, **kwargs: Any) -> None:
        """Write the recorded updates, and print the table.

        Args:
            trainer: The trainer.
            exception: The exception.
            **kwargs: Not used.
        """
        self._stop(trainer)
        self._print_report(trainer)

    @property
    def _recorded(self) -> int:
        return max(0, self._updates - self.wait - self.warmup)

    def _start(self) -> None:
        starting = profile(
            activities=[ProfilerActivity.CPU] if self._device.type == "cpu" else None,
            schedule=schedule(wait=0, warmup=self.warmup, active=self.active, repeat=1),  # pyright: ignore[reportUnknownArgumentType]  # of torch
            on_trace_ready=self._write,
            record_shapes=self.record_shapes,
            profile_memory=self.profile_memory,
            with_stack=self.with_stack,
            acc_events=True,  # the schedule does not repeat; without this, some versions warn after it has ended
        )
        starting.start()
        self._profile = starting  # not before: stopping a profiler that could not start ends the process
        if self._device.type == "cuda" and self.memory_snapshot:
            # Without the frames of C++: looking up their names would take longer than the recorded updates.
            _MEMORY._record_memory_history(stacks="python", clear_history=True)

    def _write(self, finished: profile) -> None:
        trace = self.folder / f"rank_{rank()}.pt.trace.json"
        trace.unlink(missing_ok=True)
        finished.export_chrome_trace(str(trace))
        if not trace.is_file():  # torch only logs the reason
            raise OSError(f"The profile could not be written to {trace}. The log of torch says why.")
        self.trace = trace
        self._report = _table(cast("list[_Operator]", finished.key_averages()), self._device.type)

    def _stop(self, trainer: AnyTrainer) -> None:
        """Stop the profiler, and write the recorded updates."""
        running, self._profile = self._profile, None
        if running is None:
            return
        try:
            running.stop()
        finally:
            if self._device.type == "cuda" and self.memory_snapshot:
                try:
                    _MEMORY._dump_snapshot(str(self.folder / f"rank_{rank()}.memory.pickle"))
                finally:
                    _MEMORY._record_memory_history(enabled=None)
        if self.trace is not None:
            last = trainer.num_updates_completed
            self._report = f"Profile of {self._recorded} updates, until update {last}: {self.trace}\n{self._report}"

    def _print_report(self, trainer: AnyTrainer) -> None:
        report, self._report = self._report, ""
        if report:
            trainer.print(report)


def _table(operators: list[_Operator], device: str) -> str:
    """Return a row for each of the operators that took the most time, measured on the device if it is not the CPU."""
    on_device = device != "cpu"
    rows = [
        (
            _BESIDE_OPERATORS if operator.key.startswith("ProfilerStep") else operator.key,
            operator.count,
            operator.self_cpu_time_total / 1000,
            operator.self_device_time_total / 1000,
        )
        for operator in operators
        if operator.self_cpu_time_total > 0  # the time of a kernel, which has a row too, belongs to its operator
    ]
    rows.sort(key=lambda row: row[3 if on_device else 2], reverse=True)
    heading = f"  {'operator':43} {'calls':>6} {'CPU, ms':>10}" + (
        f" {device.upper() + ', ms':>10}" if on_device else ""
    )
    lines = [
        f"  {name[:43]:43} {count:6,} {cpu:10.3f}" + (f" {of_device:10.3f}" if on_device else "")
        for name, count, cpu, of_device in rows[:_ROWS]
    ]
    return "\n".join([heading, *lines])
