"""Placeholders for the numbers of a run, as authors of schedules use them."""

from __future__ import annotations

import copy
import math
import operator
import pickle
import re
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LambdaLR, OneCycleLR

from pa_core.errors import ArgumentTypeError, ConfigurationError
from pa_core.steps.placeholders import PlaceholderExpression, TrainerPlaceholderValues, resolve_placeholders

VALUES = {"num_epochs": 5, "num_update_steps_per_epoch": 12, "train_dataloader_len": 24, "eval_dataloader_len": 7}
EPOCHS = TrainerPlaceholderValues.NUM_EPOCHS
UPDATES = TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH

Operation = Callable[..., Any]
_BINARY: list[Callable[[Any, Any], Any]] = [
    operator.add,
    operator.sub,
    operator.mul,
    lambda left, right: left / right,
    lambda left, right: left // right,
]


@dataclass
class _Tree:
    """An operation on numbers, placeholders and further trees."""

    operation: Operation
    operands: tuple[Any, ...]


def _number_of(tree: Any) -> Any:
    """Work the tree out with plain numbers."""
    if isinstance(tree, TrainerPlaceholderValues):
        return VALUES[tree.value]
    return tree.operation(*map(_number_of, tree.operands)) if isinstance(tree, _Tree) else tree


def _expression_of(tree: Any) -> Any:
    """Work the tree out with placeholders."""
    return tree.operation(*map(_expression_of, tree.operands)) if isinstance(tree, _Tree) else tree


_numbers = st.integers(-50, 50) | st.floats(-50, 50)
_leaves = st.sampled_from(list(TrainerPlaceholderValues)) | _numbers
_trees: st.SearchStrategy[Any] = st.recursive(
    _leaves,
    lambda inner: (
        st.builds(_Tree, st.sampled_from(_BINARY), st.tuples(inner, inner))
        | st.builds(_Tree, st.just(operator.neg), st.tuples(inner))
    ),
    max_leaves=8,
)


@given(tree=_trees, placeholder=st.sampled_from(list(TrainerPlaceholderValues)), last=st.sampled_from(_BINARY))
def test_arithmetic_on_placeholders_is_arithmetic_on_their_numbers(
    tree: Any, placeholder: TrainerPlaceholderValues, last: Operation
) -> None:
    """Any expression resolves to what Python gives for the numbers: same value, same type, same error."""
    tree = _Tree(last, (tree, placeholder))  # at least one placeholder
    try:
        expected = _number_of(tree)
    except ZeroDivisionError:
        try:
            expression = _expression_of(tree)
        except ZeroDivisionError:
            return  # plain numbers were divided by each other before a placeholder came in
        with pytest.raises(ZeroDivisionError, match="divides by zero"):
            expression.resolve(VALUES)
        return

    resolved = _expression_of(tree).resolve(VALUES)

    assert type(resolved) is type(expected)
    assert resolved == pytest.approx(expected, rel=0, abs=0, nan_ok=True)


@given(tree=_trees)
def test_expressions_survive_copies_and_pickles(tree: Any) -> None:
    """A factory with placeholders can be deep-copied or sent to another process and means the same."""
    try:
        expression = _expression_of(_Tree(operator.mul, (EPOCHS, tree)))
    except ZeroDivisionError:
        return

    for twin in (copy.copy(expression), copy.deepcopy(expression), pickle.loads(pickle.dumps(expression))):
        assert isinstance(twin, PlaceholderExpression)
        assert twin == expression
        assert hash(twin) == hash(expression)
        assert repr(twin) == repr(expression)


def test_the_set_of_placeholders_has_every_name() -> None:
    """Also the one that is another name of the same number."""
    assert TrainerPlaceholderValues.placeholder_set() == {
        "NUM_EPOCHS",
        "NUM_UPDATE_STEPS_PER_EPOCH",
        "TRAIN_DATALOADER_LEN",
        "EVAL_DATALOADER_LEN",
        "PER_PROCESS_NUM_UPDATE_STEPS_PER_EPOCH",
    }


_USES: list[Callable[[Any], Any]] = [
    int,
    float,
    complex,
    bool,
    range,
    round,
    abs,
    math.ceil,
    math.floor,
    math.trunc,
    math.sqrt,
    operator.index,
    lambda number: number < 1,
    lambda number: number <= 1,
    lambda number: number > 1,
    lambda number: number >= 1,
    lambda number: 1 < number,  # noqa: SIM300
    lambda number: max(1, number),
    [1, 2].__getitem__,
    lambda number: 1 if number else 2,
    torch.zeros,
]


@pytest.mark.parametrize("use", _USES)
@pytest.mark.parametrize("unresolved", [EPOCHS, EPOCHS * 2])
def test_an_unresolved_placeholder_is_no_number(unresolved: object, use: Operation) -> None:
    """Using a placeholder before the run starts is a TypeError that says what to do, never a silently wrong number."""
    with pytest.raises(TypeError) as caught:
        use(unresolved)
    if use in _USES[:10]:
        assert isinstance(caught.value, ArgumentTypeError)
        assert re.search(r"(?s)NUM_EPOCHS.* is not a number yet.*functools\.partial", str(caught.value))


