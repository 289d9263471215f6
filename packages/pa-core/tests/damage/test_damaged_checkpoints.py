"""Checkpoints that were cut, changed or written wrong: they are refused, and nothing of them is loaded."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import Adam

from pa_core import CheckpointError, Trainer
from pa_core.testing import TinyClassifier
from tests.support.pa_core.checkpointed_runs import same, state_of, train
from tests.support.pa_core.damage.damaged_checkpoints import (
    Damage,
    flipped_bits,
    flipped_bits_of_tensors,
    growing,
    truncations,
)


def make_trainer(seed: int = 0) -> Trainer[nn.Module]:
    """A trainer that has trained, with everything that has state."""
    torch.manual_seed(seed)
    model = TinyClassifier(batch_norm=True)
    trainer = Trainer[nn.Module](model, nn.CrossEntropyLoss(), Adam(model.parameters(), lr=0.1), callbacks=())
    train(trainer, updates=2)
    return trainer


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
