"""Compiled models train, are evaluated, and are saved under their plain names."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.optim import SGD
from typing_extensions import override

from pa_core import AnyTrainer, Trainer, TrainerCallback
from pa_core.testing import TinyClassifier, make_classification


def compiled(model: nn.Module) -> nn.Module:
    """Compile without a code generator: what is tested is the wrapper, not the compiler."""
    return cast("nn.Module", torch.compile(model, backend="aot_eager"))


@pytest.mark.runs_on("one_process", "two_ranks", "bf16")
def test_a_compiled_model_trains_and_saves_its_plain_names(shared_tmp_path: Path) -> None:
    """Checkpoints made in mid-run and after it, and safetensors, load into the model that was not compiled."""

    class Saves(TrainerCallback):
        @override
        def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            trainer.save_checkpoint(shared_tmp_path / "during.pt")

    torch.manual_seed(0)
    plain = TinyClassifier(batch_norm=True)
    model = compiled(plain)
    trainer = Trainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks=[Saves])
    trainer.train(make_classification(36), 4, make_classification(12), per_device_batch_size=6)
    losses = [float(loss) for loss in trainer.run_history.get_metric_values("eval_loss_epoch")]
    assert losses[-1] < losses[0]
    assert trainer.model is model
    assert trainer.get_model() is model
    assert trainer.get_model(keep_torch_compile=False) is plain

    trainer.save_model(shared_tmp_path / "exported")
    content = trainer.load_checkpoint(shared_tmp_path / "during.pt")
    assert sorted(content["model_state_dict"]) == sorted(plain.state_dict())
    if trainer.run_config.is_world_process_zero:
        assert sorted(load_file(shared_tmp_path / "exported" / "model.safetensors")) == sorted(plain.state_dict())
    other = TinyClassifier(batch_norm=True)
    other.load_state_dict(content["model_state_dict"])


def test_compiling_changes_nothing_of_the_training() -> None:
    """Two runs from the same seed, one compiled, reach the same weights up to rounding."""
    weights: list[torch.Tensor] = []
    for compile_it in (False, True):
        torch.manual_seed(0)
        plain = TinyClassifier()
        model = compiled(plain) if compile_it else plain
        trainer = Trainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks=[])
        trainer.train(make_classification(24), 2)
        weights.append(torch.cat([parameter.detach().reshape(-1) for parameter in plain.parameters()]))
    assert torch.allclose(weights[0], weights[1], atol=1e-6)
