"""An evaluation of a few batches before a run trains, which finds what would fail later and leaves nothing behind."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from pa_core._tensors import buffers_of_module, parameters_of_module
from pa_core._torch import forget_iterator
from pa_core.data.custom_loader import end_workers, innermost
from pa_core.engine.any_trainer import AnyTrainer, TrainerCallback
from pa_core.engine.best_metric import JudgesMetric, require_recorded_names
from pa_core.engine.setup import RunState
from pa_core.tracking import InMemoryRunHistory
from pa_data.rng import restored_rng_states

_EVENTS = ("on_eval_epoch_start", "on_eval_step_start", "on_eval_step_end", "on_eval_epoch_end")


@contextmanager
def sanity_evaluation(
    trainer: AnyTrainer, session: RunState, num_batches: int, watch_metric: str | None
) -> Generator[None]:
    """The context of an evaluation after which everything is bit-for-bit identical to before.

    Callbacks are called on copies, and the trainer has copies of what the script keeps on it; what cannot be copied is
    not called, or stays. At the end, the names of metrics to watch are compared with those that were recorded.

    Args:
        trainer: The trainer, in a run.
        session: Its run.
        num_batches: How many batches of each evaluation set are evaluated.
        watch_metric: The metric of the scheduler.

    Raises:
        MetricNotFoundError: A metric to watch was not recorded, and one of nearly the same name was.
    """
    callbacks = trainer.callback_handler.callbacks
    watched = [watch_metric, *(callback.watch_metric for callback in callbacks if isinstance(callback, JudgesMetric))]
    memo = _shared(trainer)
    copies = [copied for callback in callbacks if _takes_part(callback) for copied in _copy(callback, memo)]
    own = {name: copied for name, attribute in _own_attributes(trainer).items() for copied in _copy(attribute, memo)}
    try:
        with _as_before(trainer, session), trainer.callback_handler.replaced_by(copies):
            vars(trainer).update(own)
            trainer.run_history = InMemoryRunHistory()
            yield
            require_recorded_names(trainer, [name for name in watched if name is not None])
    except Exception as error:
        error.add_note(
            f"This was the sanity evaluation of {num_batches} batches before the first epoch. Without "
            "sanity_eval_steps there is none."
        )
        raise


@contextmanager
def _as_before(trainer: AnyTrainer, session: RunState) -> Generator[None]:
    """Restore attributes, buffers, workers and random number generators."""
    loaders = [innermost(loader) for loader in (*trainer.eval_dataloaders.values(), trainer.eval_dataloader)]
    buffers = [(buffer, buffer.clone()) for module in _modules_of(trainer) for buffer in buffers_of_module(module)]
    try:
        with restored_rng_states(trainer.device, loaders), session.kept(trainer):
            yield
    finally:
        end_workers(*loaders)
        for loader in loaders:
            forget_iterator(loader)
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)


def _takes_part(callback: TrainerCallback[Any, Any, Any]) -> bool:
    """Whether a callback listens to evaluations, and may be called in one that leaves nothing behind."""
    listens = any(getattr(type(callback), event) is not getattr(TrainerCallback, event) for event in _EVENTS)
    return listens and callback.joins_sanity_evaluation


def _copy(value: Any, memo: dict[int, Any]) -> list[Any]:
    """A copy of a value, or nothing where there cannot be one, as of an open file."""
    with suppress(Exception):
        return [copy.deepcopy(value, memo)]
    return []


def _shared(trainer: AnyTrainer) -> dict[int, Any]:
    """What copies refer to as the originals do: the trainer, its parts, what it trains, data, and other networks."""
    own = _own_attributes(trainer)
    shared: list[Any] = [trainer, *(value for name, value in vars(trainer).items() if name not in own)]
    shared += [value for value in own.values() if isinstance(value, Dataset)]
    networks = [value for value in own.values() if isinstance(value, nn.Module) and parameters_of_module(value)]
    for module in (*_modules_of(trainer), *networks):
        shared += [part for submodule in module.modules() for part in (submodule, *submodule.parameters(recurse=False))]
    return {id(item): item for item in shared}


def _modules_of(trainer: AnyTrainer) -> list[nn.Module]:
    """Those that a run trains or calls."""
    modules = (*trainer.named_models().values(), *trainer.modules.values(), trainer.loss_func)
    return [module for module in modules if isinstance(module, nn.Module)]


def _own_attributes(owner: object) -> dict[str, object]:
    """The attributes of a trainer that are a script's own: those that no class of this package declares."""
    ours = [base for base in type(owner).__mro__ if base.__module__.partition(".")[0] == "pa_core"]
    declared = {name for base in ours for name in inspect.get_annotations(base)}
    return {name: value for name, value in vars(owner).items() if name not in declared}
