"""Removing the rows that were added to make tensors equally long."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pa_core import distributed
from pa_core.data import remove_padding

ROWS = st.lists(st.lists(st.integers(-3, 3), min_size=2, max_size=2), max_size=6)


def padded(rows: list[list[int]], to_length: int, value: int) -> Tensor:
    """Rows as a tensor with rows of padding behind them."""
    tensor = torch.full((to_length, 2), value)
    tensor[: len(rows)] = torch.tensor(rows, dtype=torch.int64).reshape(-1, 2)
    return tensor


@given(ROWS, ROWS)
def test_what_is_left_of_the_padded_pieces_is_the_pieces(first: list[list[int]], second: list[list[int]]) -> None:
    """Pieces of two processes, padded to one length and concatenated, come back as they were and in order."""
    longest = max(len(first), len(second))
    gathered = torch.cat([padded(first, longest, -7), padded(second, longest, -7)])
    assert remove_padding(gathered, -7).tolist() == first + second


@given(st.lists(st.integers(-3, 3)), st.integers(-3, 3))
def test_of_one_dimension_each_element_is_a_row(values: list[int], pad_value: int) -> None:
    """Class predictions, one number for each sample, lose exactly the elements with the padding value."""
    tensor = torch.tensor(values, dtype=torch.int64)
    assert remove_padding(tensor, pad_value).tolist() == [value for value in values if value != pad_value]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pad_value", [0.1, -100, math.nan, math.inf])
def test_the_value_is_compared_in_the_precision_of_the_tensor(dtype: torch.dtype, pad_value: float) -> None:
    """A padding value that the tensor can only hold rounded, or NaN, is found all the same."""
    rows = torch.tensor([[1.0, 2.0], [3.0, pad_value]], dtype=dtype)
    tensor = torch.cat([rows, rows.new_full((3, 2), pad_value)])
    assert torch.equal(remove_padding(tensor, pad_value).nan_to_num(), rows.nan_to_num())


def test_rows_of_any_shape() -> None:
    """Only a row whose every element is the padding value is taken away."""
    boxes = torch.arange(24.0).reshape(2, 3, 4)
    boxes[0, :, 1:] = -1
    assert torch.equal(remove_padding(torch.cat([boxes, torch.full((1, 3, 4), -1.0)]), -1), boxes)


@pytest.mark.runs_on("one_process", "two_ranks")
def test_scripts_that_remove_the_padding_of_gather_themselves_still_work() -> None:
    """What processes with different numbers of rows gathered is what they had, and nothing is left to remove."""
    world = distributed.num_processes()
    rank = torch.distributed.get_rank() if world > 1 else 0
    rows = torch.arange(2 + rank).unsqueeze(1) + 10 * rank
    gathered = remove_padding(distributed.gather(rows, padding_value=-100), -100)
    assert gathered.flatten().tolist() == ([0, 1] if world == 1 else [0, 1, 10, 11, 12])
