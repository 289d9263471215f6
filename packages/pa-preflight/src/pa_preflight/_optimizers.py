"""Checks of the options of optimizers, the learning rates of the whole run, and how far they can move the weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

from torch import Tensor, nn
from torch.optim import SGD, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, lr_scheduler

from pa_preflight._findings import Finding, noticed
from pa_preflight._models import listed
from pa_preflight._plan_rates import PlannedRun
from pa_preflight._plan_records import PlannedRate, PlannedRates
from pa_preflight._tensors import parameters_of

_OTHER_NAMES: Mapping[str, str] = {
    "alpha": "lr",
    "decay": "weight_decay",
    "l2": "weight_decay",
    "learning_rate": "lr",
    "learningrate": "lr",
    "rate": "lr",
    "step_size": "lr",
    "wd": "weight_decay",
}
"""The names of options in other libraries."""

_OF_RUN = {"params", "param_names", "initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr"}

_ADAMS = (Adam, AdamW, Adamax, NAdam, RAdam)

_LEAST_BETA, _HIGH_MOMENTUM, _HIGH_EPS, _PULL = 0.5, 0.995, 1e-2, 0.5

_FEWEST, _STILL, _CLIPPED, _BITES = 10, 0.005, 0.05, 0.99

_FEWEST_STEPS = 10
"""Updates of a run whose schedule can be judged, and steps of a scheduler."""

_USUAL, _FAR_BELOW, _NOTHING, _LATE, _RISING = 0.2, 0.02, 1e-3, 0.6, 1.02

_LONGER, _SHORTER, _TOO_EARLY = 2.0, 0.8, 0.1

_PREVIEW = "Preview the schedule with pa_preflight.plan."


def check_options(optimizers: Mapping[str, Optimizer], *, has_schedulers: bool) -> Iterator[Finding]:
    """Yield findings about the options of optimizers.

    Args:
        optimizers: The optimizers by name.
        has_schedulers: Whether the run has schedulers.
    """
    groups = [(optimizer, group) for optimizer in optimizers.values() for group in optimizer.param_groups]
    for optimizer, group in groups:
        yield from _check_names(optimizer, group)
        yield from _check_values(optimizer, group)
    if not has_schedulers and any("initial_lr" in group and not optimizer.state for optimizer, group in groups):
        yield noticed(
            "scheduler-not-given",
            "A scheduler was made for the optimizer, but the run does not have it, so the learning rate never changes.",
            "Pass a function that makes the scheduler to train(): create_scheduler_fn=lambda optimizer: ...",
        )


def _check_names(optimizer: Optimizer, group: Mapping[str, Any]) -> Iterator[Finding]:
    known = optimizer.defaults.keys()
    for name in group.keys() - known - _OF_RUN:
        meant = _OTHER_NAMES.get(name.lower().replace("-", "_")) or next(iter(get_close_matches(name, known, 1)), None)
        if meant is not None and meant in known and isinstance(group[name], (int, float)):
            yield noticed(
                "option-without-effect",
                f"A parameter group has {name}={group[name]:g}, which {type(optimizer).__name__} ignores; its {meant} "
                f"is {_shown(group[meant])}.",
                f"Name it {meant}.",
                "mistake" if type(optimizer).__module__.startswith("torch.") else "warning",
            )


def _check_values(optimizer: Optimizer, group: Mapping[str, Any]) -> Iterator[Finding]:
    kind, unusual = type(optimizer).__name__, list[str]()
    if isinstance(optimizer, _ADAMS):
        betas: tuple[float, float] = group["betas"]
        if betas[1] < min(betas[0], _LEAST_BETA) or (betas[0] > betas[1] and betas[0] > _HIGH_MOMENTUM):
            unusual.append(f"betas={betas}: the second, for the squares, is usually larger, such as 0.999")
        elif betas[0] > _HIGH_MOMENTUM:
            unusual.append(f"betas={betas}: the first averages over {1 / (1 - betas[0]):.0f} updates")
    momentum = group.get("momentum", 0)
    if isinstance(optimizer, SGD) and momentum > _HIGH_MOMENTUM:
        unusual.append(f"momentum={momentum:g}: the usual 0.9 averages over ten updates")
    if isinstance(optimizer, _ADAMS) and _shrinks(group):
        unusual.append(f"eps={float(group['eps']):g}: it is larger than the gradients, by whose size {kind} divides")
    if group.get("maximize"):
        unusual.append("maximize=True, which makes the loss grow")
    for each in unusual:
        yield noticed(
            "unusual-option",
            f"{kind} has {each}.",
            "Leave the option out, unless it was chosen on purpose.",
        )


def _shrinks(group: Mapping[str, Any]) -> bool:
    return float(group.get("eps", 0.0)) >= _HIGH_EPS


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


class Movement:
    """How far updates can move weights, relative to their size, at a learning rate of 1; recorded in the first updates.

    Args:
        optimizers: The optimizers by name.
    """

    def __init__(self, optimizers: Mapping[str, Optimizer]) -> None:
        self._of_group: dict[tuple[str, int], float] = {}
        self._is_known, self._norms = True, list[float]()
        self._names = {id(optimizer): name for name, optimizer in optimizers.items()}

    def note(self, optimizer: Optimizer) -> None:
        """Record the gradients before an update.

        Args:
            optimizer: The optimizer that makes the update.
        """
        name = self._names.get(id(optimizer), "")
        gradients = [parameter.grad for parameter in parameters_of([optimizer]) if parameter.grad is not None]
        self._norms.append(math.sqrt(sum(_norm(gradient) ** 2 for gradient in gradients)))
        for number, group in enumerate(optimizer.param_groups):
            reaches = [
                _reach(optimizer, group, parameter) for parameter in group["params"] if parameter.grad is not None
            ]
            self._is_known &= None not in reaches
            known = [reach for reach in reaches if reach is not None]
            key = name, number
            self._of_group[key] = max([self._of_group.get(key, 0.0), *known])

    def check(self, planned: PlannedRun, clip_norm: float | None, clip_value: float | None) -> Iterator[Finding]:
        """Yield a finding if the whole run does not move any weight noticeably.

        Args:
            planned: The updates and rates of the run.
            clip_norm: The largest norm of the gradients; None without clipping.
            clip_value: The largest element; None without clipping.
        """
        if not self._is_known or not self._of_group or planned.updates < _FEWEST or not planned.rates:
            return
        sums = {(group.optimizer, group.group): _sum_of(group.course, planned.updates) for group in planned.rates}
        if not self._of_group.keys() <= sums.keys() or not any(sums.values()):
            return
        moved = max(reach * sums[key] for key, reach in self._of_group.items())
        is_clipped = clip_norm is not None and min(self._norms) > _BITES * clip_norm
        if 0 < moved < (_CLIPPED if is_clipped else _STILL):
            clip = next((f" and clipped to {limit:g}" for limit in (clip_norm, clip_value) if limit is not None), "")
            highest = max(point.rate for group in planned.rates for point in group.course)
            yield noticed(
                "weights-barely-move",
                f"At learning rates of up to {highest:.3g}, with gradients as in the first updates{clip}, all "
                f"{planned.updates} updates of the run together move the weights by {100 * moved:.2g} % of their size.",
                "Raise the learning rate, clip less, or train longer; pa_schedulers.find_learning_rate searches for a "
                "rate.",
            )


def _norm(tensor: Tensor) -> float:
    numbers = (tensor.coalesce().values() if tensor.is_sparse else tensor).detach().flatten()
    return math.sqrt(float(numbers.dot(numbers)))


def _sum_of(points: Iterable[PlannedRate], updates: int) -> float:
    """Return the sum of the rates of all updates, if some rates are known."""
    known = list(points)
    spans = pairwise(known)
    covered = known[-1].update - known[0].update
    total = sum((other.update - point.update) * (point.rate + other.rate) / 2 for point, other in spans)
    return total * updates / covered if covered else known[-1].rate * updates


def _reach(optimizer: Optimizer, group: Mapping[str, Any], parameter: Tensor) -> float | None:
    """Return the relative change in a matrix by an update at a rate of 1; 0 for others, None if it is unknown."""
    if parameter.dim() < 2:  # noqa: PLR2004  # biases may start at 0
        return 0.0
    size = _norm(parameter)
    if not size:
        return math.inf
    if isinstance(optimizer, _ADAMS):  # they move each number by up to the rate
        return math.sqrt(parameter.numel()) / size
    if isinstance(optimizer, SGD) and parameter.grad is not None:
        lasting = (1 - float(group["dampening"])) / max(1 - float(group["momentum"]), 1e-6)
        return _norm(parameter.grad) * (lasting if group["momentum"] else 1.0) / size
    return None


def check_decay(optimizers: Mapping[str, Optimizer], model: nn.Module) -> Iterator[Finding]:
    """Yield a finding if weight decay pulls more strongly than gradients can.

    Args:
        optimizers: The optimizers by name, when gradients are there.
        model: The model, whose names are shown.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            decay = float(group.get("weight_decay", 0.0))
            pulled = [parameter for parameter in group["params"] if parameter.dim() > 1 and parameter.grad is not None]
            if not decay or not pulled:
                continue
            is_decoupled = isinstance(optimizer, AdamW) or bool(group.get("decoupled_weight_decay"))
            pulls = {id(parameter): decay * _pull(parameter, is_decoupled=is_decoupled) for parameter in pulled}
            if min(pulls.values()) > (_PULL if is_decoupled else 1 / _PULL):
                strongest = max(pulls, key=pulls.__getitem__)
                yield noticed(
                    "unusual-option",
                    f"weight_decay={decay:g} pulls {names.get(strongest, 'the weights')} to 0 "
                    f"{pulls[strongest]:.2g} times as strongly as "
                    f"{'an update' if is_decoupled else 'its gradient'} moves it.",
                    "Use a usual weight decay: 0.01 to 0.1 with AdamW, 0.0001 with SGD.",
                )
                return


