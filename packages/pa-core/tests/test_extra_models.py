"""Modules beside the model: trained with it by one loss, saved with it, only placed beside it, or refused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import (
    ArgumentTypeError,
    CheckpointError,
    ConfigurationError,
    SaveTrainingStateCallback,
    StopTrainingError,
    Trainer,
    TrainerPlaceholderValues,
    UnsupportedConfigurationError,
    gather_objects,
)
from pa_core.distributed import num_processes, rank
from pa_core.testing import make_regression
from tests.support.callbacks import CallAt, KillAt, KilledError
from tests.support.loops import updates_of
from tests.support.pa_core.towers import TwoTowers, contrast, decay, pairs, tower, two_towers, weights_of

everywhere = pytest.mark.runs_on("one_process", "two_ranks")
on_two_ranks = pytest.mark.runs_on("two_ranks")


def assert_alike(modules: Sequence[nn.Module], by_hand: Sequence[nn.Module]) -> None:
    """Both have the same weights."""
    for one, other in zip(modules, by_hand, strict=True):
        torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=0, atol=1e-12)


def trained_by_hand(
    modules: Sequence[nn.Module],
    loss_of: Callable[..., Tensor],
    optimizers: Sequence[Optimizer],
    batches: Iterable[list[Tensor]],
    *,
    clip: float | None = None,
    schedule: Callable[[Optimizer], Any] | None = None,
) -> Tensor:
    """Update modules as one process would; return the last norm that was clipped."""
    schedulers = [schedule(optimizer) for optimizer in optimizers] if schedule else []
    norm = torch.zeros(())
    for batch in batches:
        torch.autograd.backward(loss_of(*modules, *batch))
        if clip is not None:
            norm = nn.utils.clip_grad_norm_([one for module in modules for one in module.parameters()], clip)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        for scheduler in schedulers:
            scheduler.step()
    return norm


def contrast_of(model: nn.Module, captions: nn.Module, first: Tensor, second: Tensor) -> Tensor:
    """The loss of both towers."""
    return contrast(model(first), captions(second))


@everywhere
@pytest.mark.parametrize("clip", [None, 0.5])
def test_a_run_is_that_of_a_loop_by_hand(clip: float | None) -> None:
    """Weights, learning rates and the norm that is clipped, whatever the split, and with processes without a sample."""
    data, trainer = pairs(21), two_towers()
    model, captions = copy.deepcopy(trainer.model), copy.deepcopy(trainer.modules["captions"])
    options: dict[str, Any] = {"gradient_accumulation_steps": 2, "gradient_clip_norm": clip}
    trainer.train(data, 2, per_device_batch_size=4 // num_processes(), create_scheduler_fn=decay, **options)
    optimizers: list[Optimizer] = [SGD(model.parameters(), lr=0.1, momentum=0.9), Adam(captions.parameters(), lr=0.01)]
    batches = updates_of(data, trainer.run_config.seed, epochs=2, samples=8)
    norm = trained_by_hand([model, captions], contrast_of, optimizers, batches, clip=clip, schedule=decay)
    assert trainer.num_updates_completed == 6
    assert_alike([trainer.get_model(), trainer.modules["captions"]], [model, captions])
    assert gather_objects(weights_of(trainer)) == [weights_of(trainer)] * num_processes()
    rates = [optimizer.param_groups[0]["lr"] for optimizer in trainer.named_optimizers().values()]
    assert rates == pytest.approx([optimizer.param_groups[0]["lr"] for optimizer in optimizers])
    if clip is not None:
        torch.testing.assert_close(trainer.gradient_norm, norm, rtol=0, atol=1e-12)


@everywhere
def test_the_optimizer_of_the_trainer_may_train_a_module_too() -> None:
    """Given without an optimizer, it is trained by the one that has its parameters, and its gradients are exchanged."""
    torch.manual_seed(0)
    model, captions = tower(3), tower(5)
    copies = copy.deepcopy(model), copy.deepcopy(captions)
    trainer = TwoTowers(model, None, SGD([*model.parameters(), *captions.parameters()], lr=0.1), callbacks=[])
    trainer.add_module("captions", captions)
    trainer.train(pairs(8), 2, per_device_batch_size=4 // num_processes())
    optimizer = SGD([*copies[0].parameters(), *copies[1].parameters()], lr=0.1)
    trained_by_hand(copies, contrast_of, [optimizer], updates_of(pairs(8), trainer.run_config.seed, 2, samples=4))
    assert_alike([model, captions], copies)
    assert list(trainer.named_models()) == ["model", "captions"]
    assert list(trainer.named_optimizers()) == ["optimizer"]


class Weighted(nn.Module):
    """A loss with weights: a scale for each output."""

    def __init__(self) -> None:
        super().__init__()
        self.scale: nn.Parameter = nn.Parameter(torch.full((2,), 0.5, dtype=torch.float64))

    @override
    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        errors: Tensor = (outputs - targets).square() * (-self.scale).exp() + self.scale
        return errors.mean()


def weighted_loss(model: nn.Module, loss_func: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Of both."""
    loss: Tensor = loss_func(model(inputs), targets)
    return loss


