"""Checkpoint files: what goes in comes out, bit by bit, and a file is never half of anything."""

from __future__ import annotations

import copy
import os
import pickle
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer, lr_scheduler
from typing_extensions import override

from pa_core import CheckpointError, Trainer, TrainerCallback, gather_objects
from pa_core.testing import TinyClassifier
from tests.support.callbacks import CallAt
from tests.support.disks import full_disk
from tests.support.explained import assert_explained
from tests.support.pa_core import good_run
from tests.support.pa_core.checkpointed_runs import DATA, halving, same, state_of, train


def make_trainer(seed: int = 0, *callbacks: TrainerCallback, **network: Any) -> Trainer[nn.Module]:
    """A trainer with everything that has state: buffers, momentum, and (in a run) a scheduler."""
    torch.manual_seed(seed)
    model = TinyClassifier(batch_norm=True, **network)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=callbacks)


def saved_at(path: Path) -> Trainer[nn.Module]:
    """A trainer that has trained, and has saved its checkpoint."""
    trainer = make_trainer()
    train(trainer)
    trainer.save_checkpoint(path)
    return trainer


def test_a_checkpoint_brings_everything_back_bit_by_bit(tmp_path: Path) -> None:
    """Weights, buffers, momentum and schedule of another trainer are those of the saved one."""
    saved = saved_at(tmp_path / "checkpoint.pt")
    other = make_trainer(seed=1)
    train(other, updates=2)
    assert not same(state_of(other), state_of(saved))

    other.load_checkpoint(str(tmp_path / "checkpoint.pt"))

    assert same(state_of(other), state_of(saved))
    for trainer in (saved, other):
        torch.manual_seed(3)
        train(trainer)
    assert same(state_of(other), state_of(saved)), "training goes on the same way"


@pytest.mark.parametrize("when", ["saved", "loaded"])
@pytest.mark.parametrize("part", ["optimizer", "scheduler"])
def test_parts_may_be_left_out(tmp_path: Path, part: str, when: str) -> None:
    """When a checkpoint is saved, so that they are not in the file, or when it is loaded; the rest is taken."""
    saved = make_trainer()
    train(saved)
    path, wanted = tmp_path / "checkpoint.pt", {"optimizer": part != "optimizer", "scheduler": part != "scheduler"}
    saving, loading = (wanted if when == one else dict.fromkeys(wanted, True) for one in ("saved", "loaded"))
    saved.save_checkpoint(path, save_optimizer=saving["optimizer"], save_scheduler=saving["scheduler"])
    assert set(torch.load(path)) == {"model_state_dict", *(f"{one}_state_dict" for one in saving if saving[one])}
    other = make_trainer(seed=1)
    train(other, updates=2)
    before = state_of(other)

    other.load_checkpoint(path, load_optimizer=loading["optimizer"], load_scheduler=loading["scheduler"])

    after = state_of(other)
    assert same(after[part], before[part])
    assert same({**after, part: None}, {**state_of(saved), part: None})


def test_further_entries_stand_at_the_top_of_the_file(tmp_path: Path) -> None:
    """`checkpoint_kwargs` are read back by name, and `load_checkpoint` returns the whole content."""
    trainer = make_trainer()
    train(trainer)
    extras = {"epoch": 3, "classes": ["a", "b"], "mean": torch.tensor([0.5]), "nested": {"best": (1.0, None)}}

    trainer.save_checkpoint(tmp_path / "folder" / "checkpoint.pt", extras)
    content = trainer.load_checkpoint(tmp_path / "folder" / "checkpoint.pt")

    states = {"model_state_dict", "optimizer_state_dict", "scheduler_state_dict"}
    assert set(content) == states | set(extras)
    assert same({key: content[key] for key in extras}, extras)
    assert same(content["model_state_dict"], trainer.model.state_dict())


def test_what_was_loaded_does_not_change_as_training_goes_on(tmp_path: Path) -> None:
    """The returned content stays that of the file, although the momentum in it is trained further."""
    trainer = saved_at(tmp_path / "checkpoint.pt")
    content = trainer.load_checkpoint(tmp_path / "checkpoint.pt")
    before = copy.deepcopy(content)

    train(trainer)

    assert same(content, before)


def test_a_trainer_that_has_not_trained_saves_its_weights(tmp_path: Path) -> None:
    """Without a run there is no scheduler, and without an optimizer none is saved."""
    model = TinyClassifier()
    trainer = Trainer[nn.Module](model, nn.CrossEntropyLoss(), None, callbacks=[])
    trainer.save_checkpoint(tmp_path / "weights.pt")
    assert set(trainer.load_checkpoint(tmp_path / "weights.pt")) == {"model_state_dict"}


SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "StepLR": halving,
    "MultiStepLR": partial(lr_scheduler.MultiStepLR, milestones=[1, 1, 2]),
    "LambdaLR": partial(lr_scheduler.LambdaLR, lr_lambda=lambda step: 0.9**step),
    "MultiplicativeLR": partial(lr_scheduler.MultiplicativeLR, lr_lambda=lambda _: 0.9),
    "OneCycleLR": partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=100),
    "CyclicLR": partial(lr_scheduler.CyclicLR, base_lr=0.01, max_lr=0.1, scale_fn=lambda x: 0.5),
    "CosineAnnealingLR": partial(lr_scheduler.CosineAnnealingLR, T_max=10),
    "CosineAnnealingWarmRestarts": partial(lr_scheduler.CosineAnnealingWarmRestarts, T_0=2),
    "ExponentialLR": partial(lr_scheduler.ExponentialLR, gamma=0.9),
    "SequentialLR": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer), lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)],
        milestones=[2],
    ),
    "ChainedScheduler": lambda optimizer: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, gamma=0.9)]
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("optimizer_type", [SGD, Adam])
def test_schedulers_of_torch_are_saved_and_loaded(tmp_path: Path, name: str, optimizer_type: type[SGD | Adam]) -> None:
    """Those made with functions too: torch leaves the functions out of the state."""
    rates: list[float] = []
    for load in (False, True):
        model = nn.Linear(4, 3)
        optimizer = optimizer_type(model.parameters(), lr=0.1)
        trainer = Trainer[nn.Module](model, nn.CrossEntropyLoss(), optimizer, callbacks=[])
        trainer.train(DATA, 1, max_num_train_steps=1 if load else 3, create_scheduler_fn=SCHEDULERS[name])
        if load:
            trainer.load_checkpoint(tmp_path / "checkpoint.pt")
        else:
            trainer.save_checkpoint(tmp_path / "checkpoint.pt")
        trainer.optimizer_step()
        trainer.scheduler_step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates[0] == rates[1]


