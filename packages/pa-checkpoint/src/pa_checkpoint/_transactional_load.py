"""Loading what was saved of several objects: all of it or, where one of them raises an error, nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pa_checkpoint._errors import CheckpointError
from pa_checkpoint._incompatibility import (
    differences_of_weights,
    has_own_form,
    incompatibility,
    without_foreign_entries,
)
from pa_checkpoint._optimizer_state import load_optimizer_state
from pa_checkpoint._saved_model import EXTRA_STATE, SavedModel
from pa_checkpoint._sharded_tensor import StoredTensor
from pa_checkpoint._torch import is_sharded, local_piece


def does_not_fit(target: object, where: str, do: str, found: str) -> CheckpointError:
    """Return the error of an object that cannot load what was saved.

    Args:
        target: The object.
        where: Where it was saved, and what of it does not fit.
        do: What to do; empty for the usual advice.
        found: Why it does not.

    Example:
        >>> print(does_not_fit(nn.Linear(1, 1), "model.pt", "", "it is empty"))
        The state does not fit this Linear; nothing was loaded.
          given:    model.pt: it is empty
          do:       Make the Linear as it was when the state was saved, or use another state.
    """
    kind = type(target).__name__
    return CheckpointError(
        f"The state does not fit this {kind}; nothing was loaded.",
        given=f"{where}: {found}",
        do=do or f"Make the {kind} as it was when the state was saved, or use another state.",
    )


@contextmanager
def refusals_explained(
    explain: Callable[[str], CheckpointError], *, passing: tuple[type[Exception], ...] = ()
) -> Generator[None]:
    """Explain an error that an object raises within the context when it loads its state.

    Args:
        explain: Returns the error that says so, from what the object has raised.
        passing: Exceptions that are not about the state, and leave the context as they are.

    Raises:
        CheckpointError: The object has raised another error.

    Example:
        >>> with refusals_explained(lambda found: CheckpointError(f"It does not fit: {found}.")):
        ...     {}["weight"]
        Traceback (most recent call last):
        ...
        pa_checkpoint.CheckpointError: It does not fit: loading it raised KeyError: 'weight'.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (CheckpointError, *passing)):
            raise
        raise explain(f"loading it raised {type(error).__name__}: {error}") from error


class _Stateful(Protocol):
    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any, /) -> object: ...