@everywhere
@pytest.mark.parametrize("reproducible", [None, "any_processes"])
def test_a_loss_function_with_weights_is_trained_by_the_optimizer_of_the_trainer(reproducible: Any) -> None:
    """Its gradients are exchanged, clipped and accumulated with those of the model, on any number of processes."""
    torch.manual_seed(rank())
    model, loss_func = nn.Linear(2, 2, dtype=torch.float64), Weighted()
    optimizer = SGD([*model.parameters(), *loss_func.parameters()], lr=0.1)
    trainer = Trainer(model, loss_func, optimizer, callbacks=[], reproducible=reproducible)
    inputs = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(12, 2)
    data = TensorDataset(inputs, inputs.flip(1))
    copies: list[tuple[nn.Module, nn.Module]] = []
    note = CallAt("on_training_run_start", lambda _trainer: copies.append(copy.deepcopy((model, loss_func))))
    trainer.callback_handler.add_callback(note)
    trainer.train(data, 2, per_device_batch_size=1, samples_per_update=4, gradient_clip_norm=0.5)
    optimizer = SGD([one for module in copies[0] for one in module.parameters()], lr=0.1)
    batches = updates_of(data, trainer.run_config.seed, epochs=2, samples=4)
    trained_by_hand(copies[0], weighted_loss, [optimizer], batches, clip=0.5)
    assert_alike([model, loss_func], copies[0])


@on_two_ranks
def test_a_loss_function_with_weights_that_nobody_trains() -> None:
    """What the error advises works: its weights go to the optimizer, or are frozen."""
    model, loss_func = nn.Linear(2, 2, dtype=torch.float64), Weighted()
    inputs = torch.ones(8, 2, dtype=torch.float64)
    trainer = Trainer(model, loss_func, SGD(model.parameters(), lr=0.1), callbacks=[])
    with pytest.raises(UnsupportedConfigurationError, match="Pass its parameters to the optimizer of the trainer; or"):
        trainer.train(TensorDataset(inputs, inputs), 1)
    loss_func.requires_grad_(False)
    trainer.train(TensorDataset(inputs, inputs), 1)
    assert trainer.num_epochs_completed == 1


@on_two_ranks
def test_modules_that_were_made_differently_begin_as_that_of_rank_zero() -> None:
    """As the model does; and however the processes were seeded, they share one seed, and so the order of samples."""
    trainer = two_towers(seed=rank())
    trainer.train(pairs(5), 1, per_device_batch_size=2)
    assert gather_objects(weights_of(trainer)) == [weights_of(trainer)] * 2
    assert len(set(gather_objects(trainer.run_config.seed))) == 1


class Twice(TwoTowers):
    """Calls the module in several ways, and in some steps not at all."""

    @override
    def calculate_train_batch_loss(self, batch: Any) -> Any:
        images = self.model(batch[0])
        captions: Any = self.modules["captions"]
        loss = images.square().mean()
        if self.num_updates_completed % 2 == 0:
            loss = loss + captions(batch[1]).mean() + captions[0](batch[1]).square().mean() + captions(batch[0]).mean()
        return {"loss": loss, "model_outputs": images, "batch_size": len(images)}


