"""Mistakes in data: what is trained on, and what is evaluated."""

from __future__ import annotations

import random
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, random_split
from typing_extensions import override

from tests.support.pa_preflight.data import Shifted, bytes_of, lines, pictures, points, sorted_by_target, texts
from tests.support.pa_preflight.scripts import Apply, Planting, Script, conv_net, perceptron, script

planted = Planting()


def _flat_net(size: int = 8, outputs: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), *perceptron(size * size, outputs))


@planted("inputs-not-normalised")
def brightness_to_255() -> Script:
    """Pictures have numbers from 0 to 255, as they were read."""
    return script(_flat_net(), nn.CrossEntropyLoss(), bytes_of(pictures()))


@planted("inputs-not-normalised")
def bytes_converted_in_the_model() -> Script:
    """Pictures are bytes, which the model converts to floats without scaling them."""
    images, targets = bytes_of(pictures()).tensors
    model = nn.Sequential(Apply(torch.Tensor.float), *_flat_net())
    return script(model, nn.CrossEntropyLoss(), TensorDataset(images.byte(), targets))


@planted("inputs-not-normalised")
def salary_beside_small_numbers() -> Script:
    """One of the features is in the ten thousands, and the others are around zero."""
    inputs, targets = lines().tensors
    inputs[:, 2] = 40_000 + 12_000 * inputs[:, 2]
    return script(perceptron(6, 1), nn.MSELoss(), TensorDataset(inputs, targets))


@planted("inputs-not-finite")
def missing_value() -> Script:
    """One number of the table is missing, and was read as NaN."""
    inputs, targets = lines().tensors
    inputs[17, 3] = float("nan")
    return script(perceptron(6, 1), nn.MSELoss(), TensorDataset(inputs, targets))


@planted("inputs-not-finite")
def logarithms_of_counts() -> Script:
    """A feature is the logarithm of a count, which is 0 for some samples."""
    inputs, targets = points().tensors
    inputs[:, 0] = (4 * inputs[:, 0].abs()).floor().log()
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), TensorDataset(inputs, targets))


@planted("targets-not-finite")
def missing_target() -> Script:
    """Some targets are missing, and were read as NaN."""
    inputs, targets = lines().tensors
    targets[5::60] = float("nan")
    return script(perceptron(6, 1), nn.MSELoss(), TensorDataset(inputs, targets))


@planted("targets-not-finite")
def logarithms_of_prices() -> Script:
    """The targets are logarithms of prices, one of which is 0."""
    inputs, targets = lines().tensors
    prices = targets.exp()
    prices[100] = 0.0
    return script(perceptron(6, 1), nn.MSELoss(), TensorDataset(inputs, prices.log()))


@planted("same-samples-in-evaluation")
def evaluated_on_the_training_set() -> Script:
    """The training set is the evaluation set."""
    data = points()
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), data, eval_dataset=data)


@planted("same-samples-in-evaluation")
def overlapping_subsets() -> Script:
    """The second part begins before the first one ends."""
    data = points(600)
    train, evaluation = Subset(data, range(500)), Subset(data, range(400, 600))
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), train, eval_dataset=evaluation)


@planted("same-samples-in-evaluation")
def split_twice() -> Script:
    """The data are split at random again for the evaluation set."""
    data = lines(600)
    train, _ = random_split(data, [500, 100], torch.Generator().manual_seed(1))
    _, evaluation = random_split(data, [500, 100], torch.Generator().manual_seed(2))
    return script(perceptron(6, 1), nn.MSELoss(), train, eval_dataset=evaluation)


@planted("same-samples-in-evaluation")
def copies_of_samples() -> Script:
    """A file has samples twice, and the copies are on both sides of the split."""
    inputs, targets = points(300).tensors
    twice = TensorDataset(torch.cat([inputs, inputs]), torch.cat([targets, targets]))
    train, evaluation = Subset(twice, range(450)), Subset(twice, range(450, 600))
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), train, eval_dataset=evaluation)


