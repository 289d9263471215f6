"""The number of records of a batch."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import numpy as np
import pytest
import torch

from pa_data.errors import ArgumentTypeError, ConfigurationError
from pa_trial.data_length import data_length

LENGTHS: list[tuple[Any, int]] = [
    (torch.zeros(3, 2), 3),
    (np.zeros((4, 2)), 4),
    ({"image": torch.zeros(5, 2), "label": torch.zeros(7)}, 5),
    (UserDict(image=torch.zeros(5)), 5),
    ([torch.zeros(6), torch.zeros(1)], 6),
    ((np.zeros(2), torch.zeros(1)), 2),
    ([["a", "b", "c"], torch.zeros(8)], 3),
    ([[torch.zeros(3), torch.zeros(3)], torch.zeros(3)], 2),  # the first value's own length: nothing is searched
]


@pytest.mark.parametrize(("batch", "length"), LENGTHS)
def test_the_length_of_a_batch_is_that_of_its_first_value(batch: Any, length: int) -> None:
    """An array counts itself; a dict, a list or a tuple counts its first value."""
    assert data_length(batch) == length


@pytest.mark.parametrize("batch", [{}, [], ()])
def test_an_empty_batch_is_a_value_error(batch: Any) -> None:
    """A batch without a value has no length to take."""
    with pytest.raises(ConfigurationError, match=type(batch).__name__) as caught:
        data_length(batch)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("batch", [3, "text", None, {1, 2}, object(), [3], {"a": 1.5}, torch.tensor(1.0)])
def test_anything_else_is_a_type_error_that_says_what_to_override(batch: Any) -> None:
    """A batch of another kind is counted by the trial's own ``get_batch_length``."""
    with pytest.raises(ArgumentTypeError, match="get_batch_length") as caught:
        data_length(batch)
    assert isinstance(caught.value, TypeError)
