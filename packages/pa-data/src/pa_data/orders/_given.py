"""The order that was passed, or that a dataset brings."""

from __future__ import annotations

from collections.abc import Iterable

from torch.utils.data import Sampler

from pa_data.orders._order import Order

__all__ = ["order_of_dataset"]


def order_of_dataset(dataset: object, order: object = None) -> Order | None:
    """Return the order in which a dataset is visited: the one that was passed, or the one that the dataset brings.

    Args:
        dataset: Any dataset. Few bring an order, as their ``default_order``; a mixture does.
        order: What was passed as the order; None for nothing.

    Returns:
        The order; None where there is none.

    Raises:
        TypeError: What was passed is something else, such as a class or a sampler.
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
