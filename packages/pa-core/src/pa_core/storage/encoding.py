"""Values as JSON and tensors, so that they can be stored and come back exactly, without unpickling anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, Union

from torch import Tensor

__all__ = ["Encoded", "JsonScalar", "JsonValue", "decode", "encode"]

JsonScalar: TypeAlias = bool | int | float | str | None
JsonValue: TypeAlias = Union[JsonScalar, "list[JsonValue]", "dict[str, JsonValue]"]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A value in two parts: a document for a JSON file, and the tensors that it mentions by name.

    Attributes:
        document: Holds no object of the encoded value, so later changes of that do not reach it.
        tensors: The tensors themselves, not copies. A name is the path to the first place where it was found.
    """

    document: JsonValue
    tensors: dict[str, Tensor]


def encode(value: object, where: str) -> Encoded:
    """Take a value apart into a JSON document and tensors; ``decode`` builds it again, exactly.

    Args:
        value: What is to be stored.
        where: What the caller calls it: the first part of the tensors' names and of the path in a message.

    Raises:
        CheckpointError: Something in ``value`` cannot be stored; the first such entry is named.
    """
    raise NotImplementedError


def decode(document: JsonValue, tensors: Mapping[str, Tensor]) -> Any:
    """Build again what ``encode`` took apart.

    Args:
        document: ``Encoded.document``.
        tensors: The tensors of the document by name; they become part of what is returned, uncopied where their
            strides allow.

    Raises:
        CheckpointError: The document is none that ``encode`` makes, or mentions a tensor that is not there.
    """
    raise NotImplementedError
