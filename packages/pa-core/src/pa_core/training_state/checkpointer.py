"""Saving training states of a run at safe points."""

from __future__ import annotations

import copy
import os
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from pa_checkpoint import Folder, FolderLock, RemoteFolder, Writer
from pa_core import distributed
from pa_core._attributes import temporarily
from pa_core._tensors import missing_methods
from pa_core.data.custom_loader import innermost, is_dataloader, is_keyed
from pa_core.distributed.collectives import raise_on_all
from pa_core.distributed.rank_sync import RankSync
from pa_core.errors import (
    CheckpointError,
    ConfigurationError,
    NonFiniteLossError,
    OtherProcessError,
    StopTrainingError,
    TrainingPreempted,
)
from pa_core.training_state.model_state import TrainedLayers
from pa_core.training_state.own_buffers import OwnBuffers
from pa_core.training_state.progress import Phase, Position, Progress
from pa_core.training_state.resume import ResumePlan
from pa_core.training_state.run_state import capture, find_extension, pack_by_optimizer
from pa_core.training_state.saved_runs import newest_state
from pa_core.training_state.script_state import RunScriptState
from pa_core.training_state.snapshotable import ResumableRun
from pa_core.types import SupportsStateDict
from pa_core.user_warnings import warn_user
from pa_data.rng import capture_rng_state


class CheckpointedRun(Protocol):
    """The parts of a run that determine when and how states are saved.

    Attributes:
        progress: The counters of the run.
        resumption: The beginning of the run: its saved state, if it resumed.
        rank_sync: The requests of the processes for a training state, or for the end of the run.
    """

    progress: Progress
    resumption: ResumePlan
    rank_sync: RankSync

    @property
    def shares_buffers(self) -> bool:
        """Whether all processes have the same buffers of the models."""
        ...

    @property
    def scaler(self) -> SupportsStateDict | None:
        """The fp16 gradient scaler."""
        ...

    def reference_items(self) -> dict[str, float | None]:
        """Return the reference number of items of an update of each optimizer, by name; None if samples are counted."""
        ...


class StateRequest(NamedTuple):
    """A request for a training state.

    Attributes:
        directory: The directory of the state.
        extras: Further entries, with their values at the time of the request.
        asynchronous: Whether training continues while the state is written.
        sequence: The number of the state among the states of a folder.
        on_saved: A function that is called with the directory, on the process that writes, after the state is complete.
        keeps_other_runs: Whether an existing state of another run is kept, and the new state gets a similar name.
        may_fail: Whether the run continues if the state cannot be written.
    """

    directory: Path
    extras: Mapping[str, Any]
    asynchronous: bool = False
    sequence: int = 0
    on_saved: Callable[[Path], object] | None = None
    keeps_other_runs: bool = False
    may_fail: bool = False


class _UnderWay(NamedTuple):
    """A state that is being written: its number in the run, the path on the first process, and its update."""

    number: int
    path: Path
    update: int


class _Evaluation(NamedTuple):
    """An evaluation that may be interrupted: the phase after an interruption, and the RNG state before it."""

    phase: Phase
    rng_state: Mapping[str, Any]
    eval_sets: tuple[str, ...]


class EvaluationInterrupted(BaseException):
    """Aborts an evaluation. A ``BaseException``, so that a user's ``except Exception`` does not swallow it.

    It unwinds the evaluation before a state is saved: a callback that swaps the weights during an evaluation has
    restored them by then.
    """