class WithAFunction(lr_scheduler.LRScheduler):
    """A scheduler of a user's own whose state holds a function."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.warm_up: Callable[[int], float] = lambda step: min(1.0, step / 10)
        super().__init__(optimizer)

    @override
    def get_lr(self) -> list[float | Tensor]:
        return [0.1 * self.warm_up(self.last_epoch)]


def test_a_scheduler_state_with_a_function_is_refused_when_it_is_saved(tmp_path: Path) -> None:
    """It could not be loaded again, so it does not replace a file that can."""
    path = tmp_path / "checkpoint.pt"
    trainer = saved_at(path)
    good = path.read_bytes()
    trainer.train(DATA, 1, create_scheduler_fn=WithAFunction)

    with pytest.raises(CheckpointError) as caught:
        trainer.save_checkpoint(path)

    assert "scheduler_state_dict" in caught.value.given
    assert "warm_up" in caught.value.given
    assert path.read_bytes() == good
    trainer.save_checkpoint(path, save_scheduler=False)
    trainer.load_checkpoint(path)


@pytest.mark.parametrize(
    "extras",
    [
        {"function": make_trainer},
        {"model": nn.Linear(1, 1)},
        {"deep": [{"path": Path("a")}]},
        {"model_state_dict": {}},
        {"scheduler_state_dict": {}},
    ],
    ids=lambda extras: next(iter(extras)),
)
def test_entries_that_could_not_be_loaded_are_refused_when_they_are_saved(
    tmp_path: Path, extras: dict[str, Any]
) -> None:
    """The error names the entry, and the file stays as it was."""
    trainer = make_trainer()
    trainer.save_checkpoint(tmp_path / "checkpoint.pt", {"good": True})

    with pytest.raises(CheckpointError, match=next(iter(extras))):
        trainer.save_checkpoint(tmp_path / "checkpoint.pt", extras)

    assert trainer.load_checkpoint(tmp_path / "checkpoint.pt")["good"] is True
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]


@pytest.mark.parametrize("missing_bytes", [1, 1000, 4000, 6000])
def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, missing_bytes: int) -> None:
    """What could not be written whole is gone, and what was there is still whole."""
    path = tmp_path / "checkpoint.pt"
    trainer = saved_at(path)
    good = path.read_bytes()
    train(trainer)

    with pytest.raises((OSError, CheckpointError)), full_disk(len(good) - missing_bytes):
        trainer.save_checkpoint(path)

    assert path.read_bytes() == good
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_where_no_file_can_be_written_the_error_says_so(tmp_path: Path) -> None:
    """A folder in the place of the file, or a file in the place of the folder."""
    trainer = make_trainer()
    (tmp_path / "folder").mkdir()
    with pytest.raises(CheckpointError, match="folder"):
        trainer.save_checkpoint(tmp_path / "folder")
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        trainer.save_checkpoint(tmp_path / "file" / "checkpoint.pt")


class Demanding(lr_scheduler.StepLR):
    """A scheduler that changes itself before it finds that a state is not its own."""

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        if state_dict["step_size"] != 7:
            raise KeyError("no")


def with_other_groups(seed: int = 1) -> Trainer[nn.Module]:
    """A trainer whose optimizer has a group for each parameter."""
    trainer = make_trainer(seed)
    trainer.optimizer = SGD([{"params": [parameter]} for parameter in trainer.model.parameters()], lr=0.1)
    train(trainer)
    return trainer


def with_other_scheduler() -> Trainer[nn.Module]:
    """A trainer whose scheduler finds out while it is loading, when the optimizer would have fitted."""
    trainer = make_trainer(seed=1)
    trainer.train(DATA, 1, create_scheduler_fn=partial(Demanding, step_size=7))
    return trainer


def without_optimizer() -> Trainer[nn.Module]:
    """A trainer of a model alone."""
    torch.manual_seed(1)
    return Trainer[nn.Module](TinyClassifier(batch_norm=True), nn.CrossEntropyLoss(), None, callbacks=[])


@pytest.mark.parametrize(
    ("make", "given", "without"),
    [
        (with_other_groups, "it has 1 groups, not 6", {"load_optimizer": False, "load_scheduler": False}),
        (with_other_scheduler, "scheduler_state_dict", {"load_scheduler": False}),
        (without_optimizer, "optimizer", {"load_optimizer": False}),
    ],
)
def test_a_part_that_does_not_fit_leaves_everything_as_it_was(
    make: Callable[[], Trainer[nn.Module]], given: str, without: dict[str, bool], tmp_path: Path
) -> None:
    """A checkpoint is loaded whole or not at all; the error says what to leave out, and the rest is loaded then."""
    saved, trainer = saved_at(tmp_path / "checkpoint.pt"), make()
    parts: list[Any] = [trainer.model, *trainer.named_optimizers().values(), *trainer.named_schedulers().values()]
    before = copy.deepcopy([one.state_dict() for one in parts])
    with pytest.raises(CheckpointError, match="nothing was loaded") as caught:
        trainer.load_checkpoint(tmp_path / "checkpoint.pt")
    assert given in caught.value.given
    assert f"{next(iter(without))}=False" in caught.value.do
    assert same([one.state_dict() for one in parts], before)
    if trainer.named_optimizers():
        train(trainer)
    trainer.load_checkpoint(tmp_path / "checkpoint.pt", **without)
    assert same(dict(trainer.model.state_dict()), dict(saved.model.state_dict()))


def test_an_optimizer_that_does_not_fit_may_be_left_out(tmp_path: Path) -> None:
    """The weights would fit, and are loaded with the schedule when the error's advice is followed."""
    saved, trainer = with_other_groups(seed=0), make_trainer(seed=1)
    saved.save_checkpoint(tmp_path / "checkpoint.pt")
    train(trainer)
    with pytest.raises(CheckpointError) as caught:
        trainer.load_checkpoint(tmp_path / "checkpoint.pt")
    assert "it has 6 groups, not 1" in caught.value.given
    assert caught.value.problem == "The state does not fit this SGD; nothing was loaded."
    assert "load_optimizer=False" in caught.value.do
    trainer.load_checkpoint(tmp_path / "checkpoint.pt", load_optimizer=False)
    assert same(trainer.model.state_dict(), saved.model.state_dict())


