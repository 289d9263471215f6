"""States of models, optimizers and schedulers are compared first, and then all of them are loaded or none."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import StepLR
from typing_extensions import override

from pa_checkpoint import CheckpointError, StoredTensor
from pa_checkpoint.torch_states import SavedModel, TransactionalLoad, does_not_fit, incompatibility, refusals_explained
from tests.support.states import same

OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "ASGD": optim.ASGD,
    "Adadelta": optim.Adadelta,
    "Adagrad": optim.Adagrad,
    "Adam": optim.Adam,
    "AdamW with amsgrad": lambda one: optim.AdamW(one, amsgrad=True),
    "Adamax": optim.Adamax,
    "NAdam": optim.NAdam,
    "RAdam": optim.RAdam,
    "RMSprop": lambda one: optim.RMSprop(one, momentum=0.9, centered=True),
    "Rprop": optim.Rprop,
    "SGD with momentum": lambda one: optim.SGD(one, lr=0.1, momentum=0.9),
    "a rate that is a tensor": lambda one: optim.Adam(one, lr=torch.tensor(0.1)),
}


def parameters() -> list[nn.Parameter]:
    """Of all numbers of dimensions, and with sizes that are easily taken for others."""
    shapes: list[tuple[int, ...]] = [(4, 5), (4,), (2, 1, 3), (), (1,), (2, 0)]
    return [nn.Parameter(torch.ones(shape)) for shape in shapes]


def trained_state(make: Callable[[list[nn.Parameter]], Optimizer]) -> dict[str, Any]:
    """The state of an optimizer that has made updates."""
    trained = parameters()
    optimizer = make(trained)
    for parameter in trained:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return copy.deepcopy(optimizer.state_dict())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_of_an_optimizer_fits_another_one_of_the_same_parameters(name: str) -> None:
    """Whatever an optimizer of torch gathers, and in whatever precision its parameters are."""
    make = OPTIMIZERS[name]
    assert incompatibility(make(parameters()), trained_state(make)) is None
    assert incompatibility(make(parameters()), make(parameters()).state_dict()) is None
    half = make([nn.Parameter(parameter.detach().bfloat16()) for parameter in parameters()])
    assert incompatibility(half, trained_state(make)) is None


@pytest.mark.parametrize("name", sorted(OPTIMIZERS.keys() - {"ASGD", "Rprop"}))  # which look at values in each step
def test_an_entry_of_another_shape_is_named(name: str) -> None:
    """Loaded, it would fail in the next step, as that of an optimizer of other parameters would."""
    make = OPTIMIZERS[name]
    state = trained_state(make)
    for number, entries in state["state"].items():
        for entry, value in entries.items():
            if isinstance(value, Tensor):
                changed = copy.deepcopy(state)
                changed["state"][number][entry] = value[None].repeat(2, *[1] * value.dim())
                found = incompatibility(make(parameters()), changed)
                assert found is not None
                assert found.startswith(f"state.{number}.{entry} is of shape ")


@pytest.mark.parametrize(("saved", "own"), [("Adam", "SGD with momentum"), ("Adam", "Adamax"), ("Adamax", "Adam")])
def test_the_state_of_another_kind_of_optimizer_is_told(saved: str, own: str) -> None:
    """One with settings or with entries that the other lacks, and would miss in its next step."""
    found = incompatibility(OPTIMIZERS[own](parameters()), trained_state(OPTIMIZERS[saved]))
    assert str(found).endswith("is missing")


def without(entry: str) -> Callable[[dict[str, Any]], object]:
    """Leave out an entry of the first parameter."""
    return lambda state: state["state"][0].pop(entry)


WRONG_STATES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no groups": (lambda state: state.pop("param_groups"), "not what an optimizer's state_dict() returns"),
    "no entries": (lambda state: state.pop("state"), "not what an optimizer's state_dict() returns"),
    "a group more": (lambda state: state["param_groups"].append({"params": []}), "it has 2 groups, not 1"),
    "a parameter less": (
        lambda state: state["param_groups"][0]["params"].pop(),
        "params is [0, 1, 2, 3, 4], not the numbers",
    ),
    "no rate": (lambda state: state["param_groups"][0].pop("lr"), "param_groups.0.lr is missing"),
    "a group that is none": (lambda state: state.update(param_groups=[3]), "param_groups.0 is 3, not a dictionary"),
    "a parameter twice": (
        lambda state: state["param_groups"][0].update(params=[0, 0, 1, 2, 3, 4]),
        "params is [0, 0, 1, 2, 3, 4], not the numbers of 6 parameters",
    ),
    "parameters by name": (
        lambda state: state["param_groups"][0].update(params=["a"] * 6),
        "not the numbers of 6 parameters",
    ),
    "another flag": (lambda state: state["param_groups"][0].update(fused=torch.ones(2)), "not True or False"),
    "another rate": (lambda state: state["param_groups"][0].update(lr="high"), "lr is 'high', not a number"),
    "other betas": (
        lambda state: state["param_groups"][0].update(betas=[0.9, None, "x"]),
        "betas has 3 entries, not 2",
    ),
    "entries that are none": (lambda state: state["state"].update({1: "x"}), "state.1 is 'x', not a dictionary"),
    "an entry that is no tensor": (lambda state: state["state"][0].update(exp_avg=["a"]), "['a'], not a tensor"),
    "a counter of whole numbers": (
        lambda state: state["state"][0].update(step=torch.tensor(3)),
        "state.0.step is of whole numbers",
    ),
    "half of an entry": (without("exp_avg"), "state.0.exp_avg is missing"),
}


@pytest.mark.parametrize("name", WRONG_STATES)
def test_what_is_not_the_state_of_this_optimizer_is_named(name: str) -> None:
    """Groups, parameters and entries are those of the optimizer."""
    change, expected = WRONG_STATES[name]
    state = trained_state(OPTIMIZERS["Adam"])
    change(state)
    assert expected in str(incompatibility(OPTIMIZERS["Adam"](parameters()), state))


def test_groups_that_are_still_to_be_added_are_compared_too() -> None:
    """A run that unfreezes layers adds the group when it takes over the state."""
    state = trained_state(lambda all_of_them: optim.Adam([{"params": all_of_them[:2]}, {"params": all_of_them[2:]}]))
    own = parameters()
    assert incompatibility(optim.Adam(own[:2]), state, groups=[own[:2], own[2:]]) is None
    state["state"][2]["exp_avg"] = torch.ones(7)
    assert "state.2.exp_avg" in str(incompatibility(optim.Adam(own[:2]), state, groups=[own[:2], own[2:]]))


def test_an_optimizer_with_a_form_of_its_own_decides_itself() -> None:
    """Only its load_state_dict() knows what fits, as only its own method knows for a scheduler that is not of torch."""

    class OwnForm(optim.SGD):
        @override
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            pass

    assert incompatibility(OwnForm(parameters(), lr=0.1), {"anything": 1}) is None
    assert incompatibility(object(), {"anything": 1}) is None


SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "ChainedScheduler": lambda one: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(one), lr_scheduler.StepLR(one, 3)]
    ),
    "CosineAnnealingLR": lambda one: lr_scheduler.CosineAnnealingLR(one, 5),
    "CyclicLR": lambda one: lr_scheduler.CyclicLR(one, 0.01, 0.1),
    "LambdaLR": lambda one: lr_scheduler.LambdaLR(one, lambda step: 1 / (step + 1)),
    "MultiStepLR": lambda one: lr_scheduler.MultiStepLR(one, [2, 4]),
    "OneCycleLR": lambda one: lr_scheduler.OneCycleLR(one, 0.1, total_steps=20),
    "ReduceLROnPlateau": lr_scheduler.ReduceLROnPlateau,
    "SequentialLR": lambda one: lr_scheduler.SequentialLR(
        one, [lr_scheduler.LinearLR(one), lr_scheduler.StepLR(one, 3)], [3]
    ),
}


def stepped(name: str, times: int) -> Any:
    """A scheduler after some steps."""
    optimizer = optim.SGD(parameters(), lr=0.1, momentum=0.9)
    scheduler = SCHEDULERS[name](optimizer)
    for _ in range(times):
        optimizer.step()
        scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
    return scheduler


@pytest.mark.filterwarnings("ignore:.*epoch parameter")  # SequentialLR passes it on
@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_state_of_a_scheduler_fits_another_one_of_its_kind(name: str) -> None:
    """One of fewer groups does not."""
    state = stepped(name, 7).state_dict()
    new = stepped(name, 0)
    assert incompatibility(new, state) is None
    if "base_lrs" in state:
        assert "base_lrs has 0 entries" in str(incompatibility(new, {**state, "base_lrs": []}))
        assert incompatibility(new, {**state, "last_epoch": "ten"}) == "last_epoch is 'ten', not a number"


def test_states_of_schedulers_within_schedulers_are_compared_too() -> None:
    """They would be set as attributes in the same way."""
    new = stepped("ChainedScheduler", 0)
    state = new.state_dict()
    state["_schedulers"][1]["base_lrs"] = []
    assert incompatibility(new, state) == "_schedulers.1.base_lrs has 0 entries, not 1"
    assert incompatibility(new, {**state, "_schedulers": []}) == "_schedulers has 0 entries, not 2"
    assert "not what" in str(incompatibility(new, []))
    cosine = stepped("CosineAnnealingLR", 0)
    assert "is missing" in str(incompatibility(cosine, {}))


def test_weights_are_compared_by_name_shape_and_kind() -> None:
    """In memory or on disk; the first few differences are listed, and what was left out on purpose does not matter."""
    model = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))
    weights = {name: StoredTensor.of(value) for name, value in model.state_dict().items()}
    assert incompatibility(model, weights) is None
    del weights["0.bias"]
    assert incompatibility(model, weights) == "missing: 0.bias"
    assert incompatibility(model, weights, left_out=["0.bias"]) is None
    other = {**weights, "0.bias": torch.ones(1, dtype=torch.int8), "more": torch.ones(1)}
    assert incompatibility(model, other, source="file") == (
        "unexpected: more; 0.bias: whole numbers in a tensor of layout strided in the file, "
        "numbers in a tensor of layout strided in the model"
    )
    assert str(incompatibility(model, {str(number): torch.ones(1) for number in range(9)})).endswith("; and 8 more")


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


def load(
    saved: Any, model: Counting, optimizer: optim.Optimizer, scheduler: StepLR, error: Exception | None = None
) -> None:
    """Load all of what was saved of the three, and raise an error then, if there is one."""
    with TransactionalLoad() as loading:
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
    loading = TransactionalLoad()
    loading.load_optimizer(optimizer, trained()[1].state_dict(), explain)
    with pytest.raises(CheckpointError, match="loading it raised"), loading:
        loading.load_weights(model, weights, explain)
    assert same(states(model, optimizer, scheduler), before)


def test_a_module_is_compared_before_it_loads() -> None:
    """It would load what fits before it raises an error of what does not."""
    with pytest.raises(CheckpointError, match="missing: bias"), TransactionalLoad() as loading:
        loading.load(nn.Linear(1, 1), {"weight": torch.ones(1, 1)}, explain)


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_an_object_of_any_kind_is_as_it_was_where_an_error_follows(kind: int) -> None:
    """A module, an optimizer or a scheduler."""
    source, target = trained(), trained()
    source[0].number = 7
    before = states(*target)
    loading = TransactionalLoad()
    loading.load(target[kind], copy.deepcopy(source[kind].state_dict()), explain)
    with pytest.raises(LookupError), loading:
        raise LookupError
    assert same(states(*target), before)


def test_models_keep_what_does_not_match() -> None:
    """Weights of another shape, and models of which nothing was saved."""
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    bias, weight = model.bias.detach().clone(), other.weight.detach().clone()
    saved = SavedModel({"weight": StoredTensor.of(torch.ones(1, 2)), "bias": torch.ones(3)}, {}, {})
    with TransactionalLoad() as loading:
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
    with TransactionalLoad() as loading:
        loading.load_optimizer(optimizer, state, explain)
    assert torch.equal(optimizer.state[parameter]["momentum_buffer"], torch.full((2,), 1 / 3))
    assert optimizer.param_groups[0]["initial_lr"] == 0.3


def test_groups_that_were_added_for_a_state_are_removed_again() -> None:
    """Those of layers that the saved run has unfrozen."""
    first, second = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    groups: list[dict[str, Any]] = [{"params": [first]}, {"params": [second], "lr": 0.5}]
    state = optim.SGD(groups, lr=0.1).state_dict()
    optimizer = optim.SGD([first], lr=0.1)
    loading = TransactionalLoad()
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
    with pytest.raises(CheckpointError, match="does not restore what its state_dict"), TransactionalLoad() as loading:
        loading.load_optimizer(optimizer, optimizer.state_dict(), explain)


def test_what_is_no_refusal_passes() -> None:
    """Errors of checkpoints explain themselves, and others may be meant for somebody else."""
    with pytest.raises(CheckpointError, match="it is damaged"), refusals_explained(explain):
        raise CheckpointError("it is damaged")
    with pytest.raises(StopIteration), refusals_explained(explain, passing=(StopIteration,)):
        raise StopIteration
    error = does_not_fit(nn.Linear(1, 1), "file.pt", "Use another file.", "it is empty")
    assert error.do == "Use another file."
