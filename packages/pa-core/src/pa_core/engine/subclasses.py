"""Checks of subclasses of the trainer: methods that would break the loop, or that are never called."""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections.abc import Collection, Iterator
from types import FunctionType, MappingProxyType

from pa_core.errors import OverrideError

_OVERRIDABLE = frozenset({
    "_clip_gradients",
    "_create_accelerator",
    "_create_callback_handler",
    "_create_run_config",
    "_prepare_model_optimizer_and_dataloaders",
    "_run_eval_epoch",
    "_run_train_epoch",
    "_run_training",
})  # fmt: skip
"""The private methods that are documented."""

_NEVER_CALLED = MappingProxyType({
    "_perform_forward_and_backward_passes":
        "Override calculate_train_batch_loss(batch) for the forward and backward_step(loss) for the backward pass.",
    "_update_loss_tracker":
        "Return the batch_size, or the num_items_in_batch, of the mean loss from "
        "calculate_train_batch_loss and calculate_eval_batch_loss: it is the weight of the reported loss.",
    "_add_epoch_loss_to_run_history":
        "Record a custom value with run_history.update_metric(...) in train_epoch_end or eval_epoch_end.",
})  # fmt: skip
"""The alternatives to overriding methods of pytorch-accelerated that a run needs, by name."""

_SURELY_MEANT = 0.9
"""The similarity to the name of a method above which a name counts as a typo; the names of helpers reach 0.88."""
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
"""The names here for methods of the Lightning and transformers trainers, and for guesses."""

_ADVICE = MappingProxyType({
    "_check_eval_batch_size": "Remove it: each sample is evaluated once with any batch size.",
    "configure_optimizers": "Pass the optimizer to the trainer, and create_scheduler_fn to train().",
})  # fmt: skip


def check_subclass(cls: type, trainer_class: type, events: Collection[str]) -> None:
    """Raise an error for methods of a new subclass that would break the loop, and warn about unused methods.

    Args:
        cls: The new class.
        trainer_class: The trainer that the class derives from.
        events: The names of the events of callbacks.

    Raises:
        OverrideError: The class, or a mixin of it, replaces a private method or attribute of the trainer, or overrides
            a method of pytorch-accelerated that is never called.
    """
    private = _private_names(trainer_class)
    # The class itself and its mixins; the trainers among its bases were checked when they were defined.
    bases = cls.__mro__[: cls.__mro__.index(trainer_class)]
    for owner in [base for base in bases if base is cls or not issubclass(base, trainer_class)]:
        for name in vars(owner):
            if name in private - _OVERRIDABLE:
                raise OverrideError(
                    f"{owner.__name__}.{name} would replace a private part of the trainer's loop. Rename {name}."
                )
            if name in _NEVER_CALLED:
                raise OverrideError(
                    f"{owner.__name__}.{name} overrides a method of pytorch-accelerated that this trainer does not "
                    f"have and would never call. {_NEVER_CALLED[name]}"
                )
    for text in _uncalled_methods(cls, trainer_class, events):
        # the caller of __init_subclass__ is ABCMeta.__new__, and its caller is the class statement
        warnings.warn(text, UserWarning, stacklevel=4)


def _our_classes(cls: type) -> list[type]:
    return [base for base in cls.__mro__ if base.__module__.partition(".")[0] == __name__.partition(".")[0]]


def _private_names(trainer_class: type) -> set[str]:
    """Return the names of the private methods and attributes of a trainer."""
    names = {name for base in _our_classes(trainer_class) for name in (*vars(base), *inspect.get_annotations(base))}
    # Each abstract class has the last name, a mixin too.
    return {name for name in names if name.startswith("_") and not name.startswith("__")} - {"_abc_impl"}


def _uncalled_methods(cls: type, trainer_class: type, events: Collection[str]) -> Iterator[str]:
    """Yield a message for each method that is never called but whose name resembles a method of the loop."""
    own = [base for base in _our_classes(trainer_class) if base.__module__ != "pa_core.engine.any_trainer"]
    called = [*_OVERRIDABLE, *(name for base in own for name in vars(base))]
    functions = {name: value for name, value in vars(cls).items() if isinstance(value, FunctionType)}
    for name in functions:
        is_helper = any(name in other.__code__.co_names for other in functions.values())
        is_known = name == "create_scheduler_fn" or any(hasattr(base, name) for base in cls.__bases__)
        advice = None if is_helper or is_known else _advice(name, called, events, overridden=functions)
        if advice is not None:
            yield f"{cls.__name__}.{name} is never called. {advice}"


def _advice(name: str, called: list[str], events: Collection[str], overridden: Collection[str]) -> str | None:
    """Return the advice on a method; None if it is probably a helper."""
    if name in events:
        hook = name.removeprefix("on_")
        instead = f"override {hook} instead, or " if hook in called else ""
        return f"It is an event of callbacks: {instead}move it to a TrainerCallback, and pass that to the trainer."
    if name in _ADVICE:
        return _ADVICE[name]
    alike = [method for method in called if method.startswith("_") == name.startswith("_")]
    nearest = difflib.get_close_matches(name, alike, n=1, cutoff=_SURELY_MEANT)
    meant = _OF_OTHER_TRAINERS.get(name) or next(iter(nearest), None)
    if meant is not None and meant not in overridden:
        return f"The method of the trainer is {meant}: rename it to that, or to another name if it is a helper."
    return None
