"""Damage to files that torch has saved is told before torch reads them."""

from __future__ import annotations

import io
import random
import zipfile

import pytest
import torch

from pa_checkpoint.torch_states import find_damage


def saved() -> bytes:
    """A file of torch."""
    file = io.BytesIO()
    torch.save({"weight": torch.ones(100), "step": 3}, file)
    return file.getvalue()


def test_a_file_as_it_was_written_has_no_damage() -> None:
    """It is left at its beginning, for torch to read."""
    file = io.BytesIO(saved())
    assert find_damage(file) is None
    assert torch.load(file, weights_only=True)["step"] == 3


@pytest.mark.parametrize("length", [0, 3])
def test_what_is_no_archive_is_left_to_torch(length: int) -> None:
    """Torch tells what it is, or reads it: earlier releases wrote other files."""
    assert find_damage(io.BytesIO(saved()[:length])) is None


def test_a_file_that_was_cut_short_is_damaged() -> None:
    """Wherever it ends."""
    content, chance = saved(), random.Random(0)
    for _ in range(20):
        assert find_damage(io.BytesIO(content[: chance.randrange(4, len(content))])) is not None


def test_wrong_bits_of_tensors_are_found_unless_nobody_asks_for_tensors() -> None:
    """Without them, the file need not be read as a whole."""
    content = bytearray(saved())
    content[content.index(torch.ones(100).numpy().tobytes()) + 50] ^= 1
    assert "CRC" in str(find_damage(io.BytesIO(content)))
    assert find_damage(io.BytesIO(content), of_tensors=False) is None


def test_what_torch_never_writes_is_damage() -> None:
    """Such as records that are compressed, which torch would read otherwise than zipfile does."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"0" * 100)
    assert "compressed" in str(find_damage(file))