@planted("augmentation-in-evaluation")
def pictures_shifted_in_evaluations() -> Script:
    """The evaluation set has the augmentation of the training set."""
    evaluation = Shifted(pictures(80, seed=2))
    return script(conv_net(), nn.CrossEntropyLoss(), Shifted(pictures()), eval_dataset=evaluation)


class _Noisy(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    @override
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = self.data[index]
        return inputs + torch.from_numpy(np.random.normal(0, 0.1, inputs.shape)).float(), targets


@planted("augmentation-in-evaluation")
def parts_of_an_augmented_set() -> Script:
    """One augmented dataset is split into training and evaluation."""
    data = _Noisy(points(600))
    train, evaluation = Subset(data, range(480)), Subset(data, range(480, 600))
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), train, eval_dataset=evaluation)


class _SeededByTorch(Shifted):
    @override
    def draw(self) -> tuple[int, int]:
        torch.manual_seed(0)
        return super().draw()


@planted("augmentation-repeats")
def seeded_for_each_sample() -> Script:
    """Each sample calls ``torch.manual_seed(0)``, so that all are shifted alike."""
    return script(conv_net(), nn.CrossEntropyLoss(), _SeededByTorch(pictures()))


class _SeededByPython(Shifted):
    @override
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        random.seed(index)
        return super().__getitem__(index)

    @override
    def draw(self) -> tuple[int, int]:
        return random.randint(-1, 1), random.randint(-1, 1)


@planted("augmentation-repeats")
def seeded_by_the_index() -> Script:
    """Each sample seeds Python's generator by its index, so that it is shifted alike in all epochs."""
    return script(conv_net(), nn.CrossEntropyLoss(), _SeededByPython(pictures()))


class _SeededByNumpy(_Noisy):
    @override
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        np.random.seed(42)
        return super().__getitem__(index)


@planted("augmentation-repeats")
def same_noise_for_all() -> Script:
    """Each sample calls ``np.random.seed(42)``, so that all get the same noise."""
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), _SeededByNumpy(points()))


@planted("one-class")
def all_targets_equal() -> Script:
    """A wrong path, and all samples are of the same class."""
    inputs, targets = points().tensors
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), TensorDataset(inputs, torch.ones_like(targets)))


@planted("one-class")
def cut_after_sorting() -> Script:
    """The first samples of a sorted set were taken for an experiment: all are positive."""
    inputs, targets = points(classes=2).tensors
    data = TensorDataset(inputs[targets == 1], targets[targets == 1].float().unsqueeze(1))
    return script(perceptron(8, 1), nn.BCEWithLogitsLoss(), data)


@planted("sorted-by-class")
def sorted_without_shuffling() -> Script:
    """Samples are sorted by class, and shuffling is off."""
    data = sorted_by_target(points())
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), data, train_dataloader_kwargs={"shuffle": False})


@planted("sorted-by-class")
def loader_of_sorted_texts() -> Script:
    """The same with a DataLoader of the script, which does not shuffle by default."""
    model = nn.Sequential(nn.EmbeddingBag(20, 16), nn.Linear(16, 3))
    return script(model, nn.CrossEntropyLoss(), DataLoader(sorted_by_target(texts()), batch_size=32))


class _Decoded(Shifted):
    @override
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(0.0005)
        return super().__getitem__(index)


@planted("workers-are-the-bottleneck")
def pictures_decoded_without_workers() -> Script:
    """Each picture takes half a millisecond, in the process that trains."""
    return script(conv_net(), nn.CrossEntropyLoss(), _Decoded(pictures()), train_dataloader_kwargs={"num_workers": 0})


@planted("evaluation-inputs-differ")
def evaluated_on_bytes() -> Script:
    """Training pictures are normalised, and those of the evaluation are from 0 to 255."""
    evaluation = bytes_of(pictures(80, seed=2))
    return script(conv_net(), nn.CrossEntropyLoss(), pictures(), eval_dataset=evaluation)


@planted("evaluation-inputs-differ")
def evaluated_without_standardisation() -> Script:
    """The inputs of the training set are standardised, and those of the evaluation set are not."""
    evaluation = points(96, seed=2, scale=8.0, shift=50.0)
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), points(), eval_dataset=evaluation)
