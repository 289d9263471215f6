"""What pa_core uses of torch that has no public name: the installed version has it, and does what it is used for.

The test that fails with a new version of torch has the name of what it lacks in ``pa_core._torch``.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ConstantLR, SequentialLR
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from typing_extensions import override

from pa_core import Trainer, UnsupportedConfigurationError
from pa_core.testing import make_regression

names: Any = importlib.import_module("pa_core._torch")
untyped_torch: Any = torch


def test_each_name_has_its_test() -> None:
    """Whoever adds a private name of torch shows what a version must have for it."""
    tested = {name.removeprefix("test_") for name in globals()}
    own = {name for name, value in vars(names).items() if getattr(value, "__module__", None) == names.__name__}
    used = {name.lower() for name in own | names.__annotations__.keys() if not name.startswith("_")}
    assert used - {"newest_tried", "oldest_tried"} - tested == set()
    assert {"parameters", "foreach"} <= used


class CountsItems(Trainer):
    """Weighs gradients by the items of a batch."""

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        return {**super().calculate_train_batch_loss(batch), "num_items_in_batch": len(batch[0])}


def test_a_run_without_a_name_says_which_versions_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of torch that nobody has tried is named, with what it lacks, and with the versions to install."""
    model = nn.Linear(4, 1)
    trainer = CountsItems(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[])
    monkeypatch.delattr(torch, "_foreach_mul_")
    with pytest.raises(UnsupportedConfigurationError) as caught:
        trainer.train(make_regression(16), 1, gradient_accumulation_steps=2)
    assert caught.value.given == f"torch {torch.__version__}, without torch._foreach_mul_"
    assert names.NEWEST_TRIED in caught.value.expected
    assert f'pip install "torch=={names.NEWEST_TRIED}.*"' in caught.value.do


def test_parameters() -> None:
    """A module has its parameters under this name, also those that it does not have."""
    assert list(vars(nn.Linear(2, 1, bias=False))[names.PARAMETERS]) == ["weight", "bias"]


def test_buffers() -> None:
    """A module has its buffers under this name."""
    assert "running_mean" in vars(nn.BatchNorm1d(2))[names.BUFFERS]


def test_children() -> None:
    """A module has the modules in it under this name, each as often as it is there."""
    layer = nn.ReLU()
    assert list(vars(nn.Sequential(layer, layer))[names.CHILDREN].values()) == [layer, layer]


def test_non_persistent_buffers() -> None:
    """A buffer that no state dict has is known as such."""
    module = nn.Module()
    module.register_buffer("kept", torch.zeros(1))
    module.register_buffer("left_out", torch.zeros(1), persistent=False)
    assert names.non_persistent_buffers(module) == {"left_out"}


def test_compiled() -> None:
    """A compiled module has the original under this name."""
    layer = nn.Linear(2, 1)
    compiled = cast("nn.Module", untyped_torch.compile(layer, backend="eager"))
    assert vars(compiled)[names.CHILDREN][names.COMPILED] is layer


def test_is_compiled_in_place() -> None:
    """Both ways to compile a module in place are seen."""
    by_method = nn.Linear(2, 1)
    by_forward: Any = nn.Linear(2, 1)
    assert not names.is_compiled_in_place(by_method)
    by_method.compile(backend="eager")
    by_forward.forward = untyped_torch.compile(by_forward.forward, backend="eager")
    assert names.is_compiled_in_place(by_method)
    assert names.is_compiled_in_place(by_forward)


def test_input_check() -> None:
    """A batch norm layer refuses other inputs in this method."""
    check = getattr(nn.BatchNorm1d(2), names.INPUT_CHECK)
    check(torch.ones(3, 2))
    with pytest.raises(ValueError, match="4D"):
        check(torch.ones(3, 2, 1, 1))


def test_nested_schedulers() -> None:
    """A sequence of schedulers has them under this name, in its state as well."""
    optimizer = SGD(nn.Linear(2, 1).parameters(), lr=0.1)
    parts = [ConstantLR(optimizer), ConstantLR(optimizer)]
    scheduler = SequentialLR(optimizer, [*parts], milestones=[1])
    assert list(getattr(scheduler, names.NESTED_SCHEDULERS)) == parts
    assert len(scheduler.state_dict()[names.NESTED_SCHEDULERS]) == len(parts)


