"""Checks of the settings of callbacks, and of the training states that a callback saves."""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, cast

from torch import Tensor
from typing_extensions import override

from pa_checkpoint import load
from pa_core import (
    AnyTrainer,
    CheckpointError,
    SaveTrainingStateCallback,
    StepBasedEvaluationCallback,
    StopTrainingError,
    Trainer,
    TrainerCallback,
)
from pa_preflight._arguments import is_trainer, trial
from pa_preflight._findings import Finding, first_line, noticed
from pa_preflight._plan import existing, states_at_once
from pa_preflight._plan_rates import PlannedRun
from pa_preflight._plan_records import Plan, size_of
from pa_preflight._tensors import entries, is_same

_INITIAL_LEFT, _NO_AVERAGE, _TENTH, _FEWEST = 0.3, 0.3, 0.1, 10

_LARGEST: Final = 2**31
"""The bytes of a state that are written in some seconds."""

_BLOCK, _SHOWN = 4096, 3


def check_callbacks(callbacks: Sequence[Any], planned: PlannedRun, first_loss: float | None) -> Iterator[Finding]:
    """Yield findings about the settings of callbacks.

    Args:
        callbacks: The callbacks of the run, which are not called.
        planned: The updates and rates of the run.
        first_loss: The loss of the first batch; None if it is not known.
    """
    for callback in callbacks:
        if _is(callback, "EarlyStoppingCallback"):
            yield from _check_stopping(callback, planned, first_loss)
        elif _is(callback, "ModelEmaCallback"):
            yield from _check_average(callback, planned)
        elif isinstance(callback, StepBasedEvaluationCallback):
            yield from _never(callback, "eval_every_n_steps", callback.eval_every_n_steps, planned.updates, "updates")
        elif isinstance(callback, SaveTrainingStateCallback) and not callback.save_at_end:
            yield from _check_saving(callback, planned)
    yield from _check_paths(callbacks)


def _is(callback: object, name: str) -> bool:
    """Whether a callback is of a class of pa-callbacks-extra, which need not be installed."""
    return any(kind.__name__ == name and kind.__module__.startswith("pa_") for kind in type(callback).__mro__)


def _check_stopping(callback: Any, planned: PlannedRun, first_loss: float | None) -> Iterator[Finding]:
    threshold, watched = float(callback.early_stopping_threshold), str(callback.watch_metric)
    is_loss = "loss" in watched and not callback.greater_is_better
    if is_loss and first_loss is not None and 0 < _TENTH * first_loss < threshold:
        yield noticed(
            "callback-settings",
            f"early_stopping_threshold={threshold:g} requires {watched} to improve by that much, but the loss of the "
            f"first batch is only {first_loss:.3g}: the run ends after early_stopping_patience="
            f"{callback.early_stopping_patience} epochs.",
            "Pass a threshold that is small compared with the loss, such as a hundredth of it, or 0.",
        )
    elif callback.greater_is_better and threshold >= 1 and not is_loss:
        yield noticed(
            "callback-settings",
            f"early_stopping_threshold={threshold:g} requires {watched} to improve by that much, which a fraction from "
            "0 to 1 cannot.",
            "Pass a small threshold, such as 0.001.",
        )
    if planned.epochs > 1 and callback.early_stopping_patience >= planned.epochs:
        yield noticed(
            "callback-settings",
            f"The run can never stop early: early_stopping_patience={callback.early_stopping_patience}, and it has "
            f"{planned.epochs} epochs.",
            "Pass a smaller patience, or leave the callback out.",
        )


def _check_average(callback: Any, planned: PlannedRun) -> Iterator[Finding]:
    decay, updates = float(callback.decay), planned.updates
    if updates < _FEWEST or not isinstance(callback.model_ema, type):  # a custom function may warm up
        return
    left = decay**updates
    if left > _INITIAL_LEFT:
        yield noticed(
            "callback-settings",
            f"ModelEmaCallback keeps {100 * decay:g} % of the average in each update: after all {updates} updates of "
            f"the run, {100 * left:.0f} % of the average are still the untrained weights.",
            f"Pass a smaller decay, such as {max(0.5, 1 - 20 / updates):.3g}, or a ModelEma with warm_up=True.",
        )
    elif decay < _NO_AVERAGE:
        yield noticed(
            "callback-settings",
            f"ModelEmaCallback keeps {100 * decay:g} % of the average in each update, so it averages nearly nothing.",
            "Pass the fraction of the average that an update keeps, such as 0.99.",
        )


def _never(callback: object, name: str, every: int, number: int, unit: str) -> Iterator[Finding]:
    if 0 < number < every:
        yield noticed(
            "callback-settings",
            f"{type(callback).__name__} never acts: it has {name}={every}, and the run has {number} {unit}.",
            f"Pass a smaller {name}, or leave the callback out.",
        )


