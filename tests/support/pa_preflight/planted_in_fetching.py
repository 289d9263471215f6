"""Mistakes in how samples are fetched, sampled and collated."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, TensorDataset, WeightedRandomSampler
from typing_extensions import override

from tests.support.pa_preflight.data import Shifted, pictures, points, texts
from tests.support.pa_preflight.planted_in_samples import Rows
from tests.support.pa_preflight.scripts import Planting, Script, conv_net, perceptron, script

planted = Planting()


class _InPlace(Rows):
    @override
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, targets = self.data[index]
        inputs += 0.1 * torch.randn(inputs.shape)
        return inputs, targets


class _InPlaceAndCopied(_InPlace):
    @override
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, targets = super().__getitem__(index)
        return inputs.clone(), targets


@planted("stored-data-change")
def noise_added_in_place() -> Script:
    """The augmentation adds its noise to the stored samples."""
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), _InPlace(points()))


@planted("stored-data-change")
def copied_too_late() -> Script:
    """The sample is copied after the noise was added."""
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), _InPlaceAndCopied(points()))


@planted("samples-never-used")
def length_of_batches() -> Script:
    """The length is the number of batches."""
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), Rows(points(), 15))


@planted("sampler-leaves-samples-out")
def weights_of_classes() -> Script:
    """The sampler has a weight for each class, not for each sample."""
    data = points()
    sampler = WeightedRandomSampler([0.2, 0.3, 0.2, 0.3], len(data))
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), DataLoader(data, 32, sampler=sampler))


@planted("sampler-leaves-samples-out", level="warning")
def weights_of_the_first_part() -> Script:
    """The weights were made for a part of the data, and are 0 for the rest."""
    data = points()
    sampler = WeightedRandomSampler([1.0 if one < 48 else 0.0 for one in range(480)], len(data))
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), DataLoader(data, 32, sampler=sampler))


class _OwnGenerator(Shifted):
    @override
    def draw(self) -> tuple[int, int]:
        down, right = torch.randint(-1, 2, (2,), generator=torch.Generator().manual_seed(3)).tolist()
        return down, right


@planted("augmentation-repeats", level="warning")
def generator_with_a_seed_for_each_sample() -> Script:
    """Each sample makes a generator of its own with the same seed."""
    return script(conv_net(), nn.CrossEntropyLoss(), _OwnGenerator(pictures()))


class Texts(Dataset[tuple[Tensor, Tensor]]):
    """Texts of several lengths."""

    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        tokens, target = self.data[index]
        return tokens[: 4 + index % 8], target


def sorted_inputs(samples: list[Any]) -> tuple[Tensor, Tensor]:
    """Sorts the inputs of a batch by their lengths, and not the targets."""
    inputs = sorted((one for one, _ in samples), key=len, reverse=True)
    return pad_sequence(inputs, batch_first=True), torch.stack([target for _, target in samples])


@planted("batches-mix-samples")
def inputs_sorted_alone() -> Script:
    """Texts of a batch are sorted by their lengths, and their targets are not."""
    model = nn.Sequential(nn.EmbeddingBag(20, 8, padding_idx=0), nn.Linear(8, 3))
    return script(model, nn.CrossEntropyLoss(), Texts(texts()), collate_fn=sorted_inputs)
