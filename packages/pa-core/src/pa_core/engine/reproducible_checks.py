"""Checks of reproducible runs: arguments, loaders and layers that depend on the number of processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, cast

from torch import nn

from pa_core._tensors import is_sharded_module
from pa_core.data.custom_loader import describe_loader, innermost, is_keyed, is_slice
from pa_core.data.data_arguments import DataArgument, order_that_makes_batches
from pa_core.errors import ConfigurationError, UnsupportedConfigurationError
from pa_core.types import SizedIterable
from pa_data import KeyedDataLoader

_WAY_OUT = "or leave reproducible out, after which means agree to 1e-12 on any number of processes."


class SizesOfUpdates(Protocol):
    """The arguments of a run that decide the size of updates."""

    @property
    def samples_per_update(self) -> int | None:
        """The number of samples on all processes."""
        ...

    @property
    def gradient_accumulation_steps(self) -> int:
        """The number of batches of one process."""
        ...

    @property
    def max_updates_per_batch(self) -> int | None:
        """The largest number of updates of a batch."""
        ...


def check_arguments(data: Iterable[DataArgument], requested: SizesOfUpdates) -> None:
    """Raise an error for arguments that a reproducible run cannot follow, before a loader is created.

    Args:
        data: The data to train on or to evaluate.
        requested: The arguments of the run.

    Raises:
        ConfigurationError: An argument cannot be used in a reproducible run, or the size of updates is missing.
    """
    if requested.max_updates_per_batch is not None or requested.gradient_accumulation_steps != 1:
        name = "gradient_accumulation_steps" if requested.max_updates_per_batch is None else "max_updates_per_batch"
        raise ConfigurationError(
            f"The updates of a reproducible run follow from samples_per_update: leave out {name}, {_WAY_OUT}"
        )
    for argument in data:
        if argument.purpose == "eval" or argument.loader is not None:
            continue
        kwargs = argument.kwargs or {}
        if (order := order_that_makes_batches(argument.order, argument.data, kwargs)) is not None:
            raise ConfigurationError(
                "A reproducible run makes its batches itself, by position in the order of the samples.",
                given=f"the order {type(order).__name__}, whose batches of any size make updates of any size",
                do=f"Pass LengthGrouped, which groups samples of similar length, or a different order, {_WAY_OUT}",
            )
        if requested.samples_per_update is None and "samples_per_update" not in kwargs:
            raise ConfigurationError(
                "A reproducible run needs the size of its updates: pass samples_per_update=..., which is the same "
                "on any number of processes."
            )


def require_usable(loaders: Iterable[SizedIterable | None], models: Mapping[str, nn.Module]) -> None:
    """Raise an error for loaders and models with which a run would depend on the number of processes.

    Args:
        loaders: The loaders of the run.
        models: The models of the run, by name.

    Raises:
        ConfigurationError: A loader is limited or has its own order.
        UnsupportedConfigurationError: A model is sharded, or has layers that depend on the number of processes.
    """
    for loader in loaders:
        if loader is not None:
            require_own_batches(loader)
    for name, model in models.items():
        if is_sharded_module(model):
            raise _unsupported(f"The model {name!r} is sharded, and fully_shard adds up gradients in its own order.")
        for path, layer in cast("Iterable[tuple[str, nn.Module]]", model.named_modules()):  # annotated in part
            if isinstance(layer, nn.SyncBatchNorm):
                raise _unsupported(f"{name}.{path} is a SyncBatchNorm, whose statistics depend on the processes.")
            if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse:
                raise _unsupported(f"{name}.{path} has sparse gradients, which are added up in a different order.")


def require_own_batches(loader: SizedIterable, *, may_be_limited: bool = False) -> KeyedDataLoader[Any]:
    """Return the keyed loader of a reproducible run, which makes its batches by position.

    Args:
        loader: The loader, perhaps with a limit.
        may_be_limited: Whether a limit is allowed.

    Raises:
        ConfigurationError: The loader has its own order, or a limit.
    """
    own = innermost(loader)
    if not is_keyed(own) or not own.fixed_batches:
        raise ConfigurationError(
            "A reproducible run makes its batches itself, by position in the order of the samples.",
            given=describe_loader(own),
            do=f"Pass a dataset with a length, or a stream with a __len__, without a sampler, {_WAY_OUT}",
        )
    if is_slice(loader) and not may_be_limited:
        raise ConfigurationError(
            "A limit counts the batches of each process, and would select other samples on a different number of them.",
            given=f"reproducible, and {loader.slice_size} batches of a loader",
            do="Pass max_num_train_steps, or a torch.utils.data.Subset to evaluate.",
        )
    return own


def _unsupported(problem: str) -> UnsupportedConfigurationError:
    return UnsupportedConfigurationError(f"{problem} Change it, {_WAY_OUT}")
