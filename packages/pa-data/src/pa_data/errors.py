"""Errors that tell what was given, what was expected and what to do.

Each error also derives from the built-in exception a Python user would catch for the same mistake, so
``except ValueError`` keeps working:

    >>> issubclass(ConfigurationError, ValueError), issubclass(ArgumentTypeError, TypeError)
    (True, True)
"""

from __future__ import annotations

from typing_extensions import override

__all__ = [
    "ArgumentTypeError",
    "ConfigurationError",
    "EmptyDatasetError",
    "ExplainedError",
    "ShardError",
    "UnsupportedConfigurationError",
]


class ExplainedError(Exception):
    """Base of the errors of this module.

    Where the sentence says it all, as for a number that is out of its range, the other parts are left out. The parts
    are kept as attributes and in ``args``, so that the error survives the way back from another process.

    Args:
        problem: One sentence that says what is wrong.
        given: What was found, as text; name the argument as well as its value.
        expected: What would have been right, where the sentence does not say so.
        do: What the reader can do about it.

    Example:
        >>> print(ExplainedError("The bag is empty.", given="0 apples", expected="some", do="Buy an apple."))
        The bag is empty.
          given:    0 apples
          expected: some
          do:       Buy an apple.
    """

    def __init__(self, problem: str, given: str = "", expected: str = "", do: str = "") -> None:
        super().__init__(problem, given, expected, do)
        self.problem = problem
        self.given = given
        self.expected = expected
        self.do = do

    @override
    def __str__(self) -> str:
        parts = (("given:   ", self.given), ("expected:", self.expected), ("do:      ", self.do))
        return "\n".join([self.problem, *(f"  {name} {text}" for name, text in parts if text)])


class ConfigurationError(ExplainedError, ValueError):
    """An argument has a value that cannot work, such as a negative number of epochs.

    Example:
        >>> raise ConfigurationError("num_epochs must be a whole number >= 1, got -1.")
        Traceback (most recent call last):
        ...
        pa_data.errors.ConfigurationError: num_epochs must be a whole number >= 1, got -1.
    """


class ArgumentTypeError(ExplainedError, TypeError):
    """An argument is another kind of thing than the one that is expected, such as a class instead of an instance.

    Example:
        >>> from pa_data.orders import Shuffled, check_order
        >>> check_order(Shuffled)
        Traceback (most recent call last):
        ...
        pa_data.errors.ArgumentTypeError: This is not an order.
          given:    order=Shuffled
          ...
          do:       Pass an instance: Shuffled(...).
    """


class EmptyDatasetError(ConfigurationError):
    """A dataset, or what is left of it after ``drop_last``, holds no batch to run on.

    Example:
        >>> issubclass(EmptyDatasetError, ConfigurationError)
        True
    """


class UnsupportedConfigurationError(ExplainedError, RuntimeError):
    """Every argument is valid, but this environment or combination cannot do what was requested.

    Example:
        >>> issubclass(UnsupportedConfigurationError, RuntimeError)
        True
    """


class ShardError(ExplainedError, ValueError):
    """A file of a dataset is missing, damaged, has changed, or holds something else than its reader expects.

    Example:
        >>> issubclass(ShardError, ValueError)
        True
    """
