"""An order whose epochs have different lengths."""

from __future__ import annotations

from typing import ClassVar

from typing_extensions import override

from pa_data.orders import EpochOrder, Order, epoch_order


class Stages(Order):
    """Visits as many samples in each epoch as the list says, the first ones of the dataset, shuffled."""

    name: ClassVar[str] = "stages-v1"

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    @override
    def epoch_order(self, num_samples: int, *, seed: int, epoch: int) -> EpochOrder:
        return epoch_order(self.sizes[epoch % len(self.sizes)], seed=seed, epoch=epoch)
