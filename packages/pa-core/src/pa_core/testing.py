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
    """A network with one hidden layer that trains in milliseconds, for tests of trainers and callbacks.

    Train it with ``make_classification`` data and ``nn.CrossEntropyLoss``. The defaults fit the defaults of that
    function.

    Args:
        num_features: The number of features of an input. The default, 4, fits ``make_classification``.
        num_classes: The number of classes, which is also the number of logits. The default, 3, fits
            ``make_classification``.
        hidden: The size of the hidden layer. The default, 8, is large enough to learn such data.
        batch_norm: Whether batch norm follows the hidden layer, to test code that handles buffers. It is off by
            default, because with batch norm, training fails on a batch of 1 sample.

    Example:
        >>> import torch
        >>> from pa_core import Trainer
        >>> from pa_core.testing import TinyClassifier, make_classification
        >>> model = TinyClassifier()
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = Trainer(model, torch.nn.CrossEntropyLoss(), optimizer, callbacks=[])
        >>> trainer.train(make_classification(32), num_epochs=1)
        >>> model(torch.zeros(2, 4)).shape
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
        """Return the logits of a batch.

        Call the model itself, ``model(inputs)``, as in the example of `TinyClassifier`.

        Args:
            inputs: A float tensor of shape ``(batch, num_features)``.

        Returns:
            The logits, a tensor of shape ``(batch, num_classes)`` with gradients.
        """
        logits: Tensor = self.layers(inputs)
        return logits


def make_regression(num_samples: int = 32, num_features: int = 4, *, seed: int = 0) -> TensorDataset:
    """Make a regression dataset for tests: random inputs, and linear targets with a little noise.

    A linear layer can learn it; use ``make_classification`` for a classifier.

    Args:
        num_samples: The number of samples. The default, 32, is four batches of 8.
        num_features: The number of features of an input. The default, 4, is enough for a test, and fits
            ``TinyClassifier`` and ``nn.Linear(4, 1)``.
        seed: The seed of the values, so that each call returns the same samples by default. The global random number
            generators are not used.

    Returns:
        A dataset of pairs: inputs of shape ``(num_features,)`` and targets of shape ``(1,)``, both float32.

    Example:
        >>> from pa_core.testing import make_regression
        >>> dataset = make_regression(8)
        >>> inputs, targets = dataset.tensors
        >>> len(dataset), inputs.shape, targets.shape
        (8, torch.Size([8, 4]), torch.Size([8, 1]))
    """
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(num_samples, num_features, generator=generator)
    weights = torch.randn(num_features, 1, generator=generator)
    return TensorDataset(inputs, inputs @ weights + 0.01 * torch.randn(num_samples, 1, generator=generator))


def make_classification(
    num_samples: int = 32, num_features: int = 4, num_classes: int = 3, *, seed: int = 0
) -> TensorDataset:
    """Make a classification dataset for tests: inputs in clusters, and the index of the cluster as the target.

    `TinyClassifier` can learn it; use ``make_regression`` for a regression.

    Args:
        num_samples: The number of samples. The default, 32, is four batches of 8. Successive samples cycle through the
            classes, so the classes are balanced.
        num_features: The number of features of an input. The default, 4, fits the default of `TinyClassifier`.
        num_classes: The number of clusters. The default, 3, fits the default of `TinyClassifier`, and is more than the
            two classes of a binary task, for which metrics libraries have separate functions.
        seed: The seed of the values, so that each call returns the same samples by default. The global random number
            generators are not used.

    Returns:
        A dataset of pairs: inputs of shape ``(num_features,)`` in float32, and targets from 0 to ``num_classes - 1``,
        scalars in int64.

    Example:
        >>> from pa_core.testing import make_classification
        >>> inputs, targets = make_classification(8, num_classes=2).tensors
        >>> inputs.shape, sorted(set(targets.tolist()))
        (torch.Size([8, 4]), [0, 1])
    """
    generator = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(num_classes, num_features, generator=generator)
    targets = torch.arange(num_samples) % num_classes
    return TensorDataset(centres[targets] + torch.randn(num_samples, num_features, generator=generator), targets)


class RecordingCallback(TrainerCallback):
    """Records every event of a run with its arguments, to test when your code is called.

    Pass it to a trainer in ``callbacks``, and compare ``events`` after the run. It keeps all arguments, including
    batches and losses with their graphs, so use it for small runs. A subclass can override an event and call
    ``super()``.

    Attributes:
        events: The names of the events, in the order in which they were called; empty before the first run.
        arguments: The keyword arguments of each event, as dictionaries in the same order; the trainer itself is left
            out.

    Example:
        >>> import torch
        >>> from pa_core import Trainer
        >>> from pa_core.testing import RecordingCallback, make_regression
        >>> recorder = RecordingCallback()
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[recorder])
        >>> _ = trainer.evaluate(make_regression(8))
        >>> recorder.events[-3:]
        ['on_eval_step_end', 'on_eval_epoch_end', 'on_evaluation_run_end']
        >>> sorted(recorder.arguments[-3])
        ['batch', 'batch_output', 'step']
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
