"""Predictions as files: the same bytes on any number of processes, whatever has interrupted them."""

from __future__ import annotations

import csv
import io
import json
import os
import reprlib
import signal
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet
import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_checkpoint import _folder as folder_lock
from pa_core import (
    AnyTrainer,
    BatchOutputError,
    CheckpointError,
    ConfigurationError,
    FolderInUseError,
    OtherProcessError,
    Trainer,
    TrainerCallback,
    gather_objects,
)
from tests.launching import Launch

on_any_number_of_processes = pytest.mark.runs_on("one_process", "two_ranks")
BATCH_SIZE = 3
ROOT = Path(__file__).parents[4]


def numbers(count: int) -> TensorDataset:
    """Samples that are their own numbers, in double precision."""
    return TensorDataset(torch.arange(count, dtype=torch.float64)[:, None])


def network(seed: int = 0) -> nn.Module:
    """The same model each time, whose results depend to the last bit on the batch that they were computed in."""
    torch.default_generator.manual_seed(seed)
    return nn.Sequential(nn.Linear(1, 7), nn.Tanh(), nn.Linear(7, 2)).double()


class Predicts(Trainer[nn.Module, list[Tensor]]):
    """Writes several columns of several kinds."""

    batches = 0

    @override
    def predict_batch(self, batch: list[Tensor]) -> dict[str, Any]:
        self.batches += 1
        names = [f"number {int(one)}" for one in batch[0]]
        return {"name": names, "scores": self.model(batch[0]), "is_even": batch[0][:, 0] % 2 == 0}


def trainer_with(*callbacks: Any, model: nn.Module | None = None) -> Predicts:
    """A trainer of the network."""
    return Predicts(network() if model is None else model, None, None, callbacks=callbacks)


def lines_by_hand(count: int) -> bytes:
    """The file that is expected, without anything of the trainer."""
    model, lines = network().eval(), b""
    with torch.no_grad():
        for inputs in torch.split(numbers(count).tensors[0], BATCH_SIZE):
            for value, scores in zip(inputs[:, 0].tolist(), model(inputs).tolist(), strict=True):
                row = {"name": f"number {int(value)}", "scores": scores, "is_even": value % 2 == 0}
                lines += json.dumps(row).encode() + b"\n"
    return lines


@pytest.fixture
def folder() -> Iterator[Path]:
    """One folder for all processes, in memory if possible: what is written reaches a busy disk slowly."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as own:
        yield Path(gather_objects(own)[0])
        gather_objects(None)


class AtBatch(TrainerCallback):
    """Does something after so many batches of this process, or once it has no more."""

    def __init__(self, batches: int, action: Callable[[], object]) -> None:
        self.left, self.action = batches, action

    @override
    def on_prediction_run_start(self, trainer: AnyTrainer, *, num_batches: int, **kwargs: Any) -> None:
        self.left = min(self.left, num_batches)
        if num_batches == 0:
            self.action()

    @override
    def on_prediction_step_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.left -= 1
        if self.left == 0:
            self.action()


def fail() -> None:
    """Fail as a disk does."""
    raise OSError("no more room")


def kill() -> None:
    """End the process without a word."""
    os.kill(os.getpid(), signal.SIGKILL)


@on_any_number_of_processes
def test_an_interrupted_file_of_any_size_is_completed_to_the_last_byte(folder: Path) -> None:
    """Of many numbers of samples, of some of them on two processes, after a failure in the middle; no piece remains."""
    for count in (*range(1, 14), 36) if trainer_with().num_processes == 1 else (1, 2, 3, 7, 12, 36):
        path = folder / f"{count}.jsonl"
        batches = -(-count // BATCH_SIZE)
        fails = AtBatch(1 + batches // 2 // trainer_with().num_processes, fail)
        with pytest.raises(OSError, match="no more room"):
            trainer_with(fails).predict(numbers(count), BATCH_SIZE, write=path, samples_per_piece=6)
        assert not path.exists()
        trainer = trainer_with()
        assert trainer.predict(numbers(count), BATCH_SIZE, write=path, samples_per_piece=6) == path
        assert path.read_bytes() == lines_by_hand(count)
        if count > 8 * BATCH_SIZE:
            assert sum(gather_objects(trainer.batches)) < batches
        assert not path.with_name(f"{path.name}.pieces").exists()


@pytest.mark.runs_on("two_ranks")
def test_a_failure_of_one_process_ends_the_others_and_all_of_them_may_try_again(folder: Path) -> None:
    """They do not wait for pieces that nobody writes, and the next call completes the file."""
    path, is_first = folder / "predictions.jsonl", trainer_with().is_main_process

    expected = (OtherProcessError, "rank 1, which has raised an error") if is_first else (OSError, "no more room")
    with pytest.raises(expected[0], match=expected[1]):
        trainer_with(AtBatch(1, int if is_first else fail)).predict(numbers(20), BATCH_SIZE, write=path)
    trainer_with().predict(numbers(20), BATCH_SIZE, write=path)
    assert path.read_bytes() == lines_by_hand(20)


KILLED = """
import os, sys
sys.path[:0] = sys.argv[2:]
from test_written_predictions import AtBatch, BATCH_SIZE, kill, numbers, trainer_with

