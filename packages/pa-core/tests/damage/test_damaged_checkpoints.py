"""Checkpoints that were cut, changed or written wrong: they are refused, and nothing of them is loaded."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, Optimizer, RMSprop, lr_scheduler
from typing_extensions import override

from pa_core import CheckpointError, Trainer
from pa_core.testing import TinyClassifier
from tests.support.pa_core.checkpointed_runs import DATA, halving, same, state_of, train
from tests.support.pa_core.damage.damaged_checkpoints import (
    Damage,
    flipped_bits,
    flipped_bits_of_tensors,
    growing,
    truncations,
)
from tests.support.pa_core.damage.incompatible_checkpoints import Misfit, Place, entries, foreign_entries, misfits


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a trainer."""
    path = tmp_path_factory.mktemp("whole") / "checkpoint.pt"
    make_trainer().save_checkpoint(path)
    return path.read_bytes()


def assert_refused_or_harmless(damages: Iterable[Damage], whole: bytes, folder: Path) -> int:
    """Each file is refused, or loads what was saved; how many are refused."""
    trainer, path, refused = make_trainer(seed=1), folder / "checkpoint.pt", 0
    path.write_bytes(whole)
    content = torch.load(path)
    before = state_of(trainer)
    trainer.save_checkpoint(folder / "before.pt")
    for damage in damages:
        path.write_bytes(damage.content)
        try:
            loaded = trainer.load_checkpoint(path)
        except CheckpointError:
            refused += 1
            assert same(state_of(trainer), before), damage
        else:
            assert same(loaded, content), damage
            trainer.load_checkpoint(folder / "before.pt")
    return refused


def test_a_truncated_checkpoint_is_refused(whole: bytes, tmp_path: Path) -> None:
    """At whatever length it was cut, the error is the promised one, and nothing is loaded."""
    damages = list(truncations(whole))
    assert assert_refused_or_harmless(damages, whole, tmp_path) == len(damages) > 80


def test_a_checkpoint_with_a_flipped_bit_is_refused_or_loads_what_was_saved(whole: bytes, tmp_path: Path) -> None:
    """No weight, no buffer, no entry of the optimizer is another one."""
    assert assert_refused_or_harmless(flipped_bits(whole, 60), whole, tmp_path) > 20
    damages = list(flipped_bits_of_tensors(whole))
    assert assert_refused_or_harmless(damages, whole, tmp_path) == len(damages) > 10


@pytest.mark.whole_proof
def test_500_checkpoints_with_a_flipped_bit_are_refused_or_load_what_was_saved(whole: bytes, tmp_path: Path) -> None:
    """As above, with bits that are not drawn there."""
    assert assert_refused_or_harmless(flipped_bits(whole, 500, seed=1), whole, tmp_path) > 200


@pytest.mark.whole_proof
def test_a_checkpoint_in_an_earlier_format_is_refused_once_it_is_truncated(tmp_path: Path) -> None:
    """A file as torch wrote it before 1.6 can be loaded, at its whole length only."""
    trainer, path = make_trainer(), tmp_path / "checkpoint.pt"
    states = {"model_state_dict": trainer.model.state_dict(), "optimizer_state_dict": trainer.optimizer.state_dict()}
    torch.save(states, path, _use_new_zipfile_serialization=False)
    assert same(trainer.load_checkpoint(path), states)
    damages = list(truncations(path.read_bytes()))
    assert assert_refused_or_harmless(damages, path.read_bytes(), tmp_path) == len(damages)


