"""What the tests of trials share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One folder for all processes."""
    shared: list[Any] = [str(tmp_path)]
    if dist.is_initialized():
        dist.broadcast_object_list(shared)
    return Path(shared[0])
