"""What a run was started with: one immutable, validated record for callbacks, trackers and logs."""

from __future__ import annotations

import difflib
import numbers
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, cast

from pa_core.errors import ConfigurationError


@dataclass(frozen=True)
class TrainerRunConfig:
    """The values that describe the current run; built for each call of ``train`` or ``evaluate``.

    Every value can be read as an attribute or by key. The dataloader arguments are copies: changing the
    dictionaries they came from changes nothing here. A count may be given as a float that is whole.

    A run that only evaluates makes no updates: it has ``num_epochs=1``, ``num_update_steps_per_epoch=0`` and
    ``max_num_train_steps`` None or 0. All other values follow the same rules as in training.

    Args:
        num_epochs: Epochs of this run, at least 1.
        train_per_device_batch_size: Samples in a training batch of one process.
        train_dl_kwargs: The arguments the training dataloader was made with.
        eval_per_device_batch_size: Samples in an evaluation batch of one process.
        eval_dl_kwargs: The arguments the evaluation dataloader was made with.
        gradient_accumulation_steps: Training batches of one process that make up one optimizer update.
        gradient_clip_value: Gradients are clipped to ``[-value, value]``; None: they are not.
        train_total_batch_size: Samples of all processes in one optimizer update.
        eval_total_batch_size: Samples of all processes in one evaluation step.
        num_update_steps_per_epoch: Optimizer updates in one epoch. Where epochs differ in length, this is the mean of
            all of them, rounded up; the length of each is in ``trainer.epoch_lengths``.
        max_num_train_steps: The number of optimizer updates of the run. If it was passed to ``train()``, ``num_epochs``
            follows from it; otherwise it follows from ``num_epochs``.
        is_local_process_zero: True in the first process of each machine.
        is_world_process_zero: True in the first process of all.
        is_distributed: True if several processes train together.
        mixed_precision: What the run computes in: ``"no"``, ``"fp16"`` or ``"bf16"``. On a CPU, where ``"fp16"`` has no
            effect, it is ``"no"``.
        num_processes: Processes that take part.
        gradient_clip_norm: All gradients are scaled down together so that their norm is at most this. None, the
            default, does not clip, because clipping changes what is optimised.
        seed: The number that the order of the data and the augmentation follow from; None if nothing
            was drawn.
        num_local_update_steps_per_epoch: Optimizer updates of this process in one epoch. The default is
            ``num_update_steps_per_epoch``, as every process takes part in every update.

    Raises:
        ConfigurationError: A count is not a whole number or too small, or a clipping threshold is not positive.

    Example:
        >>> config = TrainerRunConfig(
        ...     num_epochs=2, train_per_device_batch_size=8, train_dl_kwargs={"shuffle": True},
        ...     eval_per_device_batch_size=16, eval_dl_kwargs={}, gradient_accumulation_steps=2,
        ...     gradient_clip_value=None, train_total_batch_size=16, eval_total_batch_size=16,
        ...     num_update_steps_per_epoch=10, max_num_train_steps=20, is_local_process_zero=True,
        ...     is_world_process_zero=True, is_distributed=False, mixed_precision="no", num_processes=1,
        ... )
        >>> config.num_epochs, config["train_per_device_batch_size"], config.to_dict()["train_dl_kwargs"]
        (2, 8, {'shuffle': True})
    """

    num_epochs: int
    train_per_device_batch_size: int
    train_dl_kwargs: Mapping[str, Any] = field(hash=False)
    eval_per_device_batch_size: int
    eval_dl_kwargs: Mapping[str, Any] = field(hash=False)
    gradient_accumulation_steps: int
    gradient_clip_value: float | None
    train_total_batch_size: int
    eval_total_batch_size: int
    num_update_steps_per_epoch: int
    max_num_train_steps: int | None
    is_local_process_zero: bool
    is_world_process_zero: bool
    is_distributed: bool
    mixed_precision: str
    num_processes: int
    gradient_clip_norm: float | None = None
    seed: int | None = None
    # To those who read it this is always a number; None stands for num_update_steps_per_epoch until then.
    num_local_update_steps_per_epoch: int = field(default=cast("int", None), kw_only=True)

    def __post_init__(self) -> None:
        for name in self.keys():  # a script that divides two counts has a float
            value = getattr(self, name)
            if isinstance(value, float) and value.is_integer() and not name.startswith("gradient_clip"):
                # the only assignment that a frozen dataclass allows
                object.__setattr__(self, name, int(value))
        if cast("int | None", self.num_local_update_steps_per_epoch) is None:
            object.__setattr__(self, "num_local_update_steps_per_epoch", self.num_update_steps_per_epoch)
        for entry in fields(self):
            if entry.type == "int":  # annotations are texts here
                minimum = 0 if "update_steps_per_epoch" in entry.name else 1
                check_count(entry.name, getattr(self, entry.name), minimum)
        if self.max_num_train_steps is not None:
            only_evaluates = self.num_update_steps_per_epoch == 0
            check_count("max_num_train_steps", self.max_num_train_steps, minimum=0 if only_evaluates else 1)
        check_clip_threshold("gradient_clip_value", self.gradient_clip_value)
        check_clip_threshold("gradient_clip_norm", self.gradient_clip_norm)
        object.__setattr__(self, "train_dl_kwargs", dict(self.train_dl_kwargs))
        object.__setattr__(self, "eval_dl_kwargs", dict(self.eval_dl_kwargs))

    def keys(self) -> tuple[str, ...]:
        """Return every name that can be read, so that ``dict(config)`` works."""
        return tuple(entry.name for entry in fields(self))

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __getitem__(self, key: str) -> Any:
        if key not in self.keys():
            near = difflib.get_close_matches(key, self.keys(), n=3) or self.keys()
            raise KeyError(f"The run config has no {key!r}. The nearest names are: {', '.join(near)}.")
        return getattr(self, key)

    def to_dict(self) -> dict[str, Any]:
        """Return all values in a form that ``json.dumps`` takes.

        Functions and classes become their qualified name, other objects (samplers, say) their ``repr``.
        """
        return {key: _plain(self[key]) for key in self.keys()}


