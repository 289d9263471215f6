"""A model on the device of a run, and in the wrapper that exchanges its gradients on several processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from torch import Tensor, nn

from pa_core import _accelerate
from pa_core.distributed.gradient_agreement import (
    GradientAgreement,
    gradients_carry_counts,
    synchronises_every_parameter,
)
from pa_core.distributed.gradient_exchange import GradientExchange
from pa_core.distributed.zero_pass import CallsOfStep, zero_pass
from pa_core.unwrapping import unwrap_model

__all__ = ["ModelWrapping"]

_NOTHING = nullcontext[None]()


@dataclass(frozen=True)
class _Unwrapped:
    """What a model was before it was wrapped, and how it was wrapped."""

    model: nn.Module
    undo: Callable[[], None]
    trainable: list[bool]
    for_training: bool
    num_carried: int


class ModelWrapping:
    """Places and wraps one model for a run, and makes it what it was when the run ends.

    A training step on several processes calls the model within ``step`` and ``forward_pass``. A process that has no
    sample, or no loss to show for it, runs its backward pass on ``loss_without_samples`` instead, so that the others
    need not wait for it.

    Args:
        accelerator: The accelerator of the run.

    Attributes:
        model: The model as a training step calls it, from ``wrap`` on.
        carrier: What carries small numbers of all processes along with the gradients; None where nothing can.

    Example:
        >>> import torch
        >>> from pa_core import _accelerate
        >>> wrapping = ModelWrapping(_accelerate.create_accelerator())
        >>> model = torch.nn.Linear(2, 1)
        >>> wrapping.wrap(model, for_training=True) is model  # on one process
        True
        >>> wrapping.unwrap() is model
        True
    """

    model: nn.Module

    def __init__(self, accelerator: _accelerate.AcceleratorLike) -> None:
        self.carrier: GradientAgreement | None = None
        self._accelerator = accelerator
        self._unwrapped: _Unwrapped | None = None
        self._calls: CallsOfStep | None = None
        self._exchange: GradientExchange | None = None

    def wrap(self, model: nn.Module, *, for_training: bool, num_carried: int = 0) -> nn.Module:
        """Place the model on the device and, for training on several processes, wrap it; return what a step calls.

        Args:
            model: The user's own module.
            for_training: False leaves out the wrapper that exchanges gradients.
            num_carried: How many numbers are to travel with the gradients of an update, where these are exact.

        Raises:
            UnsupportedConfigurationError: Numbers are to travel, and the model has no trainable parameter.
        """
        trains_together = for_training and self._accelerator.num_processes > 1
        plain_model = unwrap_model(model, keep_torch_compile=False)
        carrier = self._create_carrier(plain_model, num_carried) if trains_together and num_carried else None
        exchange = GradientExchange(plain_model, frozenset() if carrier is None else frozenset({carrier.NAME}))
        try:
            wrapped, undo = _accelerate.place_and_wrap(self._accelerator, model, for_training=for_training)
        finally:
            if carrier is not None:
                carrier.hide_from(plain_model)
        self.model = wrapped
        self._unwrapped = _Unwrapped(model, undo, _trainable(plain_model), for_training, num_carried)
        if trains_together:
            self._calls, self._exchange = CallsOfStep(wrapped), exchange
        if carrier is not None and synchronises_every_parameter(wrapped):
            carrier.join_backward_passes_of(wrapped)
            self.carrier = carrier
        return wrapped

    def _create_carrier(self, plain_model: nn.Module, num_values: int) -> GradientAgreement | None:
        is_exact = _accelerate.exchanges_exact_gradients(self._accelerator) and gradients_carry_counts(plain_model)
        return GradientAgreement(plain_model, num_values) if is_exact else None

    @property
    def is_outdated(self) -> bool:
        """Whether parameters were frozen or unfrozen since the model was wrapped.

        The wrapper would not exchange the gradients of those that were frozen at the time.
        """
        if self._exchange is None or self._unwrapped is None:
            return False
        return self._unwrapped.trainable != _trainable(unwrap_model(self.model, keep_torch_compile=False))

    def renew(self) -> nn.Module:
        """Wrap the model anew, as it was wrapped; return what a step calls."""
        before = self._unwrapped
        if before is None:
            return self.model
        self.unwrap()
        return self.wrap(before.model, for_training=before.for_training, num_carried=before.num_carried)

    def unwrap(self) -> nn.Module | None:
        """Make the model what it was, and return it; None if it is not wrapped."""
        before, self._unwrapped = self._unwrapped, None
        if before is not None:
            before.undo()
            self.model = before.model
        self.carrier = self._calls = self._exchange = None
        _accelerate.forget_prepared_objects(self._accelerator)
        return None if before is None else before.model

    def step(self, *, exchanges_gradients: bool) -> AbstractContextManager[None]:
        """Return the context of the forward and backward pass of one batch.

        Args:
            exchanges_gradients: Whether the backward pass exchanges gradients, once per update in that of its last
                batch.
        """
        if exchanges_gradients or self._exchange is None:
            return _NOTHING
        return _accelerate.keep_gradients_local(self._accelerator, self.model)

    def forward_pass(self) -> AbstractContextManager[object]:
        """Return the context in which a step calls the model, so that ``loss_without_samples`` makes up for calls."""
        return _NOTHING if self._calls is None else self._calls.counting()

    def loss_without_samples(self) -> Tensor:
        """Return a loss whose gradients are zero, and take part in what the others exchange in their forward pass."""
        return zero_pass(self.model, calls=1 if self._calls is None else self._calls.missing)

    def check_exchange(self) -> None:
        """Check that the gradients of an update were exchanged; every process must call this.

        Raises:
            UnsupportedConfigurationError: They were not, or not all of them.
        """
        if self._exchange is not None:
            self._exchange.check(self.model)

    def naming_unused_parameters(self) -> AbstractContextManager[None]:
        """Return a context that explains torch's error about parameters without a gradient, and names them.

        Raises:
            UnsupportedConfigurationError: Torch found such parameters.
        """
        return _NOTHING if self._exchange is None else self._exchange.naming_unused_parameters()


def _trainable(module: nn.Module) -> list[bool]:
    return [parameter.requires_grad for parameter in module.parameters()]
