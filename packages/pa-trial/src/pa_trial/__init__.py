"""Trials in the style of Determined's PyTorch API, on one process or many, without a cluster."""

from __future__ import annotations
