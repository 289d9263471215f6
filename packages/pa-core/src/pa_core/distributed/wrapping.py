"""A model on the device of a run, and in the wrapper that exchanges its gradients on several processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from pa_core import _accelerate
from pa_core.distributed.collectives import synchronising_wrapper
from pa_core.distributed.gradient_agreement import (
    GradientAgreement,
    gradients_carry_counts,
    synchronises_every_parameter,
)
from pa_core.distributed.gradient_exchange import GradientExchange, never_used
from pa_core.distributed.zero_pass import CallsOfStep, zero_pass
from pa_core.errors import UnsupportedConfigurationError
from pa_core.module_tensors import parameters_of_module
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

    There are two ways to exchange gradients. A training step that calls the wrapped model does so within ``step`` and
    ``forward_pass``: the forward pass prepares the exchange for the one backward pass that follows. A process that has
    no sample, or no loss to show for it, runs its backward pass on ``loss_without_samples`` instead, so that the others
    need not wait for it.

    A loop that calls models in an order of its own calls the user's module, and ``backward``: it prepares the exchange
    by itself, so that any number of forward passes may come before any number of backward passes, also with several
    models in one graph. No forward pass has a collective then.

    Args:
        accelerator: The accelerator of the run.

    Attributes:
        model: The model as a training step calls it. ``wrap`` sets it; who wraps a model in another way assigns it.
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
        self._zero_only: set[str] = set()

    def wrap(self, model: nn.Module, *, for_training: bool, num_carried: int = 0) -> nn.Module:
        """Place the model on the device and, for training on several processes, wrap it; return what a step calls.

        Args:
            model: The user's module.
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
        """Wrap the model again, as it was wrapped; return what a step calls."""
        before = cast("_Unwrapped", self._unwrapped)
        self.unwrap()
        # The wrapper writes the same weights over them, which a graph that waits for its backward pass does not mind.
        kept = (*before.model.parameters(), *before.model.buffers())
        keeping = cast("Any", torch.autograd)._unsafe_preserve_version_counter  # torch has no public one
        with ExitStack() as stack:
            for tensor in kept:
                stack.enter_context(keeping(tensor))
            return self.wrap(before.model, for_training=before.for_training, num_carried=before.num_carried)

    def unwrap(self) -> nn.Module | None:
        """Make the model what it was, and return it; None if it is not wrapped."""
        before, self._unwrapped = self._unwrapped, None
        if before is not None:
            before.undo()
            del self.model
        self.carrier = self._calls = self._exchange = None
        _accelerate.forget_prepared_objects(self._accelerator)
        return None if before is None else before.model

    def step(self, *, exchanges_gradients: bool) -> AbstractContextManager[None]:
        """Return the context of the forward and backward pass of one batch.

        Args:
            exchanges_gradients: Whether the backward pass exchanges gradients, once per update in that of its last
                batch.
        """
        if exchanges_gradients or self._accelerator.num_processes == 1:
            return _NOTHING
        return _accelerate.keep_gradients_local(self._accelerator, self.model)

    def forward_pass(self) -> AbstractContextManager[object]:
        """Return the context in which a step calls the model, so that ``loss_without_samples`` makes up for calls."""
        return _NOTHING if self._calls is None else self._calls.counting()

    def loss_without_samples(self) -> Tensor:
        """Return a loss whose gradients are zero, and take part in what the others exchange in their forward pass."""
        return zero_pass(self.model, calls=1 if self._calls is None else self._calls.missing)

    def backward(
        self,
        loss: Tensor,
        inputs: Sequence[Tensor] | None = None,
        *,
        exchanges_gradients: bool,
        retain_graph: bool | None = None,
    ) -> None:
        """Run a backward pass whose graph was made by calls of the user's module, and exchange the gradients if asked.

        A second exchange in the same update adds to the first one: averaging what is averaged changes nothing. It need
        not reach all parameters; ``check_update`` looks whether some pass has.

        Args:
            loss: What to differentiate. With an exchange, what ``carrier`` returned for it, if there is one.
            inputs: The parameters of this model; others in the graph, of other models, get no gradients. None gives
                all of them gradients.
            exchanges_gradients: Whether to exchange them; every process must call this then. A process without a
                sample passes ``zero_loss``.
            retain_graph: Whether another backward pass goes through the graph of this one.

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
        if inputs is not None and self.carrier is not None:
            inputs = [*inputs, self.carrier.parameter]
        # The same as the wrapper does in its forward pass; torch has no public way to ask for it.
        reducer: Any = cast("Any", wrapper).reducer
        reducer._rebuild_buckets()
        reducer.prepare_for_backward([loss] if wrapper.find_unused_parameters else [])
        _accelerate.backward(self._accelerator, loss, inputs=inputs, retain_graph=retain_graph)
        if self._exchange is not None:
            self._zero_only = self._exchange.complete(self.model, self._zero_only)

    def start_epoch(self) -> None:
        """Forget an update whose gradients ``backward`` has exchanged, and which was not made."""
        self._zero_only.clear()
        if self.carrier is not None:
            self.carrier.sums()

    def check_update(self) -> None:
        """Check, after the last ``backward`` of an update, that it has the gradients that one process would have.

        Raises:
            UnsupportedConfigurationError: None of its passes reached some parameter.
        """
        unused, self._zero_only = self._zero_only, set()
        if unused:
            raise never_used(unused)

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
    return [parameter.requires_grad for parameter in parameters_of_module(module)]


def _static_graph() -> UnsupportedConfigurationError:
    return UnsupportedConfigurationError(
        "With a static graph, torch exchanges gradients only after a forward pass of its own wrapper.",
        given="static_graph=True",
        expected="a wrapper whose exchange each backward pass can prepare",
        do="Leave static_graph out of the DistributedDataParallelKwargs.",
    )
