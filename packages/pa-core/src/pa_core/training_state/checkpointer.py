"""Safe points: when a training state of a run may be saved, and what happens at these moments."""

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
    """What decides, of a run, what is saved and when.

    Attributes:
        progress: The counters of the run.
        resumption: Where it began.
        rank_sync: Whether some process requests a training state, or the end of the run.
    """

    progress: Progress
    resumption: ResumePlan
    rank_sync: RankSync

    @property
    def shares_buffers(self) -> bool:
        """Whether all processes have the buffers of the models in common."""
        ...

    @property
    def scaler(self) -> SupportsStateDict | None:
        """The gradient scaler of fp16."""
        ...

    def reference_items(self) -> dict[str, float | None]:
        """Return the reference number of items of an update of each optimizer, by name; None where samples count."""
        ...


class StateRequest(NamedTuple):
    """A training state that someone requested.

    Attributes:
        directory: Where it will be.
        extras: Further entries, as they are when the state is requested.
        asynchronous: Whether training continues while it is written.
        sequence: Its place among the states of a folder.
        on_saved: Called with the directory, by the process that writes, once it is there.
        keeps_other_runs: Whether a state of another run that has the name stays, and this one gets a similar name.
        may_fail: Whether the run continues if it cannot be written.
    """

    directory: Path
    extras: Mapping[str, Any]
    asynchronous: bool = False
    sequence: int = 0
    on_saved: Callable[[Path], object] | None = None
    keeps_other_runs: bool = False
    may_fail: bool = False


class _Evaluation(NamedTuple):
    """An evaluation that may be interrupted: what comes next if it is, and the RNG state before it."""

    phase: Phase
    rng_state: Mapping[str, Any]
    eval_sets: tuple[str, ...]


class EvaluationInterrupted(BaseException):
    """Aborts an evaluation. A ``BaseException``, so that a user's ``except Exception`` does not swallow it.

    It unwinds the evaluation before anything is saved: a callback that swaps the weights for the time of an evaluation
    has put its own back by then.
    """


