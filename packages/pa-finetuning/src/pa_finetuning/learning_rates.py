"""A learning rate for each layer group: the same for all, falling towards the input, or given group by group."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TypeAlias

from pa_finetuning.layer_groups import LayerGroups

LearningRates: TypeAlias = float | Sequence[float] | Mapping[int, float]
"""The type of the ``learning_rates`` argument of ``ModelFreezer`` methods and of ``GradualUnfreezing``.

A number is the learning rate for all layer groups. A list has a rate for each of them, from the input to the output, as
``ModelFreezer.get_learning_rates`` returns it. A mapping ``{index: rate}`` names only some layer groups; negative
indexes count from the end. Each rate is above 0.
"""


def falling_rates(lr: float, factor: float, distances: Sequence[int]) -> list[float]:
    """Return ``lr * factor**distance`` for each of the distances.

    Raises:
        ValueError: The rate or the factor is not positive and finite.
        TypeError: The rate or the factor is not a number.
    """
    if not 0 < _number("factor", factor) < math.inf:
        raise ValueError(
            f"Given: factor={factor!r}. Expected: a number above 0 and finite. Pass less than 1 to let layer groups "
            "near the input learn more slowly than those near the output, and 1 for the same rate everywhere."
        )
    rate = _rate("lr", lr)
    return [rate * float(factor) ** distance for distance in distances]


def rates_by_group(groups: LayerGroups, learning_rates: LearningRates) -> dict[int, float]:
    """Return the rates by the index of their layer group, counted from the start.

    Raises:
        ValueError: There are not as many rates as layer groups, or none at all; a group has two; or a rate is not
            positive and finite.
        IndexError: There is a rate for a layer group that the model does not have.
        TypeError: A value is neither a number nor a collection of numbers.
    """
    if isinstance(learning_rates, Mapping):
        return _rates_of_mapping(groups, learning_rates)
    num_groups = len(groups)
    if isinstance(learning_rates, Sequence):
        rates = [_rate(f"learning_rates[{index}]", rate) for index, rate in enumerate(learning_rates)]
        if len(rates) != num_groups:
            raise ValueError(
                f"Given: {len(rates)} learning rates, {rates}. Expected: {num_groups}, a rate for each layer group of "
                f"{groups.model_name}, including those without parameters. Pass a mapping {{index: rate}} to name "
                "only some of the groups, or the return value of get_learning_rates()."
            )
        return dict(enumerate(rates))
    return dict.fromkeys(range(num_groups), _rate("learning_rates", learning_rates))


def _rates_of_mapping(groups: LayerGroups, learning_rates: Mapping[int, float]) -> dict[int, float]:
    if not learning_rates:
        raise ValueError(
            "Given: an empty mapping of learning rates. Expected: {index: rate}. Pass a rate for each layer group "
            "that should be trained, or a single number for all of them."
        )
    rates: dict[int, float] = {}
    for index, rate in learning_rates.items():
        position = groups.resolve_index(index)
        if position in rates:
            raise ValueError(
                f"Given: learning rates for {list(learning_rates)!r}, where two indexes are the same layer group, "
                f"{position}. Expected: a single rate for each group. Remove one of the two."
            )
        rates[position] = _rate(f"learning_rates[{index}]", rate)
    return rates


def _rate(name: str, value: object) -> float:
    rate = _number(name, value)
    if not 0 < rate < math.inf:
        raise ValueError(
            f"Given: {name}={value!r}. Expected: a learning rate above 0 and finite. Freeze a layer group to keep it "
            "as it is."
        )
    return rate


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        collections = ", a list or a mapping of numbers" if name == "learning_rates" else ""
        raise TypeError(
            f"Given: {name}={value!r}, of type {type(value).__name__}. Expected: a number{collections}. Pass a number "
            "such as 0.001."
        )
    return float(value)
