"""Preparing a run: checks of its arguments, sizes of batches, and placement of models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from pa_core import _accelerate, distributed
from pa_core._tensors import is_sharded_module, reshard, unwrap_model
from pa_core.data.data_arguments import DataArgument, check_arguments_of_loaders
from pa_core.engine import rank_checks, reproducible_checks
from pa_core.engine.run_arguments import RunArguments
from pa_core.engine.session import Session
from pa_core.errors import UnsupportedConfigurationError
from pa_core.sharding.sharded_modules import ShardedModules, compile_in_place
from pa_core.steps.compatibility import require_usable_model
from pa_core.training_state.downloaded_states import save_dirs_of
from pa_core.training_state.run_settings import describe_arithmetic
from pa_core.types import SizedIterable
from pa_core.user_warnings import print_once


def check_data(session: Session, data: Sequence[DataArgument], arguments: RunArguments) -> None:
    """Raise an error for data that a trainer or process cannot use, and arguments without effect.

    Args:
        session: The session of the trainer.
        data: The data of the run that begins.
        arguments: The arguments of the run.

    Raises:
        ConfigurationError: The data cannot be used, or an argument has no effect.
    """
    trainer = session.trainer
    for argument in data:
        argument.check_for(type(trainer), trainer.process_index, trainer.num_processes)
    if session.exchange.is_exact:
        reproducible_checks.check_arguments(data, arguments)
    check_arguments_of_loaders(data, arguments.per_device_batch_size, arguments.collate_fn)


def require_usable(session: Session, loaders: Iterable[SizedIterable | None], models: Mapping[str, nn.Module]) -> None:
    """Raise an error for loaders and models with which a reproducible run would depend on the number of processes.

    Args:
        session: The run.
        loaders: The loaders of the run.
        models: The models of the run, by name.

    Raises:
        ConfigurationError: A loader is limited or has its own order.
        UnsupportedConfigurationError: A model is sharded, or has layers that depend on the number of processes.
    """
    if session.exchange.is_exact:
        reproducible_checks.require_usable(loaders, models)


def follow_deepspeed(session: Session) -> None:
    """Raise an error if the run differs from the configuration of DeepSpeed, if any, and print how it is run.

    Args:
        session: The run, whose config exists.

    Raises:
        ConfigurationError: The run has different batches, accumulation or clipping.
    """
    trainer, deepspeed = session.trainer, session.setup.deepspeed
    if deepspeed is not None:
        deepspeed.require_agreement(trainer.run_config)
        print_once(trainer, deepspeed.describe(trainer.num_processes))


def fit_batches(
    session: Session,
    arguments: RunArguments,
    try_update: Callable[[Any], None] | None = None,
    start: Callable[[], None] | None = None,
) -> RunArguments:
    """Return arguments with a batch size that fits into the memory of all devices; every process must call this.

    Args:
        session: The run.
        arguments: The arguments.
        try_update: Makes an update with a batch; None if it cannot be tried.
        start: Prepares the trainer for a step.

    Raises:
        UnsupportedConfigurationError: All processes need the same batches.
    """
    from pa_core.engine.fitting import BatchSizeFitting  # few runs need it

    trainer, loaders = session.trainer, session.setup.loaders
    if trainer.is_sharded or session.exchange.is_exact:
        kind = "A sharded model" if trainer.is_sharded else "A reproducible run"
        raise UnsupportedConfigurationError(
            f'{kind} needs the same batches on all processes; per_device_batch_size="fit" may not.', do="Pass a number."
        )
    session.fitting = BatchSizeFitting(trainer.device, save_dirs_of(trainer.callback_handler.callbacks))
    data = [held for argument in arguments.data for held in argument.held]
    with nullcontext() if try_update is None else session.dry_run(trainer, data):
        if start is not None:
            start()
        session.train_optimizers(trainer.named_optimizers().values())
        sizes = session.fitting.find(trainer.train_dataloader, try_update, partial(print_once, trainer))
    loaders.set_batch_sizes(sizes, "train", [trainer.train_dataloader])
    evaluated = [trainer.eval_dataloader, *trainer.eval_dataloaders.values()]
    given = [argument.loader for argument in arguments.data]
    if not any("batch_size" in (argument.kwargs or {}) for argument in arguments.data):
        loaders.set_batch_sizes(sizes, "eval", [loader for loader in evaluated if loader not in given])
    return replace(arguments, per_device_batch_size=min(sizes))


def describe_setting(session: Session) -> dict[str, object]:
    """Return the settings of a run, besides its arguments, that must be the same on all processes.

    Args:
        session: The run.
    """
    trainer, setup = session.trainer, session.setup
    arithmetic = describe_arithmetic(setup.device) if session.exchange.is_exact else {}
    return {
        "mixed_precision": _accelerate.computed_precision(setup.accelerator),
        "callbacks": rank_checks.describe_callbacks(trainer.callback_handler.callbacks),
        "loss_func": trainer.loss_func,
        "run_history": type(trainer.run_history),
        **{f"arithmetic, {name}": value for name, value in arithmetic.items()},
    }


def shard(session: Session, *models: nn.Module) -> None:
    """Split models over the processes if that was requested; the optimizers then train the local parts.

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
    """Place a model on the device, in the precision of the run, until the run ends; return the module to call.

    The module to call is the model itself, unless accelerate compiles it; it is not wrapped, even with several
    processes. A trained model begins with the weights of rank zero. A model that ``fully_shard`` was applied to is not
    moved.

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
        # Outside of compiled graphs, like torch's hooks that gather the pieces.
        hook: Any = cast("Any", torch.compiler).disable(_reshard_unless_backward_follows)
        undo.callback(called.register_forward_hook(hook).remove)
    if for_training:
        distributed.broadcast_weights(unwrap_model(called, keep_torch_compile=False))
    return called


def _prepare_training(modules: ShardedModules, accelerator: _accelerate.AcceleratorLike) -> None:
    """Let all processes train a sharded model together, and begin with the same weights."""
    if accelerator.scaler is not None:
        raise UnsupportedConfigurationError(
            "A sharded model is not trained in fp16: scaling its gradients is not tested.",
            given="mixed_precision='fp16'",
            do="Use bf16.",
        )
    modules.require_trainable(accelerator.num_processes)
    modules.exchange_gradients()
    if _accelerate.finds_unused_parameters(accelerator):
        modules.allow_unused_parameters()
    modules.make_replicas_alike()


def _reshard_unless_backward_follows(module: nn.Module, *_call: object) -> None:
    """Free gathered parameters, which would be outdated and hide the local parts that the optimizer updates."""
    if not torch.is_grad_enabled():
        reshard(module)
