"""Whether a loss was computed in full precision, where a mixed one was requested."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from pa_core._torch import dtypes_of_outputs

_AUTOCAST = ("Addmm", "Addbmm", "Baddbmm", "Bmm", "Convolution", "Linear", "Matmul", "Mm", "Mv", "ScaledDotProduct")


def is_in_full_precision(loss: Tensor) -> bool:
    """Whether matrix products that led to a loss were computed in float32, and nothing in a smaller type.

    Autocast would have computed them in the smaller type. False where the graph does not tell: compiled functions and
    custom functions hide what they compute.

    Args:
        loss: The loss, with its graph.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1)
        >>> is_in_full_precision(model(torch.ones(1, 2)).sum())
        True
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     loss = model(torch.ones(1, 2)).sum()
        >>> is_in_full_precision(loss)
        False
    """
    found = False
    nodes, seen = [loss.grad_fn], set[Node | None]()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name, kinds = node.name(), dtypes_of_outputs(node)
        is_hidden = issubclass(type(node), BackwardCFunction)  # mypy takes the two for incompatible
        if is_hidden or kinds & {torch.bfloat16, torch.float16}:
            return False
        found = found or (name.startswith(_AUTOCAST) and torch.float32 in kinds)
        nodes += [previous for previous, _ in node.next_functions]
    return found