killed = AtBatch(6, kill if os.environ["RANK"] == "1" else int)
trainer_with(killed).predict(numbers(50), BATCH_SIZE, write=sys.argv[1], samples_per_piece=6)
"""


@pytest.mark.timeout(180)
def test_a_killed_prediction_of_two_processes_is_completed_by_one(launch: Launch, folder: Path) -> None:
    """What the killed processes have finished is kept, and the file is that of one process."""
    path = folder / "predictions.jsonl"
    assert launch(KILLED, str(path), str(ROOT), str(Path(__file__).parent), ranks=2, timeout=110).status != 0
    pieces = pieces_of(path)
    assert 0 < len(pieces) < 9
    trainer = trainer_with()
    trainer.predict(numbers(50), BATCH_SIZE, write=path, samples_per_piece=6)
    # Each piece has two batches, but for the last one, which has one.
    is_last_there = any("-000000000050." in piece.name for piece in pieces)
    assert trainer.batches == 17 - 2 * len(pieces) + is_last_there
    assert path.read_bytes() == lines_by_hand(50)


def pieces_of(path: Path) -> list[Path]:
    """The pieces of predictions that are there, in order."""
    return sorted(path.with_name(f"{path.name}.pieces").glob("0*"))


def in_a_process_that_is_killed(action: Callable[[], object]) -> None:
    """Do something in a fork of this process, which kills itself in the middle."""
    child = os.fork()
    if child == 0:
        try:
            action()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_each_format_survives_kills(suffix: str, folder: Path) -> None:
    """Killed at its first batch, in the middle or at its last, it ends with the file of one without a kill."""
    whole = trainer_with().predict(numbers(20), BATCH_SIZE, write=folder / f"whole.{suffix}")
    path = folder / f"killed.{suffix}"
    for batch in (1, 4, 7):
        killed = trainer_with(AtBatch(batch, kill))
        in_a_process_that_is_killed(partial(killed.predict, numbers(20), BATCH_SIZE, write=path))
        assert not path.exists()
        trainer_with().predict(numbers(20), BATCH_SIZE, write=path)
        assert path.read_bytes() == whole.read_bytes()
        path.unlink()


def test_each_format_has_the_rows_of_the_dataset_in_order(folder: Path) -> None:
    """What other programs read is what the model has computed, to the last digit."""
    with torch.no_grad():
        scores = torch.cat([network()(one) for one in torch.split(numbers(11).tensors[0], BATCH_SIZE)]).tolist()
    trainer = trainer_with()

    with trainer.predict(numbers(11), BATCH_SIZE, write=folder / "p.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == [f"number {one}" for one in range(11)]
    assert [[float(row["scores_0"]), float(row["scores_1"])] for row in rows] == scores
    assert {row["is_even"] for row in rows} == {"True", "False"}

    table = pyarrow.parquet.read_table(trainer.predict(numbers(11), BATCH_SIZE, write=folder / "p.parquet"))
    assert table.column_names == ["name", "scores", "is_even"]
    assert table["scores"].to_pylist() == scores
    assert table["is_even"].to_pylist() == [one % 2 == 0 for one in range(11)]


class Returns(Trainer[nn.Module, list[Tensor]]):
    """Predicts what a test wants."""

    make: Callable[[Tensor], Any]

    @override
    def predict_batch(self, batch: list[Tensor]) -> Any:
        return self.make(batch[0][:, 0])


def predict(make: Callable[[Tensor], Any], path: Path, count: int = 4) -> str:
    """Write what a function makes of the numbers of two samples at a time."""
    trainer = Returns(nn.Identity(), None, None, callbacks=[])
    trainer.make = make
    return trainer.predict(numbers(count), 2, write=path, other_pieces="remove").read_text()


class Pair(NamedTuple):
    """Two columns."""

    first: Tensor
    second: list[str]


def test_what_is_returned_decides_the_columns(folder: Path) -> None:
    """A tensor, a list, a tuple, a named tuple: each has its names."""
    path = folder / "p.csv"
    assert predict(lambda x: x, path) == "prediction\n0.0\n1.0\n2.0\n3.0\n"
    assert predict(lambda x: [None, 'a "b", c'], path) == 'prediction\n""\n"a ""b"", c"\n""\n"a ""b"", c"\n'
    assert predict(lambda x: (x, x.bfloat16()), path, 2) == "prediction_0,prediction_1\n0.0,0.0\n1.0,1.0\n"
    assert predict(lambda x: Pair(x, ["a", "b"]), path, 2) == "first,second\n0.0,a\n1.0,b\n"
    lines = predict(lambda x: {"of each": [{"n": one, "all": x} for one in x]}, folder / "p.jsonl", 2)
    assert [json.loads(line) for line in io.StringIO(lines)] == [
        {"of each": {"n": 0.0, "all": [0.0, 1.0]}},
        {"of each": {"n": 1.0, "all": [0.0, 1.0]}},
    ]


UNFIT: list[tuple[Callable[[Tensor], Any], str, str]] = [
    (lambda x: x.sum(), "p.csv", "the values to write"),
    (lambda x: x[:1], "p.jsonl", "the values to write"),
    (lambda x: {"a": x, "text": "ab"}, "p.jsonl", "'text' is not a column"),
    (lambda x: x[:, None, None], "p.csv", r"Write to a \.jsonl or \.parquet file"),
    (lambda x: [[1], [2]], "p.csv", r"Write to a \.jsonl or \.parquet file"),
    (lambda x: {f"column {int(x[0])}": x}, "p.csv", "the same names"),
    (lambda x: {f"column {int(x[0])}": x}, "p.parquet", "the same names"),
    (lambda x: [object(), object()], "p.jsonl", "Return plain values"),
    (lambda x: ["a", "b"] if x[0] else [1, 2], "p.parquet", "values of the same type"),
]


@pytest.mark.parametrize(("make", "name", "advice"), UNFIT)
def test_what_does_not_fit_a_file_is_explained(
    make: Callable[[Tensor], Any], name: str, advice: str, folder: Path
) -> None:
    """The error says what to return, or which format has room for it; no file is there."""
    with pytest.raises(BatchOutputError, match=advice):
        predict(make, folder / name)
    assert not (folder / name).exists()


@on_any_number_of_processes
def test_pieces_of_other_predictions_are_refused_or_removed(folder: Path) -> None:
    """Of other weights, another dataset, other batches: the error names what differs; on demand it begins anew."""
    path = folder / "p.jsonl"
    with pytest.raises(OSError, match="no more room"):
        trainer_with(AtBatch(2, fail)).predict(numbers(20), BATCH_SIZE, write=path)
    attempts: dict[str, Callable[[], object]] = {
        "weights": lambda: trainer_with(model=network(1)).predict(numbers(20), BATCH_SIZE, write=path),
        "number of samples": lambda: trainer_with().predict(numbers(21), BATCH_SIZE, write=path),
        "batch_size": lambda: trainer_with().predict(numbers(20), 4, write=path),
        "samples in a piece": lambda: trainer_with().predict(numbers(20), BATCH_SIZE, write=path, samples_per_piece=7),
        "seed": lambda: trainer_with().predict(numbers(20), BATCH_SIZE, write=path, seed=1),
    }
    for name, attempt in attempts.items():
        with pytest.raises(CheckpointError, match=f"{name}: .*, now "):
            attempt()
    trainer = trainer_with()
    trainer.predict(numbers(21), BATCH_SIZE, write=path, other_pieces="remove")
    assert sum(gather_objects(trainer.batches)) == 7
    assert path.read_bytes() == lines_by_hand(21)


@pytest.mark.parametrize("kept", [0, 9, -1])
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_damaged_piece_is_named_and_predicted_again_once_it_is_removed(suffix: str, kept: int, folder: Path) -> None:
    """As a full disk or a copy leaves one behind; the file is that of an undisturbed run."""
    whole = trainer_with().predict(numbers(20), BATCH_SIZE, write=folder / f"whole.{suffix}")
    path = folder / f"p.{suffix}"
    piece = interrupted(path)[0]
    piece.write_bytes(piece.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=f"{piece.name}(.|\n)*Remove it"):
        trainer_with().predict(numbers(20), BATCH_SIZE, write=path)
    piece.unlink()
    trainer_with().predict(numbers(20), BATCH_SIZE, write=path)
    assert path.read_bytes() == whole.read_bytes()


def interrupted(path: Path, model: nn.Module | None = None) -> list[Path]:
    """The pieces of predictions that were interrupted after two of them."""
    with pytest.raises(OSError, match="no more room"):
        trainer_with(AtBatch(3, fail), model=model).predict(numbers(20), BATCH_SIZE, write=path)
    return pieces_of(path)


def exchange_for_another_of_these(pieces: list[Path], folder: Path) -> None:
    """Put a piece where another one was."""
    pieces[0].write_bytes(pieces[1].read_bytes())


def exchange_for_one_of_other_weights(pieces: list[Path], folder: Path) -> None:
    """Put the piece of another model there, with the name that it had."""
    (folder / "other").mkdir()
    foreign = interrupted(folder / "other" / "p.jsonl", network(1))[0]
    pieces[0].unlink()
    foreign.rename(pieces[0].with_name(foreign.name))


def edit(pieces: list[Path], folder: Path) -> None:
    """Change a number in a piece, which stays as valid and as long as it was."""
    pieces[0].write_bytes(pieces[0].read_bytes().replace(b"number 0", b"number 7"))


def exchange_for_a_folder(pieces: list[Path], folder: Path) -> None:
    """Put a folder there."""
    pieces[0].unlink()
    pieces[0].mkdir()


def exchange_for_a_fifo(pieces: list[Path], folder: Path) -> None:
    """Put something there from which a read would not return."""
    pieces[0].unlink()
    os.mkfifo(pieces[0])


def exchange_for_a_link(pieces: list[Path], folder: Path) -> None:
    """Put a link to a file there."""
    pieces[0].rename(folder / "elsewhere")
    pieces[0].symlink_to(folder / "elsewhere")


@pytest.mark.parametrize("other_pieces", ["error", "remove"])
@pytest.mark.parametrize(
    "exchange",
    [
        exchange_for_another_of_these,
        exchange_for_one_of_other_weights,
        edit,
        exchange_for_a_folder,
        exchange_for_a_fifo,
        exchange_for_a_link,
    ],
)
def test_a_piece_that_was_exchanged_is_never_taken(
    exchange: Callable[[list[Path], Path], None], other_pieces: Any, folder: Path
) -> None:
    """Whatever is in the place of a piece, valid or not, is an error that names it, and no file is written."""
    path = folder / "p.jsonl"
    exchange(interrupted(path), folder)
    with pytest.raises(CheckpointError, match=r"0+-0+3\.jsonl.*Remove it"):
        trainer_with().predict(numbers(20), BATCH_SIZE, write=path, other_pieces=other_pieces)
    assert not path.exists()


@pytest.mark.parametrize("content", ["[]", "3", "null", "", "{", "[" * 100_000, None], ids=reprlib.repr)
def test_what_is_no_identity_of_pieces_is_an_error_of_ours(content: str | None, folder: Path) -> None:
    """A document of another kind, a deep one, a FIFO: each is named, and nothing is removed."""
    path = folder / "p.jsonl"
    pieces = interrupted(path)
    identity = pieces[0].with_name("identity.json")
    if content is None:
        identity.unlink()
        os.mkfifo(identity)
    else:
        identity.write_text(content)
    for other_pieces in ("error", "remove"):
        with pytest.raises(CheckpointError, match=r"identity\.json"):
            trainer_with().predict(numbers(20), BATCH_SIZE, write=path, other_pieces=other_pieces)
    assert pieces_of(path) == pieces


def test_one_run_at_a_time_writes_a_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one is refused, even to begin anew with other weights, and the first one completes its own file."""
    monkeypatch.setattr(folder_lock, "SECONDS_TO_DIE", 0.2)
    path = folder / "p.jsonl"

    def write_the_same_file() -> None:
        with pytest.raises(FolderInUseError, match="Another run is using this folder"):
            trainer_with(model=network(1)).predict(numbers(20), BATCH_SIZE, write=path, other_pieces="remove")

    trainer_with(AtBatch(1, write_the_same_file)).predict(numbers(20), BATCH_SIZE, write=path)
    assert path.read_bytes() == lines_by_hand(20)
    assert [entry.name for entry in folder.iterdir()] == [path.name]


