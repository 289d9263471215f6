"""The settings of a run: an immutable, validated record for callbacks, trackers and logs."""

from __future__ import annotations

import difflib
import numbers
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, cast

from pa_core.errors import ConfigurationError


@dataclass(frozen=True)
class TrainerRunConfig:
    """The settings of the current run, for callbacks and trackers; available as ``trainer.run_config``.

    The trainer creates it when ``train()``, ``evaluate()`` or the ``with`` block of a ``Run`` begins; you need to
    construct it only in tests of your callbacks. Every value can be read as an attribute or by key (an unknown key
    raises ``KeyError``), and no value can be assigned. The dataloader arguments are copies, so changing the original
    dictionaries does not change them. A count may be given as a float that is whole.

    A run that only evaluates makes no updates: it has ``num_epochs=1``, ``num_update_steps_per_epoch=0`` and
    ``max_num_train_steps`` None or 0. All other values follow the same rules as in training.

    Args:
        num_epochs: The number of epochs of this run, at least 1.
        train_per_device_batch_size: The number of samples in a training batch of one process.
        train_dl_kwargs: The arguments of the training dataloader.
        eval_per_device_batch_size: The number of samples in an evaluation batch of one process.
        eval_dl_kwargs: The arguments of the evaluation dataloader.
        gradient_accumulation_steps: The number of training batches of one process in an optimizer update.
        gradient_clip_value: Each element of the gradients is clipped to ``[-value, value]``; None does not clip.
        train_total_batch_size: The number of samples in an optimizer update, over all processes.
        eval_total_batch_size: The number of samples in an evaluation step, over all processes.
        num_update_steps_per_epoch: The number of optimizer updates in an epoch. If epochs differ in length, this is
            their mean length, rounded up; ``trainer.epoch_lengths`` has the length of each epoch.
        max_num_train_steps: The number of optimizer updates of the run. If it was passed to ``train()``, ``num_epochs``
            follows from it; otherwise it follows from ``num_epochs``.
        is_local_process_zero: True in the first process of each machine.
        is_world_process_zero: True only in the first of all processes.
        is_distributed: True if several processes train together.
        mixed_precision: The precision of the run: ``"no"``, ``"fp16"`` or ``"bf16"``. On a CPU, where ``"fp16"`` has no
            effect, it is ``"no"``.
        num_processes: The number of processes that train together.
        gradient_clip_norm: All gradients are scaled down together so that their common norm is at most this value.
            None, the default, does not clip, because clipping changes the gradient.
        seed: The seed of the order of the data and of the augmentation. None, the default, means that no seed was
            drawn, for example in an evaluation.
        num_local_update_steps_per_epoch: The number of optimizer updates of this process in an epoch. The default is
            ``num_update_steps_per_epoch``, because every process takes part in every update.

    Raises:
        ConfigurationError: A count is not a whole number or too small, or a clipping threshold is not positive.

    Example:
        >>> import torch
        >>> from pa_core import AnyTrainer, Trainer, TrainerCallback
        >>> from pa_core.testing import make_regression
        >>> class PrintLength(TrainerCallback):
        ...     def on_training_run_start(self, trainer: AnyTrainer, **kwargs: object) -> None:
        ...         config = trainer.run_config
        ...         print(config.max_num_train_steps, "updates of", config["train_total_batch_size"], "samples")
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[PrintLength])
        >>> trainer.train(make_regression(32), num_epochs=2)
        8 updates of 8 samples
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
    # After construction this is a number; None stands for num_update_steps_per_epoch.
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
        """Return the names of all values, in the order of the constructor; ``dict(config)`` uses them.

        Returns:
            A tuple of the constructor's argument names, from ``"num_epochs"`` to
            ``"num_local_update_steps_per_epoch"``.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> from pa_core.testing import make_regression
            >>> trainer = Trainer(torch.nn.Linear(4, 1), torch.nn.MSELoss(), None, callbacks=[])
            >>> _ = trainer.evaluate(make_regression(8))
            >>> trainer.run_config.keys()[0], dict(trainer.run_config)["num_epochs"]
            ('num_epochs', 1)
        """
        return tuple(entry.name for entry in fields(self))

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __getitem__(self, key: str) -> Any:
        if key not in self.keys():
            near = difflib.get_close_matches(key, self.keys(), n=3) or self.keys()
            raise KeyError(f"The run config has no {key!r}. The nearest names are: {', '.join(near)}.")
        return getattr(self, key)

    def to_dict(self) -> dict[str, Any]:
        """Return all values in a form that ``json.dumps`` accepts, for example to log them to a tracker.

        ``dict(config)`` has the same keys, but keeps each value as it is, for example a collate function.

        Returns:
            A new dictionary of numbers, strings, True, False and None, and of dictionaries and lists of these.
            Functions and classes become their qualified names, and other objects, for example samplers, their ``repr``.

        Example:
            >>> import json, torch
            >>> from pa_core import Trainer
            >>> from pa_core.testing import make_regression
            >>> trainer = Trainer(torch.nn.Linear(4, 1), torch.nn.MSELoss(), None, callbacks=[])
            >>> _ = trainer.evaluate(make_regression(8))
            >>> json.loads(json.dumps(trainer.run_config.to_dict()))["eval_per_device_batch_size"]
            8
        """
        return {key: _plain(self[key]) for key in self.keys()}


class LoaderSettings(NamedTuple):
    """The settings of a loader in a run config.

    Attributes:
        batch_size: The number of samples in a batch of one process.
        kwargs: The arguments of the loader.
    """

    batch_size: int
    kwargs: Mapping[str, Any]


def check_count(name: str, value: object, minimum: int = 1) -> None:
    """Raise an error unless a value is a whole number that is large enough.

    Use it in the constructors of your callbacks, for arguments that count something.

    Args:
        name: The name of the argument, for the message.
        value: The value of the argument. NumPy integers are accepted; booleans and floats, even 2.0, are not.
        minimum: The smallest value that is accepted. The default, 1, suits a number of steps or epochs.

    Raises:
        ConfigurationError: ``value`` is not an integer of at least ``minimum``. It is a ``ValueError``.

    Example:
        >>> from pa_core.callbacks import check_count
        >>> check_count("num_batches", 3)
        >>> check_count("num_batches", 0)
        Traceback (most recent call last):
        ...
        pa_core.errors.ConfigurationError: num_batches must be a whole number of at least 1, got 0.
    """
    accepted = not isinstance(value, bool) and isinstance(value, numbers.Integral) and int(value) >= minimum
    if not accepted:
        raise ConfigurationError(f"{name} must be a whole number of at least {minimum}, got {value!r}.")


def is_positive(value: object) -> bool:
    """Return whether a value is a Python or NumPy number above 0; booleans do not count as numbers."""
    return not isinstance(value, bool) and isinstance(value, numbers.Real) and float(value) > 0


def check_clip_threshold(name: str, value: object) -> None:
    """Raise an error for a clipping threshold that would erase or invert every gradient.

    Args:
        name: The name of the argument, for the message.
        value: The value of the argument; None switches clipping off. With infinity, nothing is clipped, but the norm of
            the gradients is still measured.

    Raises:
        ConfigurationError: ``value`` is neither None nor a positive number.
    """
    if value is not None and not is_positive(value):
        raise ConfigurationError(f"{name} must be a positive number, or None for no clipping, got {value!r}.")


def _plain(value: object) -> Any:
    """Convert ``value`` to nested dictionaries and lists of strings, numbers, booleans and None."""
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
