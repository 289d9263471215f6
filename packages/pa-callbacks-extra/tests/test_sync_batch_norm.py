"""Batch norm layers of two ranks: they normalise as one process does that has the batches of both."""

from __future__ import annotations

import copy
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from pa_callbacks_extra.sync_batch_norm_layers import Participants, restore_layers, synchronise_layers

pytestmark = pytest.mark.runs_on("two_ranks")

CHANNELS = 3
SHAPES: dict[type[nn.Module], list[tuple[int, ...]]] = {
    nn.BatchNorm1d: [(), (5,)],
    nn.BatchNorm2d: [(4, 2)],
    nn.BatchNorm3d: [(2, 3, 2)],
}
LAYERS = [(layer, shape) for layer, shapes in SHAPES.items() for shape in shapes]


class Pass(NamedTuple):
    """What a layer gives back for a batch, and for the gradient of it."""

    outputs: Tensor
    of_inputs: Tensor
    of_parameters: list[Tensor]


def run(layer: nn.Module, inputs: Tensor, gradient: Tensor) -> Pass:
    """Send a batch forward and a gradient backward."""
    inputs = inputs.clone().requires_grad_()
    outputs: Tensor = layer(inputs)
    parameters = list(layer.parameters())
    of_inputs, *of_parameters = torch.autograd.grad(outputs, [inputs, *parameters], gradient.to(outputs.dtype))
    return Pass(outputs.detach(), of_inputs, of_parameters)


def synchronised(layer: nn.Module) -> nn.Module:
    """A copy of the layer that normalises over both ranks."""
    duplicate = copy.deepcopy(layer)
    synchronise_layers(duplicate, Participants(shares_group=False), uses_torch=False)
    return duplicate


def drawn(seed: int, *shape: int) -> Tensor:
    """Numbers in double precision that are the same on both ranks."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mine(batch: Tensor, sizes: tuple[int, int]) -> Tensor:
    """The part of a batch that this rank has."""
    return torch.split(batch, list(sizes))[dist.get_rank()]


def require_same(
    layer: nn.Module,
    shape: tuple[int, ...],
    sizes: tuple[int, int],
    tolerance: float = 1e-12,
    together: nn.Module | None = None,
) -> None:
    """Outputs, gradients and statistics of two ranks are those of one process that has the samples of both."""
    together = together or synchronised(layer)
    close = partial(torch.testing.assert_close, rtol=tolerance, atol=tolerance)
    dtype = next(chain(layer.parameters(), layer.buffers()), torch.zeros(0, dtype=torch.float64)).dtype
    for seed in range(0, 6, 2):
        inputs, gradient = (drawn(seed + number, sum(sizes), CHANNELS, *shape).to(dtype) for number in range(2))
        expected = run(layer, 1 + inputs, gradient)
        found = run(together, mine(1 + inputs, sizes), mine(gradient, sizes))
        close(found.outputs, mine(expected.outputs, sizes))
        close(found.of_inputs, mine(expected.of_inputs, sizes))
        for of_rank in found.of_parameters:
            dist.all_reduce(of_rank)
        close(found.of_parameters, expected.of_parameters)
    close(dict(together.state_dict()), dict(layer.state_dict()))


def make_plain(kind: type[nn.Module] = nn.BatchNorm1d, **options: Any) -> nn.Module:
    """A layer with parameters that do something."""
    layer: nn.Module = kind(CHANNELS, **{"dtype": torch.float64, **options})
    for number, parameter in enumerate(layer.parameters()):
        nn.init.uniform_(parameter, generator=torch.Generator().manual_seed(number))
    return layer


@pytest.mark.parametrize(("kind", "shape"), LAYERS)
@pytest.mark.parametrize("sizes", [(4, 4), (5, 2), (1, 3), (1, 1)])
def test_two_ranks_normalise_as_one_process(
    kind: type[nn.Module], shape: tuple[int, ...], sizes: tuple[int, int]
) -> None:
    """Layers of each kind, with batches of equal and of different sizes, are exact."""
    require_same(make_plain(kind), shape, sizes)


@pytest.mark.parametrize(("kind", "shape"), LAYERS)
def test_torchs_own_synchronised_layers_work_without_an_accelerator(
    kind: type[nn.Module], shape: tuple[int, ...]
) -> None:
    """`torch.nn.SyncBatchNorm`, which refuses to normalise on a CPU, is converted too and is exact."""
    layer = make_plain(kind)
    convert: Any = nn.SyncBatchNorm.convert_sync_batchnorm
    torchs: nn.Module = convert(copy.deepcopy(layer))
    require_same(layer, shape, (4, 2), together=synchronised(torchs))


@pytest.mark.parametrize(
    "options",
    [
        {"affine": False},
        {"bias": False},
        {"momentum": None},
        {"momentum": 0.0},
        {"momentum": 1.0},
        {"track_running_stats": False},
        {"affine": False, "track_running_stats": False},
        {"eps": 0.5},
    ],
    ids=str,
)
def test_options_of_layers_mean_what_they_mean_on_one_process(options: dict[str, Any]) -> None:
    """With and without parameters and running statistics, and with any momentum, layers are exact."""
    require_same(make_plain(**options), (), (4, 3))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
def test_layers_of_other_precisions(dtype: torch.dtype, tolerance: float) -> None:
    """Layers in float32 and bfloat16 are as exact as these are, and stay in their precision."""
    require_same(make_plain(nn.BatchNorm2d, dtype=dtype), (4, 4), (4, 3), tolerance)


def test_values_far_from_zero_are_normalised() -> None:
    """In float32, a deviation of 1 around 10,000 is not lost in the squares of the values."""
    inputs = (10_000 + drawn(0, 64, CHANNELS)).float()
    expected = nn.BatchNorm1d(CHANNELS).double()(inputs.double()).float()

    outputs = synchronised(nn.BatchNorm1d(CHANNELS))(mine(inputs, (40, 24)))

    torch.testing.assert_close(outputs, mine(expected, (40, 24)), rtol=0, atol=5e-3)


def test_activations_of_mixed_precision() -> None:
    """Under autocast, activations in bfloat16 are normalised with statistics and parameters in float32."""
    torch.default_generator.manual_seed(0)
    network = nn.Sequential(nn.Linear(CHANNELS, CHANNELS), make_plain(dtype=torch.float32))
    together = copy.deepcopy(network)
    synchronise_layers(together, Participants(shares_group=False), uses_torch=False)
    inputs = drawn(0, 8, CHANNELS).float()

    with torch.autocast("cpu", torch.bfloat16):
        expected = network(inputs)
        outputs = together(mine(inputs, (5, 3)))

    assert outputs.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(outputs, mine(expected, (5, 3)), rtol=0, atol=0.02)
    torch.testing.assert_close(dict(together.state_dict()), dict(network.state_dict()), rtol=0, atol=1e-6)


@pytest.mark.parametrize("tracks", [True, False])
def test_in_evaluation_mode_each_rank_is_by_itself(tracks: bool) -> None:
    """Layers in evaluation mode exchange nothing: one rank may evaluate alone, as with torch's own layers."""
    layer = make_plain(track_running_stats=tracks).eval()
    together = synchronised(layer)

    if dist.get_rank() == 0:
        for seed in range(2):
            inputs, gradient = drawn(seed, 4, CHANNELS), drawn(9, 4, CHANNELS)
            torch.testing.assert_close(run(together, inputs, gradient), run(layer, inputs, gradient), rtol=0, atol=0)


