"""Mistakes that many samples show together: what was read, filled in, looked up or turned before training."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset
from typing_extensions import override

from tests.support.pa_preflight.data import blobs, lines, pictures, points, texts
from tests.support.pa_preflight.scripts import Planting, Script, conv_net, perceptron, script

planted = Planting()


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """The samples of another dataset, at the positions that a function returns."""

    def __init__(self, data: TensorDataset, length: int | None = None) -> None:
        self.data = data
        self.length = len(data) if length is None else length

    def __len__(self) -> int:
        return self.length

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, targets = self.data[self.row(index)]
        return inputs, targets

    def row(self, index: int) -> int:
        """Which row a sample is."""
        return index


@planted("samples-equal")
def always_the_first_row() -> Script:
    """The dataset forgets its index."""

    class First(Rows):
        @override
        def row(self, index: int) -> int:
            return 0

    return script(perceptron(8, 4), nn.CrossEntropyLoss(), First(points()))


@planted("samples-equal")
def divided_to_zero() -> Script:
    """Bytes are divided as whole numbers, and all are 0."""
    images, targets = pictures().tensors
    whole = ((images + 3) / 6 * 250).clamp(0, 250).round() // 255
    return script(conv_net(), nn.CrossEntropyLoss(), TensorDataset(whole, targets))


@planted("samples-repeat")
def rows_of_a_small_part() -> Script:
    """The index is divided by the batch size, so that there are 15 distinct samples."""

    class Few(Rows):
        @override
        def row(self, index: int) -> int:
            return index // 32

    return script(perceptron(8, 4), nn.CrossEntropyLoss(), Few(points()))


@planted("inputs-blank")
def pictures_that_were_not_read() -> Script:
    """Most of the files were not found, and black pictures took their place."""
    images, targets = pictures().tensors
    images[torch.arange(len(images)) % 4 != 0] = 0.0
    return script(conv_net(), nn.CrossEntropyLoss(), TensorDataset(images, targets))


@planted("placeholder-among-numbers")
def missing_values_as_numbers() -> Script:
    """Missing values are -999, and were standardised with the others."""
    inputs, targets = lines().tensors
    inputs[torch.rand(inputs.shape, generator=torch.Generator().manual_seed(1)) < 0.05] = -999.0
    inputs = (inputs - inputs.mean(0)) / inputs.std(0)
    return script(perceptron(6, 1), nn.MSELoss(), TensorDataset(inputs, targets))


@planted("placeholder-among-numbers")
def missing_targets_as_numbers() -> Script:
    """Missing targets are 99, and are learnt as numbers."""
    inputs, targets = lines().tensors
    targets[::12] = 99.0
    return script(perceptron(6, 1), nn.L1Loss(), TensorDataset(inputs, targets))


@planted("dimensions-scrambled")
def reshaped_channels() -> Script:
    """Pictures with their channels last are reshaped to have them first."""
    images, targets = blobs()
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    return script(model, nn.CrossEntropyLoss(), TensorDataset(images.reshape(-1, 3, 12, 12), targets))


@planted("target-among-inputs")
def label_among_the_columns() -> Script:
    """The label is one of the columns of the table that was read."""
    inputs, targets = points().tensors
    return script(
        perceptron(9, 4), nn.CrossEntropyLoss(), TensorDataset(torch.cat([inputs, targets[:, None] / 2.0], 1), targets)
    )


@planted("target-among-inputs")
def window_with_its_answer() -> Script:
    """The window of a series ends with the value that is to be predicted."""
    series = torch.sin(torch.arange(500) / 7) + 0.3 * torch.randn(500, generator=torch.Generator().manual_seed(1))
    windows = series.unfold(0, 12, 1)
    return script(perceptron(12, 1), nn.MSELoss(), TensorDataset(windows, windows[:, -1:].clone()))


@planted("one-token-dominates")
def words_that_are_unknown() -> Script:
    """Nearly no word is in the vocabulary."""
    tokens, targets = texts().tensors
    is_known = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(1)) < 0.1
    tokens = torch.where(is_known, 2 + tokens % 3, 1)
    model = nn.Sequential(nn.EmbeddingBag(20, 8), nn.Linear(8, 3))
    return script(model, nn.CrossEntropyLoss(), TensorDataset(tokens, targets))
