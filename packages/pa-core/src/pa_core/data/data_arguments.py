"""The data arguments of ``train()`` and ``evaluate()``: a dataset with its order, or a DataLoader."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Generator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset

from pa_core.data.custom_loader import describe_loader, is_dataloader, is_keyed
from pa_core.errors import ArgumentTypeError, ConfigurationError, EmptyDatasetError
from pa_data.batches import describe_batch, is_array
from pa_data.orders import Order, order_of_dataset

DEFAULT_BATCH_SIZE = 8
"""The default of ``per_device_batch_size``, a distinct object to tell whether an argument was passed."""


_TENSOR_DATASET = (
    "Pass TensorDataset(torch.as_tensor(X), torch.as_tensor(Y)) from torch.utils.data, with .float() for float64, of "
    "inputs X and targets Y"
)
_DECIDES_THE_ORDER = "shuffle", "sampler", "batch_sampler", "algorithm"


class _OfRunBefore(int):
    """A number that equals the default, but is a different object from a caller's number."""


BATCH_SIZE_OF_RUN_BEFORE = _OfRunBefore(DEFAULT_BATCH_SIZE)
"""The default of ``evaluate()``: the batch size of the previous run, and 8 in the first run of a trainer."""


@dataclass(frozen=True)
class DataArgument:
    """A data argument of ``train()`` or ``evaluate()``.

    Attributes:
        data: The argument; None for no evaluation.
        argument: The name of the argument.
        kwargs: The arguments for its loader, if there are any.
        is_made_by_method: Whether a method that can be overridden creates the loader of a dataset.
        order: The order of the samples, if one was passed.

    Raises:
        TypeError: The order has the wrong type.
        ConfigurationError: The argument is neither a dataset nor a DataLoader, or arguments for a loader have no effect
            on a DataLoader.
    """

    data: Dataset[Any] | DataLoader[Any] | None
    argument: str
    kwargs: dict[str, Any] | None
    is_made_by_method: bool = True
    order: Order | None = None

    def __post_init__(self) -> None:
        if self.loader is None:
            _check_dataset(self.data, self.argument, self.method if self.is_made_by_method else None)
        elif self.kwargs:
            raise _without_effect(self.argument_of_kwargs, self.kwargs, self)
        _check_order(self.order, self.data, self.argument, self.kwargs or {})
        if self.order is not None and self.loader is not None:
            raise without_effect_on_loader(self.order, f"{describe_loader(self.data)} as {self.argument}")

    @property
    def loader(self) -> DataLoader[Any] | None:
        """The DataLoader, if one was passed."""
        return self.data if is_dataloader(self.data) else None

    @property
    def dataset(self) -> Dataset[Any] | None:
        """The dataset, or the dataset of the DataLoader; None for no evaluation."""
        return self.data.dataset if is_dataloader(self.data) else self.data

    @property
    def argument_of_kwargs(self) -> str:
        """The name of the argument for the arguments of the loader."""
        name = {"train_dataset": "train_dataloader_kwargs", "eval_dataset": "eval_dataloader_kwargs"}
        return name.get(self.argument.partition("[")[0], "dataloader_kwargs")

    @property
    def held(self) -> list[object]:
        """The objects that may contain generators."""
        return [self.data, *(self.kwargs or {}).values()]

    @property
    def purpose(self) -> Literal["train", "eval"]:
        """The purpose of the data."""
        return "train" if self.argument == "train_dataset" else "eval"

    @property
    def method(self) -> str:
        """The method of the trainer that creates the loader of a dataset."""
        return f"create_{self.purpose}_dataloader"

    @property
    def origin(self) -> str:
        """The origin of the loader, for messages."""
        return self.method if self.loader is None and self.is_made_by_method else self.argument

    @contextmanager
    def named_in_errors(self) -> Generator[None]:
        """Let errors from creating the loader name the arguments of the call.

        Raises:
            EmptyDatasetError: The loader has no batch.
            TypeError: The loader does not have an option.
        """
        try:
            yield
        except EmptyDatasetError as error:
            raise EmptyDatasetError(f"{error} It was passed as {self.argument}.") from None
        except TypeError as error:
            if self.kwargs:
                error.add_note(f"The names in {self.argument_of_kwargs} are: {', '.join(self.kwargs)}.")
            raise

    def check_for(self, trainer_class: type, rank: int, num_processes: int) -> None:
        """Raise an error for a DataLoader that conflicts with an override, or that belongs to another process.

        Raises:
            ConfigurationError: A DataLoader was passed, and the class overrides the method that would create it; or it
                is a ``KeyedDataLoader`` for another rank or number of processes.
        """
        loader, create = self.loader, getattr(trainer_class, self.method, None)
        is_overridden = getattr(create, "__module__", "pa_core").partition(".")[0] != "pa_core"
        if loader is not None and is_overridden:
            raise ConfigurationError(
                f"There are two loaders for the same data: a {type(loader).__name__} as {self.argument}, and "
                f"{trainer_class.__name__}.{self.method}. Pass the dataset, or do not override the method."
            )
        if is_keyed(loader) and (loader.rank, loader.num_processes) != (rank, num_processes):
            raise ConfigurationError(
                "A KeyedDataLoader yields the samples of one process, and this is a different process.",
                given=f"rank={loader.rank}, num_processes={loader.num_processes} on process {rank} of {num_processes}",
                do=f"Pass the dataset as {self.argument}: a KeyedDataLoader is then created for each process.",
            )