class LoaderSettings(NamedTuple):
    """What a run config says about a loader.

    Attributes:
        batch_size: Samples in a batch of one process.
        kwargs: The arguments that the loader was made with.
    """

    batch_size: int
    kwargs: Mapping[str, Any]


def check_count(name: str, value: object, minimum: int = 1) -> None:
    """Raise an error for anything that is not a whole number or is too small.

    Args:
        name: The argument's name, for the message.
        value: What was given for it.
        minimum: The smallest value that makes sense.

    Raises:
        ConfigurationError: ``value`` is not an integer of at least ``minimum``.
    """
    accepted = not isinstance(value, bool) and isinstance(value, numbers.Integral) and int(value) >= minimum
    if not accepted:
        raise ConfigurationError(f"{name} must be a whole number of at least {minimum}, got {value!r}.")


def check_clip_threshold(name: str, value: object) -> None:
    """Raise an error for a clipping threshold that would erase or invert every gradient.

    Args:
        name: The argument's name, for the message.
        value: What was given for it; None switches clipping off. Infinity is accepted: it clips nothing and
            still has the norm of the gradients measured.

    Raises:
        ConfigurationError: ``value`` is neither None nor a positive number.
    """
    accepted = value is None or (not isinstance(value, bool) and isinstance(value, numbers.Real) and float(value) > 0)
    if not accepted:
        raise ConfigurationError(f"{name} must be a positive number, or None for no clipping, got {value!r}.")


def _plain(value: object) -> Any:
    """Return ``value`` built of dict, list, str, int, float, bool and None only."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Mapping):
        mapping = cast("Mapping[object, object]", value)
        return {str(key): _plain(item) for key, item in mapping.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("Iterable[object]", value)]
    name = getattr(value, "__qualname__", None)
    return repr(value) if name is None else f"{getattr(value, '__module__', None)}.{name}"
