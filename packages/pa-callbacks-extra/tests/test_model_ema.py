"""The moving average of a model: its arithmetic, changes of the model that it follows, its memory, and wrappers."""

from __future__ import annotations

import copy
import gc
import io
import math
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pa_callbacks_extra import ModelEma
from pa_core.testing import TinyClassifier
from tests.support.pa_callbacks_extra.averaged_models import Tied, all_equal, set_all, values


@given(st.floats(0, 1), st.lists(st.floats(-10, 10), min_size=1, max_size=6))
def test_each_update_moves_the_average_towards_the_model(decay: float, history: list[float]) -> None:
    """After any sequence of updates the average is the exponential moving average of the weights."""
    model = nn.Linear(2, 2).double()
    set_all(model, 1.0)
    ema = ModelEma(model, decay)
    expected = 1.0

    for value in history:
        set_all(model, value)
        ema.update(model)
        expected = decay * expected + (1 - decay) * value

    for average in ema.module.parameters():
        assert average.detach().numpy() == pytest.approx(expected, abs=1e-12)


def test_batch_norm_statistics_are_averaged_and_counters_copied() -> None:
    """Floating-point buffers move like weights; a counter is the model's own, not a fraction of it."""
    model = TinyClassifier(batch_norm=True)
    set_all(model, 0.0)
    ema = ModelEma(model, decay=0.75)
    set_all(model, 1.0)
    for name, buffer in model.named_buffers():
        if name.endswith("num_batches_tracked"):
            buffer.fill_(7)

    ema.update(model)

    for name, average in ema.module.state_dict().items():
        expected = 7 if name.endswith("num_batches_tracked") else 0.25
        assert torch.equal(average, torch.full_like(average, expected)), name


def test_tied_weights_stay_tied_and_are_averaged_once() -> None:
    """A weight under two names takes one step towards the model in an update, and is one tensor in the copy."""
    model = Tied()
    set_all(model.head, 0.0)
    ema = ModelEma(model, decay=0.75)
    set_all(model.head, 1.0)

    ema.update(model)

    assert ema.module.head.weight is ema.module.embedding.weight
    assert torch.equal(ema.module.head.weight, torch.full((3, 2), 0.25))


def test_a_mask_with_infinities_stays_as_it_is() -> None:
    """The average of minus infinity with itself is no NaN, and a changed mask is followed at once."""
    model = Tied()
    ema = ModelEma(model)

    ema.update(model)
    assert torch.equal(ema.module.mask, model.mask)
    model.mask.fill_(0.5)
    ema.update(model)
    assert torch.equal(ema.module.mask, model.mask)


def test_a_restored_average_copies_what_was_copied_before() -> None:
    """A mask that lost its infinities stays one that is copied when the average goes on from a saved state."""
    model = Tied()
    ema = ModelEma(model, decay=0.5)
    model.mask.fill_(0.0)
    ema.update(model)

    restored = ModelEma(model, decay=0.5)
    restored.load_state_dict(ema.state_dict())
    model.mask.fill_(1.0)
    restored.update(model)

    assert torch.equal(restored.module.mask, model.mask)


def test_a_restored_average_warms_up_where_the_saved_one_did(tmp_path: Path) -> None:
    """Saved as any other module, and loaded into a new average, which goes on as the saved one does."""
    model = TinyClassifier(batch_norm=True)
    ema = ModelEma(model, warm_up=True)
    set_all(model, 3.0)
    ema.update(model)
    torch.save(ema.state_dict(), tmp_path / "average.pt")

    restored = ModelEma(model, warm_up=True)
    restored.load_state_dict(torch.load(tmp_path / "average.pt", weights_only=True))

    set_all(model, -1.0)
    for average in (ema, restored):
        average.update(model)
    assert restored.num_updates == 2
    assert all(torch.equal(value, values(restored)[name]) for name, value in values(ema).items())


def test_the_average_is_a_model_for_evaluation() -> None:
    """Called, it is the averaged model in eval mode, without gradients, and updates keep its tensors in place."""
    model = TinyClassifier(batch_norm=True).train()
    ema = ModelEma(model, decay=0.5)
    inputs = torch.randn(4, 4)
    places = [tensor.data_ptr() for tensor in [*ema.parameters(), *ema.buffers()]]
    before = values(ema)

    outputs = ema(inputs)

    assert torch.equal(outputs, model.eval()(inputs))
    assert all(torch.equal(value, before[name]) for name, value in values(ema).items())
    ema.update(model)
    assert [tensor.data_ptr() for tensor in [*ema.parameters(), *ema.buffers()]] == places
    assert not ema(inputs).requires_grad


