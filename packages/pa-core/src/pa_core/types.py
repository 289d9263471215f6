"""The types of the trainer's interface: outputs of steps, schedulers, loaders and writers of predictions."""

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
    """The outputs of a step, which ``calculate_train_batch_loss`` and ``calculate_eval_batch_loss`` return.

    Subclass it to declare further keys for your callbacks, which get the whole dictionary.

    Attributes:
        loss: The mean loss over the samples of the batch, a tensor with one element.
        model_outputs: The outputs of the model, of any type.
        batch_size: The number of samples in the batch.
        num_items_in_batch: The number of items, if ``loss`` is a mean over items other than samples, for example the
            tokens that are not padding. Leave it out otherwise. Updates and reported losses are then means over items.

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
    """An object whose state can be saved and restored, for example a module, an optimizer or your own counter.

    It is the type of the arguments of ``register_for_checkpointing``; any class with these two methods fits.

    Example:
        >>> def copy_state(source: SupportsStateDict, target: SupportsStateDict) -> None:
        ...     target.load_state_dict(source.state_dict())
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the state as a dictionary of tensors, numbers, strings and containers of them."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> object:
        """Restore a state that ``state_dict`` returned; the result is ignored.

        Args:
            state_dict: The state, with string keys.
        """
        ...


class StatefulScheduler(SupportsStateDict, Protocol):
    """A scheduler whose state can be saved and restored, which checkpoints need; how it is stepped is left open.

    It is the type of ``trainer.scheduler`` in annotations of callbacks.

    Example:
        >>> def remember(scheduler: StatefulScheduler) -> dict[str, Any]:
        ...     return scheduler.state_dict()
    """


class SchedulerLike(StatefulScheduler, Protocol):
    """A scheduler with ``step()``, ``state_dict()`` and ``load_state_dict()``, as all schedulers of torch have.

    The trainer calls ``step()`` after each update, or after each epoch with ``train(step_scheduler="epoch")``. A
    scheduler like ``ReduceLROnPlateau``, whose ``step`` needs a metric, gets the value of ``watch_metric`` after each
    epoch. ``train()`` raises a ``ConfigurationError`` if ``step`` needs other arguments: override
    ``Trainer.scheduler_step`` for them.

    Example:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
        >>> scheduler: SchedulerLike = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
    """

    @property
    def step(self) -> Callable[..., object]:
        """Advance the schedule by an optimizer update or an epoch; the trainer calls it after the optimizer's step."""
        ...


_Item_co = TypeVar("_Item_co", covariant=True, default=Any)


class SizedIterable(Protocol[_Item_co]):
    """A loader that the loop accepts: it has a length, and can be iterated over repeatedly, once for each epoch.

    Use it to annotate loaders of any class: a ``DataLoader``, or a list of batches.

    Example:
        >>> def count(loader: SizedIterable) -> int:
        ...     return len(loader)
        >>> count([[1, 2], [3]])
        2
    """

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
    """A trainer with ``predict_batch``, whose return type is the type that ``predict()`` yields.

    Only annotations need it; ``Trainer`` fits.

    Example:
        >>> def predict_first(trainer: PredictsBatches[Tensor], batches: list[Tensor]) -> Tensor:
        ...     return trainer.predict_batch(batches[0])
    """

    def predict_batch(self, batch: Any, /) -> PredictionT_co:
        """Return the predictions for a batch, which ``predict()`` yields or writes.

        Args:
            batch: A batch of the loader, on the device.
        """
        ...


class PredictionWriter(Protocol[PredictionT_contra]):
    """A function for ``write``, called with the predictions for each batch on the process that made them.

    Example:
        >>> from pa_core.types import PredictionWriter
        >>> def show(predictions: list[str], positions: range) -> None:
        ...     print(dict(zip(positions, predictions)))
        >>> write: PredictionWriter[list[str]] = show
        >>> write(["cat", "dog"], range(8, 10))
        {8: 'cat', 9: 'dog'}
    """

    def __call__(self, predictions: PredictionT_contra, positions: range, /) -> object:
        """Write the predictions for the samples at some positions of the dataset; the result is ignored.

        Args:
            predictions: The result of ``predict_batch`` for a batch, with its tensors on the CPU.
            positions: The positions of the samples in the dataset.
        """
        ...


TensorsT = TypeVar("TensorsT", bound=Tensor | Mapping[Any, Any] | list[Any] | tuple[Any, ...])
LossFunction: TypeAlias = Callable[..., Any]

ModelT_co = TypeVar("ModelT_co", bound=nn.Module, default=nn.Module, covariant=True)
BatchT = TypeVar("BatchT", default=Any)
OutputT_co = TypeVar("OutputT_co", bound=BatchOutput | dict[str, Any], default=dict[str, Any], covariant=True)
SchedulerT = TypeVar("SchedulerT", bound=StatefulScheduler, default=SchedulerLike)

SchedulerFactory: TypeAlias = Callable[[Optimizer], SchedulerT]
