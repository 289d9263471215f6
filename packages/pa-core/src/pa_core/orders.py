"""Orders: which samples each epoch visits, and when, as a pure function of the seed and the epoch."""

from __future__ import annotations

from pa_data.orders import (
    ClassBalanced,
    Curriculum,
    EpochOrder,
    LengthGrouped,
    Mixture,
    Order,
    Sequential,
    Shuffled,
    TableOrder,
    TokenBudget,
    Weighted,
    epoch_order,
)

__all__ = [
    "ClassBalanced",
    "Curriculum",
    "EpochOrder",
    "LengthGrouped",
    "Mixture",
    "Order",
    "Sequential",
    "Shuffled",
    "TableOrder",
    "TokenBudget",
    "Weighted",
    "epoch_order",
]