@on_two_ranks
def test_a_module_may_be_called_often_or_not_at_all() -> None:
    """The processes stay equal: also where a part of it is called by itself, or no part in a whole update."""
    trainer = two_towers(kind=Twice)
    trainer.train(pairs(13), 2, per_device_batch_size=2)
    assert trainer.num_updates_completed == 8
    assert gather_objects(weights_of(trainer)) == [weights_of(trainer)] * 2


class Normalised(TwoTowers):
    """Notes the statistics of a layer of the model, and of one of the module, at the end of each epoch."""

    @override
    def eval_epoch_start(self) -> None:
        super().eval_epoch_start()
        layers: list[Any] = [self.get_model()[1], self.modules["captions"].get_submodule("1")]
        self.run_history.update_metric("means", [layer.running_mean.sum().item() for layer in layers])
        self.run_history.update_metric("are_training", [layer.training for layer in layers])


@everywhere
def test_modes_and_buffers_are_those_of_a_model() -> None:
    """In evaluation both are in eval mode with the statistics of rank zero; training goes on in training mode."""
    torch.manual_seed(0)
    model, captions = (nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)).double() for _ in range(2))
    trainer = Normalised(model, None, SGD(model.parameters(), lr=0.1), callbacks=[])
    trainer.add_module("captions", captions, SGD(captions.parameters(), lr=0.1))
    trainer.train(pairs(16), 2, pairs(8), per_device_batch_size=4)
    means = list(trainer.run_history.get_metric_values("means"))
    assert gather_objects(means) == [means] * num_processes()
    assert means[0] != means[1]
    assert list(trainer.run_history.get_metric_values("are_training")) == [[False, False]] * 2
    assert captions.training


@everywhere
def test_a_teacher() -> None:
    """What nobody trains is put into eval mode, gets no gradient of its own, and is in nothing that is saved."""

    class Distilled(Trainer[nn.Sequential]):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> Any:
            with torch.no_grad():
                taught = self.modules["teacher"](batch[0])
            outputs = self.model(batch[0])
            return {"loss": (outputs - taught).square().mean(), "model_outputs": outputs, "batch_size": len(outputs)}

    torch.manual_seed(0)
    model, teacher = tower(3), tower(8, drops=0.5)
    before = copy.deepcopy(teacher.state_dict())
    trainer = Distilled(model, None, SGD(model.parameters(), lr=0.5), callbacks=[])
    trainer.add_module("teacher", teacher.requires_grad_(False))
    trainer.train(pairs(32), 20, per_device_batch_size=4)
    losses = list(trainer.run_history.get_metric_values("train_loss_epoch"))
    assert losses[-1] < losses[0] / 2
    assert not teacher.training
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())
    assert list(trainer.named_models()) == ["model"]


def test_a_module_is_placed_in_the_precision_of_the_run() -> None:
    """What a step calls computes in it; when the run is over, the module is the user's own again."""
    dtypes: list[torch.dtype] = []

    class Notes(Trainer[nn.Module]):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> Any:
            loss = self.model(self.modules["first"](batch[0])).square().mean()
            return {"loss": loss, "model_outputs": None, "batch_size": len(batch[0])}

    first, model = nn.Sequential(nn.Linear(4, 4)), nn.Linear(4, 1)
    first[0].register_forward_hook(lambda _module, _inputs, output: dtypes.append(output.dtype))
    trainer = Notes(model, None, SGD(model.parameters(), lr=0.1), callbacks=[], mixed_precision="bf16")
    trainer.add_module("first", first, SGD(first.parameters(), lr=0.1))
    trainer.train(TensorDataset(torch.ones(4, 4), torch.ones(4, 1)), 1)
    first(torch.ones(1, 4))
    assert dtypes == [torch.bfloat16, torch.float32]
    assert "forward" not in vars(first)
    assert all(parameter.grad is None for parameter in first.parameters())