def _pull(parameter: Tensor, *, is_decoupled: bool) -> float:
    size = _norm(parameter)
    if is_decoupled:
        return size / math.sqrt(parameter.numel())
    return size / max(_norm(parameter.grad), 1e-12) if parameter.grad is not None else 0.0


def check_loss_weights(loss: object, optimizers: Mapping[str, Optimizer]) -> Iterator[Finding]:
    """Yield a finding if the loss function has weights that no optimizer trains.

    Args:
        loss: The loss function.
        optimizers: The optimizers by name.
    """
    trained = set(map(id, parameters_of(optimizers.values())))
    parameters = loss.named_parameters() if isinstance(loss, nn.Module) else ()
    left_out = [name for name, parameter in parameters if parameter.requires_grad and id(parameter) not in trained]
    if left_out:
        yield noticed(
            "parameters-outside-optimizer",
            f"{listed(left_out)} of the loss function {'is' if len(left_out) == 1 else 'are'} in no optimizer.",
            "Make the optimizer with the parameters of model and loss function, or freeze them with "
            "requires_grad_(False).",
            "warning",
        )


def check_schedules(planned: PlannedRun) -> Iterator[Finding]:
    """Yield findings about schedules.

    Args:
        planned: The updates and rates of the run.
    """
    if not planned.schedulers or planned.updates < _FEWEST_STEPS:
        return
    for course in planned.rates:
        found = next(_check_course(course, planned), None)
        if found is not None:
            yield found
            return
    for schedule in planned.schedulers.values():
        yield from _check_length(schedule, planned)