def check_arguments_of_loaders(
    given: Sequence[DataArgument], per_device_batch_size: int | str, collate_fn: Callable[[list[Any]], Any] | None
) -> None:
    """Raise an error for arguments that have no effect, because DataLoaders or an order take precedence.

    Args:
        given: The data of the run.
        per_device_batch_size: The argument of ``train()`` or ``evaluate()``.
        collate_fn: The argument of ``train()`` or ``evaluate()``.

    Raises:
        ConfigurationError: An argument has no effect.
    """
    of_datasets = [argument for argument in given if argument.loader is None and argument.data is not None]
    orders = [
        None
        if argument.purpose == "eval"
        else order_that_makes_batches(argument.order, argument.data, argument.kwargs or {})
        for argument in of_datasets
    ]
    if None in orders:
        return  # the batch size is for the loader of this dataset
    if orders and per_device_batch_size != DEFAULT_BATCH_SIZE:
        raise ConfigurationError(
            "per_device_batch_size has no effect with an order that makes the batches. Leave out "
            f"per_device_batch_size={per_device_batch_size}, and pass {type(orders[0]).__name__} the size of its "
            "batches."
        )
    for argument in () if of_datasets else given:
        if argument.loader is None:
            continue
        batch_size = batch_size_of(argument.loader, {}, DEFAULT_BATCH_SIZE)
        if per_device_batch_size not in (DEFAULT_BATCH_SIZE, batch_size):
            raise _without_effect("per_device_batch_size", per_device_batch_size, argument)
        of_loader: object = getattr(argument.loader, "collate_fn", None)
        if collate_fn is not None and of_loader is not collate_fn:
            raise _without_effect("collate_fn", getattr(collate_fn, "__name__", collate_fn), argument)


def batch_size_of(loader: object, kwargs: Mapping[str, Any], default: int) -> int:
    """Return the number of samples in a batch of a loader.

    Args:
        loader: The loader, or the arguments for one.
        kwargs: The arguments for it.
        default: The result if the number is unknown.
    """
    sampler = getattr(loader, "batch_sampler", None)
    sizes = (getattr(loader, "batch_size", None), getattr(sampler, "batch_size", None), kwargs.get("batch_size"))
    return next((int(size) for size in sizes if isinstance(size, numbers.Integral)), default)


def _without_effect(name: str, value: object, given: DataArgument) -> ConfigurationError:
    return ConfigurationError(
        f"{name}={value} has no effect on {describe_loader(given.data)} as {given.argument}, which is not changed. "
        f"Leave {name} out, and create the DataLoader with it."
    )


def _check_dataset(data: object, argument: str, method: str | None) -> None:
    """Raise an error for objects that are not datasets; a sequence of samples is a dataset."""
    if data is None or isinstance(data, IterableDataset):
        return
    do = _what_to_pass(data, method)
    if do is not None:
        given = f"{describe_batch(data)} as {argument}"
        raise ConfigurationError("This is neither a dataset nor a DataLoader.", given=given, do=do)


