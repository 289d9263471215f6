"""Loads the states of several objects: all of them or, if an object raises an error, none."""

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
    """Return the error for an object that cannot load a state.

    You call it where ``TransactionalLoad`` or ``refusals_explained`` takes an ``explain`` argument:
    ``functools.partial(does_not_fit, model, "model.pt", "")`` is such a function, which is then called with the reason.

    Args:
        target: The object. The message names its class.
        where: The file or the part of the checkpoint with the state.
        do: The action that solves the problem, or an empty text for the usual advice: to build the object as it was
            when the state was saved.
        found: The reason why the state does not fit, for example from ``incompatibility``.

    Returns:
        The error, which you raise. It is not raised here.

    Example:
        >>> from torch import nn
        >>> from pa_checkpoint.torch_states import does_not_fit
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
    """Turn errors of ``load_state_dict`` within a ``with`` block into an error that names the state.

    You use it around your own ``load_state_dict`` calls. An object that receives the state of a different object raises
    a ``KeyError`` or a similar error, which says nothing about the checkpoint. ``TransactionalLoad`` does the same, and
    also restores the objects.

    Args:
        explain: A function that is called with a text about the original error, and returns the error to raise.
            ``functools.partial(does_not_fit, model, "model.pt", "")`` makes such a function.
        passing: Exception classes that are not about the state, for example ``(MemoryError,)``; they are raised
            unchanged. By default there are none. A ``CheckpointError`` is always raised unchanged.

    Raises:
        CheckpointError: The result of ``explain``, if the block has raised any other exception. The original exception
            is its cause.

    Example:
        >>> from pa_checkpoint import CheckpointError
        >>> from pa_checkpoint.torch_states import refusals_explained
        >>> with refusals_explained(lambda found: CheckpointError(f"The state does not fit: {found}.")):
        ...     {}["weight"]
        Traceback (most recent call last):
        ...
        pa_checkpoint.CheckpointError: The state does not fit: loading it raised KeyError: 'weight'.
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
    """Loads the states of several objects, and restores all of them if any of them raises an error.

    Use it to resume a model, an optimizer and a scheduler together. Without it, a failed resume leaves a model with
    loaded weights and an optimizer without its state, and a script that catches the error continues with this mixture
    of old and new state. Load all objects within a ``with`` block. If an error leaves the block, the objects get their
    previous states back; otherwise they keep the loaded states. Until the block ends, the host memory holds a copy of
    the previous weights. Use a new object for each block; the constructor has no arguments.

    On several processes, each process loads and restores its own objects, so exchange the outcome before you continue.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from pa_checkpoint import CheckpointError
        >>> from pa_checkpoint.torch_states import TransactionalLoad
        >>> optimizers = [torch.optim.SGD(nn.Linear(1, 1).parameters(), lr) for lr in (0.1, 0.2)]
        >>> states = [{**optimizers[0].state_dict(), "param_groups": [{"lr": 3.0, "params": [0, 1]}]}, {}]
        >>> try:
        ...     with TransactionalLoad() as loading:
        ...         for optimizer, state in zip(optimizers, states):
        ...             loading.load_optimizer(optimizer, state, lambda found: CheckpointError(found))
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
        """Load the state of any object with ``state_dict`` and ``load_state_dict``.

        You call it within the ``with`` block for a scheduler, a gradient scaler, a module or your own object. For an
        optimizer, call ``load_optimizer``. Modules are compared with the state first, since they load the matching
        weights before they raise an error. Entries of a state that a scheduler of this version of torch does not have
        are left out. Tensors are sharded like the current tensors of the object.

        Args:
            target: The object, which is changed.
            state: The state that its ``state_dict`` returned. Dictionaries in it are changed if they contain a
                ``StoredTensor``.
            explain: A function that is called with the reason why the state does not fit, and returns the error to
                raise, for example ``CheckpointError`` or ``functools.partial(does_not_fit, target, "model.pt", "")``.

        Raises:
            CheckpointError: The result of ``explain``, if the state does not fit, or the object raises an error.

        Example:
            >>> import torch
            >>> from torch import nn
            >>> from pa_checkpoint import CheckpointError
            >>> from pa_checkpoint.torch_states import TransactionalLoad
            >>> optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1)
            >>> scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
            >>> state = {**scheduler.state_dict(), "last_epoch": 7}
            >>> with TransactionalLoad() as loading:
            ...     loading.load(scheduler, state, CheckpointError)
            >>> scheduler.last_epoch
            7
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
        """Load the state of an optimizer, without changing the precision of its tensors.

        You call it within the ``with`` block. The ``load_state_dict`` of torch optimizers casts the state to the
        precision of the parameters. This method keeps the saved precision, reads tensors that are still on disk, and
        shards the state like the parameters. It does not check that the shapes of the state fit the parameters; call
        ``incompatibility`` first.

        Args:
            optimizer: The optimizer, which is changed.
            state: The state that its ``state_dict`` returned. The optimizer uses its tensors without a copy.
            explain: A function that is called with the reason why the state does not fit, and returns the error to
                raise, for example ``CheckpointError`` or ``functools.partial(does_not_fit, optimizer, "optimizer.pt",
                "")``.
            added_groups: The parameters of each group that the state has and the optimizer lacks, for example because
                layers were unfrozen in the earlier run. The groups are added first. The default is none, since most
                optimizers keep their groups.

        Raises:
            CheckpointError: The optimizer raises an error, which is passed to ``explain``, or lacks tensors of the
                state after loading.

        Example:
            >>> import torch
            >>> from torch import nn
            >>> from pa_checkpoint import CheckpointError
            >>> from pa_checkpoint.torch_states import TransactionalLoad
            >>> model = nn.Linear(1, 1)
            >>> optimizer = torch.optim.SGD([model.weight], 0.1)
            >>> groups = [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.5}]
            >>> saved = torch.optim.SGD(groups, 0.1).state_dict()
            >>> with TransactionalLoad() as loading:
            ...     loading.load_optimizer(optimizer, saved, CheckpointError, added_groups=[[model.bias]])
            >>> [group["lr"] for group in optimizer.param_groups]
            [0.1, 0.5]
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
        """Load a state dict of whole tensors into a model, which may be sharded.

        You call it within the ``with`` block for pretrained weights, or for weights that were saved with a different
        process layout: each process passes the whole state dict and keeps its pieces. For a plain model whose state
        dict must match, ``load`` gives better messages. Until the block ends, the host memory holds a copy of the
        current weights.

        Args:
            model: The model without wrappers such as ``DistributedDataParallel``.
            weights: The state dict, with the names that ``model.state_dict()`` uses.
            explain: A function that is called with the reason why the state does not fit, and returns the error to
                raise, for example ``CheckpointError`` or ``functools.partial(does_not_fit, model, "model.pt", "")``.
            is_partial: Whether ``weights`` may lack some weights, which keep their values. The default is False, since
                a missing weight is usually a mistake.

        Raises:
            CheckpointError: The result of ``explain``, if the model raises an error.

        Example:
            >>> import torch
            >>> from torch import nn
            >>> from pa_checkpoint import CheckpointError
            >>> from pa_checkpoint.torch_states import TransactionalLoad
            >>> model = nn.Linear(2, 1)
            >>> with TransactionalLoad() as loading:
            ...     loading.load_weights(model, {"bias": torch.ones(1)}, CheckpointError, is_partial=True)
            >>> model.bias.item()
            1.0
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
        """Load the saved states of several models; weights that do not match keep their values.

        You call it within the ``with`` block, if the checkpoint was saved with ``SavedModel.of``. Weights with a
        different name, shape or kind are left out without an error; call ``incompatibility`` first if they should be an
        error. Call ``keep_weights`` for each model first, so that the weights are restored after an error, too; by
        itself, this method restores only the extra states of modules. The extra states are loaded first, since only
        they may raise an error.

        Args:
            models: The models without wrappers such as ``DistributedDataParallel``, by name.
            saved: The saved states by name, as ``SavedModel.of`` returns them or ``SavedModel(**part)`` makes them from
                a loaded checkpoint. Models without a saved state stay unchanged.

        Raises:
            CheckpointError: A module raises an error for its extra state, or a file can no longer be read.

        Example:
            >>> from torch import nn
            >>> from pa_checkpoint.torch_states import SavedModel, TransactionalLoad
            >>> pretrained, model = nn.Linear(2, 1), nn.Linear(2, 1)
            >>> with TransactionalLoad() as loading:
            ...     loading.load_models({"model": model}, {"model": SavedModel.of(pretrained)})
            >>> bool((model.weight == pretrained.weight).all())
            True
        """
        found: list[tuple[nn.Module, SavedModel, list[str]]] = []
        for model, state in ((model, saved[name]) for name, model in models.items() if name in saved):
            incompatibilities = differences_of_weights(model, state.weights, "state")
            found.append((model, state, [name for name in state.weights if name not in incompatibilities]))
        for model, state, names in found:
            if extra := [name for name in names if name.endswith(EXTRA_STATE)]:
                own = model.state_dict()
                self._load(
                    partial(model.load_state_dict, strict=False),
                    {name: StoredTensor.resolve(state.weights[name]) for name in extra},
                    {name: copy.deepcopy(own[name]) for name in extra},
                    partial(does_not_fit, model, f"a training state with {', '.join(extra)}", ""),
                )
        for model, state, names in found:
            state.load_into(model, names)

    def keep_weights(self, model: nn.Module) -> None:
        """Copy the weights and the extra state of a model to the host, and restore them if an error leaves the block.

        You call it within the ``with`` block before you change a model in your own way, or before ``load_models``.
        ``load`` and ``load_weights`` call it themselves. For a sharded model, each process copies its own pieces. The
        copy takes as much host memory as the weights, until the block ends.

        Args:
            model: The model without wrappers such as ``DistributedDataParallel``.

        Example:
            >>> from torch import nn
            >>> from pa_checkpoint.torch_states import TransactionalLoad
            >>> model = nn.Linear(2, 1)
            >>> before = model.bias.item()
            >>> try:
            ...     with TransactionalLoad() as loading:
            ...         loading.keep_weights(model)
            ...         _ = nn.init.ones_(model.bias)
            ...         raise ValueError("the second file is missing")
            ... except ValueError:
            ...     print(model.bias.item() == before)
            True
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
        """Load a state, and remember the previous state with copies of its containers, but not of its tensors."""
        self._undo.callback(_without_errors, partial(load, _kept(before)))
        with refusals_explained(explain):
            load(state)


def _keeps_extra_state(kind: type[nn.Module]) -> bool:
    """Return whether a class of modules has an extra state."""
    return (
        nn.Module.get_extra_state is not kind.get_extra_state and nn.Module.set_extra_state is not kind.set_extra_state
    )


def _copied(value: object) -> Any:
    """Return a copy of a tensor in host memory; of a sharded tensor, the piece of this process."""
    return local_piece(value.detach()).to("cpu", copy=True) if isinstance(value, Tensor) else None


def _without_errors(load: Callable[[], object]) -> None:
    """Call a function, and ignore its errors."""
    with suppress(Exception):  # an object that refuses its own state has told enough
        load()


def _kept(value: Any) -> Any:
    """Return a value with copies of its dictionaries and lists."""
    if isinstance(value, dict):
        return {key: _kept(item) for key, item in cast("dict[object, Any]", value).items()}
    return [*map(_kept, cast("list[object]", value))] if isinstance(value, list) else value
