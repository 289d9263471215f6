"""Private names of torch, each with the public way that is not enough."""

from __future__ import annotations

import importlib
from typing import Any, cast

from torch.distributed.distributed_c10d import Store


def store_of_processes() -> Store:
    """The key-value store through which the processes have found each other.

    A separate store would need an address that all of them know.
    """
    module: Any = importlib.import_module("torch.distributed.distributed_c10d")
    return cast("Store", module._get_default_store())
