"""Notes on errors of datasets and of collation that name the samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from torch.utils.data import Dataset, Subset

from pa_data.batches import describe_batch, is_array, is_mapping, keys_of
from pa_data.orders._mixture import Mixture

__all__ = ["describe_collation", "describe_samples"]

_MAX_SAMPLES = 16


def describe_samples(dataset: Dataset[Any], indices: Sequence[int]) -> str:
    """Return which samples could not be read, including their indices in the dataset of a subset.

    Example:
        >>> from torch.utils.data import TensorDataset
        >>> describe_samples(Subset(TensorDataset(), [7, 8, 9]), [1])
        'Raised for sample 1 of Subset, which is sample 8 of TensorDataset.'
    """
    places = [f"{_numbered(indices)} of {type(dataset).__name__}"]
    while isinstance(dataset, Subset):
        indices = [int(dataset.indices[index]) for index in indices]
        dataset = dataset.dataset
        places.append(f"{_numbered(indices)} of {type(dataset).__name__}")
    if isinstance(dataset, Mixture) and len(indices) == 1:
        name, index = dataset.locate(indices[0])
        places.append(f"sample {index} of {name!r}")
    verb = "is" if len(indices) == 1 else "are"
    return f"Raised for {f', which {verb} '.join(places)}."


def describe_collation(dataset: Dataset[Any], indices: Sequence[int], samples: Sequence[Any]) -> str:
    """Return which samples could not be combined into a batch, and the structures of the first two that differ."""
    note = f"Raised while a batch was made of {_numbered(indices)} of {type(dataset).__name__}."
    for structure in (_structure_without_sizes, describe_batch):  # sizes may differ where the collation pads
        by_structure: dict[str, str] = {}
        for index, sample in zip(indices, samples, strict=False):
            by_structure.setdefault(structure(sample), f"{_sample(dataset, index)} is {describe_batch(sample)}")
        if len(by_structure) > 1:
            first, second, *_ = by_structure.values()
            return f"{note} They differ: {first}, and {second}."
    return note


def _structure_without_sizes(value: object) -> str:
    if is_mapping(value):
        return str({key: _structure_without_sizes(value[key]) for key in keys_of(value)})
    if is_array(value):
        array: Any = value
        return f"{type(array).__name__} {array.dtype} {len(array.shape)}"
    if isinstance(value, tuple):
        return str([*map(_structure_without_sizes, cast("tuple[object, ...]", value))])
    return type(value).__name__


def _sample(dataset: Dataset[Any], index: int) -> str:
    return f"sample {index}" + (f" of {dataset.locate(index)[0]!r}" if isinstance(dataset, Mixture) else "")


def _numbered(indices: Sequence[int]) -> str:
    shown = ", ".join(map(str, indices[:_MAX_SAMPLES]))
    more = ", ..." if len(indices) > _MAX_SAMPLES else ""
    return f"sample{'' if len(indices) == 1 else 's'} {shown}{more}"
