"""Says what a run is going to do, without training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, ParamSpec, TypeVar, overload

from torch import Tensor, nn
from typing_extensions import override

from pa_core import (
    AnyTrainer,
    LimitBatchesCallback,
    MoveModulesToDeviceCallback,
    Run,
    SaveTrainingStateCallback,
    StopTrainingError,
    Trainer,
    TrainerCallback,
)
from pa_preflight._arguments import Trains, arguments_of, is_run, is_trainer, require_alone
from pa_preflight._findings import first_line
from pa_preflight._memory import TracedUpdate, trace_update
from pa_preflight._plan_events import PLANNED, disk_of, epochs_of, evaluations_of, saves_of
from pa_preflight._plan_rates import bytes_of, parameters_of, rates_of, states_after_update
from pa_preflight._plan_records import (
    Plan,
    PlannedEpoch,
    PlannedMemory,
    PlannedParameters,
    PlannedRates,
    PlannedSeconds,
)
from pa_preflight._timing import Timing

_P = ParamSpec("_P")
_ResultT = TypeVar("_ResultT")

_REST_OF_STATE, _BYTES_A_TENSOR = 18_500, 200
"""What a training state has besides the memory of its tensors: random states and settings; their names and sizes."""


@overload
def plan(trainer: Run[Any, Any]) -> Plan: ...
@overload
def plan(trainer: Trains[_P], *args: _P.args, **kwargs: _P.kwargs) -> Plan: ...
def plan(trainer: Any, *args: Any, **kwargs: Any) -> Plan:
    """Return what a run is going to do.

    A few updates and batches to evaluate are timed, for some seconds. Then the run is started again, and ended before
    its first batch: an update is made with tensors that have no values, for its memory, and schedulers are stepped on a
    copy of the optimizer. Callbacks of ``pa_core`` that limit, evaluate and save are part of the plan, and no callback
    is called but those that limit and ``MoveModulesToDeviceCallback``. Callbacks that end a run early or change its
    loaders, and gradients that overflow, make the run differ from its plan. Afterwards everything is as it was, as
    after ``trainer.dry_run()``.

    Args:
        trainer: The trainer of the run; or a ``Run`` before its block, without further arguments.
        *args: The arguments of ``trainer.train``.
        **kwargs: As well.

    Raises:
        ArgumentTypeError: ``trainer`` is not a ``Trainer``, or ``train`` does not take these arguments.
        UnsupportedConfigurationError: There are several processes, or the model is sharded.

    Example:
        >>> import torch
        >>> from pa_core.testing import make_regression
        >>> model = nn.Linear(4, 1)
        >>> trainer = Trainer(model, nn.MSELoss(), torch.optim.Adam(model.parameters(), lr=0.1), callbacks=[])
        >>> planned = plan(trainer, make_regression(100), num_epochs=2, gradient_accumulation_steps=2)
        >>> planned.epochs[0].batches, planned.epochs[0].updates, planned.memory.optimizer
        (13, 7, 48)
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
        "The loop of the script is not run: its evaluations, and updates that it leaves out, are not known."
    ]
    limits = [one for one in callbacks if type(one) is LimitBatchesCallback]
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
    limits = [one for one in callbacks if type(one) is LimitBatchesCallback]
    planner.timing = Timing(trainer, asked, limits) if is_timed else None
    _start(trainer, asked, *limits, planner)
    return planner.plan


def _start(trainer: Trainer[Any, Any, Any, Any], asked: dict[str, Any], *callbacks: TrainerCallback) -> None:
    """Begin a run that one of the callbacks ends, and undo it."""
    registered = trainer.callback_handler.replaced_by([MoveModulesToDeviceCallback, *callbacks])
    with trainer.dry_run(*asked.values()), registered:
        vars(trainer)["training_run_end"] = lambda: None  # it would be told of a run that there was not
        trainer.train(**asked)


class _AmongStates(TrainerCallback):
    """Has the folder of what saves the states of a run, where there may be a note of what did not fit.

    Args:
        callbacks: The callbacks of the run.
    """

    def __init__(self, callbacks: Iterable[TrainerCallback]) -> None:
        for one in callbacks:
            if isinstance(one, SaveTrainingStateCallback):
                self.save_dir, self.upload_to = one.save_dir, one.upload_to


