"""What must be the same on all processes of a run, as short texts by name, which can be compared and shown.

What may differ is left out: how many workers a process has, on which device and in which folder it works, and the
addresses of objects. Objects are described by their classes, functions by their names.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from pa_core import _accelerate
from pa_core.data.custom_loader import batches_of_slices, innermost, is_dataloader, is_keyed, length_of
from pa_core.data.data_arguments import GivenData
from pa_core.data.split_sampler import split_sampler
from pa_core.model_tensors import is_sharded, parameters_of_module
from pa_core.placeholders import PlaceholderExpression
from pa_core.sharding.sharded_states import gathering
from pa_core.training_state.model_state import hyperparameters
from pa_data import count_samples
from pa_data.orders import has_plain_order

_DECIDE_BATCHES = frozenset({"batch_sampler", "batch_size", "collate_fn", "drop_last", "sampler", "shuffle"})
"""Arguments of a loader that decide what batches hold; the others only how a process gets them."""

_OURS = frozenset({"pa_core", "pa_callbacks_extra", "pa_finetuning", "pytorch_accelerated"})
_DEEPEST = 4
_FIRST = 8  # enough to see that an order draws from elsewhere than its key


def describe_value(value: object, depth: int = 0) -> str:
    """Return the text of a setting: of plain values what they are, of others what kind of thing they are.

    Args:
        value: Anything.
        depth: How many containers it is in.

    Example:
        >>> describe_value({"lr": 0.1, "amsgrad": False}), describe_value(nn.Linear), describe_value(nn.ReLU())
        ('amsgrad=False, lr=0.1', 'Linear', 'ReLU(inplace=False)')
    """
    if isinstance(value, functools.partial):
        made = cast("functools.partial[object]", value)
        parts = [describe_value(one, depth + 1) for one in (made.func, *made.args, made.keywords)]
        return f"partial({', '.join(filter(None, parts))})"
    if depth < _DEEPEST and isinstance(value, Mapping):
        entries = cast("Mapping[object, object]", value).items()
        return ", ".join(sorted(f"{key}={describe_value(one, depth + 1)}" for key, one in entries))
    if depth < _DEEPEST and isinstance(value, (list, tuple)):
        return f"({', '.join(describe_value(one, depth + 1) for one in cast('Sequence[object]', value))})"
    return _describe_single(value)


def _describe_single(value: object) -> str:
    if value is None or isinstance(value, (bool, str)):
        return repr(value)
    if isinstance(value, numbers.Integral):
        return str(int(value))
    if isinstance(value, numbers.Real):
        return f"{float(value):.9g}"
    if isinstance(value, (enum.Enum, torch.dtype, PlaceholderExpression)):
        return str(value)
    if isinstance(value, nn.Module):
        return _describe_module(value)
    name: object = getattr(value, "__qualname__", None)
    return name if isinstance(name, str) else type(value).__qualname__


def _describe_module(module: nn.Module) -> str:
    """The class of a module, and the settings of one of torch's."""
    kind = type(module)
    if not kind.__module__.startswith("torch.nn.modules.") or isinstance(module, LazyModuleMixin):
        return kind.__qualname__
    settings = {name: value for name, value in vars(module).items() if isinstance(value, (bool, float, int, str))}
    del settings["training"]
    return f"{kind.__qualname__}({module.extra_repr() or describe_value(settings)})"


# When a run begins


def describe_arguments(arguments: Mapping[str, object]) -> dict[str, str]:
    """Return the settings that were requested for a run.

    Args:
        arguments: The values by name.
    """
    return {name: describe_value(value) for name, value in arguments.items()}


def describe_data(given: GivenData) -> dict[str, str]:
    """Return which data a run was given, and the arguments of its loader that decide what batches hold.

    Args:
        given: One of the arguments of the run.
    """
    kind = "a DataLoader" if given.loader is not None else "a dataset"
    texts = {given.argument: "None" if given.data is None else kind}
    for name, value in sorted((given.kwargs or {}).items()):
        if name in _DECIDE_BATCHES:
            texts[f"{given.argument}, {name}"] = describe_value(value)
    if given.purpose == "train":
        texts["order"] = "None" if given.order is None else given.order.fingerprint
    return texts


def describe_callbacks(callbacks: Iterable[object]) -> str:
    """Return the classes of callbacks in their order, and of those that come with the trainer what they were given.

    Args:
        callbacks: The callbacks of a run.
    """
    return ", ".join(map(_describe_callback, callbacks)) or "none"


def _describe_callback(callback: object) -> str:
    kind = type(callback)
    if kind.__module__.partition(".")[0] not in _OURS:
        return kind.__qualname__  # one of the user's may be told its rank
    given: dict[str, object] = {name: getattr(callback, name, None) for name in inspect.signature(kind).parameters}
    plain = {name: value for name, value in given.items() if isinstance(value, (bool, float, int))}
    return f"{kind.__qualname__}({describe_value(plain)})" if plain else kind.__qualname__


# When its parts are made


def describe_models(models: Mapping[str, nn.Module]) -> dict[str, str]:
    """Return the layers, the parameters and the buffers of models, which exchange gradients in this order.

    Args:
        models: The models by name, without wrappers.
    """
    texts: dict[str, str] = {}
    for name, model in models.items():
        layers = cast("Iterable[tuple[str, nn.Module]]", model.named_modules())  # annotated in part
        texts |= {f"{name}.{inner}".rstrip("."): describe_value(layer) for inner, layer in layers}
        tensors = (*model.named_parameters(), *model.named_buffers())
        texts |= {f"{name}.{inner}": _describe_tensor(one) for inner, one in tensors}
    return texts