@pytest.mark.parametrize(
    ("operation", "arguments", "expected"),
    [
        ("clamp_max_", (2.0,), [1.0, 2.0]),
        ("clamp_min_", (2.0,), [2.0, 4.0]),
        ("copy_", ([torch.tensor([7.0]), torch.tensor([8.0])],), [7.0, 8.0]),
        ("div_", (4,), [0.25, 1.0]),
        ("lerp_", ([torch.tensor([3.0]), torch.tensor([2.0])], 0.5), [2.0, 3.0]),
        ("mul_", (torch.tensor(3.0),), [3.0, 12.0]),
    ],
)
def test_foreach(operation: str, arguments: tuple[Any, ...], expected: list[float]) -> None:
    """Lists of tensors are changed in place by each operation that is used."""
    tensors = [torch.tensor([1.0]), torch.tensor([4.0])]
    names.foreach(operation, tensors, *arguments)
    assert [one.item() for one in tensors] == expected


def test_norms_of_lists() -> None:
    """Each tensor of a list has its own norm."""
    norms = names.foreach("norm", [torch.tensor([3.0, 4.0]), torch.tensor([1.0])])
    assert [norm.item() for norm in norms] == [5.0, 1.0]


def test_version_of() -> None:
    """A change in place is noted, whatever tensor of the same memory it is made by."""
    tensor = torch.ones(2)
    before = names.version_of(tensor)
    tensor.detach().add_(1)
    assert names.version_of(tensor) > before


def nothing(_tensor: Tensor) -> None:
    """A hook."""


def test_has_gradient_hooks() -> None:
    """Both kinds of hooks on gradients are seen."""
    plain, early, late = (torch.ones(1, requires_grad=True) for _ in range(3))
    cast("Any", early).register_hook(nothing)
    cast("Any", late).register_post_accumulate_grad_hook(nothing)
    assert [names.has_gradient_hooks(one) for one in (plain, early, late)] == [False, True, True]


def test_dtypes_of_outputs() -> None:
    """A node tells in which precision its output was computed."""
    with torch.autocast("cpu", torch.bfloat16):
        output = nn.Linear(2, 1)(torch.ones(1, 2))
    assert names.dtypes_of_outputs(output.grad_fn) == {torch.bfloat16}


def test_calls_step_hooks() -> None:
    """An optimizer of torch calls its hooks."""
    assert names.calls_step_hooks(SGD(nn.Linear(2, 1).parameters(), lr=0.1))


def test_has_iterator() -> None:
    """Workers that stay between epochs are known once they are there."""
    loader = DataLoader(TensorDataset(torch.zeros(2)), num_workers=1, persistent_workers=True)
    assert not names.has_iterator(loader)
    iter(loader)
    assert names.has_iterator(loader)


def test_forget_iterator() -> None:
    """Workers that stay between epochs are let go."""
    loader = DataLoader(TensorDataset(torch.zeros(2)), num_workers=1, persistent_workers=True)
    iter(loader)
    names.forget_iterator(loader)
    assert not names.has_iterator(loader)


class Three(IterableDataset[int]):
    """A stream of three samples."""

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_has_ended() -> None:
    """The last batch of a stream is known as such if it was not full."""
    batches = iter(DataLoader(Three(), batch_size=2))
    assert [names.has_ended(batches) for _ in zip(range(2), batches, strict=False)] == [False, True]


def sharded_layer(**options: Any) -> tuple[Any, Any]:
    """A layer that is split over both processes, and its group of parameters."""
    from torch.distributed.fsdp import fully_shard

    layer = nn.Linear(2, 2)
    fully_shard(layer, **options)
    (group,) = names.sharding_groups(layer)
    return layer, group