def test_an_update_that_overflows_in_the_module_is_made_in_neither() -> None:
    """With a scaler of fp16, gradients of both are unscaled before they are clipped, and an overflow skips both."""
    factors = [float("inf"), 1.0]

    class InFp16(Trainer[nn.Module]):
        @override
        def create_accelerator(self) -> Any:
            accelerator: Any = Accelerator(cpu=True, mixed_precision="fp16")
            accelerator.scaler = GradScaler("cpu", init_scale=1024.0)
            return accelerator

        @override
        def calculate_train_batch_loss(self, batch: Any) -> Any:
            loss = self.model(batch[0]).sum() + self.modules["other"](batch[0]).sum() * factors.pop(0)
            return {"loss": loss, "model_outputs": None, "batch_size": len(batch[0])}

    model, other = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)
    before = [module.weight.tolist() for module in (model, other)]
    trainer = InFp16(model, None, SGD(model.parameters(), lr=1.0), callbacks=[])
    trainer.add_module("other", other, SGD(other.parameters(), lr=1.0))
    data = TensorDataset(torch.ones(8, 2), torch.ones(8, 1))
    trainer.train(data, 1, per_device_batch_size=8, gradient_clip_norm=100.0)
    assert trainer.num_updates_completed == 0
    assert [module.weight.tolist() for module in (model, other)] == before
    trainer.train(data, 1, per_device_batch_size=8, gradient_clip_norm=4.0)
    assert trainer.gradient_norm is not None
    assert trainer.gradient_norm.item() == pytest.approx(16.0)  # four gradients of 8
    for module, weights in zip((model, other), before, strict=True):
        assert module.weight.tolist() == [pytest.approx([weight - 2.0 for weight in weights[0]], abs=1e-5)]


@everywhere
def test_a_scheduler_is_stepped_when_the_trainers_is() -> None:
    """Also after epochs with a metric, or if the trainer itself has none; placeholders have the length of the run."""
    trainer = two_towers(schedule=partial(ReduceLROnPlateau, factor=0.5, patience=0, threshold=1e9))
    trainer.train(pairs(8), 3, per_device_batch_size=2, watch_metric="train_loss_epoch")
    assert trainer.named_optimizers()["captions"].param_groups[0]["lr"] == 0.01 * 0.5**3
    assert trainer.scheduler is None
    updates = TrainerPlaceholderValues.NUM_EPOCHS * TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH
    trainer = two_towers(schedule=partial(OneCycleLR, max_lr=1.0, total_steps=updates + 1))
    trainer.train(pairs(8), 3, per_device_batch_size=2)
    assert trainer.named_optimizers()["captions"].param_groups[0]["lr"] < 1e-3


# Refused


def of(module: nn.Module) -> SGD:
    """An optimizer of a module."""
    return SGD(module.parameters(), lr=0.1)


def with_replaced_optimizer(trainer: TwoTowers) -> None:
    """A new one has the parameters of both towers."""
    trainer.optimizer = SGD([*trainer.model.parameters(), *trainer.modules["captions"].parameters()], lr=0.1)
    trainer.train(pairs(4), 1)


def in_two_optimizers(trainer: TwoTowers) -> None:
    """A module whose parameters the trainer's optimizer has too."""
    module = tower(2)
    trainer.optimizer.add_param_group({"params": module.parameters()})
    trainer.add_module("more", module, of(module))


def later(event: str, add: Callable[[Any], object]) -> Callable[[Any], None]:
    """Something that is done in a run."""

    def train(trainer: Any) -> None:
        trainer.callback_handler.add_callback(CallAt(event, add))
        trainer.train(pairs(4), 1)

    return train