def test_a_compiled_model_is_averaged_like_the_one_inside_it() -> None:
    """Given the compiled model, in the constructor or in updates, the copy has the plain names."""
    model = nn.Linear(2, 2)
    set_all(model, 0.0)
    compiled = cast("nn.Module", torch.compile(model, backend="eager"))
    emas = [ModelEma(model, decay=0.5), ModelEma(compiled, decay=0.5)]
    set_all(model, 1.0)

    emas[0].update(compiled)
    emas[1].update(model)

    for ema in emas:
        assert values(ema.module).keys() == {"weight", "bias"}
        assert all_equal(ema.module, 0.5)


def test_a_copy_of_an_average_goes_its_own_way() -> None:
    """A deep copy, or a pickled one, does not move with the original."""
    model = nn.Linear(2, 2)
    set_all(model, 0.0)
    ema = ModelEma(model, decay=0.5)
    ema.update(model)
    file = io.BytesIO()
    torch.save(ema, file)
    file.seek(0)
    duplicates: list[ModelEma] = [copy.deepcopy(ema), torch.load(file, weights_only=False)]
    set_all(model, 1.0)

    ema.update(model)

    for duplicate in duplicates:
        assert all_equal(duplicate.module, 0.0)
        duplicate.update(model)
        assert all_equal(duplicate.module, 0.5)


@given(st.floats(0, 1), st.integers(1, 8))
def test_the_warm_up_follows_its_formula(decay: float, updates: int) -> None:
    """While it warms up, update n keeps (1 + n) / (10 + n) of the average, and never more than the decay."""
    model = nn.Linear(1, 1, bias=False).double()
    set_all(model, 0.0)
    ema = ModelEma(model, decay, warm_up=True)
    set_all(model, 1.0)
    left = 1.0

    for number in range(1, updates + 1):
        ema.update(model)
        left *= min(decay, (1 + number) / (10 + number))

    assert ema.num_updates == updates
    assert values(ema.module)["weight"].item() == pytest.approx(1 - left, abs=1e-12)