class TransactionalLoad:
    """The context in which objects load what was saved of them; what they were comes back if it is left with an error.

    Example:
        >>> optimizers = [torch.optim.SGD(nn.Linear(1, 1).parameters(), lr) for lr in (0.1, 0.2)]
        >>> states = [{**optimizers[0].state_dict(), "param_groups": [{"lr": 3.0, "params": [0, 1]}]}, {}]
        >>> try:
        ...     with TransactionalLoad() as loading:
        ...         for one, state in zip(optimizers, states):
        ...             loading.load_optimizer(one, state, lambda found: CheckpointError(found))
        ... except CheckpointError as error:
        ...     print(error)
        loading it raised KeyError: 'param_groups'
        >>> optimizers[0].param_groups[0]["lr"]
        0.1
    """

    def __init__(self) -> None:
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, trace: TracebackType | None
    ) -> None:
        if exception is None:
            self._undo.pop_all()
        else:
            self._undo.__exit__(kind, exception, trace)

    def load(self, target: _Stateful, state: Any, explain: Callable[[str], CheckpointError]) -> None:
        """Load the state of an object of any kind. Its tensors are split like those that the object has.

        Of a scheduler of torch, entries that it does not have are left out: other releases have others.

        Args:
            target: The object.
            state: What its ``state_dict`` returned; its dictionaries are changed where tensors in it are stored.
            explain: Returns the error, from what does not fit.

        Raises:
            CheckpointError: The state does not fit, or the object raises an error for it.
        """
        if isinstance(target, Optimizer):
            self.load_optimizer(target, state, explain)
            return
        own = target.state_dict()
        state = StoredTensor.resolve(without_foreign_entries(target, state), own)
        if isinstance(target, nn.Module):
            # it would load what fits before it raises an error of what does not
            if (found := incompatibility(target, state)) is not None:
                raise explain(found)
            self.keep_weights(target)
        self._load(target.load_state_dict, state, own, explain)

    def load_optimizer(
        self,
        optimizer: Optimizer,
        state: Mapping[str, Any],
        explain: Callable[[str], CheckpointError],
        added_groups: Iterable[Sequence[Tensor]] = (),
    ) -> None:
        """Load the state of an optimizer, in the precision and the pieces in which the optimizer keeps it.

        Args:
            optimizer: The optimizer.
            state: Its state, whose tensors become its own.
            explain: As for ``load``.
            added_groups: The parameters of groups that the state has, and the optimizer does not have yet.

        Raises:
            CheckpointError: The optimizer raises an error, or lacks tensors of the state afterwards.
        """
        groups, entries, number = optimizer.param_groups, optimizer.state, len(optimizer.param_groups)

        def bring_back() -> None:
            del groups[number:]
            optimizer.param_groups, optimizer.state = groups, entries  # loading has replaced them, and changed none

        if has_own_form(optimizer):  # which may have changed them
            before = copy.deepcopy(optimizer.state_dict())
            self._undo.callback(_without_errors, partial(optimizer.load_state_dict, before))
        self._undo.callback(bring_back)
        with refusals_explained(explain):
            for parameters in added_groups:
                optimizer.add_param_group({"params": parameters})
            load_optimizer_state(optimizer, state)

    def load_weights(
        self,
        model: nn.Module,
        weights: Mapping[str, Any],
        explain: Callable[[str], CheckpointError],
        *,
        is_partial: bool = False,
    ) -> None:
        """Load a state dict of whole tensors into a model, sharded or not; the host holds the present one meanwhile.

        Args:
            model: The model without wrappers.
            weights: The state dict.
            explain: As for ``load``.
            is_partial: Whether it lacks weights, which stay as they are.

        Raises:
            CheckpointError: The model raises an error.
        """
        self.keep_weights(model)
        split = {name: value for name, value in model.state_dict().items() if name in weights and is_sharded(value)}
        with refusals_explained(explain):
            # what else the state has may be refused, and comes first
            rest = {name: value for name, value in weights.items() if name not in split}
            model.load_state_dict(rest, strict=not (split or is_partial))
            for name, value in split.items():
                StoredTensor.of(weights[name]).read_into(value)

    def load_models(self, models: Mapping[str, nn.Module], saved: Mapping[str, SavedModel]) -> None:
        """Load what was saved of modules; weights that do not match, and models without a state, stay.

        What modules keep as extra states is loaded first: it alone may raise an error. The rest is not undone, unless
        ``keep_weights`` was called.

        Args:
            models: The models without wrappers, by name.
            saved: What was saved, by name.

        Raises:
            CheckpointError: A module does not take its extra state.
        """
        found: list[tuple[nn.Module, SavedModel, list[str]]] = []
        for model, one in ((model, saved[name]) for name, model in models.items() if name in saved):
            incompatibilities = differences_of_weights(model, one.weights, "state")
            found.append((model, one, [name for name in one.weights if name not in incompatibilities]))
        for model, one, names in found:
            if extra := [name for name in names if name.endswith(EXTRA_STATE)]:
                own = model.state_dict()
                self._load(
                    partial(model.load_state_dict, strict=False),
                    {name: StoredTensor.resolve(one.weights[name]) for name in extra},
                    {name: copy.deepcopy(own[name]) for name in extra},
                    partial(does_not_fit, model, f"a training state with {', '.join(extra)}", ""),
                )
        for model, one, names in found:
            one.load_into(model, names)

    def keep_weights(self, model: nn.Module) -> None:
        """Copy the weights and the extra state of a model to the host, to be brought back after an error.

        Of a sharded model, each process copies its pieces.

        Args:
            model: The model without wrappers.
        """
        weights = {name: _copied(value) for name, value in model.state_dict().items()}
        extra_states = {
            module: copy.deepcopy(module.get_extra_state())
            for module in model.modules()
            if _keeps_extra_state(type(module))
        }

        def bring_back() -> None:
            with torch.no_grad():
                for name, value in model.state_dict().items():
                    if isinstance(value, Tensor):
                        local_piece(value).copy_(weights[name])
            for module, state in extra_states.items():
                module.set_extra_state(state)

        self._undo.callback(bring_back)

    def _load(
        self, load: Callable[[Any], object], state: Any, before: Any, explain: Callable[[str], CheckpointError]
    ) -> None:
        """Load a state. Of the one before, containers are copied, which may belong to the object; tensors are not."""
        self._undo.callback(_without_errors, partial(load, _kept(before)))
        with refusals_explained(explain):
            load(state)


def _keeps_extra_state(kind: type[nn.Module]) -> bool:
    return (
        nn.Module.get_extra_state is not kind.get_extra_state and nn.Module.set_extra_state is not kind.set_extra_state
    )


def _copied(value: object) -> Any:
    return local_piece(value.detach()).to("cpu", copy=True) if isinstance(value, Tensor) else None


def _without_errors(load: Callable[[], object]) -> None:
    with suppress(Exception):  # an object that refuses its own state has told enough
        load()


def _kept(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _kept(item) for key, item in cast("dict[object, Any]", value).items()}
    return [*map(_kept, cast("list[object]", value))] if isinstance(value, list) else value
