"""Training states whose tensors several processes have saved in pieces are read whole, piece by piece, or refused."""

from __future__ import annotations

import shutil
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pa_checkpoint import CheckpointError, Folder, StoredTensor, load
from tests.support.sharded_states import described, files_of, write_sharded_state
from tests.support.states import flip

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


def test_each_process_verifies_its_share_of_the_pieces(tmp_path: Path) -> None:
    """Of the files of pieces each is verified by one of the processes, and read by none of the others."""
    state = state_of(tmp_path / "state")
    flip(state / FILES[1])
    load(state, lazy=True, share=(0, 2))
    with pytest.raises(CheckpointError, match="digest"):
        load(state, lazy=True, share=(1, 2))


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
