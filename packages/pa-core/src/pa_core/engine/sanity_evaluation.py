"""An evaluation of a few batches before the training, which finds failures early and is then undone."""

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
    """Return the context of an evaluation that is undone bit for bit.

    Callbacks are called on copies, and the trainer has copies of the script's attributes; callbacks that cannot be
    copied are not called. At the end, the names of metrics to watch are compared with names of recorded metrics.

    Args:
        trainer: The trainer, in a run.
        session: The session of the run.
        num_batches: The number of batches of each evaluation set.
        watch_metric: The metric of the scheduler.

    Raises:
        MetricNotFoundError: A metric to watch was not recorded, but a metric with nearly the same name was.
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
            f"The error is from the sanity evaluation of {num_batches} batches before the first epoch. Without "
            "sanity_eval_steps there is no such evaluation."
        )
        raise


@contextmanager
def _as_before(trainer: AnyTrainer, session: RunState) -> Generator[None]:
    """Restore attributes, buffers, workers and random number generators."""
    loaders = [innermost(loader) for loader in (*trainer.eval_dataloaders.values(), trainer.eval_dataloader)]
    buffers = [(buffer, buffer.clone()) for module in _modules_of(trainer) for buffer in buffers_of_module(module)]
    try:
        with restored_rng_states(trainer.device, loaders), session.snapshot(trainer):
            yield
    finally:
        end_workers(*loaders)
        for loader in loaders:
            forget_iterator(loader)
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)


def _takes_part(callback: TrainerCallback[Any, Any, Any]) -> bool:
    """Whether a callback listens to evaluations, and may be called in a sanity evaluation."""
    listens = any(getattr(type(callback), event) is not getattr(TrainerCallback, event) for event in _EVENTS)
    return listens and callback.joins_sanity_evaluation


def _copy(value: Any, memo: dict[int, Any]) -> list[Any]:
    """Return a copy of a value in a list, or an empty list if it cannot be copied, like an open file."""
    with suppress(Exception):
        return [copy.deepcopy(value, memo)]
    return []


def _shared(trainer: AnyTrainer) -> dict[int, Any]:
    """Return the objects that copies share with the originals: the trainer, its parts, models, data and networks."""
    own = _own_attributes(trainer)
    shared: list[Any] = [trainer, *(value for name, value in vars(trainer).items() if name not in own)]
    shared += [value for value in own.values() if isinstance(value, Dataset)]
    networks = [value for value in own.values() if isinstance(value, nn.Module) and parameters_of_module(value)]
    for module in (*_modules_of(trainer), *networks):
        shared += [part for submodule in module.modules() for part in (submodule, *submodule.parameters(recurse=False))]
    return {id(item): item for item in shared}


def _modules_of(trainer: AnyTrainer) -> list[nn.Module]:
    """Return the modules that a run trains or calls."""
    modules = (*trainer.named_models().values(), *trainer.modules.values(), trainer.loss_func)
    return [module for module in modules if isinstance(module, nn.Module)]


def _own_attributes(owner: object) -> dict[str, object]:
    """Return the attributes of a trainer that a script set, which no class of this package declares."""
    ours = [base for base in type(owner).__mro__ if base.__module__.partition(".")[0] == "pa_core"]
    declared = {name for base in ours for name in inspect.get_annotations(base)}
    return {name: value for name, value in vars(owner).items() if name not in declared}
