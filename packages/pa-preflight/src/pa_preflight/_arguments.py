"""The arguments of ``train()``, which `check` and `plan` accept too."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, ParamSpec, Protocol, cast

from typing_extensions import TypeIs

from pa_core import (
    AnyTrainer,
    ArgumentTypeError,
    MoveModulesToDeviceCallback,
    Run,
    Trainer,
    TrainerCallback,
    UnsupportedConfigurationError,
)
from pa_core.data import EvaluationSet
from pa_core.distributed import num_processes

_P = ParamSpec("_P")


class Trains(Protocol[_P]):
    """A trainer, by the arguments of its ``train``."""

    def train(self, *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Train."""


def arguments_of(
    caller: str, trainer: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Trainer[Any, Any, Any, Any], dict[str, Any]]:
    """Return the trainer, and the arguments of a run by name, defaults included.

    Args:
        caller: The function that was called with them, for messages.
        trainer: The first argument of the caller, which should be a trainer.
        args: Positional arguments of ``train``.
        kwargs: Keyword arguments of ``train``.

    Raises:
        ArgumentTypeError: The first argument is not a trainer, or ``train`` does not take these arguments.
        UnsupportedConfigurationError: There are several processes, or the model is sharded.
    """
    if not is_trainer(trainer):
        raise ArgumentTypeError(f"{caller} needs the Trainer of the run, got a {type(trainer).__name__}.")
    try:
        bound = inspect.signature(trainer.train).bind(*args, **kwargs)
    except TypeError as error:
        raise ArgumentTypeError(f"{caller} takes the arguments of train(): {error}.") from error
    bound.apply_defaults()
    require_alone(caller, trainer)
    return trainer, dict(bound.arguments)


def require_alone(caller: str, trainer: AnyTrainer) -> None:
    """Raise an error on several processes, and for a sharded model.

    Args:
        caller: The function that was called, for messages.
        trainer: The trainer.

    Raises:
        UnsupportedConfigurationError: There are several processes, or the model is sharded.
    """
    if num_processes() > 1 or trainer.is_sharded:
        raise UnsupportedConfigurationError(
            f"{caller} works on a single process, and not with a sharded model. Run it without a launcher, or with a "
            "smaller model."
        )


@contextmanager
def trial(trainer: AnyTrainer, *callbacks: TrainerCallback, data: Iterable[object] = ()) -> Generator[None]:
    """Train and evaluate with different callbacks than the script, and undo this.

    Args:
        trainer: The trainer.
        callbacks: Callbacks in addition to `MoveModulesToDeviceCallback`.
        data: The data that the runs use.
    """
    with trainer.dry_run(*data), trainer.callback_handler.replaced_by([MoveModulesToDeviceCallback(), *callbacks]):
        yield


@contextmanager
def with_methods(trainer: AnyTrainer, **methods: Callable[..., object]) -> Generator[None]:
    """Replace methods of a trainer that scripts may override, within a context.

    Args:
        trainer: The trainer.
        methods: The functions by the names of methods.
    """
    before = {name: vars(trainer)[name] for name in methods.keys() & vars(trainer).keys()}
    vars(trainer).update(methods)
    try:
        yield
    finally:
        for name in methods:
            del vars(trainer)[name]
        vars(trainer).update(before)


def evaluated_sets(data: Any) -> dict[str, Any]:
    """Return the evaluation sets by name; the name of a single dataset is None.

    Args:
        data: The argument of ``train``.
    """
    if data is None:
        return {}
    sets = dict(cast("Mapping[str, Any]", data)) if isinstance(data, Mapping) else {"": data}
    return {name: given.dataset if isinstance(given, EvaluationSet) else given for name, given in sets.items()}


def is_trainer(given: object) -> TypeIs[Trainer[Any, Any, Any, Any]]:
    """Whether something is a trainer.

    Args:
        given: Anything.
    """
    return isinstance(given, Trainer)


def is_run(given: object) -> TypeIs[Run[Any, Any]]:
    """Whether something is a ``Run``, whose loop is in the script.

    Args:
        given: Anything.
    """
    return isinstance(given, Run)


def is_overridden(trainer: object, name: str) -> bool:
    """Whether a subclass of Trainer overrides a method.

    Args:
        trainer: The trainer.
        name: The name of the method.
    """
    return getattr(type(trainer), name) is not getattr(Trainer, name)


def ignore(*_args: object, **_kwargs: object) -> None:
    """Replaces a function that logs a value."""
