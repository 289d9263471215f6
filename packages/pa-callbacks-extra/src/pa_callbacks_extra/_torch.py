"""Private names of torch, each with the public way that is not enough."""

from __future__ import annotations

from typing import Any, Final, cast

import torch
from torch import nn

PARAMETERS: Final = "_parameters"
BUFFERS: Final = "_buffers"
CHILDREN: Final = "_modules"
"""Where a module has these in its ``vars``; ``named_parameters`` and its like leave out second names."""

INPUT_CHECK: Final = "_check_input_dim"
"""What a batch norm layer calls to check its input; a layer derived from it may have another rule than its class."""


def foreach(operation: str, *arguments: Any) -> Any:
    """Apply an operation to lists of tensors at once, as torch's optimizers do; tensor by tensor, each is a call.

    Args:
        operation: Its name in torch without ``_foreach_``, such as ``"mul_"``.
        *arguments: What it takes. No list may be empty.
    """
    return getattr(torch, f"_foreach_{operation}")(*arguments)


def non_persistent_buffers(module: nn.Module) -> set[str]:
    """Return the names of a module's own buffers that its state dict leaves out; making one calls the user's hooks.

    Args:
        module: The module.
    """
    return cast("set[str]", cast("Any", module)._non_persistent_buffers_set)