class Checkpointer:
    """Saves training states at safe points, at which all parts of a run belong to the same update.

    A run sets ``next_phase`` when all of its parts belong to the same update, and to None when it begins an operation
    that cannot be repeated, for example an update. At a safe point, it calls ``checkpoint`` if ``RankSync.is_pending``.
    Evaluations can be repeated, and may be interrupted by a preemption: the state then comes from before the
    evaluation.

    The same object is used for all runs of a trainer, and each run calls ``start_run``.

    Attributes:
        next_phase: The next phase of the run, at a safe point; None elsewhere.
        registered: Further objects that are part of each state, in this order.
        ended_by: The class of the exception that ended the run; None while it runs and after a regular end. The
            exception itself is not kept, because its traceback would keep the batch and the graph of the last step in
            memory.
        is_between_steps: Whether an update is complete, and its last event is being called, so that an evaluation may
            be interrupted here.
        unchecked_optimizers: The names of the optimizers to check after their first update.
    """

    def __init__(self) -> None:
        self.registered: list[SupportsStateDict] = []
        self._writer = Writer()
        self._last_may_fail = False
        self._under_way: _UnderWay | None = None  # of the last run, if a script saved it after the run
        self._is_announcing = False
        self._folders: dict[Path, FolderLock | None] = {}  # reserved for the run; the first process locks them
        self._stores: list[RemoteFolder] = []
        self._has_trained = False
        self._layers: TrainedLayers | None = None

    # The course of a run

    def start_run(self, run: CheckpointedRun) -> None:
        """Drop the state of the previous run.

        Args:
            run: The new run.
        """
        self._state = run
        self.next_phase: Phase | None = None
        self.ended_by: type[BaseException] | None = None
        self.is_between_steps: bool = False
        self.unchecked_optimizers: set[str] = set()
        self._script: RunScriptState | None = None
        self._buffers = OwnBuffers()
        self._requests: list[tuple[StateRequest, dict[str, Any]]] = []  # with copies of their extras
        self._num_states = 0
        self._rng_state: Mapping[str, Any] | None = None
        self._num_evaluations = 0
        self._evaluation: _Evaluation | None = None
        self._interrupted: _Evaluation | None = None

    def record_layers(self, run: ResumableRun) -> None:
        """Record the parameters of the optimizers.

        Args:
            run: The run, before its first hook is called.
        """
        self._has_trained = True
        self._layers = TrainedLayers(run)

    def record_start(self, run: ResumableRun) -> None:
        """Record the state that the script keeps besides the parts of the run.

        Args:
            run: The run, once all hooks and callbacks of its start were called.
        """
        self._script = RunScriptState(run, self.registered)

    def check_layers(self, run: ResumableRun) -> None:
        """Raise an error for layers that were replaced within the run.

        Args:
            run: The run, between two updates.

        Raises:
            ConfigurationError: The optimizers train parameters that no model has.
        """
        if self._layers is not None:
            self._layers.check(run)

    def has_changed(self, loss_func: nn.Module) -> bool:
        """Return whether a loss function has weights, or buffers that the last run changed.

        Args:
            loss_func: The loss function, a module.
        """
        return any(True for _ in loss_func.parameters()) or (
            self._layers is not None and self._layers.changed_in(loss_func)
        )

    def checkpoint(self, run: ResumableRun, call: Callable[..., object]) -> None:
        """Save the requested states, and announce a state that is complete by now, at a safe point.

        Args:
            run: The run.
            call: A function that calls the listeners of an event by its name, which may stop the run.

        Raises:
            TrainingPreempted: A process requested a preemption before the run was complete; the states that callbacks
                requested are saved.
            CheckpointError: A state could not be written.
            OSError: A state could not be written.
        """
        rank_sync = self._state.rank_sync
        is_saved, is_preempted = rank_sync.pop_requests()
        # A run that is complete must not be started again: the process ends as if no preemption had been requested.
        is_preempted = is_preempted and self.next_phase is not Phase.COMPLETE
        try:
            if self._under_way is not None and self._under_way.number <= rank_sync.num_durable:
                self._complete_last(call)
            if is_saved:
                call("on_training_state_request", update=self._state.progress.updates)
            if is_preempted:
                call("on_preemption")
            if self._requests:
                self._save_requested(run, call)
        finally:
            rank_sync.is_pending |= bool(self._requests)  # if a callback stopped the run
        if is_preempted:
            self.settle(call)
            raise TrainingPreempted(*rank_sync.preempt.pop_cause())
        self._interrupted = None

    def end(self, exception: BaseException, device: torch.device) -> None:
        """Record the exception that ends the run, and the RNG state, because the script may draw from now on.

        Args:
            exception: The exception.
            device: The device of the run.
        """
        self.ended_by = type(exception)
        if self.next_phase is not None:
            self._rng_state = capture_rng_state(device)

    def settle(self, call: Callable[..., object]) -> None:
        """Wait for a state that is written in the background, and check that the folders still belong to this run.

        Args:
            call: A function that calls the listeners of an event by its name.

        Raises:
            CheckpointError: The state could not be written, or a folder was moved, replaced, removed or acquired by
                another run.
            OSError: The state could not be written.
        """
        self._complete_last(call)
        if self._folders:
            with _raising_on_all():
                for lock in filter(None, self._folders.values()):
                    lock.check()

    def abandon(self, failure: BaseException) -> None:
        """Let a save in the background finish when the run fails, without communication.

        Args:
            failure: The error that ends the run; notes about missing states are added to it.
        """
        self.drop_requests(failure)
        try:
            self._writer.wait()
        except (CheckpointError, OtherProcessError, OSError) as error:
            failure.add_note(f"Besides, the last training state could not be written: {error}")

    def drop_requests(self, failure: BaseException) -> None:
        """Add notes about requested states that are not saved to the error that ends a run.

        Args:
            failure: The error that ends the run.
        """
        for request, _ in self._requests:
            failure.add_note(
                f"The training state {request.directory} was requested but not saved: the run ended before its next "
                "safe point."
            )
        self._requests.clear()

    # Evaluations

    def evaluating(self) -> AbstractContextManager[None]:
        """Return the context of an evaluation, which may be within another evaluation."""
        return temporarily(self, _num_evaluations=self._num_evaluations + 1)

    @contextmanager
    def interruptible(self, phase: Phase, run: ResumableRun, eval_sets: Sequence[str | None] = ()) -> Generator[None]:
        """Allow interrupting an evaluation within the context, which the resumed run repeats.

        It has no effect if the run is not preemptible, in another evaluation, or, mid-epoch, within an update.

        Args:
            phase: The phase after an interruption: ``EVALUATION`` or ``INTERMEDIATE_EVALUATION``.
            run: The run.
            eval_sets: The evaluation sets that the resumed run then evaluates; None for a single dataset.

        Raises:
            EvaluationInterrupted: The evaluation was interrupted.
        """
        is_nested = self._evaluation is not None or self._num_evaluations > 0
        if not run.preemptible or is_nested or (phase.is_mid_epoch and not self.is_between_steps):
            yield
            return
        named = tuple(name for name in eval_sets if name is not None)
        self._evaluation = _Evaluation(phase, capture_rng_state(run.device), named)
        try:
            yield
        except EvaluationInterrupted:
            self._interrupted = self._evaluation
            raise
        finally:
            self._evaluation = None

    def interrupt_evaluation_if_requested(self, run: ResumableRun, call: Callable[..., object]) -> None:
        """Interrupt an evaluation between two batches if the run is preempted, after the same batch on all processes.

        Args:
            run: The run.
            call: A function that calls the listeners of an event by its name.

        Raises:
            EvaluationInterrupted: A process requested preemption.
        """
        if self._evaluation is None or self._num_evaluations > 1:
            return
        # Custom loaders of other kinds may have different numbers of batches on each process.
        if distributed.num_processes() == 1 or is_dataloader(innermost(run.eval_dataloader)):
            call("on_preemption_check")
            self._state.rank_sync.agree_on_preemption()
        if self._state.rank_sync.preempt.is_agreed:
            raise EvaluationInterrupted

    # States

    def reserve_folder(self, folder: Path, report: Callable[[str], None], upload_to: str | None = None) -> Path | None:
        """Reserve a folder for this run until it ends.

        Args:
            folder: The path of the folder, without symbolic links.
            report: A function that prints the reason if this takes time.
            upload_to: The URL of an object store to which the states of the folder are sent.

        Returns:
            The state that the run continues, on the first process; see ``AnyTrainer.reserve_state_folder``.

        Raises:
            FolderInUseError: Another run uses the folder.
            CheckpointError: The lock of the folder cannot be written, or the object store cannot be used.
            OSError: The folder cannot be created or written to.
        """
        resumption = self._state.resumption
        with _raising_on_all():
            if folder not in self._folders:
                self._folders[folder] = self._lock(folder, report, upload_to) if distributed.rank() == 0 else None
            resumption.choose_name(self._folders, self._stores)
            for store in self._stores:
                store.register(resumption.name)
        state, newest = resumption.continued_state, newest_state(folder, resumption.name)
        is_continued = state is not None and newest is not None and os.path.realpath(state) == os.path.realpath(newest)
        return newest if is_continued else None

    def release_folders(self) -> None:
        """Release the folders, after all states are written."""
        for lock in filter(None, self._folders.values()):
            lock.release()
        self._folders.clear()
        self._stores.clear()

    def _lock(self, folder: Path, report: Callable[[str], None], upload_to: str | None) -> FolderLock:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        lock = FolderLock(folder, report)
        if upload_to is not None:
            store = RemoteFolder(upload_to)
            store.check()
            self._stores.append(store)
        return lock

    def request(self, request: StateRequest) -> None:
        """Request a state at the next safe point.

        Args:
            request: The state.

        Raises:
            ConfigurationError: There was no training yet, or the last state is being announced.
            CheckpointError: A further entry cannot be stored.
        """
        self._require_training()
        if self._is_announcing:
            raise ConfigurationError(
                "save_training_state() was called in on_training_state_saved, which each state causes again.",
                do="Call it in on_optimizer_step_end, for example.",
            )
        self._writer.check({"extras": request.extras})
        self._state.rank_sync.is_pending = True
        self._requests.append((request, copy.deepcopy(dict(request.extras))))

    def save(self, request: StateRequest, run: ResumableRun, call: Callable[..., object]) -> None:
        """Save a state of a run that has ended.

        Args:
            request: The state.
            run: The run.
            call: A function that calls the listeners of an event by its name.

        Raises:
            ConfigurationError: There was no training yet.
            CheckpointError: The run cannot be resumed from its end, or the state cannot be written.
            OSError: The state cannot be written.
        """
        self._require_training()
        self._require_phase()
        self.request(request)
        self._save_requested(run, call)

    def check(self, run: ResumableRun) -> None:
        """Raise an error for objects that cannot be saved; optimizers are checked again after their first update.

        Args:
            run: The run.

        Raises:
            CheckpointError: The state contains an object that is neither a tensor nor plain, or that could not be
                loaded again.
        """
        for scheduler in run.named_schedulers().values():
            _check_scheduler(scheduler)
        parts = self._capture(run, self._state.progress.position(Phase.EPOCH))
        optimizers = run.named_optimizers()
        for name, optimizer in optimizers.items():
            _check_state_of_optimizer(optimizer, parts["optimizers"][name]["state"])
        self._writer.note(parts)
        self.unchecked_optimizers = set(optimizers)

    def check_optimizer(self, name: str, run: ResumableRun) -> None:
        """Raise an error for an optimizer whose state could not be saved, after its first update.

        Args:
            name: The name of an unchecked optimizer.
            run: The run.

        Raises:
            CheckpointError: The state cannot be stored.
        """
        self.unchecked_optimizers.remove(name)
        optimizer = run.named_optimizers()[name]
        _check_state_of_optimizer(optimizer, optimizer.state_dict())

    def _require_training(self) -> None:
        if not self._has_trained:
            raise ConfigurationError(
                "save_training_state() was called before a training run. Call save_checkpoint() to save a model that "
                "was not trained here."
            )

    def _save_requested(self, run: ResumableRun, call: Callable[..., object]) -> None:
        self.check_layers(run)
        self._complete_last(call)
        phase = self._require_phase()
        if phase is not Phase.COMPLETE:
            with self._state.rank_sync.together():
                call("on_training_state_save")
        position = self._state.progress.position(phase if self._interrupted is None else self._interrupted.phase)
        if self._interrupted is not None:
            position = position._replace(eval_sets=self._interrupted.eval_sets)
        parts = self._capture(run, position)
        requests, self._requests = self._requests, []
        for request, extras in requests:
            self._complete_last(call)
            self._write(request, {**parts, "extras": extras}, position)
            if not request.asynchronous:
                self._complete_last(call)

    def _write(self, request: StateRequest, parts: Mapping[str, Any], position: Position) -> None:
        self._last_may_fail = request.may_fail
        run, directory, rank_sync = self._state.resumption.name, request.directory, self._state.rank_sync
        if request.keeps_other_runs:
            directory = Folder(directory.parent).path_for(directory.name, run)
        self._num_states += 1
        number = self._num_states

        def record(path: Path) -> None:
            if request.on_saved is not None:
                request.on_saved(path)
            rank_sync.record_written(number)

        of_first = distributed.gather_objects(directory)[0]
        with self._warning_of_last_one():
            self._writer.save(
                directory,
                parts,
                summary=_summary(request, position, run),
                blocking=not request.asynchronous,
                lock=self._folders.get(directory.parent),
                on_saved=record,
            )
            self._under_way = _UnderWay(number, of_first, position.updates)

    def _complete_last(self, call: Callable[..., object]) -> None:
        """Wait for the state that is being written, and announce it if it is complete.

        Raises:
            CheckpointError: The state could not be written.
            OSError: The state could not be written.
        """
        state, self._under_way, is_written = self._under_way, None, False
        with self._warning_of_last_one():
            self._writer.wait()
            is_written = True
        if state is None or not is_written:
            return
        self._is_announcing = True
        try:
            call("on_training_state_saved", path=state.path, update=state.update)
        except StopTrainingError:
            if self.next_phase not in (None, Phase.COMPLETE):  # it would have no effect on a run that has ended
                raise
        finally:
            self._is_announcing = False

    @contextmanager
    def _warning_of_last_one(self) -> Generator[None]:
        """If a state that may fail cannot be written, warn on the process that writes it, and raise no error."""
        try:
            yield
        except (CheckpointError, OtherProcessError, OSError) as error:
            if not self._last_may_fail:
                raise
            if not isinstance(error, OtherProcessError):
                given = f" ({error.given})" if isinstance(error, CheckpointError) else ""
                problem = error.problem.rstrip(".") if isinstance(error, CheckpointError) else str(error)
                warn_user(f"{problem}{given}. The run continues without this state, and tries again with the next.")

    def _capture(self, run: ResumableRun, position: Position) -> dict[str, Any]:
        """Return the parts of a training state without further entries, by reference; every process must call this."""
        state, resumption = self._state, self._state.resumption
        loader, settings = innermost(run.train_dataloader), resumption.settings or {}
        extension = find_extension(run, position, state.progress)
        if resumption.was_complete and resumption.saved is not None:
            extension = resumption.saved.extension
        is_mid_epoch = position.phase.is_mid_epoch or (extension is not None and extension.position.phase.is_mid_epoch)
        loaders = resumption.loaders.capture(run, mid_epoch=is_mid_epoch)
        parts = capture(run, self.registered, state.scaler, state.shares_buffers)
        parts["run"] = {
            "position": position.to_dict(),
            "seed": resumption.seed,
            # other classes of orders are in the settings
            "algorithm": loader.order.algorithm if is_keyed(loader) and "order" not in settings else None,
            "settings": dict(settings),
            "hyperparameters": pack_by_optimizer(resumption.hyperparameters),
            "nominal_items": pack_by_optimizer(state.reference_items()),
            "extension": None if extension is None else extension.to_dict(),
        }
        rng_state = self._rng_state if self._interrupted is None else self._interrupted.rng_state
        of_process = {
            "streams": rng_state or capture_rng_state(run.device),
            "losses": run.loss_tracker.totals().cpu(),
            "step_means": run.step_means.totals(),
            "loaders": loaders,
            "script": {} if self._script is None else self._script.capture(run, parts, self.registered),
            "buffers": {} if self._script is None else self._buffers.capture(run, state.shares_buffers),
        }
        return {**parts, "ranks": distributed.gather_objects(of_process)}

    def _require_phase(self) -> Phase:
        """Return the next phase of a run that has ended.

        Raises:
            CheckpointError: The run cannot be resumed from its end.
        """
        # A preemption ends all processes at the same position; other exceptions end each at its own.
        is_together = self.ended_by is None or issubclass(self.ended_by, TrainingPreempted)
        ended_apart = distributed.num_processes() > 1 and not is_together
        if self.next_phase is not None and not ended_apart:
            return self.next_phase
        raise CheckpointError(
            "The run cannot be resumed from its end, so its training state is not saved.",
            given=f"save_training_state() {_when(self.ended_by)}",
            expected="a run that is in progress, complete, or that ended between two updates",
            do=_advice(self.ended_by),
        )