@pytest.mark.parametrize("number", [1, 2, 5, 7])
def test_a_kill_while_pieces_are_removed_is_in_nobodys_way(number: int, tmp_path: Path) -> None:
    """The file is complete then; what is left of its pieces is known to be that, and removed by the next run."""
    path = tmp_path / "p.jsonl"

    def predict_and_be_killed() -> None:
        unlink, left = os.unlink, [number]

        def unlink_until_killed(*args: Any, **kwargs: Any) -> None:
            unlink(*args, **kwargs)
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        os.unlink = unlink_until_killed
        trainer_with().predict(numbers(20), BATCH_SIZE, write=path)

    in_a_process_that_is_killed(predict_and_be_killed)
    assert path.read_bytes() == lines_by_hand(20)
    trainer_with().predict(numbers(21), BATCH_SIZE, write=path, other_pieces="remove")
    assert path.read_bytes() == lines_by_hand(21)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_files_of_somebody_else_are_never_removed(folder: Path) -> None:
    """A folder that is in the way stays as it is, also where other pieces are to be removed."""
    (folder / "p.csv.pieces").mkdir()
    (folder / "p.csv.pieces" / "thesis.tex").touch()
    with pytest.raises(CheckpointError, match="not pieces of predictions"):
        trainer_with().predict(numbers(3), write=folder / "p.csv", other_pieces="remove")
    assert (folder / "p.csv.pieces" / "thesis.tex").exists()


