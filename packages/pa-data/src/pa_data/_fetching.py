"""Makes batches from the indices of their samples, and moves them to the device."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol, TypeAlias, cast

import torch
from torch import Tensor
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    StackDataset,
    Subset,
    TensorDataset,
    default_collate,  # pyright: ignore[reportUnknownVariableType]  # torch leaves it open
)
from typing_extensions import TypeVar, override

from pa_data._loader_parts import set_epoch
from pa_data._sample_notes import describe_collation, describe_samples
from pa_data._sample_seeds import SampleSeeds
from pa_data._streams import SizedStream
from pa_data._workers import raised_stop_iteration, require_sendable, sendable
from pa_data.batches import rebuilt_mapping, rebuilt_sequence
from pa_data.drawn_state import StateInWorkers
from pa_data.errors import DataError
from pa_data.orders._epoch_order import index_list
from pa_data.rng import preserve_rng_state, seed_rng

__all__ = [
    "BatchFetcher",
    "BatchRequest",
    "EpochProgress",
    "SampleFetcher",
    "SupportsFetchBatch",
    "WholeBatchFetcher",
    "WorkerDataset",
    "can_fetch_batch",
    "can_pin_memory",
    "collate",
    "fetch_batch",
    "indexes_only",
    "is_in_memory",
    "listed",
    "move_to_device",
    "pin_memory",
    "prefetched",
    "tell_epoch",
]


def collate(samples: list[Any]) -> Any:
    """Combine samples into a batch as torch does by default.

    Args:
        samples: The samples of the batch.
    """
    return default_collate(samples)


BatchRequest: TypeAlias = tuple[int, Tensor | Sequence[Any], Sequence[int] | None]
"""Everything that a batch of a ``RequestedDataLoader`` depends on: a key, the indices of its samples, and their draws.

A plain tuple ``(key, indices, draws)``, which ``BatchRequests.requests`` yields for each batch:

- ``key``: an integer in ``[0, 2**64)``, as ``pa_data.rng.mix`` returns it. It seeds the random augmentation.
- ``indices``: the indices of the samples in the dataset, as a list or as an int64 tensor of one dimension.
- ``draws``: a number for each sample that extends the key, so that the samples of a batch get different random numbers.
  None means the indices. Pass other numbers if an index may come twice and the copies should differ. For an
  ``IterableDataset`` it is a range: samples before its start are kept for later batches, and samples before its stop
  are read.

