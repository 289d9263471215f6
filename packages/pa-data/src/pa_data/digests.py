"""Short texts about the content of samples, by which the data of two processes are compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from pa_data._workers import WorkerStart
from pa_data.batches import is_array, is_mapping, keys_of
from pa_data.orders._fingerprint import fingerprint
from pa_data.rng import mix, preserve_rng_state, seed_rng

__all__ = ["digest_samples", "digests_of_leaves"]

_TIMES = 3
"""How often a sample is read: a sample with random numbers of a custom generator seldom stays the same."""


def digests_of_leaves(value: object) -> dict[str, str]:
    """Return a short text about each number, string and array of a sample, by its place.

    Texts are equal on machines that round differently: for floating-point arrays they contain the shape and some means,
    and for paths the name. Objects without comparable content are left out.

    Args:
        value: A sample or a part of a sample.

    Example:
        >>> digests_of_leaves({"label": 3, "name": "/data/cat.png"})
        {"['label']": '3', "['name']": "'cat.png'"}
    """
    return dict(_leaves("", value))


def _leaves(place: str, value: Any) -> Iterator[tuple[str, str]]:
    if is_array(value) and not is_mapping(value):
        yield from _text_of_array(place, value)
    elif is_mapping(value):
        for key in keys_of(value):
            yield from _leaves(f"{place}[{key!r}]", value[key])
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(cast("Sequence[object]", value)):
            yield from _leaves(f"{place}[{number}]", item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _leaves(f"{place}.{field.name}", getattr(value, field.name, None))
    elif isinstance(value, (float, int, str, bytes, PurePath)):
        yield place, _text_of(value)


def _text_of(value: float | str | bytes | PurePath) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return repr(PurePath(value).name) if isinstance(value, PurePath | str) and "/" in str(value) else repr(value)


def _text_of_array(place: str, value: Any) -> Iterator[tuple[str, str]]:
    try:
        tensor = torch.as_tensor(value).detach()
        if tensor.is_floating_point():
            yield place, f"{tuple(tensor.shape)} {_means(tensor.to('cpu', torch.float64).reshape(-1))}"
        else:
            yield place, fingerprint(str(tuple(tensor.shape)), {"values": tensor})
    except (TypeError, ValueError, RuntimeError):
        return  # no tensor can hold it


def _means(values: Tensor) -> str:
    """Return means that hardly depend on rounding, since no terms cancel out."""
    weights = torch.linspace(1, 2, len(values), dtype=values.dtype)
    means = [values.abs().mean(), (values.abs() * weights).mean(), (values.clamp(min=0) * weights).mean()]
    return " ".join(f"{float(mean):.3g}" for mean in means)


class _Digested(Dataset[dict[str, str]]):
    """The digests of the parts of a sample that are always the same, with all global generators seeded by its index."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset = dataset

    @override
    def __getitem__(self, index: int) -> dict[str, str]:
        each: list[dict[str, str]] = []
        for _ in range(_TIMES):
            seed_rng(mix(index))
            try:
                each.append(digests_of_leaves(self.dataset[index]))
            except Exception:
                return {}  # not every index need be in use
        first, *others = each
        return {place: text for place, text in first.items() if all(texts.get(place) == text for texts in others)}


def digest_samples(loader: DataLoader[Any], indices: Sequence[int]) -> list[dict[str, str]]:
    """Return the digests of the constant parts of some samples, read where the loader reads samples.

    If the loader has workers, a separate worker reads them, and ends afterwards, so that resources that a dataset opens
    with its first sample are not open when the workers of the loader are forked.

    Args:
        loader: A loader of a dataset with indices.
        indices: The indices of the samples.
    """
    digested = _Digested(loader.dataset)
    if loader.num_workers == 0:
        with preserve_rng_state():
            return [digested[index] for index in indices]
    with preserve_rng_state():
        found: DataLoader[dict[str, str]] = DataLoader(
            digested,
            batch_size=None,
            sampler=indices,
            num_workers=1,
            timeout=loader.timeout,
            worker_init_fn=cast("Callable[[int], None]", WorkerStart(cast("Any", loader).worker_init_fn)),
            multiprocessing_context=cast("Any", loader).multiprocessing_context,
            generator=torch.Generator(),
        )
        return [*found]
