"""How a model is placed and called in a run, and how its gradients are exchanged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeVar

from torch import Tensor, nn

from pa_core.distributed.zero_pass import zero_loss

__all__ = ["Carrier", "ModelWrapping"]

_T = TypeVar("_T")


class Carrier(Protocol):
    """Adds up small numbers of all processes in the course of an update, without a step waiting for it."""

    def add_to(self, loss: Tensor, values: Sequence[float]) -> Tensor:
        """Return the loss of a backward pass that exchanges gradients, and send the numbers of this process with it.

        A further pass of the same update sends what was added to the numbers since.

        Args:
            loss: The loss; its value is kept.
            values: The numbers, as many on each process.
        """
        ...

    def sums(self) -> Tensor:
        """Return the sums over all processes after the backward pass, on the device."""
        ...


class ModelWrapping(ABC):
    """Places and wraps one model for a run, and makes it what it was when the run ends.

    There are two ways to exchange gradients. A training step that calls the wrapped model does so within ``step`` and
    ``forward_pass``: the forward pass prepares the exchange for the one backward pass that follows. A process that has
    no sample, or no loss to show for it, runs its backward pass on ``loss_without_samples`` instead, so that the others
    need not wait for it.

    A loop that calls models in its own order calls the user's module, and ``backward``: it prepares the exchange by
    itself, so that any number of forward passes may come before any number of backward passes, even with several models
    in one graph.

    Attributes:
        model: The model as a training step calls it. ``wrap`` sets it; who wraps a model in another way assigns it.
        carrier: What carries small numbers of all processes along with the gradients; None where nothing can.
    """

    model: nn.Module
    carrier: Carrier | None

    @property
    def follows_another_process(self) -> bool:
        """Whether the model is called as on another process now, because this one has no sample."""
        return False

    @abstractmethod
    def wrap(self, model: nn.Module, *, for_training: bool, num_carried: int = 0) -> nn.Module:
        """Place the model on the device and, for training on several processes, wrap it; return what a step calls.

        Args:
            model: The user's module.
            for_training: False leaves out what exchanges gradients.
            num_carried: How many numbers are to travel with the gradients of an update, where these are exact.

        Raises:
            UnsupportedConfigurationError: The model cannot be trained on several processes.
        """

    @property
    @abstractmethod
    def is_outdated(self) -> bool:
        """Whether parameters were frozen or unfrozen since the model was wrapped, so that ``renew`` must be called."""

    @abstractmethod
    def renew(self) -> nn.Module:
        """Wrap the model again, as it was wrapped; return what a step calls."""

    @abstractmethod
    def unwrap(self) -> nn.Module | None:
        """Make the model what it was, and return it; None if it is not wrapped."""

    @abstractmethod
    def step(self, *, exchanges_gradients: bool) -> AbstractContextManager[object]:
        """Return the context of the forward and backward pass of one batch.

        Args:
            exchanges_gradients: Whether the backward pass exchanges gradients, once per update, in the one of its last
                batch.
        """

    @abstractmethod
    def forward_pass(self, *, is_empty: bool = False, some_are_empty: bool = False) -> AbstractContextManager[object]:
        """Return the context in which a step calls the model, so that ``loss_without_samples`` makes up for calls.

        Args:
            is_empty: Whether this process has no sample in this step.
            some_are_empty: Whether any process may have none, as all of them know.
        """

    @abstractmethod
    def end_forward_pass(self, loss: Tensor) -> None:
        """Take note, where some processes may have no sample, that the model is not called any more in this step.

        Args:
            loss: The loss of the step.
        """

    def until_all_end(self, batches: Iterable[_T]) -> Iterable[_T]:
        """Return the evaluation batches of this process, at whose end it takes part in what others still do.

        Every process must iterate to the end.

        Args:
            batches: The batches of a custom data loader, whose number others need not share.
        """
        return batches

    @abstractmethod
    def loss_without_samples(self) -> Tensor:
        """Return a loss whose gradients are zero, and take part in what the others exchange in their forward pass."""

    def zero_loss_of_stand_in(self, module: nn.Module, loss: Tensor) -> Tensor:
        """Return a loss whose gradients are zero, for a process that has the batch of another one to stand in.

        Args:
            module: What the loss trains.
            loss: The loss of that batch, perhaps one that is not finite.
        """
        return zero_loss(module)

    @abstractmethod
    def backward(
        self,
        loss: Tensor,
        inputs: Sequence[Tensor] | None = None,
        *,
        exchanges_gradients: bool,
        retain_graph: bool | None = None,
    ) -> None:
        """Run a backward pass through calls of the user's module, and exchange the gradients if requested.

        Args:
            loss: What to differentiate. With an exchange, what ``carrier`` returned for it, if there is one.
            inputs: The parameters of this model; others in the graph, of other models, get no gradients. None gives
                all of them gradients.
            exchanges_gradients: Whether to exchange them; every process must call this then. A process without a
                sample passes ``zero_loss``.
            retain_graph: Whether another backward pass goes through the graph of this one.

        Raises:
            UnsupportedConfigurationError: The gradients were not exchanged, or cannot be.
        """

    @property
    def has_local_gradients(self) -> bool:
        """Whether this process has gradients that parameters do not show before they are exchanged."""
        return False

    @abstractmethod
    def start_epoch(self) -> None:
        """Forget an update whose gradients ``backward`` has exchanged, and which was not made."""

    @abstractmethod
    def check_update(self) -> None:
        """Check, after the last ``backward`` of an update, that it has the gradients that one process would have.

        Raises:
            UnsupportedConfigurationError: None of its passes reached some parameter.
        """

    @abstractmethod
    def finish_exchange(self) -> None:
        """Exchange what the backward pass of an update has left, and check that the gradients were exchanged.

        Every process must call this.

        Raises:
            UnsupportedConfigurationError: They were not, or not all of them.
        """

    def explaining_errors(self) -> AbstractContextManager[object]:
        """Return a context that explains errors of torch which are about how the model is wrapped.

        Raises:
            UnsupportedConfigurationError: There was one.
        """
        return nullcontext()
