"""Orders: which samples each epoch visits, and in which sequence, as a function of the seed and the epoch."""

from __future__ import annotations

from pa_data.orders._class_balanced import ClassBalanced
from pa_data.orders._curriculum import Curriculum
from pa_data.orders._epoch_order import EpochOrder, epoch_order
from pa_data.orders._given import order_of_dataset
from pa_data.orders._length_grouped import LengthGrouped
from pa_data.orders._mixture import Mixture
from pa_data.orders._order import Order
from pa_data.orders._shuffled import Sequential, Shuffled
from pa_data.orders._table_order import TableOrder
from pa_data.orders._token_budget import TokenBudget
from pa_data.orders._weighted import Weighted

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
    "order_of_dataset",
]