def test_an_average_begins_anew() -> None:
    """After a reset the average is the model, and warms up again."""
    model = TinyClassifier(batch_norm=True)
    ema = ModelEma(model, warm_up=True)
    set_all(model, 1.0)
    ema.update(model)
    set_all(model, 2.0)

    ema.reset(model)

    assert ema.num_updates == 0
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in values(ema.module).items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_in_half_precision_are_averaged_in_float32(dtype: torch.dtype) -> None:
    """A slow average of half-precision weights moves as slowly as it should, instead of not at all."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).to(dtype)
    set_all(model, 0.0)
    ema = ModelEma(model, decay=0.999)
    set_all(model, 1.0)

    for _ in range(100):
        ema.update(model)

    for name, average in values(ema.module).items():
        if "tracked" not in name:
            assert average.dtype == torch.float32
            torch.testing.assert_close(average, torch.full_like(average, 1 - 0.999**100))
    own = [tensor.data_ptr() for tensor in model.parameters()]
    with ema.applied_to(model):
        expected = torch.tensor(1 - 0.999**100).to(dtype)
        assert all(parameter.dtype == dtype and (parameter == expected).all() for parameter in model.parameters())
    assert [tensor.data_ptr() for tensor in model.parameters()] == own
    assert all((parameter == 1).all() for parameter in model.parameters())


def test_buffers_that_share_or_repeat_memory_are_averaged_once() -> None:
    """Two buffers on the same memory, or one that repeats a single number, are averaged like any other."""
    model = nn.Module()
    memory = torch.zeros(4)
    model.register_buffer("whole", memory)
    model.register_buffer("view", memory[:2])
    model.register_buffer("repeated", torch.zeros(1).expand(3))
    ema = ModelEma(model, decay=0.75)
    memory.fill_(1.0)

    ema.update(model)

    assert (values(ema.module)["whole"] == 0.25).all()
    assert (values(ema.module)["view"] == 0.25).all()
    assert (values(ema.module)["repeated"] == 0).all()


def test_frozen_weights_are_averaged_and_may_be_unfrozen() -> None:
    """A frozen weight stays what it is to the last bit; from when it changes on, the average follows it."""
    model = nn.Linear(3, 3)
    model.weight.requires_grad_(False)
    before = model.weight.clone()
    ema = ModelEma(model, decay=0.7)
    for _ in range(5):
        ema.update(model)
    assert torch.equal(values(ema.module)["weight"], before)

    model.weight.requires_grad_(True)
    set_all(model, 1.0)
    ema.update(model)

    torch.testing.assert_close(values(ema.module)["weight"], 0.7 * before + 0.3)


@pytest.mark.parametrize("decay", [-0.1, 1.1, math.nan])
def test_a_decay_that_is_no_fraction_is_refused(decay: float) -> None:
    """The decay has to be between 0 and 1."""
    with pytest.raises(ValueError, match=f"decay={decay}"):
        ModelEma(nn.Linear(1, 1), decay)


def replace_parameters(model: nn.Linear) -> None:
    """New parameters under the old names, in another order of registration."""
    del model.weight
    model.weight = nn.Parameter(torch.ones(2, 2))
    model.bias = nn.Parameter(torch.ones(2))


def assign_state(model: nn.Linear) -> None:
    """New parameters by loading a state."""
    model.load_state_dict({"weight": torch.ones(2, 2), "bias": torch.ones(2)}, assign=True)


def replace_data(model: nn.Linear) -> None:
    """New memory in the same parameters."""
    model.weight.data, model.bias.data = torch.ones(2, 2), torch.ones(2)


def change_precision(model: nn.Linear) -> None:
    """The same values in double precision."""
    set_all(model.double(), 1.0)


@pytest.mark.parametrize("change", [replace_parameters, assign_state, replace_data, change_precision])
def test_weights_that_are_replaced_are_followed(change: Callable[[nn.Linear], None]) -> None:
    """An average stays with the model when its tensors become others of the same shapes between two updates."""
    model = nn.Linear(2, 2)
    set_all(model, 0.0)
    ema = ModelEma(nn.Sequential(model), decay=0.5)
    ema.update(holder := nn.Sequential(model))
    change(model)

    ema.update(holder)

    assert all_equal(ema.module, 0.5)


def test_layers_and_buffers_that_are_replaced_are_followed() -> None:
    """A new layer in the place of one of the same shape, or a buffer that each forward pass makes anew, is averaged."""
    model = nn.Sequential(nn.BatchNorm1d(2))
    set_all(model, 0.0)
    ema = ModelEma(model, decay=0.5)
    ema.update(model)
    model[0] = nn.BatchNorm1d(2)
    set_all(model, 1.0)
    ema.update(model)
    assert all((value == 0.5).all() for name, value in values(ema.module).items() if "tracked" not in name)

    model[0].register_buffer("running_mean", torch.full((2,), 2.5))
    ema.update(model)
    assert (values(ema.module)["0.running_mean"] == 1.5).all()


@pytest.mark.parametrize("moves_the_module", [True, False])
def test_an_average_that_is_moved_stays_connected(moves_the_module: bool) -> None:
    """When the average is converted to another precision, parameters and buffers of it are still updated."""
    model = TinyClassifier(batch_norm=True)
    set_all(model, 0.0)
    ema = ModelEma(model, decay=0.5)
    ema.update(model)
    (ema.module if moves_the_module else ema).double()
    set_all(model, 1.0)

    ema.update(model)

    averages = {name: value for name, value in values(ema.module).items() if "tracked" not in name}
    assert all((value == 0.5).all() and value.dtype == torch.float64 for value in averages.values())


def linear(out_features: int = 2, **kwargs: Any) -> nn.Linear:
    """A layer with two inputs."""
    return nn.Linear(2, out_features, **kwargs)


def prune(model: nn.Linear) -> None:
    """Leave one output, in the same parameters."""
    model.weight.data, model.bias.data = model.weight.data[:1], model.bias.data[:1]


CHANGES: list[tuple[Callable[[nn.Linear], object], str]] = [
    (prune, r"weight: shape \(1, 2\) on cpu, was shape \(2, 2\) on cpu; bias: shape \(1,\) on cpu, was"),
    (
        lambda model: setattr(model, "scale", nn.Parameter(torch.ones(2))),
        r"scale: shape \(2,\) on cpu, was not there",
    ),
    (lambda model: setattr(model, "adapter", nn.Linear(1, 1)), "adapter.bias: .*, was not there"),
    (lambda model: model.to("meta"), "weight: shape .* on meta"),
    (lambda model: model.register_parameter("bias", None), r"bias: not there, was shape \(2,\) on cpu"),
]


@pytest.mark.parametrize(("change", "named"), CHANGES)
def test_a_model_that_changed_is_refused(change: Callable[[nn.Linear], object], named: str) -> None:
    """An update from a model with other tensors than before names what differs, and changes nothing."""
    model = linear()
    ema = ModelEma(model, decay=0.5)
    ema.update(model)
    before = values(ema)
    change(model)

    def apply() -> None:
        with ema.applied_to(model):
            pass

    uses: list[Callable[[], object]] = [lambda: ema.update(model), lambda: ema.reset(model), apply]
    for use in uses:
        with pytest.raises(ValueError, match=rf"changed since(.|\n)*{named}"):
            use()

    assert ema.num_updates == 1
    assert all(torch.equal(value, before[name]) for name, value in values(ema).items())


@pytest.mark.parametrize("other", [linear(3), linear(bias=False), TinyClassifier(), nn.Identity()])
def test_another_model_is_refused(other: nn.Module) -> None:
    """An average is not updated from a model that it was not made of."""
    with pytest.raises(ValueError, match="has changed since the average was made from it"):
        ModelEma(linear()).update(other)


@pytest.mark.parametrize("tied_first", [True, False])
def test_weights_that_are_tied_or_untied_later_are_refused(tied_first: bool) -> None:
    """One average cannot follow two weights, nor two averages one weight."""
    model = Tied()
    untied = copy.deepcopy(model)
    untied.head.weight = nn.Parameter(model.head.weight.detach().clone())
    first, second = (model, untied) if tied_first else (untied, model)
    ema = ModelEma(first)

    with pytest.raises(ValueError, match=r"single tensor with the names embedding.weight, head.weight"):
        ema.update(second)


def allocated_by(function: Callable[[], object]) -> int:
    """The bytes of memory that torch takes up for tensors while the function runs, given back or not."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        function()
    return sum(max(event.self_cpu_memory_usage, 0) for event in profile.events() or ())


