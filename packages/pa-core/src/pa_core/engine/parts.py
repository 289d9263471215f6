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
from pa_core._tensors import clear_gradients, is_sharded_module, parameters_of, parameters_of_module, unwrap_model
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
    """The modules that the same optimizers train, and whose gradients are exchanged together on several processes.

    A trainer has a single part; a ``Run`` with several optimizers has a part for each. You never construct a part: an
    `Exchange` that you implement is passed parts, and reads ``modules``, ``optimizers``, ``parameters()``,
    ``is_plain()`` and ``has_gradients()``. The run calls the other methods.

    Args:
        accelerator: The accelerator of the run.
        num_averaged: The number of processes that gradients are averaged over; 1 if they are summed.
        scales_all: Whether the loss is scaled even if a batch is the whole update of a single process, so that the
            arithmetic is the same on any number of processes. The run passes ``exchange.is_exact``.
        counted_by: The name under which scripts pass the number of items of a batch, for error messages. The default is
            the name that a trainer's step returns; a ``Run`` passes "num_items".

    Attributes:
        optimizers: The optimizers that are stepped together, by name; empty until the run sets them.
        schedulers: The learning rate schedulers of the optimizers, by name.
        accumulation: Scales the losses of the batches to their shares of the update; for the run alone.
        modules: The trained modules by name, without wrappers, on the device of the run; empty between runs.
        is_split: Whether ``fully_shard`` was applied to a module, so that its backward passes need the context of
            ``passing``.
        is_sharded: Whether ``fully_shard`` has divided weights among several processes, and exchanges their gradients
            itself. Then all processes have to call the modules the same number of times.

    Example:
        >>> import torch
        >>> from accelerate import Accelerator
        >>> from pa_core.engine.exchange import Part
        >>> part = Part(Accelerator(), num_averaged=1, scales_all=False)
        >>> part.start({"model": torch.nn.Linear(2, 1)})
        >>> part.optimizers["optimizer"] = torch.optim.SGD(part.modules["model"].parameters(), lr=0.1)
        >>> for parameter in part.parameters():  # in an exchange
        ...     print(tuple(parameter.shape), part.is_plain(parameter), parameter.grad)
        (1, 2) True None
        (1,) True None
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

        The run calls this before it passes the part to the exchange's ``add``; exchanges do not call it. It sets
        ``modules``, ``is_split`` and ``is_sharded``. See the example in `Part`.

        Args:
            modules: The trained modules by name. Wrappers such as ``DistributedDataParallel`` and ``torch.compile`` are
                removed from them.
        """
        self.modules = {name: unwrap_model(module, keep_torch_compile=False) for name, module in modules.items()}
        self.is_split = any(map(is_sharded_module, self.modules.values()))
        if self.is_split:
            self._sharded = ShardedModules(nn.ModuleList(self.modules.values()))
            self._plain = {id(parameter) for parameter in self._sharded.plain_parameters()}
        self.is_sharded = self.is_split and self._accelerator.num_processes > 1

    def is_plain(self, parameter: nn.Parameter) -> bool:
        """Return whether the exchange has to exchange the gradient of a parameter.

        Call it in an exchange for each parameter; see the example in `Part`. The result is False for parameters of
        modules to which ``fully_shard`` was applied, because ``fully_shard`` exchanges their gradients itself. It is
        True for all others, and for all parameters without ``fully_shard``.

        Args:
            parameter: A parameter of the modules.
        """
        return self._plain is None or id(parameter) in self._plain

    def close(self) -> None:
        """End the training, and forget the modules.

        The run calls this at its end, after the exchange's ``close``. Exchanges do not call it.
        """
        self.modules, self._sharded, self._plain, self.is_split = {}, None, None, False

    @contextmanager
    def passing(self, *, ends_update: bool, adds_nothing: bool) -> Generator[None]:
        """Return the context of a backward pass.

        The run enters it around each backward pass of a sharded module, and of a batch without items (for example
        tokens); exchanges do not call it.

        Args:
            ends_update: Whether the batch is the last of its update, so that gradients are exchanged. Otherwise
                ``fully_shard`` keeps them on this process.
            adds_nothing: Whether the loss is a mean over no items. The gradients of such a loss are NaN, and are
                replaced with zero. The backward pass still runs, because other processes may communicate during theirs.

        Example::

            with part.passing(ends_update=True, adds_nothing=False):
                loss.backward()
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
        """Raise an error if a step of a sharded model requested a stop, for which other processes would wait forever.

        The trainer calls this when ``calculate_train_batch_loss`` raises ``StopTrainingError``; exchanges do not call
        it. Without ``fully_shard`` it does nothing.

        Args:
            error: The error of the step, which becomes the ``__cause__``.

        Raises:
            UnsupportedConfigurationError: The weights are sharded. Raise ``StopTrainingError`` in a callback instead,
                for example in ``on_train_step_end``.
        """
        if self.is_sharded:
            raise UnsupportedConfigurationError(
                "A process has stopped within the step of a sharded model, and the others wait for it. Raise "
                "StopTrainingError in a callback, for example in on_train_step_end."
            ) from error

    def graph_tensors(self, parameters: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the tensors that stand for parameters in the graph of a loss.

        A forward pass of a sharded module computes with gathered copies of its parameters, so ``torch.autograd.grad``
        needs the copies. Without ``fully_shard``, parameters stand for themselves. Call it between the forward and the
        backward pass.

        Args:
            parameters: Parameters of the modules.

        Returns:
            The tensors, in the order of the parameters. Without ``fully_shard``, the argument itself.

        Example::

            tensors = part.graph_tensors(list(part.parameters()))
            gradients = torch.autograd.grad(loss, tensors, retain_graph=True)
        """
        return parameters if self._sharded is None else self._sharded.unsharded(parameters)

    def step(self) -> None:
        """Step all optimizers of the part, in the order of ``optimizers``.

        The run calls this after the exchange's ``finish``; exchanges do not call it.
        """
        for optimizer in self.optimizers.values():
            optimizer.step()

    def zero_grad(self) -> None:
        """Clear the gradients of the optimizers' parameters.

        The run calls this after the optimizer step; exchanges do not call it. Parameters without an optimizer keep
        their gradients.
        """
        for optimizer in self.optimizers.values():
            clear_gradients(optimizer)

    def parameters(self) -> Iterator[Tensor]:
        """Iterate over the parameters of all optimizers of the part, frozen parameters included.

        Use it in an exchange's ``finish`` to set ``parameter.grad``, as in the examples of `Part` and `Exchange`. Other
        parameters of the modules may also have gradients, but no optimizer steps them, so they need not be exchanged.

        Returns:
            An iterator over tensors, in the order of the optimizers and of their parameter groups.
        """
        for optimizer in self.optimizers.values():
            yield from parameters_of(optimizer)

    def has_gradients(self) -> bool:
        """Return whether any parameter of the optimizers has a gradient on this process.

        Gradients that ``fully_shard`` keeps on this process also count. The run calls this to find out whether a script
        has called ``backward``; an exchange can call it in ``require_no_gradients``. Gradients that the exchange itself
        holds are not visible here.
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
