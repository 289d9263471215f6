"""A sharded model in a run: when its gradients are exchanged, and what travels beside them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from pa_core import _accelerate
from pa_core.distributed.replicated_wrapping import ReplicatedWrapping
from pa_core.distributed.small_exchange import SmallExchange
from pa_core.distributed.wrapping import ModelWrapping
from pa_core.errors import UnsupportedConfigurationError
from pa_core.sharded_tensors import is_sharded_module

__all__ = ["ShardedWrapping", "wrapping_for"]

_NOTHING = nullcontext[None]()


def wrapping_for(model: nn.Module, accelerator: _accelerate.AcceleratorLike) -> ModelWrapping:
    """Return what places and wraps a model in a run.

    Args:
        model: The user's module, sharded or not.
        accelerator: The accelerator of the run.
    """
    return (ShardedWrapping if is_sharded_module(model) else ReplicatedWrapping)(accelerator)


class ShardedWrapping(ModelWrapping):
    """Trains a model that ``fully_shard`` was applied to, which stays as it is, also after the run.

    Args:
        accelerator: The accelerator of the run.
    """

    def __init__(self, accelerator: _accelerate.AcceleratorLike) -> None:
        self._carrier: SmallExchange | None = None
        self._accelerator = accelerator
        self._is_wrapped = False

    @property
    @override
    def carrier(self) -> SmallExchange | None:
        return self._carrier

    @override
    def wrap(self, model: nn.Module, *, for_training: bool, num_carried: int = 0) -> nn.Module:
        self.model = model
        self._is_wrapped = True
        if for_training and num_carried and self._accelerator.num_processes > 1:
            self._carrier = SmallExchange(
                num_carried, _accelerate.device_of(self._accelerator), _kind_of_numbers(model)
            )
        return model

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
        model, self._carrier, self._is_wrapped = self.model, None, False
        del self.model
        _accelerate.forget_prepared_objects(self._accelerator)
        return model

    @override
    def step(self, *, exchanges_gradients: bool) -> AbstractContextManager[object]:
        return _NOTHING if exchanges_gradients else self._keeping_gradients_local()

    @contextmanager
    def _keeping_gradients_local(self) -> Generator[None]:
        sharded = _sharded_modules(self.model)
        for module in sharded:
            module.set_requires_gradient_sync(False, recurse=False)
        try:
            yield
        finally:
            for module in sharded:
                module.set_requires_gradient_sync(True, recurse=False)

    @override
    def forward_pass(self, *, some_are_empty: bool = False) -> AbstractContextManager[object]:
        return _NOTHING

    @override
    def loss_without_samples(self) -> Tensor:
        raise UnsupportedConfigurationError(
            "A process without a loss would keep the others waiting, which need it for their forward pass.",
            given="a sharded model, and a step of this process without a sample or with a StopTrainingError",
            expected="a loss on each process",
            do="Raise StopTrainingError in a callback.",
        )

    @override
    def backward(
        self,
        loss: Tensor,
        inputs: Sequence[Tensor] | None = None,
        *,
        exchanges_gradients: bool,
        retain_graph: bool | None = None,
    ) -> None:
        with self.step(exchanges_gradients=exchanges_gradients):
            _accelerate.backward(self._accelerator, loss, inputs=inputs, retain_graph=retain_graph)

    @override
    def start_epoch(self) -> None:
        if self._carrier is not None:
            self._carrier.sums()

    @override
    def check_update(self) -> None: ...

    @override
    def check_exchange(self) -> None: ...


def _sharded_modules(model: nn.Module) -> list[Any]:
    """The modules that ``fully_shard`` was applied to, of the class ``FSDPModule``, which has no types."""
    return [module for module in model.modules() if hasattr(module, "set_requires_gradient_sync")]


def _kind_of_numbers(model: nn.Module) -> torch.dtype:
    """Of what kind the numbers are that travel beside the gradients: exact for counts, and that of the gradients."""
    dtypes = {parameter.dtype for parameter in model.parameters()}
    return torch.float64 if dtypes == {torch.float64} else torch.float32
