"""Runs that are undone afterwards, for example to search for a learning rate."""

from __future__ import annotations

import copy
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from pa_core.engine.free_memory import free_memory
from pa_core.training_state.snapshotable import ResumableRun
from pa_core.user_warnings import warn_user
from pa_data.rng import restored_rng_states

if TYPE_CHECKING:
    from pa_data.kept_state import KeptState


@contextmanager
def dry_run(run: ResumableRun, data: Sequence[object]) -> Generator[None]:
    """Restore all objects that a run can reach, and random number generators, in place.

    Args:
        run: The trainer.
        data: The data of the run: datasets, loaders and their arguments.
    """
    with restored(_roots(run, data), run.device):
        yield


@contextmanager
def restored(roots: Mapping[str, object], device: torch.device) -> Generator[None]:
    """Restore all objects that can be reached from others, and random number generators.

    Args:
        roots: The objects by name.
        device: The device of the run.
    """
    from pa_data.kept_state import KeptState  # few runs are undone

    kept = KeptState(roots, most_bytes=(free_memory() or sys.maxsize) // 2)
    if kept.running:
        warn_user(
            f"A trial advances the iterator in {', '.join(kept.running)}, which cannot be restored: the run after it "
            "begins later in it. Create the iterator when it is used, for example in __iter__ of a dataset."
        )
    with ExitStack() as stack:
        stack.enter_context(restored_rng_states(device))
        stack.callback(_restore, kept)
        modules = {id(part): part for root in roots.values() if isinstance(root, nn.Module) for part in root.modules()}
        for module in modules.values():
            if type(module).get_extra_state is not nn.Module.get_extra_state:
                stack.callback(module.set_extra_state, copy.deepcopy(module.get_extra_state()))
        yield


def _restore(kept: KeptState) -> None:
    lost = kept.restore()
    if lost:
        warn_user(
            f"A trial changed {', '.join(lost)}, which is too large to copy before. Create it again, or let "
            "steps and datasets not change it."
        )


def _roots(run: ResumableRun, data: Sequence[object]) -> dict[str, object]:
    """Return the objects from which a run is reached, by their names in scripts: its arguments and the trainer."""
    kinds = (nn.Module, Optimizer, Dataset, DataLoader)
    given: dict[str, object] = {
        name: attribute for name, attribute in vars(run).items() if isinstance(attribute, kinds) or callable(attribute)
    }
    return {
        **run.named_models(),
        **run.named_optimizers(),
        **run.named_schedulers(),
        "loss_func": run.loss_func,
        **given,
        **{f"{type(dataset).__name__} {number}": dataset for number, dataset in enumerate(data, start=1)},
        "trainer": run,
    }


@contextmanager
def attributes_restored(*owners: object) -> Generator[None]:
    """Restore the attributes of objects afterwards.

    Args:
        owners: The objects.
    """
    with ExitStack() as stack:
        for owner in owners:
            stack.callback(partial(_restore_attributes, owner, dict(vars(owner))))
        yield


def _restore_attributes(owner: object, attributes: Mapping[str, Any]) -> None:
    for name in vars(owner).keys() - attributes.keys():
        del vars(owner)[name]
    vars(owner).update(attributes)