@pytest.mark.runs_on("two_ranks")
def test_computed_dtype() -> None:
    """The precision is the one that was asked for."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    assert names.computed_dtype(sharded_layer()[0]) is None
    assert names.computed_dtype(sharded_layer(mp_policy=policy)[0]) == torch.bfloat16


@pytest.mark.runs_on("two_ranks")
def test_sharding_groups() -> None:
    """A module that is sharded has one group of parameters, and a container whose blocks are sharded none."""
    from torch.distributed.fsdp import fully_shard

    model: Any = nn.Sequential(sharded_layer()[0])
    fully_shard(model)
    assert [len(names.sharding_groups(one)) for one in (model[0], model)] == [1, 0]


@pytest.mark.runs_on("two_ranks")
def test_gradient_divide_factor() -> None:
    """The factor is the one that was set."""
    layer, group = sharded_layer()
    assert names.gradient_divide_factor(group) is None
    layer.set_gradient_divide_factor(3.0)
    assert names.gradient_divide_factor(group) == 3.0


@pytest.mark.runs_on("two_ranks")
def test_num_averaged_over() -> None:
    """Gradients are averaged over both processes."""
    _, group = sharded_layer()
    assert names.num_averaged_over(group) == 2


@pytest.mark.runs_on("two_ranks")
def test_record_dtypes() -> None:
    """A layer that is trained only after its first pass exchanges gradients in their own precision."""
    layer, group = sharded_layer()
    layer.requires_grad_(requires_grad=False)
    layer(torch.ones(1, 2))
    layer.requires_grad_(requires_grad=True)
    names.record_dtypes(group)
    layer(torch.ones(1, 2)).sum().backward()
    assert layer.weight.grad.full_tensor().tolist() == [[1.0, 1.0], [1.0, 1.0]]


@pytest.mark.runs_on("two_ranks")
def test_parameters_of_group() -> None:
    """Each parameter of a layer is one of its group."""
    _, group = sharded_layer()
    assert len(names.parameters_of_group(group)) == 2


@pytest.mark.runs_on("two_ranks")
def test_sharded_parameter() -> None:
    """The parameters of the layer are those of its group, also while they are gathered."""
    layer, group = sharded_layer()
    before = list(layer.parameters())
    layer.unshard()
    pieces = [names.sharded_parameter(one) for one in names.parameters_of_group(group)]
    assert [id(piece) for piece in pieces] == [id(parameter) for parameter in before]


@pytest.mark.runs_on("two_ranks")
def test_gathered_parameter() -> None:
    """The parameters of a graph are none before a pass, and the whole ones afterwards."""
    layer, group = sharded_layer()
    assert [names.gathered_parameter(one) for one in names.parameters_of_group(group)] == [None, None]
    layer(torch.ones(1, 2))
    assert [names.gathered_parameter(one).shape for one in names.parameters_of_group(group)] == [(2, 2), (2,)]


@pytest.mark.runs_on("two_ranks")
def test_has_local_gradient() -> None:
    """Gradients that are kept are known until they are exchanged."""
    layer, group = sharded_layer()
    found: list[bool] = []
    for exchanges in (False, True):
        layer.set_requires_gradient_sync(exchanges)
        layer(torch.ones(1, 2)).sum().backward()
        found.append(names.has_local_gradient(names.parameters_of_group(group)[0]))
    assert found == [True, False]


@pytest.mark.runs_on("two_ranks")
def test_forget_local_gradients() -> None:
    """Gradients that were kept do not come back with those of the next exchange."""
    layer, group = sharded_layer()
    for exchanges in (False, True):
        layer.set_requires_gradient_sync(exchanges)
        layer(torch.ones(1, 2)).sum().backward()
        if not exchanges:
            names.forget_local_gradients(group)
    assert layer.weight.grad.full_tensor().tolist() == [[1.0, 1.0], [1.0, 1.0]]


@pytest.mark.runs_on("two_ranks")
def test_before_collectives() -> None:
    """An operation between processes is told of before it begins, and an error keeps it from waiting for the others."""
    told: list[str] = []

    def note(collective: str) -> None:
        told.append(collective)
        raise ValueError(collective)

    with names.before_collectives(note):
        assert float(torch.ones(2).sum()) == 2.0
        assert told == []
        with pytest.raises(ValueError, match="allreduce"):
            torch.distributed.all_reduce(torch.ones(1))
