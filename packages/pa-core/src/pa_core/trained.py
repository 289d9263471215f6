"""What one update trains: each batch weighs its share of it, and all processes have the same gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pa_core import _accelerate
from pa_core._torch import ignored_by_ddp
from pa_core.accumulation import Accumulation, MicroBatch
from pa_core.distributed.agreement import NUM_FLAGS
from pa_core.distributed.collectives import values_of_all
from pa_core.distributed.gradient_exchange import ExchangedParameters, GradientExchange
from pa_core.errors import StopTrainingError, UnsupportedConfigurationError
from pa_core.optimizer_parameters import parameters_of
from pa_core.sharded_tensors import is_sharded_module
from pa_core.sharding.sharded_modules import ShardedModules
from pa_core.types import StatefulScheduler
from pa_core.unwrapping import unwrap_model

__all__ = ["Trained", "zero_loss_of_stand_in"]

_NOTHING = nullcontext[None]()


class Trained:
    """Modules that are trained by one loss, and whose gradients are exchanged together on several processes.

    ``fully_shard`` exchanges the gradients of what it was applied to, and ``GradientExchange`` all others.

    Args:
        accelerator: The accelerator of the run.
        counted_by: What the script gives the number of items as, for messages.

    Attributes:
        optimizers: The optimizers that are stepped together, by name.
        schedulers: Their schedulers, by name.
        accumulation: What the batches weigh in the updates.
        is_sharded: Whether some of the weights are split over the processes, so that all of them call the modules
            equally often.
    """

    def __init__(self, accelerator: _accelerate.AcceleratorLike, *, counted_by: str = "num_items_in_batch") -> None:
        self.optimizers: dict[str, Optimizer] = {}
        self.schedulers: dict[str, StatefulScheduler] = {}
        self.accumulation: Accumulation = Accumulation(accelerator.num_processes, counted_by=counted_by)
        self.is_sharded: bool = False
        self._accelerator = accelerator
        self._modules: dict[str, nn.Module] = {}
        self._sharded: ShardedModules | None = None
        self._plain: set[int] = set()
        self._exchange: GradientExchange | None = None
        self._was_compared = False

    def start(self, modules: Mapping[str, nn.Module]) -> None:
        """Begin to train; the modules are placed already.

        Args:
            modules: What is trained, by name.
        """
        self._modules = {name: unwrap_model(one, keep_torch_compile=False) for name, one in modules.items()}
        if any(map(is_sharded_module, self._modules.values())):
            self._sharded = ShardedModules(nn.ModuleList(self._modules.values()))
            self._plain = {id(parameter) for parameter in self._sharded.plain_parameters()}
        self.is_sharded = self._sharded is not None and self._accelerator.num_processes > 1
        if self._accelerator.num_processes > 1:
            device = _accelerate.device_of(self._accelerator)
            bucket_bytes, dtype = _accelerate.settings_of_exchange(self._accelerator)
            dtypes = {parameter.dtype for module in self._modules.values() for parameter in module.parameters()}
            self._exchange = GradientExchange(
                self._find_parameters,
                NUM_FLAGS,
                device,
                bucket_bytes=bucket_bytes,
                dtype=dtype,
                values_dtype=torch.float64 if dtypes == {torch.float64} else torch.float32,
            )

    def close(self) -> None:
        """End the training."""
        if self._exchange is not None:
            self._exchange.close()
        self._exchange, self._modules, self._sharded = None, {}, None

    def start_epoch(self) -> None:
        """Forget an update that was not finished."""
        self.accumulation.start_epoch()
        self.end_update()

    def in_batch(self, part: MicroBatch) -> AbstractContextManager[None]:
        """Return the context of the backward passes of one batch; the last batch of an update exchanges the gradients.

        Args:
            part: The part of the batch in the update.
        """
        if self._exchange is not None and part.ends_group:
            self._exchange.open(overlaps=not part.some_are_empty)
        if self._sharded is None:
            return _NOTHING
        self._sharded.follow_unfreezing()
        return _NOTHING if part.ends_group else self._sharded.keeping_gradients_local()

    def exchange_each_pass(self) -> None:
        """Exchange the gradients of each backward pass, for an epoch that a script has written itself."""
        if self._exchange is not None:
            self._exchange.average_each_pass()

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

    def finish_exchange(self, flags: Sequence[float]) -> Tensor:
        """Average the gradients of the update over the processes; every process must call this, on several.

        Args:
            flags: The flags of this process.

        Returns:
            The sums of the flags of all processes, on the device.
        """
        if self._exchange is None:
            return torch.tensor(flags)
        if not self._was_compared:
            self._was_compared = True
            self._require_same_weights()
        return self._exchange.finish(flags)

    def end_update(self) -> None:
        """End an update: from here on, gradients stay on their process."""
        if self._exchange is not None:
            self._exchange.end_update()

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

    @property
    def has_local_gradients(self) -> bool:
        """Whether this process has gradients that parameters do not show before they are exchanged."""
        return self._sharded is not None and self._sharded.has_local_gradients()

    def _require_same_weights(self) -> None:
        """Raise an error for modules that steps have updated before the first exchange of gradients."""
        for name, module in self._modules.items():
            own = [one for one in _parameters_in(module) if self._sharded is None or id(one) in self._plain]
            if own and not _same_on_all_processes(torch.stack([one.detach().double().square().sum() for one in own])):
                raise UnsupportedConfigurationError(
                    f"The module {name!r} has drifted apart on the processes before the first update.",
                    given="steps that run a backward pass and their own update, whose gradients are not averaged",
                    do="Add its loss to the one that is returned; for a separate loss and separate updates, use Run.",
                )

    def _find_parameters(self) -> ExchangedParameters:
        """All that ``fully_shard`` leaves alone, without what ``DistributedDataParallel`` was told to leave alone."""
        found = {id(one): one for module in self._modules.values() for one in _parameters_in(module)}
        unique = [one for one in found.values() if self._sharded is None or id(one) in self._plain]
        sparse = {
            id(layer.weight)
            for module in self._modules.values()
            for layer in module.modules()
            if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse
        }
        return ExchangedParameters(
            [one for one in unique if id(one) not in sparse], [one for one in unique if id(one) in sparse]
        )


def _same_on_all_processes(values: Tensor) -> bool:
    of_each = values_of_all(values)
    return bool((of_each == of_each[0]).all())


def _parameters_in(module: nn.Module) -> Iterator[nn.Parameter]:
    ignored = ignored_by_ddp(module)
    return (parameter for name, parameter in module.named_parameters() if name not in ignored)


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