def _when(ended_by: type[BaseException] | None) -> str:
    if ended_by is None:
        return "after a run without training, for example evaluate()"
    kind, processes = ended_by.__name__, distributed.num_processes()
    if processes > 1:
        return f"after {kind} ended the run on {processes} processes, each at its own position"
    return f"after {kind} ended the run in the middle of an update, an epoch's events or an evaluation"


def _advice(ended_by: type[BaseException] | None) -> str:
    if ended_by is None:
        return "Save the state before calling evaluate(), or at the end of the training run."
    if issubclass(ended_by, NonFiniteLossError):
        return "Resume from an earlier state, with other settings."
    if issubclass(ended_by, KeyboardInterrupt):
        return (
            'Pass SaveTrainingStateCallback(..., stop_on_signals=("SIGINT",)): Ctrl-C then ends the run after the '
            "update, with a state."
        )
    return "Resume from an earlier state of SaveTrainingStateCallback(..., save_every_n_steps=...)."


def _summary(request: StateRequest, position: Position, run: str) -> dict[str, str | int | bool]:
    return {
        "run": run,
        "sequence": request.sequence,
        "update": position.updates,
        "epoch": position.epochs,
        "complete": position.phase is Phase.COMPLETE,
        "saved_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "torch": str(torch.__version__),
    }


