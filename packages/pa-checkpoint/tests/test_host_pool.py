"""Snapshots of tensors in memory that is used again and again."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pa_checkpoint._encoding import Encoded, decode, encode
from pa_checkpoint._writer import HostPool


def _encoded(**values: object) -> dict[str, Encoded]:
    return {name: encode(value, name) for name, value in values.items()}


def _addresses(snapshot: dict[str, Encoded]) -> dict[str, int]:
    return {name: tensor.data_ptr() for part in snapshot.values() for name, tensor in part.tensors.items()}


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
        torch.tensor(2.5, dtype=torch.bfloat16),
        torch.empty(0, 3),
        torch.tensor([1 + 2j]).conj(),
    ],
)
def test_every_kind_of_tensor_can_be_copied(tensor: Tensor) -> None:
    """The copy has the values, the dtype and, when it is decoded, the strides."""
    snapshot = HostPool().copy(_encoded(x=tensor))
    back = decode(snapshot["x"].document, snapshot["x"].tensors)

    assert (back.dtype, back.stride()) == (tensor.dtype, tensor.stride())
    assert back.equal(tensor)


def test_memory_is_used_again() -> None:
    """The second snapshot needs no new memory, unless a tensor has grown; then only that tensor does."""
    pool = HostPool()
    first = _addresses(pool.copy(_encoded(model={"a": torch.ones(8), "b": torch.ones(4)})))
    second = _addresses(pool.copy(_encoded(model={"a": torch.zeros(2, 4), "b": torch.zeros(2)})))
    assert second == first

    snapshot = pool.copy(_encoded(model={"a": torch.ones(3), "b": torch.full((99,), 3.0)}))
    third = _addresses(snapshot)
    assert third["model/a"] == first["model/a"]
    assert third["model/b"] != first["model/b"]
    assert snapshot["model"].tensors["model/b"].equal(torch.full((99,), 3.0))
    assert snapshot["model"].tensors["model/a"].equal(torch.ones(3))


def test_shared_tensors_are_copied_once() -> None:
    """What shares its memory in two parts shares it in the snapshot, and only as long as it does."""
    pool, weight = HostPool(), torch.ones(4)

    shared = _addresses(pool.copy(_encoded(model={"w": weight}, optimizer={"master": weight})))
    assert shared["model/w"] == shared["optimizer/master"]

    apart = pool.copy(_encoded(model={"w": weight}, optimizer={"master": torch.zeros(4)}))
    assert apart["model"].tensors["model/w"].equal(torch.ones(4))
    assert apart["optimizer"].tensors["optimizer/master"].equal(torch.zeros(4))


@pytest.mark.needs_cuda
def test_what_comes_from_cuda_is_pinned_and_complete() -> None:
    """Copies run beside each other, and are complete when the snapshot is handed out."""
    pool, weight = HostPool(), torch.full((1 << 24,), 1.0, device="cuda")
    for value in (2.0, 3.0):
        weight.fill_(value)
        copied = pool.copy(_encoded(x=weight))["x"].tensors["x"]
        weight.zero_()
        assert copied.is_pinned()
        assert copied.eq(value).all()
