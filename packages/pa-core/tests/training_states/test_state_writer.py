"""What could not be stored is an error when the run starts; what is as in the state before is linked, not written."""

from __future__ import annotations

import copy
import errno
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_checkpoint import Folder, load
from pa_core import AnyTrainer, CheckpointError, SaveTrainingStateCallback, Trainer, TrainerCallback
from pa_core.testing import make_regression
from tests.support.callbacks import CallAt
from tests.support.pa_core.training_states.small_runs import InterruptAt, Interrupted


class Momentum(Optimizer):
    """Gradient descent with momentum that is kept beside ``state``, and saved in a form of its own."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})
        self.velocity: list[Tensor] = []
        self.age = 0

    @override
    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        self.velocity = self.velocity or [torch.zeros_like(parameter) for parameter in parameters]
        self.age += 1
        for parameter, velocity in zip(parameters, self.velocity, strict=True):
            velocity.mul_(0.9).add_(parameter.grad)
            parameter.sub_(velocity, alpha=self.param_groups[0]["lr"] / self.age)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"velocity": self.velocity, "age": self.age}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.velocity = [tensor.clone() for tensor in state_dict["velocity"]]
        self.age = state_dict["age"]


class InGroups(SGD):
    """Counts its steps, and adapts its rate, in the groups: as AdamP and Prodigy do."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        for group in self.param_groups:
            group.update(step=0, d=1e-3)

    @override
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["step"] += 1
            group["d"] *= 1.5
            group["lr"] = group["d"] / group["step"]
        super().step()


class Nested(SGD):
    """Keeps lists and dictionaries for each parameter: as heavyball does."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)

    @override
    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state.setdefault("0", {"seen": [torch.zeros_like(parameter)], "is_first": True})
            state["0"]["seen"][0].lerp_(parameter.grad, 0.5)
            parameter.grad.add_(state["0"]["seen"][0])
        super().step()


class Quantised(Tensor):
    """Stands for the tensors in which optimizers with 8 bits keep their state."""


class EightBits(Adam):
    """Keeps its state, from the first update on, in tensors of a class of its own."""

    @override
    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        for state in self.state.values():
            state["exp_avg"] = state["exp_avg"].as_subclass(Quantised)


class NoState:
    """A scheduler that says nothing of itself."""

    def step(self) -> None:
        """Leave everything as it is."""


def make_trainer(kind: type[Optimizer], *callbacks: TrainerCallback) -> Trainer:
    """A trainer with an optimizer of a kind."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    make: Any = kind
    return Trainer(model, nn.MSELoss(), make(model.parameters()), callbacks=callbacks)


def train(trainer: Trainer, **options: Any) -> list[float]:
    """Twelve updates; the weights and a draw from the random stream at the end."""
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(24, 3), torch.randn(24, 1))
    trainer.train(data, num_epochs=2, per_device_batch_size=4, **options)
    weights = [weight for tensor in trainer.model.state_dict().values() for weight in tensor.flatten().tolist()]
    return [*weights, *torch.rand(2).tolist()]


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("kind", [Momentum, InGroups, Nested])
def test_whatever_an_optimizer_keeps_is_resumed_bit_for_bit(kind: type[Optimizer], shared_tmp_path: Path) -> None:
    """In a form of its own, in its groups, or nested: settings in the groups are the script's, all else the state's."""
    whole = train(make_trainer(kind))
    states = SaveTrainingStateCallback(shared_tmp_path, save_every_n_steps=2)

    with pytest.raises(Interrupted):
        train(make_trainer(kind, states, InterruptAt("on_train_step_end", 3)))

    resumed = make_trainer(kind, SaveTrainingStateCallback(shared_tmp_path))
    assert train(resumed, resume_from=shared_tmp_path) == whole
    assert isinstance(resumed.optimizer, kind)
    assert getattr(resumed.optimizer, "age", resumed.num_updates_completed) == resumed.num_updates_completed


class WarmUp:
    """Raises the rates over ten updates, without a `step` that a run could call: as the package pytorch-warmup does."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.count = 0

    def dampen(self) -> None:
        """Set the rates of the next update."""
        self.count += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 * min(1.0, self.count / 10)

    def state_dict(self) -> dict[str, Any]:
        """How many updates there were."""
        return {"count": self.count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue after so many updates."""
        self.count = state_dict["count"]


