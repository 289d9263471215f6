"""Methods of a trainer's subclass that look like an override and are none: misspelt, or an event of callbacks."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Collection
from types import FunctionType

__all__ = ["warn_of_misspelt_overrides"]

_OVERRIDE_POINT = re.compile(
    r"(create|calculate|get_default|train|training|eval|evaluation|backward|optimizer|scheduler)_"
)
_ARGUMENTS = ("create_scheduler_fn",)
"""Arguments of ``train()`` that are functions: a method of such a name is written to be passed."""
_SURELY_MEANT = 0.9
"""How similar a name has to be to that of a method which the loop calls; helpers have been seen up to 0.88."""


def warn_of_misspelt_overrides(
    cls: type, trainer_class: type, private: Collection[str], events: Collection[str]
) -> None:
    """Warn of methods of a new subclass that nothing calls, though their names say that the loop should.

    A helper may have any name, so that this is not refused.

    Args:
        cls: The class that is being defined.
        trainer_class: The trainer that it derives from.
        private: The private methods that it may override.
        events: The names of the events of callbacks.
    """
    called = [*private, *filter(_OVERRIDE_POINT.match, vars(trainer_class))]
    for name, value in vars(cls).items():
        is_known = name in _ARGUMENTS or any(hasattr(base, name) for base in cls.__bases__)
        if isinstance(value, FunctionType) and not is_known:
            advice = _advice(name, called, events, overridden=vars(cls))
            if advice is not None:
                # above __init_subclass__ is ABCMeta.__new__, and above that the class statement
                warnings.warn(f"{cls.__name__}.{name} is never called. {advice}", UserWarning, stacklevel=4)


def _advice(name: str, called: list[str], events: Collection[str], overridden: Collection[str]) -> str | None:
    """What to do about a method, None where it looks like a helper."""
    if name in events:
        hook = name.removeprefix("on_")
        if hook in called:
            return f"It is an event of callbacks: override {hook} instead, or move it to a TrainerCallback."
        return "It is an event of callbacks: move it to a TrainerCallback, and pass that to the trainer."
    alike = [one for one in called if one.startswith("_") == name.startswith("_")]
    nearest = difflib.get_close_matches(name, alike, n=1, cutoff=_SURELY_MEANT)
    if nearest and nearest[0] not in overridden:
        return f"The method of the trainer is {nearest[0]}: rename it to that, or otherwise if it is a helper."
    return None
