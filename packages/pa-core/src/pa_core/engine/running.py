"""The beginning and the end of a run: its session, comparison over the processes, and cleanup."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch

from pa_core import distributed
from pa_core._tensors import reshard
from pa_core.data.custom_loader import end_workers
from pa_core.distributed.comparison import Describe
from pa_core.engine.any_trainer import AnyTrainer, TrainerCallback
from pa_core.engine.parts import forget_gradients
from pa_core.engine.prepare import describe_setting
from pa_core.engine.session import Session
from pa_core.engine.setup import RunKind, Setup
from pa_core.errors import StopTrainingError
from pa_core.steps.input_checks import reject_nested_run
from pa_core.training_state import initial_hyperparameters
from pa_core.training_state.progress import Stage
from pa_distributed import fail_fast, print_errors_once, require_same


def require_ready(session: Session, kind: RunKind) -> None:
    """Raise an error if another run is in progress, which a new run would overwrite.

    Args:
        session: The session of the previous run.
        kind: The kind of the new run.

    Raises:
        ConfigurationError: Another run is in progress.
    """
    reject_nested_run(kind, session.running)
    reshard(session.trainer.model)  # a script may have called it, and the optimizer has the pieces


@contextmanager
def running(
    setup: Setup,
    kind: RunKind,
    in_progress: RunKind | None,
    begin: Callable[[], Session],
    describe_arguments: Describe,
    seed: int | None = None,
) -> Generator[None]:
    """Return the context of a run, after which the user's objects are restored.

    Args:
        setup: The setup of the trainer.
        kind: The kind of the run.
        in_progress: The kind of the run in progress, or None.
        begin: Creates the session of the run, and sets it in the trainer.
        describe_arguments: Returns the call and its arguments.
        seed: The seed of the run; None to draw it.

    Raises:
        RanksDifferError: The arguments differ between processes.
    """
    try:
        mine = setup.turn.pop()  # unless a run is in progress, perhaps in another thread
    except IndexError:
        reject_nested_run(kind, in_progress or kind)
        raise
    try:
        session = begin()
        trainer = session.trainer
        trainer.preemptible, trainer.resume_from = False, None
        trainer.callback_handler.find_listeners()
        progress = session.progress
        with session.setup.watch.run(lambda: (progress.stage, progress.updates)):
            seed = int(torch.randint(2**63 - 1, ()).item()) if seed is None else seed
            with print_errors_once():
                require_same(lambda: {**describe_arguments(), **describe_setting(session)})
                session.resumption.seed = distributed.gather_objects(seed)[0]
            with session.contexts, _ending_in_order(session, kind):
                session.contexts.callback(session.checkpointer.release_folders)
                yield
    finally:
        setup.turn.append(mine)
    trainer.callback_handler.warn_of_unfired_events()


@contextmanager
def _ending_in_order(session: Session, kind: RunKind) -> Generator[None]:
    """Run the clock within the block, and restore the trainer afterwards."""
    trainer = session.trainer
    trainer.run_history.clock.start()
    session.running = kind
    model = trainer.model
    if kind == "train":  # gradients that a script computed before are not a part of the first update
        forget_gradients(model, *trainer.named_optimizers().values())
    try:
        with fail_fast(lambda exception, _lives_on: _close_after(session, exception)):
            try:
                with session.setup.watch.explaining():
                    yield
            except BaseException as exception:
                session.checkpointer.end(exception, trainer.device)
                if session.fitting is not None:
                    session.fitting.record_failure(exception)
                raise
    finally:
        session.running = None
        optimizers = trainer.named_optimizers().values()
        if kind == "train":
            session.rank_sync.preempt.clear()
            for optimizer in optimizers:
                initial_hyperparameters.end_run(optimizer)
        trainer.run_history.clock.stop()
        _end_workers(trainer)
        session.exchange.close()
        for part in session.parts.values():
            part.close()
        session.placed.close()
        trainer.model = model
        session.setup.added.restore()
        forget_gradients(trainer.model, *optimizers)


def _close_after(session: Session, exception: BaseException) -> None:
    """Close all resources when an exception ends the run, even if a callback raises an error."""
    problems: list[BaseException] = []
    trainer = session.trainer
    for listener in trainer.callback_handler.listeners(TrainerCallback.on_exception.__name__):
        try:
            listener(trainer, exception=exception)
        except BaseException as problem:
            problems.append(problem)
    session.checkpointer.abandon(exception)
    _end_workers(trainer)
    if problems:
        raise problems[0]


def _end_workers(trainer: AnyTrainer) -> None:
    end_workers(trainer.train_dataloader, trainer.eval_dataloader, *trainer.eval_dataloaders.values())


@contextmanager
def stopping_in_order(session: Session) -> Generator[None]:
    """End the context with a ``StopTrainingError`` without an error; the run continues with its last events.

    Args:
        session: The run.
    """
    trainer = session.trainer
    try:
        yield
    except StopTrainingError as error:
        # From Python 3.12 on, this frame refers to a frame with the error: a cycle that keeps the last step in memory.
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        session.rank_sync.stop = error
        trainer.callback_handler.call_event(TrainerCallback.on_stop_training_error, trainer, error=error)
    session.progress.stage = Stage.RUN_END
