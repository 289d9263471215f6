"""The order that a run is given, or that its dataset brings, and the arguments that it excludes."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any, cast

from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset

from pa_core.errors import ConfigurationError
from pa_data.orders import Order, check_order, has_plain_order, order_of_dataset

__all__ = [
    "check_given_order",
    "describe_lost_order",
    "order_makes_batches",
    "without_effect_on_loader",
]

_DECIDES_THE_ORDER = "shuffle", "sampler", "batch_sampler", "algorithm"


def order_makes_batches(order: Order | None, dataset: object, kwargs: Mapping[str, Any]) -> bool:
    """Whether the order of a training run makes the batches, so that there is no batch size to choose.

    Args:
        order: As passed to the run.
        dataset: The dataset, which may bring one.
        kwargs: The arguments for the loader, which may switch that one off.
    """
    if order is None and all(kwargs.get(name) is None for name in _DECIDES_THE_ORDER if name != "shuffle"):
        order = order_of_dataset(dataset) if kwargs.get("shuffle", True) else None
    return order is not None and order.makes_batches


def check_given_order(order: Order | None, data: object, argument: str, kwargs: Mapping[str, Any]) -> None:
    """Raise an error for an order that is not one, or that would have no effect on the data of a run.

    Args:
        order: As passed to the run.
        data: The dataset or the ``DataLoader``.
        argument: The name of the argument for the data.
        kwargs: The arguments for the loader.

    Raises:
        ArgumentTypeError: It is not an order.
        ConfigurationError: The data, or an argument of its loader, decides the order already.
    """
    check_order(order)
    if "order" in kwargs:
        raise ConfigurationError(
            "The order of the samples is not an argument of a loader.",
            given=f"order={_describe(kwargs['order'])} among the arguments for the loader of {argument}",
            do="Pass it next to train_dataset: order=....",
        )
    if order is None:
        return
    for name in _DECIDES_THE_ORDER:
        if kwargs.get(name) is not None:
            raise _without_effect(order, f"{name}={_describe(kwargs[name])}", f"Leave {name} out, or the order.")
    kind = type(data).__name__
    if isinstance(data, IterableDataset):
        do = "Leave the order out, or pass a dataset with __len__ and __getitem__."
        raise _without_effect(order, f"a {kind} as {argument}, which yields its samples in its own order", do)
    own = order_of_dataset(data)
    if own is not None and not has_plain_order(order):
        do = f"Leave the order out, or pass a dataset of another kind than {kind}."
        raise _without_effect(order, f"a {kind} as {argument}, which brings the order {own.name}", do)


def describe_lost_order(dataset: Dataset[Any], holder: str | None) -> str | None:
    """Return a warning for a training dataset whose own order has no effect, as for a mixture in a ``Subset``.

    Args:
        dataset: The dataset of the run, or one that it holds.
        holder: What the dataset is in that has its own order; None where its order has an effect.
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
    """Return the error for an order passed with a loader, which has one already.

    Args:
        order: The order.
        loader: What the loader is, and where it comes from.
    """
    return _without_effect(order, loader, "Leave the order out, or pass a dataset and leave its loader to the trainer.")


def _without_effect(order: Order, other: str, do: str) -> ConfigurationError:
    return ConfigurationError(
        "The order of the samples is given twice.", given=f"order={type(order).__name__}(...), and {other}", do=do
    )


def _describe(value: object) -> str:
    if isinstance(value, (type, str, bool, int)):
        return value.__name__ if isinstance(value, type) else repr(value)
    return f"a {type(value).__name__}"
