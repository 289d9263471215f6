"""Lets gradients be added up in one order from the first update on, no matter how often a run is started again."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pa_core._torch import has_comm_hook, has_gradient_hooks
from pa_core.distributed.collectives import num_processes, synchronising_wrapper
from pa_core.distributed.gradient_agreement import GradientAgreement
from pa_core.distributed.zero_pass import zero_pass

__all__ = ["settle_summation_order"]

_PROCESSES_OF_ANY_ORDER = 2  # a + b = b + a


def settle_summation_order(model: nn.Module, agreement: GradientAgreement | None) -> None:
    """Run a backward pass of zeros, by which a wrapper decides in which order it adds up gradients from then on.

    ``DistributedDataParallel`` sorts parameters into buckets when it is made, and again after its first backward pass.
    Where an element is in its bucket decides in which order three or more processes are summed, so the first update
    after each start would have other last bits than the same update of a run that was never interrupted.

    Nothing is done where the wrapper does not sort again, and where something else would notice the pass: hooks of the
    script on parameters, or on the exchange of gradients.

    Args:
        model: The wrapped model, before its first step; every process must call this.
        agreement: What travels with its gradients.
    """
    wrapper: Any = synchronising_wrapper(model)
    if wrapper is None or num_processes() <= _PROCESSES_OF_ANY_ORDER:
        return
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if wrapper.find_unused_parameters or wrapper.static_graph:
        return
    if has_comm_hook(wrapper) or any(map(has_gradient_hooks, parameters)):
        return
    gradients = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    with torch.enable_grad():
        loss = zero_pass(model, calls=0)
        if agreement is not None:
            loss = agreement.add_to(loss, [0.0] * agreement.parameter.numel())
        torch.autograd.backward(loss)
    if agreement is not None:
        agreement.sums()
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
