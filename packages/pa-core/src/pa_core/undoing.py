"""Runs that leave no trace, such as those that search for a learning rate."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pa_core._torch import BUFFERS, PARAMETERS
from pa_core.training_state.snapshotable import ResumableRun
from pa_data.rng import restored_rng_states

_PLAIN = (bool, int, float, str, type(None))


@contextmanager
def left_as_it_was(run: ResumableRun, data: Sequence[object]) -> Generator[None]:
    """Restore modules, optimizers, schedulers and random numbers: in place, as others hold the same tensors and groups.

    Args:
        run: The trainer.
        data: What may hold generators: a loader, and the arguments of one.
    """
    held = (*run.named_models().values(), run.loss_func, *vars(run).values())
    modules = {id(part): part for one in held if isinstance(one, nn.Module) for part in one.modules()}
    with ExitStack() as stack:
        stack.enter_context(restored_rng_states(run.device, data))
        for optimizer in run.named_optimizers().values():
            stack.callback(_keep_optimizer(optimizer))
        for scheduler in run.named_schedulers().values():
            stack.callback(scheduler.load_state_dict, copy.deepcopy(scheduler.state_dict()))
        for module in modules.values():  # restored first: gradients follow the device of the parameters
            stack.callback(_keep_module(module))
        yield


def _keep_optimizer(optimizer: Optimizer) -> Callable[[], None]:
    """Note state, groups and gradients of an optimizer; return what restores them."""
    state = {parameter: copy.deepcopy(values) for parameter, values in optimizer.state.items()}
    groups, attributes = [dict(group) for group in optimizer.param_groups], dict(vars(optimizer))
    parameters: list[Tensor] = [one for group in groups for one in group["params"]]
    gradients = [(one, one.grad, None if one.grad is None else one.grad.clone()) for one in parameters]
    rates = [(value, value.clone()) for group in groups for value in group.values() if isinstance(value, Tensor)]

    @torch.no_grad()
    def restore() -> None:
        _restore_attributes(optimizer, attributes)  # schedulers of torch replace its step(), and loading its groups
        for parameter, gradient, value in gradients:
            parameter.grad = None
            if gradient is not None and value is not None:
                parameter.grad = gradient.copy_(value).to(parameter.device)
        for rate, value in rates:  # schedulers of torch change a rate that is a tensor in place
            rate.copy_(value)
        optimizer.state.clear()
        optimizer.state.update(state)
        for group, values in zip(optimizer.param_groups, groups, strict=True):
            group.clear()
            group.update(values)

    return restore


def _keep_module(module: nn.Module) -> Callable[[], None]:
    """Note what a module holds itself: parameters and buffers, plain attributes and extra state."""
    held = vars(module)
    tensors = [
        (where, name, tensor, None if tensor is None else tensor.detach().to("cpu", copy=True))
        for where in (held[PARAMETERS], held[BUFFERS])
        for name, tensor in where.items()
    ]
    plain = {name: value for name, value in held.items() if isinstance(value, _PLAIN)}
    has_extra_state = type(module).get_extra_state is not nn.Module.get_extra_state
    extra_state = copy.deepcopy(module.get_extra_state()) if has_extra_state else None

    @torch.no_grad()
    def restore() -> None:
        for where, name, tensor, value in tensors:
            now = where.get(name)
            where[name] = tensor
            if tensor is not None and value is not None:
                tensor.copy_(value)
                if now is not None and now.device != tensor.device:  # the run has moved the module there
                    where[name] = tensor.to(now.device)
        held.update(plain)
        if has_extra_state:
            module.set_extra_state(extra_state)

    return restore


@contextmanager
def attributes_kept(*owners: object) -> Generator[None]:
    """Restore the attributes of objects afterwards.

    Args:
        owners: The objects.
    """
    with ExitStack() as stack:
        for owner in owners:
            stack.callback(partial(_restore_attributes, owner, dict(vars(owner))))
        yield


def _restore_attributes(owner: object, attributes: Mapping[str, Any]) -> None:
    for name in vars(owner).keys() - attributes.keys():
        del vars(owner)[name]
    vars(owner).update(attributes)
