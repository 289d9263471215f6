"""Small models, datasets and callbacks for tests of trainers and callbacks, including your own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core.engine.any_trainer import EVENT_NAMES, AnyTrainer, TrainerCallback

__all__ = ["RecordingCallback", "TinyClassifier", "make_classification", "make_regression"]


class TinyClassifier(nn.Module):
    """A network with one hidden layer that trains in milliseconds.

    Args:
        num_features: The size of an input.
        num_classes: The number of logits.
        hidden: The size of the hidden layer.
        batch_norm: Whether the hidden layer is normalised over the batch.

    Example:
        >>> TinyClassifier(4, 3)(torch.zeros(2, 4)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self, num_features: int = 4, num_classes: int = 3, hidden: int = 8, *, batch_norm: bool = False
    ) -> None:
        super().__init__()
        norm = nn.BatchNorm1d(hidden) if batch_norm else nn.Identity()
        self.layers: nn.Sequential = nn.Sequential(
            nn.Linear(num_features, hidden), norm, nn.ReLU(), nn.Linear(hidden, num_classes)
        )

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.layers(inputs)
        return logits


def make_regression(num_samples: int = 32, num_features: int = 4, *, seed: int = 0) -> TensorDataset:
    """Make a regression dataset: inputs, and linear targets of shape ``(num_samples, 1)`` with a little noise.

    Args:
        num_samples: The number of samples.
        num_features: The size of an input.
        seed: The seed of the values; the global generators are not used.

    Example:
        >>> inputs, targets = make_regression(8).tensors
        >>> inputs.shape, targets.shape
        (torch.Size([8, 4]), torch.Size([8, 1]))
    """
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(num_samples, num_features, generator=generator)
    weights = torch.randn(num_features, 1, generator=generator)
    return TensorDataset(inputs, inputs @ weights + 0.01 * torch.randn(num_samples, 1, generator=generator))


def make_classification(
    num_samples: int = 32, num_features: int = 4, num_classes: int = 3, *, seed: int = 0
) -> TensorDataset:
    """Make a classification dataset: inputs in clusters, and the index of the cluster as the target.

    Args:
        num_samples: The number of samples.
        num_features: The size of an input.
        num_classes: The number of clusters.
        seed: The seed of the values; the global generators are not used.

    Example:
        >>> inputs, targets = make_classification(8, num_classes=2).tensors
        >>> inputs.shape, sorted(set(targets.tolist()))
        (torch.Size([8, 4]), [0, 1])
    """
    generator = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(num_classes, num_features, generator=generator)
    targets = torch.arange(num_samples) % num_classes
    return TensorDataset(centres[targets] + torch.randn(num_samples, num_features, generator=generator), targets)


class RecordingCallback(TrainerCallback):
    """Record every event of a run with its arguments, to test when your code is called.

    It keeps all arguments, including batches and losses with their graphs, so use it for small runs.

    Attributes:
        events: The names of the events, in the order in which they fired.
        arguments: The keyword arguments of each event.

    Example:
        >>> from pa_core import Trainer
        >>> recorder = RecordingCallback()
        >>> model = nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = Trainer(model, nn.MSELoss(), optimizer, callbacks=[recorder])
        >>> _ = trainer.evaluate(make_regression(8))
        >>> recorder.events[-3:]
        ['on_eval_step_end', 'on_eval_epoch_end', 'on_evaluation_run_end']
    """

    def __init__(self) -> None:
        self.events: list[str] = []
        self.arguments: list[dict[str, Any]] = []


def _recorder_of(event: str) -> Callable[..., None]:
    def record(self: RecordingCallback, _trainer: AnyTrainer, **kwargs: Any) -> None:
        self.events.append(event)
        self.arguments.append(kwargs)

    return record


for _event in EVENT_NAMES:
    # Set on the class, so that an override in a subclass can call the method of this class.
    setattr(RecordingCallback, _event, _recorder_of(_event))