def test_an_update_takes_up_no_memory() -> None:
    """No temporary is made in an update, while averaging a state dict makes some of the size of all weights."""
    model = TinyClassifier(hidden=256, batch_norm=True)
    ema = ModelEma(model, decay=0.5)
    ema.update(model)

    def update_state_dict() -> None:
        with torch.no_grad():
            for average, value in zip(values(ema.module).values(), values(model).values(), strict=True):
                average.copy_(0.5 * average + 0.5 * value)

    assert allocated_by(lambda: ema.update(model)) == 0
    assert allocated_by(update_state_dict) > 4 * sum(parameter.numel() for parameter in model.parameters())


def test_an_average_takes_up_one_copy_of_the_weights() -> None:
    """The gradients that a model has are not copied with its weights."""
    model = nn.Linear(100, 100)
    torch.autograd.backward(model(torch.ones(1, 100)).sum())
    size = 4 * sum(parameter.numel() for parameter in model.parameters())
    made: list[ModelEma] = []

    assert allocated_by(lambda: made.append(ModelEma(model))) == size
    assert all(parameter.grad is None for parameter in made[0].parameters())


def test_an_average_outlives_the_weights_of_its_model() -> None:
    """An average that was updated does not keep the memory of a model that is gone."""
    model = nn.Linear(2, 2)
    ema = ModelEma(model)
    ema.update(model)
    with ema.applied_to(model):
        pass
    weight = weakref.ref(model.weight)

    del model
    gc.collect()

    assert weight() is None
    assert not all_equal(ema.module, 0.0)


class Evaluated(Exception):
    """Raised where an evaluation fails."""


def test_the_averaged_weights_are_in_the_model_for_a_while() -> None:
    """Within the context the model has the average, also under a wrapper; afterwards its own weights, come what may."""
    model = TinyClassifier(batch_norm=True).train()
    ema = ModelEma(model, decay=0.5)
    set_all(model, 1.0)
    ema.update(model)
    own, averages = values(model), values(ema.module)
    compiled = cast("nn.Module", torch.compile(model, backend="eager"))

    def evaluate() -> None:
        with ema.applied_to(compiled):
            inside = values(model)
            assert all(torch.equal(inside[name], average) for name, average in averages.items())
            assert all(parameter.requires_grad for parameter in model.parameters())
            model.double()
            model.layers[1] = nn.Identity()
            raise Evaluated

    with pytest.raises(Evaluated):
        evaluate()

    for expected, module in ((own, model), (averages, ema.module)):
        assert values(module).keys() == expected.keys()
        assert all(torch.equal(value, expected[name]) for name, value in values(module).items())
    assert model.training
    set_all(model, 7.0)
    assert all(torch.equal(value, averages[name]) for name, value in values(ema.module).items())


def test_applying_the_average_copies_nothing() -> None:
    """The model shows the memory of the average, instead of a copy of it."""
    model = nn.Linear(64, 64)
    ema = ModelEma(model)
    ema.update(model)

    def apply() -> None:
        with ema.applied_to(model):
            pass

    assert allocated_by(apply) == 0