@pytest.mark.parametrize("other", ["2", None, [1], torch.ones(2), np.ones(2), 1j])
@pytest.mark.parametrize("operation", _BINARY)
def test_arithmetic_with_what_is_no_number_is_refused(operation: Operation, other: object) -> None:
    """Only real numbers and placeholders can be combined."""
    with pytest.raises(TypeError):
        operation(EPOCHS, other)
    with pytest.raises(TypeError):
        operation(other, EPOCHS)


@pytest.mark.parametrize("number", [np.int64(3), np.float64(0.5), np.float32(0.5)])
@pytest.mark.parametrize("operation", _BINARY)
def test_numpy_numbers_combine_like_python_numbers(operation: Operation, number: Any) -> None:
    """Numbers that come from a sweep or an array work on both sides."""
    assert operation(EPOCHS, number).resolve(VALUES) == operation(5, number)
    assert operation(number, EPOCHS).resolve(VALUES) == operation(number, 5)


def test_division_by_zero_shows_the_expression() -> None:
    """A schedule divided by the length of an empty loader names the culprit."""
    with pytest.raises(ZeroDivisionError, match=r"TRAIN_DATALOADER_LEN // .*EVAL_DATALOADER_LEN"):
        (TrainerPlaceholderValues.TRAIN_DATALOADER_LEN // TrainerPlaceholderValues.EVAL_DATALOADER_LEN).resolve(
            {"train_dataloader_len": 4, "eval_dataloader_len": 0}
        )


def test_a_placeholder_without_a_value_is_named() -> None:
    """The length of the evaluation loader in a run without evaluation is an error that says so."""
    factory = partial(_record, steps=TrainerPlaceholderValues.EVAL_DATALOADER_LEN * 2)

    with pytest.raises(ConfigurationError, match="EVAL_DATALOADER_LEN has no value") as caught:
        resolve_placeholders(factory, {"num_epochs": 1})

    assert "values for num_epochs" in str(caught.value)


class _Window(NamedTuple):
    """An argument of its own type."""

    start: int
    end: int


def _record(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what it was called with."""
    return args, kwargs


def test_placeholders_are_replaced_wherever_a_partial_holds_them() -> None:
    """Positional, keyword and nested arguments get their numbers, and containers keep their types."""
    factory = partial(
        _record,
        EPOCHS,
        "text",
        [EPOCHS, (EPOCHS * 2, [UPDATES])],
        inner=partial(_record, UPDATES, x=partial(_record, y=-EPOCHS)),
        table={"a": EPOCHS, "b": {"c": UPDATES / 2}},
        ordered=OrderedDict(a=EPOCHS),
        default=defaultdict(list, a=EPOCHS),
        window=_Window(EPOCHS, EPOCHS * UPDATES),
    )

    args, kwargs = resolve_placeholders(factory, VALUES)()

    assert args == (5, "text", [5, (10, [12])])
    inner_args, inner_kwargs = kwargs.pop("inner")()
    assert inner_args == (12,)
    assert inner_kwargs["x"]() == ((), {"y": -5})
    assert kwargs == {
        "table": {"a": 5, "b": {"c": 6.0}},
        "ordered": OrderedDict(a=5),
        "default": {"a": 5},
        "window": _Window(5, 60),
    }
    assert kwargs["default"]["new"] == []
    assert isinstance(kwargs["window"], _Window)


def test_the_factory_itself_stays_as_it_was() -> None:
    """One factory serves many runs, each with its own numbers."""
    arguments, table = [EPOCHS], {"a": EPOCHS}
    factory = partial(_record, arguments, table, x=EPOCHS)

    first = resolve_placeholders(factory, {"num_epochs": 1})()
    second = resolve_placeholders(factory, {"num_epochs": 2})()

    assert first == (([1], {"a": 1}), {"x": 1})
    assert second == (([2], {"a": 2}), {"x": 2})
    assert (arguments, table) == ([EPOCHS], {"a": EPOCHS})


@pytest.mark.parametrize("factory", [None, _record, LambdaLR, [EPOCHS]])
def test_what_is_no_partial_comes_back_unchanged(factory: object) -> None:
    """Functions and classes are handed on as they are."""
    assert resolve_placeholders(factory, VALUES) is factory


def test_counts_that_a_float_has_scaled_are_counts_to_torch_schedulers() -> None:
    """Schedulers of torch that take no float for a count, and no int for a fraction, get what they take."""
    parameters = [torch.nn.Parameter(torch.zeros(1))]
    one_cycle = partial(OneCycleLR, max_lr=0.1, total_steps=UPDATES * EPOCHS * 0.5, pct_start=1 / EPOCHS)
    restarts = partial(CosineAnnealingWarmRestarts, T_0=UPDATES / 2)

    assert resolve_placeholders(one_cycle, VALUES)(SGD(parameters, lr=0.1)).total_steps == 30
    assert resolve_placeholders(one_cycle, {**VALUES, "num_epochs": 1})(SGD(parameters, lr=0.1)).total_steps == 6
    assert resolve_placeholders(restarts, VALUES)(SGD(parameters, lr=0.1)).T_0 == 6
    with pytest.raises(ValueError, match=r"total_steps.*15\.5"):
        resolve_placeholders(one_cycle, {**VALUES, "num_update_steps_per_epoch": 6.2})(SGD(parameters, lr=0.1))
