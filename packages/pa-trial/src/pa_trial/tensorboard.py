"""The folder and the writer of a trial for TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pa_trial._torch import file_writer_of
from pa_trial.errors import UnsupportedConfigurationError

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter


class TensorBoard:
    """Makes the writer of a trial when it is first requested.

    Args:
        path: The folder of the event files; None for torch's default, ``runs/<time>_<host>`` in the working directory.
            Processes other than the chief write to a folder ``rank_<n>`` below it, so that their curves do not mix.
        rank: The rank of this process.
    """

    def __init__(self, path: Path | None, rank: int = 0) -> None:
        self.path = path
        self.rank: int = rank
        self._writer: SummaryWriter | None = None
        self._purge_from: int | None = None

    @property
    def has_writer(self) -> bool:
        """Whether the writer was requested before."""
        return self._writer is not None

    @property
    def writer(self) -> SummaryWriter:
        """The writer.

        Raises:
            UnsupportedConfigurationError: TensorBoard is not installed.
        """
        if self._writer is None:
            require_tensorboard()
            from torch.utils.tensorboard.writer import SummaryWriter

            folder = self.path if self.path is None or self.rank == 0 else self.path / f"rank_{self.rank}"
            comment = "" if self.rank == 0 else f"_rank_{self.rank}"
            self._writer = SummaryWriter(folder, comment=comment, purge_step=self._purge_from)
        return self._writer

    def continue_from(self, step: int) -> None:
        """Let TensorBoard drop the points of an interrupted training from ``step`` on; they will be written again.

        Args:
            step: The first step to be written.
        """
        self._purge_from = step
        if self._writer is not None:
            untyped: Any = import_module("tensorboard.compat.proto.event_pb2")
            file_writer = file_writer_of(self._writer)
            file_writer.add_event(untyped.Event(file_version="brain.Event:2"), step)
            start = untyped.SessionLog(status=untyped.SessionLog.START)
            file_writer.add_event(untyped.Event(session_log=start), step)

    def add_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Add a point to several curves.

        ``add_scalar`` of the writer adds a single point; a record for each point costs several times as much.

        Args:
            values: The points, by the names of the curves.
            step: Their place on the x axis.
        """
        writer = self.writer
        untyped: Any = import_module("tensorboard.compat.proto.summary_pb2")
        summary = untyped.Summary
        points = [summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        file_writer_of(writer).add_summary(summary(value=points), step)

    def flush(self) -> None:
        """Write the added values to disk, if there is a writer."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Write the added values and close the writer; the next request makes a writer of another file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def require_tensorboard() -> None:
    """Raise an error if TensorBoard is not installed."""
    if find_spec("tensorboard") is None:
        problem = "TensorBoard, which tensorboard_path and get_tensorboard_writer need, is not installed."
        raise UnsupportedConfigurationError(problem, do="Install it: pip install 'pa-trial[tensorboard]'.")
