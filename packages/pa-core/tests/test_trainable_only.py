"""Saving what was trained, such as an adapter, without the frozen parameters beside it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import AdamW
from typing_extensions import override

from pa_core import (
    AnyTrainer,
    CheckpointError,
    ConfigurationError,
    SaveBestModelCallback,
    Trainer,
    TrainerCallback,
    gather_objects,
)
from pa_core.testing import make_regression
from tests.support.callbacks import CallAt
from tests.support.sharded_models import whole_weights

DATA = make_regression(24)
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


def trainer_of(model: nn.Module, *callbacks: TrainerCallback) -> Trainer[nn.Module]:
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
    trainer = trainer_of(model)
    trainer.train(DATA, 1)
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
    trainer = trainer_of(model, score, SaveBestModelCallback(path, watch_metric="figure", trainable_only=True))
    trainer.train(DATA, 3)
    trainer.save_model(shared_tmp_path, trainable_only=True)
    gather_objects(None)  # the first process has written it

    assert load_file(shared_tmp_path / "model.safetensors").keys() == TRAINED
    assert torch.load(path, weights_only=True)["model_state_dict"].keys() == TRAINED
    torch.testing.assert_close(whole_weights(model), score.weights[1], rtol=0, atol=0)
    assert not torch.equal(score.weights[1]["2.weight"], score.weights[2]["2.weight"])
    fresh = without_statistics(adapter_seed=2)
    assert trainer_of(fresh).load_checkpoint(path)["best_epoch"] == 2
    torch.testing.assert_close(whole_weights(fresh), score.weights[1], rtol=0, atol=0)


def test_a_checkpoint_of_an_adapter_is_loaded_to_predict(tmp_path: Path) -> None:
    """Into a model of which nothing is trained; one that trains more than the file has is left as it is."""
    model = adapted()
    trainer_of(model).save_checkpoint(tmp_path / "adapter.pt", trainable_only=True)
    frozen = adapted(adapter_seed=2).requires_grad_(False)
    Trainer(frozen, nn.MSELoss(), None, callbacks=[]).load_checkpoint(tmp_path / "adapter.pt", load_optimizer=False)
    require_same(frozen, model)

    other = adapted(adapter_seed=2).requires_grad_(True)
    before = copy.deepcopy(other)
    with pytest.raises(CheckpointError, match=r"missing: 0.layer.weight(.|\n)*same parameters frozen"):
        trainer_of(other).load_checkpoint(tmp_path / "adapter.pt", load_optimizer=False)
    require_same(other, before)


def test_what_is_unfrozen_later_would_be_missing_in_the_best_model(tmp_path: Path) -> None:
    """A run that trains more from its second epoch on ends then, instead of with a mixture of two epochs."""
    save_best = SaveBestModelCallback(tmp_path / "best.pt", "figure", trainable_only=True)
    unfreeze = CallAt("on_training_run_epoch_end", lambda trainer: trainer.get_model().requires_grad_(True))
    trainer = trainer_of(adapted(), Score(1.0, 2.0), save_best, unfreeze)
    with pytest.raises(ConfigurationError, match=r"model.0.layer.bias, one of 4"):
        trainer.train(DATA, 2)


def test_a_model_that_is_frozen_has_nothing_to_save(tmp_path: Path) -> None:
    """An export without a single weight would look like one."""
    trainer = Trainer(nn.Linear(1, 1).requires_grad_(False), nn.MSELoss(), None, callbacks=[])
    for save in (trainer.save_model, trainer.save_checkpoint):
        with pytest.raises(ConfigurationError, match="Nothing of the model is trained"):
            save(tmp_path / "there", trainable_only=True)
    assert not list(tmp_path.iterdir())
