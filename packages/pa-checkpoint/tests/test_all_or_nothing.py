"""Several objects load what was saved of them: all of it or, where one of them raises an error, nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from typing_extensions import override

from pa_checkpoint import CheckpointError, StoredTensor
from pa_checkpoint.torch_states import AllOrNothing, SavedModel, does_not_fit, refusals_explained


class Counting(nn.Module):
    """A model with a number that is no tensor, and a buffer that its state dict leaves out."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.number = number
        self.register_buffer("seen", torch.full((2,), float(number)), persistent=False)

    @override
    def get_extra_state(self) -> dict[str, int]:
        return {"number": self.number}

    @override
    def set_extra_state(self, state: dict[str, int]) -> None:
        self.number = 0
        self.number = state["number"]


def explain(found: str) -> CheckpointError:
    """The error for a state that does not fit."""
    return CheckpointError(found)


def trained() -> tuple[Counting, optim.Optimizer, StepLR]:
    """A model, its optimizer and its schedule after an update."""
    model = Counting(1)
    optimizer = optim.Adam(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, 1)
    model.layer(torch.ones(2)).backward()
    optimizer.step()
    scheduler.step()
    return model, optimizer, scheduler


def states(model: Counting, optimizer: optim.Optimizer, scheduler: StepLR) -> Any:
    """All that the three are, copied."""
    return copy.deepcopy((SavedModel.of(model)._asdict(), optimizer.state_dict(), scheduler.state_dict()))


def same(one: Any, other: Any) -> bool:
    """Whether two states are the same, with their tensors."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def load(
    saved: Any, model: Counting, optimizer: optim.Optimizer, scheduler: StepLR, error: Exception | None = None
) -> None:
    """Load all of what was saved of the three, and raise an error then, if there is one."""
    with AllOrNothing() as loading:
        loading.keep_weights(model)
        loading.load_models({"model": model}, {"model": SavedModel(**saved[0])})
        loading.load_optimizer(optimizer, saved[1], explain)
        loading.load(scheduler, saved[2], explain)
        if error is not None:
            raise error


def test_all_is_loaded() -> None:
    """Weights, buffers that no state dict has, what is trained, and the state of each object."""
    source, target = trained(), trained()
    source[0].layer.bias.requires_grad_(False)
    source[0].number = 7
    source[0].get_buffer("seen").fill_(5)
    load(states(*source), *target)
    assert same(states(*target), states(*source))


def test_nothing_is_loaded_where_an_error_follows() -> None:
    """Weights, extra states, optimizer and schedule are as they were."""
    source, target = trained(), trained()
    source[0].number = 7
    before = states(*target)
    with pytest.raises(LookupError):
        load(states(*source), *target, LookupError())
    assert same(states(*target), before)


def test_an_object_that_refuses_its_state_is_named() -> None:
    """And the others are as they were."""
    model, optimizer, scheduler = trained()
    before = states(model, optimizer, scheduler)
    weights = {name: torch.zeros(2, 2) for name in model.state_dict()}
    loading = AllOrNothing()
    loading.load_optimizer(optimizer, trained()[1].state_dict(), explain)
    with pytest.raises(CheckpointError, match="loading it raised"), loading:
        loading.load_weights(model, weights, explain)
    assert same(states(model, optimizer, scheduler), before)


def test_a_module_is_compared_before_it_loads() -> None:
    """It would load what fits before it raises an error of what does not."""
    with pytest.raises(CheckpointError, match="missing: bias"), AllOrNothing() as loading:
        loading.load(nn.Linear(1, 1), {"weight": torch.ones(1, 1)}, explain)


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_an_object_of_any_kind_is_as_it_was_where_an_error_follows(kind: int) -> None:
    """A module, an optimizer or a scheduler."""
    source, target = trained(), trained()
    source[0].number = 7
    before = states(*target)
    loading = AllOrNothing()
    loading.load(target[kind], copy.deepcopy(source[kind].state_dict()), explain)
    with pytest.raises(LookupError), loading:
        raise LookupError
    assert same(states(*target), before)


def test_models_keep_what_does_not_match() -> None:
    """Weights of another shape, and models of which nothing was saved."""
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    bias, weight = model.bias.detach().clone(), other.weight.detach().clone()
    saved = SavedModel({"weight": StoredTensor.of(torch.ones(1, 2)), "bias": torch.ones(3)}, {}, {})
    with AllOrNothing() as loading:
        loading.load_models({"model": model, "other": other}, {"model": saved})
    assert torch.equal(model.weight, torch.ones(1, 2))
    assert torch.equal(model.bias, bias)
    assert torch.equal(other.weight, weight)


def test_an_optimizer_keeps_the_precision_of_its_state_and_what_schedulers_noted() -> None:
    """Torch would cast the state to the precision of the parameter, and forget what the file lacks."""
    parameter = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    optimizer = optim.SGD([parameter], lr=0.1, momentum=0.9)
    optimizer.param_groups[0]["initial_lr"] = 0.3
    group = {name: value for name, value in optimizer.state_dict()["param_groups"][0].items() if name != "initial_lr"}
    state = {"state": {0: {"momentum_buffer": torch.full((2,), 1 / 3)}}, "param_groups": [group]}
    with AllOrNothing() as loading:
        loading.load_optimizer(optimizer, state, explain)
    assert torch.equal(optimizer.state[parameter]["momentum_buffer"], torch.full((2,), 1 / 3))
    assert optimizer.param_groups[0]["initial_lr"] == 0.3


def test_groups_that_were_added_for_a_state_are_removed_again() -> None:
    """Those of layers that the saved run has unfrozen."""
    first, second = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    groups: list[dict[str, Any]] = [{"params": [first]}, {"params": [second], "lr": 0.5}]
    state = optim.SGD(groups, lr=0.1).state_dict()
    optimizer = optim.SGD([first], lr=0.1)
    loading = AllOrNothing()
    loading.load_optimizer(optimizer, state, explain, [[second]])
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.5]
    with pytest.raises(LookupError), loading:
        raise LookupError
    assert len(optimizer.param_groups) == 1


class Forgetful(optim.SGD):
    """An optimizer that does not load what it returns."""

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"own": torch.ones(len(self.param_groups[0]))}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.param_groups[0]["loaded"] = True


def test_an_optimizer_that_loses_its_state_is_told() -> None:
    """One with a form of its own, which nobody else can compare."""
    optimizer = Forgetful(nn.Linear(1, 1).parameters(), lr=0.1)
    with pytest.raises(CheckpointError, match="does not restore what its state_dict"), AllOrNothing() as loading:
        loading.load_optimizer(optimizer, optimizer.state_dict(), explain)


def test_what_is_no_refusal_passes() -> None:
    """Errors of checkpoints explain themselves, and others may be meant for somebody else."""
    with pytest.raises(CheckpointError, match="it is damaged"), refusals_explained(explain):
        raise CheckpointError("it is damaged")
    with pytest.raises(StopIteration), refusals_explained(explain, passing=(StopIteration,)):
        raise StopIteration
    error = does_not_fit(nn.Linear(1, 1), "file.pt", "Use another file.", "it is empty")
    assert error.do == "Use another file."
