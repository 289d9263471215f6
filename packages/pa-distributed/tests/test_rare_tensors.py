"""Tensors of types that torch cannot read out of a pickle: they reach other processes all the same."""

from __future__ import annotations

import pytest
import torch

from pa_distributed import gather_objects

RARE = (torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2)


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("dtype", RARE)
@pytest.mark.parametrize("on_first_only", [False, True])
def test_objects_with_tensors_of_rare_types_are_gathered(dtype: torch.dtype, on_first_only: bool) -> None:
    """Their values, types and shapes are kept, of views too; with `on_first_only` the others get nothing."""
    tensor = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).to(dtype).T
    for found in gather_objects({"codes": [tensor]}, on_first_only=on_first_only):
        (own,) = found["codes"]
        assert own.dtype == dtype
        assert own.float().tolist() == [[1, 3], [2, 4]]
