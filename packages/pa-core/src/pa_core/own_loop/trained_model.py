"""What one optimizer trains in a custom loop: its gradients, its update and its schedule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from pa_core import _accelerate
from pa_core._torch import calls_step_hooks
from pa_core.accumulation import Accumulation, MicroBatch
from pa_core.distributed.agreement import Agreement
from pa_core.distributed.wrapping import ModelWrapping
from pa_core.errors import ConfigurationError
from pa_core.module_tensors import parameters_of_module
from pa_core.optimizer_parameters import parameters_of
from pa_core.own_loop import mistakes
from pa_core.own_loop.full_precision import is_in_full_precision
from pa_core.sharding.sharded_wrapping import wrapping_for
from pa_core.step_output import unusable_kind
from pa_core.types import StatefulScheduler
from pa_core.unwrapping import compiled_from
from pa_core.user_warnings import warn_user

__all__ = ["TrainedModel"]


class TrainedModel:
    """An optimizer of a run, and the module that it trains.

    Args:
        name: The name of the optimizer.
        module: What it trains.
        optimizer: The optimizer, None where it is made when the model is placed.
        accelerator: The accelerator of the run.
        is_only_model: Whether the run has no other model, whose gradients a backward pass would have to leave alone.

    Attributes:
        name: As passed.
        module: As passed.
        optimizer: As passed, or as it was made.
        scheduler: The scheduler of the optimizer, None without one.
        accumulation: What the batches weigh in its updates.
        wrapping: What places the module, and wraps it on several processes.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        optimizer: Optimizer | None,
        accelerator: _accelerate.AcceleratorLike,
        *,
        is_only_model: bool,
    ) -> None:
        self.name = name
        self.module = module
        self.optimizer: Optimizer = cast("Optimizer", optimizer)
        self.scheduler: StatefulScheduler | None = None
        self.accumulation: Accumulation = Accumulation(accelerator.num_processes, counted_by="num_items")
        self.wrapping: ModelWrapping = wrapping_for(module, accelerator)
        self._accelerator = accelerator
        self._is_only_model = is_only_model
        self._precision = _accelerate.computed_precision(accelerator)
        self._has_checked_precision = self._precision == "no"
        self._steps = False
        self._watch: RemovableHandle | None = None

    def watch_steps(self) -> None:
        """From here on, raise an error for steps of the optimizer that the run does not make.

        Optimizers that do not call the constructor of their base class cannot be watched.
        """
        if calls_step_hooks(self.optimizer):
            self._watch = self.optimizer.register_step_pre_hook(self._require_own_step)

    def stop_watching(self) -> None:
        """Let the script step the optimizer again."""
        if self._watch is not None:
            self._watch.remove()
            self._watch = None

    def _require_own_step(self, *_arguments: object) -> None:
        if not self._steps:
            raise ConfigurationError(
                f"The loop has called step() of the optimizer {self.name!r}, which the run steps. Remove "
                "optimizer.step() from the loop: update.step() or run.step() agrees, clips, steps and clears."
            )

    def step(self) -> None:
        """Step the optimizer."""
        self._steps = True
        try:
            self.optimizer.step()
        finally:
            self._steps = False

    def start_epoch(self) -> None:
        """Forget an update that was not finished."""
        self.accumulation.start_epoch()
        self.wrapping.start_epoch()

    def wrap(self, num_carried: int) -> None:
        """Place the module on the device, and get ready to exchange its gradients; it is still called as it is.

        Args:
            num_carried: How many numbers travel with the gradients.
        """
        self.wrapping = wrapping_for(self.module, self._accelerator)
        wrapped = self.wrapping.wrap(self.module, for_training=True, num_carried=num_carried)
        if compiled_from(wrapped) is not None and compiled_from(self.module) is None:
            warn_user(
                "Accelerate is told to compile models, and a custom training loop calls them as they are. "
                "Compile the model yourself before it is passed to Run: model = torch.compile(model)."
            )

    def renew(self) -> None:
        """Wrap the module again if parameters were frozen or unfrozen, before a pass that exchanges gradients.

        Not earlier: a loop may freeze a model, such as a discriminator, while it trains another one through it.
        """
        if self.wrapping.is_outdated:
            self.wrapping.renew()

    def require_gradients_of(self, loss: object) -> None:
        """Raise an error for anything that no gradients of the module can be computed of.

        Args:
            loss: What was passed to ``backward``.

        Raises:
            ConfigurationError: It is not a tensor of one element with a graph, or the module is frozen.
        """
        if not isinstance(loss, Tensor) or loss.numel() != 1 or unusable_kind(loss) is not None:
            raise mistakes.unusable_loss(loss)
        if loss.requires_grad and self._is_only_model:
            return
        if not any(parameter.requires_grad for parameter in self.module.parameters()):
            raise ConfigurationError(
                f"There is nothing to train: backward(...) for {self.name!r}, every parameter of which has "
                "requires_grad=False. Call requires_grad_() on what is to be trained, before the forward pass."
            )
        if not loss.requires_grad:
            raise mistakes.unusable_loss(loss)

    def check_precision(self, loss: Tensor) -> None:
        """Warn about the first loss if the requested precision has no effect on it.

        Args:
            loss: A loss with its graph.
        """
        if self._has_checked_precision:
            return
        self._has_checked_precision = True
        if is_in_full_precision(loss):
            warn_user(
                f"The run is to compute in {self._precision}, and the first loss of {self.name!r} was computed in "
                "fp32: a model computes in the precision of the run where it is called itself. "
                "Put calls of its parts and of its other methods into a block: with run.autocast()."
            )

    def weigh(self, loss: Tensor, part: MicroBatch) -> Tensor:
        """Scale the mean loss of a batch to its share of the update; a loss that weighs nothing is replaced.

        Args:
            loss: The mean loss of the batch, of which the accumulation was told what it is the mean over.
            part: The part of the batch in the update.
        """
        if part.is_empty:  # not by a weight of zero, which would leave NaN what it is
            loss = self.wrapping.zero_loss_of_stand_in(self.module, loss)
        return self.accumulation.weigh(loss, part)

    def with_flags(self, loss: Tensor, agreement: Agreement) -> Tensor:
        """Return the loss of a pass that exchanges gradients, with what all processes must know before the update.

        Args:
            loss: The weighed loss of the batch.
            agreement: What knows it.
        """
        return agreement.add_to(self.wrapping.carrier, loss, self.accumulation.items)

    def agree(self, agreement: Agreement, *, at_once: bool, may_stop: bool) -> None:
        """Act together on the requests of the processes, and normalise the gradients to the mean over all items.

        Args:
            agreement: What knows the requests of this process.
            at_once: Whether to wait for the flags of the other processes.
            may_stop: Whether nothing of the update is made yet, so that it can be left.

        Raises:
            StopTrainingError: A process requested a stop.
            UnsupportedConfigurationError: No backward pass of the update reached some parameter, on several processes.
        """
        self.wrapping.check_update()
        carrier, items = self.wrapping.carrier, self.accumulation.items
        total = (
            agreement.before_update(carrier, items, at_once=at_once)
            if may_stop
            else agreement.add_up_items(carrier, items)
        )
        self.accumulation.normalise(self.parameters(), total)

    def backward(self, loss: Tensor, part: MicroBatch, *, retain_graph: bool = False) -> None:
        """Add the gradients of a batch, and exchange the gradients of the update with its last batch.

        Args:
            loss: The weighed loss of the batch.
            part: The part of the batch in the update.
            retain_graph: Whether another backward pass goes through the graph of this one.
        """
        inputs = None if self._is_only_model else self._trainable()
        self.wrapping.backward(loss, inputs, exchanges_gradients=part.ends_group, retain_graph=retain_graph)

    def _trainable(self) -> list[nn.Parameter]:
        return [parameter for parameter in parameters_of_module(self.module) if parameter.requires_grad]

    def has_gradients(self) -> bool:
        """Whether any parameter that the optimizer updates has a gradient; mostly the first one tells."""
        is_seen = any(parameter.grad is not None for parameter in parameters_of(self.optimizer))
        return is_seen or self.wrapping.has_local_gradients

    def parameters(self) -> Iterator[Tensor]:
        """Iterate over the parameters that the optimizer updates."""
        return parameters_of(self.optimizer)
