"""Which methods a subclass of the trainer may override, checked where the class is defined."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from pa_core.errors import OverrideError

__all__ = ["OVERRIDABLE", "REPLACED", "Replaced", "check_overrides"]

OVERRIDABLE = frozenset({
    "_clip_gradients",
    "_create_accelerator",
    "_create_callback_handler",
    "_create_run_config",
    "_prepare_model_optimizer_and_dataloaders",
    "_run_eval_epoch",
    "_run_train_epoch",
    "_run_training",
})  # fmt: skip
"""The private methods that are documented, and called."""


class Replaced(NamedTuple):
    """What to do instead of overriding a private method of pytorch-accelerated that does not exist here.

    Attributes:
        do: One line of advice.
        is_harmless: Whether a run without the method trains and records what it would have with it.
    """

    do: str
    is_harmless: bool = False


REPLACED: Mapping[str, Replaced] = MappingProxyType({
    "_perform_forward_and_backward_passes": Replaced(
        "Override calculate_train_batch_loss(batch) for the forward pass and backward_step(loss) for the backward pass."
    ),
    "_update_loss_tracker": Replaced(
        "Return the batch_size, or the num_items_in_batch, that the loss is the mean over from "
        "calculate_train_batch_loss and calculate_eval_batch_loss: the reported loss is weighed by it."
    ),
    "_add_epoch_loss_to_run_history": Replaced(
        "Record a custom value with run_history.update_metric(...) in train_epoch_end or eval_epoch_end."
    ),
    "_check_eval_batch_size": Replaced(
        "Remove it: each sample is evaluated once with any batch size.", is_harmless=True
    ),
})  # fmt: skip
"""By name: private methods of pytorch-accelerated's loop that a subclass may have overridden."""


def check_overrides(cls: type, trainer_class: type, private_parts: Collection[str]) -> None:
    """Raise an error for methods of a new subclass that would break the loop, or that the loop would never call.

    Args:
        cls: The class that is being defined.
        trainer_class: The trainer that it derives from.
        private_parts: The names of the private parts of the loop.

    Raises:
        OverrideError: The class, or a mixin of it, has a method of such a name.
    """
    for owner in _checked_classes(cls, trainer_class):
        for name in sorted(vars(owner)):
            if name in REPLACED:
                _refuse_replaced(f"{owner.__name__}.{name}", REPLACED[name])
            elif name in private_parts and name not in OVERRIDABLE:
                raise OverrideError(
                    "A method would replace a private part of the trainer's loop."
                    if callable(vars(owner)[name])
                    else "An attribute has the name of a private part of the trainer.",
                    given=f"{owner.__name__}.{name}",
                    do=f"Rename {name}.",
                )


def _checked_classes(cls: type, trainer_class: type) -> Iterator[type]:
    """The class itself and its mixins; the trainers among its bases were checked when they were defined."""
    for base in cls.__mro__[: cls.__mro__.index(trainer_class)]:
        if base is cls or not issubclass(base, trainer_class):
            yield base


def _refuse_replaced(shown: str, replaced: Replaced) -> None:
    if replaced.is_harmless:
        # above __init_subclass__ is ABCMeta.__new__, and above that the class statement
        warnings.warn(f"{shown} is never called. {replaced.do}", UserWarning, stacklevel=5)
        return
    raise OverrideError(
        "A method of pytorch-accelerated is overridden that this trainer does not have and would never call.",
        given=shown,
        do=replaced.do,
    )