@contextmanager
def _raising_on_all() -> Generator[None]:
    """Raise the error of any process within the context on all processes, because all of them lack the state."""
    problem: Exception | None = None
    try:
        yield
    except (CheckpointError, OSError) as error:
        problem = error
    raise_on_all(problem)


def _check_scheduler(scheduler: object) -> None:
    """Raise an error for a scheduler whose state cannot be saved and loaded.

    Raises:
        CheckpointError: It lacks ``state_dict`` or ``load_state_dict``.
    """
    if lacking := missing_methods(scheduler):
        raise CheckpointError(
            "The scheduler cannot be part of a training state.",
            given=f"{type(scheduler).__name__} without {' and '.join(lacking)}",
            do=f"Give {type(scheduler).__name__} these methods.",
        )


def _check_state_of_optimizer(optimizer: Optimizer, state: object) -> None:
    """Raise an error for an optimizer whose current state could not be stored.

    Args:
        optimizer: The optimizer. Most optimizers create their state in the first update.
        state: The state.

    Raises:
        CheckpointError: The state contains an object that is neither a tensor nor plain.
    """
    try:
        Writer.check({"optimizer": state})
    except CheckpointError as error:
        raise CheckpointError(
            "The state of the optimizer cannot be stored in a training state.",
            given=f"{type(optimizer).__name__} with {error.given}",
            expected=error.expected,
            do="Use an optimizer whose state consists of plain tensors, like torch.optim.AdamW, or save no training "
            "states: trainer.save_model() saves the weights.",
        ) from error
