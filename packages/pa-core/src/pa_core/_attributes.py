"""Attributes with temporary values."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def temporarily(owner: object, **values: object) -> Generator[None]:
    """Set attributes of an object within the context, and restore them afterwards.

    Args:
        owner: The object.
        **values: The temporary values by the names of existing attributes.

    Example:
        >>> from types import SimpleNamespace
        >>> owner = SimpleNamespace(is_open=False)
        >>> with temporarily(owner, is_open=True):
        ...     owner
        namespace(is_open=True)
        >>> owner
        namespace(is_open=False)
    """
    before = {name: getattr(owner, name) for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)
