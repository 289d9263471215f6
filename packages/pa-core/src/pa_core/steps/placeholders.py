"""Placeholders in the arguments of a scheduler factory for numbers that are known only when a run starts.

For a type checker a placeholder is an ``int``, so that any argument of a scheduler accepts it. At run time it is not a
number: arithmetic builds an expression, and code that needs the number raises an error.
"""

from __future__ import annotations

import copy
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeAlias, TypeVar, cast

from torch.optim import Optimizer
from typing_extensions import override

from pa_core.errors import ArgumentTypeError, ConfigurationError
from pa_core.steps.input_checks import check_scheduler, check_scheduler_factory

_OPERATIONS: dict[str, Callable[[float, float], float]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: left / right,
    "//": lambda left, right: left // right,
}

if TYPE_CHECKING:
    _Unresolved = int
else:

    class _Unresolved:
        """Raises an error if a number is needed, because a wrong number would be a wrong schedule."""

        __array_ufunc__ = None  # otherwise a numpy array would become an array of expressions

        def _reject(self, *_operands: object) -> NoReturn:
            raise ArgumentTypeError(
                f"{self} is not a number yet: it gets its value when a run starts. Pass a functools.partial with it as "
                "create_scheduler_fn, or override create_scheduler()."
            )

        __int__ = __float__ = __complex__ = __index__ = __bool__ = _reject
        __lt__ = __le__ = __gt__ = __ge__ = _reject
        __round__ = __trunc__ = __floor__ = __ceil__ = __abs__ = _reject


_Operator: TypeAlias = "Callable[[_Arithmetic, float], PlaceholderExpression]"


def _operator(symbol: str, *, is_swapped: bool = False) -> _Operator:
    """Return a method that builds an expression, or returns NotImplemented for an operand that is not a number."""

    def write_down(self: _Arithmetic, other: float, /) -> PlaceholderExpression:
        if not isinstance(other, numbers.Real | _Arithmetic):
            return cast("PlaceholderExpression", NotImplemented)
        left, right = (other, self) if is_swapped else (self, other)
        return PlaceholderExpression(symbol, left, right)

    return write_down


class _Arithmetic(_Unresolved):
    """Builds an expression from each of ``+ - * / //`` with a number or another placeholder."""

    __add__: ClassVar[_Operator] = _operator("+")
    __radd__: ClassVar[_Operator] = _operator("+", is_swapped=True)
    __sub__: ClassVar[_Operator] = _operator("-")
    __rsub__: ClassVar[_Operator] = _operator("-", is_swapped=True)
    __mul__: ClassVar[_Operator] = _operator("*")
    __rmul__: ClassVar[_Operator] = _operator("*", is_swapped=True)
    __truediv__: ClassVar[_Operator] = _operator("/")
    __rtruediv__: ClassVar[_Operator] = _operator("/", is_swapped=True)
    __floordiv__: ClassVar[_Operator] = _operator("//")
    __rfloordiv__: ClassVar[_Operator] = _operator("//", is_swapped=True)

    @override
    def __neg__(self) -> PlaceholderExpression:
        return self * -1

    def resolve(self, values: Mapping[str, float]) -> float:
        """Return the number for the values of a run.

        Args:
            values: The numbers of the run, by the value of each member of ``TrainerPlaceholderValues``.

        Returns:
            An int or a float, as in Python's arithmetic: ``/`` always gives a float.

        Raises:
            ConfigurationError: ``values`` lacks a placeholder of the expression.
            ZeroDivisionError: The expression divides by zero.
        """
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class PlaceholderExpression(_Arithmetic):
    """The result of arithmetic on placeholders, which the trainer evaluates when the run starts.

    Write the arithmetic instead of calling this class.

    Attributes:
        symbol: The operator: ``+``, ``-``, ``*``, ``/`` or ``//``.
        left: The operand before the symbol.
        right: The operand after the symbol.

    Example:
        >>> expression = TrainerPlaceholderValues.NUM_EPOCHS * 2 + 1
        >>> expression
        ((TrainerPlaceholderValues.NUM_EPOCHS * 2) + 1)
        >>> expression.resolve({"num_epochs": 5})
        11
        >>> range(expression)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        pa_core.errors.ArgumentTypeError: ((TrainerPlaceholderValues.NUM_EPOCHS * 2) + 1) is not a number yet: ...
    """

    symbol: str
    left: float
    right: float

    @override
    def resolve(self, values: Mapping[str, float]) -> float:
        left, right = (
            side.resolve(values) if isinstance(side, _Arithmetic) else side for side in (self.left, self.right)
        )
        try:
            return _OPERATIONS[self.symbol](left, right)
        except ZeroDivisionError:
            raise ZeroDivisionError(f"{self} divides by zero: {left} {self.symbol} {right}") from None

    @override
    def __repr__(self) -> str:
        return f"({self.left} {self.symbol} {self.right})"


