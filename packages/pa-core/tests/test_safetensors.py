"""Exported weights and adapters: files that other programs read, and that are never those of two models."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import SGD, AdamW
from typing_extensions import override

from pa_core import (
    AnyTrainer,
    CheckpointError,
    ConfigurationError,
    SaveBestModelCallback,
    SaveTrainingStateCallback,
    Trainer,
    TrainerCallback,
    gather_objects,
)
from pa_core.testing import TinyClassifier, make_classification, make_regression
from tests.support.callbacks import CallAt
from tests.support.disks import full_disk
from tests.support.sharded_models import whole_weights

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


FOR_ADAPTERS = make_regression(24)
TRAINED = {"0.down.weight", "0.up.weight", "2.bias", "2.weight"}
STATISTICS = {"1.num_batches_tracked", "1.running_mean", "1.running_var"}


class Adapted(nn.Module):
    """A frozen layer, with an adapter of low rank that is trained."""

    def __init__(self, layer: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs) + self.up(self.down(inputs))
        return outputs


def adapted(adapter_seed: int = 1) -> nn.Sequential:
    """A pretrained layer with a new adapter, a batch norm that is frozen, and a new head."""
    torch.manual_seed(0)
    pretrained = nn.Linear(4, 3)
    torch.manual_seed(adapter_seed)
    return nn.Sequential(Adapted(pretrained), nn.BatchNorm1d(3).requires_grad_(False), nn.Linear(3, 1))


def trainer_of_adapter(model: nn.Module, *callbacks: TrainerCallback) -> Trainer[nn.Module]:
    """A trainer of what is trainable in a model."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return Trainer(model, nn.MSELoss(), AdamW(trained, lr=0.1), callbacks=callbacks)


def require_same(model: nn.Module, expected: nn.Module) -> None:
    """Compare all weights and buffers, to the last bit."""
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("size", ["5GB", 30])
def test_an_export_of_an_adapter_completes_the_pretrained_model(tmp_path: Path, size: int | str) -> None:
    """It holds the trained parameters and the buffers, and ``strict=False`` loads it beside the pretrained weights."""
    model = adapted()
    trainer = trainer_of_adapter(model)
    trainer.train(FOR_ADAPTERS, 1)
    trainer.save_model(tmp_path, max_shard_size=size, trainable_only=True)

    weights = {name: one for file in tmp_path.glob("*.safetensors") for name, one in load_file(file).items()}
    assert weights.keys() == TRAINED | STATISTICS
    fresh = adapted(adapter_seed=2)
    missing, unexpected = fresh.load_state_dict(weights, strict=False)
    assert not unexpected
    assert set(missing) == {"0.layer.weight", "0.layer.bias", "1.weight", "1.bias"}
    require_same(fresh, model)


class Score(TrainerCallback):
    """Records given scores, and keeps the weights of each epoch."""

    def __init__(self, *scores: float) -> None:
        self.scores = scores
        self.weights: list[dict[str, Tensor]] = []

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        trainer.run_history.update_metric("figure", self.scores[len(self.weights)])
        self.weights.append(whole_weights(trainer.get_model()))


def without_statistics(adapter_seed: int = 1) -> nn.Sequential:
    """The same without a batch norm, whose statistics each process has for itself."""
    model = adapted(adapter_seed)
    model[1] = nn.Identity()
    return model


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("is_sharded", [False, True])
def test_the_best_adapter_is_loaded_at_the_end(is_sharded: bool, shared_tmp_path: Path) -> None:
    """Its file has no frozen parameter, and the model, whole or in pieces, ends with the weights of its best epoch."""
    model = without_statistics()
    if is_sharded and dist.is_initialized():
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    path, score = shared_tmp_path / "best.pt", Score(3.0, 1.0, 2.0)
    trainer = trainer_of_adapter(model, score, SaveBestModelCallback(path, watch_metric="figure", trainable_only=True))
    trainer.train(FOR_ADAPTERS, 3)
    trainer.save_model(shared_tmp_path, trainable_only=True)
    gather_objects(None)  # the first process has written it

    assert load_file(shared_tmp_path / "model.safetensors").keys() == TRAINED
    assert torch.load(path, weights_only=True)["model_state_dict"].keys() == TRAINED
    torch.testing.assert_close(whole_weights(model), score.weights[1], rtol=0, atol=0)
    assert not torch.equal(score.weights[1]["2.weight"], score.weights[2]["2.weight"])
    fresh = without_statistics(adapter_seed=2)
    assert trainer_of_adapter(fresh).load_checkpoint(path)["best_epoch"] == 2
    torch.testing.assert_close(whole_weights(fresh), score.weights[1], rtol=0, atol=0)


