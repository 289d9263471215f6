"""What a script keeps next to the parts of a run: stored by its place where that is safe, or named in a warning."""

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
    """What steps change in the objects of a script, other than the parts of a run.

    What is not stored is named in one warning. Steps pay nothing for it.

    Args:
        run: The run, once all hooks and callbacks of its start were called.
        registered: Objects that are part of each state.
    """

    def __init__(self, run: ResumableRun, registered: Sequence[object]) -> None:
        self._state = ScriptState(*_objects(run, registered))
        self._has_warned = False

    def capture(self, run: ResumableRun, parts: Mapping[str, Any], registered: Sequence[object]) -> dict[str, Any]:
        """Return what this process stores, by place, and warn about what is not stored, once in a run.

        Args:
            run: The run.
            parts: What else the state holds.
            registered: As at the start.
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
                "run begins without it. If later steps need it, pass what holds it, with state_dict() and "
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
    """Put back what ``RunScriptState.capture`` returned.

    Args:
        run: The run, once all hooks and callbacks of its start were called.
        registered: Objects that are part of each state.
        stored: What was stored, by place.

    Returns:
        The places that this run does not have, though it has the object in which they were.
    """
    return ScriptState.restore(stored, *_objects(run, registered))


def _objects(run: ResumableRun, registered: Sequence[object]) -> _Objects:
    """What is searched by the names that a script knows, the training loader, and what is part of a state by itself."""
    is_trainer = hasattr(type(run), "calculate_train_batch_loss")
    modules = modules_of(run)
    roots: dict[str, object] = {"trainer" if is_trainer else "run": run, "loss_func": run.loss_func, **modules}
    roots |= {**_roots("scheduler", run.named_schedulers()), **_roots("optimizer", run.named_optimizers())}
    numbers = Counter[str]()
    for one in run.callback_handler.callbacks:
        if not supports_state_dict(one):
            name = f"callbacks.{type(one).__name__}"
            numbers[name] += 1
            roots[name if numbers[name] == 1 else f"{name}#{numbers[name]}"] = one
    stateful = filter(supports_state_dict, run.callback_handler.callbacks)
    tensors = (one for each in modules.values() for one in (*parameters_of_module(each), *buffers_of_module(each)))
    return roots, innermost(run.train_dataloader), [*stateful, *registered, run.run_history, *tensors]


def _can_be_stored(value: Mapping[str, Any]) -> bool:
    try:
        Writer.check({"script": value})
    except CheckpointError:
        return False
    return True


def _roots(kind: str, named: Mapping[str, object]) -> dict[str, object]:
    return {kind if name == kind else f"{kind}s.{name}": one for name, one in named.items()}


def _not_in(parts: Mapping[str, Any], lost: Mapping[str, object]) -> list[str]:
    """Leave out tensors that are part of the state all the same, some as a copy."""
    if not any(isinstance(one, Tensor) for one in lost.values()):
        return [*lost]
    saved = {one.untyped_storage().data_ptr() for one in _tensors_in(parts)}
    copies = [*_tensors_in(parts["callbacks"]), *_tensors_in(parts["objects"])]
    return [place for place, one in lost.items() if not (isinstance(one, Tensor) and _is_saved(one, saved, copies))]


def _is_saved(tensor: Tensor, saved: set[int], copies: Sequence[Tensor]) -> bool:
    return tensor.untyped_storage().data_ptr() in saved or any(
        one.shape == tensor.shape and one.dtype == tensor.dtype and torch.equal(one.cpu(), tensor.cpu())
        for one in copies
    )


def _tensors_in(value: object) -> Iterator[Tensor]:
    """The tensors in nested containers that have values in the memory of this process."""
    if isinstance(value, Tensor):
        if value.layout is torch.strided and not (is_sharded(value) or value.is_meta):
            yield value
    elif isinstance(value, dict):
        for one in cast("dict[object, object]", value).values():
            yield from _tensors_in(one)
    elif isinstance(value, list | tuple):
        for one in cast("Iterable[object]", value):
            yield from _tensors_in(one)


def shown_places(places: Sequence[str]) -> str:
    """Return places as a message names them: of several in an object, the object.

    Args:
        places: The places.
    """
    by_object = Counter(map(_object_of, places))
    shown = [*dict.fromkeys(_object_of(one) if by_object[_object_of(one)] > 1 else one for one in places)]
    more = f" and {len(shown) - _MOST_SHOWN} more" if len(shown) > _MOST_SHOWN else ""
    return ", ".join(shown[:_MOST_SHOWN]) + more


def _object_of(place: str) -> str:
    """The attribute of a root that leads to a place."""
    root, _, rest = place.partition(".")
    if root == "callbacks":
        kind, _, rest = rest.partition(".")
        root = f"{root}.{kind}"
    name = rest.partition(".")[0].partition("[")[0]
    return f"{root}.{name}" if name else root