def test_a_rank_may_have_an_empty_batch() -> None:
    """A rank whose own loader gave it no sample in a step does not disturb the others."""
    require_same(make_plain(), (), (4, 0))


def test_gradients_of_parameters_alone() -> None:
    """Where the input needs no gradient, as in the first layer of a model, those of the parameters are exact."""
    layer = make_plain()
    inputs, gradient = drawn(0, 6, CHANNELS), drawn(1, 6, CHANNELS)
    expected = torch.autograd.grad(layer(inputs), list(layer.parameters()), gradient)

    together = synchronised(layer)
    found = torch.autograd.grad(together(mine(inputs, (4, 2))), list(together.parameters()), mine(gradient, (4, 2)))

    for of_rank in found:
        dist.all_reduce(of_rank)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_one_value_in_all_is_refused() -> None:
    """A single sample on all ranks together has no variance: the error is that of one process."""
    layer = synchronised(make_plain())
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        layer(mine(drawn(0, 1, CHANNELS), (1, 0)))


def test_the_first_rank_may_normalise_without_the_other() -> None:
    """Where the second rank has no sample, the first one normalises by itself, and then both together again."""
    layer = make_plain()
    together = copy.deepcopy(layer)
    participants = Participants(shares_group=False)
    synchronise_layers(together, participants, uses_torch=False)

    inputs, gradient = drawn(0, 4, CHANNELS), drawn(1, 4, CHANNELS)
    expected = run(layer, inputs, gradient)
    participants.connect_first(1)
    if dist.get_rank() == 0:
        participants.choose_first(1)
        torch.testing.assert_close(run(together, inputs, gradient), expected, rtol=0, atol=0)
    else:
        together.load_state_dict(layer.state_dict())
    participants.choose_first(2)

    require_same(layer, (), (3, 3), together=together)


class Doubled(nn.BatchNorm1d):
    """A layer of the user's own with a method of its own."""

    def twice(self) -> int:
        """Two times the number of channels."""
        return 2 * self.num_features


def test_layers_stay_the_objects_that_they_are() -> None:
    """Class, attributes, parameters, buffers, hooks and names of layers are as before once they are restored."""
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Sequential(nn.SyncBatchNorm(2), Doubled(2)), nn.InstanceNorm1d(2))
    layers = list(model.modules())
    before = [(layer, type(layer), dict(vars(layer))) for layer in layers]
    state, text = dict(model.state_dict()), repr(model)

    synchronise_layers(model, Participants(shares_group=False), uses_torch=False)

    assert list(model.modules()) == layers
    assert isinstance(doubled := layers[4], Doubled)
    assert doubled.twice() == 4
    assert model.state_dict().keys() == state.keys()
    duplicate = copy.deepcopy(model)
    for changed in (model, duplicate):
        restore_layers(changed)
        assert repr(changed) == text
    assert [(layer, type(layer), dict(vars(layer))) for layer in model.modules()] == before


def test_on_an_accelerator_layers_become_those_of_torch() -> None:
    """Converted to `torch.nn.SyncBatchNorm`, layers have its class and group, and evaluate as before."""
    model = nn.Sequential(nn.BatchNorm2d(2), nn.SyncBatchNorm(2)).eval()
    inputs = torch.randn(3, 2, 4, 4)
    expected = model(inputs)
    participants = Participants(shares_group=True)

    synchronise_layers(model, participants, uses_torch=True)

    for layer in model:
        assert isinstance(layer, nn.SyncBatchNorm)
        assert layer.process_group is dist.group.WORLD
    assert isinstance(model[0], nn.BatchNorm2d)
    torch.testing.assert_close(model(inputs), expected, rtol=0, atol=0)
    participants.connect_first(1)
    participants.choose_first(1)
    assert all(cast("Any", layer).process_group is participants.group for layer in model)
    with pytest.raises(ValueError, match="expected input tensor to be on GPU"):
        model.train()(inputs)
    restore_layers(model)
    assert [type(layer) for layer in model] == [nn.BatchNorm2d, nn.SyncBatchNorm]