@pytest.mark.runs_on("one_process", "two_ranks", "bf16")
def test_a_function_is_given_each_batch_once_and_goes_on_after_a_failure_where_pieces_are_noted(folder: Path) -> None:
    """Each process hands over what it has predicted, with the positions; without a folder, all of it comes again."""
    written: list[tuple[int, str]] = []

    def write(predictions: dict[str, Any], positions: range) -> None:
        written.extend(zip(positions, predictions["name"], strict=True))

    expected = [(one, f"number {one}") for one in range(20)]
    trainer_with().predict(numbers(20), BATCH_SIZE, write=write)
    assert sorted(chain.from_iterable(gather_objects(written))) == expected
    written.clear()
    noted = folder / "noted"
    with pytest.raises(OSError, match="no more room"):
        trainer_with(AtBatch(2, fail)).predict(numbers(20), BATCH_SIZE, write=write, pieces=noted)
    trainer = trainer_with()
    trainer.predict(numbers(20), BATCH_SIZE, write=write, pieces=noted)
    assert sum(gather_objects(trainer.batches)) == 7 - trainer.num_processes
    assert sorted(chain.from_iterable(gather_objects(written))) == expected
    assert not noted.exists()


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ({"write": "p.txt"}, "pass a function"),
        ({"write": "s3://bucket/p.csv"}, "send it to the store"),
        ({"write": Path("s3://bucket/p.csv")}, "not to .s3://bucket/p.csv."),
        ({"write": "."}, "Add a file name"),
        ({"write": 3}, "Pass a path"),
        ({"write": "p.csv", "samples_per_piece": 0}, "samples_per_piece must be"),
        ({"write": "p.csv", "other_pieces": "keep"}, "got 'keep'"),
        ({"samples_per_piece": 3}, "samples_per_piece must be left out"),
        ({"pieces": "folder"}, "pieces must be left out"),
        ({"other_pieces": "remove"}, "other_pieces must be left out"),
    ],
)
def test_what_cannot_be_written_is_refused_at_once(arguments: dict[str, Any], advice: str) -> None:
    """Before anything is predicted."""
    with pytest.raises(TypeError if arguments == {"write": 3} else ConfigurationError, match=advice):
        trainer_with().predict(numbers(3), **arguments)


