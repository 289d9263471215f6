"""The tensors of a model, paired once with the tensors of its average for use in many updates."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from operator import attrgetter, is_, methodcaller
from typing import TypeAlias

import torch
from torch import Tensor, nn

from pa_core import ConfigurationError
from pa_core.sharding import is_sharded_module, local_pieces
from pa_core.torch_names import BUFFERS, CHILDREN, PARAMETERS, foreach

_SHOWN_DIFFERENCES = 8  # enough to recognise the change, few enough to read

_shape, _dtype, _values = attrgetter("shape"), attrgetter("dtype"), methodcaller("values")

_Lists: TypeAlias = tuple[list[Tensor], list[Tensor]]


class TensorPairs:
    """The tensors of an averaged model, each with the tensor of the model that it follows; tied tensors appear once.

    Args:
        average: The averaged model.
        model: The model, without wrappers.
        copied: The names, as in ``named_tensors``, of the tensors that are copied instead of averaged.

    If the model is sharded, each process works on its shards, and nothing is exchanged.

    Raises:
        ConfigurationError: The two models have different tensors, tie different tensors, or are on different devices,
            or only one of the models is sharded.

    Example:
        >>> average, model = nn.Linear(1, 1).requires_grad_(False), nn.Linear(1, 1)
        >>> pairs = TensorPairs(average, model, copied=frozenset())
        >>> pairs.lerp(1.0)
        >>> torch.equal(average.weight, model.weight), pairs.are_current()
        (True, True)
        >>> model.weight = nn.Parameter(torch.ones(1, 1))
        >>> pairs.are_current()
        False
    """

    def __init__(self, average: nn.Module, model: nn.Module, copied: frozenset[str]) -> None:
        _require_same_tensors(average, model)
        _require_both_sharded(average, model)
        self._is_sharded = is_sharded_module(model)
        averages, values = named_tensors(average), named_tensors(model)
        pairs = [(averages[name], values[name], name in copied) for name in averages]
        self._all: _Lists = _lists((average, value) for average, value, _ in pairs)
        self._copied: _Lists = _lists((average, value) for average, value, is_copied in pairs if is_copied)
        averaged = [(average, value) for average, value, is_copied in pairs if not is_copied]
        # All tensors of the same kind share a pass. A tensor whose precision is not that of its average has its own
        # pass, so that a single converted copy exists at a time.
        alike = [pair for pair in averaged if pair[0].dtype == pair[1].dtype]
        self._converted: _Lists = _lists(pair for pair in averaged if pair[0].dtype != pair[1].dtype)
        self._fused: list[_Lists] = [
            _lists(pair for pair in alike if (pair[0].device, pair[0].dtype) == group)
            for group in dict.fromkeys((pair[0].device, pair[0].dtype) for pair in alike)
        ]
        self._containers = list(_containers(model))
        self._members = _members(self._containers)
        # Modules are moved and converted as a whole, so checking a single tensor of the average is enough.
        self._tensors = [*self._all[0][:1], *self._all[1]]
        self._kinds = _kinds(self._tensors)

    def are_current(self) -> bool:
        """Return whether both modules still hold these tensors, with the same shapes, precisions and devices."""
        members = _members(self._containers)
        return (
            len(members) == len(self._members)
            and all(map(is_, members, self._members))
            and _kinds(self._tensors) == self._kinds
        )

    @torch.no_grad()
    def lerp(self, weight: float) -> None:
        """Move each average toward its value by a fraction of the distance, and copy the other tensors.

        Args:
            weight: The fraction, from 0 to 1.
        """
        for averages, values in map(self._pieces, self._fused):
            foreach("lerp_", averages, values, weight)
        for average, value in zip(*self._pieces(self._converted), strict=True):
            average.lerp_(value.to(average.dtype), weight)
        _copy(self._pieces(self._copied))

    @torch.no_grad()
    def copy(self) -> None:
        """Make each average equal to its value."""
        _copy(self._pieces(self._all))

    def averages_in_place(self) -> AbstractContextManager[None]:
        """Give the tensors of the model the values of their averages, within a context.

        Only the tensors of a sharded model are copied, since its processes gather the memory of their shards.
        """
        return self._copied_in() if self._is_sharded else self._exchanged()

    @contextmanager
    def _copied_in(self) -> Generator[None]:
        own = [value.clone() for value in self._pieces(self._all)[1]]
        try:
            with torch.no_grad():
                _copy((self._pieces(self._all)[1], self._pieces(self._all)[0]))
            yield
        finally:
            with torch.no_grad():
                _copy((self._pieces(self._all)[1], own))

    @contextmanager
    def _exchanged(self) -> Generator[None]:
        own = [value.data for value in self._all[1]]
        contents = [dict(container) for container in self._containers]
        try:
            for average, value in zip(*self._all, strict=True):
                value.data = average.data.to(value.dtype)
            yield
        finally:
            # Preparing a run may have replaced these buffers.
            for container, content in zip(self._containers, contents, strict=True):
                container.clear()
                container.update(content)
            for value, data in zip(self._all[1], own, strict=True):
                value.data = data

    def _pieces(self, tensors: _Lists) -> _Lists:
        """Return the parts of tensors on this process; preparing a run may have moved them."""
        return (local_pieces(tensors[0]), local_pieces(tensors[1])) if self._is_sharded else tensors


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a module, each tensor once, under the first of its names in the alphabet."""
    return {min(names): tensor for tensor, names in _tensors_with_names(module)}


