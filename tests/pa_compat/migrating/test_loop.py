"""What the pages on differences from the original say of the loop: a test for each row."""

from __future__ import annotations

import json
import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import (
    AnyTrainer,
    BatchMismatchError,
    BatchOutputError,
    ConfigurationError,
    NonFiniteLossError,
    UnsupportedConfigurationError,
)
from pytorch_accelerated import Trainer, TrainerPlaceholderValues
from pytorch_accelerated.callbacks import (
    TerminateOnNaNCallback,
    TrainerCallback,
)
from tests.small_runs import linear, make_trainer, samples

PACKAGES = Path(__file__).parents[3] / "packages"


def test_share() -> None:
    """Whole groups are scaled by one part of the steps, and the shorter last group by what it holds."""
    ratios: list[float] = []

    class NoteShares(Trainer):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            output = super().calculate_train_batch_loss(batch)
            self.loss_before = output["loss"].item()
            return output

        @override
        def backward_step(self, loss: Tensor) -> None:
            ratios.append(loss.item() / self.loss_before)
            super().backward_step(loss)

    make_trainer(NoteShares).train(samples(21), 1, per_device_batch_size=4, gradient_accumulation_steps=2)
    assert ratios == pytest.approx([1 / 2, 1 / 2, 1 / 2, 1 / 2, 4 / 5, 1 / 5])


