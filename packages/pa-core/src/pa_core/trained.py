"""What one update trains: modules, their optimizers and schedulers, and what each batch weighs."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pa_core import _accelerate
from pa_core.accumulation import Accumulation
from pa_core.attributes import temporarily
from pa_core.errors import StopTrainingError, UnsupportedConfigurationError
from pa_core.exchange import Exchange
from pa_core.micro_batches import MicroBatch
from pa_core.model_tensors import is_sharded_module, parameters_of, parameters_of_module, unwrap_model
from pa_core.sharding.sharded_modules import ShardedModules
from pa_core.types import StatefulScheduler

_NOTHING = nullcontext[None]()


@contextmanager
def counting_samples(trained: Iterable[Trained]) -> Generator[None]:
    """Within the context, weigh batches by their samples, as nobody knows beforehand how many an update has.

    Args:
        trained: What the batches are trained on.
    """
    with ExitStack() as contexts:
        for one in trained:
            contexts.enter_context(temporarily(one.accumulation, counts_samples=True))
        yield


def forget_gradients(model: nn.Module, *optimizers: Optimizer) -> None:
    """Clear what a run that stopped left behind, including the gradients of parameters that no optimizer holds.

    Args:
        model: The model of the run.
        *optimizers: Its optimizers.
    """
    model.zero_grad()
    ShardedModules(model).forget_local_gradients()
    for optimizer in optimizers:
        optimizer.zero_grad()


class Trained:
    """Modules that are trained by one loss, and whose gradients are exchanged together on several processes.

    Args:
        accelerator: The accelerator of the run.
        exchange: What exchanges the gradients that ``fully_shard`` leaves alone.
        counted_by: What the script gives the number of items as, for messages.

    Attributes:
        optimizers: The optimizers that are stepped together, by name.
        schedulers: Their schedulers, by name.
        accumulation: What the batches weigh in the updates.
        is_sharded: Whether some of the weights are split over the processes, so that all of them call the modules
            equally often.
        exchange: As passed.
        modules: What is trained, by name and without wrappers; empty between runs.
    """

    def __init__(
        self, accelerator: _accelerate.AcceleratorLike, exchange: Exchange, *, counted_by: str = "num_items_in_batch"
    ) -> None:
        self.optimizers: dict[str, Optimizer] = {}
        self.schedulers: dict[str, StatefulScheduler] = {}
        self.accumulation: Accumulation = Accumulation(
            exchange.num_averaged, counted_by=counted_by, weighs_all=exchange.is_exact
        )
        self.exchange: Exchange = exchange
        self.is_sharded: bool = False
        self.modules: dict[str, nn.Module] = {}
        self._accelerator = accelerator
        self._sharded: ShardedModules | None = None
        self._plain: set[int] | None = None

    def start(
        self, modules: Mapping[str, nn.Module], called: Mapping[str, nn.Module], *, overlaps: bool = False
    ) -> None:
        """Begin to train; the modules are placed already.

        Args:
            modules: What is trained, by name.
            called: What the steps of the run call, by name.
            overlaps: Whether each batch has one backward pass.
        """
        self.modules = {name: unwrap_model(one, keep_torch_compile=False) for name, one in modules.items()}
        if any(map(is_sharded_module, self.modules.values())):
            self._sharded = ShardedModules(nn.ModuleList(self.modules.values()))
            self._plain = {id(parameter) for parameter in self._sharded.plain_parameters()}
        self.is_sharded = self._sharded is not None and self._accelerator.num_processes > 1
        self.exchange.add(self, called, overlaps=overlaps)

    def is_plain(self, parameter: nn.Parameter) -> bool:
        """Return whether ``fully_shard`` leaves the gradient of a parameter to the exchange.

        Args:
            parameter: A parameter of the modules.
        """
        return self._plain is None or id(parameter) in self._plain

    def close(self) -> None:
        """End the training."""
        self.modules, self._sharded, self._plain = {}, None, None

    def in_batch(self, part: MicroBatch) -> AbstractContextManager[None]:
        """Return the context of the backward passes of one batch; the last batch of an update exchanges the gradients.

        Args:
            part: The part of the batch in the update.
        """
        if part.ends_group:
            self.exchange.start_last_pass(self, overlaps=not part.some_are_empty)
        if self._sharded is None:
            return _NOTHING
        self._sharded.follow_unfreezing()
        return _NOTHING if part.ends_group else self._sharded.keeping_gradients_local()

    @contextmanager
    def adding_nothing(self) -> Generator[None]:
        """Let backward passes add zeros: the loss is a mean over nothing, and the gradients of 0/0 are NaN.

        The passes are made all the same, as other processes may exchange something in them.
        """
        parameters = [one for module in self.modules.values() for one in parameters_of_module(module)]
        trainable: Any = self.graph_tensors([one for one in parameters if one.requires_grad])  # torch annotates in part
        hooks = [one.register_hook(torch.zeros_like) for one in trainable if one.requires_grad]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def forget_update(self) -> None:
        """Forget an update that is not made."""
        self.accumulation.items = 0.0
        self.exchange.end_step(self)

    def require_stop_elsewhere(self, error: StopTrainingError) -> None:
        """Raise an error for a stop within a step of a sharded model, whose pieces the other processes wait for.

        Args:
            error: What the step has raised.

        Raises:
            UnsupportedConfigurationError: The model is sharded.
        """
        if self.is_sharded:
            raise UnsupportedConfigurationError(
                "A process has stopped within the step of a sharded model, for which the others wait. Raise "
                "StopTrainingError in a callback, such as in on_train_step_end."
            ) from error

    def graph_tensors(self, parameters: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return what stands for parameters in the graph of a loss: while sharded ones are gathered, other tensors.

        Args:
            parameters: Parameters of the modules.
        """
        return parameters if self._sharded is None else self._sharded.unsharded(parameters)

    def step(self) -> None:
        """Step the optimizers."""
        for optimizer in self.optimizers.values():
            optimizer.step()

    def zero_grad(self) -> None:
        """Clear the gradients of what the optimizers update."""
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()

    def parameters(self) -> Iterator[Tensor]:
        """Iterate over what the optimizers update.

        Others of the modules may have gradients too, which nobody clears and which must not count.
        """
        for optimizer in self.optimizers.values():
            yield from parameters_of(optimizer)

    def has_gradients(self) -> bool:
        """Whether any parameter that the optimizers update has a gradient; mostly the first one tells.

        Parameters do not show some of the gradients before they are exchanged.
        """
        if any(parameter.grad is not None for parameter in self.parameters()):
            return True
        if self.exchange.holds_gradients(self):
            return True
        return self._sharded is not None and self._sharded.has_local_gradients()


def zero_loss_of_stand_in(loss: Tensor) -> Tensor:
    """Return a loss whose gradients are zero, and whose backward pass goes through the same graph as another loss.

    Args:
        loss: The loss of a batch that stands in for one of another process; perhaps it is not finite.

    Example:
        >>> import torch
        >>> weight = torch.ones(1, requires_grad=True)
        >>> zero_loss_of_stand_in((weight * float("inf")).sum()).item()
        0.0
    """
    real = torch.view_as_real(loss) if loss.is_complex() else loss
    return real.nan_to_num(0.0, 0.0, 0.0).sum() * 0.0
