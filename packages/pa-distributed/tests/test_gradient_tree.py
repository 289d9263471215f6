"""An update is bit-for-bit identical on any number of processes: a sum in tree order, which each can compute."""

from __future__ import annotations

import copy
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from typing_extensions import override

from pa_distributed._signs import Doing, doing_of
from pa_distributed.gradient_tree import GradientTree
from tests.launching import Launch
from tests.support.branches import BUCKETS, Branches

pytestmark = pytest.mark.runs_on("one_process", "two_ranks")

PARTS = ("first", "image", "exact", "rough")
Loss: TypeAlias = Callable[[Any], Tensor]
"""Of a model, for a micro-batch."""


def inputs_of(update: int, index: int) -> Tensor:
    """The samples of a micro-batch, which each process can draw."""
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(100 * update + index))


def own_block(count: int) -> list[int]:
    """The indices of the micro-batches of this process: contiguous, the larger blocks first."""
    rank, num_processes = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    return cast("list[int]", torch.arange(count).tensor_split(num_processes)[rank].tolist())


def losses_of(update: int, parts_of_each: Iterable[Iterable[str]]) -> list[Loss]:
    """The losses of the micro-batches of an update, by the layers that they use."""
    return [
        partial(Branches.loss, inputs=inputs_of(update, index), parts=parts)
        for index, parts in enumerate(parts_of_each)
    ]


def total(model: nn.Module, inputs: Tensor) -> Tensor:
    """A loss of any model."""
    output: Tensor = model(inputs)
    return output.square().sum()


def totals(count: int) -> list[Loss]:
    """Such losses of several micro-batches."""
    return [partial(total, inputs=inputs_of(0, index)) for index in range(count)]


def weights_of(count: int) -> list[float]:
    """What the micro-batches weigh; the last one has fewer samples."""
    return [2 / (2 * count - 1)] * (count - 1) + [1 / (2 * count - 1)]


def in_tree(values: Sequence[Tensor]) -> Tensor:
    """The sum by definition: the left half is the largest power of two that leaves something to the right one."""
    if len(values) == 1:
        return values[0]
    half = 1 << ((len(values) - 1).bit_length() - 1)
    return in_tree(values[:half]) + in_tree(values[half:])


def expect_update(model: nn.Module, losses: Sequence[Loss], weights: Sequence[float]) -> None:
    """Give a model the gradients and buffers of an update, by definition."""
    model.zero_grad()
    passed = [copy.deepcopy(model) for _ in losses]
    for one, loss, weight in zip(passed, losses, weights, strict=True):
        torch.autograd.backward(loss(one) * weight)
    for parameter, *of_each in zip(model.parameters(), *(one.parameters() for one in passed), strict=True):
        gradients = [torch.zeros_like(parameter) if one.grad is None else one.grad for one in of_each]
        if any(one.grad is not None for one in of_each):
            parameter.grad = in_tree(gradients)
    for buffer, *after in zip(model.buffers(), *(one.buffers() for one in passed), strict=True):
        if len(losses) == 1 or not buffer.is_floating_point():
            buffer.copy_(after[0])
            continue
        base = buffer.double().where(buffer.isfinite(), 0.0)
        changes = [(one.double() - base) * weight for one, weight in zip(after, weights, strict=True)]
        buffer.copy_((base + in_tree(changes)).where(~buffer.isnan(), math.nan))


def make_update(
    model: Any,
    tree: GradientTree,
    losses: Sequence[Loss],
    weights: Sequence[float],
    *,
    overlaps: bool = False,
) -> Tensor:
    """Compute the gradients of an update on all processes together; return the sum of the numbers of micro-batches."""
    tree.start_update(len(losses))
    block = own_block(len(losses))
    for index in block:
        tree.start_batch(overlaps=overlaps)
        torch.autograd.backward(losses[index](model) * weights[index])
        tree.end_batch(weights[index])
    return tree.finish([float(len(block))])


