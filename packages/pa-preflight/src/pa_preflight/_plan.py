"""Plans a run without training."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, overload

from torch import Tensor, nn
from typing_extensions import override

from pa_core import (
    AnyTrainer,
    LimitBatchesCallback,
    LimitEvalStepsCallback,
    Run,
    SaveTrainingStateCallback,
    StepBasedEvaluationCallback,
    StopTrainingError,
    Trainer,
    TrainerCallback,
)
from pa_core.types import SizedIterable
from pa_preflight._arguments import Trains, arguments_of, ignore, is_run, require_alone, trial, with_methods
from pa_preflight._findings import first_line
from pa_preflight._memory import TracedUpdate, trace_update
from pa_preflight._plan_rates import (
    bytes_of,
    epochs_of,
    follows_from_metrics,
    rates_of,
    states_after_update,
    steps_after,
)
from pa_preflight._plan_records import (
    Plan,
    PlannedDisk,
    PlannedEpoch,
    PlannedEvaluation,
    PlannedMemory,
    PlannedParameters,
    PlannedRates,
    PlannedSave,
    PlannedSeconds,
)
from pa_preflight._tensors import parameters_of
from pa_preflight._timing import Timing

_P = ParamSpec("_P")

_ResultT = TypeVar("_ResultT")

_REST_OF_STATE, _BYTES_A_TENSOR = 18_500, 200
"""The bytes of a training state in addition to its tensors: random states and settings; names and sizes of tensors."""

_CallbackT = TypeVar("_CallbackT")

PLANNED = (LimitBatchesCallback, LimitEvalStepsCallback, SaveTrainingStateCallback, StepBasedEvaluationCallback)
"""The callbacks whose actions are planned."""


@overload
def plan(trainer: Run[Any, Any]) -> Plan: ...


@overload
def plan(trainer: Trains[_P], *args: _P.args, **kwargs: _P.kwargs) -> Plan: ...


def plan(trainer: Any, *args: Any, **kwargs: Any) -> Plan:
    """Predict the updates, evaluations, training states, learning rates, memory and time of a run.

    Call it before a long run, and print the result. To look for mistakes, call `check` instead. It first trains and
    evaluates some batches for a few seconds, to time them. The rest is computed without training. The memory is
    computed from an update with tensors that have shapes but no values, and the learning rates by stepping the
    scheduler on a copy of the optimizer. Afterwards, everything is restored, as after ``trainer.dry_run()``, so you can
    then call ``trainer.train`` with the same arguments.

    The plan takes account of ``pa_core``'s callbacks that limit a run, evaluate, or save. Only the callbacks that limit
    a run and ``MoveModulesToDeviceCallback`` are called. The run differs from its plan if callbacks end it early or
    change its loaders, or if gradients overflow.

    Args:
        trainer: The trainer of the run; or a ``Run`` before its ``with`` block, without further arguments.
        *args: The positional arguments of ``trainer.train``.
        **kwargs: The keyword arguments of ``trainer.train``.

    Returns:
        The ``Plan``, which ``print`` shows as a table. Its attributes ``updates``, ``epochs``, ``evaluations``,
        ``saves``, ``rates``, ``memory`` (in bytes), ``disk`` (in bytes), ``seconds`` and others are described in
        ``Plan``.

    Raises:
        ArgumentTypeError: ``trainer`` is not a ``Trainer``, or ``train`` does not take these arguments. The error is
            also a ``TypeError``.
        UnsupportedConfigurationError: There are several processes, or the model is sharded. The error is also a
            ``RuntimeError``.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from pa_core import Trainer
        >>> from pa_core.testing import make_regression
        >>> from pa_preflight import plan
        >>> model = nn.Linear(4, 1)
        >>> trainer = Trainer(model, nn.MSELoss(), torch.optim.Adam(model.parameters(), lr=0.1), callbacks=[])
        >>> planned = plan(trainer, make_regression(100), num_epochs=2, gradient_accumulation_steps=2)
        >>> planned.epochs[0].batches, planned.epochs[0].updates
        (13, 7)
        >>> planned.memory.optimizer  # bytes
        48
    """
    if is_run(trainer):
        return _plan_run(trainer, *args, **kwargs)
    return plan_of(*arguments_of("plan", trainer, args, kwargs))


def _plan_run(run: Run[Any, Any]) -> Plan:
    require_alone("plan", run)
    callbacks = list[Any](run.callback_handler.callbacks)
    stepping = {"step_scheduler": run.step_scheduler, "watch_metric": run.watch_metric}
    planner = _Planner(callbacks, {**stepping, "resume_from": None, "sanity_eval_steps": 0})
    planner.notes += [
        "The loop of the script does not run, so its evaluations, and updates that it leaves out, are not known."
    ]
    limits = [callback for callback in callbacks if type(callback) is LimitBatchesCallback]
    with run.dry_run(), run.callback_handler.replaced_by([*limits, planner]), run:
        next(run.updates(), None)
    return planner.plan


def plan_of(trainer: Trainer[Any, Any, Any, Any], given: Mapping[str, Any], *, is_timed: bool = True) -> Plan:
    """Return the plan of a run.

    Args:
        trainer: The trainer.
        given: The arguments of the run, by name.
        is_timed: Whether updates and evaluations are timed, and an update is traced for its memory.
    """
    asked: dict[str, Any] = {**given, "resume_from": None, "sanity_eval_steps": 0}
    callbacks: list[Any] = [*trainer.callback_handler.callbacks]
    if asked["per_device_batch_size"] == "fit":
        fitting = _FittingSize(callbacks)
        _start(trainer, asked, fitting)
        asked["per_device_batch_size"] = fitting.size
    planner = _Planner(callbacks, given, trainer)
    limits = [callback for callback in callbacks if type(callback) is LimitBatchesCallback]
    planner.timing = Timing(trainer, asked, limits) if is_timed else None
    _start(trainer, asked, *limits, planner)
    return planner.plan


def _start(trainer: Trainer[Any, Any, Any, Any], asked: dict[str, Any], *callbacks: TrainerCallback) -> None:
    """Begin a run that a callback ends, and undo it."""
    with trial(trainer, *callbacks, data=asked.values()), with_methods(trainer, training_run_end=ignore):
        trainer.train(**asked)  # without training_run_end, because no training has taken place


class _AmongStates(TrainerCallback):
    """Has the folder of the training states of a run, which may contain a record of batches that did not fit.

    Args:
        callbacks: The callbacks of the run.
    """

    def __init__(self, callbacks: Iterable[TrainerCallback]) -> None:
        for callback in callbacks:
            if isinstance(callback, SaveTrainingStateCallback):
                self.save_dir, self.upload_to = callback.save_dir, callback.upload_to


class _FittingSize(_AmongStates):
    """Ends a run after it has chosen the size of its batches."""

    size: int

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.size = trainer.run_config.train_per_device_batch_size
        raise StopTrainingError("The size is known.")


class _Planner(_AmongStates):
    """Plans a run when its loaders, optimizers and schedulers are ready, and ends it."""

    plan: Plan

    def __init__(
        self,
        callbacks: list[TrainerCallback],
        asked: Mapping[str, Any],
        trainer: Trainer[Any, Any, Any, Any] | None = None,
    ) -> None:
        super().__init__(callbacks)
        self._trainer, self._callbacks, self._asked = trainer, callbacks, asked
        self.timing: Timing | None = None
        self.notes = list(self._left_out())

    def _left_out(self) -> Iterator[str]:
        if self._asked["resume_from"] is not None:
            yield "resume_from is left out: this is the plan of a run from its start."
        for callback in self._callbacks:
            if isinstance(callback, PLANNED) and type(callback) not in PLANNED:
                yield f"{type(callback).__name__} is left out: a subclass may do something else."
            if isinstance(callback, SaveTrainingStateCallback) and callback.save_every_n_seconds is not None:
                yield "The training states of save_every_n_seconds are left out: their times depend on the speed."

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        config, epochs = trainer.run_config, list(epochs_of(trainer))
        if not trainer.epoch_lengths.are_known:
            self.notes.append(
                "The training data has no length: the plan has a single epoch, and the run may have more."
            )
        states = self._attempt("memory of the optimizer", lambda: states_after_update(trainer.named_optimizers()))
        rates = self._attempt("learning rates", lambda: self._rates(trainer, epochs))
        traced, timing, of_run = None, self.timing, self._trainer
        if trainer.reproducible:
            self.notes.append(
                "The memory of an update is left out, because a reproducible run adds up gradients differently."
            )
        elif timing is not None and of_run is not None and timing.is_possible and timing.batch is not None:
            traced = self._attempt("memory of an update", lambda: trace_update(of_run, timing.batch))
        if rates and rates[0].points[-1].update < epochs[-1].ends_at:
            self.notes.append("The last learning rates are left out, because they would take too long.")
        evaluations = [*evaluations_of(trainer, self._callbacks, epochs, self._asked["sanity_eval_steps"])]
        saves, memory = [*saves_of(self._callbacks, epochs)], _memory(trainer, states, traced)
        updates, batches = epochs[-1].ends_at, config.gradient_accumulation_steps
        self.plan = Plan(
            config=config,
            device=str(trainer.device),
            parameters=tuple(_parameters(trainer)),
            samples=_samples(trainer.train_dataloader, epochs[0].batches),
            epochs=tuple(epochs),
            updates=updates,
            evaluations=tuple(evaluations),
            saves=tuple(saves),
            rates=tuple(rates or ()),
            memory=memory,
            disk=disk_of(self._callbacks, saves, memory.saved_state),
            seconds=timing.seconds(batches, updates, evaluations) if timing else PlannedSeconds(None, None, None),
            notes=(*self.notes, *(timing.notes if timing else ())),
        )
        raise StopTrainingError("The run is planned.")

    def _attempt(self, subject: str, compute: Callable[[], _ResultT]) -> _ResultT | None:
        try:
            return compute()
        except Exception as error:
            self.notes.append(f"The {subject} could not be predicted: {first_line(error)}")
            return None

    def _rates(self, trainer: AnyTrainer, epochs: list[PlannedEpoch]) -> list[PlannedRates]:
        if follows_from_metrics(trainer, self._asked):
            self.notes.append("The learning rates are left out: they depend on a metric, or on scheduler_step().")
            return []
        steps = steps_after(epochs, self._asked)
        return rates_of(trainer.named_optimizers(), trainer.named_schedulers(), epochs[-1].ends_at, steps)


def _samples(loader: Any, batches: int) -> int | None:
    """Return the number of samples of the first epoch; None if the loader, or the loader in it, cannot tell."""
    split, sampler = getattr(loader, "split", None), getattr(loader, "sampler", None)
    if split is not None:
        return sum(int(split.size(step)) for step in range(batches))
    size: int | None = getattr(loader, "batch_size", None)
    return min(len(sampler), batches * size) if size is not None and isinstance(sampler, Sized) else None


def _modules(trainer: AnyTrainer) -> list[tuple[str, nn.Module]]:
    """Yield the children of the model, the model for its other parameters, and added modules."""
    model = trainer.get_model(keep_torch_compile=False)
    return [*model.named_children(), ("", model), *trainer.modules.items()]


def _parameters(trainer: AnyTrainer) -> Iterator[PlannedParameters]:
    optimized = set(map(id, parameters_of(trainer.named_optimizers().values())))
    seen: set[int] = set()
    for name, module in _modules(trainer):
        new = [parameter for parameter in module.parameters() if id(parameter) not in seen]
        seen.update(map(id, new))
        trained = [parameter for parameter in new if parameter.requires_grad and id(parameter) in optimized]
        number, memory = sum(parameter.numel() for parameter in trained), bytes_of(trained)
        frozen = sum(parameter.numel() for parameter in new) - number
        if new:
            yield PlannedParameters(name, number, frozen, memory, bytes_of(new) - memory)


def _memory(trainer: AnyTrainer, states: list[Tensor] | None, traced: TracedUpdate | None) -> PlannedMemory:
    weights = [tensor for _, module in _modules(trainer) for tensor in (*module.parameters(), *module.buffers())]
    trained = [parameter for parameter in parameters_of(trainer.named_optimizers().values()) if parameter.requires_grad]
    held = [value for module in trainer.named_models().values() for value in module.state_dict().values()]
    saved = {(tensor.data_ptr(), tensor.shape): tensor for tensor in held if isinstance(tensor, Tensor)}
    rest = _REST_OF_STATE + _BYTES_A_TENSOR * (len(saved) + len(states or ()))
    return PlannedMemory(
        weights=bytes_of(weights),
        gradients=bytes_of(trained),
        optimizer=None if states is None else bytes_of(states),
        activations=None if traced is None else traced.activations,
        peak=None if traced is None else traced.peak,
        peak_on_accelerator=None if traced is None else traced.peak_on_accelerator,
        saved_state=None if states is None else bytes_of([*saved.values(), *states]) + rest,
    )


def evaluations_of(
    trainer: AnyTrainer, callbacks: Iterable[TrainerCallback], epochs: Sequence[PlannedEpoch], sanity_eval_steps: int
) -> Iterator[PlannedEvaluation]:
    """Yield the evaluations of a run.

    Args:
        trainer: The trainer, in the run.
        callbacks: The callbacks of the run.
        epochs: The epochs.
        sanity_eval_steps: The argument of the run.
    """
    loaders: dict[str | None, SizedIterable] = {name: loader for name, loader in trainer.eval_dataloaders.items()}  # noqa: C416  # with None among the keys
    if trainer.eval_dataloader is not None and not loaders:
        loaders = {None: trainer.eval_dataloader}
    every = {name: trainer.eval_sets[name].every_n_epochs if name else 1 for name in loaders}
    first = [(0, [*loaders], sanity_eval_steps, "sanity")] if sanity_eval_steps else []
    for update, names, most, kind in (*first, *_evaluated(callbacks, epochs, every)):
        for name in names:
            yield PlannedEvaluation(update, name, _length(loaders[name], most), kind)


def _evaluated(
    callbacks: Iterable[TrainerCallback], epochs: Sequence[PlannedEpoch], every: Mapping[str | None, int]
) -> Iterator[tuple[int, list[str | None], int | None, str]]:
    """Yield the updates after which each set is evaluated, with a limit on its batches."""
    often, limit = _find(callbacks, StepBasedEvaluationCallback), _find(callbacks, LimitEvalStepsCallback)
    most = None if limit is None else limit.num_eval_steps
    most_after_epoch = None if limit is None or limit.limit_intermediate_only else most
    for number, epoch in enumerate(epochs, 1):
        if often is not None:  # at the last update of an epoch, only the evaluation of the epoch takes place
            chosen = [name for name, n in every.items() if n == 1] if often.eval_names is None else often.eval_names
            names = [name for name in every if name in chosen]
            for update in _multiples(often.eval_every_n_steps, epoch, epoch.ends_at):
                yield update, names, most, "intermediate"
        due = [name for name, n in every.items() if number % n == 0 or number == len(epochs)]
        yield epoch.ends_at, due, most_after_epoch, "epoch"


def saves_of(callbacks: Iterable[TrainerCallback], epochs: Sequence[PlannedEpoch]) -> Iterator[PlannedSave]:
    """Yield the training states of a run.

    Args:
        callbacks: The callbacks of the run.
        epochs: The epochs.
    """
    save, kept = _find(callbacks, SaveTrainingStateCallback), list[str]()
    for update, name in () if save is None else _states(save, epochs):
        kept.append(name)
        most = len(kept) if save is None or save.max_checkpoints is None else save.max_checkpoints
        yield PlannedSave(update, name, tuple(kept[:-most]))
        kept = kept[-most:]


def disk_of(callbacks: Iterable[TrainerCallback], saves: Sequence[PlannedSave], size: int | None) -> PlannedDisk | None:
    """Return the space that training states need on the disk; None without states, or if their size is not known.

    Args:
        callbacks: The callbacks of the run.
        saves: The saved and deleted states.
        size: The bytes of a state.
    """
    save = _find(callbacks, SaveTrainingStateCallback)
    if save is None or size is None or not saves:
        return None
    most, at_end = states_at_once(saves)
    return PlannedDisk(most * size, at_end * size, shutil.disk_usage(existing(save.save_dir)).free)


def states_at_once(saves: Sequence[PlannedSave]) -> tuple[int, int]:
    """Return the largest number of states that exist at the same time, and the number at the end.

    Args:
        saves: The saved and deleted states; a new state is saved before an old state is deleted.
    """
    held = most = 0
    for saved in saves:
        most, held = max(most, held + 1), held + 1 - len(saved.deletes)
    return most, held


def existing(folder: Path) -> Path:
    """Return a folder, or the nearest parent that exists.

    Args:
        folder: A folder that may be made later.
    """
    path = Path(os.path.realpath(folder))
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _states(save: SaveTrainingStateCallback, epochs: Sequence[PlannedEpoch]) -> Iterator[tuple[int, str]]:
    for number, epoch in enumerate(epochs, 1):
        if save.save_every_n_steps is not None:
            for update in _multiples(save.save_every_n_steps, epoch, epoch.ends_at + 1):
                yield update, f"step_{update}"
        if save.save_every_n_epochs is not None and number % save.save_every_n_epochs == 0:
            yield epoch.ends_at, f"epoch_{number}"
    if save.save_at_end:
        yield epochs[-1].ends_at, "final"


def _multiples(step: int, epoch: PlannedEpoch, stop: int) -> range:
    begins_at = epoch.ends_at - epoch.updates
    return range(begins_at - begins_at % step + step, stop, step)


def _find(callbacks: Iterable[TrainerCallback], kind: type[_CallbackT]) -> _CallbackT | None:
    return next((callback for callback in callbacks if type(callback) is kind), None)


def _length(loader: SizedIterable, most: int | None) -> int | None:
    """Return the number of batches to evaluate; None for data without a length."""
    try:
        return min(len(loader), len(loader) if most is None else most)
    except (TypeError, NotImplementedError):
        return None