def _describe_tensor(tensor: Tensor) -> str:
    if is_lazy(tensor):
        return "not initialized"
    frozen = ", frozen" if isinstance(tensor, nn.Parameter) and not tensor.requires_grad else ""
    pieces = f", in pieces by {tensor.placements} of {tensor.device_mesh.shape}" if is_sharded(tensor) else ""
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}{frozen}{pieces}"


def digest_of_weights(models: Mapping[str, nn.Module]) -> str:
    """Return a digest of the classes, the parameters and the buffers of models; every process must call this.

    It is the same whether a model is sharded or not.

    Args:
        models: The models by name, without wrappers.
    """
    whole = hashlib.sha256()
    for name, model in sorted(models.items()):
        whole.update(f"{name} {type(model).__qualname__.removeprefix('FSDP')}\n".encode())
        tensors = {key: value for key, value in model.state_dict().items() if isinstance(value, Tensor)}
        with gathering(tensors.values()) as of_all:
            for key, tensor in zip(tensors, of_all, strict=True):
                whole.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
                whole.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return whole.hexdigest()


def describe_trained(models: Mapping[str, nn.Module]) -> dict[str, str]:
    """Return how many parameters of each model are trained, as callbacks may freeze some.

    Args:
        models: The models by name, without wrappers.
    """
    trained = {name: [one.requires_grad for one in parameters_of_module(model)] for name, model in models.items()}
    return {f"{name}, trained parameters": f"{sum(each)} of {len(each)}" for name, each in trained.items()}


def describe_optimizers(optimizers: Mapping[str, Optimizer], models: Mapping[str, nn.Module]) -> dict[str, str]:
    """Return the classes of optimizers, and which parameters each of their groups has.

    Args:
        optimizers: The optimizers by name.
        models: The models by name, which the parameters belong to.
    """
    names = {id(one): f"{name}.{inner}" for name, model in models.items() for inner, one in model.named_parameters()}
    texts: dict[str, str] = {}
    for name, optimizer in optimizers.items():
        texts[name] = type(optimizer).__qualname__
        for index, group in enumerate(optimizer.param_groups):
            held = [names.get(id(parameter), _describe_tensor(parameter)) for parameter in group["params"]]
            texts[f"{_group(name, optimizer, index)}, parameters"] = ", ".join(held)
    return texts


def describe_hyperparameters(optimizers: Mapping[str, Optimizer]) -> dict[str, str]:
    """Return the plain settings of each group of each optimizer, such as the learning rate.

    Args:
        optimizers: The optimizers by name.
    """
    texts: dict[str, str] = {}
    for name, optimizer in optimizers.items():
        texts[f"{name}, number of groups"] = str(len(optimizer.param_groups))
        for index, group in enumerate(hyperparameters(optimizer)):
            of_group = _group(name, optimizer, index)
            texts |= {f"{of_group}, {setting}": describe_value(value) for setting, value in group.items()}
    return texts


def _group(name: str, optimizer: Optimizer, index: int) -> str:
    return name if len(optimizer.param_groups) == 1 else f"{name}, group {index}"


def describe_schedulers(schedulers: Mapping[str, Any]) -> dict[str, str]:
    """Return the classes of schedulers, and the plain values of their states.

    Args:
        schedulers: The schedulers by name.
    """
    texts: dict[str, str] = {}
    for name, scheduler in schedulers.items():
        texts[name] = type(scheduler).__qualname__
        state: object = scheduler.state_dict() if hasattr(scheduler, "state_dict") else None
        if isinstance(state, Mapping):
            plain = cast("Mapping[object, object]", state)
            texts |= {f"{name}, {key}": describe_value(value) for key, value in plain.items()}
    return texts


def describe_loader(purpose: str, loader: object) -> dict[str, str]:
    """Return what decides how many batches a process has of a loader, and how many samples are in them.

    A custom data loader of each process by itself is free in all of this.

    Args:
        purpose: What the loader is for: "training" or "evaluation".
        loader: The loader, split over the processes or not; None without one.
    """
    own, name = innermost(loader), f"{purpose} loader"
    kind = _kind_of_loader(own)
    texts = {name: kind, f"{name}, batches at most": describe_value(batches_of_slices(loader))}
    if is_keyed(own):
        texts |= {
            f"{purpose} dataset": type(own.dataset).__qualname__,
            f"{purpose} dataset, length": str(count_samples(own.dataset)),
        }
        texts |= {f"{name}, {one}": describe_value(getattr(own, one)) for one in ("batch_size", "drop_last", "shuffle")}
        if not has_plain_order(own.given_order):
            order = own.order
            first = min(_FIRST, order.num_samples)
            texts |= {
                f"{name}, order": own.given_order.fingerprint,
                f"{name}, first samples": describe_value([int(index) for index in order.indices(0, first)]),
            }
    elif kind == _SPLIT:
        texts[f"{name}, length"] = describe_value(length_of(own))
    return texts


_SPLIT = "a DataLoader that accelerate splits over the processes"


def _kind_of_loader(own: object) -> str:
    if own is None:
        return "None"
    if is_keyed(own):
        return "made of a dataset"
    if _accelerate.is_split(own) or (is_dataloader(own) and split_sampler(own) is None):
        return _SPLIT
    return "of each process by itself"
