"""Scripts without a mistake whose samples look as if they had one."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.support.pa_preflight.data import blobs, lines, points, texts
from tests.support.pa_preflight.scripts import Healthy, Script, perceptron, script

healthy = Healthy()


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


@healthy
def many_zeros_among_amounts() -> Script:
    """Half of a column are zeros, next to amounts that go down to them."""
    inputs, targets = lines().tensors
    inputs[:, 2] = inputs[:, 2].clamp(min=0)
    return script(perceptron(6, 1), nn.MSELoss(), TensorDataset(inputs, targets))


@healthy
def flags_among_numbers() -> Script:
    """A column is 0 for most samples, and 1 for some."""
    inputs, targets = lines().tensors
    inputs[:, 2] = (inputs[:, 2] > 1.5).float()
    return script(perceptron(6, 1), nn.MSELoss(), TensorDataset(inputs, targets))


@healthy
def permuted_channels() -> Script:
    """Pictures with their channels last are permuted to have them first."""
    images, targets = blobs()
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    return script(model, nn.CrossEntropyLoss(), TensorDataset(images.permute(0, 3, 1, 2), targets))


@healthy
def steps_of_a_smooth_series() -> Script:
    """Sequences of four smooth signals, with the signals last as recurrent layers take them."""
    phases = 6 * torch.rand(320, 1, 4, generator=_seeded())
    steps = torch.sin(torch.arange(20)[None, :, None] / 3 + phases)
    model = nn.Sequential(nn.Flatten(), *perceptron(80, 4))
    return script(model, nn.MSELoss(), TensorDataset(steps, phases[:, 0] / 6))


@healthy
def mostly_padding() -> Script:
    """Short texts, which are padded at their end to the length of the longest."""
    tokens, targets = texts(length=24).tensors
    tokens[torch.arange(24) >= torch.randint(3, 9, (len(tokens), 1), generator=_seeded())] = 0
    model = nn.Sequential(nn.EmbeddingBag(60, 8), nn.Linear(8, 3))
    return script(model, nn.CrossEntropyLoss(), TensorDataset(tokens, targets))


@healthy
def a_column_that_nearly_tells_the_target() -> Script:
    """A measurement of the target with a little noise is one of the inputs."""
    inputs, targets = lines().tensors
    measured = targets + 0.05 * torch.randn(targets.shape, generator=_seeded())
    return script(perceptron(7, 1), nn.MSELoss(), TensorDataset(torch.cat([inputs, measured], 1), targets))


@healthy
def samples_repeated_on_purpose() -> Script:
    """A fifth of the points is there five times, as it is rare elsewhere."""
    inputs, targets = points(200).tensors
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), TensorDataset(inputs.repeat(5, 1), targets.repeat(5)))


@healthy
def series_that_drifts() -> Script:
    """Windows of a random walk, of which the last part is evaluated, far from the first."""
    walk = torch.randn(1100, generator=_seeded()).cumsum(0) / 10
    windows = walk.unfold(0, 32, 1)
    rises = windows[:, 24:].mean(1, keepdim=True) - windows[:, :8].mean(1, keepdim=True)
    train, evaluation = TensorDataset(windows[:700], rises[:700]), TensorDataset(windows[800:], rises[800:])
    return script(perceptron(32, 1), nn.MSELoss(), train, eval_dataset=evaluation)
