"""The model inside what torch wraps around it."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import nn

from pa_core import unwrap_model


def _compiled(model: nn.Module) -> nn.Module:
    """A compiled model; nothing is compiled before it is called."""
    return cast("nn.Module", torch.compile(model, backend="eager"))


@pytest.mark.parametrize("keep_torch_compile", [True, False])
def test_a_model_without_wrappers_is_returned_itself(keep_torch_compile: bool) -> None:
    """Scripts need not know whether there is a wrapper, even around a model without a layer."""
    model = nn.Sequential()
    assert unwrap_model(model, keep_torch_compile=keep_torch_compile) is model


def test_wrappers_for_several_devices_come_off() -> None:
    """However many there are."""
    model = nn.Linear(2, 1)
    assert unwrap_model(nn.DataParallel(nn.DataParallel(model))) is model


def test_a_compiled_model_stays_compiled_unless_asked_otherwise() -> None:
    """What is saved has plain names; what is called is fast."""
    model = nn.Linear(2, 1)
    compiled = _compiled(model)
    assert unwrap_model(compiled) is compiled
    assert unwrap_model(nn.DataParallel(compiled)) is compiled
    assert unwrap_model(compiled, keep_torch_compile=False) is model


def test_what_was_compiled_around_a_wrapper_is_not_kept() -> None:
    """The wrapper is a part of what was compiled, so one cannot be had without the other."""
    model = nn.Linear(2, 1)
    assert unwrap_model(_compiled(nn.DataParallel(model))) is model
