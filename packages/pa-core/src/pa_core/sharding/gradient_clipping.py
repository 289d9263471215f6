"""Clipping the gradients of an update, including sparse and sharded gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from pa_core._tensors import is_sharded, local_piece
from pa_core._torch import foreach
from pa_core.distributed.collectives import num_processes, sum_over_processes


def clip_gradient_values(parameters: Iterable[Tensor], bound: float) -> None:
    """Clip each element of the gradients to plus and minus a value.

    Args:
        parameters: Parameters, sharded or not.
        bound: The largest value.
    """
    parameters = list(parameters)
    if not (_are_sharded(parameters) or _have_sparse_gradients(parameters)):
        nn.utils.clip_grad_value_(parameters, bound)
        return
    pieces = _pieces(_gradients(parameters))
    if pieces:
        foreach("clamp_min_", pieces, -bound)
        foreach("clamp_max_", pieces, bound)


def clip_gradient_norm(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale all gradients together so that their norm is at most ``max_norm``, and return the norm before clipping.

    The norm is the same on all processes, because with sharded parameters they add up the squares of their pieces.

    Args:
        parameters: Parameters, sharded or not.
        max_norm: The largest norm.
    """
    parameters = list(parameters)
    are_sharded = _are_sharded(parameters)
    if not (are_sharded or _have_sparse_gradients(parameters)):
        return nn.utils.clip_grad_norm_(parameters, max_norm)
    gradients = _gradients(parameters)
    pieces = _pieces(gradients)
    if are_sharded:
        total = sum_over_processes(_sum_of_squares(gradients, pieces, parameters[0].device))
        norm = total.sqrt().to(parameters[0].dtype)
    else:
        norm = nn.utils.get_total_norm(pieces)
    # Like torch, scale without reading whether the norm is larger, which would synchronise the device.
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    if pieces:
        foreach("mul_", pieces, factor)
    return norm


def _are_sharded(parameters: list[Tensor]) -> bool:
    return any(map(is_sharded, {type(parameter): parameter for parameter in parameters}.values()))


def _have_sparse_gradients(parameters: list[Tensor]) -> bool:
    return any(gradient.is_sparse for parameter in parameters if (gradient := parameter.grad) is not None)


def _gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return the gradients that exist; sparse gradients are coalesced."""
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _pieces(gradients: Iterable[Tensor]) -> list[Tensor]:
    """Return the gradients in memory: the pieces of this process, and the values of sparse gradients."""
    return [gradient.values() if gradient.is_sparse else local_piece(gradient) for gradient in gradients]


def _sum_of_squares(gradients: list[Tensor], pieces: list[Tensor], device: torch.device) -> Tensor:
    """Return the share of this process in the square of the norm; pieces that others also have count in part."""
    by_copies: dict[float, list[Tensor]] = {}
    norms = foreach("norm", pieces) if pieces else ()
    for gradient, norm in zip(gradients, norms, strict=True):
        by_copies.setdefault(_copies(gradient), []).append(norm)
    total = torch.zeros((), dtype=torch.float64, device=device)
    for copies, alike in by_copies.items():
        # Squares leave the range of float32 long before norms do.
        total = total + torch.stack(alike).double().square().sum() / copies
    return total


def _copies(gradient: Tensor) -> float:
    """Return how many processes have the same piece of a gradient as this process."""
    if not is_sharded(gradient):
        return num_processes()
    mesh = gradient.device_mesh
    sizes = [mesh.size(number) for number, placement in enumerate(gradient.placements) if placement.is_shard()]
    return num_processes() / math.prod(sizes)
