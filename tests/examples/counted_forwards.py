"""Run a script, and print how often layers of transformers were computed: ``python counted_forwards.py SCRIPT ...``."""

from __future__ import annotations

import runpy
import sys
from itertools import count
from typing import Any

import torch
from torch import nn

if __name__ == "__main__":
    counted = {True: count(), False: count()}
    forward = nn.TransformerEncoderLayer.forward

    def counting_forward(self: nn.TransformerEncoderLayer, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Count it, in training and in evaluations apart."""
        next(counted[self.training])
        return forward(self, *args, **kwargs)

    nn.TransformerEncoderLayer.forward = counting_forward  # type: ignore[method-assign]
    sys.argv[:] = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.stdout.write(f"in training: {next(counted[True])}, in evaluations: {next(counted[False])}\n")