For example, ``(mix(7, 0), [3, 4], None)`` requests the samples 3 and 4. Every batch brings its key to the worker, so a
worker that lives for several epochs never uses an old key.
"""


class BatchFetcher(Protocol):
    """A function that makes a batch of the samples at ``indices``; ``draws`` or else the indices extend the key."""

    def __call__(self, key: int, indices: Tensor | Sequence[Any], draws: Sequence[int] | None = None) -> Any: ...


@dataclass(frozen=True)
class SampleFetcher:
    """Reads samples one after the other from a dataset, and collates them.

    Attributes:
        dataset: The dataset.
        collate_fn: The function that combines samples into a batch.
        keyed: Whether the random number generators are seeded for each sample. Draws of ``collate_fn`` continue from
            the state after the last sample of the batch.
    """

    dataset: Dataset[Any]
    collate_fn: Callable[[list[Any]], Any]
    keyed: bool

    @cached_property
    def draws_itself(self) -> bool:
        """Whether fetching may seed the global generators, whose states the caller then restores."""
        return self.keyed and not indexes_only(self.dataset)

    @cached_property
    def _seeds(self) -> SampleSeeds:
        return SampleSeeds()

    def __call__(self, key: int, indices: Tensor | Sequence[Any], draws: Sequence[int] | None = None) -> Any:
        """Return the batch of the samples at ``indices``, with random numbers for this key."""
        chosen = listed(indices)
        of_each = chosen if draws is None else draws
        try:
            if self.draws_itself and reads_table(self.dataset):
                samples = self._all_at_once(chosen)
                seed_rng(key, of_each[-1])
                return self._collate(chosen, samples)
            if self.draws_itself and not isinstance(self.dataset, SizedStream):
                return self._seeded(key, chosen, of_each)
            samples = self._samples(key, chosen, of_each)
            if not self.keyed or self.draws_itself or (self.collate_fn is collate and _are_plain(samples)):
                return self._collate(chosen, samples)
            with preserve_rng_state():
                seed_rng(key, of_each[-1])
                return self._collate(chosen, samples)
        except StopIteration as error:
            raise raised_stop_iteration(error) from error

    def _seeded(self, key: int, chosen: list[Any], draws: Sequence[int]) -> Any:
        """Return a batch whose samples have random numbers for their keys."""
        while True:
            seed = self._seeds.begin()
            try:
                batch = self._collate(chosen, self._one_by_one(key, chosen, draws, seed))
            except Exception:
                if not self._seeds.must_read_again():
                    raise
            else:
                if not self._seeds.must_read_again():
                    return batch

    def _collate(self, chosen: list[Any], samples: list[Any]) -> Any:
        try:
            return self.collate_fn(samples)
        except Exception as error:
            dataset = self.dataset.dataset if isinstance(self.dataset, SizedStream) else self.dataset
            error.add_note(describe_collation(dataset, chosen, samples))
            raise

    def _samples(self, key: int, chosen: list[Any], draws: Sequence[int]) -> list[Any]:
        if isinstance(self.dataset, SizedStream):
            return self.dataset.read(key, chosen, cast("range", draws))
        get_samples = None if self.keyed else getattr(self.dataset, "__getitems__", None)
        return self._one_by_one(key, chosen, draws, None) if get_samples is None else self._all_at_once(chosen)

    def _all_at_once(self, chosen: list[Any]) -> list[Any]:
        try:
            return cast("list[Any]", cast("Any", self.dataset).__getitems__(chosen))
        except Exception as error:
            error.add_note(describe_samples(self.dataset, chosen))
            raise

    def _one_by_one(
        self, key: int, chosen: list[Any], draws: Sequence[int], seed: Callable[[int, int], None] | None
    ) -> list[Any]:
        samples: list[Any] = []
        dataset = self.dataset
        try:
            for index, draw in zip(chosen, draws, strict=True):
                if seed is not None:
                    seed(key, draw)
                samples.append(dataset[index])
        except Exception as error:
            error.add_note(describe_samples(dataset, [chosen[len(samples)]]))
            raise
        return samples


@dataclass(frozen=True)
class WholeBatchFetcher:
    """Reads all samples of a batch at once from a dataset without random numbers, so it needs no key.

    Attributes:
        dataset: A dataset that ``can_fetch_batch`` accepts.
    """

    dataset: Dataset[Any]

    def __call__(self, key: int, indices: Tensor | Sequence[Any], draws: Sequence[int] | None = None) -> Any:
        """Return the batch of the samples at ``indices``."""
        try:
            positions = indices if isinstance(indices, Tensor) else self._positions(indices)
            return fetch_batch(self.dataset, positions)
        except Exception as error:
            error.add_note(describe_samples(self.dataset, listed(indices)))
            if isinstance(error, StopIteration):
                raise raised_stop_iteration(error) from error
            raise

    def _positions(self, indices: Sequence[Any]) -> Tensor:
        positions = torch.tensor(indices)
        return torch.where(positions < 0, positions + len(cast("Sized", self.dataset)), positions)


class WorkerDataset(Dataset[Any]):
    """The dataset in torch's workers: for each request it returns a whole batch, already collated.

    Each request contains the epoch, which this worker passes to its copy of the dataset.
    """

    def __init__(self, fetcher: BatchFetcher, dataset: Dataset[Any], state: StateInWorkers) -> None:
        self.fetcher = fetcher
        self.dataset = dataset
        self.state = state
        self._epoch: int | None = None

    @override
    def __getitem__(self, index: tuple[BatchRequest, int | None]) -> Any:
        request, epoch = index
        try:
            if epoch is not None and epoch != self._epoch:
                tell_epoch(self.dataset, self.fetcher, epoch)
                self._epoch = epoch
            batch = self.state.fetch(partial(self.fetcher, *request))
        except Exception as error:
            raise sendable(error) from error
        require_sendable(batch)
        return batch


def tell_epoch(dataset: Dataset[Any], fetcher: BatchFetcher, epoch: int) -> None:
    """Tell a dataset and its collate function which epoch begins.

    Args:
        dataset: The dataset.
        fetcher: The fetcher of its batches.
        epoch: The number of the epoch.
    """
    set_epoch(dataset, epoch)
    if isinstance(fetcher, SampleFetcher):
        set_epoch(fetcher.collate_fn, epoch)


_BatchT_co = TypeVar("_BatchT_co", covariant=True, default=Any)


class SupportsFetchBatch(Protocol[_BatchT_co]):
    """A dataset that can read a whole batch at once, which is often much faster than reading sample by sample.

    Add a ``fetch_batch`` method to your dataset, for example if it indexes an array; you need not derive from this
    class. ``KeyedDataLoader`` and ``RequestedDataLoader`` then call it instead of ``__getitem__``, unless they have a
    ``collate_fn`` or ``whole_batches=False``. The returned object is the batch, and is not collated. Random numbers in
    the method are not seeded for each sample, so do not implement it in a dataset with random augmentation. A
    ``Subset`` of the dataset uses the method, too.

    Example:
        >>> import torch
        >>> from torch import Tensor
        >>> from torch.utils.data import Dataset
        >>> from pa_data import KeyedDataLoader
        >>> class Squares(Dataset[Tensor]):
        ...     def __len__(self) -> int:
        ...         return 100
        ...     def __getitem__(self, index: int) -> Tensor:
        ...         return torch.tensor(index) ** 2
        ...     def fetch_batch(self, indices: Tensor) -> Tensor:
        ...         return indices**2
        >>> list(KeyedDataLoader(Squares(), batch_size=3, split="eval"))[0]
        tensor([0, 1, 4])
    """

    def fetch_batch(self, indices: Tensor) -> _BatchT_co:
        """Return the batch of some samples; implement it in your dataset.

        A ``KeyedDataLoader`` or ``RequestedDataLoader`` calls it once for each batch, in the main process or in a
        worker, with the indices of the batch in the requested order. An index may appear several times. Do not draw
        random numbers, because they would differ after a resume. If the method raises an error, the loader adds a note
        that names the indices.

        Args:
            indices: The indices of the samples, as int64 of shape ``(batch size,)`` on the CPU. They are not negative.

        Returns:
            The batch, equal to the result of collating the samples. The loader moves the batch to its device and does
            not change it otherwise. Return copies of the data, not views, so that the loop may change the batch in
            place.

        Example:
            >>> import torch
            >>> from torch import Tensor
            >>> from torch.utils.data import Dataset
            >>> class Rows(Dataset[Tensor]):
            ...     rows = torch.arange(6).reshape(3, 2)
            ...     def __len__(self) -> int:
            ...         return len(self.rows)
            ...     def fetch_batch(self, indices: Tensor) -> Tensor:
            ...         return self.rows[indices]
            >>> Rows().fetch_batch(torch.tensor([2, 0]))
            tensor([[4, 5],
                    [0, 1]])
        """
        ...


def listed(indices: Tensor | Sequence[Any]) -> list[Any]:
    """Return the indices of a batch as a list."""
    return index_list(indices) if isinstance(indices, Tensor) else list(indices)


def is_in_memory(dataset: Dataset[Any]) -> bool:
    """Return whether a dataset only indexes tensors in memory, so that reading it is fast and draws no random numbers.

    Use it to decide whether a loader needs workers. For such a dataset, ``num_workers=0`` is usually fastest.

    Args:
        dataset: The dataset. No sample is read.

    Returns:
        True for a ``TensorDataset`` of dense tensors, and for subsets (including the results of ``random_split``) and
        concatenations of such datasets. False for all other datasets, and for subclasses that override how a sample is
        read.

    Example:
        >>> import torch
        >>> from torch.utils.data import Subset, TensorDataset
        >>> from pa_data import is_in_memory
        >>> tensors = TensorDataset(torch.zeros(5, 2))
        >>> is_in_memory(Subset(tensors, [0, 3])), is_in_memory([0, 3])
        (True, False)
    """
    if isinstance(dataset, TensorDataset):
        return _indexes_as(dataset, TensorDataset) and all(
            tensor.layout is torch.strided and not tensor.is_nested for tensor in dataset.tensors
        )
    if isinstance(dataset, Subset):
        return _indexes_as(dataset, Subset) and is_in_memory(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return _indexes_as(dataset, ConcatDataset) and all(map(is_in_memory, dataset.datasets))
    return False


def indexes_only(dataset: Dataset[Any]) -> bool:
    """Return whether a dataset only returns stored values, so that no random number can be drawn for a sample.

    True for ranges, lists, tuples, NumPy arrays and tensors, for a ``TensorDataset``, and for subsets, concatenations
    and stacks of such datasets; False for subclasses.

    Args:
        dataset: The dataset.

    Example:
        >>> indexes_only(Subset(range(4), [1])), indexes_only(type("Drawing", (list,), {})())
        (True, False)
    """
    if cast("type[object]", type(dataset)) in _INDEXED or type(dataset) is TensorDataset or is_plain_array(dataset):
        return True
    if isinstance(dataset, Subset):
        return _indexes_as(dataset, Subset) and indexes_only(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return _indexes_as(dataset, ConcatDataset) and all(map(indexes_only, dataset.datasets))
    if isinstance(dataset, StackDataset):
        parts = cast("tuple[Dataset[Any], ...] | dict[str, Dataset[Any]]", cast("Any", dataset).datasets)
        values = parts.values() if isinstance(parts, dict) else parts
        return _indexes_as(cast("Dataset[Any]", dataset), StackDataset) and all(map(indexes_only, values))
    return False


def reads_table(dataset: Dataset[Any]) -> bool:
    """Return whether a dataset reads a table of Hugging Face's ``datasets`` without calling code of the script.

    True for a ``datasets.Dataset`` without a transform, in a format whose rows can be read together, and for subsets of
    it. A transform can be set at any time, so this is checked for each batch.

    Args:
        dataset: The dataset.
    """
    if isinstance(dataset, Subset):
        return _indexes_as(dataset, Subset) and reads_table(dataset.dataset)
    kind = cast("type[object]", type(dataset))
    if (kind.__module__, kind.__qualname__) != ("datasets.arrow_dataset", "Dataset"):
        return False
    table = cast("Any", dataset)
    return table.format["type"] in _FORMATS_OF_ROWS and _is_of_library(table.features)


def _is_of_library(features: Any) -> bool:
    """Return whether the library alone decodes a column; scripts can register classes for it."""
    if isinstance(features, dict):
        return all(map(_is_of_library, cast("dict[str, Any]", features).values()))
    if isinstance(features, list):
        return all(map(_is_of_library, cast("Iterable[Any]", features)))
    inner = getattr(features, "feature", None)
    is_of_library = type(features).__module__.partition(".")[0] == "datasets"
    return is_of_library and (inner is None or _is_of_library(inner))


_FORMATS_OF_ROWS = frozenset({None, "numpy", "python", "torch"})
_INDEXED = frozenset({range, list, tuple, str, bytes, Tensor})
_PLAIN_SAMPLES = frozenset({bool, int, float, complex, str, bytes, Tensor})


def is_plain_array(value: object) -> bool:
    """Return whether a value is a NumPy array or number, and not an instance of a subclass.

    Args:
        value: Any value.
    """
    return type(value).__module__ == "numpy" and not getattr(getattr(value, "dtype", None), "hasobject", True)


def _are_plain(samples: list[Any]) -> bool:
    """Return whether collating samples calls no code of the script, judged by the first sample."""
    return len({*map(type, samples)}) == 1 and _is_plain(samples[0])


def _is_plain(sample: Any) -> bool:
    kind = cast("type[object]", type(sample))
    if kind in (tuple, list):
        return all(map(_is_plain, sample))
    if kind is dict:
        return all(map(_is_plain, cast("dict[Any, Any]", sample).values()))
    return kind in _PLAIN_SAMPLES or is_plain_array(sample)


def can_fetch_batch(dataset: Dataset[Any]) -> bool:
    """Return whether ``fetch_batch`` supports a dataset.

    Args:
        dataset: The dataset.

    Returns:
        True if it is in memory, if it is a ``SupportsFetchBatch``, or if it is a subset of such a dataset.
    """
    if isinstance(dataset, Subset) and _indexes_as(dataset, Subset) and can_fetch_batch(dataset.dataset):
        return True
    return is_in_memory(dataset) or _offers_fetch_batch(dataset)


def fetch_batch(dataset: Dataset[Any], indices: Tensor) -> Any:
    """Return a batch that is equal to the result of collating its samples.

    The batch never shares memory with the dataset, so it may be changed in place.

    Args:
        dataset: A dataset that ``can_fetch_batch`` accepts.
        indices: The samples, as int64 of shape ``(batch size,)``.

    Returns:
        The batch: for tensors in memory, a list with a tensor for each tensor of the dataset.
    """
    if type(dataset) is not TensorDataset and _offers_fetch_batch(dataset):
        return cast("SupportsFetchBatch", dataset).fetch_batch(indices)
    if isinstance(dataset, TensorDataset):
        return [
            tensor.index_select(0, indices if tensor.is_cpu else indices.to(tensor.device))
            for tensor in dataset.tensors
        ]
    if isinstance(dataset, Subset):
        return fetch_batch(dataset.dataset, _look_up(dataset, indices))
    return _fetch_concatenated(cast("ConcatDataset[Any]", dataset), indices)


def _look_up(subset: Subset[Any], indices: Tensor) -> Tensor:
    """Translate indices of a subset to indices of its dataset."""
    table = cast("Sequence[int] | Tensor", subset.indices)  # people pass tensors too
    if isinstance(table, Tensor):
        chosen = table[indices].to(torch.int64)
    else:
        chosen = torch.tensor([int(table[index]) for index in index_list(indices)])
    num_samples = len(cast("Sized", subset.dataset))
    return torch.where(chosen < 0, chosen + num_samples, chosen)


def _fetch_concatenated(dataset: ConcatDataset[Any], indices: Tensor) -> list[Tensor]:
    """Read the samples of each part, and restore the requested order."""
    ends = torch.tensor(dataset.cumulative_sizes)
    part_of = torch.bucketize(indices, ends, right=True)
    parts: list[list[Tensor]] = []
    for number in sorted(set(index_list(part_of))):
        begin = dataset.cumulative_sizes[number - 1] if number > 0 else 0
        parts.append(fetch_batch(dataset.datasets[number], indices[part_of == number] - begin))
    as_asked = part_of.argsort(stable=True).argsort()
    return [torch.cat(column).index_select(0, as_asked.to(column[0].device)) for column in zip(*parts, strict=True)]


def _indexes_as(dataset: Dataset[Any], kind: type[Dataset[Any]]) -> bool:
    """Return whether a dataset reads its samples as its torch class does, without overriding a method."""
    names = ("__getitem__", "__getitems__")
    return all(getattr(type(dataset), name, None) is getattr(kind, name, None) for name in names)


def _offers_fetch_batch(dataset: Dataset[Any]) -> bool:
    return callable(getattr(dataset, "fetch_batch", None))


_BatchT = TypeVar("_BatchT")


def move_to_device(batch: _BatchT, device: torch.device | str | int, non_blocking: bool = False) -> _BatchT:
    """Move every tensor of a batch to a device.

    Use it in a training loop for batches of any structure. Tensors are found in lists, tuples, named tuples, mappings
    and dataclasses, at any depth. Any other object with a ``to`` method, for example a packed sequence or a graph, is
    moved with this method. All other values are kept. A ``KeyedDataLoader`` with ``device`` moves its batches itself.

    Args:
        batch: A batch as a loader yields it. It is not changed.
        device: The device, in any form that ``torch.device`` accepts, for example ``"cuda"``, ``1`` or
            ``torch.device("cpu")``.
        non_blocking: Whether the copy runs while the program continues, which needs tensors in pinned memory. The
            default is False, as in ``Tensor.to``.

    Returns:
        A batch of the same structure: a copy, or ``batch`` itself if all its tensors are already on the device.

    Raises:
        RuntimeError: The device name is unknown, or there is no such device. If torch was built without CUDA, it raises
            an ``AssertionError`` instead.

    Example:
        >>> import torch
        >>> from pa_data import move_to_device
        >>> batch = {"image": torch.zeros(2, 3), "name": ["a", "b"]}
        >>> moved = move_to_device(batch, "meta")
        >>> moved["image"].device, moved["name"]
        (device(type='meta'), ['a', 'b'])
        >>> move_to_device(batch, "cpu") is batch
        True
    """
    target = device if isinstance(device, torch.device) else torch.device(device)
    if batch.__class__ is list or batch.__class__ is tuple:  # told without taking it apart, as each step does so
        for part in cast("Any", batch):
            if part.__class__ is not Tensor or part.device != target:
                break
        else:
            return batch

    def move(leaf: Any) -> Any:
        try:
            return leaf.to(target, non_blocking=True) if non_blocking else leaf.to(target)
        except TypeError:  # many objects of users' libraries take the device alone
            return leaf.to(target)

    return cast("_BatchT", _map_leaves(batch, move, "to"))


def map_tensors(value: _BatchT, function: Callable[[Tensor], Tensor]) -> _BatchT:
    """Apply a function to all tensors in lists, tuples, named tuples, mappings and dataclasses, at any depth.

    Use it to convert a batch or a nested result, for example to detach, to cast or to slice its tensors. To move a
    batch, ``move_to_device`` also handles other objects with a ``to`` method.

    Args:
        value: A tensor, or any structure of tensors and other values. It is not changed.
        function: A function that is called with each tensor, and returns its replacement.

    Returns:
        A value of the same structure and the same classes: a copy, or ``value`` itself if the function has returned
        each tensor unchanged. Values other than tensors are kept.

    Example:
        >>> import torch
        >>> from pa_data import map_tensors
        >>> map_tensors({"mean": torch.zeros(1), "name": "cat"}, lambda tensor: tensor + 1)
        {'mean': tensor([1.]), 'name': 'cat'}
    """
    return cast("_BatchT", _map_leaves(value, function, method=""))


def can_pin_memory() -> bool:
    """Return whether there is an accelerator for which torch pins memory."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator is not None and accelerator.type != "mps"


