"""Mistakes that show in two sets of samples, or in inputs and targets together."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset, random_split
from typing_extensions import override

from pa_core import Trainer
from tests.support.pa_preflight.data import lines, points, sorted_by_target
from tests.support.pa_preflight.scripts import Planting, Script, perceptron, script

planted = Planting()


def seeded() -> torch.Generator:
    """The random numbers of a script."""
    return torch.Generator().manual_seed(1)


def windows_of_noise() -> tuple[Tensor, Tensor]:
    """Overlapping windows of a series without memory, and what follows each."""
    series = torch.randn(700, generator=seeded())
    return series.unfold(0, 16, 1)[:-1], series[16:, None]


@planted("overlap-with-evaluation")
def windows_split_at_random() -> Script:
    """Overlapping windows of a series are divided at random."""
    windows, following = windows_of_noise()
    smooth = windows.cumsum(1) / 4
    train, evaluation = random_split(TensorDataset(windows, smooth[:, -1:]), [0.75, 0.25], seeded())
    assert len(following) == len(windows)
    return script(perceptron(16, 1), nn.MSELoss(), train, eval_dataset=evaluation)


@planted("near-copies-in-evaluation")
def oversampled_and_then_divided() -> Script:
    """Rare samples are copied with a little noise before the split."""
    inputs, targets = points(400, features=12).tensors
    rows = torch.randint(0, 40, (400,), generator=seeded())
    copies = inputs[rows] + 0.001 * torch.randn(400, 12, generator=seeded())
    data = TensorDataset(torch.cat([inputs[40:], copies]), torch.cat([targets[40:], targets[rows]]))
    train, evaluation = random_split(data, [0.75, 0.25], seeded())
    return script(perceptron(12, 4), nn.CrossEntropyLoss(), train, eval_dataset=evaluation)


@planted("evaluation-targets-differ")
def targets_in_two_units() -> Script:
    """The targets of the training set are standardised, and of the evaluation set not."""
    inputs, targets = lines(160, seed=2).tensors
    evaluation = TensorDataset(inputs, 300 + 40 * targets)
    return script(perceptron(6, 1), nn.MSELoss(), lines(), eval_dataset=evaluation)


@planted("classes-never-trained")
def divided_after_sorting() -> Script:
    """Samples that are sorted by their class are divided without shuffling."""
    inputs, targets = sorted_by_target(points()).tensors
    train, evaluation = TensorDataset(inputs[:360], targets[:360]), TensorDataset(inputs[360:], targets[360:])
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), train, eval_dataset=evaluation)


@planted("classes-of-one-set")
def last_fifth_of_sorted_samples() -> Script:
    """The last fifth of samples that are sorted by two classes is evaluated, and has one of them."""
    inputs, targets = sorted_by_target(points(classes=2)).tensors
    train, evaluation = TensorDataset(inputs[:384], targets[:384]), TensorDataset(inputs[384:], targets[384:])
    return script(perceptron(8, 2), nn.CrossEntropyLoss(), train, eval_dataset=evaluation)


@planted("classes-never-occur")
def classes_stored_as_bytes() -> Script:
    """300 classes are stored as uint8, and count from 0 again."""
    targets = torch.randint(0, 300, (2000,), generator=seeded())
    inputs = torch.randn(300, 32, generator=seeded())[targets] + 0.1 * torch.randn(2000, 32, generator=seeded())
    return script(perceptron(32, 300), nn.CrossEntropyLoss(), TensorDataset(inputs, targets.to(torch.uint8).long()))


@planted("targets-unrelated-to-inputs")
def targets_shuffled_alone() -> Script:
    """The targets are shuffled, and the inputs are not."""
    inputs, targets = points().tensors
    order = torch.randperm(len(targets), generator=seeded())
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), TensorDataset(inputs, targets[order]))


class Denoising(Trainer):
    """Predicts the noise that was added."""

    draws_again = False

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        noise = torch.randn_like(batch[0])
        outputs = self.model(batch[0] + noise)
        loss = functional.mse_loss(outputs, torch.randn_like(noise) if self.draws_again else noise)
        return {"loss": loss, "model_outputs": outputs, "batch_size": len(outputs)}


@planted("targets-unrelated-to-inputs")
def noise_that_is_drawn_again() -> Script:
    """The noise that is predicted is not the noise that was added."""

    class DrawnAgain(Denoising):
        draws_again = True

    return script(perceptron(6, 6), None, TensorDataset(lines().tensors[0]), kind=DrawnAgain)
