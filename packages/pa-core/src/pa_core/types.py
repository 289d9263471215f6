"""The types that users of the trainer meet: outputs of steps, what a scheduler must offer, what writes predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NotRequired, Protocol, TypeAlias

from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import TypedDict, TypeVar

__all__ = [
    "BatchOutput",
    "PredictionWriter",
    "PredictsBatches",
    "SchedulerLike",
    "SizedIterable",
    "StatefulScheduler",
    "SupportsStateDict",
]


class BatchOutput(TypedDict):
    """What ``calculate_train_batch_loss`` and ``calculate_eval_batch_loss`` return.

    Subclass it to declare further keys; everything that a step returns is handed on to the callbacks.

    Attributes:
        loss: The mean loss over the samples of the batch, a tensor with one element.
        model_outputs: What the model returned.
        batch_size: The number of samples in the batch.
        num_items_in_batch: Only where ``loss`` is the mean over something else than samples, such as the tokens that
            are not padding: how many there are. Updates and reported losses are then means over items.

    Example:
        >>> import torch
        >>> from pa_core import BatchOutput
        >>> class WithAccuracy(BatchOutput):
        ...     accuracy: float
        >>> WithAccuracy(loss=torch.tensor(0.5), model_outputs=None, batch_size=8, accuracy=0.75)["accuracy"]
        0.75
    """

    loss: Tensor
    model_outputs: Any
    batch_size: int
    num_items_in_batch: NotRequired[int]


class SupportsStateDict(Protocol):
    """An object whose state can be saved and restored."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state as a dictionary."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> object:
        """Restore a state that ``state_dict`` returned."""
        ...


class StatefulScheduler(SupportsStateDict, Protocol):
    """What a checkpoint needs of a scheduler: its state can be saved and restored."""


class SchedulerLike(StatefulScheduler, Protocol):
    """What the default ``Trainer.scheduler_step`` needs: a scheduler with ``step()``.

    What ``step()`` is called with follows from its signature and from ``step_scheduler`` and ``watch_metric`` of
    ``train()``, which raises an error for a scheduler that needs something else.
    """

    @property
    def step(self) -> Callable[..., object]:
        """Advance the schedule by one optimizer update, or by one epoch."""
        ...


_Item_co = TypeVar("_Item_co", covariant=True, default=Any)


class SizedIterable(Protocol[_Item_co]):
    """What the loop accepts as a loader: it has a length and can be iterated again and again."""

    def __len__(self) -> int:
        """Return the number of batches."""
        ...

    def __iter__(self) -> Iterator[_Item_co]:
        """Return an iterator over the batches."""
        ...


PredictionT = TypeVar("PredictionT", default=Any)
PredictionT_co = TypeVar("PredictionT_co", default=Any, covariant=True)
PredictionT_contra = TypeVar("PredictionT_contra", default=Any, contravariant=True)


class PredictsBatches(Protocol[PredictionT_co]):
    """A trainer, as far as ``predict()`` needs to know what it yields: what ``predict_batch`` returns."""

    def predict_batch(self, batch: Any, /) -> PredictionT_co:
        """Return the predictions for a batch."""
        ...


class PredictionWriter(Protocol[PredictionT_contra]):
    """What ``write`` may be besides a path: called with the predictions for each batch, on the process that made them.

    Example:
        >>> from pa_core.types import PredictionWriter
        >>> def show(predictions: list[str], positions: range) -> None:
        ...     print(dict(zip(positions, predictions)))
        >>> write: PredictionWriter[list[str]] = show
        >>> write(["cat", "dog"], range(8, 10))
        {8: 'cat', 9: 'dog'}
    """

    def __call__(self, predictions: PredictionT_contra, positions: range, /) -> object:
        """Write the predictions for the samples at some positions of the dataset."""
        ...


TensorsT = TypeVar("TensorsT", bound=Tensor | Mapping[Any, Any] | list[Any] | tuple[Any, ...])
LossFunction: TypeAlias = Callable[..., Any]

ModelT_co = TypeVar("ModelT_co", bound=nn.Module, default=nn.Module, covariant=True)
BatchT = TypeVar("BatchT", default=Any)
OutputT_co = TypeVar("OutputT_co", bound=BatchOutput | dict[str, Any], default=dict[str, Any], covariant=True)
SchedulerT = TypeVar("SchedulerT", bound=StatefulScheduler, default=SchedulerLike)

SchedulerFactory: TypeAlias = Callable[[Optimizer], SchedulerT]