def update_alike(model: nn.Module, tree: GradientTree, losses: Sequence[Loss]) -> None:
    """Make an update of equal micro-batches that are the same as by definition."""
    weights, expected = [1 / len(losses)] * len(losses), copy.deepcopy(model)
    expect_update(expected, losses, weights)
    make_update(model, tree, losses, weights)
    tree.end_update()
    assert_same(model, expected)


def assert_same(model: nn.Module, expected: nn.Module) -> None:
    """Gradients and buffers have the same bits, and gradients are absent alike and lie as their parameters do."""
    for (name, one), other in zip(model.named_parameters(), expected.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name
        if one.grad is not None and other.grad is not None:
            assert one.grad.stride() == one.stride(), name
            assert torch.equal(one.grad, other.grad), name
    for (name, buffer), wanted in zip(model.named_buffers(), expected.buffers(), strict=True):
        assert buffer.dtype == wanted.dtype, name
        assert torch.equal(buffer.nan_to_num(7.0), wanted.nan_to_num(7.0)), name


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("bucket_bytes", BUCKETS)
def test_an_update_is_the_sum_in_tree_order(bucket_bytes: int, overlaps: bool) -> None:
    """Of any type and layout, update for update, also where there are more processes than micro-batches."""
    model, expected = Branches(), Branches()
    tree = GradientTree([model], num_values=1, bucket_bytes=bucket_bytes)
    for update, count in enumerate([1, 8, 3, 2, 5, 1]):
        losses = losses_of(update, [PARTS] * count)
        expect_update(expected, losses, weights_of(count))
        assert make_update(model, tree, losses, weights_of(count), overlaps=overlaps).tolist() == [count]
        tree.end_update()
        assert_same(model, expected)
        for one in (*model.parameters(), *expected.parameters()):
            if one.grad is not None:
                one.data -= 0.1 * one.grad
    assert model.mask[1].isneginf()
    assert model.lowest.isfinite()
    assert model.exact[1].num_batches_tracked == 6


@pytest.mark.parametrize("overlaps", [False, True])
def test_micro_batches_may_reach_different_layers(overlaps: bool) -> None:
    """A parameter that none of them reaches has no gradient, and one that some reach has it on each process."""
    model, expected = Branches(), Branches()
    tree = GradientTree([model], num_values=1, bucket_bytes=200)
    for update, of_each in enumerate([(PARTS, PARTS), (["first"], ["rough"], ["first"]), (["image"], ["image"])]):
        losses = losses_of(update, of_each)
        expect_update(expected, losses, weights_of(len(of_each)))
        make_update(model, tree, losses, weights_of(len(of_each)), overlaps=overlaps)
        tree.end_update()
        assert_same(model, expected)
    assert model.first.weight.grad is None


def test_layers_may_be_frozen_and_unfrozen_between_updates() -> None:
    """A frozen layer has no gradient."""
    model = Branches()
    tree = GradientTree([model], num_values=1, bucket_bytes=200)
    for update, is_trained in enumerate([True, False, True]):
        model.first.requires_grad_(is_trained)
        model.zero_grad()
        update_alike(model, tree, losses_of(update, [PARTS] * 4))
        assert (model.first.weight.grad is not None) == is_trained


def test_an_update_of_a_model_without_buffers() -> None:
    """Also where a process has no micro-batch."""
    model = nn.Linear(4, 1)
    tree = GradientTree([model], num_values=1)
    for count in (1, 2):
        update_alike(model, tree, totals(count))


class Layer(nn.Linear):
    """One whose forward pass does something to its buffer."""

    def __init__(self, buffer: Tensor, change: Callable[[Any, Tensor], object]) -> None:
        super().__init__(4, 1)
        self.kept: Tensor
        self.register_buffer("kept", buffer)
        self.change = change

    @override
    def forward(self, input: Tensor) -> Tensor:
        """Change the buffer first."""
        with torch.no_grad():
            self.change(self, input)
        return super().forward(input)


def nothing(_layer: Any, _inputs: Tensor) -> None:
    """Leaves the buffer alone."""


@pytest.mark.parametrize(
    "buffer",
    [
        torch.full((100, 100), -math.inf).triu(1),
        torch.ones(100, 100).triu(1) > 0,
        torch.tensor([2**63 - 1, -(2**63), 2**53 + 1]),
        torch.tensor([1 + 2j, -1j]),
        torch.empty(0),
        torch.tensor(3, dtype=torch.uint8),
    ],
    ids=["large mask", "bool", "large numbers", "complex", "empty", "bytes"],
)
def test_constant_buffers_stay_as_they_are(buffer: Tensor) -> None:
    """To the bit."""
    model = Layer(buffer.clone(), nothing)
    tree = GradientTree([model], num_values=1)
    make_update(model, tree, totals(3), weights_of(3))
    assert torch.equal(model.kept, buffer)


@pytest.mark.parametrize("size", [3, 10_000, (100, 100)])
def test_statistics_of_any_size_change_by_the_mean_of_the_changes(size: int | tuple[int, int]) -> None:
    """In place, or as another tensor; the tensor stays."""

    def add(layer: Any, inputs: Tensor) -> None:
        if inputs.sum() > 0:
            layer.kept += inputs.mean()
        else:
            layer.kept = layer.kept + inputs.mean()

    model = Layer(torch.ones(size), add)
    tree, before = GradientTree([model], num_values=1), model.kept
    update_alike(model, tree, totals(5))
    assert model.kept is before
    assert not model.kept.eq(1).any()


def test_batch_norm_with_many_channels() -> None:
    """Kernels change its statistics without a word to torch."""
    model = nn.Sequential(nn.Linear(4, 9000), nn.BatchNorm1d(9000))
    tree = GradientTree([model], num_values=1)
    update_alike(model, tree, totals(4))


def test_the_only_micro_batch_leaves_its_buffers_to_the_last_bit() -> None:
    """A small number after a large one, whose difference a double does not hold."""

    def shrink(layer: Any, _inputs: Tensor) -> None:
        layer.kept *= 1.2345678e-12

    model = Layer(torch.full((3,), 123.0), shrink)
    update_alike(model, GradientTree([model], num_values=1), totals(1))


def count_samples(layer: Any, inputs: Tensor) -> None:
    """A whole number that follows the batch."""
    layer.kept += inputs[0, 0].abs().mul(1000).long()


def resize(layer: Any, inputs: Tensor) -> None:
    """A cache that grows."""
    layer.kept = torch.cat([layer.kept, inputs[0]])


def normalise(layer: Any, _inputs: Tensor) -> None:
    """A weight that is changed in each forward pass."""
    layer.weight /= layer.weight.norm()


@pytest.mark.parametrize(
    ("buffer", "change", "said"),
    [
        (torch.tensor(0), count_samples, "different whole numbers in the buffer 0.kept"),
        (torch.zeros(4), resize, r"0.kept another shape.*: \(8,\).*before \(4,\)"),
        (torch.zeros(4), normalise, "A parameter was changed between two updates"),
    ],
)
@pytest.mark.parametrize("count", [2, 4])
def test_what_has_no_mean_is_refused(
    buffer: Tensor, change: Callable[[Any, Tensor], object], said: str, count: int
) -> None:
    """By the process that has the micro-batches, or by all at the end of the update."""
    model = Layer(buffer.clone(), change)
    tree = GradientTree([model], num_values=1)
    losses = totals(count)
    with pytest.raises(ValueError, match=said):
        make_update(model, tree, losses, weights_of(count))


@pytest.mark.parametrize("is_finished", [False, True])
def test_a_dropped_update_leaves_the_buffers_as_they_were(is_finished: bool) -> None:
    """And an update that was made does not."""
    model = Branches()
    tree = GradientTree([model], num_values=1)
    losses = losses_of(0, [PARTS] * 4)
    make_update(model, tree, losses, weights_of(4))
    tree.end_update()
    tree.drop_update()  # there is none
    before = copy.deepcopy(model)
    before.zero_grad()
    assert before.lowest.isfinite()
    if is_finished:
        make_update(model, tree, losses, weights_of(4))
    else:
        tree.start_update(4)
        tree.start_batch()
        torch.autograd.backward(model.loss(inputs_of(0, 9), PARTS))
    tree.drop_update()
    assert_same(model, before)


def test_buffers_of_an_evaluation_are_put_back() -> None:
    """As often as asked for."""
    model = Branches()
    tree = GradientTree([model])
    before = copy.deepcopy(model)
    tree.save_buffers()
    for index in range(2):
        model.loss(inputs_of(0, index), PARTS)
        tree.restore_buffers()
        assert_same(model, before)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_layers_that_are_added_or_replaced_are_found(is_replaced: bool) -> None:
    """With their buffers, once asked to; also where the new one has as many parameters, and in each later update."""
    model = nn.Sequential(nn.Linear(4, 4))
    tree = GradientTree([model], num_values=1)
    update_alike(model, tree, totals(4))
    if is_replaced:
        model[0] = nn.Linear(4, 4)
    else:
        model.append(nn.BatchNorm1d(4))
    for _ in range(2):
        tree.find()
        model.zero_grad()
        update_alike(model, tree, totals(4))


@pytest.mark.runs_on("two_ranks")
def test_a_second_backward_pass_is_refused_once_gradients_are_sent() -> None:
    """Between two updates, backward passes are nobody's business."""
    model = Branches()
    tree = GradientTree([model], num_values=1, bucket_bytes=200)
    batch = inputs_of(0, 0)
    for _ in range(2):
        make_update(model, tree, losses_of(0, [["first"]] * 2), weights_of(2), overlaps=True)
        tree.end_update()
        torch.autograd.backward(model.loss(batch, PARTS))
    for layer in (model.words, model.unused):
        layer.requires_grad_(requires_grad=False)
    tree.start_update(2)
    tree.start_batch(overlaps=True)
    torch.autograd.backward(model.loss(batch, PARTS))
    with pytest.raises(ValueError, match="A second backward pass of a micro-batch"):
        torch.autograd.backward(model.loss(batch, ["exact"]))


def test_calls_that_do_not_fit_the_update_are_refused() -> None:
    """The errors name how many numbers and micro-batches are expected; then the update can go on."""
    model = Branches()
    tree = GradientTree([model], num_values=1)
    num_own = len(own_block(4))
    with pytest.raises(ValueError, match="all 0 micro-batches that this process has"):
        tree.start_batch()
    tree.start_update(4)
    for ended in range(num_own):
        with pytest.raises(ValueError, match=f"for {num_own - ended} of the 4 micro-batches"):
            tree.finish([1.0])
        tree.start_batch()
        tree.end_batch(1 / 4)
    for call in (tree.start_batch, partial(tree.end_batch, 1 / 4)):
        with pytest.raises(ValueError, match=rf"_batch\(\) was called after all {num_own} micro-batches"):
            call()
    for values in ([], [1.0, 2.0]):
        with pytest.raises(ValueError, match=rf"num_values=1 numbers, got {len(values)}\."):
            tree.finish(values)
    assert tree.finish([float(num_own)]).tolist() == [4.0]


def test_a_closed_tree_leaves_the_parameters_alone() -> None:
    """The model can be copied and trained."""
    model = Branches()
    tree = GradientTree([model], num_values=1)
    make_update(model, tree, losses_of(0, [PARTS] * 2), weights_of(2), overlaps=True)
    copied = copy.deepcopy(model)
    tree.close()
    for one in (model, copied):
        torch.autograd.backward(one.loss(inputs_of(0, 0), PARTS))


@pytest.mark.runs_on("two_ranks")
def test_a_process_that_waits_for_gradients_is_seen_to_wait() -> None:
    """A report of processes that hang says so."""
    model, rank, seen = Branches(), dist.get_rank(), [Doing(waits=True)]
    tree = GradientTree([model], num_values=1)
    dist.barrier()
    thread = threading.get_ident()
    look = threading.Timer(0.3, lambda: seen.append(doing_of(thread)))
    if rank == 0:
        look.start()
    else:
        time.sleep(1)
    make_update(model, tree, losses_of(0, [PARTS] * 2), weights_of(2), overlaps=True)
    assert seen[-1].waits
    assert rank == 1 or seen[-1].text.startswith("the exchange of gradients (test_gradient_tree.py")


@pytest.mark.runs_on("two_ranks")
@pytest.mark.parametrize("bucket_bytes", [100_000, 1 << 20])
def test_as_many_bytes_are_sent_as_by_a_ring(monkeypatch: pytest.MonkeyPatch, bucket_bytes: int) -> None:
    """Where each process has a power of two of the micro-batches, up to one hundredth."""
    model = nn.Sequential(nn.Linear(4, 600), nn.Linear(600, 600), nn.Linear(600, 1))
    sent: list[float] = []

    def counted(collective: Any) -> Any:
        def call(output: Tensor, own: Tensor, *sizes: list[int], **options: Any) -> Any:
            others = own.numel() - sizes[1][dist.get_rank()] if sizes else own.numel() * (dist.get_world_size() - 1)
            sent.append(others * own.element_size())
            return collective(output, own, *sizes, **options)

        return call

    monkeypatch.setattr(dist, "all_to_all_single", counted(dist.all_to_all_single))
    for name in ("all_gather_into_tensor", "all_gather_single"):  # torch 2.13 has renamed it
        if hasattr(dist, name):
            monkeypatch.setattr(dist, name, counted(getattr(dist, name)))
    tree = GradientTree([model], num_values=1, bucket_bytes=bucket_bytes)
    make_update(model, tree, totals(8), weights_of(8))
    size, ranks = sum(one.numel() * one.element_size() for one in model.parameters()), dist.get_world_size()
    ring = 2 * (ranks - 1) / ranks * size
    assert ring <= sum(sent) <= 1.01 * ring


SCRIPT = """
import hashlib, os, torch, torch.distributed as dist
from pa_distributed import prepare_gloo
from pa_distributed.gradient_tree import GradientTree

if "RANK" in os.environ:
    dist.init_process_group("gloo")
    prepare_gloo()
rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(7, 33), torch.nn.BatchNorm1d(33), torch.nn.Linear(33, 1))
optimizer = torch.optim.AdamW(model.parameters(), 0.1)
tree = GradientTree([model], bucket_bytes=400)
for count in (5, 2, 8, 1, 7):
    batches = torch.randn(count, 6, 7)
    tree.start_update(count)
    for index in torch.arange(count).tensor_split(ranks)[rank].tolist():
        tree.start_batch(overlaps=True)
        (model(batches[index]).sin().mean() / count).backward()
        tree.end_batch(1 / count)
    tree.finish()
    optimizer.step()
    tree.end_update()
for number in range(ranks):
    if number == rank and rank in (0, ranks - 1):
        digest = hashlib.sha256()
        for name, value in model.state_dict().items():
            digest.update(value.numpy().tobytes())
        print(f"digest {digest.hexdigest()}", flush=True)  # one piece, which nothing comes between
"""


@pytest.mark.runs_on("one_process")
def test_weights_are_the_same_on_one_and_on_three_processes(launch: Launch, tmp_path: Path) -> None:
    """Where blocks are uneven, and some processes have none."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    # Lines of two processes may come as one.
    alone, together = (re.findall(r"digest (\w{64})", launch(script, ranks=ranks).output) for ranks in (1, 3))
    assert len(alone) == 1
    assert together == alone * 2