def _check_course(course: PlannedRates, planned: PlannedRun) -> Iterator[Finding]:
    points, first = course.course, planned.first_rates.get((course.optimizer, course.group), 0.0)
    highest = max(point.rate for point in points)
    if not highest:
        return
    if highest < _FAR_BELOW * first < _FAR_BELOW * _USUAL:  # a rate of 1 may stand for a factor
        yield noticed(
            "rate-far-below",
            f"The scheduler keeps the learning rate below {highest:.3g} in the whole run; the optimizer has "
            f"{first:.3g}.",
            "Let the scheduler return factors, which multiply the learning rate of the optimizer: LambdaLR takes no "
            "rates.",
        )
    elif _rises_to_the_end(points, highest):
        yield noticed(
            "schedule-does-not-fit",
            f"The learning rate rises until the end of the run, to {highest:.3g} after {planned.updates} updates: the "
            "warm-up is longer than the run, and the rate that it warms up to is never reached.",
            f"Give the warm-up a tenth of the updates of the run, or less. {_PREVIEW}",
        )
    else:
        yield from _check_end(points, highest, planned)


def _rises_to_the_end(points: Sequence[PlannedRate], highest: float) -> bool:
    end = points[-1]
    before = [point.rate for point in points if point.update <= 0.9 * end.update]  # the last tenth
    return end.rate == highest and bool(before) and end.rate > _RISING * before[-1]


