"""Places a model for a run: on its device, in the precision of the run, and makes it what it was afterwards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from pa_core import _accelerate, distributed
from pa_core.compatibility import require_usable_model
from pa_core.errors import UnsupportedConfigurationError
from pa_core.model_tensors import is_sharded_module, reshard, unwrap_model
from pa_core.sharding.sharded_modules import ShardedModules


def place(
    model: nn.Module, accelerator: _accelerate.AcceleratorLike, *, for_training: bool
) -> tuple[nn.Module, Callable[[], None]]:
    """Place a model on the device of the run and in its precision; trained ones begin with the weights of rank zero.

    Nothing is wrapped around it, even on several processes. A model that ``fully_shard`` was applied to stays as it is.

    Args:
        model: The user's module.
        accelerator: The accelerator of the run.
        for_training: Whether the run trains it.

    Returns:
        What a step calls, which is the module itself unless accelerate compiles it; and a function that makes the
        module what it was.

    Raises:
        UnsupportedConfigurationError: The model cannot be trained on several processes.
    """
    require_usable_model(model)
    is_sharded = is_sharded_module(model)
    modules = ShardedModules(unwrap_model(model, keep_torch_compile=False))
    with ExitStack() as undo:
        undo.callback(_accelerate.forget_prepared_objects, accelerator)
        if is_sharded:
            reshard(model)
            if for_training:
                _prepare_training(modules, accelerator)
        called = model
        if not modules.computes_in_own_precision:
            called, restore = _accelerate.place(accelerator, model, compiles=not is_sharded)
            undo.callback(restore)
        if is_sharded:
            undo.callback(reshard, called)
            undo.callback(called.register_forward_hook(_not_compiled(_reshard_unless_backward_follows)).remove)
        if for_training:
            distributed.broadcast_weights(unwrap_model(called, keep_torch_compile=False))
        return called, undo.pop_all().close
    raise AssertionError  # the stack lets exceptions pass


def _prepare_training(modules: ShardedModules, accelerator: _accelerate.AcceleratorLike) -> None:
    """Let all processes train a sharded model together, and begin with the same weights."""
    if accelerator.scaler is not None:
        raise UnsupportedConfigurationError(
            "A sharded model is not trained in fp16: the scale of its gradients was never tried.",
            given="mixed_precision='fp16'",
            do="Use bf16.",
        )
    modules.require_trainable(accelerator.num_processes)
    modules.exchange_gradients()
    if _accelerate.finds_unused_parameters(accelerator):
        modules.allow_unused_parameters()
    modules.make_replicas_alike()


def _reshard_unless_backward_follows(module: nn.Module, *_call: object) -> None:
    """What stays gathered would not follow the weights, and hide the pieces of the optimizer."""
    if not torch.is_grad_enabled():
        reshard(module)


def _not_compiled(hook: Callable[..., None]) -> Callable[..., None]:
    """Return a hook that stays outside of compiled graphs, as torch's hooks that gather the pieces do."""
    compiler: Any = torch.compiler  # torch annotates it only in part
    disabled: Callable[..., None] = compiler.disable(hook)
    return disabled
