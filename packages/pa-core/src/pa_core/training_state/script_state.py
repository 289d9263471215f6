"""The state of a script's objects besides the parts of a run: stored by place if safe, or named in a warning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from pa_checkpoint import CheckpointError, Writer
from pa_core import distributed
from pa_core._tensors import buffers_of_module, is_sharded, parameters_of_module, supports_state_dict
from pa_core.data.custom_loader import innermost
from pa_core.training_state.snapshotable import ResumableRun, modules_of
from pa_core.user_warnings import warn_user
from pa_data.script_state import ScriptState

_Objects: TypeAlias = tuple[dict[str, object], object, list[object]]

_MOST_SHOWN = 8
_HOW_TO_SEED = "torch.randint(2**63 - 1, ()).item()"


class RunScriptState:
    """The changes that steps make in the objects of a script, other than the parts of a run.

    A warning names changes that are not stored. This adds no time to steps.

    Args:
        run: The run, once all hooks and callbacks of its start were called.
        registered: Objects that are part of each state.
    """

    def __init__(self, run: ResumableRun, registered: Sequence[object]) -> None:
        self._state = ScriptState(*_objects(run, registered))
        self._has_warned = False

    def capture(self, run: ResumableRun, parts: Mapping[str, Any], registered: Sequence[object]) -> dict[str, Any]:
        """Return the values that this process stores, by place, and warn about other changes, once in a run.

        Args:
            run: The run.
            parts: The other parts of the state.
            registered: The registered objects, as at the start.
        """
        saved = {**_roots("scheduler", parts["schedulers"]), **_roots("optimizer", parts["optimizers"])}
        stored, lost = self._state.changes(*_objects(run, registered), saved=saved, accepts=_can_be_stored)
        if not self._has_warned and distributed.rank() == 0:
            self._warn(_not_in(parts, lost), self._state.drawn())
        return stored

    def _warn(self, lost: Sequence[str], drawn: Sequence[str]) -> None:
        sentences = list[str]()
        if lost:
            sentences.append(
                f"Training steps have left state in {shown_places(lost)}, which training states do not have: a resumed "
                "run begins without it. If later steps need it, pass its owner, with state_dict() and "
                "load_state_dict(), to trainer.register_for_checkpointing(...)."
            )
        if drawn:
            sentences.append(
                f"Samples depend on {shown_places(drawn)}, which training states do not have: a resumed run draws "
                f"others. Draw from torch's generator instead, or seed yours for each sample with {_HOW_TO_SEED}."
            )
        if sentences:
            self._has_warned = True
            warn_user(" ".join(sentences))


def restore_script_state(run: ResumableRun, registered: Sequence[object], stored: Mapping[str, Any]) -> list[str]:
    """Restore the result of ``RunScriptState.capture``.

    Args:
        run: The run, once all hooks and callbacks of its start were called.
        registered: Objects that are part of each state.
        stored: The stored values, by place.

    Returns:
        The places that this run does not have, although it has their objects.
    """
    return ScriptState.restore(stored, *_objects(run, registered))


def _objects(run: ResumableRun, registered: Sequence[object]) -> _Objects:
    """Return the objects to search, by their names in scripts, the training loader, and objects with a state."""
    is_trainer = hasattr(type(run), "calculate_train_batch_loss")
    modules = modules_of(run)
    roots: dict[str, object] = {"trainer" if is_trainer else "run": run, "loss_func": run.loss_func, **modules}
    roots |= {**_roots("scheduler", run.named_schedulers()), **_roots("optimizer", run.named_optimizers())}
    numbers = Counter[str]()
    for callback in run.callback_handler.callbacks:
        if not supports_state_dict(callback):
            name = f"callbacks.{type(callback).__name__}"
            numbers[name] += 1
            roots[name if numbers[name] == 1 else f"{name}#{numbers[name]}"] = callback
    stateful = filter(supports_state_dict, run.callback_handler.callbacks)
    tensors = (
        tensor for each in modules.values() for tensor in (*parameters_of_module(each), *buffers_of_module(each))
    )
    return roots, innermost(run.train_dataloader), [*stateful, *registered, run.run_history, *tensors]


def _can_be_stored(value: Mapping[str, Any]) -> bool:
    try:
        Writer.check({"script": value})
    except CheckpointError:
        return False
    return True


def _roots(kind: str, named: Mapping[str, object]) -> dict[str, object]:
    return {kind if name == kind else f"{kind}s.{name}": value for name, value in named.items()}


def _not_in(parts: Mapping[str, Any], lost: Mapping[str, object]) -> list[str]:
    """Leave out tensors that are part of the state anyway, possibly as a copy."""
    if not any(isinstance(value, Tensor) for value in lost.values()):
        return [*lost]
    saved = {tensor.untyped_storage().data_ptr() for tensor in _tensors_in(parts)}
    copies = [*_tensors_in(parts["callbacks"]), *_tensors_in(parts["objects"])]
    return [
        place for place, value in lost.items() if not (isinstance(value, Tensor) and _is_saved(value, saved, copies))
    ]


def _is_saved(tensor: Tensor, saved: set[int], copies: Sequence[Tensor]) -> bool:
    return tensor.untyped_storage().data_ptr() in saved or any(
        copied.shape == tensor.shape and copied.dtype == tensor.dtype and torch.equal(copied.cpu(), tensor.cpu())
        for copied in copies
    )


def _tensors_in(value: object) -> Iterator[Tensor]:
    """Yield the tensors in nested containers that have values in the memory of this process."""
    if isinstance(value, Tensor):
        if value.layout is torch.strided and not (is_sharded(value) or value.is_meta):
            yield value
    elif isinstance(value, dict):
        for item in cast("dict[object, object]", value).values():
            yield from _tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in cast("Iterable[object]", value):
            yield from _tensors_in(item)


def shown_places(places: Sequence[str]) -> str:
    """Return places for a message, with the object in place of several of its attributes.

    Args:
        places: The places.
    """
    by_object = Counter(map(_object_of, places))
    shown = [*dict.fromkeys(_object_of(place) if by_object[_object_of(place)] > 1 else place for place in places)]
    more = f" and {len(shown) - _MOST_SHOWN} more" if len(shown) > _MOST_SHOWN else ""
    return ", ".join(shown[:_MOST_SHOWN]) + more


def _object_of(place: str) -> str:
    """Return the attribute of a root that leads to a place."""
    root, _, rest = place.partition(".")
    if root == "callbacks":
        kind, _, rest = rest.partition(".")
        root = f"{root}.{kind}"
    name = rest.partition(".")[0].partition("[")[0]
    return f"{root}.{name}" if name else root
