"""The trained parts of a run: modules, their optimizers and schedulers, and the weights of batches."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from pa_core import _accelerate
from pa_core._attributes import temporarily
from pa_core._tensors import is_sharded_module, parameters_of, parameters_of_module, unwrap_model
from pa_core.engine.accumulation import Accumulation
from pa_core.errors import StopTrainingError, UnsupportedConfigurationError
from pa_core.sharding.sharded_modules import ShardedModules
from pa_core.types import StatefulScheduler


@contextmanager
def counting_samples(parts: Iterable[Part]) -> Generator[None]:
    """Weight batches by their counted samples within the context, because the size of updates is unknown.

    Args:
        parts: The parts that the batches train.
    """
    with ExitStack() as contexts:
        for part in parts:
            contexts.enter_context(temporarily(part.accumulation, counts_samples=True))
        yield


def forget_gradients(model: nn.Module, *optimizers: Optimizer) -> None:
    """Clear the gradients of a run that stopped, including gradients of parameters without an optimizer.

    Args:
        model: The model of the run.
        *optimizers: Its optimizers.
    """
    model.zero_grad()
    ShardedModules(model).forget_local_gradients()
    for optimizer in optimizers:
        optimizer.zero_grad()


class Part:
    """Modules that the same loss trains, and whose gradients are exchanged together on several processes.

    Exchanges get parts from the run, and read ``modules``, ``optimizers``, ``parameters()`` and ``is_plain()``; scripts
    do not construct them. A trainer has a single part; a ``Run`` with several optimizers has a part for each.

    Args:
        accelerator: The accelerator of the run.
        num_averaged: The number of processes that gradients are averaged over.
        scales_all: Whether the loss of an only batch is scaled, too.
        counted_by: The name of the number of items in scripts, for messages.

    Attributes:
        optimizers: The optimizers that are stepped together, by name.
        schedulers: The schedulers of the optimizers, by name.
        accumulation: The weights of the batches in the updates.
        modules: The trained modules by name, without wrappers, on the device of the run; empty between runs.
        is_split: Whether ``fully_shard`` was applied to a module, so that its backward passes need a context.
        is_sharded: Whether ``fully_shard`` has split some weights over the processes, whose gradients it exchanges.
            Then all processes call the modules equally often.

    Example:
        >>> from accelerate import Accelerator
        >>> part = Part(Accelerator(), num_averaged=1, scales_all=False)
        >>> part.start({"model": nn.Linear(2, 1)})
        >>> [*part.modules], part.has_gradients()
        (['model'], False)
    """

    def __init__(
        self,
        accelerator: _accelerate.AcceleratorLike,
        *,
        num_averaged: int,
        scales_all: bool,
        counted_by: str = "num_items_in_batch",
    ) -> None:
        self.optimizers: dict[str, Optimizer] = {}
        self.schedulers: dict[str, StatefulScheduler] = {}
        self.accumulation: Accumulation = Accumulation(num_averaged, counted_by=counted_by, scales_all=scales_all)
        self.modules: dict[str, nn.Module] = {}
        self.is_split: bool = False
        self.is_sharded: bool = False
        self._accelerator = accelerator
        self._sharded: ShardedModules | None = None
        self._plain: set[int] | None = None

    def start(self, modules: Mapping[str, nn.Module]) -> None:
        """Begin to train modules, which are already on the device.

        Args:
            modules: The trained modules by name.
        """
        self.modules = {name: unwrap_model(module, keep_torch_compile=False) for name, module in modules.items()}
        self.is_split = any(map(is_sharded_module, self.modules.values()))
        if self.is_split:
            self._sharded = ShardedModules(nn.ModuleList(self.modules.values()))
            self._plain = {id(parameter) for parameter in self._sharded.plain_parameters()}
        self.is_sharded = self.is_split and self._accelerator.num_processes > 1

    def is_plain(self, parameter: nn.Parameter) -> bool:
        """Return whether ``fully_shard`` leaves the gradient of a parameter to the exchange.

        Args:
            parameter: A parameter of the modules.
        """
        return self._plain is None or id(parameter) in self._plain

    def close(self) -> None:
        """End the training, and forget the modules; the run calls it."""
        self.modules, self._sharded, self._plain, self.is_split = {}, None, None, False

    @contextmanager
    def passing(self, *, ends_update: bool, adds_nothing: bool) -> Generator[None]:
        """Return the context of a backward pass.

        Args:
            ends_update: Whether the batch is the last of its update, so that gradients are exchanged.
            adds_nothing: Whether the loss is a mean over no items: the gradients of 0/0 are NaN, and are replaced with
                zero. The backward pass still runs, because other processes may communicate during theirs.
        """
        hooks = list[RemovableHandle]()
        with ExitStack() as contexts:
            if self._sharded is not None:
                self._sharded.follow_unfreezing()
                if not ends_update:
                    contexts.enter_context(self._sharded.keeping_gradients_local())
            if adds_nothing:
                parameters = [
                    parameter for module in self.modules.values() for parameter in parameters_of_module(module)
                ]
                trainable: Any = self.graph_tensors([parameter for parameter in parameters if parameter.requires_grad])
                hooks = [tensor.register_hook(torch.zeros_like) for tensor in trainable if tensor.requires_grad]
            for hook in hooks:
                contexts.callback(hook.remove)
            yield

    def require_stop_elsewhere(self, error: StopTrainingError) -> None:
        """Raise an error for a stop within a step of a sharded model, because the other processes wait for its pieces.

        Args:
            error: The error of the step.

        Raises:
            UnsupportedConfigurationError: The model is sharded.
        """
        if self.is_sharded:
            raise UnsupportedConfigurationError(
                "A process has stopped within the step of a sharded model, and the others wait for it. Raise "
                "StopTrainingError in a callback, for example in on_train_step_end."
            ) from error

    def graph_tensors(self, parameters: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the tensors that represent parameters in the graph of a loss; gathered parameters have others.

        Args:
            parameters: Parameters of the modules.
        """
        return parameters if self._sharded is None else self._sharded.unsharded(parameters)

    def step(self) -> None:
        """Step the optimizers; the run calls it after the exchange has finished."""
        for optimizer in self.optimizers.values():
            optimizer.step()

    def zero_grad(self) -> None:
        """Clear the gradients of the parameters of the optimizers; the run calls it after the step."""
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()

    def parameters(self) -> Iterator[Tensor]:
        """Iterate over the parameters of the optimizers.

        Other parameters of the modules may have gradients too, which are not cleared and must not count.
        """
        for optimizer in self.optimizers.values():
            yield from parameters_of(optimizer)

    def has_gradients(self) -> bool:
        """Return whether any parameter of the optimizers has a gradient; usually the first parameter tells.

        An exchange may hold gradients of earlier batches that the parameters do not show.
        """
        if any(parameter.grad is not None for parameter in self.parameters()):
            return True
        return self._sharded is not None and self._sharded.has_local_gradients()


def zero_loss_of_padding(loss: Tensor) -> Tensor:
    """Return a loss with the same graph as another loss, whose gradients are zero.

    Args:
        loss: The loss of a padding batch; it may not be finite.

    Example:
        >>> import torch
        >>> weight = torch.ones(1, requires_grad=True)
        >>> zero_loss_of_padding((weight * float("inf")).sum()).item()
        0.0
    """
    real = torch.view_as_real(loss) if loss.is_complex() else loss
    return real.nan_to_num(0.0, 0.0, 0.0).sum() * 0.0