REFUSED: dict[str, tuple[str, Callable[[Any], object]]] = {
    "a name twice": ("A module has this name already", lambda one: one.add_module("captions", tower(2))),
    "a reserved name": ("except loss_func, model", lambda one: one.add_module("model", tower(2))),
    "no name": ("letters, digits", lambda one: one.add_module("my module", tower(2))),
    "the model's head": ("it is already trained", lambda one: one.add_module("head", one.model[3], of(one.model[3]))),
    "a part of another module": (
        "a single module that contains both",
        lambda one: one.add_module("more", part := nn.Sequential(one.modules["captions"][0]), of(part)),
    ),
    "a foreign optimizer": ("SGD with 4 other parameters", lambda one: one.add_module("more", tower(2), of(tower(2)))),
    "two optimizers": ("Two optimizers would train", in_two_optimizers),
    "no optimizer": ("Pass its optimizer, or call requires_grad_", lambda one: one.add_module("more", tower(2))),
    "no optimizer, a scheduler": (
        "Pass the optimizer of the module too",
        lambda one: one.add_module("more", tower(2).eval(), None, decay),
    ),
    "a scheduler": (
        "an instance of StepLR",
        lambda one: one.add_module("more", tower(2), None, decay(one.optimizer)),
    ),
    "a class": ("module=nn.Linear", lambda one: one.add_module("more", nn.Linear)),
    "an optimizer's class": ("The optimizer is a class", lambda one: one.add_module("more", tower(2), SGD)),
    "a module that is added in a run": (
        r"add_module\('late', \.\.\.\) in a callback",
        later("on_train_epoch_start", lambda one: one.add_module("late", tower(2).eval())),
    ),
    "an optimizer that was replaced": (
        "Two optimizers would train the module 'captions'",
        with_replaced_optimizer,
    ),
}
OF_TYPES = {"a scheduler": TypeError, "a class": ArgumentTypeError, "an optimizer's class": ArgumentTypeError}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_added(case: str) -> None:
    """Each is an error that names what is wrong, and the trainer trains as before."""
    message, add = REFUSED[case]
    trainer = two_towers()
    with pytest.raises(OF_TYPES.get(case, ConfigurationError), match=message):
        add(trainer)
    assert list(trainer.modules) == ["captions"]
    assert trainer.num_updates_completed == 0


def test_a_schedule_that_ends_too_early_is_refused_before_anything_is_trained() -> None:
    """As the scheduler of the trainer is."""
    short = two_towers(schedule=partial(OneCycleLR, max_lr=1.0, total_steps=5))
    with pytest.raises(ConfigurationError, match="schedule is shorter than the run"):
        short.train(pairs(8), 3, per_device_batch_size=2)
    assert short.num_updates_completed == 0


@on_two_ranks
def test_a_module_that_was_added_may_be_an_attribute_as_well() -> None:
    """It is not taken for one whose gradients nobody exchanges; another one still is."""
    trainer: Any = two_towers()
    trainer.captions, trainer.optimizer_of_captions = (
        trainer.modules["captions"],
        trainer.named_optimizers()["captions"],
    )
    trainer.train(pairs(8), 1, per_device_batch_size=2)
    assert trainer.num_updates_completed == 2
    trainer.critic = nn.Linear(1, 1)
    with pytest.raises(UnsupportedConfigurationError, match=r"trainer\.add_module\('critic', \.\.\.\)"):
        trainer.train(pairs(8), 1, per_device_batch_size=2)


@on_two_ranks
def test_a_step_that_trains_the_module_by_itself() -> None:
    """Its gradients would not be averaged: an error says so before the trainer's first update."""

    class Adversarial(TwoTowers):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> Any:
            torch.autograd.backward(self.modules["captions"](batch[1]).square().mean())
            optimizer = self.named_optimizers()["captions"]
            optimizer.step()
            optimizer.zero_grad()
            return super().calculate_train_batch_loss(batch)

    trainer = two_towers(kind=Adversarial)
    with pytest.raises(UnsupportedConfigurationError, match=r"'captions' differs between the processes(.|\n)*use Run"):
        trainer.train(pairs(16), 1, per_device_batch_size=2)
    assert trainer.num_updates_completed == 0


@on_two_ranks
def test_a_stop_on_one_process_stops_both() -> None:
    """The other one does not wait for the gradients of a module that the first has not called."""

    class StopsAlone(TwoTowers):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> Any:
            if self.num_updates_completed == 2 and not self.is_main_process:
                raise StopTrainingError("enough")
            return super().calculate_train_batch_loss(batch)

    trainer = two_towers(kind=StopsAlone)
    trainer.train(pairs(16), 1, per_device_batch_size=2)
    assert gather_objects(trainer.num_updates_completed) == [2, 2]
    assert gather_objects(weights_of(trainer)) == [weights_of(trainer)] * 2


