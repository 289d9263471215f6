"""What wraps models, optimizers and scalers, and the steps of ``step_optimizer``, one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau

import pa_trial
from pa_trial.collectives import rank
from pa_trial.errors import InternalException, InvalidCheckpointException, InvalidExperimentException
from pa_trial.lr_scheduler import LRScheduler
from pa_trial.progress import TrialProgress
from pa_trial.trained_parts import TrainedParts
from tests.support.pa_trial.batches import Batches, OneWeight, gradient_of, mean_over_ranks

# Wrapping


MODEL = nn.Linear(1, 1)
OPTIMIZER = SGD(MODEL.parameters(), lr=0.1)
SCHEDULE = ExponentialLR(OPTIMIZER, 0.9)
StepMode = LRScheduler.StepMode
REFUSED: list[tuple[str, tuple[Any, ...], type[Exception], str]] = [
    *(("wrap_model", (model,), TypeError, r"in wrap_model\(\)") for model in (nn.Linear, [MODEL], None)),
    *(("wrap_optimizer", (one,), TypeError, r"in wrap_optimizer\(\)") for one in (SGD, MODEL, None)),
    *(
        ("wrap_optimizer", (OPTIMIZER, n), InvalidExperimentException, f"backward_passes_per_step.*{n}")
        for n in (0, -1)
    ),
    *(("wrap_lr_scheduler", (SCHEDULE, mode), TypeError, r"LRScheduler\.StepMode") for mode in (2, "EPOCH", None)),
    *(
        ("wrap_lr_scheduler", (SCHEDULE, StepMode.STEP_EVERY_BATCH, n), InvalidExperimentException, f"frequency.*{n}")
        for n in (0, -1, 1.5, True)
    ),
    *(
        ("wrap_lr_scheduler", (ReduceLROnPlateau(OPTIMIZER), mode), InvalidExperimentException, "MANUAL_STEP")
        for mode in StepMode
        if mode is not StepMode.MANUAL_STEP
    ),
    (
        "wrap_lr_scheduler",
        (ExponentialLR(SGD(MODEL.parameters(), lr=0.1), 0.9), StepMode.STEP_EVERY_EPOCH),
        InvalidExperimentException,
        "not wrapped",
    ),
]


@pytest.mark.parametrize(("method", "arguments", "error", "text"), REFUSED)
def test_what_cannot_be_wrapped_is_refused(
    method: str, arguments: tuple[Any, ...], error: type[Exception], text: str
) -> None:
    """Classes instead of instances, numbers out of range, schedules that would get no metric or no optimizer."""
    with pa_trial.init() as context:
        context.wrap_optimizer(OPTIMIZER)
        with pytest.raises(error, match=text):
            getattr(context, method)(*arguments)
        assert (context.models, context.lr_schedulers) == ([], [])


def test_parameters_that_no_model_has_are_warned_of() -> None:
    """Checkpoints would not hold them."""
    batches = OneWeight()
    batches.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(7))]})

    with pytest.warns(UserWarning, match=r"of shape \(7,\).*wrap_model"):
        batches.parts.require_trainable()


def test_nothing_is_wrapped_in_the_course_of_training() -> None:
    """What comes too late is refused; between two trainings it is not."""
    batches = OneWeight()
    wraps: list[Callable[[], object]] = [
        lambda: batches.parts.wrap_model(nn.Linear(1, 1)),
        lambda: batches.parts.wrap_optimizer(SGD(batches.model.parameters(), lr=0.1)),
        lambda: batches.parts.wrap_lr_scheduler(ExponentialLR(batches.optimizer, 0.9), StepMode.STEP_EVERY_EPOCH),
    ]
    with batches.training():
        for wrap in wraps:
            with pytest.raises(InternalException, match="before fit"):
                wrap()
    for wrap in wraps:
        wrap()


def test_a_trial_that_cannot_train_keeps_its_models_where_they_are() -> None:
    """A context that only looks at a checkpoint moves nothing to its device."""
    for can_train, device in ((False, "cpu"), (True, "meta")):
        parts = TrainedParts(
            torch.device("meta"),
            num_processes=1,
            aggregation_frequency=1,
            progress=TrialProgress(),
            can_train=can_train,
        )
        assert parts.wrap_model(nn.Linear(1, 1)).weight.device.type == device


# The steps of step_optimizer


def test_gradients_that_are_aggregated_must_be_zeroed_by_the_step() -> None:
    """Row 1, also before training and on batches without a step; without aggregation the trial may do it."""
    batches = OneWeight(aggregation_frequency=2)
    with pytest.raises(InvalidExperimentException, match="leave out auto_zero_grads=False"):
        batches.parts.step_optimizer(batches.optimizer, auto_zero_grads=False)
    batches = OneWeight()
    seen: list[float] = []

    def train_batch(_: int) -> None:
        batches.backward()
        seen.append(batches.gradient)
        batches.parts.step_optimizer(batches.optimizer, auto_zero_grads=False)

    batches.train(train_batch, 3)

    assert seen == [1.0, 2.0, 3.0]
    assert batches.value == -6.0


def test_no_step_before_training() -> None:
    """Row 2."""
    batches = OneWeight()

    with pytest.raises(InternalException, match="before training begins"):
        batches.train_batch(0)
    assert batches.value == 0.0


@pytest.mark.runs_on("one_process", "two_ranks")
@given(st.integers(1, 5), st.integers(1, 12), st.booleans())
def test_a_step_ends_each_group_and_averages_it_if_asked_to(aggregation: int, count: int, averages: bool) -> None:
    """Rows 3 to 7: within a group, gradients are those of the process; at its end, they are exchanged.

    Those of all processes are averaged if asked for, clipped, applied and zeroed.
    """
    batches = OneWeight(aggregation_frequency=aggregation)
    batches.parts.wrap_optimizer(batches.optimizer, average_aggregated_gradients=averages)
    clipped: list[float] = []
    left: list[float | None] = []

    def clip(parameters: list[nn.Parameter]) -> None:
        clipped.append(gradient_of(parameters))
        nn.utils.clip_grad_value_(parameters, 0.5)

    def train_batch(_: int) -> None:
        batches.backward()
        batches.parts.step_optimizer(batches.optimizer, clip)
        left.append(None if batches.model.weight.grad is None else batches.gradient)

    batches.train(train_batch, count)

    updates = count // aggregation
    assert clipped == pytest.approx([mean_over_ranks() * (1.0 if averages else aggregation)] * updates)
    assert batches.value == pytest.approx(-0.5 * updates)
    assert left == [((i + 1) % aggregation * (rank() + 1) or None) for i in range(count)]
    assert batches.parts.gradients_in_progress() == (count % aggregation > 0)


def test_clipping_gets_one_list_of_the_parameters_of_all_groups() -> None:
    """A list, so that it can be gone over twice; also with parameters that have no gradient."""
    batches = Batches()
    model = batches.parts.wrap_model(nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)]))
    groups = [{"params": one.parameters()} for one in model]
    optimizer = batches.parts.wrap_optimizer(SGD(groups, lr=0.1))
    seen: list[Any] = []

    def train_batch(_: int) -> None:
        batches.parts.backward(model[0](torch.ones(1, 1)).sum())
        batches.parts.step_optimizer(optimizer, seen.append)

    batches.train(train_batch, 1)

    assert type(seen[0]) is list
    assert [id(one) for one in seen[0]] == [id(one) for one in model.parameters()]


def test_an_optimizer_that_is_not_wrapped_is_stepped_and_warned_of_once() -> None:
    """Checkpoints do not hold its state; the training goes on."""
    batches = OneWeight(aggregation_frequency=2)
    batches.optimizer = SGD(batches.model.parameters(), lr=1.0)

    with pytest.warns(UserWarning, match="not wrapped: SGD") as warned:
        batches.train(batches.train_batch, 6)

    (warning,) = warned
    assert warning.filename.endswith("batches.py")
    assert batches.value == -3.0
    assert batches.parts.wrap_optimizer(batches.optimizer) in batches.parts.optimizers


def test_optimizers_step_on_their_own() -> None:
    """Each in the batch and the order that the trial says; one that is not stepped keeps its gradients."""
    batches = OneWeight()
    model, optimizer = batches.wrap_another()

    def train_batch(batch_idx: int) -> None:
        batches.parts.backward(model(torch.ones(1, 1)).sum())
        batches.train_batch(batch_idx)
        if batch_idx == 2:
            batches.parts.step_optimizer(optimizer)

    batches.train(train_batch, 3)

    assert (model.weight.item(), batches.value) == (-3.0, -3.0)


def test_backward_takes_the_arguments_of_torch() -> None:
    """The gradient of a loss that is no single number, further passes through a graph, gradients of gradients."""
    batches = OneWeight()
    losses = batches.model(torch.ones(2, 1))
    batches.parts.backward(losses, torch.tensor([[1.0], [2.0]]), retain_graph=True)
    batches.parts.backward(losses, gradient=torch.ones(2, 1))
    assert batches.gradient == 5.0

    batches.model.zero_grad()
    nn.init.ones_(batches.model.weight)
    with pytest.warns(UserWarning, match="reference cycle"):  # torch's
        batches.parts.backward(batches.loss() ** 3, create_graph=True)
    assert batches.model.weight.grad is not None
    (second,) = torch.autograd.grad(batches.model.weight.grad.sum(), batches.model.weight)
    assert second.item() == 6.0


# What a training leaves, and what it continues from


def test_a_request_to_leave_ends_one_training() -> None:
    """Not the next one; one that comes before the first batch, while the data loaders are built, counts."""
    batches = OneWeight()
    batches.parts.ask_to_leave()
    batches.train(lambda _: None, 1)
    assert batches.parts.leave_agreed

    batches.train(lambda _: None, 1)
    assert not batches.parts.leave_agreed


@pytest.mark.parametrize(
    "gradients", [[], [{"weight": torch.zeros(1, 1)}, {}], [{"bias": torch.zeros(1)}], [{"weight": torch.zeros(2, 1)}]]
)
def test_gradients_of_other_models_are_refused(gradients: list[dict[str, Tensor]]) -> None:
    """Another number of models, other names, other shapes; nothing is loaded."""
    batches = OneWeight(aggregation_frequency=2)

    with pytest.raises(InvalidCheckpointException, match="unfinished group"):
        batches.parts.load_unfinished_gradients(gradients)
    assert batches.model.weight.grad is None