class Checkpointer:
    """Saves training states at safe points, where everything that a run consists of belongs to the same update.

    A run tells where it is: it sets ``next_phase`` when everything that it consists of belongs to the same update, and
    to None when it begins something that cannot be done a second time, such as an update. At a safe point, it calls
    ``checkpoint`` if ``RankSync.is_pending``. Evaluations cost nothing to repeat, and may be interrupted by a
    preemption: the state is then the one from before the evaluation.

    It is for one run after the other, each of which calls ``start_run``.

    Attributes:
        next_phase: What comes next in the run, at a safe point; None everywhere else.
        registered: Further objects that are part of each state, in this order.
        ended_by: The class of the exception that ended the run; None while it runs and after a regular end. Not the
            exception, whose traceback would keep the batch and the graph of the last step in memory.
        is_between_steps: Whether an update is complete with all that belongs to it, and its last event is being called:
            an evaluation may be interrupted here.
        unchecked_optimizers: The names of the optimizers to check after their first update.
    """

    def __init__(self) -> None:
        self.registered: list[SupportsStateDict] = []
        self._writer = Writer()
        self._last_may_fail = False
        self._folders: dict[Path, FolderLock | None] = {}  # which the run has for itself; the first process locks them
        self._stores: list[RemoteFolder] = []
        self._has_trained = False
        self._layers: TrainedLayers | None = None

    # The course of a run

    def start_run(self, run: CheckpointedRun) -> None:
        """Forget the run before.

        Args:
            run: The new one.
        """
        self._state = run
        self.next_phase: Phase | None = None
        self.ended_by: type[BaseException] | None = None
        self.is_between_steps: bool = False
        self.unchecked_optimizers: set[str] = set()
        self._script: RunScriptState | None = None
        self._buffers = OwnBuffers()
        self._requests: list[tuple[StateRequest, dict[str, Any]]] = []  # with copies of their extras
        self._rng_state: Mapping[str, Any] | None = None
        self._num_evaluations = 0
        self._evaluation: _Evaluation | None = None
        self._interrupted: _Evaluation | None = None

    def record_layers(self, run: ResumableRun) -> None:
        """Record what the optimizers train.

        Args:
            run: The run, before its first hook is called.
        """
        self._has_trained = True
        self._layers = TrainedLayers(run)

    def record_start(self, run: ResumableRun) -> None:
        """Record what the script keeps next to the parts of the run.

        Args:
            run: The run, once all hooks and callbacks of its start were called.
        """
        self._script = RunScriptState(run, self.registered)

    def check_layers(self, run: ResumableRun) -> None:
        """Raise an error for layers that were replaced within the run.

        Args:
            run: The run, between two updates.

        Raises:
            ConfigurationError: The optimizers train what is gone.
        """
        if self._layers is not None:
            self._layers.check(run)

    def has_changed(self, loss_func: nn.Module) -> bool:
        """Return whether a loss function has weights, or buffers that the last run has changed.

        Args:
            loss_func: The loss function, a module.
        """
        return any(True for _ in loss_func.parameters()) or (
            self._layers is not None and self._layers.changed_in(loss_func)
        )

    def checkpoint(self, run: ResumableRun, call: Callable[..., object]) -> None:
        """Save what was requested, at a safe point.

        Args:
            run: The run.
            call: Calls the listeners of an event by its name, which may stop the run.

        Raises:
            TrainingPreempted: Some process requested it before the run was complete; the states that callbacks
                requested are saved.
            CheckpointError: A state could not be written.
            OSError: As above.
        """
        rank_sync = self._state.rank_sync
        is_saved, is_preempted = rank_sync.pop_requests()
        # A run that is complete must not be started again: the process ends as if it had not been asked to leave.
        is_preempted = is_preempted and self.next_phase is not Phase.COMPLETE
        try:
            if is_saved:
                call("on_training_state_request", update=self._state.progress.updates)
            if is_preempted:
                call("on_preemption")
            if self._requests:
                self._save_requested(run, call)
        finally:
            rank_sync.is_pending |= bool(self._requests)  # where a callback has stopped the run
        if is_preempted:
            self.settle()
            raise TrainingPreempted
        self._interrupted = None

    def end(self, exception: BaseException, device: torch.device) -> None:
        """Note the exception that ends the run, and the RNG state, since the script may draw from now on.

        Args:
            exception: What ends it.
            device: The device of the run.
        """
        self.ended_by = type(exception)
        if self.next_phase is not None:
            self._rng_state = capture_rng_state(device)

    def settle(self) -> None:
        """Wait for a state that is written in the background, and see that the folders are still this run's.

        Raises:
            CheckpointError: It could not be written, or a folder was moved, replaced, removed or taken by another run.
            OSError: It could not be written.
        """
        with self._warning_of_last_one():
            self._writer.wait()
        if self._folders:
            with _raising_on_all():
                for lock in filter(None, self._folders.values()):
                    lock.check()

    def abandon(self, failure: BaseException) -> None:
        """Let the writing in the background finish when the run fails, without telling other processes.

        Args:
            failure: Why the run ends; notes are added to it of states that are missing.
        """
        self.drop_requests(failure)
        try:
            self._writer.wait()
        except (CheckpointError, OtherProcessError, OSError) as error:
            failure.add_note(f"Besides, the last training state could not be written: {error}")

    def drop_requests(self, failure: BaseException) -> None:
        """Add notes of the states that were requested and are not saved to the error that ends a run.

        Args:
            failure: Why the run ends.
        """
        for request, _ in self._requests:
            failure.add_note(
                f"The training state {request.directory} was requested but not saved: the run ended before its next "
                "safe point."
            )
        self._requests.clear()

    # Evaluations

    def evaluating(self) -> AbstractContextManager[None]:
        """Return the context of an evaluation, which may be within another one."""
        return temporarily(self, _num_evaluations=self._num_evaluations + 1)

    @contextmanager
    def interruptible(self, phase: Phase, run: ResumableRun, eval_sets: Sequence[str | None] = ()) -> Generator[None]:
        """Let an evaluation be interrupted within the context, for the resumed run to do it again.

        It cannot be where the run is not preemptible, in another evaluation, or, mid-epoch, within an update.

        Args:
            phase: What comes next if it is: ``EVALUATION`` or ``INTERMEDIATE_EVALUATION``.
            run: The run.
            eval_sets: The evaluation sets that the resumed run then evaluates; of a single dataset, None.

        Raises:
            EvaluationInterrupted: It was interrupted.
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

    def interrupt_evaluation_if_requested(self, run: ResumableRun) -> None:
        """Interrupt an evaluation between two batches if the run is to be preempted; all processes after the same one.

        Args:
            run: The run.

        Raises:
            EvaluationInterrupted: One of them does.
        """
        if self._evaluation is None or self._num_evaluations > 1:
            return
        # Custom loaders of other kinds may have another number of batches on each process.
        if distributed.num_processes() == 1 or is_dataloader(innermost(run.eval_dataloader)):
            self._state.rank_sync.agree_on_preemption()
        if self._state.rank_sync.preempt.is_agreed:
            raise EvaluationInterrupted

    # States

    def reserve_folder(self, folder: Path, say: Callable[[str], None], upload_to: str | None = None) -> Path | None:
        """Acquire a folder for this run until it is over.

        Args:
            folder: Its path without symbolic links.
            say: Told why it takes time, where it does.
            upload_to: The URL of an object store to which the states of the folder are sent.

        Returns:
            As ``AnyTrainer.reserve_state_folder``.

        Raises:
            FolderInUseError: Another run uses it.
            CheckpointError: Its lock cannot be written, or the object store cannot be used.
            OSError: It cannot be made or written to.
        """
        resumption = self._state.resumption
        with _raising_on_all():
            if folder not in self._folders:
                self._folders[folder] = self._lock(folder, say, upload_to) if distributed.rank() == 0 else None
            resumption.choose_name(self._folders, self._stores)
            for store in self._stores:
                store.register(resumption.name)
        state, newest = resumption.continued_state, newest_state(folder, resumption.name)
        is_continued = state is not None and newest is not None and os.path.realpath(state) == os.path.realpath(newest)
        return newest if is_continued else None

    def release_folders(self) -> None:
        """Let other runs use the folders, when everything is written."""
        for lock in filter(None, self._folders.values()):
            lock.release()
        self._folders.clear()
        self._stores.clear()

    def _lock(self, folder: Path, say: Callable[[str], None], upload_to: str | None) -> FolderLock:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        lock = FolderLock(folder, say)
        if upload_to is not None:
            store = RemoteFolder(upload_to)
            store.check()
            self._stores.append(store)
        return lock

    def request(self, request: StateRequest) -> None:
        """Have a state saved at the next safe point.

        Args:
            request: The state.

        Raises:
            ConfigurationError: There has not been any training yet.
            CheckpointError: One of its extras cannot be stored.
        """
        self._require_training()
        self._writer.check({"extras": request.extras})
        self._state.rank_sync.is_pending = True
        self._requests.append((request, copy.deepcopy(dict(request.extras))))

    def save(self, request: StateRequest, run: ResumableRun, call: Callable[..., object]) -> None:
        """Save a state of a run that has ended.

        Args:
            request: The state.
            run: The run.
            call: As for ``checkpoint``.

        Raises:
            ConfigurationError: There has not been any training yet.
            CheckpointError: The run cannot be resumed from where it ended, or the state cannot be written.
            OSError: It cannot be written.
        """
        self._require_training()
        self._require_phase()
        self.request(request)
        self._save_requested(run, call)

    def check(self, run: ResumableRun) -> None:
        """Raise an error for anything that cannot be saved; optimizers are checked again after their first update.

        Args:
            run: The run.

        Raises:
            CheckpointError: Something in the state is neither a tensor nor plain, or could not be loaded again.
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
            name: Its name, one of the unchecked ones.
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
            self._write(request, {**parts, "extras": extras}, position)

    def _write(self, request: StateRequest, parts: Mapping[str, Any], position: Position) -> None:
        with self._warning_of_last_one():
            self._writer.wait()
        self._last_may_fail = request.may_fail
        run, directory = self._state.resumption.name, request.directory
        if request.keeps_other_runs:
            directory = Folder(directory.parent).path_for(directory.name, run)
        with self._warning_of_last_one():
            self._writer.save(
                directory,
                parts,
                summary=_summary(request, position, run),
                blocking=not request.asynchronous,
                lock=self._folders.get(directory.parent),
                on_saved=request.on_saved,
            )

    @contextmanager
    def _warning_of_last_one(self) -> Generator[None]:
        """Let a state that may fail cause a warning, on the process that has written it, instead of an error."""
        try:
            yield
        except (CheckpointError, OtherProcessError, OSError) as error:
            if not self._last_may_fail:
                raise
            if not isinstance(error, OtherProcessError):
                given = f" ({error.given})" if isinstance(error, CheckpointError) else ""
                problem = error.problem.rstrip(".") if isinstance(error, CheckpointError) else str(error)
                warn_user(f"{problem}{given}. The run continues without this state, and tries again at the next one.")

    def _capture(self, run: ResumableRun, position: Position) -> dict[str, Any]:
        """All parts of a training state but the extras, by reference; every process must call this."""
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
            # of an order of another kind, the settings say which
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
        """Return what comes next in a run that has ended.

        Raises:
            CheckpointError: The run cannot be resumed from where it ended.
        """
        # Several processes agree on where they are when they are preempted; other exceptions end each where it is.
        is_together = self.ended_by is None or issubclass(self.ended_by, TrainingPreempted)
        ended_apart = distributed.num_processes() > 1 and not is_together
        if self.next_phase is not None and not ended_apart:
            return self.next_phase
        raise CheckpointError(
            "The run cannot be resumed from where it ended, so its training state is not saved.",
            given=f"save_training_state() {_when(self.ended_by)}",
            expected="a run that is in progress, that is complete, or that was left between two updates",
            do=_advice(self.ended_by),
        )


