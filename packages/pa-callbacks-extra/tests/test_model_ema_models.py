"""Averages of runs with models that are compiled, frozen, in half precision, scaled, or different on each rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DynamoBackend, TorchDynamoPlugin
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_callbacks_extra import ModelEmaCallback
from pa_core import Trainer
from pa_core.testing import TinyClassifier, make_classification
from tests.support.callbacks import CallAt
from tests.support.pa_callbacks_extra.averaged_models import values
from tests.support.pa_callbacks_extra.averaged_runs import AverageByHand, make_trainer, require_equal, train


class Scaled(Trainer[nn.Module]):
    """A trainer whose accelerator scales losses, as accelerate does for fp16."""

    @override
    def _create_accelerator(self) -> Any:
        accelerator: Any = super()._create_accelerator()
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
        return accelerator


@pytest.mark.runs_on("one_process", "two_ranks")
def test_an_update_that_was_skipped_does_not_move_the_average(shared_tmp_path: Path) -> None:
    """Where the gradients of fp16 overflow, neither the model nor the average takes a step."""
    inputs, targets = make_classification(16).tensors
    inputs = inputs.clone()
    inputs[0] = 1e38
    model = nn.Linear(4, 3)
    nn.init.zeros_(model.weight)
    by_hand = AverageByHand(decay=0.5)
    callback = ModelEmaCallback(0.5, False, shared_tmp_path / "ema.pt")
    optimizer = SGD(model.parameters(), lr=0.1)
    trainer = Scaled(model, nn.CrossEntropyLoss(), optimizer, callbacks=[callback, by_hand])

    # The large input comes first: later, the model might be right about it, and have no gradient.
    data = TensorDataset(inputs, targets)
    trainer.train(data, 1, per_device_batch_size=2, train_dataloader_kwargs={"shuffle": False})

    assert (
        callback.ema.num_updates == trainer.num_updates_completed == trainer.run_config.num_update_steps_per_epoch - 1
    )
    for name, value in values(callback.ema.module).items():
        torch.testing.assert_close(value, by_hand.average[name])


class Stack(nn.Module):
    """Repeated blocks, which regional compilation compiles one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(3))

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        for block in self.blocks:
            inputs = block(inputs)
        return inputs


class Compiling(Trainer[nn.Module]):
    """A trainer whose accelerator compiles the model, or repeated blocks of it."""

    regional = False

    @override
    def _create_accelerator(self) -> Any:
        plugin = TorchDynamoPlugin(backend=DynamoBackend.AOT_EAGER, use_regional_compilation=self.regional)
        return Accelerator(cpu=True, dynamo_plugin=plugin)


class Regional(Compiling):
    """The latter."""

    regional = True


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("trainer_class", [Compiling, Regional])
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch looks at it itself
def test_the_average_of_a_model_that_accelerate_compiles(shared_tmp_path: Path, trainer_class: type[Compiling]) -> None:
    """The average is that of the user's own model, and evaluated within the compiled one."""
    torch.default_generator.manual_seed(0)
    model = nn.Sequential(Stack(), nn.Linear(4, 3))
    by_hand = AverageByHand(decay=0.5)
    callback = ModelEmaCallback(0.5, save_path=shared_tmp_path / "ema.pt")
    optimizer = SGD(model.parameters(), lr=0.5)
    trainer = trainer_class(model, nn.CrossEntropyLoss(), optimizer, callbacks=[callback, by_hand])

    train(trainer, num_epochs=2)

    for name, value in values(callback.ema.module).items():
        torch.testing.assert_close(value, trainer.gather(by_hand.average[name][None])[0])
    recorded = trainer.run_history.get_latest_metric("ema_model_eval_loss_epoch")
    with callback.ema.applied_to(trainer.model):
        trainer.evaluate(reset_run_history=False)
    assert trainer.run_history.get_latest_metric("evaluation_loss") == pytest.approx(recorded, abs=1e-6)


@pytest.mark.runs_on("one_process", "two_ranks")
def test_the_average_of_a_model_in_bfloat16(shared_tmp_path: Path) -> None:
    """Weights in half precision are averaged in float32, and evaluated and saved in their own precision."""
    path = shared_tmp_path / "ema.pt"
    torch.default_generator.manual_seed(0)
    model = TinyClassifier(batch_norm=True).bfloat16()
    callback = ModelEmaCallback(0.9, save_path=path)
    trainer = make_trainer(callback, model=model)
    inputs, targets = make_classification(48).tensors
    data = TensorDataset(inputs.bfloat16(), targets)

    trainer.train(data, 2, data)
    trainer.gather(torch.zeros(1))  # wait until the first rank has written

    dtypes = {value.dtype for value in values(callback.ema.module).values()}
    assert dtypes == {torch.float32, torch.int64}
    saved = torch.load(path, weights_only=True)["model_state_dict"]
    assert {value.dtype for value in saved.values()} == {torch.bfloat16, torch.int64}
    assert all(parameter.dtype == torch.bfloat16 for parameter in model.parameters())
    assert len(list(trainer.run_history.get_metric_values("ema_model_eval_loss_epoch"))) == 2


@pytest.mark.runs_on("two_ranks")
def test_the_average_begins_with_the_weights_of_the_first_rank(shared_tmp_path: Path) -> None:
    """Ranks that made different weights and buffers train those of the first one, and average these from the start."""
    torch.default_generator.manual_seed(dist.get_rank())
    model = TinyClassifier()
    model.register_buffer("drawn", torch.randn(3))
    start = values(model)
    callback = ModelEmaCallback(1.0, save_path=shared_tmp_path / "ema.pt")
    averages: list[dict[str, Tensor]] = []
    note = CallAt("on_train_epoch_start", lambda _: averages.append(values(callback.ema.module)))
    trainer = make_trainer(callback, note, model=model)
    train(trainer, num_epochs=1)

    require_equal(averages[0], {name: trainer.gather(value[None])[0] for name, value in start.items()})
