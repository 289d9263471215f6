"""Tensors of which each process has a piece: how they are written, compared and put together."""

from __future__ import annotations

import re
import shutil
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from pa_checkpoint import CheckpointError, Folder, load, save
from pa_checkpoint._encoding import encode
from pa_checkpoint._sharded_tensor import StoredPiece, StoredTensor
from pa_checkpoint._torch import is_sharded, local_piece, local_shape_and_offset, version_of
from pa_checkpoint._writer import HostPool
from tests.support.sharded_states import described, files_of, write_sharded_state
from tests.support.states import flip

WHOLE = torch.arange(35.0).view(7, 5)


def saved_in(pieces: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> StoredTensor:
    """The whole tensor as it was saved in pieces, each with its offsets and its shape."""
    return StoredTensor(WHOLE.shape, WHOLE.dtype, [StoredPiece(*piece, Kept(piece[0])) for piece in pieces])


class Kept:
    """A piece in memory, which begins at some offsets of the whole tensor."""

    def __init__(self, offsets: tuple[int, ...]) -> None:
        self.offsets = offsets

    def read_into(self, target: Tensor, offsets: Sequence[int]) -> None:
        """Fill a tensor from the whole one."""
        rows, columns = (a + b for a, b in zip(self.offsets, offsets, strict=True))
        target.copy_(WHOLE[rows : rows + target.shape[0], columns : columns + target.shape[1]])


THREE_PROCESSES = [((0, 0), (3, 5)), ((3, 0), (3, 5)), ((6, 0), (1, 5))]
FOUR_PROCESSES_AND_A_GRID = [((0, 0), (4, 3)), ((0, 3), (4, 2)), ((4, 0), (3, 3)), ((4, 3), (3, 2))]
SAVED = pytest.mark.parametrize("pieces", [THREE_PROCESSES, FOUR_PROCESSES_AND_A_GRID])


@SAVED
def test_pieces_make_the_whole(pieces: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    """A tensor that was saved in pieces can be put together, in the precision of the target."""
    stored = saved_in(pieces)
    assert stored.whole().tolist() == WHOLE.tolist()
    target = torch.zeros(7, 5, dtype=torch.bfloat16)
    stored.read_into(target)
    assert target.tolist() == WHOLE.bfloat16().tolist()


@pytest.mark.runs_on("two_ranks")
@SAVED
@pytest.mark.parametrize("dimension", [0, 1])
def test_each_process_reads_its_piece(pieces: list[tuple[tuple[int, ...], tuple[int, ...]]], dimension: int) -> None:
    """A tensor is read in the pieces of the present processes, whatever those are in which it was saved."""
    read = saved_in(pieces).like(_split(torch.zeros(7, 5), Shard(dimension)))
    assert is_sharded(read)
    assert local_piece(read).tolist() == WHOLE.chunk(2, dimension)[dist.get_rank()].tolist()


@pytest.mark.runs_on("two_ranks")
def test_what_has_another_shape_is_split_where_it_has_the_rows_of_the_parameter() -> None:
    """What an optimizer keeps for each row is split as the rows are; what it keeps for each column is whole."""
    parameter = _split(torch.zeros(1, 5), Shard(0))
    columns = StoredTensor.of(torch.arange(3.0).view(3, 1)).like(parameter)
    assert local_piece(columns).tolist() == [[0.0], [1.0], [2.0]]
    row = local_piece(StoredTensor.of(torch.ones(1, 5)).like(parameter))
    assert row.tolist() == ([[1.0] * 5] if dist.get_rank() == 0 else [])


WEIGHT = torch.arange(15.0).view(5, 3)
BUFFER = torch.tensor([7, 8])
FILES = ["model.0-of-3.safetensors", "model.1-of-3.safetensors", "model.safetensors"]


def state_of(path: Path, weight: Tensor = WEIGHT, sequence: int = 1) -> Path:
    """A state of a weight that two of three processes have rows of, mentioned twice, and of a buffer."""
    rows = [2, len(weight) - 2, 0]
    document = described("model/weight", weight, "model", rows)
    entries = [["weight", document], ["buffer", {"$tensor": "model/buffer"}]]
    ordered = {"$ordered_dict": entries, "attributes": {"_metadata": {"version": 2}}}
    whole: dict[str, dict[str, Tensor]] = {"model.safetensors": {"model/buffer": BUFFER}}
    files = whole | files_of("model", {"model/weight": weight}, rows)
    write_sharded_state(
        path, {"model": {"weights": ordered, "tied": {"$tuple": [document, 3]}}}, files, sequence=sequence
    )
    return path


def test_a_state_is_read_whole(tmp_path: Path) -> None:
    """Whoever reads a state gets plain tensors, in whatever pieces they were saved; tied ones come back as one."""
    model: dict[str, Any] = load(state_of(tmp_path / "state")).parts["model"]
    assert type(model["weights"]) is OrderedDict
    assert vars(model["weights"])["_metadata"] == {"version": 2}
    assert model["weights"]["weight"].tolist() == WEIGHT.tolist()
    assert model["weights"]["buffer"].tolist() == BUFFER.tolist()
    assert model["tied"][0] is model["weights"]["weight"]


def test_tensors_that_are_linked_are_read_with_the_others(tmp_path: Path) -> None:
    """A part may have a file of tensors that change and one of those that do not."""
    files = {"model.safetensors": {"model/head": WEIGHT}, "model.constant.safetensors": {"model/base": BUFFER}}
    write_sharded_state(tmp_path / "state", {"model": [{"$tensor": "model/head"}, {"$tensor": "model/base"}]}, files)
    head, base = load(tmp_path / "state").parts["model"]
    assert head.tolist() == WEIGHT.tolist()
    assert base.tolist() == BUFFER.tolist()


def test_parts_of_large_pieces_are_read(tmp_path: Path) -> None:
    """A region of a piece is exact wherever it begins and ends, also where it is too large to be read at once."""
    whole = torch.randn(5, 900, 1100, generator=torch.Generator().manual_seed(1))
    documents = {"model": described("model/weight", whole, "model", [3, 2])}
    write_sharded_state(tmp_path / "state", documents, files_of("model", {"model/weight": whole}, [3, 2]))
    stored: StoredTensor = load(tmp_path / "state", lazy=True).parts["model"]
    assert torch.equal(stored.whole(), whole)
    (source,) = [piece.source for piece in stored.pieces if piece.offsets == (3, 0, 0)]
    for begin, size in (((0, 0, 0), (2, 900, 1100)), ((1, 17, 3), (1, 860, 1000)), ((0, 899, 0), (2, 1, 1))):
        region = whole[3:][tuple(slice(first, first + count) for first, count in zip(begin, size, strict=True))]
        target = torch.zeros(size, dtype=torch.float64)
        source.read_into(target, begin)
        assert torch.equal(target, region.double())


def test_whole_tensors_stay_on_disk_too(tmp_path: Path) -> None:
    """Large ones do, and are read as they were, into targets of any kind; complex ones and arrays are read at once."""
    numbers = torch.arange(60_000.0)
    values: dict[str, Any] = {
        "plain": numbers, "strided": numbers.view(200, 300).T, "half": numbers.bfloat16(), "small": torch.ones(3),
        "complex": torch.complex(numbers, -numbers).view(6, 10_000).T, "array": numbers.numpy(), "step": 3,
    }  # fmt: skip
    save(tmp_path / "state", {"part": {**values, "tied": numbers}})
    lazily, eagerly = (load(tmp_path / "state", lazy=lazy)["part"] for lazy in (True, False))
    assert [name for name, value in lazily.items() if isinstance(value, StoredTensor)] == [
        "plain", "strided", "half", "tied",
    ]  # fmt: skip
    assert lazily["tied"] is lazily["plain"]
    targets = (
        torch.zeros(200, 300).T,
        torch.zeros(300, 200),
        torch.zeros(300, 200).double(),
        torch.nn.Parameter(torch.zeros(300, 200)),
        torch.zeros(2, 300, 200)[1],
    )
    for target in targets:
        before = version_of(target)
        lazily["strided"].read_into(target)
        assert torch.equal(target, values["strided"].to(target.dtype))
        assert version_of(target) > before
    resolved = StoredTensor.resolve(lazily)
    assert (resolved.pop("array") == eagerly["array"]).all()
    assert resolved.pop("step") == 3
    assert resolved.pop("tied") is resolved["plain"]
    for name, value in resolved.items():
        assert torch.equal(value, values[name])
        assert value.stride() == eagerly[name].stride() == values[name].stride()


@pytest.mark.parametrize("shape", [(2, 4), (3, 3), (6,), (2, 1), ()])
def test_a_target_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    """It is never filled in part: the error names both shapes."""
    target = torch.zeros(shape)
    with pytest.raises(ValueError, match=rf"has the shape \(2, 3\), .* the shape {re.escape(str(shape))}\."):
        StoredTensor.of(torch.ones(2, 3)).read_into(target)
    assert not target.any()


def test_a_state_that_is_replaced_before_it_was_read_is_never_mixed(tmp_path: Path) -> None:
    """Neither with that of another step under the same path, nor with nothing."""
    save(tmp_path / "state", {"part": [torch.zeros(10_000), torch.zeros(10_000)]})
    first, second = load(tmp_path / "state", lazy=True)["part"]
    assert first.whole().sum() == 0
    save(tmp_path / "state", {"part": [torch.ones(10_000), torch.ones(10_000)]})
    target = torch.full((10_000,), 7.0)
    with pytest.raises(CheckpointError, match="replaced"):
        second.read_into(target)
    shutil.rmtree(tmp_path / "state")
    with pytest.raises(CheckpointError, match="No such file"):
        second.read_into(target)
    assert target.eq(7).all()


def truncate(file: Path) -> None:
    """Lose the last bytes."""
    file.write_bytes(file.read_bytes()[:-4])


def swap(file: Path) -> None:
    """Take the file of another state of the same run."""
    other = state_of(file.parent.parent / "other", WEIGHT + 1, sequence=2)
    shutil.copyfile(other / file.name, file)
    shutil.rmtree(other)


@pytest.mark.parametrize("harm", [flip, truncate, swap, Path.unlink])
@pytest.mark.parametrize("file", FILES[:2])
def test_a_damaged_piece_is_found_and_an_older_state_is_read(tmp_path: Path, harm: Any, file: str) -> None:
    """A state of which one file of pieces is damaged, lost or that of another state is passed over."""
    older, newer = state_of(tmp_path / "step_1"), state_of(tmp_path / "step_2", sequence=2)
    harm(newer / file)
    with pytest.raises(CheckpointError, match=file):
        load(newer)
    found, skipped = Folder(tmp_path).newest_readable(load)
    assert found is not None
    assert (found.path, [one.path for one in skipped]) == (older, [newer])


@pytest.mark.runs_on("two_ranks")
@pytest.mark.usefixtures("processes")
def test_each_process_verifies_its_share_of_the_pieces(shared_tmp_path: Path) -> None:
    """Of the files of pieces each is verified by one of the processes, and read by none of the others."""
    state = shared_tmp_path / "state"
    if dist.get_rank() == 0:
        flip(state_of(state) / FILES[1])
    dist.barrier()
    with pytest.raises(CheckpointError, match="digest") if dist.get_rank() == 1 else nullcontext():
        load(state, lazy=True, in_shares=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"shape": [6, 3]},
        {"dtype": "F64"},
        {"dtype": "none"},
        {"pieces": []},
        {"pieces": [{"file": "other.safetensors", "offsets": [0, 0], "shape": [5, 3]}]},
        {"pieces": [{"file": FILES[0], "offsets": [0, 0], "shape": [5, 3]}]},
        {"pieces": [{"file": FILES[0], "offsets": [0.5, 0], "shape": [5, 3]}]},
    ],
)
def test_a_document_that_does_not_fit_its_pieces_is_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    """A document that says something else than the files is an explained error before anything is read from them."""
    document = described("model/weight", WEIGHT, "model", [2, 3]) | wrong
    files = files_of("model", {"model/weight": WEIGHT}, [2, 3])
    names = {name.replace("-of-2", "-of-3"): tensors for name, tensors in files.items()}
    write_sharded_state(tmp_path / "state", {"model": document}, files | names)
    with pytest.raises(CheckpointError, match="damaged"):
        load(tmp_path / "state", lazy=True)


