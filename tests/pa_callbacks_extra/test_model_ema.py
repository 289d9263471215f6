"""The moving average of a model: its arithmetic, what it leaves alone, and the wrappers it sees through."""

from __future__ import annotations

import copy
import math
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD
from typing_extensions import override

from pa_callbacks_extra import ModelEma
from pa_core import AnyTrainer, Trainer, TrainerCallback
from pa_core.testing import TinyClassifier, make_classification


class Tied(nn.Module):
    """An embedding and a head that share their weight, and a mask with infinities."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 2)
        self.head = nn.Linear(2, 3, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.full((2, 2), -math.inf).triu(1))


def set_all(model: nn.Module, value: float) -> None:
    """Give each parameter and each floating-point buffer one value."""
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.is_floating_point():
            nn.init.constant_(tensor, value)


def values(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the state dict."""
    return copy.deepcopy(model.state_dict())


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

    average = cast("Tied", ema.module)
    assert average.head.weight is average.embedding.weight
    assert torch.equal(average.head.weight, torch.full((3, 2), 0.25))


def test_a_mask_with_infinities_stays_as_it_is() -> None:
    """The average of minus infinity with itself is no NaN, and a changed mask is followed at once."""
    model = Tied()
    ema = ModelEma(model)

    ema.update(model)
    assert torch.equal(cast("Tied", ema.module).mask, model.mask)
    model.mask.fill_(0.5)
    ema.update(model)
    assert torch.equal(cast("Tied", ema.module).mask, model.mask)


def test_the_model_is_left_alone() -> None:
    """Neither making nor updating an average changes the model, its mode or its gradients."""
    model = TinyClassifier(batch_norm=True).train()
    torch.autograd.backward(model(torch.randn(4, 4)).sum())
    before = values(model)
    gradients = [p.grad for p in model.parameters()]

    ema = ModelEma(model, decay=0.5)
    ema.update(model)

    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is gradient for p, gradient in zip(model.parameters(), gradients, strict=True))
    assert all(p.requires_grad for p in model.parameters())
    assert all(module.training for module in model.modules())


def test_the_average_is_a_model_for_evaluation() -> None:
    """Called, it is the averaged model in eval mode, without gradients, and updates keep its tensors in place."""
    model = TinyClassifier(batch_norm=True).train()
    ema = ModelEma(model, decay=0.5)
    inputs = torch.randn(4, 4)
    places = [tensor.data_ptr() for tensor in [*ema.parameters(), *ema.buffers()]]
    before = values(ema)

    outputs = ema(inputs)

    assert torch.equal(outputs, model.eval()(inputs))
    assert all(torch.equal(value, before[name]) for name, value in ema.state_dict().items())
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
        assert all((value == 0.5).all() for value in ema.module.state_dict().values())


def test_weights_that_are_replaced_are_followed() -> None:
    """New tensors in the model, and an average that was moved to another precision and back, stay connected."""
    model = nn.Linear(2, 2)
    ema = ModelEma(model, decay=0.0).double().float()
    model.load_state_dict({"weight": torch.ones(2, 2), "bias": torch.ones(2)}, assign=True)

    ema.update(model)

    assert all((value == 1).all() for value in ema.module.state_dict().values())


def test_an_average_is_saved_and_restored_as_a_module() -> None:
    """A fresh average with a loaded state goes on like the one that was saved."""
    model = TinyClassifier(batch_norm=True)
    ema = ModelEma(model, decay=0.5)
    set_all(model, 3.0)
    ema.update(model)

    restored = ModelEma(model, decay=0.5)
    restored.load_state_dict(values(ema))

    for average in (ema, restored):
        average.update(model)
    assert all(torch.equal(value, restored.state_dict()[name]) for name, value in ema.state_dict().items())


@pytest.mark.parametrize("decay", [-0.1, 1.1, math.nan])
def test_a_decay_that_is_no_fraction_is_refused(decay: float) -> None:
    """The decay has to be between 0 and 1."""
    with pytest.raises(ValueError, match=f"decay={decay}"):
        ModelEma(nn.Linear(1, 1), decay)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (nn.Linear(2, 3), r"weight: torch.float32 of shape \(3, 2\)"),
        (nn.Linear(2, 2, bias=False), "bias: not there"),
        (nn.Linear(2, 2).double(), r"bias: torch.float64 of shape \(2,\) on cpu"),
        (nn.Linear(2, 2, device="meta"), "on meta"),
    ],
)
def test_a_model_that_changed_is_refused(other: nn.Module, named: str) -> None:
    """An update from a model with other tensors names what differs, and changes nothing."""
    ema = ModelEma(nn.Linear(2, 2), decay=0.5)
    before = values(ema)

    with pytest.raises(ValueError, match=named):
        ema.update(other)

    assert all(torch.equal(value, before[name]) for name, value in ema.state_dict().items())


class AverageOfUpdates(TrainerCallback):
    """Averages the wrapped model of a run after each update, once by ``ModelEma`` and once by hand."""

    def __init__(self) -> None:
        self.by_hand: dict[str, Tensor] = {}

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.ema = ModelEma(trainer.model, decay=0.5)
        self.by_hand = values(trainer.get_model())

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        self.ema.update(trainer.model)
        for name, value in trainer.get_model().state_dict().items():
            average = self.by_hand[name]
            self.by_hand[name] = value.clone() if name.endswith("tracked") else 0.5 * average + 0.5 * value


@pytest.mark.runs_on("one_process", "two_ranks", "bf16")
def test_the_average_of_a_training_run() -> None:
    """Taken of the wrapped model in a run, it is the average over the updates, on all ranks, and computes with it."""
    torch.default_generator.manual_seed(0)
    model = TinyClassifier(batch_norm=True)
    average = AverageOfUpdates()
    trainer = Trainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.5), callbacks=[average])

    trainer.train(make_classification(48), num_epochs=2)

    for name, value in average.ema.module.state_dict().items():
        torch.testing.assert_close(value, average.by_hand[name])
    for parameter in average.ema.module.parameters():
        of_all_ranks: Tensor = trainer.gather(parameter[None])
        assert torch.equal(of_all_ranks, parameter.expand_as(of_all_ranks))
    inputs = torch.randn(4, 4)
    model.load_state_dict(average.ema.module.state_dict())
    torch.testing.assert_close(average.ema(inputs).float(), model.eval()(inputs), rtol=0.05, atol=0.05)
