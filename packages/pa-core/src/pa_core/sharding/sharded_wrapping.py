"""A sharded model in a run: when its gradients are exchanged, and what travels with them."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TypeVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from pa_core import _accelerate
from pa_core.distributed.collectives import broadcast_buffers, broadcast_tensors
from pa_core.distributed.gradient_averaging import average_gradients
from pa_core.distributed.replicated_wrapping import ReplicatedWrapping
from pa_core.distributed.small_exchange import SmallExchange
from pa_core.distributed.wrapping import Carrier, ModelWrapping
from pa_core.errors import UnsupportedConfigurationError
from pa_core.module_tensors import buffers_of_module
from pa_core.sharded_tensors import is_sharded_module, reshard
from pa_core.sharding.calls_for_all import not_compiled, zero_loss_of
from pa_core.sharding.calls_from_callbacks import CallsFromCallbacks
from pa_core.sharding.forward_passes import ForwardPasses
from pa_core.sharding.sharded_modules import ShardedModules
from pa_core.unwrapping import unwrap_model

__all__ = ["ShardedWrapping", "wrapping_for"]

_T = TypeVar("_T")

_NOTHING = nullcontext[None]()
_MIXED = "got mixed torch.Tensor and DTensor"


def wrapping_for(model: nn.Module, accelerator: _accelerate.AcceleratorLike) -> ModelWrapping:
    """Return what places and wraps a model in a run.

    Args:
        model: The user's module, sharded or not.
        accelerator: The accelerator of the run.
    """
    return (ShardedWrapping if is_sharded_module(model) else ReplicatedWrapping)(accelerator)


class ShardedWrapping(ModelWrapping):
    """Trains a model that ``fully_shard`` was applied to, which stays as it is, even after the run.

    Args:
        accelerator: The accelerator of the run.
    """

    def __init__(self, accelerator: _accelerate.AcceleratorLike) -> None:
        self.carrier: Carrier | None = None
        self._accelerator = accelerator
        self._wrapped = ExitStack()
        self._plain: list[nn.Parameter] = []
        self._is_wrapped = self._broadcasts_buffers = False
        self._passes: ForwardPasses | None = None

    @override
    def wrap(self, model: nn.Module, *, for_training: bool, num_carried: int = 0) -> nn.Module:
        reshard(model)
        modules = ShardedModules(unwrap_model(model, keep_torch_compile=False))
        if for_training:
            self._prepare_training(model, modules, num_carried)
        if not modules.computes_in_own_precision:
            model, undo = _accelerate.place_and_wrap(self._accelerator, model, for_training=False, compiles=False)
            self._wrapped.callback(undo)
        if self._accelerator.num_processes > 1:
            self._passes = ForwardPasses(model, _accelerate.device_of(self._accelerator))
            self._wrapped.callback(CallsFromCallbacks(model).close)
        after_call = not_compiled(self._reshard_unless_backward_follows)
        self._wrapped.callback(model.register_forward_hook(after_call).remove)
        self._wrapped.callback(reshard, model)
        self.model = model
        self._modules, self._is_wrapped = modules, True
        return model

    def _prepare_training(self, model: nn.Module, modules: ShardedModules, num_carried: int) -> None:
        """Let all processes begin with the same weights, as ``DistributedDataParallel`` would."""
        if self._accelerator.scaler is not None:
            raise _fp16()
        modules.require_trainable(self._accelerator.num_processes)
        modules.exchange_gradients()
        if _accelerate.finds_unused_parameters(self._accelerator):
            modules.allow_unused_parameters()
        modules.make_replicas_alike()
        self._plain = modules.plain_parameters()
        if self._accelerator.num_processes == 1:
            return
        buffers = buffers_of_module(model)
        broadcast_tensors([*self._plain, *buffers])
        self._broadcasts_buffers = bool(buffers) and _accelerate.broadcasts_buffers(self._accelerator)
        if num_carried:
            device = _accelerate.device_of(self._accelerator)
            self.carrier = SmallExchange(num_carried, device, _kind_of_numbers(model))

    def _reshard_unless_backward_follows(self, *_call: object) -> None:
        """What stays gathered would not follow the weights, and hide the pieces of the optimizer."""
        if not torch.is_grad_enabled():
            reshard(self.model)

    @property
    @override
    def is_outdated(self) -> bool:
        return False

    @override
    def renew(self) -> nn.Module:
        return self.model

    @override
    def unwrap(self) -> nn.Module | None:
        if not self._is_wrapped:
            return None
        self._wrapped.close()
        model, self.carrier, self._is_wrapped = self.model, None, False
        if self._passes is not None:
            self._passes.close()
            self._passes = None
        del self.model, self._modules
        _accelerate.forget_prepared_objects(self._accelerator)
        return model

    @override
    def step(self, *, exchanges_gradients: bool) -> AbstractContextManager[object]:
        if self._broadcasts_buffers:
            broadcast_buffers(self.model)
        self._modules.follow_unfreezing()
        return _NOTHING if exchanges_gradients else self._modules.keeping_gradients_local()

    @override
    def forward_pass(self, *, is_empty: bool = False, some_are_empty: bool = False) -> AbstractContextManager[object]:
        passes = self._passes
        return _NOTHING if passes is None else passes.step(is_empty=is_empty, some_are_empty=some_are_empty)

    @property
    @override
    def follows_another_process(self) -> bool:
        return self._passes is not None and self._passes.follows

    @override
    def end_forward_pass(self, loss: Tensor) -> None:
        if self._passes is not None:
            self._passes.end(loss)

    @override
    def loss_without_samples(self) -> Tensor:
        passes = self._passes
        return zero_loss_of(self.model, []) if passes is None else passes.loss_without_samples()

    @override
    def until_all_end(self, batches: Iterable[_T]) -> Iterable[_T]:
        return batches if self._passes is None else self._passes.until_all_end(batches)

    @override
    def zero_loss_of_stand_in(self, module: nn.Module, loss: Tensor) -> Tensor:
        return zero_loss_of(module, [loss])  # its backward pass goes through the modules of the others

    @override
    def backward(
        self,
        loss: Tensor,
        inputs: Sequence[Tensor] | None = None,
        *,
        exchanges_gradients: bool,
        retain_graph: bool | None = None,
    ) -> None:
        if inputs is not None:
            inputs = self._modules.unsharded(inputs)
        self._modules.follow_unfreezing()
        with _NOTHING if exchanges_gradients else self._modules.keeping_gradients_local():
            _accelerate.backward(self._accelerator, loss, inputs=inputs, retain_graph=retain_graph)
        if exchanges_gradients:
            self.finish_exchange()

    @property
    @override
    def has_local_gradients(self) -> bool:
        return self._modules.has_local_gradients()

    @override
    def start_epoch(self) -> None:
        if self.carrier is not None:
            self.carrier.sums()

    @override
    def check_update(self) -> None: ...

    @override
    def explaining_errors(self) -> AbstractContextManager[object]:
        return _explaining_calls_of_pieces()

    @override
    def finish_exchange(self) -> None:
        """Exchange the gradients of what nobody has sharded, which ``fully_shard`` leaves alone."""
        plain = {str(number): one for number, one in enumerate(self._plain) if one.requires_grad}
        if plain:
            average_gradients(plain)


@contextmanager
def _explaining_calls_of_pieces() -> Generator[None]:
    """Explain what torch says where a layer computes with its piece, as nobody has gathered its weights."""
    try:
        yield
    except RuntimeError as error:
        if _MIXED not in str(error):
            raise
        raise UnsupportedConfigurationError(
            "A layer of the sharded model was called while each process had only its piece of the weights.",
            given="a call of a layer, or of a method other than forward, from outside of the model",
            do="Call self.model in the step; for another method, call "
            'torch.distributed.fsdp.register_fsdp_forward_method(model, "NAME") once.',
        ) from error


def _fp16() -> UnsupportedConfigurationError:
    return UnsupportedConfigurationError(
        "A sharded model is not trained in fp16: the scale of its gradients was never tried.",
        given="mixed_precision='fp16'",
        do="Use bf16.",
    )


def _kind_of_numbers(model: nn.Module) -> torch.dtype:
    """The dtypes of the numbers that travel with the gradients: an exact one for counts, and the gradients' own."""
    dtypes = {parameter.dtype for parameter in model.parameters()}
    return torch.float64 if dtypes == {torch.float64} else torch.float32
