"""Safe points: when a training state of a run may be saved, and what happens at these moments."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from pa_core import distributed
from pa_core.attributes import temporarily
from pa_core.data.custom_loader import innermost, is_dataloader, is_keyed
from pa_core.distributed.rank_sync import RankSync
from pa_core.errors import CheckpointError, ConfigurationError, NonFiniteLossError, TrainingPreempted
from pa_core.progress import Phase, Position, Progress
from pa_core.training_state.own_buffers import OwnBuffers
from pa_core.training_state.resume import ResumePlan
from pa_core.training_state.run_state import RunState, capture, find_extension
from pa_core.training_state.saved_runs import newest_state
from pa_core.training_state.script_state import ScriptState
from pa_core.training_state.snapshotable import ResumableRun
from pa_core.training_state.state_writer import (
    StateRequest,
    StateWriter,
    check_scheduler,
    check_state_of_optimizer,
    raising_on_all,
)
from pa_core.training_state.trained_layers import TrainedLayers
from pa_core.types import SupportsStateDict
from pa_data.rng import capture_rng_state


class _CountsItems(Protocol):
    @property
    def nominal(self) -> float | None: ...


class RunParts(NamedTuple):
    """The parts of a run that decide what is saved and when.

    Attributes:
        progress: The counters of the run.
        resumption: Where it began.
        accumulations: What counts the items of each optimizer's updates, by the name of the optimizer.
        rank_sync: Whether some process requests a training state, or the end of the run.
        scaler: The gradient scaler of fp16.
        shares_buffers: Whether all processes have the buffers of the models in common.
    """

    progress: Progress
    resumption: ResumePlan
    accumulations: Mapping[str, _CountsItems]
    rank_sync: RankSync
    scaler: SupportsStateDict | None = None
    shares_buffers: bool = True


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

    A run tells where it is: it calls ``leave`` when it begins something that cannot be done a second time, such as an
    update, and ``reach`` when all of that is complete. Evaluations cost nothing to repeat, and may be interrupted by a
    preemption: the state is then the one from before the evaluation.

    Args:
        parts: The parts of the first run.

    Attributes:
        registered: Further objects that are part of each state, in this order.
        ended_by: The class of the exception that ended the run; None while it runs and after a regular end. Not the
            exception, whose traceback would keep the batch and the graph of the last step in memory.
        is_between_steps: Whether an update is complete with all that belongs to it, and its last event is being called:
            an evaluation may be interrupted here.
        unchecked_optimizers: The names of the optimizers to check after their first update.
    """

    def __init__(self, parts: RunParts) -> None:
        self.registered: list[SupportsStateDict] = []
        self._writer = StateWriter()
        self._has_trained = False
        self._layers: TrainedLayers | None = None
        self._start_run(parts)

    # The course of a run

    def start_run(self, parts: RunParts) -> None:
        """Forget the run before.

        Args:
            parts: The parts of the new one.
        """
        self._has_trained |= self._run.resumption.settings is not None
        self._start_run(parts)

    def _start_run(self, parts: RunParts) -> None:
        self._run = parts
        self.ended_by: type[BaseException] | None = None
        self.unchecked_optimizers: set[str] = set()
        self._script: ScriptState | None = None
        self._buffers = OwnBuffers(shares_buffers=parts.shares_buffers)
        self._requests: list[tuple[StateRequest, dict[str, Any]]] = []  # with copies of their extras
        self._phase: Phase | None = None
        self._rng_state: Mapping[str, Any] | None = None
        self.is_between_steps: bool = False
        self._num_evaluations = 0
        self._evaluation: _Evaluation | None = None
        self._interrupted: _Evaluation | None = None

    def note_layers(self, run: ResumableRun) -> None:
        """Note what the optimizers train.

        Args:
            run: The run, before its first hook is called.
        """
        self._layers = TrainedLayers(run)

    def note_start(self, run: ResumableRun) -> None:
        """Note what the script keeps next to the parts of the run.

        Args:
            run: The run, once all hooks and callbacks of its start were called.
        """
        self._script = ScriptState(run, self.registered)

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

    def leave(self) -> None:
        """Note that something begins that changes a part of the run before the others."""
        self._phase = None

    def reach(self, phase: Phase, run: ResumableRun, call: Callable[..., object]) -> None:
        """Save what was requested: here, everything that the run consists of belongs to the same update.

        Args:
            phase: What comes next.
            run: The run.
            call: Calls the listeners of an event by its name, which may stop the run.

        Raises:
            TrainingPreempted: Some process requested it before the run was complete; the states that callbacks
                requested are saved.
            CheckpointError: A state could not be written.
            OSError: As above.
        """
        self._phase = phase
        save, preempt = self._run.rank_sync.save, self._run.rank_sync.preempt
        is_asked = save.is_asked or save.is_agreed or preempt.is_asked or preempt.is_agreed
        if not (is_asked or self._requests):
            return
        if distributed.num_processes() == 1:
            save.agree(save.is_asked)
            preempt.agree(preempt.is_asked)
        if save.take():
            call("on_training_state_request", update=self._run.progress.updates)
        # A run that is complete must not be started again: the process ends as if it had not been asked to leave.
        is_preempted = preempt.take() and phase is not Phase.COMPLETE
        if is_preempted:
            call("on_preemption")
        if self._requests:
            self._save_requested(phase, run, call)
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
        if self._phase is not None:
            self._rng_state = capture_rng_state(device)

    def settle(self) -> None:
        """Wait for a state that is written in the background, and see that the folders are still this run's.

        Raises:
            CheckpointError: It could not be written, or a folder was moved, replaced or removed.
            OSError: It could not be written.
        """
        self._writer.settle()

    def abandon(self, failure: BaseException) -> None:
        """Let the writing in the background finish when the run fails, without telling other processes.

        Args:
            failure: Why the run ends; notes are added to it of states that are missing.
        """
        self.drop_requests(failure)
        self._writer.abandon(failure)

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

    def leave_evaluation_if_asked(self, run: ResumableRun) -> None:
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
            self._run.rank_sync.agree_on_preemption()
        if self._run.rank_sync.preempt.is_agreed:
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
        resumption = self._run.resumption
        with raising_on_all():
            self._writer.reserve(folder, say, upload_to)
            resumption.choose_name(self._writer.folders, self._writer.stores)
            for store in self._writer.stores:
                store.register(resumption.name)
        state, newest = resumption.continued_state, newest_state(folder, resumption.name)
        is_continued = state is not None and newest is not None and os.path.realpath(state) == os.path.realpath(newest)
        return newest if is_continued else None

    def release_folders(self) -> None:
        """Let other runs use the folders, when everything is written."""
        self._writer.release()

    def request(self, request: StateRequest) -> None:
        """Have a state saved at the next safe point.

        Args:
            request: The state.

        Raises:
            ConfigurationError: There has not been any training yet.
            CheckpointError: One of its extras cannot be stored.
        """
        self._require_training()
        self._requests.append((request, self._writer.copied_extras(request)))

    def save(self, request: StateRequest, run: ResumableRun, call: Callable[..., object]) -> None:
        """Save a state of a run that has ended.

        Args:
            request: The state.
            run: The run.
            call: As for ``reach``.

        Raises:
            ConfigurationError: There has not been any training yet.
            CheckpointError: The run cannot be resumed from where it ended, or the state cannot be written.
            OSError: It cannot be written.
        """
        self._require_training()
        phase = self._require_phase()
        self.request(request)
        self._save_requested(phase, run, call)

    def check(self, run: ResumableRun) -> None:
        """Raise an error for anything that cannot be saved; optimizers are checked again after their first update.

        Args:
            run: The run.

        Raises:
            CheckpointError: Something in the state is neither a tensor nor plain, or could not be loaded again.
        """
        for scheduler in run.named_schedulers().values():
            check_scheduler(scheduler)
        parts = capture(run, self._describe(run, self._run.progress.position(Phase.EPOCH)))
        optimizers = run.named_optimizers()
        self._writer.note_start(parts, optimizers)
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
        check_state_of_optimizer(optimizer, optimizer.state_dict())

    def _require_training(self) -> None:
        if not self._has_trained and self._run.resumption.settings is None:
            raise ConfigurationError(
                "save_training_state() was called before a training run. Call save_checkpoint() to save a model that "
                "was not trained here."
            )

    def _save_requested(self, phase: Phase, run: ResumableRun, call: Callable[..., object]) -> None:
        self.check_layers(run)
        if phase is not Phase.COMPLETE:
            with self._run.rank_sync.together():
                call("on_training_state_save")
        position = self._run.progress.position(phase if self._interrupted is None else self._interrupted.phase)
        if self._interrupted is not None:
            position = position._replace(eval_sets=self._interrupted.eval_sets)
        parts = capture(run, self._describe(run, position))
        requests, self._requests = self._requests, []
        for request, extras in requests:
            self._writer.write(request, extras, parts, position, self._run.resumption.name)

    def _describe(self, run: ResumableRun, position: Position) -> RunState:
        parts, resumption = self._run, self._run.resumption
        loader, settings = innermost(run.train_dataloader), resumption.settings or {}
        extension = find_extension(run, position, parts.progress)
        if resumption.was_complete and resumption.saved is not None:
            extension = resumption.saved.extension
        continues_mid_epoch = extension is not None and extension.position.phase.is_mid_epoch
        return RunState(
            position=position,
            seed=resumption.seed,
            # of an order of another kind, the settings say which
            algorithm=loader.order.algorithm if is_keyed(loader) and "order" not in settings else None,
            settings=settings,
            hyperparameters=resumption.hyperparameters,
            nominal_items={name: one.nominal for name, one in parts.accumulations.items()},
            loaders=resumption.loaders.capture(run, mid_epoch=position.phase.is_mid_epoch or continues_mid_epoch),
            shares_buffers=parts.shares_buffers,
            scaler=parts.scaler,
            objects=self.registered,
            script=None if self._script is None else partial(self._script.capture, run, registered=self.registered),
            buffers=None if self._script is None else partial(self._buffers.capture, run),
            rng_state=self._rng_state if self._interrupted is None else self._interrupted.rng_state,
            extension=extension,
        )

    def _require_phase(self) -> Phase:
        """Return what comes next in a run that has ended.

        Raises:
            CheckpointError: The run cannot be resumed from where it ended.
        """
        # Several processes agree on where they are when they are preempted; other exceptions end each where it is.
        is_together = self.ended_by is None or issubclass(self.ended_by, TrainingPreempted)
        ended_apart = distributed.num_processes() > 1 and not is_together
        if self._phase is not None and not ended_apart:
            return self._phase
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
