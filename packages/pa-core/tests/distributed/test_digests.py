"""A digest of texts that travels with other numbers."""

from __future__ import annotations

import subprocess
import sys

import torch

from pa_core.distributed.comparison import digest

IN_NEW_PROCESS = "from pa_core.distributed.comparison import digest; print(digest({'one': 'text', 'other': '\\udcff'}))"


def test_a_digest_is_the_same_in_each_process() -> None:
    """It depends neither on the seed of Python's hashes nor on the order of the texts, and takes any text."""
    new = subprocess.run([sys.executable, "-c", IN_NEW_PROCESS], capture_output=True, text=True, check=True)
    assert new.stdout.strip() == str(digest({"other": "\udcff", "one": "text"}))


def test_a_digest_is_exact_in_single_precision() -> None:
    """It can travel with other numbers, whatever their dtype."""
    for number in range(200):
        numbers = digest({"number": str(number)})
        assert torch.tensor(numbers, dtype=torch.float32).tolist() == numbers
