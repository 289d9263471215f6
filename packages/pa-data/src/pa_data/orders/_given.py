"""The order of a dataset: the order that was passed, or its default order."""

from __future__ import annotations

from collections.abc import Iterable

from torch.utils.data import Sampler

from pa_data.orders._order import Order

__all__ = ["order_of_dataset"]


def order_of_dataset(dataset: object, order: object = None) -> Order | None:
    """Return the order in which to visit a dataset: the passed order, or the ``default_order`` of the dataset.

    Use it in a custom loader or function that takes an ``order`` argument. Datasets such as ``Mixture`` and
    ``ShardedFiles`` have an order that suits them in their ``default_order`` attribute. If the passed value is not an
    order, the error says which order to pass, for example instead of a torch sampler.

    Args:
        dataset: Any dataset. Pass None to check the order alone.
        order: The order that a user has passed. The default, None, means the ``default_order`` of the dataset.

    Returns:
        The order, or None if none was passed and the dataset has none; the loader then chooses the order, for example
        according to ``shuffle``.

    Raises:
        TypeError: The passed value is not an order, for example a class or a sampler, or it has no name.

    Example:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from pa_data.orders import Mixture, Shuffled, order_of_dataset
        >>> small, large = TensorDataset(torch.zeros(10)), TensorDataset(torch.ones(90))
        >>> order_of_dataset(Mixture({"small": small, "large": large})).name
        'mixture-v1'
        >>> order_of_dataset(small) is None, order_of_dataset(small, Shuffled()).name
        (True, 'shuffled-v1')
    """
    if order is None:
        own: object = getattr(dataset, "default_order", None)
        return own if isinstance(own, Order) else None
    if isinstance(order, Order):
        kind = type(order).__name__
        if not isinstance(getattr(order, "name", None), str):
            problem = f"An order needs a name, by which saved states know it, and {kind} has none."
            raise TypeError(f'{problem} Write name = "{kind.lower()}-v1" in {kind}.')
        return order
    is_plain = isinstance(order, (str, bool, int))
    given = repr(order) if is_plain else getattr(order, "__name__", None) or type(order).__name__
    raise TypeError(
        f"This is not an order. Got order={given}, expected an object from pa_data.orders such as Shuffled(), or one "
        f"of a class that derives from Order. {_what_to_pass(order)}"
    )


def _what_to_pass(order: object) -> str:
    """Return advice about a value that is not an order."""
    is_function = callable(order)
    if isinstance(order, type) and issubclass(order, Order):
        return f"Pass an instance: {order.__name__}(...)."
    if isinstance(order, Sampler):
        return "Pass the order that replaces it, such as Weighted(weights)."
    if order is False:
        return "Pass Sequential() from pa_data.orders."
    if is_function or (isinstance(order, Iterable) and not isinstance(order, str)):
        return "Return the indices from indices_of_epoch() in a class that derives from pa_data.orders.TableOrder."
    return "Pass Shuffled() from pa_data.orders, or leave it out, for each sample once in a random order."