def computed_tensors(module: nn.Module) -> list[Tensor]:
    """Return the attributes that are computed from parameters, for example by pruning or the older ``weight_norm``.

    A forward pass computes them again. They have an autograd graph, so torch cannot copy them.

    Args:
        module: The module.
    """
    attributes = (value for part in module.modules() for value in vars(part).values())
    return [value for value in attributes if isinstance(value, Tensor) and not value.is_leaf]


def _tensors_with_names(module: nn.Module) -> list[tuple[Tensor, list[str]]]:
    """Sort by name, because the order of registration changes when a tensor is removed and registered again."""
    found: dict[int, tuple[Tensor, list[str]]] = {}
    for named in (module.named_parameters, module.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            found.setdefault(id(tensor), (tensor, []))[1].append(name)
    return list(found.values())


def _lists(pairs: Iterable[tuple[Tensor, Tensor]]) -> _Lists:
    listed = list(pairs)
    return [average for average, _ in listed], [value for _, value in listed]


def _copy(tensors: _Lists) -> None:
    averages, values = tensors
    if averages:
        foreach("copy_", averages, values)


def _containers(module: nn.Module) -> Iterable[dict[str, object]]:
    for submodule in module.modules():
        yield from (vars(submodule)[name] for name in (PARAMETERS, BUFFERS, CHILDREN))


def _members(containers: list[dict[str, object]]) -> list[object]:
    return list(chain.from_iterable(map(_values, containers)))


def _kinds(tensors: list[Tensor]) -> tuple[list[object], ...]:
    """Describe the tensors in a few lists; a tuple for each tensor would take half as long again."""
    return list(map(_shape, tensors)), list(map(_dtype, tensors)), list(map(Tensor.get_device, tensors))


def _require_same_tensors(average: nn.Module, model: nn.Module) -> None:
    expected, given = _describe_tensors(average), _describe_tensors(model)
    differing = [name for name in {**expected, **given} if expected.get(name) != given.get(name)]
    if differing:
        shown = [
            f"{name}: {given.get(name, 'not there')}, was {expected.get(name, 'not there')}"
            for name in differing[:_SHOWN_DIFFERENCES]
        ]
        raise ConfigurationError(
            "The model has changed since the average was made from it, or it is another model.",
            given="; ".join(shown) + (f"; and {len(differing) - len(shown)} more" if differing[len(shown) :] else ""),
            do="Make a new ModelEma of the changed model; if only the device differs, move the ModelEma there.",
        )


def _require_both_sharded(average: nn.Module, model: nn.Module) -> None:
    if is_sharded_module(average) != is_sharded_module(model):
        raise ConfigurationError(
            "The model was sharded, or unsharded, after the average was made from it. Make the ModelEma of the model "
            "as it is trained: when a run starts, it is sharded."
        )


def _describe_tensors(module: nn.Module) -> dict[str, str]:
    """Describe each tensor under each of its names, without its precision, which may differ from the average's."""
    described: dict[str, str] = {}
    for tensor, names in _tensors_with_names(module):
        description = f"shape {tuple(tensor.shape)} on {tensor.device}"
        if len(names) > 1:
            description += f", a single tensor with the names {', '.join(sorted(names))}"
        described.update(dict.fromkeys(names, description))
    return described
