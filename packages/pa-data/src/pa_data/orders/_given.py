"""Whether something is an order, and the order that a dataset brings."""

from __future__ import annotations

from collections.abc import Iterable

from torch.utils.data import Sampler

from pa_data.orders._order import Order

__all__ = ["check_order", "order_of_dataset"]


def order_of_dataset(dataset: object) -> Order | None:
    """Return the order that a dataset brings as its ``default_order``, as a mixture does; None for most of them.

    Args:
        dataset: Any dataset.
    """
    order: object = getattr(dataset, "default_order", None)
    return order if isinstance(order, Order) else None


def check_order(order: object) -> None:
    """Raise an error for anything that is not an order.

    Raises:
        TypeError: It is something else, such as a class or a sampler.
    """
    if order is None:
        return
    if isinstance(order, Order):
        kind = type(order).__name__
        if not isinstance(getattr(order, "name", None), str):
            problem = f"An order needs a name, by which saved states know it, and {kind} has none."
            raise TypeError(f'{problem} Write name = "{kind.lower()}-v1" in {kind}.')
        return
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