# Saved


@everywhere
def test_a_checkpoint_has_the_module_by_its_name(shared_tmp_path: Path) -> None:
    """Its weights, its optimizer and its scheduler come back with those of the model."""
    path, saved = shared_tmp_path / "both.pt", two_towers()
    saved.train(pairs(8), 2, per_device_batch_size=2)
    saved.save_checkpoint(path)
    loaded = two_towers()
    content = loaded.load_checkpoint(path, load_scheduler=False)
    assert sorted(content["modules"]["captions"]) == [
        "model_state_dict",
        "optimizer_state_dict",
        "scheduler_state_dict",
    ]
    assert weights_of(loaded) == weights_of(saved)
    steps = [
        [state["step"] for state in trainer.named_optimizers()["captions"].state.values()]
        for trainer in (saved, loaded)
    ]
    assert steps[0] == steps[1] != []


def test_a_checkpoint_without_the_module(tmp_path: Path) -> None:
    """Nothing of it is loaded where the trainer has a module that it lacks; a trainer without one loads its model."""
    with_module, without = tmp_path / "both.pt", tmp_path / "model.pt"
    trainer = two_towers()
    trainer.train(pairs(8), 1)
    trainer.save_checkpoint(with_module)
    model = tower(3)
    alone = Trainer(model, None, SGD(model.parameters(), lr=0.1, momentum=0.9), callbacks=[])
    alone.load_checkpoint(with_module)
    for one, other in zip(model.parameters(), trainer.model.parameters(), strict=True):
        assert torch.equal(one, other)
    alone.save_checkpoint(without)
    fresh = two_towers()
    before = weights_of(fresh)
    with pytest.raises(CheckpointError, match=r"lacks modules(.|\n)*without 'captions'"):
        fresh.load_checkpoint(without)
    assert weights_of(fresh) == before


@everywhere
@pytest.mark.parametrize("update", [2, 4])
def test_a_resumed_run_goes_on_bit_for_bit(update: int, shared_tmp_path: Path) -> None:
    """In mid-epoch and in another one, with both optimizers and schedulers, in objects that were made anew."""

    def train(trainer: TwoTowers, **arguments: Any) -> TwoTowers:
        torch.manual_seed(3)
        trainer.train(
            pairs(21), 3, per_device_batch_size=2, gradient_accumulation_steps=2, create_scheduler_fn=decay, **arguments
        )
        return trainer

    whole = train(two_towers(drops=0.2))
    save = SaveTrainingStateCallback(shared_tmp_path, save_every_n_steps=update)
    with pytest.raises(KilledError):
        train(two_towers(save, KillAt(update + 1), drops=0.2))
    resumed = train(two_towers(drops=0.2), resume_from=shared_tmp_path)
    assert weights_of(resumed) == weights_of(whole)
    assert [one.state_dict() for one in resumed.named_schedulers().values()] == [
        one.state_dict() for one in whole.named_schedulers().values()
    ]
    assert resumed.run_history.get_metric_values("train_loss_epoch") == whole.run_history.get_metric_values(
        "train_loss_epoch"
    )


def trainer_with(give: Callable[[Any], object], model: nn.Module | None = None) -> Trainer:
    """A trainer that is given something more."""
    model = model or nn.Linear(4, 1)
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[])
    give(trainer)
    return trainer


def beside(attribute: str, make: Callable[[Any], Any]) -> Callable[[Any], None]:
    """A module that the script trains by an optimizer of its own."""

    def give(trainer: Any) -> None:
        module = make(trainer)
        setattr(trainer, attribute, module)
        trainer.own_optimizer = SGD(module.parameters(), lr=0.1)

    return give


