"""Scripts without a mistake whose sets and targets look as if there were one."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.support.pa_preflight.data import lines, points, sorted_by_target
from tests.support.pa_preflight.planted_in_sets import Denoising, seeded, windows_of_noise
from tests.support.pa_preflight.scripts import Healthy, Script, perceptron, script

healthy = Healthy()


@healthy
def windows_divided_by_time() -> Script:
    """Overlapping windows of a series, of which the last part is evaluated."""
    windows, _ = windows_of_noise()
    sums = windows.sum(1, keepdim=True) / 4
    train, evaluation = TensorDataset(windows[:480], sums[:480]), TensorDataset(windows[500:], sums[500:])
    return script(perceptron(16, 1), nn.MSELoss(), train, eval_dataset=evaluation)


@healthy
def points_on_a_line() -> Script:
    """Samples lie on a line, where some are near to each other by chance."""
    places = torch.rand(900, 1, generator=seeded())
    inputs = places * torch.linspace(-1, 1, 8)
    data = TensorDataset(inputs[:600], places[:600]), TensorDataset(inputs[600:], places[600:])
    return script(perceptron(8, 1), nn.MSELoss(), data[0], eval_dataset=data[1])


@healthy
def exclusive_or() -> Script:
    """The class is the product of two signs, which no linear model sees."""
    inputs = torch.randn(480, 4, generator=seeded())
    return script(
        perceptron(4, 2), nn.CrossEntropyLoss(), TensorDataset(inputs, (inputs[:, 0] * inputs[:, 1] > 0).long())
    )


@healthy
def noise_that_was_added() -> Script:
    """The noise that is predicted was added to the inputs."""
    return script(perceptron(6, 6), None, TensorDataset(lines().tensors[0]), kind=Denoising)


@healthy
def fewer_classes_evaluated() -> Script:
    """The evaluation has two of the four classes."""
    inputs, targets = points(seed=2).tensors
    some = TensorDataset(inputs[targets < 2], targets[targets < 2])
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), points(), eval_dataset=some)


@healthy
def last_class_evaluated() -> Script:
    """Sorted samples of one class are evaluated on purpose, of which training has its share."""
    some, others = (sorted_by_target(points(seed=seed)).tensors for seed in (1, 2))
    last = TensorDataset(*(part[others[1] == 3] for part in others))  # the last of four
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), TensorDataset(*some), eval_dataset=last)


@healthy
def balanced_for_training() -> Script:
    """Training has as many samples of each class, and the evaluation has what there is."""
    inputs, targets = points(1200, seed=2, classes=3).tensors
    keep = (targets == 0) | (torch.rand(1200, generator=seeded()) < 0.1)
    train, evaluation = (
        sorted_by_target(one) for one in (points(classes=3), TensorDataset(inputs[keep], targets[keep]))
    )
    return script(perceptron(8, 3), nn.CrossEntropyLoss(), train, eval_dataset=evaluation)