class TrainerPlaceholderValues(_Arithmetic, Enum):
    """Placeholders for numbers of a run, in the arguments of a learning rate scheduler.

    Use them if a schedule depends on the length of the run, so that you need not compute it. Pass them as arguments to
    a ``functools.partial``, and pass the partial as ``create_scheduler_fn`` to ``train()`` or ``Run``. The trainer
    replaces them when the run starts. You can combine them with numbers and with each other, using ``+ - * / //``.
    Anything else that needs the number, for example ``int(...)`` or a comparison, raises an ``ArgumentTypeError``,
    because the number is not known yet.

    Attributes:
        NUM_EPOCHS: The number of epochs of the run.
        NUM_UPDATE_STEPS_PER_EPOCH: The number of optimizer updates in an epoch; the scheduler is stepped after each
            update by default. It is the same on any number of processes.
        TRAIN_DATALOADER_LEN: The number of training batches of one process in an epoch.
        EVAL_DATALOADER_LEN: The number of evaluation batches of one process; only in runs with an evaluation dataset.
        PER_PROCESS_NUM_UPDATE_STEPS_PER_EPOCH: Another name of ``NUM_UPDATE_STEPS_PER_EPOCH``, because each process
            takes part in each update.

    Example:
        >>> from functools import partial
        >>> import torch
        >>> from pa_core import Trainer, TrainerPlaceholderValues
        >>> from pa_core.testing import make_regression
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[])
        >>> two_epochs = TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH * 2
        >>> make_scheduler = partial(torch.optim.lr_scheduler.StepLR, step_size=two_epochs)
        >>> trainer.train(make_regression(64), num_epochs=3, create_scheduler_fn=make_scheduler)
        >>> trainer.scheduler.step_size  # 8 updates in an epoch
        16
    """

    _value_: str
    NUM_EPOCHS = "num_epochs"
    NUM_UPDATE_STEPS_PER_EPOCH = "num_update_steps_per_epoch"
    TRAIN_DATALOADER_LEN = "train_dataloader_len"
    EVAL_DATALOADER_LEN = "eval_dataloader_len"
    PER_PROCESS_NUM_UPDATE_STEPS_PER_EPOCH = "num_update_steps_per_epoch"

    @classmethod
    def placeholder_set(cls) -> set[str]:
        """Return the names of all placeholders, for example to check a name from a configuration file.

        Look up the placeholder of a name with ``TrainerPlaceholderValues[name]``.

        Returns:
            A new set of five names, such as ``"NUM_EPOCHS"``.

        Example:
            >>> from pa_core import TrainerPlaceholderValues
            >>> sorted(TrainerPlaceholderValues.placeholder_set())[:2]
            ['EVAL_DATALOADER_LEN', 'NUM_EPOCHS']
            >>> "NUM_EPOCHS" in TrainerPlaceholderValues.placeholder_set()
            True
        """
        return set(cls.__members__)

    @override
    def resolve(self, values: Mapping[str, float]) -> float:
        """Return the number of this placeholder in a run.

        The trainer calls it when it creates the scheduler; you only need it to try out a schedule without a trainer.
        ``resolve_placeholders`` does it for all arguments of a ``functools.partial``.

        Args:
            values: The numbers of the run, by the value of each member, for example
                ``{"num_epochs": 3, "num_update_steps_per_epoch": 100}``.

        Returns:
            The number for this placeholder in ``values``, unchanged.

        Raises:
            ConfigurationError: ``values`` has no such number, for example because a run has no evaluation dataset.

        Example:
            >>> from pa_core import TrainerPlaceholderValues
            >>> TrainerPlaceholderValues.NUM_EPOCHS.resolve({"num_epochs": 3})
            3
        """
        if self._value_ not in values:
            raise ConfigurationError(
                f"{self} has no value in this run, only values for {', '.join(values) or 'nothing'}. Use another, or "
                "pass the data that it counts, for example eval_dataset."
            )
        return values[self._value_]


