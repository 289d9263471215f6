"""Descriptions of values that must be the same on all processes, by name, for ``pa_distributed.require_same``.

Values that may differ are left out: the number of workers, the device and the working directory.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

from torch import Tensor, nn

from pa_core import _accelerate
from pa_core._tensors import bytes_of, parameters_of_module
from pa_core.data.custom_loader import batches_of_slices, innermost, is_dataloader, is_keyed, length_of
from pa_core.data.data_arguments import DataArgument
from pa_core.data.split_sampler import split_sampler
from pa_core.sharding.sharded_states import gathering

_DECIDE_BATCHES = frozenset({"batch_sampler", "batch_size", "collate_fn", "drop_last", "sampler", "shuffle"})
"""Arguments of a loader that decide the content of batches; other arguments only decide how they are fetched."""

_OURS = frozenset({"pa_core", "pa_callbacks_extra", "pa_finetuning", "pytorch_accelerated"})
_FIRST = 8  # enough to detect an order that does not only draw from its key


# When a run begins


def describe_data(given: DataArgument) -> dict[str, object]:
    """Describe the data of a run, and the arguments of its loader that decide the content of batches.

    Args:
        given: A data argument of the run.
    """
    kind = "a DataLoader" if given.loader is not None else "a dataset"
    values: dict[str, object] = {given.argument: None if given.data is None else kind}
    for name, value in sorted((given.kwargs or {}).items()):
        if name in _DECIDE_BATCHES:
            values[f"{given.argument}, {name}"] = value
    if given.purpose == "train":
        values["order"] = None if given.order is None else given.order.fingerprint
    return values


def describe_callbacks(callbacks: Iterable[object]) -> str:
    """Describe callbacks by their classes in order, and callbacks of this package also by their arguments.

    Args:
        callbacks: The callbacks of a run.
    """
    return ", ".join(map(_describe_callback, callbacks)) or "none"


def _describe_callback(callback: object) -> str:
    kind = type(callback)
    if kind.__module__.partition(".")[0] not in _OURS:
        return kind.__qualname__  # a callback of the user may have the rank as an argument
    given: dict[str, object] = {name: getattr(callback, name, None) for name in inspect.signature(kind).parameters}
    plain = [f"{name}={value}" for name, value in given.items() if isinstance(value, (bool, float, int))]
    return f"{kind.__qualname__}({', '.join(plain)})" if plain else kind.__qualname__


# When the parts of a run are created


def digest_of_weights(models: Mapping[str, nn.Module], *, without: Collection[str] = ()) -> str:
    """Return a digest of the classes, the parameters and the buffers of models; every process must call this.

    It is the same whether a model is sharded or not.

    Args:
        models: The models by name, without wrappers.
        without: The names of the tensors that are left out, each with the name of its model and a dot in front.
    """
    whole = hashlib.sha256()
    for name, model in sorted(models.items()):
        whole.update(f"{name} {type(model).__qualname__.removeprefix('FSDP')}\n".encode())
        state = {key: value for key, value in model.state_dict().items() if f"{name}.{key}" not in without}
        tensors = {key: value for key, value in state.items() if isinstance(value, Tensor)}
        with gathering(tensors.values()) as of_all:
            for key, tensor in zip(tensors, of_all, strict=True):
                whole.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
                whole.update(bytes_of(tensor))
    return whole.hexdigest()


def describe_trained(models: Mapping[str, nn.Module]) -> dict[str, str]:
    """Describe the number of trained parameters of each model, because callbacks may freeze some.

    Args:
        models: The models by name, without wrappers.
    """
    trained = {
        name: [parameter.requires_grad for parameter in parameters_of_module(model)] for name, model in models.items()
    }
    return {f"{name}, trained parameters": f"{sum(each)} of {len(each)}" for name, each in trained.items()}


def describe_schedulers(schedulers: Mapping[str, Any]) -> dict[str, object]:
    """Describe schedulers by their classes and the values of their states.

    Args:
        schedulers: The schedulers by name.
    """
    values: dict[str, object] = {}
    for name, scheduler in schedulers.items():
        values[name] = type(scheduler)
        state: object = scheduler.state_dict() if hasattr(scheduler, "state_dict") else None
        if isinstance(state, Mapping):
            values |= {f"{name}, {key}": value for key, value in cast("Mapping[object, object]", state).items()}
    return values


def describe_loader(purpose: str, loader: object) -> dict[str, object]:
    """Describe a loader by the values that decide the numbers of batches and of samples in them.

    The values of a custom data loader for each process may differ.

    Args:
        purpose: The purpose of the loader: "training" or "evaluation".
        loader: The loader, split over the processes or not; or None.
    """
    own, name = innermost(loader), f"{purpose} loader"
    kind = _kind_of_loader(own)
    values: dict[str, object] = {name: kind, f"{name}, batches at most": batches_of_slices(loader)}
    if is_keyed(own):
        values |= {f"{purpose} dataset": type(own.dataset), f"{purpose} dataset, length": length_of(own.dataset)}
        values |= {f"{name}, {setting}": getattr(own, setting) for setting in ("batch_size", "drop_last", "shuffle")}
        if not own.given_order.is_plain:
            order = own.order
            first = min(_FIRST, order.num_samples)
            values |= {
                f"{name}, order": own.given_order.fingerprint,
                f"{name}, first samples": [int(index) for index in order.indices(0, first)],
            }
    elif kind == _SPLIT:
        values[f"{name}, length"] = length_of(own)
    return values


_SPLIT = "a DataLoader that accelerate splits over the processes"


def _kind_of_loader(own: object) -> str:
    if own is None:
        return "None"
    if is_keyed(own):
        return "made of a dataset"
    if _accelerate.is_split(own) or (is_dataloader(own) and split_sampler(own) is None):
        return _SPLIT
    return "of each process by itself"