def test_a_file_that_is_there_stays_until_the_new_one_is_whole(folder: Path) -> None:
    """Readers never meet half of a file."""
    path = folder / "p.csv"
    path.write_text("before")
    with pytest.raises(OSError, match="no more room"):
        trainer_with(AtBatch(2, fail)).predict(numbers(9), BATCH_SIZE, write=path)
    assert path.read_text() == "before"
    trainer_with().predict(numbers(9), BATCH_SIZE, write=path)
    assert path.read_text().startswith("name,scores_0,scores_1,is_even\nnumber 0,")
    assert [entry.name for entry in folder.iterdir()] == ["p.csv"]


@pytest.mark.runs_on("two_ranks")
def test_a_sharded_model_predicts_the_same_and_is_known_by_its_weights(folder: Path) -> None:
    """Processes with fewer batches join the others' forward passes; pieces of the whole model are taken over."""
    path = folder / "p.jsonl"
    with pytest.raises(OSError, match="no more room"):
        trainer_with(AtBatch(4, fail)).predict(numbers(25), BATCH_SIZE, write=path, samples_per_piece=6)
    sharded = network()
    fully_shard(sharded)
    trainer = trainer_with(model=sharded)
    trainer.predict(numbers(25), BATCH_SIZE, write=path, samples_per_piece=6)
    assert sum(gather_objects(trainer.batches)) < 9
    assert path.read_bytes() == lines_by_hand(25)
    names = [name for batch in trainer.predict(numbers(7), BATCH_SIZE) for name in batch["name"]]
    assert names == ([f"number {one}" for one in range(7)] if trainer.is_main_process else [])
