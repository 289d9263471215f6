"""Runs a script up to its training, prints the plan and the report there, and ends it."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from types import MethodType, TracebackType
from typing import Any, NoReturn

from pa_core import AnyTrainer, Run, Trainer
from pa_preflight._arguments import trial
from pa_preflight._check import check
from pa_preflight._findings import Report, first_line, in_order
from pa_preflight._own_loops import WatchedLoop
from pa_preflight._plan import plan
from pa_preflight._plan_records import Plan

_USAGE = "usage: python -m pa_preflight script.py [arguments of the script]"

_HELP = f"""{_USAGE}

Runs the script up to its training, prints the plan and the report of pa_preflight, and ends the process at once: no
`except` or `finally` block of the script runs, no `atexit` function, and no line after the training, so the script
cannot overwrite a trained model. If the script has a loop over a Run, the first ten updates are made.

exit status: 0 without mistakes; 1 with mistakes, or if the script fails; 2 if it does not train.
"""

_FAILED, _NOT_TRAINED, _INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str]) -> int:
    """Run a script up to its training, print plan and report, and end the process with 0 or, after mistakes, with 1.

    Args:
        arguments: The script, and its arguments.

    Returns:
        The exit status of a script that does not train: 1 if it fails before; 2 if it ends without training.
    """
    if arguments and arguments[0] in ("-h", "--help"):
        sys.stdout.write(_HELP)
        return 0
    if not arguments or arguments[0].startswith("-"):
        sys.stderr.write(f"{_USAGE}\n")
        return _NOT_TRAINED
    script = Path(arguments[0])
    sys.argv[:] = arguments
    if not sys.flags.safe_path:
        sys.path[0] = str(script.resolve().parent)
    with ExitStack() as stack:
        _Watch(stack, script)
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as ending:
            if ending.code not in (None, 0):
                raise
        except Exception as error:
            _print_error(error, script)
            return _FAILED
    sys.stderr.write(f"{script} has ended without training: it has called neither Trainer.train nor a loop of a Run.\n")
    return _NOT_TRAINED


class _Watch:
    """Replaces training in this process, and ends the process there.

    Args:
        stack: Ends the watch if the script does not train.
        script: The script whose lines a traceback shows.
    """

    def __init__(self, stack: ExitStack, script: Path) -> None:
        self._stack = stack
        self._ending = _EndingAfterErrors(script)
        self._undone = 0
        self._watched: Run[Any, Any] | None = None
        trains = (Trainer, "train", self._train), (Run, "__enter__", self._enter), (Run, "__exit__", self._exit)
        for owner, name, instead in (*trains, (AnyTrainer, "dry_run", self._dry_run)):
            original: Any = getattr(owner, name)
            stack.callback(setattr, owner, name, original)
            setattr(owner, name, wraps(original)(_method(instead, original)))

    @contextmanager
    def _dry_run(self, original: Callable[..., Any], trainer: AnyTrainer, *data: object) -> Generator[None]:
        """Note that runs are dry runs, by a search or by the check itself."""
        with original(trainer, *data):
            self._undone += 1
            try:
                yield
            finally:
                self._undone -= 1

    def _train(
        self, original: Callable[..., None], trainer: Trainer[Any, Any, Any, Any], *args: Any, **kwargs: Any
    ) -> None:
        if self._undone:
            original(trainer, *args, **kwargs)
            return
        vars(trainer)["train"] = MethodType(original, trainer)  # a subclass may have changed the arguments
        with self._ending:
            _print_plan(partial(plan, trainer, *args, **kwargs))
            _end(check(trainer, *args, **kwargs))

    def _enter(self, original: Callable[..., Any], run: Run[Any, Any]) -> Run[Any, Any]:
        if self._undone:
            original(run)
            return run
        with self._ending:
            _print_plan(partial(plan, run))
            watched = WatchedLoop(run, _end_loop)
            self._stack.enter_context(trial(run, watched))
            self._watched = run
            original(run)
        return run

    def _exit(self, original: Callable[..., bool], run: Run[Any, Any], kind: object, error: Any, *more: object) -> bool:
        if run is not self._watched:
            return original(run, kind, error, *more)
        with self._ending:
            as_asked = original(run, kind, error, *more)
        if error is not None:
            self._ending.end(error)
        return as_asked


class _EndingAfterErrors:
    """Ends the process after an error, before the script can handle it and clean up as after a training.

    Args:
        script: The script whose lines the traceback shows.
    """

    def __init__(self, script: Path) -> None:
        self._script = script

    def end(self, error: BaseException) -> NoReturn:
        """Print an error, and end the process."""
        _print_error(error, self._script)
        _leave(_INTERRUPTED if isinstance(error, KeyboardInterrupt) else _FAILED)

    def __enter__(self) -> None:
        """Enter the context."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """End the process if something has failed."""
        if error is not None:
            self.end(error)


def _end_loop(report: Report, error: BaseException | None) -> None:
    report = replace(report, findings=in_order(report.findings))
    if error is None:
        _end(report)
    sys.stdout.write(f"{report}\n")


def _end(report: Report) -> NoReturn:
    sys.stdout.write(f"{report}\n")
    _leave(int(bool(report.mistakes)))


def _leave(status: int) -> NoReturn:
    """End this process here, because the rest of the script would find an untrained model."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
        for child in multiprocessing.active_children():  # they keep the output open until they notice
            child.terminate()
    finally:
        os._exit(status)


def _print_error(error: BaseException, script: Path) -> None:
    """Print an error as the script's own, from the line of the script that raised it."""
    frames = _with_callers(error.__traceback__)
    while frames is not None and frames.tb_frame.f_code.co_filename != str(script):
        frames = frames.tb_next
    frames = frames or error.__traceback__
    sys.stdout.flush()
    sys.excepthook(type(error), error.with_traceback(frames), frames)


def _with_callers(frames: TracebackType | None) -> TracebackType | None:
    """Add the frames that an error has not reached yet, because it was caught below them."""
    while frames is not None and (caller := frames.tb_frame.f_back) is not None:
        frames = TracebackType(frames, caller, caller.f_lasti, caller.f_lineno)
    return frames


def _method(instead: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    def method(owner: object, *args: Any, **kwargs: Any) -> Any:
        return instead(original, owner, *args, **kwargs)

    return method


def _print_plan(make: Callable[[], Plan]) -> None:
    try:
        sys.stdout.write(f"{make()}\n\n")
    except Exception as error:  # the check reports it
        sys.stdout.write(f"The run could not be planned: {first_line(error)}\n\n")