@pytest.mark.runs_on("two_ranks")
@pytest.mark.parametrize("per_node", [True, False])
def test_two_ranks_write_one_file_and_both_load_it(shared_tmp_path: Path, per_node: bool) -> None:
    """The file of a distributed run is that of a plain model, and brings every rank back to it."""
    path = shared_tmp_path / "checkpoint.pt"
    save = CallAt("on_optimizer_step_end", lambda one: one.save_checkpoint(path, save_per_node=per_node), 2)
    trainer = make_trainer(0, save)
    train(trainer, updates=2)
    trained = state_of(trainer)
    trainer.callback_handler.remove_callback(save)
    train(trainer, updates=3)
    content = trainer.load_checkpoint(path)

    assert list(content["model_state_dict"]) == list(TinyClassifier(batch_norm=True).state_dict())
    parameters = dict(trainer.model.named_parameters())
    assert same({name: trained["model"][name] for name in parameters}, {**parameters})
    assert same(trainer.optimizer.state_dict()["state"], content["optimizer_state_dict"]["state"])
    files = Counter(gather_objects([entry.name for entry in shared_tmp_path.iterdir()])[0])
    assert files == {"checkpoint.pt": 1}


def test_a_checkpoint_keeps_the_versions_that_layers_give_to_their_states(tmp_path: Path) -> None:
    """By them, layers of later versions of torch know how to read the state of an earlier one."""
    trainer = make_trainer()
    trainer.save_checkpoint(tmp_path / "model.pt")
    saved = torch.load(tmp_path / "model.pt", weights_only=True)["model_state_dict"]
    versions: Any = trainer.get_model().state_dict()
    assert any(one["version"] > 1 for one in versions._metadata.values())
    assert saved._metadata == versions._metadata


Net: TypeAlias = "Trainer[TinyClassifier]"


class Payload:
    """What runs when a file is unpickled that should not be trusted."""

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("was_run",))


def truncated(path: Path, trainer: Net) -> None:
    """A file whose second half is missing."""
    trainer.save_checkpoint(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def of_another_model(path: Path, trainer: Net) -> None:
    """A file with another layer, and another shape."""
    model = TinyClassifier(hidden=16)
    model.register_parameter("further", nn.Parameter(torch.zeros(1)))
    Trainer(model, None, None, callbacks=()).save_checkpoint(path)


def with_code(path: Path, trainer: Net) -> None:
    """A file that wants to run something."""
    torch.save({"model_state_dict": trainer.model.state_dict(), "payload": Payload()}, path)


def plain_pickle(path: Path, trainer: Net) -> None:
    """A file that was not even made by torch."""
    path.write_bytes(pickle.dumps({"model_state_dict": Payload()}, protocol=2))


CHECKPOINTS: dict[Callable[[Path, Net], Any], tuple[str, ...]] = {
    truncated: ("damaged", "cut short", "bytes"),
    of_another_model: (
        "another model",
        "unexpected: further",
        "missing: layers.1.weight",
        "layers.0.weight: (16, 4) in the file, (8, 4) in the model",
        "and 1 more",
    ),
    with_code: ("more than tensors", "mkdir", "weights_only=False"),
    plain_pickle: ("more than tensors", "mkdir", "weights_only=False"),
    lambda path, trainer: path.write_bytes(b""): ("damaged", "0 bytes"),
    lambda path, trainer: path.write_text("hello"): ("damaged", "5 bytes"),
    lambda path, trainer: torch.save([1, 2], path): ("not a checkpoint", "list"),
    lambda path, trainer: torch.save(trainer.model.state_dict(), path): (
        "not a checkpoint",
        "layers.0.weight",
        "model.load_state_dict",
    ),
}


@pytest.mark.parametrize("make", CHECKPOINTS)
def test_a_checkpoint_that_cannot_be_loaded_changes_nothing(
    make: Callable[[Path, Net], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Truncated, of another model, or in need of code: the error says which, nothing is run and nothing loaded."""
    monkeypatch.chdir(tmp_path)
    trainer = good_run.make_trainer()
    good_run.train(trainer)
    make(tmp_path / "checkpoint.pt", trainer)
    before: dict[str, Tensor] = {name: value.clone() for name, value in trainer.model.state_dict().items()}

    with pytest.raises(CheckpointError) as caught:
        trainer.load_checkpoint(tmp_path / "checkpoint.pt")

    assert_explained(caught.value, "checkpoint.pt", *CHECKPOINTS[make])
    assert not Path("was_run").exists()
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())
    good_run.assert_still_works(trainer, trainer.model)


def test_a_checkpoint_that_is_not_there_is_a_file_that_is_not_there(tmp_path: Path) -> None:
    """The error is Python's own, and names the path."""
    with pytest.raises(FileNotFoundError, match=r"missing\.pt"):
        good_run.make_trainer().load_checkpoint(tmp_path / "missing.pt")
