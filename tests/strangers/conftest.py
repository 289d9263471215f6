"""What the packages of others need before they can be imported, and the number of ranks."""

from __future__ import annotations

import importlib
import sys
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

OPERATORS: Any = cast("Any", torch.library).Library("torchvision", "FRAGMENT")
"""It has to live as long as the operators that are declared in it."""


def pytest_configure() -> None:
    """Make torchvision importable, which timm and transformers import.

    Its compiled part does not load beside a torch that was built otherwise. Its Python part does, once the operators
    that it registers itself for are declared; none of them is called here.
    """
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        OPERATORS.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        OPERATORS.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        importlib.import_module("torchvision")


@pytest.fixture
def num_ranks() -> int:
    """How many processes run the tests together."""
    return dist.get_world_size() if dist.is_initialized() else 1
