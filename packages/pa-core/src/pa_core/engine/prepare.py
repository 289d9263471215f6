"""How the models of a run are prepared: split over the processes, placed, and the same everywhere at the start."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn

from pa_core import _accelerate, distributed
from pa_core._tensors import is_sharded_module, reshard, unwrap_model
from pa_core.engine.session import Session
from pa_core.errors import UnsupportedConfigurationError
from pa_core.sharding.sharded_modules import ShardedModules, compile_in_place
from pa_core.steps.compatibility import require_usable_model


def shard(session: Session, *models: nn.Module) -> None:
    """Split models over the processes where that was requested; from then on, the optimizers train the pieces.

    Args:
        session: The run.
        *models: The models.
    """
    setup = session.setup
    for model in models:
        if setup.sharding is not None:
            from pa_core.sharding.shard_model import shard  # large, and few models are sharded

            shard(model, setup.sharding, setup.accelerator, session.trainer.named_optimizers().values())
        compile_in_place(model, setup.accelerator)


def place(session: Session, model: nn.Module, for_training: bool) -> nn.Module:
    """Place a model on the device of the run and in its precision until the run ends; return what a step calls.

    That is the module itself unless accelerate compiles it: nothing is wrapped around it, even on several
    processes. A trained one begins with the weights of rank zero. A model that ``fully_shard`` was applied to stays
    as it is.

    Args:
        session: The run.
        model: The user's module.
        for_training: Whether the run trains it.

    Raises:
        UnsupportedConfigurationError: The model cannot be trained on several processes.
    """
    require_usable_model(model)
    accelerator, undo = session.setup.accelerator, session.placed
    is_sharded = is_sharded_module(model)
    modules = ShardedModules(unwrap_model(model, keep_torch_compile=False))
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
        # Outside of compiled graphs, as torch's hooks that gather the pieces are.
        hook: Any = cast("Any", torch.compiler).disable(_reshard_unless_backward_follows)
        undo.callback(called.register_forward_hook(hook).remove)
    if for_training:
        distributed.broadcast_weights(unwrap_model(called, keep_torch_compile=False))
    return called


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