class _FittingSize(_AmongStates):
    """Ends a run when it has chosen the size of its batches."""

    size: int

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.size = trainer.run_config.train_per_device_batch_size
        raise StopTrainingError("The size is known.")


class _Planner(_AmongStates):
    """Plans a run when everything is there that it begins with, and ends it."""

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
        for one in self._callbacks:
            if isinstance(one, PLANNED) and type(one) not in PLANNED:
                yield f"{type(one).__name__} is left out: a subclass may do something else."
            if isinstance(one, SaveTrainingStateCallback) and one.save_every_n_seconds is not None:
                yield "The training states of save_every_n_seconds are left out: when they come depends on the speed."

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        config, epochs = trainer.run_config, list(epochs_of(trainer))
        if not trainer.epoch_lengths.are_known:
            self.notes.append("The training data has no length: it is planned as one epoch, and may be more.")
        states = self._attempt("memory of the optimizer", lambda: states_after_update(trainer.named_optimizers()))
        rates = self._attempt("learning rates", lambda: self._rates(trainer, epochs))
        traced, timing, of_run = None, self.timing, self._trainer
        if trainer.reproducible:
            self.notes.append(
                "The memory of an update is left out: a reproducible run adds gradients up in another way."
            )
        elif timing is not None and of_run is not None and timing.is_possible and timing.batch is not None:
            traced = self._attempt("memory of an update", lambda: trace_update(of_run, timing.batch))
        if rates and rates[0].points[-1].update < epochs[-1].ends_at:
            self.notes.append("The last learning rates are left out: it would take too long.")
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

    def _attempt(self, what: str, compute: Callable[[], _ResultT]) -> _ResultT | None:
        try:
            return compute()
        except Exception as error:
            self.notes.append(f"The {what} could not be found without values: {first_line(error)}")
            return None

    def _rates(self, trainer: AnyTrainer, epochs: list[PlannedEpoch]) -> list[PlannedRates]:
        schedulers = trainer.named_schedulers()
        is_own = is_trainer(trainer) and type(trainer).scheduler_step is not Trainer.scheduler_step
        if schedulers and (is_own or self._asked["watch_metric"] is not None):
            self.notes.append("The learning rates are left out: they follow from a metric, or from scheduler_step().")
            return []
        updates, is_by_update = epochs[-1].ends_at, self._asked["step_scheduler"] == "update"
        steps_after = range(1, updates) if is_by_update else {one.ends_at for one in epochs}
        return rates_of(trainer.named_optimizers(), schedulers, updates, steps_after)


def _samples(loader: Any, batches: int) -> int | None:
    """The samples of the first epoch, where the loader, or the one whose first batches it has, can tell."""
    split, sampler = getattr(loader, "split", None), getattr(loader, "sampler", None)
    if split is not None:
        return sum(int(split.size(step)) for step in range(batches))
    size: int | None = getattr(loader, "batch_size", None)
    return min(len(sampler), batches * size) if size is not None and isinstance(sampler, Sized) else None


def _modules(trainer: AnyTrainer) -> list[tuple[str, nn.Module]]:
    """The children of the model, the model for what is its own, and added modules."""
    model = trainer.get_model(keep_torch_compile=False)
    return [*model.named_children(), ("", model), *trainer.modules.items()]


def _parameters(trainer: AnyTrainer) -> Iterator[PlannedParameters]:
    optimized = set(map(id, parameters_of(trainer.named_optimizers().values())))
    seen: set[int] = set()
    for name, module in _modules(trainer):
        new = [one for one in module.parameters() if id(one) not in seen]
        seen.update(map(id, new))
        trained = [one for one in new if one.requires_grad and id(one) in optimized]
        number, memory = sum(one.numel() for one in trained), bytes_of(trained)
        frozen = sum(one.numel() for one in new) - number
        if new:
            yield PlannedParameters(name, number, frozen, memory, bytes_of(new) - memory)


def _memory(trainer: AnyTrainer, states: list[Tensor] | None, traced: TracedUpdate | None) -> PlannedMemory:
    weights = [one for _, module in _modules(trainer) for one in (*module.parameters(), *module.buffers())]
    trained = [one for one in parameters_of(trainer.named_optimizers().values()) if one.requires_grad]
    held = [one for module in trainer.named_models().values() for one in module.state_dict().values()]
    saved = {(one.data_ptr(), one.shape): one for one in held if isinstance(one, Tensor)}
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