def _check_saving(callback: SaveTrainingStateCallback, planned: PlannedRun) -> Iterator[Finding]:
    by_epoch, by_step = callback.save_every_n_epochs, callback.save_every_n_steps
    if callback.save_every_n_seconds is not None:
        return
    if by_epoch is not None and by_step is None:
        yield from _never(callback, "save_every_n_epochs", by_epoch, planned.epochs, "epochs")
    elif by_step is not None and by_epoch is None:
        yield from _never(callback, "save_every_n_steps", by_step, planned.updates, "updates")


def _check_paths(callbacks: Iterable[Any]) -> Iterator[Finding]:
    paths: dict[Path, object] = {}
    for callback in callbacks:
        given = getattr(callback, "save_path", None)
        if not isinstance(given, (str, Path)):
            continue
        path = Path(given).absolute()
        if path in paths:
            names = " and ".join(type(each).__name__ for each in (paths[path], callback))
            yield noticed(
                "callback-settings",
                f"{names} both save to {given}, so each replaces the file of the other.",
                "Give each callback its own save_path.",
            )
        paths[path] = callback


def check_states(
    trainer: AnyTrainer,
    callbacks: Sequence[object],
    make_plan: Callable[[], Plan],
    asked: Mapping[str, Any] | None = None,
    *,
    is_resuming: bool = True,
) -> tuple[list[Finding], list[str]]:
    """Return findings about the training states of a run, and the checks that were left out.

    Args:
        trainer: The trainer.
        callbacks: The callbacks of the run; those that save states are checked.
        make_plan: Returns the plan of the run.
        asked: The arguments of ``train``; None for a run whose loop is in the script, so that no state can be saved.
        is_resuming: Whether some of the planned states may exist already.
    """
    saving = [callback for callback in callbacks if isinstance(callback, SaveTrainingStateCallback)]
    findings: list[Finding] = []
    left_out: list[str] = []
    if not saving:
        return findings, left_out
    try:
        planned = make_plan()
    except Exception as error:
        return findings, [f"training states, because the run could not be planned: {first_line(error)}"]
    for callback in saving:
        folder = Path(os.path.realpath(callback.save_dir))
        disk = existing(folder)
        free, size = shutil.disk_usage(disk).free, planned.memory.saved_state or 0
        try:
            temporary = tempfile.TemporaryDirectory(prefix=".check_", dir=disk)
        except OSError as error:
            saw = f"Training states cannot be written to {callback.save_dir}: {first_line(error)}."
            findings.append(noticed("state-not-saved", saw, "Choose another save_dir."))
            continue
        with temporary as name:
            if not is_trainer(trainer) or asked is None:
                left_out.append("whether a training state can be saved and loaded, because the loop is in the script.")
            elif 2 * size > min(free, 2 * _LARGEST):
                left_out.append(
                    f"whether a training state can be saved and loaded, because it is large ({size_of(size)})."
                )
            else:
                trial = _Trial(trainer, Path(name), callbacks)
                findings += trial.check({**asked})
                size = trial.size or size
        there = len([state for state in folder.glob("[!.]*/") if is_resuming])
        findings += _check_disk(callback, planned, size, free, there)
    return findings, left_out


def _check_disk(save: SaveTrainingStateCallback, planned: Plan, size: int, free: int, there: int) -> Iterator[Finding]:
    most, _ = states_at_once(planned.saves)
    unchanged = min(
        size, sum(part.frozen_bytes for part in planned.parameters)
    )  # hard links to the files of the first state
    needed = max(0, most - there) * (size - unchanged) + unchanged * (not there)
    if needed > free:
        yield noticed(
            "disk-too-small",
            f"The training states do not fit on the disk: up to {most} of {size_of(size)} exist at the same time, "
            f"{size_of(needed)} in all, and {save.save_dir} has {size_of(free)} of free space.",
            "Pass a smaller max_checkpoints, save less often, or choose another save_dir.",
        )


