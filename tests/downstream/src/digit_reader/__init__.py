"""Learns to read scanned digits."""

from __future__ import annotations

from .batches import DigitBatch, Digits, collate
from .model import DigitNet
from .trainer import DigitOutput, DigitTrainer

__all__ = ["DigitBatch", "DigitNet", "DigitOutput", "DigitTrainer", "Digits", "collate"]