def _what_to_pass(data: Any, method: str | None) -> str | None:
    kind: type[Any] = data.__class__
    if _is_inputs_and_targets(data):
        return f"{_TENSOR_DATASET}."
    if hasattr(data, "iloc"):
        return f'{_TENSOR_DATASET}, for example table[["a", "b"]].to_numpy("float32").'
    if issubclass(kind, Mapping) and len(data) > 0 and 0 not in [*data.keys()]:
        keys = ", ".join(f"[{key!r}]" for key in [*data.keys()])
        return f"Pass a value of it that is a dataset: {keys}."
    if isinstance(data, type):
        return f"Pass an instance: {data.__name__}(...)."
    if issubclass(kind, (str, bytes)) or not hasattr(data, "__getitem__"):
        of_method = "" if method is None else f" Return a different loader from {method}."
        return f"Pass a dataset with __len__ and __getitem__.{of_method}"
    return None


def _is_inputs_and_targets(data: Any) -> bool:
    """Whether an object is ``(X, Y)``; in a list of two samples, both have the same shape."""
    kind: type[Any] = data.__class__
    if not (issubclass(kind, (list, tuple)) and len(data) == len("XY") and all(map(is_array, data))):
        return False
    inputs, targets = tuple(data[0].shape), tuple(data[1].shape)
    return issubclass(kind, tuple) or (inputs != targets and inputs[:1] == targets[:1])


def order_that_makes_batches(order: Order | None, dataset: object, kwargs: Mapping[str, Any]) -> Order | None:
    """Return the order of a training run if it makes the batches, so that there is no batch size to choose.

    Args:
        order: The argument of the run.
        dataset: The dataset, which may have an order.
        kwargs: The arguments for the loader, which may switch that order off.
    """
    if order is None and all(kwargs.get(name) is None for name in _DECIDES_THE_ORDER if name != "shuffle"):
        order = order_of_dataset(dataset) if kwargs.get("shuffle", True) else None
    return order if order is not None and order.makes_batches else None


def _check_order(order: Order | None, data: object, argument: str, kwargs: Mapping[str, Any]) -> None:
    """Raise an error for an argument that is not an order, or that has no effect on the data of a run."""
    try:
        order_of_dataset(data, order)
    except TypeError as error:
        raise ArgumentTypeError(str(error)) from None
    if "order" in kwargs:
        raise ConfigurationError(
            "The order of the samples is not an argument of a loader.",
            given=f"order={type(kwargs['order']).__name__}(...) among the arguments for the loader of {argument}",
            do="Pass it next to train_dataset: order=....",
        )
    if order is None:
        return
    for name in _DECIDES_THE_ORDER:
        if kwargs.get(name) is not None:
            raise _given_twice(order, f"{name}={kwargs[name]!r:.60}", f"Leave {name} out, or the order.")
    kind = type(data).__name__
    if isinstance(data, IterableDataset):
        do = "Leave the order out, or pass a dataset with __len__ and __getitem__."
        raise _given_twice(order, f"a {kind} as {argument}, which yields its samples in its own order", do)
    own = order_of_dataset(data)
    if own is not None and not order.is_plain:
        do = f"Leave the order out, or pass a dataset other than a {kind}."
        raise _given_twice(order, f"a {kind} as {argument}, which has the order {own.name}", do)


def describe_lost_order(dataset: Dataset[Any], holder: str | None) -> str | None:
    """Return a warning for a training dataset whose own order has no effect, for example a mixture in a ``Subset``.

    Args:
        dataset: The dataset of the run, or a dataset inside it.
        holder: The container of the dataset, which has its own order; None if the order of the dataset has an effect.
    """
    if isinstance(dataset, Subset):
        return describe_lost_order(dataset.dataset, "a Subset")
    order = order_of_dataset(dataset)
    if order is not None and holder is not None and not order.takes_each_once(len(cast("Sized", dataset))):
        kind = type(dataset).__name__
        return (
            f"The order of a {kind}, {order.name}, has no effect in {holder}: pass the {kind} itself as train_dataset."
        )
    if type(dataset) is ConcatDataset:
        datasets: list[Dataset[Any]] = dataset.datasets  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # open in torch
        parts = (describe_lost_order(part, "a ConcatDataset") for part in datasets)
        return next((line for line in parts if line is not None), None)
    return None


def without_effect_on_loader(order: Order, loader: str) -> ConfigurationError:
    """Return the error for an order passed with a loader, which already has an order.

    Args:
        order: The order.
        loader: The description and the origin of the loader.
    """
    return _given_twice(order, loader, "Leave the order out, or pass a dataset, whose loader the trainer creates.")


def _given_twice(order: Order, other: str, do: str) -> ConfigurationError:
    return ConfigurationError(
        "There are two orders of the samples.", given=f"order={type(order).__name__}(...), and {other}", do=do
    )