TRAINED: dict[str, tuple[str, Callable[[Any], object]]] = {
    "a module": ("self.discriminator,", lambda trainer: setattr(trainer, "discriminator", nn.Linear(1, 1))),
    "a module in a list": (
        r"self.heads\[1\],",
        lambda trainer: setattr(trainer, "heads", [nn.Linear(1, 1).requires_grad_(False), nn.Linear(1, 1)]),
    ),
    "a loss function": ("self.loss_func,", lambda trainer: setattr(trainer, "loss_func", nn.Bilinear(1, 1, 1))),
    "a parameter": ("self.temperature,", lambda trainer: setattr(trainer, "temperature", nn.Parameter(torch.ones(1)))),
    "a copy of the model": ("self.other,", beside("other", lambda trainer: copy.deepcopy(trainer.model))),
    "a module in eval mode": ("self.discriminator,", beside("discriminator", lambda _: nn.Linear(1, 1).eval())),
    "a parameter of the optimizer": (
        "self.optimizer,",
        lambda trainer: trainer.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]}),
    ),
}


@everywhere
@pytest.mark.parametrize("case", TRAINED)
def test_what_would_drift_apart_is_named_before_anything_is_trained(case: str) -> None:
    """On several processes, with what to do about it; on one, whatever there is may be trained."""
    attribute, give = TRAINED[case]
    trainer = trainer_with(give)
    if num_processes() == 1:
        if case != "a loss function":
            trainer.train(make_regression(8), 1)
        return
    with pytest.raises(UnsupportedConfigurationError, match=attribute):
        trainer.train(make_regression(8), 1, per_device_batch_size=2)
    assert trainer.num_updates_completed == 0


def with_much_that_is_not_trained(trainer: Any) -> None:
    """What trainers have beside the model, and no optimizer changes."""
    trainer.teacher_in_eval_mode = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)).eval()
    trainer.metric_with_a_network = nn.ModuleDict({"network": nn.Linear(1, 2).eval()})
    trainer.teacher = nn.Linear(4, 1).requires_grad_(False)
    trainer.metric = nn.Identity()
    trainer.part_of_model = trainer.model[0]
    trainer.average = AveragedModel(trainer.model)
    trainer.own_average = copy.deepcopy(trainer.model)
    trainer.average_in_a_module = nn.ModuleDict({"average": copy.deepcopy(trainer.model)})


@everywhere
def test_what_is_not_trained_may_be_there() -> None:
    """A teacher, frozen or in eval mode, metrics, a part of the model under another name, averages of the model."""
    trainer = trainer_with(with_much_that_is_not_trained, nn.Sequential(nn.Linear(4, 1)))
    trainer.train(make_regression(8), 1, per_device_batch_size=2)
    assert trainer.num_updates_completed == 8 // (2 * num_processes())


class Adversarial(Trainer[Any]):
    """Trains a generator to please a discriminator that is trained in the same steps."""

    discriminator: Any
    discriminator_optimizer: SGD

    @override
    def calculate_train_batch_loss(self, batch: Any) -> Any:
        made = self.model(batch[0])
        self.discriminator_optimizer.zero_grad()
        torch.autograd.backward(self.discriminator(made.detach()).square().mean())
        self.discriminator_optimizer.step()
        return {"loss": self.discriminator(made).mean(), "model_outputs": made, "batch_size": len(made)}


@on_two_ranks
def test_a_module_that_is_wrapped_already_is_trained_equally() -> None:
    """It may have a loss and an optimizer of its own; without the wrapper it is refused."""
    torch.manual_seed(0)
    model, discriminator = nn.Linear(4, 1), nn.Linear(1, 1)
    trainer = Adversarial(model, None, SGD(model.parameters(), lr=0.1), callbacks=[])
    trainer.discriminator = discriminator
    trainer.discriminator_optimizer = SGD(discriminator.parameters(), lr=0.1)
    with pytest.raises(UnsupportedConfigurationError, match=r"self.discriminator\b"):
        trainer.train(make_regression(8), 1, per_device_batch_size=2)
    trainer.discriminator = DistributedDataParallel(discriminator)
    trainer.train(make_regression(8), 2, per_device_batch_size=2)
    for module in (model, discriminator):
        assert len(set(gather_objects(str(list(module.parameters()))))) == 1
