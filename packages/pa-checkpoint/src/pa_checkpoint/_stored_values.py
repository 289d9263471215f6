"""Values of a training state whose tensors were saved in pieces, as values with tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import Tensor

from pa_checkpoint._sharded_tensor import StoredTensor
from pa_checkpoint._torch import is_sharded

__all__ = ["resolved"]


def resolved(value: Any, own: object = None) -> Any:
    """Return a value that was read from a training state with tensors in the place of stored ones.

    Args:
        value: What was read, whose dictionaries are changed.
        own: The value that an object has now in its place. Where that has a tensor that is split over the processes,
            the saved one is split the same way, whether it is stored or whole. All others are whole.

    Example:
        >>> import torch
        >>> resolved({"weights": [StoredTensor.of(torch.ones(2))], "step": 3})
        {'weights': [tensor([1., 1.])], 'step': 3}
    """
    return _Resolving().resolve(value, own)


_WITHOUT_PARTS = frozenset({bool, int, float, str, type(None)})  # long lists of numbers are common


class _Resolving:
    """One walk through a value."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[int, int], tuple[object, object, Tensor]] = {}

    def resolve(self, value: object, own: object) -> Any:
        if isinstance(value, StoredTensor | Tensor):
            return self._tensor(value, own)
        if isinstance(value, dict):
            self._mapping(cast("dict[object, Any]", value), own)
        elif type(value) is list:
            return self._items(cast("list[object]", value), own)
        elif type(value) is tuple:
            return tuple(self._items(cast("tuple[object, ...]", value), own))
        return cast("Any", value)

    def _mapping(self, mapping: dict[object, Any], own: object) -> None:
        counterparts = cast("Mapping[object, object]", own if isinstance(own, Mapping) else {})
        for key, item in mapping.items():
            mapping[key] = self.resolve(item, counterparts.get(key))
        for name, attribute in getattr(mapping, "__dict__", {}).items():  # of an OrderedDict
            setattr(mapping, name, self.resolve(attribute, None))

    def _items(self, items: Sequence[object], own: object) -> list[Any]:
        counterparts = cast("Sequence[object]", own) if isinstance(own, list | tuple) else ()
        is_alike = len(counterparts) == len(items)
        return [
            item if type(item) in _WITHOUT_PARTS else self.resolve(item, counterparts[index] if is_alike else None)
            for index, item in enumerate(items)
        ]

    def _tensor(self, value: Tensor | StoredTensor, own: object) -> Tensor:
        """What is mentioned several times comes back as one tensor."""
        parameter = own if is_sharded(own) and own.shape == value.shape else None
        if isinstance(value, Tensor) and parameter is None:
            return value
        key = id(value), id(parameter)
        if key not in self._tensors:
            stored = StoredTensor.of(value)
            made = stored.whole() if parameter is None else stored.like(parameter)
            self._tensors[key] = value, parameter, made  # no other object gets the number of one that is kept here
        return self._tensors[key][-1]
