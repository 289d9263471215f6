"""Building values again from JSON and tensors."""

from __future__ import annotations

import base64
import collections
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from pa_core.errors import CheckpointError
from pa_core.storage.encoding import JsonValue
from pa_core.storage.tensor_memory import with_strides

__all__ = ["decode"]


def decode(document: JsonValue, tensors: Mapping[str, Tensor]) -> Any:
    """Build again what ``encode`` took apart.

    Args:
        document: ``Encoded.document``.
        tensors: The tensors of the document by name; they become part of what is returned, uncopied except where
            the original had other strides.

    Raises:
        CheckpointError: The document is none that ``encode`` makes, or mentions a tensor that is not there.

    Example:
        >>> decode({"$tuple": [3, {"$tensor": "model/weight"}]}, {"model/weight": torch.ones(2)})
        (3, tensor([1., 1.]))
    """
    try:
        return _Decoder(tensors).decode(document)
    except Exception as error:  # what a wrong document does is not limited to some kinds of errors
        raise CheckpointError(
            "The document of a training state cannot be read.",
            given=f"one for which {type(error).__name__} came up: {error}",
            expected="a document in the format of this version",
            do="Use another state, or the version of pa-core that wrote this one.",
        ) from error


class _Decoder:
    """One walk through a document."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._built: dict[str, Tensor] = {}

    def decode(self, document: JsonValue) -> Any:
        if isinstance(document, list):
            return [self.decode(item) for item in document]
        if not isinstance(document, dict):
            return document
        tag = next(iter(document), "")
        if not tag.startswith("$"):
            return {key: self.decode(item) for key, item in document.items()}
        content: Any = document[tag]
        if tag in _FROM_TENSOR:
            return _FROM_TENSOR[tag](self._tensor(content, document))
        if tag in _FROM_ITEMS:
            value = _FROM_ITEMS[tag]([self.decode(item) for item in content])
            attributes = cast("dict[str, JsonValue]", document.get("attributes", {}))
            for name, attribute in attributes.items():
                setattr(value, name, self.decode(attribute))
            return value
        return _FROM_TEXT[tag](content)

    def _tensor(self, name: str, document: Mapping[str, JsonValue]) -> Tensor:
        """The tensor of that name, the same object for each mention."""
        if name not in self._built:
            tensor = self._tensors[name]
            if document.get("complex"):
                tensor = torch.view_as_complex(tensor)
            if "strides" in document:
                tensor = with_strides(tensor, tuple(cast("list[int]", document["strides"])))
            self._built[name] = tensor
        return self._built[name]


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _dtype(name: str) -> torch.dtype:
    dtype: object = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        message = f"torch.{name} is no dtype"
        raise TypeError(message)
    return dtype


_FROM_TENSOR: dict[str, Callable[[Tensor], Any]] = {
    "$tensor": lambda tensor: tensor,
    "$ndarray": lambda tensor: tensor.numpy(),
}

_FROM_ITEMS: dict[str, Callable[[list[Any]], Any]] = {
    "$tuple": tuple,
    "$set": set,
    "$size": torch.Size,
    "$complex": lambda parts: complex(*parts),
    "$dict": dict,
    "$ordered_dict": collections.OrderedDict,
    "$counter": lambda pairs: collections.Counter(dict(pairs)),
}

_FROM_TEXT: dict[str, Callable[[str], Any]] = {
    "$int": lambda text: int(text, 16),
    "$float": float,
    "$str": lambda text: _bytes(text).decode("utf-8", "surrogatepass"),
    "$bytes": _bytes,
    "$dtype": _dtype,
    "$device": torch.device,
}