def test_a_checkpoint_without_checksums_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script may switch them off in torch.serialization, for speed."""
    trainer, path = make_trainer(), tmp_path / "checkpoint.pt"
    torch.serialization.set_crc32_options(False)
    try:
        trainer.save_checkpoint(path)
    finally:
        torch.serialization.set_crc32_options(True)
    before = state_of(trainer)
    train(trainer)

    trainer.load_checkpoint(path)

    assert same(state_of(trainer), before)


def test_a_tensor_takes_no_more_memory_than_its_bytes(tmp_path: Path) -> None:
    """Tensors that are said to be larger than what is stored of them are not made."""
    trainer, path = Trainer[nn.Module](nn.Identity(), None, None, callbacks=()), tmp_path / "checkpoint.pt"
    for damage in growing({"model_state_dict": {}}):
        path.write_bytes(damage.content)
        with pytest.raises(CheckpointError, match=r"is damaged.*Nothing was loaded"):
            trainer.load_checkpoint(path)


EVERY = 13
"""Which of the misfits are tried where there is little time: a prime number, so that all kinds are among them."""


def sequence(optimizer: Optimizer) -> lr_scheduler.SequentialLR:
    """One scheduler after the other, each with a state of its own."""
    slower = lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    parts: list[lr_scheduler.LRScheduler] = [lr_scheduler.LinearLR(optimizer), slower]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=[20])


TRAINED: dict[str, tuple[Callable[[nn.Module], Optimizer], Callable[[Optimizer], Any]]] = {
    "Adam, StepLR": (lambda model: Adam(model.parameters(), lr=0.1), halving),
    "SGD, OneCycleLR": (
        lambda model: SGD(model.parameters(), lr=0.1, momentum=0.9),
        lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100),
    ),
    "Adagrad, SequentialLR": (lambda model: Adagrad(model.parameters(), lr=0.1), sequence),
    "RMSprop, MultiStepLR": (
        lambda model: RMSprop(model.parameters(), lr=0.1),
        lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [2, 20]),
    ),
}

FOREIGN: dict[Place, list[str | int]] = {
    (): ["unknown"],
    ("model_state_dict",): ["x", 3],
    ("optimizer_state_dict",): ["step", "unknown"],
    ("optimizer_state_dict", "state"): [99],
    ("scheduler_state_dict",): ["step", "get_lr", "optimizer", "state_dict", "__class__", "unknown"],
}


def make_trainer(kind: str = "Adam, StepLR", seed: int = 0) -> Trainer[TinyClassifier]:
    """A trainer that has trained."""
    torch.manual_seed(seed)
    make_optimizer, make_scheduler = TRAINED[kind]
    model = TinyClassifier(batch_norm=True)
    trainer = Trainer(model, nn.CrossEntropyLoss(), make_optimizer(model), callbacks=())
    trainer.train(DATA, 1, max_num_train_steps=2, create_scheduler_fn=make_scheduler)
    return trainer


def assert_all_or_nothing(kind: str, every: int, folder: Path) -> None:
    """Each misfit is refused and changes nothing, or training goes on with what was loaded."""
    path, refused = folder / "checkpoint.pt", 0
    make_trainer(kind).save_checkpoint(path)
    content: dict[str, Any] = torch.load(path)
    crafted: Iterable[Misfit] = itertools.chain(misfits(content), foreign_entries(content, FOREIGN))
    trainer = make_trainer(kind, 1)
    before = state_of(trainer)
    for misfit in itertools.islice(crafted, 0, None, every):
        torch.save(misfit.content, path)
        try:
            trainer.load_checkpoint(path)
        except CheckpointError:
            refused += 1
            assert same(state_of(trainer), before), misfit
        else:
            assert not is_misfit_of_tensor(misfit, content), misfit
            assert_goes_on(trainer, misfit)
            trainer = make_trainer(kind, 1)
    assert refused > 300 / every


def is_misfit_of_tensor(misfit: Misfit, content: dict[str, Any]) -> bool:
    """Whether a weight or what an optimizer keeps of it is no longer a tensor with numbers of that kind and shape.

    A counter may be a number, and a momentum is made anew where there is none.
    """
    entry = dict(entries(content)).get(misfit.place)
    is_counter = misfit.place[-1] == "step" and misfit.what == "a number"
    return isinstance(entry, Tensor) and not (is_counter or misfit.place[-1] == "momentum_buffer")


def assert_goes_on(trainer: Trainer[Any], misfit: Misfit) -> None:
    """A few updates, with whatever was loaded."""
    scheduler: Any = trainer.scheduler
    assert callable(scheduler.step), misfit
    for inputs, targets in torch.utils.data.DataLoader(DATA, batch_size=8):
        loss: Tensor = nn.functional.cross_entropy(trainer.model(inputs), targets)
        trainer.backward_step(loss)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
        scheduler.step()
    is_finite = all(weight.isfinite().all() for weight in trainer.model.parameters())
    assert is_finite or misfit.what == "a number", misfit  # which may be a setting that nobody would choose


@pytest.mark.parametrize("kind", TRAINED)
def test_a_sample_of_checkpoints_with_another_type_or_shape_loads_all_or_nothing(kind: str, tmp_path: Path) -> None:
    """Weights, optimizer, scheduler: what cannot be taken over is told before anything changes."""
    assert_all_or_nothing(kind, EVERY, tmp_path)


@pytest.mark.whole_proof
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", TRAINED)
def test_a_checkpoint_with_another_type_or_shape_loads_all_or_nothing(kind: str, tmp_path: Path) -> None:
    """As above, for each entry and each kind of misfit."""
    assert_all_or_nothing(kind, 1, tmp_path)


def test_a_refused_module_beside_the_model_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    """The states of both are checked before one of them is loaded."""
    path = tmp_path / "checkpoint.pt"

    def make(seed: int) -> Trainer[TinyClassifier]:
        trainer = make_trainer(seed=seed)
        teacher = nn.Linear(2, 2)
        trainer.add_module("teacher", teacher, SGD(teacher.parameters(), lr=0.1, momentum=0.9))
        return trainer

    make(0).save_checkpoint(path)
    content = torch.load(path)
    trainer = make(1)
    before = state_of(trainer)
    for wrong in (None, {}, {"model_state_dict": 3}, {**content["modules"]["teacher"], "optimizer_state_dict": []}):
        torch.save({**content, "modules": {"teacher": wrong}}, path)
        with pytest.raises(CheckpointError):
            trainer.load_checkpoint(path)
        assert same(state_of(trainer), before)


class WithEntriesOfItsOwn(lr_scheduler.LRScheduler):
    """A scheduler that notes something once it has been stepped."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.is_warm = False
        super().__init__(optimizer)

    @override
    def get_lr(self) -> list[float | Tensor]:
        if self.last_epoch == 2:
            self.noted = 0.5
        return [0.1 * getattr(self, "noted", 1.0)]


def test_what_a_scheduler_of_ones_own_notes_later_is_loaded_too(tmp_path: Path) -> None:
    """An attribute that does not exist yet when the file is loaded."""
    path, model = tmp_path / "checkpoint.pt", TinyClassifier()
    trainer = Trainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks=())
    trainer.train(DATA, 1, max_num_train_steps=3, create_scheduler_fn=WithEntriesOfItsOwn)
    trainer.save_checkpoint(path)
    state = copy.deepcopy(state_of(trainer))
    trainer.train(DATA, 1, max_num_train_steps=1, create_scheduler_fn=WithEntriesOfItsOwn)

    trainer.load_checkpoint(path)

    assert state_of(trainer)["scheduler"] == state["scheduler"]
    assert state["scheduler"]["noted"] == 0.5
