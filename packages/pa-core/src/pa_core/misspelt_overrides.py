"""Methods of a trainer's subclass that look like an override and are none: misspelt, another library's, or an event."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Collection
from types import FunctionType, MappingProxyType

__all__ = ["warn_of_misspelt_overrides"]

_OVERRIDE_POINT = re.compile(
    r"(create|calculate|get_default|train|training|eval|evaluation|backward|optimizer|scheduler)_"
)
_ARGUMENTS = ("create_scheduler_fn",)
"""Arguments of ``train()`` that are functions: a method of such a name is written to be passed."""
_SURELY_MEANT = 0.9
"""How similar a name has to be to the name of a method which the loop calls; helpers have been seen up to 0.88."""
_OF_OTHER_TRAINERS = MappingProxyType({
    "calculate_eval_loss": "calculate_eval_batch_loss",
    "calculate_train_loss": "calculate_train_batch_loss",
    "compute_loss": "calculate_train_batch_loss",
    "get_eval_dataloader": "create_eval_dataloader",
    "get_train_dataloader": "create_train_dataloader",
    "predict_step": "predict_batch",
    "prediction_step": "calculate_eval_batch_loss",
    "test_step": "calculate_eval_batch_loss",
    "train_dataloader": "create_train_dataloader",
    "training_step": "calculate_train_batch_loss",
    "val_dataloader": "create_eval_dataloader",
    "validation_step": "calculate_eval_batch_loss",
})  # fmt: skip
"""By name: what a method that the trainers of Lightning or transformers call, or a guess at one, is called here."""


def warn_of_misspelt_overrides(
    cls: type, trainer_class: type, private: Collection[str], events: Collection[str]
) -> None:
    """Warn about methods of a new subclass that nothing calls, though their names say that the loop should.

    A helper may have any name, so this is not an error.

    Args:
        cls: The class that is being defined.
        trainer_class: The trainer that it derives from.
        private: The private methods that it may override.
        events: The names of the events of callbacks.
    """
    called = [*private, *filter(_OVERRIDE_POINT.match, vars(trainer_class))]
    for name, value in vars(cls).items():
        is_known = name in _ARGUMENTS or any(hasattr(base, name) for base in cls.__bases__)
        if isinstance(value, FunctionType) and not is_known and not _is_used(name, cls):
            advice = _advice(name, called, events, overridden=vars(cls))
            if advice is not None:
                # above __init_subclass__ is ABCMeta.__new__, and above that the class statement
                warnings.warn(f"{cls.__name__}.{name} is never called. {advice}", UserWarning, stacklevel=4)


def _is_used(name: str, cls: type) -> bool:
    """Whether another method of the class mentions this one, which is its helper then."""
    others = (value for other, value in vars(cls).items() if other != name and isinstance(value, FunctionType))
    return any(name in other.__code__.co_names for other in others)


def _advice(name: str, called: list[str], events: Collection[str], overridden: Collection[str]) -> str | None:
    """What to do about a method, None where it looks like a helper."""
    if name in events:
        hook = name.removeprefix("on_")
        if hook in called:
            return f"It is an event of callbacks: override {hook} instead, or move it to a TrainerCallback."
        return "It is an event of callbacks: move it to a TrainerCallback, and pass that to the trainer."
    if name == "configure_optimizers":
        return "Pass the optimizer to the trainer, and create_scheduler_fn to train()."
    alike = [one for one in called if one.startswith("_") == name.startswith("_")]
    nearest = difflib.get_close_matches(name, alike, n=1, cutoff=_SURELY_MEANT)
    meant = _OF_OTHER_TRAINERS.get(name) or next(iter(nearest), None)
    if meant is not None and meant not in overridden:
        return f"The method of the trainer is {meant}: rename it to that, or otherwise if it is a helper."
    return None