class _SaveOnce(SaveTrainingStateCallback):
    """Saves after the first update, and ends the run after the second, when all values differ from the saved state."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, save_every_n_steps=1, save_at_end=False)
        self.saved: dict[str, Any] | None = None

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        if update > 1:
            raise StopTrainingError("The state is saved.")
        super().on_optimizer_step_end(trainer, update, **kwargs)

    @override
    def on_training_state_save(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.saved = copy.deepcopy(_state_of(trainer))


class _HasState(TrainerCallback):
    """Has the state of another callback, which is not called."""

    def __init__(self, callback: Any) -> None:
        self.callback = callback

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the state of the callback."""
        state: dict[str, Any] = self.callback.state_dict()
        return state

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state into a copy of the callback."""
        self.callback = copy.deepcopy(self.callback)
        self.callback.load_state_dict(state_dict)


class _Trial:
    """Saves a state in a run of two updates, and loads it.

    Args:
        trainer: The trainer.
        folder: An empty folder.
        callbacks: The callbacks of the run.

    Attributes:
        size: The bytes of the state on the disk; 0 if there is none.
    """

    def __init__(self, trainer: Trainer[Any, Any, Any, Any], folder: Path, callbacks: Sequence[object]) -> None:
        self.size = 0
        self._trainer, self._folder = trainer, folder
        self._states = stand_ins(callbacks)

    def check(self, asked: dict[str, Any]) -> Iterator[Finding]:
        """Yield findings about saving and loading.

        Args:
            asked: The arguments of ``train``.
        """
        trainer, save = self._trainer, _SaveOnce(self._folder)
        with trial(trainer, *self._states, save, data=asked.values()):
            with warnings.catch_warnings():  # the run itself will warn
                warnings.simplefilter("ignore")
                try:
                    trainer.train(**asked)
                except Exception as error:
                    yield _not_saved(error)
                    return
            if save.saved is None:  # the run ended before
                return
            state = self._folder / "step_1"
            self.size = sum(-(-file.stat().st_size // _BLOCK) * _BLOCK for file in state.iterdir())
            yield from self._check_loading(state, save.saved)

    def _check_loading(self, state: Path, saved: dict[str, Any]) -> Iterator[Finding]:
        different: list[str] = []
        try:
            self._trainer.load_training_state(state)
            different += _differences(saved, _state_of(self._trainer))
            of_callbacks: dict[str, Any] = load(state)["callbacks"]
            for owner in self._states:
                before = copy.deepcopy(owner.state_dict())
                owner.load_state_dict(of_callbacks[_name(owner)])
                different += _differences(before, owner.state_dict(), type(owner).__qualname__)
        except Exception as error:
            saw = f"A saved training state cannot be loaded: {_all_of(error)}"
            yield noticed("state-not-loaded", saw, "Correct load_state_dict() of the object that the error names.")
        if different:
            yield noticed(
                "state-not-loaded",
                f"Loading a training state does not restore {', '.join(different[:_SHOWN])}.",
                "Let load_state_dict() restore all values that state_dict() returns.",
            )


def _state_of(trainer: AnyTrainer) -> dict[str, Any]:
    return {
        "models": {name: model.state_dict() for name, model in trainer.named_models().items()},
        "optimizers": {name: optimizer.state_dict() for name, optimizer in trainer.named_optimizers().items()},
        "schedulers": {name: scheduler.state_dict() for name, scheduler in trainer.named_schedulers().items()},
    }


def stand_ins(callbacks: Sequence[object]) -> list[_HasState]:
    """Return callbacks that have the states of others under their names, and do nothing else.

    Args:
        callbacks: The callbacks of the run.
    """
    made: list[_HasState] = []
    for callback in callbacks:
        if hasattr(callback, "state_dict") and hasattr(callback, "load_state_dict"):
            kind = type(callback)
            named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
            made.append(cast("type[_HasState]", type(kind.__name__, (_HasState,), named))(callback))
    return made


def check_capture(run: AnyTrainer, folder: str) -> Iterator[Finding]:
    """Yield a finding if the state of a run cannot be saved, once its block was entered.

    Args:
        run: The run, with stand-ins as callbacks.
        folder: An empty folder.
    """
    try:
        run.reserve_state_folder(folder)
    except Exception as error:
        yield _not_saved(error)


def _not_saved(error: Exception) -> Finding:
    # a missing attribute may be set when the run begins
    level: Literal["mistake", "note"] = "note" if isinstance(error, AttributeError) else "mistake"
    do = "Let each state_dict() return tensors and plain values, such as numbers, strings, lists and dictionaries."
    return noticed("state-not-saved", f"A training state cannot be saved: {_all_of(error)}", do, level)


def _name(callback: object) -> str:
    return f"{type(callback).__module__}.{type(callback).__qualname__}"


def _differences(saved: Any, other: Any, place: str = "") -> Iterator[str]:
    """Yield the places where two states differ; a tuple is saved as a list."""
    if isinstance(saved, Tensor) and isinstance(other, Tensor):
        if not is_same(saved, other.to(saved.device)):
            yield place
    elif isinstance(saved, Mapping) and isinstance(other, Mapping):
        before, after = entries(cast("object", saved)), entries(cast("object", other))
        for key, value in before.items():
            yield from _differences(value, after.get(key), f"{place}.{key}" if place else str(key))
    elif isinstance(saved, (list, tuple)) and isinstance(other, (list, tuple)):
        parts, others = list(cast("Sequence[Any]", saved)), list(cast("Sequence[Any]", other))
        if len(parts) != len(others):
            yield place
        for number, (part, counterpart) in enumerate(zip(parts, others, strict=False)):
            yield from _differences(part, counterpart, f"{place}.{number}")
    elif repr(cast("object", saved)) != repr(cast("object", other)):
        yield place


def _all_of(error: Exception) -> str:
    return " ".join(str(error).split()) if isinstance(error, CheckpointError) else f"{first_line(error)}."
