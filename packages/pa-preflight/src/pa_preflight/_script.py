"""Runs a script up to where it trains, and says there what it is going to do, and what is wrong with it."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from types import MethodType
from typing import Any, NoReturn

from pa_core import AnyTrainer, MoveModulesToDeviceCallback, Run, Trainer
from pa_preflight._check import check, in_order
from pa_preflight._findings import Report, first_line
from pa_preflight._own_loops import WatchedLoop
from pa_preflight._plan import plan
from pa_preflight._plan_records import Plan

_USAGE = "usage: python -m pa_preflight script.py [arguments of the script]"
_FAILED, _NOT_TRAINED = 1, 2


def main(arguments: Sequence[str]) -> int:
    """Run a script until it trains, print plan and report, and return the exit status.

    Args:
        arguments: The script, and its arguments.

    Returns:
        0 without mistakes; 1 with some, or if the script fails before; 2 if it does not train.
    """
    if not arguments or arguments[0].startswith("-"):
        sys.stderr.write(f"{_USAGE}\n")
        return _NOT_TRAINED
    script = Path(arguments[0])
    sys.argv[:] = arguments
    if not sys.flags.safe_path:
        sys.path[0] = str(script.resolve().parent)
    with ExitStack() as stack:
        watch = _Watch(stack)
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as ending:
            if watch.status is None and ending.code not in (None, 0):
                raise
        except Exception as error:
            frames = error.__traceback__
            while frames is not None and frames.tb_frame.f_code.co_filename != str(script):
                frames = frames.tb_next
            sys.excepthook(type(error), error.with_traceback(frames), frames)
            return _FAILED
    if watch.status is not None:
        return watch.status
    sys.stderr.write(f"{script} has ended without training: it has called no Trainer.train, and no loop of a Run.\n")
    return _NOT_TRAINED


class _Watch:
    """Takes the place of training in this process.

    Args:
        stack: Ends it.

    Attributes:
        status: The exit status, once there is a report.
    """

    def __init__(self, stack: ExitStack) -> None:
        self.status: int | None = None
        self._stack = stack
        self._undone = 0
        replaced = (Trainer, "train", self._train), (Run, "__enter__", self._enter)
        for owner, name, instead in (*replaced, (AnyTrainer, "undoing_runs", self._undoing_runs)):
            original: Any = getattr(owner, name)
            stack.callback(setattr, owner, name, original)
            setattr(owner, name, wraps(original)(_method(instead, original)))

    @contextmanager
    def _undoing_runs(self, original: Callable[..., Any], trainer: AnyTrainer, *data: object) -> Generator[None]:
        """Note that runs are tried out, by a search or by the check itself."""
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
        _print_plan(partial(plan, trainer, *args, **kwargs))
        self._end(check(trainer, *args, **kwargs))

    def _enter(self, original: Callable[..., Any], run: Run[Any, Any]) -> Run[Any, Any]:
        if not self._undone:
            _print_plan(partial(plan, run))
            watched = WatchedLoop(run, self._end_loop)
            self._stack.enter_context(run.undoing_runs())
            callbacks = [MoveModulesToDeviceCallback(), watched]
            self._stack.enter_context(run.callback_handler.replaced_by(callbacks))
        original(run)
        return run

    def _end_loop(self, report: Report, error: BaseException | None) -> None:
        report = replace(report, findings=in_order(report.findings))
        if error is None:
            self._end(report)
        elif self.status is None:  # the script ends with the traceback of the error
            sys.stdout.write(f"{report}\n")

    def _end(self, report: Report) -> NoReturn:
        sys.stdout.write(f"{report}\n")
        self.status = int(bool(report.mistakes))
        sys.stdout.flush()
        raise SystemExit(self.status)


def _method(instead: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    def method(owner: object, *args: Any, **kwargs: Any) -> Any:
        return instead(original, owner, *args, **kwargs)

    return method


def _print_plan(make: Callable[[], Plan]) -> None:
    try:
        sys.stdout.write(f"{make()}\n\n")
    except Exception as error:  # which the check reports
        sys.stdout.write(f"There is no plan: {first_line(error)}\n\n")