def test_a_checkpoint_of_an_adapter_is_loaded_to_predict(tmp_path: Path) -> None:
    """Into a model of which nothing is trained; one that trains more than the file has is left as it is."""
    model = adapted()
    trainer_of_adapter(model).save_checkpoint(tmp_path / "adapter.pt", trainable_only=True)
    frozen = adapted(adapter_seed=2).requires_grad_(False)
    Trainer(frozen, nn.MSELoss(), None, callbacks=[]).load_checkpoint(tmp_path / "adapter.pt", load_optimizer=False)
    require_same(frozen, model)

    other = adapted(adapter_seed=2).requires_grad_(True)
    before = copy.deepcopy(other)
    with pytest.raises(CheckpointError, match=r"missing: 0.layer.weight(.|\n)*same parameters frozen"):
        trainer_of_adapter(other).load_checkpoint(tmp_path / "adapter.pt", load_optimizer=False)
    require_same(other, before)


def test_what_is_unfrozen_later_would_be_missing_in_the_best_model(tmp_path: Path) -> None:
    """A run that trains more from its second epoch on ends then, instead of with a mixture of two epochs."""
    save_best = SaveBestModelCallback(tmp_path / "best.pt", "figure", trainable_only=True)
    unfreeze = CallAt("on_training_run_epoch_end", lambda trainer: trainer.get_model().requires_grad_(True))
    trainer = trainer_of_adapter(adapted(), Score(1.0, 2.0), save_best, unfreeze)
    with pytest.raises(ConfigurationError, match=r"model.0.layer.bias, one of 4"):
        trainer.train(FOR_ADAPTERS, 2)


def test_a_model_that_is_frozen_has_nothing_to_save(tmp_path: Path) -> None:
    """An export without a single weight would look like one."""
    trainer = Trainer(nn.Linear(1, 1).requires_grad_(False), nn.MSELoss(), None, callbacks=[])
    for save in (trainer.save_model, trainer.save_checkpoint):
        with pytest.raises(ConfigurationError, match="All parameters of the model are frozen"):
            save(tmp_path / "there", trainable_only=True)
    assert not list(tmp_path.iterdir())


class _Scaled(nn.Module):
    """Has buffers of one element whose strides are not 1, as slices and expanded scalars are."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.register_buffer("scale", torch.tensor(0.5).expand(1))
        self.register_buffer("corner", torch.ones(1, 3)[:, 0])

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        return cast("Tensor", self.linear(inputs) * self.scale * self.corner)


def test_a_buffer_of_one_element_may_have_any_stride(tmp_path: Path) -> None:
    """It is in training states, the fingerprint and exports."""
    model = _Scaled()
    states = SaveTrainingStateCallback(tmp_path / "states")
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[states])
    trainer.train(make_regression(8), 1)
    trainer.save_model(tmp_path / "exported")
    loaded = load_file(tmp_path / "exported" / "model.safetensors")
    assert (loaded["scale"].item(), loaded["corner"].item()) == (0.5, 1.0)
    assert int(trainer.fingerprint(), 16)
    trainer.load_training_state(tmp_path / "states")
    assert model.linear.weight.equal(loaded["linear.weight"])