def _check_end(points: Sequence[PlannedRate], highest: float, planned: PlannedRun) -> Iterator[Finding]:
    alive = max(point.update for point in points if point.rate > 1.01 * _NOTHING * highest)
    if alive < _LATE * planned.updates:
        last = points[-1].rate
        yield noticed(
            "schedule-does-not-fit",
            f"The learning rate falls from {highest:.3g} to less than a thousandth of it by update {alive + 1} of "
            f"{planned.updates}, and ends at {last:.3g}: the rest of the run learns nothing.",
            "Check the unit that the scheduler counts: the run steps it after each update, unless step_scheduler says "
            f"otherwise. {_PREVIEW}",
        )


def _check_length(scheduler: Any, planned: PlannedRun) -> Iterator[Finding]:
    steps, kind = planned.scheduler_steps, type(scheduler).__name__
    begins, length = _begin_of(scheduler), _length_of(scheduler)
    if begins > steps or length > _LONGER * steps:
        yield noticed(
            "schedule-does-not-fit",
            f"{kind} {f'begins to change the rate after {begins}' if begins else f'takes {length}'} steps, and the run "
            f"makes {steps}: the learning rate does not come near its end.",
            f"Pass the number of steps that the run makes, or step_scheduler. {_PREVIEW}",
            "note" if steps < _FEWEST_STEPS else "warning",  # perhaps a first try before a longer run
        )
    elif isinstance(scheduler, lr_scheduler.CosineAnnealingLR) and length < _SHORTER * steps:
        yield noticed(
            "schedule-does-not-fit",
            f"CosineAnnealingLR comes down in T_max={length} steps, and the run makes {steps}: the learning rate rises "
            "again.",
            f"Pass the number of steps of the whole run as T_max, or step_scheduler. {_PREVIEW}",
        )
    elif isinstance(scheduler, lr_scheduler.MultiStepLR) and length < _TOO_EARLY * steps:
        yield noticed(
            "schedule-does-not-fit",
            f"The last milestone of MultiStepLR is {length}, and the run makes {steps} steps: nearly all of it has the "
            "lowest rate.",
            f"Count the milestones in the steps that the scheduler makes, or pass step_scheduler. {_PREVIEW}",
        )


def _begin_of(scheduler: Any) -> int:
    """Return the number of steps before a scheduler of torch first changes the rate; 0 if it begins at once."""
    if isinstance(scheduler, lr_scheduler.StepLR):
        return int(scheduler.step_size)
    return min(scheduler.milestones, default=0) if isinstance(scheduler, lr_scheduler.MultiStepLR) else 0


def _length_of(scheduler: Any) -> int:
    """Return the number of steps in which a scheduler of torch changes the rate; 0 for other schedulers."""
    if isinstance(scheduler, lr_scheduler.CosineAnnealingLR):
        return int(scheduler.T_max)
    if isinstance(scheduler, lr_scheduler.OneCycleLR):
        return int(scheduler.total_steps)
    if isinstance(scheduler, (lr_scheduler.LinearLR, lr_scheduler.PolynomialLR)):
        return int(scheduler.total_iters)
    return max(scheduler.milestones, default=0) if isinstance(scheduler, lr_scheduler.MultiStepLR) else 0
