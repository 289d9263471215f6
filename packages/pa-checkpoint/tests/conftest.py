"""What tests of several processes need."""

from __future__ import annotations

import pytest
import torch.distributed as dist


@pytest.fixture
def processes() -> None:
    """The processes have found each other, by the means of torch alone."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
