"""The example of exporting writes models that do what the trained one does."""

from __future__ import annotations

import pytest
import torch

from tests.examples.shared_launches import SharedLaunches
from tests.examples.ways import WAYS


@pytest.mark.parametrize("way", WAYS[1:2])
def test_what_is_exported_needs_no_code_and_is_as_good(shared_launch: SharedLaunches, way: str) -> None:
    """The program takes one image or many, and its outputs have no dropout in them."""
    launched = shared_launch("export_digits", way)
    assert launched.status == 0
    assert launched.output.count("of 297 digits, as the trained model") == 2

    program = torch.export.load(launched.folder / "outputs" / "export_digits" / "program.pt2").module()
    images = torch.rand(5, 8, 8)
    torch.testing.assert_close(program(images[:1]), program(images)[:1])
    torch.testing.assert_close(program(images), program(images), rtol=0, atol=0)