def test_a_warm_up_without_a_step_is_resumed_bit_for_bit(tmp_path: Path) -> None:
    """Called by a callback, and registered with the trainer."""

    def warmed_up(*callbacks: TrainerCallback) -> Trainer:
        trainer = make_trainer(Adam, *callbacks)
        warm_up = WarmUp(trainer.optimizer)
        warm_up.dampen()
        trainer.callback_handler.add_callback(CallAt("on_optimizer_step_end", lambda _: warm_up.dampen()))
        trainer.register_for_checkpointing(warm_up)
        return trainer

    whole = train(warmed_up())
    states = SaveTrainingStateCallback(tmp_path, save_every_n_steps=2)
    with pytest.raises(Interrupted):
        train(warmed_up(states, InterruptAt("on_train_step_end", 3)))
    assert train(warmed_up(SaveTrainingStateCallback(tmp_path)), resume_from=tmp_path) == whole


@pytest.mark.runs_on("one_process", "two_ranks")
def test_an_optimizer_whose_state_cannot_be_stored_is_refused_after_the_first_update(shared_tmp_path: Path) -> None:
    """Not at the first save, which may be hours later."""
    trainer = make_trainer(EightBits, SaveTrainingStateCallback(shared_tmp_path))

    with pytest.raises(
        CheckpointError,
        match=r"cannot be stored[\s\S]*EightBits with optimizer\['state'\]\[0\]\['exp_avg'\]: Quantised",
    ):
        train(trainer)
    assert trainer.num_updates_completed == 1


@pytest.mark.parametrize("kind", [Adam, Momentum])
def test_trying_it_changes_nothing(kind: type[Optimizer], tmp_path: Path) -> None:
    """A run that is checked ends with the same bits as one that is not, its optimizer and random streams included."""
    seen: list[dict[str, Any]] = []

    class Watch(TrainerCallback):
        @override
        def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
            seen.append(copy.deepcopy(trainer.optimizer.state_dict()))

    checked = train(make_trainer(kind, SaveTrainingStateCallback(tmp_path, save_at_end=False), Watch()))
    num_checked = len(seen)

    assert train(make_trainer(kind, Watch())) == checked
    assert str(seen[:num_checked]) == str(seen[num_checked:])


def test_a_scheduler_without_a_state_is_refused_before_the_first_update(tmp_path: Path) -> None:
    """It could not go on from where it was."""
    trainer = make_trainer(Adam, SaveTrainingStateCallback(tmp_path))

    def make_scheduler(optimizer: Optimizer) -> Any:
        return NoState()

    with pytest.raises(CheckpointError, match="NoState without state_dict and load_state_dict"):
        train(trainer, create_scheduler_fn=make_scheduler)
    assert trainer.num_updates_completed == 0


DATA = make_regression(24)


class KeepsHidden(Trainer[nn.Linear]):
    """Adds up the outputs of all batches, as a recurrent model carries its hidden state over them."""

    def __init__(self, folder: Path | None) -> None:
        model = nn.Linear(4, 1)
        save = [] if folder is None else [SaveTrainingStateCallback(folder, save_every_n_steps=2)]
        super().__init__(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=save)
        self.weights_of_loss = torch.ones(1)
        self.teacher = nn.Linear(4, 1).eval()
        self.hidden = torch.zeros(1)

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        output["loss"] = output["loss"] * self.weights_of_loss
        self.carry(output["model_outputs"].detach().mean())
        return output

    def carry(self, value: Tensor) -> None:
        """Keep something of a step."""
        self.hidden = self.hidden + value


class InPlace(KeepsHidden):
    """The same, in the same tensor."""

    @override
    def carry(self, value: Tensor) -> None:
        self.hidden += value


class InList(KeepsHidden):
    """A memory that grows."""

    @override
    def carry(self, value: Tensor) -> None:
        memory: list[Tensor] = vars(self).setdefault("memory", [])
        memory.append(value)


