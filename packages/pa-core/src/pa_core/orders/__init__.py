"""Orders: which samples each epoch visits, and when, as a pure function of the seed and the epoch."""

from __future__ import annotations

from pa_core.orders.class_balanced import ClassBalanced
from pa_core.orders.curriculum import Curriculum
from pa_core.orders.epoch_order import EpochOrder, epoch_order
from pa_core.orders.length_grouped import LengthGrouped
from pa_core.orders.mixture import Mixture
from pa_core.orders.order import Order
from pa_core.orders.shuffled import Sequential, Shuffled
from pa_core.orders.table_order import TableOrder
from pa_core.orders.token_budget import TokenBudget
from pa_core.orders.weighted import Weighted

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