def test_version_of() -> None:
    """A change in place is noted."""
    tensor = torch.zeros(2)
    before = version_of(tensor)
    tensor.add_(1)
    assert version_of(tensor) > before


def test_a_version_without_a_name_says_which_versions_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it lacks is named, and what to install."""
    monkeypatch.delattr("torch.distributed.tensor._utils._compute_local_shape_and_global_offset")
    with pytest.raises(CheckpointError, match=r"without [\w.]*_compute_local[\s\S]*pip install \"torch=="):
        local_shape_and_offset((5, 2), (2,), (0,), ())


def test_local_shape_and_offset() -> None:
    """The piece of each process follows from the shape alone."""
    found = [local_shape_and_offset((5, 2), (2,), (rank,), (Shard(0),)) for rank in range(2)]
    assert found == [((3, 2), (0, 0)), ((2, 2), (3, 0))]


def _split(whole: Tensor, *placements: Any) -> Tensor:
    shape = (1,) * (len(placements) - 1) + (2,)
    return distribute_tensor(whole, init_device_mesh("cpu", shape), list(placements))


def _of_all(value: object) -> list[Any]:
    values: list[Any] = [None, None]
    dist.all_gather_object(values, value)
    return values


@pytest.mark.runs_on("two_ranks")
def test_each_process_writes_its_piece_and_all_describe_the_same_whole() -> None:
    """The pieces are blocks side by side; of tied weights there is one, also where a process has nothing of them."""
    whole, single = torch.arange(6.0).view(3, 2), torch.ones(1, 4)
    one = _split(single, Shard(0))
    encoded = encode({"weight": _split(whole, Shard(0)), "one": one, "tied": one.detach()}, "model")
    first, second = _of_all(encoded.document)
    assert first == second
    assert first["weight"] == {
        "$sharded": "model/weight",
        "dtype": "F32",
        "shape": [3, 2],
        "pieces": [
            {"file": "model.0-of-2.safetensors", "offsets": [0, 0], "shape": [2, 2]},
            {"file": "model.1-of-2.safetensors", "offsets": [2, 0], "shape": [1, 2]},
        ],
    }
    assert first["tied"] == first["one"]
    assert [piece["file"] for piece in first["one"]["pieces"]] == ["model.0-of-2.safetensors"]
    written = _of_all({name: tensor.tolist() for name, tensor in encoded.all_tensors().items()})
    assert written == [{"model/weight": whole[:2].tolist(), "model/one": [[1.0] * 4]}, {"model/weight": [[4.0, 5.0]]}]


@pytest.mark.runs_on("two_ranks")
def test_what_all_processes_have_is_written_once() -> None:
    """Pieces with several holders are dealt out evenly; a tensor that each process has whole is a plain one."""
    mesh = init_device_mesh("cpu", (2, 1))
    values = {name: distribute_tensor(torch.ones(4), mesh, [Replicate(), Shard(0)]) for name in "abcd"}
    whole = distribute_tensor(torch.ones(3), mesh, [Replicate(), Replicate()])
    written = _of_all(list(encode({**values, "whole": whole}, "part").all_tensors()))
    assert written == [["part/whole", "part/a", "part/c"], ["part/whole", "part/b", "part/d"]]


@pytest.mark.runs_on("two_ranks")
def test_partial_sums_are_refused() -> None:
    """What is only a part of a sum on each process is named, and what to do about it."""
    partial = DTensor.from_local(torch.ones(2), init_device_mesh("cpu", (2,)), [Partial()])
    with pytest.raises(CheckpointError, match=r"model\['sum'\]: a DTensor with the placements") as caught:
        encode({"sum": partial}, "model")
    assert "full_tensor()" in caught.value.do


@pytest.mark.runs_on("two_ranks")
def test_a_snapshot_holds_the_pieces() -> None:
    """A snapshot in host memory keeps the pieces as they were."""
    weight = nn.Parameter(_split(torch.zeros(4), Shard(0)))
    snapshot = HostPool().copy({"model": encode({"weight": weight}, "model")})["model"]
    local_piece(weight.detach()).fill_(1)
    assert snapshot.pieces["model/weight"].tensor.tolist() == [0.0, 0.0]