class InModule(KeepsHidden):
    """A copy that follows the model."""

    @override
    def carry(self, value: Tensor) -> None:
        self.teacher.load_state_dict(self.model.state_dict())


class Holder:
    """What the message advises."""

    def __init__(self, trainer: KeepsHidden) -> None:
        self.trainer = trainer

    def state_dict(self) -> dict[str, Tensor]:
        """A copy, as many write it."""
        return {"hidden": self.trainer.hidden.clone()}

    def load_state_dict(self, state_dict: dict[str, Tensor]) -> None:
        """Take it back."""
        self.trainer.hidden = state_dict["hidden"]


@pytest.mark.parametrize(
    ("kind", "attribute"), [(KeepsHidden, "hidden"), (InPlace, "hidden"), (InList, "memory"), (InModule, "teacher")]
)
def test_what_steps_leave_on_the_trainer_is_warned_of_once(
    kind: type[KeepsHidden], attribute: str, tmp_path: Path
) -> None:
    """It would be lost by a kill; what does not change is no part of it."""
    trainer = kind(tmp_path)
    with pytest.warns(UserWarning, match="Training steps have left") as warned:
        trainer.train(DATA, num_epochs=2)
    (said,) = [str(one.message) for one in warned]
    assert f"in trainer.{attribute}, which" in said
    assert "trainer.register_for_checkpointing(" in said


