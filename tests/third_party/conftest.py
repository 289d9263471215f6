"""What the packages of others need before they can be imported, and the number of ranks."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from tests.support.beside_torchvision import make_torchvision_importable


def pytest_configure() -> None:
    """Let timm and transformers import torchvision."""
    make_torchvision_importable()


@pytest.fixture
def num_ranks() -> int:
    """How many processes run the tests together."""
    return dist.get_world_size() if dist.is_initialized() else 1