def run_in_groups(steps: int, **kwargs: Any) -> tuple[float, Tensor]:
    """The reported loss and the weights after updates of eight samples."""
    trainer = make_trainer(lr=1e-3)
    torch.default_generator.manual_seed(0)
    trainer.train(samples(24), 2, per_device_batch_size=8 // steps, gradient_accumulation_steps=steps, **kwargs)
    weights: Any = trainer.model.weight
    return float(trainer.run_history.get_latest_metric("train_loss_epoch")), weights.detach()


def test_reported() -> None:
    """Two epochs in batches of eight and of four, two to an update, report the same loss."""
    assert run_in_groups(1)[0] == pytest.approx(run_in_groups(2)[0])


def test_clipping() -> None:
    """What is clipped is the gradient of the whole update, in one piece."""
    clipped = run_in_groups(1, gradient_clip_value=0.5)[1]
    assert torch.allclose(clipped, run_in_groups(2, gradient_clip_value=0.5)[1])
    assert not torch.allclose(clipped, run_in_groups(1)[1])


def test_limit() -> None:
    """Five updates of epochs with four end the run in its second epoch, whose events fire."""
    ended: list[int] = []

    class NoteEnds(TrainerCallback):
        @override
        def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            ended.append(trainer.run_history.clock.update)

    trainer = make_trainer(Trainer, NoteEnds)
    trainer.train(samples(8), 9, per_device_batch_size=2, max_num_train_steps=5)
    assert ended == [4, 5]


def test_instance() -> None:
    """The error shows how a factory of this scheduler is written."""
    trainer = make_trainer()
    scheduler: Any = StepLR(trainer.optimizer, 7)
    with pytest.raises(TypeError, match=r"functools\.partial\(StepLR, \.\.\.\)"):
        trainer.train(samples(4), 1, create_scheduler_fn=scheduler)


def test_placeholder() -> None:
    """A placeholder is worked out in a factory, however deep, and nowhere else."""
    epochs, updates = TrainerPlaceholderValues.NUM_EPOCHS, TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH
    with pytest.raises(TypeError, match="not a number yet"):
        range(epochs)
    found: list[Any] = []

    def factory(optimizer: torch.optim.Optimizer, options: dict[str, Any]) -> StepLR:
        found.append(options["length"])
        return StepLR(optimizer, 7)

    make_trainer().train(
        samples(8), 3, create_scheduler_fn=partial(factory, options={"length": [epochs * updates // 2 - 1]})
    )
    assert found == [[0]]


def test_not_finite() -> None:
    """An infinite loss ends the run through its last event, and then raises."""
    ended: list[bool] = []

    class NoteEnd(TrainerCallback):
        @override
        def on_training_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            ended.append(True)

    trainer = make_trainer(Trainer, TerminateOnNaNCallback, NoteEnd)
    with pytest.raises(NonFiniteLossError):
        trainer.train(TensorDataset(torch.full((4, 2), math.inf).double(), torch.zeros(4, 1).double()), 1)
    assert ended == [True]


@pytest.mark.runs_on("one_process", "two_ranks")
def test_own_model() -> None:
    """In evaluation, and after a run, the model is the one that was given."""
    model = linear()
    seen: list[nn.Module] = []

    class NoteModel(TrainerCallback):
        @override
        def on_eval_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
            seen.append(trainer.model)

    trainer = make_trainer(Trainer, NoteModel, model=model)
    trainer.train(samples(4), 1, eval_dataset=samples(4))
    assert seen == [model]
    assert trainer.model is model


@pytest.mark.runs_on("one_process", "two_ranks")
def test_own_optimizer() -> None:
    """While a run goes on, the optimizer is the one that was given."""
    seen: list[torch.optim.Optimizer] = []

    class NoteOptimizer(TrainerCallback):
        @override
        def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
            seen.append(trainer.optimizer)

    trainer = make_trainer(Trainer, NoteOptimizer)
    optimizer = trainer.optimizer
    trainer.train(samples(4), 1)
    assert seen == [optimizer]


@pytest.mark.parametrize("wrong", [{"num_epochs": 0}, {"per_device_batch_size": -1}, {"gradient_clip_value": 0.0}])
def test_refused(wrong: dict[str, Any]) -> None:
    """Nothing has started when the error comes."""
    arguments: dict[str, Any] = {"num_epochs": 1, **wrong}
    started: list[bool] = []

    class NoteStart(TrainerCallback):
        @override
        def on_prepare_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            started.append(True)

    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        make_trainer(Trainer, NoteStart).train(samples(4), **arguments)
    assert started == []


def test_other_optimizer() -> None:
    """An optimizer of parameters that the model does not have is an error."""
    trainer = Trainer(linear(), nn.MSELoss(), torch.optim.SGD(linear().parameters(), lr=0.1), callbacks=[])
    with pytest.raises(ConfigurationError, match="none of the model's parameters"):
        trainer.train(samples(4), 1)


class ComputesItsLoss(nn.Linear):
    """Returns its loss, as models of Hugging Face do."""

    @override
    def forward(self, input: Tensor, labels: Tensor | None = None) -> Any:
        outputs = super().forward(input)
        return outputs if labels is None else {"loss": nn.functional.mse_loss(outputs, labels), "logits": outputs}


def named(batch: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """A batch that is a mapping."""
    return {"input": torch.stack([x for x, _ in batch]), "labels": torch.stack([y for _, y in batch])}


def stacked(batch: list[tuple[Tensor]]) -> Tensor:
    """A batch that is one tensor."""
    return torch.stack([x for (x,) in batch])


def test_batch() -> None:
    """No batch is taken for what it is not, and a mapping trains a model that returns its own loss."""
    inputs_only = TensorDataset(samples(4).tensors[0])
    with pytest.raises(ConfigurationError, match="def calculate_train_batch_loss"):
        make_trainer().train(inputs_only, 1, collate_fn=stacked)
    with pytest.raises(ConfigurationError, match="def calculate_train_batch_loss"):
        make_trainer().train(samples(4), 1, collate_fn=named)
    model = ComputesItsLoss(2, 1).double()
    trainer = Trainer(model, None, torch.optim.SGD(model.parameters(), lr=1e-4), callbacks=[])
    trainer.train(samples(8), 1, per_device_batch_size=4, collate_fn=named)
    assert math.isfinite(trainer.run_history.get_latest_metric("train_loss_epoch"))


def mean_square(outputs: Tensor, wanted: Tensor) -> Tensor:
    """A loss that has its targets without the dimension of the outputs."""
    return (outputs - wanted[:, None]).square().mean()


def test_broadcast() -> None:
    """Outputs are not compared with the targets of other samples; a loss function of one's own decides for itself."""
    inputs, targets = samples(4).tensors
    flat = TensorDataset(inputs, targets[:, 0])
    with pytest.raises(BatchMismatchError, match=r"shape \(4, 1\), targets of shape \(4,\)"):
        make_trainer().train(flat, 1)
    trainer = make_trainer()
    trainer.loss_func = mean_square
    trainer.train(flat, 1)
    assert trainer.num_updates_completed == 1


def test_step_output() -> None:
    """The error names what a step has left out."""

    class Incomplete(Trainer):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            output = super().calculate_train_batch_loss(batch)
            del output["batch_size"]
            return output

    with pytest.raises(BatchOutputError, match="batch_size"):
        make_trainer(Incomplete).train(samples(4), 1)


def test_to_dict() -> None:
    """The values of a run whose loader got a function can be written as JSON."""
    trainer = make_trainer()
    trainer.train(samples(4), 1, train_dataloader_kwargs={"worker_init_fn": print})
    assert "print" in json.dumps(trainer.run_config.to_dict())


def test_fp16_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was asked for fp16 on a CPU says that it computes without it."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    with pytest.warns(UserWarning, match="no effect"):
        trainer = make_trainer()
    trainer.train(samples(4), 1)
    assert trainer.run_config.mixed_precision == "no"


def test_accelerator_settings() -> None:
    """A setting without effect is warned of, and one that would change what is trained is refused."""

    def trainer_with(**kwargs: Any) -> Trainer:
        class Configured(Trainer):
            @override
            def _create_accelerator(self) -> Any:
                return Accelerator(cpu=True, **kwargs)

        return make_trainer(Configured)

    with pytest.warns(UserWarning, match="step_scheduler_with_optimizer=False has no effect"):
        trainer_with(step_scheduler_with_optimizer=False)
    with pytest.raises(UnsupportedConfigurationError, match="places the model"):
        trainer_with(device_placement=False)


@pytest.mark.runs_on("two_ranks")
def test_second_module() -> None:
    """The error names the attribute; added as it says, the module is trained."""

    class WithCritic(Trainer):
        critic: nn.Module

        @override
        def calculate_train_batch_loss(self, batch: Any) -> Any:
            outputs = self.critic(self.model(batch[0]))
            return {"loss": self.loss_func(outputs, batch[1]), "model_outputs": outputs, "batch_size": len(outputs)}

    trainer: Any = make_trainer(WithCritic)
    trainer.critic = nn.Linear(1, 1).double()
    with pytest.raises(UnsupportedConfigurationError, match=r"self\.critic\b(.|\n)*add_module\('critic', \.\.\.\)"):
        trainer.train(samples(4), 1, per_device_batch_size=2)
    trainer.add_module("critic", trainer.critic, torch.optim.SGD(trainer.critic.parameters(), lr=0.1))
    trainer.train(samples(4), 1, per_device_batch_size=2)
    assert trainer.num_updates_completed == 1


class GoesRound(Trainer):
    """Calls the module inside the wrapper."""

    @override
    def calculate_train_batch_loss(self, batch: Any) -> Any:
        outputs = self.get_model()(batch[0])
        return {"loss": self.loss_func(outputs, batch[1]), "model_outputs": outputs, "batch_size": len(outputs)}


@pytest.mark.runs_on("one_process", "two_ranks")
def test_round_the_wrapper() -> None:
    """One process has no wrapper; several are told before the first update."""
    trainer = make_trainer(GoesRound)
    if trainer.num_processes == 1:
        trainer.train(samples(8), 1, per_device_batch_size=2)
        assert trainer.num_updates_completed == 4
    else:
        with pytest.raises(UnsupportedConfigurationError, match=r"self\.get_model\(\)"):
            trainer.train(samples(8), 1, per_device_batch_size=2)
        assert trainer.num_updates_completed == 0


@pytest.mark.parametrize("variable", ["ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP", "ACCELERATE_USE_MEGATRON_LM"])
def test_sharded(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that was launched with other sharding than FSDP2 ends before the first step, and is told of it."""
    monkeypatch.setenv(variable, "true")
    with pytest.raises(UnsupportedConfigurationError, match="--fsdp_version 2"):
        make_trainer()


def test_versions() -> None:
    """The floors on the page are those that are declared."""
    declared = (PACKAGES / "pa-core" / "pyproject.toml").read_text()
    floors = ['requires-python = ">=3.11"', '"torch>=2.11"', '"accelerate>=1.13.0"']
    assert [floor for floor in floors if floor not in declared] == []
    assert sys.version_info >= (3, 11)


def test_nested_runs() -> None:
    """Neither evaluates nor trains within a run; the method that is named evaluates."""

    class CallInRun(TrainerCallback):
        def __init__(self, name: str) -> None:
            self.name = name

        @override
        def on_train_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
            arguments = {"evaluate": (samples(4),), "train": (samples(4), 1), "run_evaluation_epoch": ()}
            getattr(trainer, self.name)(*arguments[self.name])

    for name in ("evaluate", "train"):
        with pytest.raises(ConfigurationError, match=rf"{name}\(\) within train\(\)"):
            make_trainer(Trainer, CallInRun(name)).train(samples(8), 1, samples(4))
    trainer = make_trainer(Trainer, CallInRun("run_evaluation_epoch"))
    trainer.train(samples(8), 1, samples(4))
    assert len(list(trainer.run_history.get_metric_values("eval_loss_epoch"))) == 2