_FactoryT = TypeVar("_FactoryT")
_SchedulerT = TypeVar("_SchedulerT")


def resolve_placeholders(factory: _FactoryT, values: Mapping[str, float]) -> _FactoryT:
    """Replace the placeholders in the arguments of a ``functools.partial`` with their numbers.

    The trainer does this with ``create_scheduler_fn``. Call it yourself in an override of ``create_scheduler``, or to
    try out a schedule without a trainer. Positional and keyword arguments are searched, and the partials, lists, tuples
    and dictionaries in them. The partial itself is not changed, so that the next run can use it too. A whole number
    becomes an int, even if it was multiplied by a float. A number that was divided by a placeholder is a fraction, and
    stays a float.

    Args:
        factory: A partial; any other factory is returned unchanged.
        values: The numbers of the run, by the value of each member of ``TrainerPlaceholderValues``, for example
            ``{"num_epochs": 9, "num_update_steps_per_epoch": 100}``. Numbers that the partial does not use may be left
            out.

    Returns:
        A new partial of the same function, without placeholders.

    Raises:
        ConfigurationError: ``values`` lacks the number of a placeholder.
        ZeroDivisionError: An expression divides by zero.

    Example:
        >>> from functools import partial
        >>> from pa_core import TrainerPlaceholderValues, resolve_placeholders
        >>> factory = partial(dict, epochs=[1, TrainerPlaceholderValues.NUM_EPOCHS // 2])
        >>> resolve_placeholders(factory, {"num_epochs": 9})()
        {'epochs': [1, 4]}
    """
    return cast("_FactoryT", _resolve(factory, values)) if isinstance(factory, partial) else factory


def create_scheduler(
    factory: Callable[[Optimizer], _SchedulerT], optimizer: Optimizer, values: Mapping[str, float]
) -> _SchedulerT:
    """Create the scheduler of an optimizer, with the placeholders of its factory replaced.

    Args:
        factory: A function that is called with the optimizer.
        optimizer: The optimizer.
        values: The numbers of the run; see ``resolve_placeholders``.

    Raises:
        ArgumentTypeError: ``factory`` is not a factory, or did not return a scheduler.
        ConfigurationError: ``values`` lacks a placeholder, or the scheduler belongs to another optimizer.
        ZeroDivisionError: An expression divides by zero.
    """
    check_scheduler_factory(factory)
    scheduler = resolve_placeholders(factory, values)(optimizer)
    check_scheduler(scheduler, optimizer)
    return scheduler


def _resolve(value: Any, values: Mapping[str, float]) -> Any:
    """Return ``value`` with every placeholder in it replaced."""
    if isinstance(value, _Arithmetic):
        number = value.resolve(values)
        # torch's schedulers do not accept a float for a count, or an int for a fraction
        return int(number) if float(number).is_integer() and not _divides_by_placeholder(value) else number
    if isinstance(value, partial):
        function: Callable[..., object] = value.func
        arguments = [_resolve(item, values) for item in value.args]
        keywords = {key: _resolve(item, values) for key, item in value.keywords.items()}
        return partial(function, *arguments, **keywords)
    if isinstance(value, dict):
        resolved = copy.copy(cast("dict[object, object]", value))
        resolved.update((key, _resolve(item, values)) for key, item in resolved.items())
        return resolved
    if isinstance(value, list | tuple):
        sequence = cast("Sequence[object]", value)
        items = [_resolve(item, values) for item in sequence]
        make: Any = getattr(sequence, "_make", type(sequence))  # the constructor of a named tuple from an iterable
        return make(items)
    return value


def _divides_by_placeholder(operand: object) -> bool:
    """Whether an expression divides by a placeholder, so that even a whole result is not a count."""
    if not isinstance(operand, PlaceholderExpression):
        return False
    divides = operand.symbol == "/" and isinstance(operand.right, _Arithmetic)
    return divides or _divides_by_placeholder(operand.left) or _divides_by_placeholder(operand.right)