def _when(ended_by: type[BaseException] | None) -> str:
    if ended_by is None:
        return "after a run that trained nothing, such as evaluate()"
    kind, processes = ended_by.__name__, distributed.num_processes()
    if processes > 1:
        return f"after {kind} ended the run on {processes} processes, each where it was"
    return f"after {kind} ended the run in the middle of an update, an epoch's events or an evaluation"


def _advice(ended_by: type[BaseException] | None) -> str:
    if ended_by is None:
        return "Save the state before evaluate() is called, or when the training run is over."
    if issubclass(ended_by, NonFiniteLossError):
        return "Resume from a state that was saved before, with other settings."
    if issubclass(ended_by, KeyboardInterrupt):
        return (
            'Pass SaveTrainingStateCallback(..., stop_on_signals=("SIGINT",)): Ctrl-C then ends the run after the '
            "update, with a state."
        )
    return "Resume from a state that SaveTrainingStateCallback(..., save_every_n_steps=...) saved before."


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
    """Raise what one process meets within the context on all of them, which all miss a state for it."""
    problem: Exception | None = None
    try:
        yield
    except (CheckpointError, OSError) as error:
        problem = error
    raise_on_all(problem)


def _check_scheduler(scheduler: object) -> None:
    """Raise an error for a scheduler that has no state to save, or none that could be loaded.

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
    """Raise an error for an optimizer whose present state could not be stored.

    Args:
        optimizer: The optimizer. Most make their state with the first update.
        state: The state.

    Raises:
        CheckpointError: Something in the state is neither a tensor nor plain.
    """
    try:
        Writer.check({"optimizer": state})
    except CheckpointError as error:
        raise CheckpointError(
            "The state of the optimizer cannot be stored in a training state.",
            given=f"{type(optimizer).__name__} with {error.given}",
            expected=error.expected,
            do="Use an optimizer whose state is of plain tensors, such as torch.optim.AdamW, or save no training "
            "states: trainer.save_model() saves the weights.",
        ) from error
