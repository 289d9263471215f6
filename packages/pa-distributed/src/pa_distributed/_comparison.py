"""Comparison of values that must be the same on all processes; the differences are shown rank by rank."""

from __future__ import annotations

import enum
import functools
import hashlib
import numbers
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from pa_distributed._errors import RanksDifferError, without_secrets
from pa_distributed._processes import gather_objects, is_alone
from pa_distributed._signs import name_ranks

_MOST_SHOWN = 8
_LONGEST_TEXT = 120
_DEEPEST = 4


def require_same(
    values: Mapping[str, object] | Callable[[], Mapping[str, object]],
    exchange: Callable[[list[int]], Sequence[Sequence[float]]] | None = None,
    explain: Callable[[str], str | None] | None = None,
) -> None:
    """Raise the same error on all processes if a value differs between them.

    Call it at the start of a script, on every process, with the settings that must be the same on all of them. Ranks
    with a different learning rate, model or number of files often train for a while, and then hang or diverge. This
    check costs one small collective, in which the processes compare hashes. Only if a hash differs do they exchange the
    values, as short texts, for the message. To collect the values of all processes instead, use ``gather_objects``. On
    one process it does nothing.

    Args:
        values: The values by name, or a function without arguments that returns them, which is not called on one
            process. Texts, numbers, and dictionaries, lists and tuples of them are compared by value, and so are
            dataclasses and partial functions. Modules are compared by their layers, and by the shapes of their
            parameters and buffers, not by their weights. Optimizers are compared by the parameters and settings of
            their groups, and any other object by its class.
        exchange: A function that sends a list of a few integers from 0 to 65535 to all processes, and returns a list
            with the integers of each rank. Pass it to send them with a collective that your loop needs anyway. The
            default, None, sends them separately with ``gather_objects``.
        explain: A function that is called with the text of the differences, and returns the text of the error, or None
            for the usual text. The default, None, uses the usual text.

    Raises:
        RanksDifferError: A value differs between the processes. The message lists up to eight differences, without
            passwords in URLs. It is a ``ValueError``.
        OtherProcessError: The other processes do not make this call now, because it is within ``rank_zero_only``,
            ``rank_zero_first`` or ``rank_local``.
        RuntimeError: A launcher has started several processes, but ``torch.distributed.init_process_group()`` has not
            been called yet.

    Example:
        >>> import torch
        >>> from pa_distributed import require_same
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> require_same({"model": model, "optimizer": optimizer, "files": "12 in data/"})
    """
    if is_alone():
        return
    own = describe_values(values() if callable(values) else values)
    of_each = (exchange or gather_objects)(digest(own))
    if all(numbers_of_rank == of_each[0] for numbers_of_rank in of_each):
        return
    found = differences(gather_objects(own))
    more = f", and {len(found) - _MOST_SHOWN} more" if len(found) > _MOST_SHOWN else ""
    shown = without_secrets("; ".join(found[:_MOST_SHOWN]) + more)
    raise RanksDifferError(
        (explain and explain(shown))
        or f"The processes of this run were not given the same: {shown}. Find the line of your script where the rank, "
        "the host or the environment decides this."
    )


def digest(texts: Mapping[str, str]) -> list[int]:
    """Return four small integers that are the same on two processes if, and in practice only if, their texts are.

    Args:
        texts: The compared texts by name.

    Example:
        >>> digest({"num_epochs": "3"}) == digest({"num_epochs": "3"}), digest({"num_epochs": "3"}) == digest({})
        (True, False)
    """
    # Not the built-in hash, which differs between processes.
    whole = hashlib.sha256(repr(sorted(texts.items())).encode(errors="surrogatepass")).digest()
    return [*struct.unpack_from(">4H", whole)]  # any dtype that is exchanged holds 16 bits exactly, float32 included


def differences(texts_of_each: Sequence[Mapping[str, str]]) -> list[str]:
    """Return a line for each text that differs between processes; texts that some processes lack come last.

    If the first text differs, all later texts belong to a different thing, and are left out.

    Args:
        texts_of_each: The texts by name of each process, in the order of the ranks.

    Example:
        >>> differences([{"num_epochs": "3"}, {"num_epochs": "4"}, {"num_epochs": "4"}])
        ['num_epochs: 3 on rank 0, 4 on ranks 1-2']
        >>> differences([{"num_epochs": "3"}, {}])
        ['num_epochs: 3 on rank 0, nothing on rank 1']
    """
    names = list(dict.fromkeys(name for texts in texts_of_each for name in texts))
    found = [name for name in names if len({texts.get(name) for texts in texts_of_each}) > 1]
    if found and found[0] == names[0]:
        del found[1:]
    found.sort(key=lambda name: any(name not in texts for texts in texts_of_each))
    return [_line(name, [texts.get(name, "nothing") for texts in texts_of_each]) for name in found]


def _line(name: str, of_each: Sequence[str]) -> str:
    """Return the line about a text that differs."""
    ranks: dict[str, list[int]] = {}
    for rank, text in enumerate(of_each):
        ranks.setdefault(text, []).append(rank)
    is_long = max(map(len, ranks)) > _LONGEST_TEXT
    start = len(os.path.commonprefix(list(ranks))) if is_long else 0  # noqa: RUF071  # characters are meant
    shown = [f"{_shortened(text, start)} on {name_ranks(some)}" for text, some in ranks.items()]
    return f"{name}: {', '.join(shown)}"


