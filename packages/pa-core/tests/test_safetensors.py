"""Exported weights: files that other programs read, and that are never those of two models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import SGD
from typing_extensions import override

from pa_core import ConfigurationError, Trainer, TrainerCallback
from pa_core.testing import TinyClassifier, make_classification
from tests.support.callbacks import CallAt
from tests.support.disks import full_disk

DATA = make_classification(24)


class Tied(nn.Module):
    """Scores tokens by the weights that embed them, as language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.scores = nn.Linear(4, 10, bias=False)
        self.scores.weight = self.embedding.weight

    @override
    def forward(self, tokens: Tensor) -> Tensor:
        return cast("Tensor", self.scores(self.embedding(tokens)))


def trainer_of(model: nn.Module, *callbacks: TrainerCallback) -> Trainer[nn.Module]:
    """A trainer of the model, without anything on the console."""
    return Trainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks=callbacks)


def network(seed: int = 0, hidden: int = 8) -> TinyClassifier:
    """A model with parameters and buffers."""
    torch.manual_seed(seed)
    return TinyClassifier(hidden=hidden, batch_norm=True)


def read_all(folder: Path) -> dict[str, Tensor]:
    """The weights of an export, as a reader finds them: by the index if there is one."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return load_file(folder / "model.safetensors")
    weight_map: dict[str, str] = json.loads(index.read_text())["weight_map"]
    return {name: load_file(folder / file)[name] for name, file in weight_map.items()}


def assert_equal(weights: dict[str, Tensor], model: nn.Module) -> None:
    """The weights are those of the model, under its names, to the last bit."""
    state = model.state_dict()
    assert set(weights) == set(state)
    assert all(torch.equal(weights[name], state[name]) for name in state)


def test_an_export_holds_the_weights_and_buffers_by_name(tmp_path: Path) -> None:
    """`safetensors.torch.load_file` reads one file that equals the model, and the model loads it."""
    model = network()
    trainer = trainer_of(model)
    trainer.train(DATA, 1)

    trainer.save_model(str(tmp_path / "new" / "folder"))

    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["model.safetensors"]
    weights = load_file(tmp_path / "new" / "folder" / "model.safetensors")
    assert_equal(weights, model)
    network(seed=1).load_state_dict(weights)


@pytest.mark.parametrize("size", [300, "1KB"])
def test_large_weights_are_split_into_files_with_an_index(tmp_path: Path, size: int | str) -> None:
    """The index names the file of each weight, and no file is larger than it has to be."""
    model = network(hidden=32)
    trainer_of(model).save_model(tmp_path, max_shard_size=size)

    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 1
    assert sorted(tmp_path.iterdir()) == [*shards, tmp_path / "model.safetensors.index.json"]
    assert_equal(read_all(tmp_path), model)
    largest = {"1KB": 1000, 300: 300}[size]
    for shard in shards:
        weights = load_file(shard).values()
        assert len(weights) == 1 or sum(weight.numel() * weight.element_size() for weight in weights) <= largest


def test_a_tied_weight_is_stored_once(tmp_path: Path) -> None:
    """The file holds what is shared under one of its names, which is enough to restore the model."""
    model = Tied()
    trainer_of(model).save_model(tmp_path)

    weights = load_file(tmp_path / "model.safetensors")
    assert list(weights) == ["embedding.weight"]
    other = Tied()
    other.load_state_dict(weights, strict=False)
    assert torch.equal(other.embedding.weight, model.embedding.weight)
    assert other.scores.weight is other.embedding.weight


@pytest.mark.parametrize(("first", "second"), [("1KB", "5GB"), ("5GB", "1KB"), (300, "1KB"), ("1KB", 300)])
def test_a_new_export_leaves_nothing_of_the_old_one(tmp_path: Path, first: int | str, second: int | str) -> None:
    """After fewer or more shards, a reader finds the new weights only; other files of the folder stay."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model_card.md").write_text("mine")
    trainer_of(network(hidden=32)).save_model(tmp_path, max_shard_size=first)
    newer = network(seed=1, hidden=32)

    trainer_of(newer).save_model(tmp_path, max_shard_size=second)

    files = {path.name for path in tmp_path.iterdir()}
    exported = {name for name in files if ".safetensors" in name}
    assert files - exported == {"config.json", "model_card.md"}
    assert_equal(read_all(tmp_path), newer)
    if second == "5GB":
        assert exported == {"model.safetensors"}
    else:
        named = set(json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"].values())
        assert exported == named | {"model.safetensors.index.json"}


@pytest.mark.parametrize("size", ["5GB", "1KB"])
def test_a_failure_leaves_the_old_files(tmp_path: Path, size: str) -> None:
    """A disk that is full in the middle of the export costs nothing of what was exported before."""
    older = network(hidden=32)
    trainer_of(older).save_model(tmp_path, max_shard_size=size)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    with pytest.raises(Exception, match=r"(?i)file|os error"), full_disk(600):
        trainer_of(network(seed=1, hidden=32)).save_model(tmp_path, max_shard_size=size)

    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert_equal(read_all(tmp_path), older)


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    """The error names the file, which stays as it is."""
    (tmp_path / "weights").write_text("mine")
    with pytest.raises(ConfigurationError, match=r"weights' is a file"):
        trainer_of(network()).save_model(tmp_path / "weights")
    assert (tmp_path / "weights").read_text() == "mine"


@pytest.mark.runs_on("one_process", "two_ranks", "bf16")
def test_an_export_in_the_middle_of_a_run_has_the_plain_names(shared_tmp_path: Path) -> None:
    """Wrapped for several processes or for mixed precision, the weights are exported as they are and once."""
    model = network()
    trainer = trainer_of(model, CallAt("on_optimizer_step_end", lambda trainer: trainer.save_model(shared_tmp_path)))
    trainer.train(DATA, 1)

    if trainer.run_config.is_world_process_zero:
        assert [path.name for path in shared_tmp_path.iterdir()] == ["model.safetensors"]
        weights = load_file(shared_tmp_path / "model.safetensors")
        assert_equal(weights, model)


@pytest.mark.parametrize("max_shard_size", ["5GB", 100])
def test_others_may_read_an_export_as_they_may_read_any_new_file(tmp_path: Path, max_shard_size: int | str) -> None:
    """Each file has the permissions of a file that the process makes, and not those of a temporary one."""
    (tmp_path / "any").touch()

    trainer_of(network()).save_model(tmp_path / "export", max_shard_size)

    modes = {path.stat().st_mode for path in (tmp_path / "export").iterdir()}
    assert modes == {(tmp_path / "any").stat().st_mode}