def test_what_is_registered_or_lost_by_nothing_is_not_warned_of(tmp_path: Path) -> None:
    """A registered object has it, perhaps as a copy; and a run that saves no states has nothing to be resumed from."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "callbacks=")
        KeepsHidden(None).train(DATA, num_epochs=1)
        trainer = KeepsHidden(tmp_path)
        trainer.register_for_checkpointing(Holder(trainer))
        trainer.train(DATA, num_epochs=1)
        whole = InModule(tmp_path / "module")
        whole.register_for_checkpointing(whole.teacher)
        whole.train(DATA, num_epochs=1)


class ReadsFromDisk(Mapping[str, Tensor]):
    """Stands for a file of many tensors."""

    reads = 0

    @override
    def __getitem__(self, key: str) -> Tensor:
        self.reads += 1
        return torch.zeros(1)

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(("first", "second"))

    @override
    def __len__(self) -> int:
        return 2


def test_attributes_that_hold_themselves_or_read_from_a_file_are_in_nobodys_way(tmp_path: Path) -> None:
    """A tree whose nodes know their parents does not end the run, and a file is not read for the sake of a warning."""
    trainer = KeepsHidden(tmp_path)
    tree: dict[str, Any] = {"hidden": trainer.hidden, "children": []}
    tree["children"].append({"parent": tree})
    file = ReadsFromDisk()
    vars(trainer).update(tree=tree, file=file)
    with pytest.warns(UserWarning, match=r"in trainer\.hidden, which"):
        trainer.train(DATA, num_epochs=1)
    assert file.reads == 0


CONSTANT = "models.constant.safetensors"
SAMPLES = TensorDataset(torch.randn(64, 512, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 4)


def _model(frozen_layers: int = 1) -> nn.Sequential:
    """Frozen layers of a MiB each, beside BatchNorm, whose statistics change all the same, and a trained layer."""
    torch.manual_seed(0)
    frozen = nn.Sequential(*(nn.Linear(512, 512) for _ in range(frozen_layers)), nn.BatchNorm1d(512))
    return nn.Sequential(frozen.requires_grad_(False), nn.Linear(512, 512), nn.Linear(512, 4))


def _first_layer(model: nn.Module) -> nn.Linear:
    layer = model.get_submodule("0.0")
    assert isinstance(layer, nn.Linear)
    return layer


class _After(TrainerCallback):
    """Does something to the model after an update, before its state is saved."""

    def __init__(self, update: int, do: Callable[[nn.Module], object]) -> None:
        self.update, self.do = update, do

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        if update >= self.update:
            self.do(trainer.get_model())


def _train(folder: Path, model: nn.Module, *callbacks: TrainerCallback, steps: int, **given: Any) -> list[Path]:
    """Save a state after each of the steps, and return the states."""
    save = SaveTrainingStateCallback(
        folder, save_every_n_steps=1, save_at_end=False, asynchronous=given.pop("asynchronous", False)
    )
    trainer = Trainer(model, nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters()), callbacks=[*callbacks, save])
    trainer.train(SAMPLES, 1, per_device_batch_size=16, max_num_train_steps=steps, **given)
    return [folder / f"step_{update}" for update in range(1, steps + 1)]


def _require_weights(model: nn.Module, state: Path) -> None:
    saved: dict[str, Tensor] = load(state).parts["models"]["model"]["weights"]
    assert all(weight.equal(saved[name]) for name, weight in model.state_dict().items())


def _num_files(states: list[Path]) -> int:
    """How many different files hold what was found constant in some states."""
    return len({(state / CONSTANT).stat().st_ino for state in states})


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_state_costs_what_changed(tmp_path: Path, asynchronous: bool) -> None:
    """With 97 % frozen, a state takes 1.05 times the trained weights and their optimizer state, after a resume too."""
    model = _model(frozen_layers=39)
    model[2].requires_grad_(False)
    trained = 3 * sum(parameter.nbytes for parameter in model[1].parameters())

    _train(tmp_path, model, steps=2, asynchronous=asynchronous)
    states = _train(tmp_path, _model(39), steps=3, asynchronous=asynchronous, resume_from=tmp_path)

    for state in states[1:]:
        written = sum(file.stat().st_size for file in state.iterdir() if file.stat().st_nlink == 1)
        assert trained < written <= 1.05 * trained
    assert _num_files(states) == 1


def test_a_second_state_of_an_update_links_what_the_first_one_does(tmp_path: Path) -> None:
    """That trained weights are as in the state before, since both are of one update, has nothing written again."""
    model = _model()
    save = SaveTrainingStateCallback(tmp_path, save_every_n_steps=2)
    trainer = Trainer(model, nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters()), callbacks=[save])
    trainer.train(SAMPLES, 1, per_device_batch_size=16)
    assert _num_files([tmp_path / "step_2", tmp_path / "step_4", tmp_path / "final"]) == 1


def unfreeze(model: nn.Module) -> None:
    """Have a layer trained."""
    _first_layer(model).requires_grad_(True)


def halve(model: nn.Module) -> None:
    """Change weights through ``.data``, as teachers do, which torch does not note."""
    _first_layer(model).weight.data.mul_(0.5)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("change", [unfreeze, halve])
def test_what_changes_from_an_update_on_is_written(tmp_path: Path, change: Any, asynchronous: bool) -> None:
    """It is in each state as it was then; the others are still linked."""
    model = _model(frozen_layers=2)
    states = _train(tmp_path, model, _After(2, change), steps=4, asynchronous=asynchronous)
    _require_weights(model, states[3])
    for update, state in enumerate(states if change is halve else [], start=1):
        saved = load(state).parts["models"]["model"]["weights"]["0.0.weight"]
        assert saved.equal(_first_layer(_model(2)).weight * 0.5 ** (update - 1))
    assert _num_files(states) == 2


def test_a_damaged_file_is_not_linked_again(tmp_path: Path) -> None:
    """A run that is started again writes what an earlier process has written and a disk has damaged."""
    (state,) = _train(tmp_path, _model(), steps=1)
    content = bytearray((state / CONSTANT).read_bytes())
    content[-1] ^= 1
    (state / CONSTANT).write_bytes(content)

    model = _model()
    _train(tmp_path, model, steps=2)

    found, skipped = Folder(tmp_path).newest_readable(load)
    assert found is not None
    assert [one.path for one in skipped] == []
    _require_weights(model, found.path)


def test_without_links_everything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file system has no hard links, each state has files of its own."""

    def link(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    model = _model()
    states = _train(tmp_path, model, steps=2)
    _require_weights(model, states[1])
    assert _num_files(states) == 2


def test_few_constant_bytes_stay_in_one_file(tmp_path: Path) -> None:
    """States of small models have one file for each part."""
    model = nn.Sequential(nn.Linear(512, 8).requires_grad_(False), nn.Linear(8, 4))
    state = _train(tmp_path, model, steps=2)[1]
    assert not (state / CONSTANT).exists()