def _shortened(text: str, start: int) -> str:
    """Return the shown part of a text; a long text is shown from the first difference on."""
    shown = f"...{text[start:]}" if start else text
    return shown if len(shown) <= _LONGEST_TEXT else f"{shown[:_LONGEST_TEXT]}..."


def describe_values(values: Mapping[str, object]) -> dict[str, str]:
    """Return a text for each value, or several texts if the value has parts.

    Args:
        values: Any values by name. A text describes itself. A module is described by texts of its layers, parameters
            and buffers, and an optimizer by texts of its groups: their settings, and their parameters by the names in
            the modules.
    """
    modules = {name: value for name, value in values.items() if isinstance(value, nn.Module)}
    owned = {
        id(parameter): f"{name}.{inner}"
        for name, module in modules.items()
        for inner, parameter in module.named_parameters()
    }
    texts: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, nn.Module):
            texts |= _describe_module(name, value)
        elif isinstance(value, Optimizer):
            texts |= _describe_optimizer(name, value, owned)
        else:
            texts[name] = value if isinstance(value, str) else describe_value(value)
    return texts


def describe_value(value: object, depth: int = 0) -> str:
    """Return the text of a setting: a plain value is written out, and any other value is described by its kind.

    Args:
        value: Any value.
        depth: How many containers enclose the value.

    Example:
        >>> describe_value({"lr": 0.1, "betas": (0.9, 0.99)}), describe_value(nn.Linear), describe_value(nn.ReLU())
        ('betas=(0.9, 0.99), lr=0.1', 'Linear', 'ReLU(inplace=False)')
        >>> describe_value(functools.partial(nn.Linear, 2, bias=False))
        'partial(Linear, 2, bias=False)'
    """
    if isinstance(value, functools.partial):
        made = cast("functools.partial[object]", value)
        parts = [describe_value(part, depth + 1) for part in (made.func, *made.args, made.keywords)]
        return f"partial({', '.join(filter(None, parts))})"
    if is_dataclass(value) and not isinstance(value, type):
        compared = {setting.name: getattr(value, setting.name, None) for setting in fields(value) if setting.compare}
        return f"{type(value).__qualname__}({describe_value(compared, depth + 1)})"
    if depth < _DEEPEST and isinstance(value, Mapping):
        entries = cast("Mapping[object, object]", value).items()
        return ", ".join(sorted(f"{key}={describe_value(entry, depth + 1)}" for key, entry in entries))
    if depth < _DEEPEST and isinstance(value, (list, tuple)):
        return f"({', '.join(describe_value(item, depth + 1) for item in cast('Sequence[object]', value))})"
    return _describe_single(value)


def _describe_single(value: object) -> str:
    """Return the text of a value that is not a container."""
    if value is None or isinstance(value, (bool, str)):
        return repr(value)
    if isinstance(value, numbers.Integral):
        return str(int(value))
    if isinstance(value, numbers.Real):
        return f"{float(value):.9g}"
    if isinstance(value, (enum.Enum, torch.dtype)):
        return str(value)
    if isinstance(value, nn.Module):
        return _describe_layer(value)
    name: object = getattr(value, "__qualname__", None)
    return name if isinstance(name, str) else type(value).__qualname__


def _describe_module(name: str, module: nn.Module) -> dict[str, str]:
    """Return texts of the layers, parameters and buffers of a module."""
    layers = cast("Iterable[tuple[str, nn.Module]]", module.named_modules())  # annotated in part
    texts = {f"{name}.{inner}".rstrip("."): _describe_layer(layer) for inner, layer in layers}
    tensors = (*module.named_parameters(), *module.named_buffers())
    return texts | {f"{name}.{inner}": _describe_tensor(tensor) for inner, tensor in tensors}


def _describe_optimizer(name: str, optimizer: Optimizer, owned: Mapping[int, str]) -> dict[str, str]:
    """Return texts of the groups of an optimizer."""
    groups: list[dict[str, Any]] = optimizer.param_groups
    texts = {name: type(optimizer).__qualname__, f"{name}, number of groups": str(len(groups))}
    for index, group in enumerate(groups):
        of_group = name if len(groups) == 1 else f"{name}, group {index}"
        held = [owned.get(id(parameter), _describe_tensor(parameter)) for parameter in group["params"]]
        texts[f"{of_group}, parameters"] = ", ".join(held)
        settings = {key: value for key, value in group.items() if key != "params"}
        texts |= {f"{of_group}, {key}": describe_value(_plain(value)) for key, value in settings.items()}
    return texts


def _describe_layer(layer: nn.Module) -> str:
    """Return the class of a module, with its settings if the class is defined by torch."""
    kind = type(layer)
    if not kind.__module__.startswith("torch.nn.modules."):
        return kind.__qualname__
    settings = {name: value for name, value in vars(layer).items() if isinstance(value, (bool, float, int, str))}
    del settings["training"]
    return f"{kind.__qualname__}({layer.extra_repr() or describe_value(settings)})"


def _describe_tensor(tensor: Tensor) -> str:
    """Return the type and shape of a tensor, and whether it is frozen or sharded."""
    if is_lazy(tensor):
        return "not initialized"
    frozen = ", frozen" if isinstance(tensor, nn.Parameter) and not tensor.requires_grad else ""
    sharded = cast("Any", tensor)  # a DTensor, which few processes have imported
    pieces = (
        f", in pieces by {sharded.placements} of {sharded.device_mesh.shape}" if hasattr(tensor, "placements") else ""
    )
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}{frozen}{pieces}"


def _plain(value: object) -> object:
    """Return the number in a tensor with a single element, and any other value unchanged."""
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
