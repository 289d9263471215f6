"""A model of which each process has a copy, in the wrapper that exchanges its gradients on several processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn
from typing_extensions import override

from pa_core import _accelerate
from pa_core._torch import prepare_exchange, preserving_version
from pa_core.distributed.collectives import synchronising_wrapper
from pa_core.distributed.gradient_agreement import (
    GradientAgreement,
    gradients_carry_counts,
    synchronises_every_parameter,
)
from pa_core.distributed.gradient_exchange import GradientExchange, never_used
from pa_core.distributed.summation_order import settle_summation_order
from pa_core.distributed.wrapping import Carrier, ModelWrapping
from pa_core.distributed.zero_pass import CallsOfStep, zero_pass
from pa_core.errors import UnsupportedConfigurationError
from pa_core.module_tensors import parameters_of_module
from pa_core.unwrapping import unwrap_model

__all__ = ["ReplicatedWrapping"]

_NOTHING = nullcontext[None]()


@dataclass(frozen=True)
class _Unwrapped:
    """What a model was before it was wrapped, and how it was wrapped."""

    model: nn.Module
    undo: Callable[[], None]
    trainable: list[bool]
    for_training: bool
    num_carried: int


class ReplicatedWrapping(ModelWrapping):
    """Places one model for a run and, to train it on several processes, wraps it in ``DistributedDataParallel``.

    Args:
        accelerator: The accelerator of the run.

    Example:
        >>> import torch
        >>> from pa_core import _accelerate
        >>> wrapping = ReplicatedWrapping(_accelerate.create_accelerator())
        >>> model = torch.nn.Linear(2, 1)
        >>> wrapping.wrap(model, for_training=True) is model  # on one process
        True
        >>> wrapping.unwrap() is model
        True
    """

    def __init__(self, accelerator: _accelerate.AcceleratorLike) -> None:
        self.carrier: Carrier | None = None
        self._accelerator = accelerator
        self._unwrapped: _Unwrapped | None = None
        self._calls: CallsOfStep | None = None
        self._exchange: GradientExchange | None = None
        self._zero_only: set[str] = set()

    @override
    def wrap(self, model: nn.Module, *, for_training: bool, num_carried: int = 0) -> nn.Module:
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
        if trains_together:
            settle_summation_order(wrapped, carrier)
        return wrapped

    def _create_carrier(self, plain_model: nn.Module, num_values: int) -> GradientAgreement | None:
        is_exact = _accelerate.exchanges_exact_gradients(self._accelerator) and gradients_carry_counts(plain_model)
        return GradientAgreement(plain_model, num_values) if is_exact else None

    @property
    @override
    def is_outdated(self) -> bool:
        # The wrapper would not exchange the gradients of parameters that were frozen when it was made.
        if self._exchange is None or self._unwrapped is None:
            return False
        return self._unwrapped.trainable != _trainable(unwrap_model(self.model, keep_torch_compile=False))

    @override
    def renew(self) -> nn.Module:
        before = cast("_Unwrapped", self._unwrapped)
        self.unwrap()
        # The wrapper writes the same weights over them, which a graph that waits for its backward pass does not mind.
        kept = (*before.model.parameters(), *before.model.buffers())
        with ExitStack() as stack:
            for tensor in kept:
                stack.enter_context(preserving_version(tensor))
            return self.wrap(before.model, for_training=before.for_training, num_carried=before.num_carried)

    @override
    def unwrap(self) -> nn.Module | None:
        before, self._unwrapped = self._unwrapped, None
        if before is not None:
            before.undo()
            del self.model
        self.carrier = self._calls = self._exchange = None
        _accelerate.forget_prepared_objects(self._accelerator)
        return None if before is None else before.model

    @override
    def step(self, *, exchanges_gradients: bool) -> AbstractContextManager[object]:
        if exchanges_gradients or self._accelerator.num_processes == 1:
            return _NOTHING
        return _accelerate.keep_gradients_local(self._accelerator, self.model)

    @override
    def forward_pass(self, *, is_empty: bool = False, some_are_empty: bool = False) -> AbstractContextManager[object]:
        return _NOTHING if self._calls is None else self._calls.counting()

    @override
    def end_forward_pass(self, loss: Tensor) -> None: ...

    @override
    def loss_without_samples(self) -> Tensor:
        return zero_pass(self.model, calls=1 if self._calls is None else self._calls.missing)

    @override
    def backward(
        self,
        loss: Tensor,
        inputs: Sequence[Tensor] | None = None,
        *,
        exchanges_gradients: bool,
        retain_graph: bool | None = None,
    ) -> None:
        """Run a backward pass, and prepare its exchange as the wrapper would in its forward pass.

        A second exchange in the same update adds to the first one: averaging what is averaged changes nothing. It need
        not reach all parameters; ``check_update`` looks whether some pass has.

        Args:
            loss: As for every wrapping.
            inputs: As for every wrapping.
            exchanges_gradients: As for every wrapping.
            retain_graph: As for every wrapping.

        Raises:
            UnsupportedConfigurationError: The gradients were not exchanged, or the wrapper was told that its graph is
                static, and prepares no exchange outside of its forward pass.
        """
        wrapper = synchronising_wrapper(self.model) if exchanges_gradients else None
        if wrapper is None:
            _accelerate.backward(self._accelerator, loss, inputs=inputs, retain_graph=retain_graph)
            return
        if wrapper.static_graph:
            raise _static_graph()
        if inputs is not None and isinstance(self.carrier, GradientAgreement):
            inputs = [*inputs, self.carrier.parameter]
        prepare_exchange(wrapper, [loss] if wrapper.find_unused_parameters else [])
        _accelerate.backward(self._accelerator, loss, inputs=inputs, retain_graph=retain_graph)
        if self._exchange is not None:
            self._zero_only = self._exchange.complete(self.model, self._zero_only)

    @override
    def start_epoch(self) -> None:
        self._zero_only.clear()
        if self.carrier is not None:
            self.carrier.sums()

    @override
    def check_update(self) -> None:
        unused, self._zero_only = self._zero_only, set()
        if unused:
            raise never_used(unused)

    @override
    def finish_exchange(self) -> None:
        if self._exchange is not None:
            self._exchange.check(self.model)

    @override
    def explaining_errors(self) -> AbstractContextManager[object]:
        return _NOTHING if self._exchange is None else self._exchange.naming_unused_parameters()


def _trainable(module: nn.Module) -> list[bool]:
    return [parameter.requires_grad for parameter in parameters_of_module(module)]


def _static_graph() -> UnsupportedConfigurationError:
    return UnsupportedConfigurationError(
        "With static_graph=True, torch exchanges gradients only after a forward pass of its wrapper. Leave it out of "
        "the DistributedDataParallelKwargs."
    )
