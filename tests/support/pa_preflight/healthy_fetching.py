"""Scripts without a mistake whose samples are fetched in unusual ways."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, WeightedRandomSampler
from typing_extensions import override

from tests.support.pa_preflight.data import points, texts
from tests.support.pa_preflight.planted_in_fetching import Texts, sorted_inputs
from tests.support.pa_preflight.planted_in_samples import Rows
from tests.support.pa_preflight.scripts import Healthy, Script, perceptron, script

healthy = Healthy()


@healthy
def own_generator_that_goes_on() -> Script:
    """The dataset draws its noise from one generator of its own."""

    class Noisy(Rows):
        def __init__(self, data: TensorDataset) -> None:
            super().__init__(data)
            self.generator = torch.Generator().manual_seed(3)

        @override
        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            inputs, targets = self.data[index]
            return inputs + 0.1 * torch.randn(inputs.shape, generator=self.generator), targets

    return script(perceptron(8, 4), nn.CrossEntropyLoss(), Noisy(points()))


@healthy
def made_up_samples() -> Script:
    """Samples are not stored: the generator of each is seeded by its position."""

    class MadeUp(Dataset[tuple[Tensor, Tensor]]):
        def __len__(self) -> int:
            return 320

        @override
        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            inputs = torch.randn(8, generator=torch.Generator().manual_seed(index))
            return inputs, inputs[:4].argmax()

    return script(perceptron(8, 4), nn.CrossEntropyLoss(), MadeUp())


@healthy
def part_of_a_larger_set() -> Script:
    """A dataset returns the first half of what it holds, and the second half is evaluated."""

    class Second(Rows):
        @override
        def row(self, index: int) -> int:
            return 240 + index

    data = points()
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), Rows(data, 240), eval_dataset=Second(data, 240))


@healthy
def rare_ones_drawn_more_often() -> Script:
    """The sampler has a weight for each sample: the inverse of the frequency of its class."""
    data = points()
    weights = (1.0 / data.tensors[1].bincount())[data.tensors[1]]
    sampler = WeightedRandomSampler([float(one) for one in weights], len(data))
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), DataLoader(data, 32, sampler=sampler))


@healthy
def samples_sorted_in_a_batch() -> Script:
    """Texts of a batch are sorted by their lengths, with their targets."""

    def sorted_samples(samples: list[Any]) -> tuple[Tensor, Tensor]:
        return sorted_inputs(sorted(samples, key=lambda one: -len(one[0])))

    model = nn.Sequential(nn.EmbeddingBag(20, 8, padding_idx=0), nn.Linear(8, 3))
    return script(model, nn.CrossEntropyLoss(), Texts(texts()), collate_fn=sorted_samples)


@healthy
def summed_over_whole_batches() -> Script:
    """The loss is summed, and all batches have the same number of samples."""
    return script(perceptron(8, 4), nn.CrossEntropyLoss(reduction="sum"), points(320))
