"""The start and the end of a trial's training, which are the same on all processes and after any error."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch

from pa_distributed import HangDetector, fail_fast, gather_objects, print_errors_once, require_same
from pa_trial.context_parts import ContextParts
from pa_trial.errors import InvalidHP
from pa_trial.fit_options import FitOptions
from pa_trial.trial import PyTorchTrial
from pa_trial.units import TrainUnit


@contextmanager
def closing_in_order(watch: HangDetector) -> Generator[ExitStack]:
    """Close the open resources when the block ends; a process that fails alone then ends, so no other waits for it.

    Args:
        watch: Informs the other processes about an exception.
    """
    resources = ExitStack()

    def close(exception: BaseException, _lives_on: bool) -> None:
        resources.__exit__(type(exception), exception, exception.__traceback__)

    with fail_fast(close), watch.explaining():
        yield resources
        resources.close()


@contextmanager
def saving_before_invalid_hp(save: Callable[[], None], resources: ExitStack) -> Generator[None]:
    """Save if the trial raises ``InvalidHP`` during training on all processes.

    A single process that raises it cannot save without the others. It closes its resources, and ends.

    Args:
        save: Saves, together with all processes.
        resources: The open resources.
    """

    def close(_error: BaseException, lives_on: bool) -> None:
        if not lives_on:
            resources.close()

    try:
        yield
    except InvalidHP:
        with suppress(InvalidHP), fail_fast(close):
            raise
        save()
        raise


def agree_on_seed(trial: PyTorchTrial[Any], parts: ContextParts, options: FitOptions) -> int:
    """Return the seed of the training, after a check that all processes have the same arguments.

    Args:
        trial: The trial.
        parts: The parts of its context. Their seed is used, or a seed is drawn from torch's generator.
        options: The arguments of ``fit``.

    Raises:
        RanksDifferError: The processes have different arguments.
    """
    seed = parts.trial_seed
    if seed is None:
        seed = int(torch.randint(2**63 - 1, ()).item())

    def settings() -> dict[str, object]:
        return {
            "trial": type(trial),
            "seed": parts.trial_seed,
            "aggregation_frequency": parts.aggregation_frequency,
            "samples_per_update": parts.run_settings.samples_per_update,
            "hparams": parts.settings.hparams,
            "metric": parts.run_settings.metric,
            "max_checkpoints": parts.run_settings.max_checkpoints,
            **{name: _comparable(value) for name, value in vars(options).items() if name not in _PATHS},
        }

    with print_errors_once():
        require_same(settings)
        return gather_objects(seed)[0]


def _comparable(value: object) -> object:
    """Return a period by its steps if they are in a container; any other value unchanged."""
    if not isinstance(value, TrainUnit):
        return value
    steps = value.value
    return repr(value) if isinstance(steps, (int, list, tuple, range)) else f"{type(value)}, {type(steps)}"


_PATHS = frozenset({"latest_checkpoint", "warm_start"})
"""Arguments that may differ between processes: paths of a checkpoint, whose content is compared instead."""


def require_same_parts(parts: ContextParts, others: Callable[[], dict[str, str]]) -> None:
    """Compare models, optimizers, loaders and callbacks, once they are made and before their first exchange.

    Args:
        parts: The parts of the context.
        others: Returns descriptions of the loaders and the callbacks, by name.

    Raises:
        RanksDifferError: They are not the same on all processes.
    """

    def wrapped() -> dict[str, object]:
        models = {f"model {index}": model for index, model in enumerate(parts.trained.models)}
        optimizers = {f"optimizer {index}": optimizer for index, optimizer in enumerate(parts.trained.optimizers)}
        schedulers = [type(scheduler.scheduler) for scheduler in parts.trained.lr_schedulers]
        return {**models, **optimizers, "lr_schedulers": schedulers, **others()}

    require_same(wrapped)