def pin_memory(batch: _BatchT) -> _BatchT:
    """Copy every tensor of a batch on the CPU to pinned memory, from which it moves without blocking.

    It follows the structure of the batch as ``move_to_device`` does; for other objects, ``pin_memory()`` is called.

    Args:
        batch: A batch as a loader yields it.

    Returns:
        A batch of the same structure.

    Raises:
        RuntimeError: There is no accelerator.
    """

    def pin(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.device.type != "cpu":
            return leaf
        return leaf.pin_memory()

    return cast("_BatchT", _map_leaves(batch, pin, "pin_memory"))


def _map_leaves(value: Any, function: Callable[[Any], Any], method: str) -> Any:
    """Apply a function to the tensors, and to the objects that have a method; keep all values that do not change."""
    kind: type[Any] = value.__class__
    if issubclass(kind, Tensor) or callable(getattr(kind, method, None)):
        return function(value)
    if issubclass(kind, (list, tuple)):
        return rebuilt_sequence(value, lambda item: _map_leaves(item, function, method))
    if issubclass(kind, Mapping):
        return rebuilt_mapping(value, lambda item: _map_leaves(item, function, method))
    return _map_dataclass(value, function, method) if dataclasses.is_dataclass(kind) else value


def _map_dataclass(value: Any, function: Callable[[Any], Any], method: str) -> Any:
    values = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    moved = {name: _map_leaves(old, function, method) for name, old in values.items()}
    if all(moved[name] is old for name, old in values.items()):
        return value
    clone = copy.copy(value)
    for name, new in moved.items():
        object.__setattr__(clone, name, new)  # reaches the fields of frozen dataclasses too
    return clone


def prefetched(batches: Iterable[_BatchT], device: torch.device) -> Iterator[_BatchT]:
    """Yield batches on the device; each is copied while the device computes with the previous batch.

    Copies use a separate stream, one batch ahead. Progress is counted where batches are used, so a resumed run fetches
    a batch again if it was fetched but not used.

    Args:
        batches: Batches in pinned memory.
        device: A CUDA device.
    """
    copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves its streams unannotated
    under_way: list[tuple[_BatchT, torch.Event]] = []
    for batch in batches:
        # The batch may get the memory of an earlier batch: not before all computations with that batch are done.
        copies.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(copies):
            moved = move_to_device(batch, device, non_blocking=True)
        copied = copies.record_event()
        if under_way:
            yield _once_arrived(*under_way.pop(), device)
        under_way.append((moved, copied))
    if under_way:
        yield _once_arrived(*under_way.pop(), device)


def _once_arrived(batch: _BatchT, copied: torch.Event, device: torch.device) -> _BatchT:
    torch.cuda.current_stream(device).wait_event(copied)
    return batch


class EpochProgress:
    """How far an iterator has come in its epoch.

    Attributes:
        batches: The number of batches that it has yielded.
        has_ended: Whether it has reached its end.
    """

    def __init__(self) -> None:
        self.batches: int = 0
        self.has_ended: bool = False

    def count(
        self,
        batches: Iterable[_BatchT],
        num_batches: int,
        describe_awaited: Callable[[int], str],
        device: torch.device | None = None,
        *,
        non_blocking: bool = False,
    ) -> Iterator[_BatchT]:
        """Yield the batches of the iterator on the device, and count them.

        Args:
            batches: The batches.
            num_batches: The expected number of batches.
            describe_awaited: A function that describes the next batch after a number of batches, for errors of a
                worker.
            device: The device to move the batches to, or None to leave them.
            non_blocking: Whether moving them does not block.

        Raises:
            DataError: There are fewer batches.
        """
        if device is not None:
            batches = map(partial(move_to_device, device=device, non_blocking=non_blocking), batches)
        try:
            for batch in batches:
                self.batches += 1
                yield batch
        except (RuntimeError, ConnectionError, EOFError) as error:  # by which of them torch notices it
            if not isinstance(error, RuntimeError) or "exited unexpectedly" in str(error):
                error.add_note(describe_awaited(self.batches))
            raise
        if self.batches < num_batches:
            raise DataError(
                f"The epoch ended before its last batch. Got {self.batches} of {num_batches} batches. Find what ends "
                "iterations in the dataset or its batches, such as an uncaught StopIteration."
            )
        self.has_ended = True
