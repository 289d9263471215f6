"""The writer for TensorBoard that a trial gets, and where its files are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pa_trial.tensorboard import TensorBoard
from tests.event_files import read_curves, wait_for_the_next_file

if TYPE_CHECKING:
    from pathlib import Path


def draw(board: TensorBoard, steps: range, name: str = "mine") -> None:
    """Add a point at each step: the step itself."""
    writer: Any = board.writer
    for step in steps:
        writer.add_scalar(name, step, step)


def test_the_curves_of_other_processes_do_not_mix_with_those_of_the_chief(tmp_path: Path) -> None:
    """Each process but the chief writes to a folder of its own."""
    for rank in (0, 1):
        board = TensorBoard(tmp_path, rank)
        draw(board, range(rank, rank + 1))
        board.close()
    assert read_curves(tmp_path) == {"mine": [(0, 0.0)]}
    assert read_curves(tmp_path / "rank_1") == {"mine": [(1, 1.0)]}


def test_a_trial_may_close_the_writer(tmp_path: Path) -> None:
    """What comes later is written to another file, and TensorBoard shows both."""
    board = TensorBoard(tmp_path)
    board.add_scalars({"a": 0.5, "b": float("inf")}, 0)
    board.writer.close()
    wait_for_the_next_file()
    board.add_scalars({"a": 1.5}, 1)
    board.close()
    assert read_curves(tmp_path) == {"a": [(0, 0.5), (1, 1.5)], "b": [(0, float("inf"))]}
