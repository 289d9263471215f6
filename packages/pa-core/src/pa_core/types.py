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
    """The dictionary that a step returns: the loss of a batch, the outputs of the model and the number of samples.

    Return it from an override of ``calculate_train_batch_loss`` or ``calculate_eval_batch_loss``. It is a
    ``TypedDict``, so a plain dictionary with these keys fits, and the class is only needed for annotations. Callbacks
    get the whole dictionary as ``batch_output`` in ``on_train_step_end`` and ``on_eval_step_end``. Further keys are
    allowed; subclass it to declare them for a type checker.

    The trainer raises ``BatchOutputError`` if a key is missing or a value cannot be used.

    Attributes:
        loss: The mean loss over the samples of the batch on this process, a tensor with one element on any device. In
            training, it needs its autograd graph, so do not call ``item()`` or ``detach()``.
        model_outputs: The outputs of the model, of any type; callbacks that compute metrics read them. None if there
            are none.
        batch_size: The number of samples in the batch of this process, a whole number of at least 0. It is the weight
            of the loss in the reported mean.
        num_items_in_batch: The number of items, if ``loss`` is a mean over items other than samples, for example the
            tokens that are not padding. Updates and reported losses are then means over items. Otherwise, leave out the
            key. Return it in every step or in none.

    Example:
        >>> import torch
        >>> from pa_core import BatchOutput, Trainer
        >>> from pa_core.testing import make_regression
        >>> class WithAccuracy(BatchOutput):
        ...     accuracy: float
        >>> class MyTrainer(Trainer):
        ...     def calculate_eval_batch_loss(self, batch) -> WithAccuracy:
        ...         inputs, targets = batch
        ...         outputs = self.model(inputs)
        ...         loss = self.loss_func(outputs, targets)
        ...         return WithAccuracy(loss=loss, model_outputs=outputs, batch_size=len(inputs), accuracy=0.75)
        >>> trainer = MyTrainer(torch.nn.Linear(4, 1), torch.nn.MSELoss(), None, callbacks=[])
        >>> list(trainer.evaluate(make_regression(8)))
        ['evaluation_loss']
    """

    loss: Tensor
    model_outputs: Any
    batch_size: int
    num_items_in_batch: NotRequired[int]


class SupportsStateDict(Protocol):
    """An object whose state can be saved and restored, for example a module, an optimizer or your own counter.

    It is a protocol: any class with ``state_dict()`` and ``load_state_dict()`` fits, without deriving from it. It is
    the type of the arguments of ``register_for_checkpointing``, which makes an object a part of training states (the
    folders from which ``train(resume_from=...)`` continues a run). Use it to annotate functions that save or copy
    states.

    Example:
        >>> from pa_core.types import SupportsStateDict
        >>> class Counter:
        ...     count = 0
        ...     def state_dict(self):
        ...         return {"count": self.count}
        ...     def load_state_dict(self, state_dict):
        ...         self.count = state_dict["count"]
        >>> def copy_state(source: SupportsStateDict, target: SupportsStateDict) -> None:
        ...     target.load_state_dict(source.state_dict())
        >>> first, second = Counter(), Counter()
        >>> first.count = 3
        >>> copy_state(first, second)
        >>> second.count
        3
    """

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed run needs to continue with the object, without changing the object.

        The trainer calls it on every process each time a training state is saved, and keeps the result of the first
        process.

        Returns:
            A dictionary with string keys, whose values are tensors, numbers, strings, None or containers of these.
            Other values cause a ``CheckpointError``.

        Example:
            >>> import torch
            >>> list(torch.nn.Linear(1, 1).state_dict())
            ['weight', 'bias']
        """
        ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> object:
        """Restore a state that ``state_dict`` returned, in place.

        The trainer calls it on every process when a run resumes, before the first update; the result is ignored. If the
        state does not fit, raise any exception; the run then does not start.

        Args:
            state_dict: The state, equal to the dictionary that ``state_dict`` returned when the training state was
                saved.

        Example:
            >>> import torch
            >>> source, target = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
            >>> _ = target.load_state_dict(source.state_dict())
            >>> torch.equal(source.weight, target.weight)
            True
        """
        ...


class StatefulScheduler(SupportsStateDict, Protocol):
    """A scheduler whose state can be saved and restored; how the scheduler is stepped is left open.

    It is a protocol with ``state_dict()`` and ``load_state_dict()``, and the type of ``trainer.scheduler`` and of the
    values of ``named_schedulers()``. Use it to annotate callbacks that read or save schedulers of any kind, including
    timm's. ``SchedulerLike`` also has ``step()``.

    Example:
        >>> import torch
        >>> from pa_core.types import StatefulScheduler
        >>> def last_step(scheduler: StatefulScheduler) -> int:
        ...     return scheduler.state_dict()["last_epoch"]
        >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
        >>> last_step(torch.optim.lr_scheduler.StepLR(optimizer, step_size=10))
        0
    """


class SchedulerLike(StatefulScheduler, Protocol):
    """A scheduler with ``step()``, ``state_dict()`` and ``load_state_dict()``, like all of torch's schedulers.

    It is a protocol, and the return type of the function that you pass to ``train()`` as ``create_scheduler_fn``. Use
    it to annotate such functions, or write your own scheduler with these three methods. The trainer calls ``step()``
    after each optimizer update, or after each epoch with ``train(step_scheduler="epoch")``. A scheduler like
    ``ReduceLROnPlateau``, whose ``step`` needs a metric, gets the value of ``watch_metric`` after each epoch. If
    ``step`` needs other arguments, ``train()`` raises a ``ConfigurationError``; override ``Trainer.scheduler_step`` to
    pass them.

    Example:
        >>> import torch
        >>> from pa_core import Trainer
        >>> from pa_core.testing import make_regression
        >>> from pa_core.types import SchedulerLike
        >>> def halve_each_update(optimizer: torch.optim.Optimizer) -> SchedulerLike:
        ...     return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.8)
        >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[])
        >>> trainer.train(make_regression(16), num_epochs=1, create_scheduler_fn=halve_each_update)  # two updates
        >>> optimizer.param_groups[0]["lr"]
        0.2
    """

    @property
    def step(self) -> Callable[..., object]:
        """Advance the schedule by an optimizer update or an epoch, and set the learning rates of the optimizer.

        The trainer calls it without arguments or, if it has a required argument for a metric, with the value of
        ``watch_metric``. Its result is ignored. It is declared as a property only so that methods with any arguments
        fit; define it as an ordinary method.

        Example:
            >>> import torch
            >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
            >>> scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
            >>> optimizer.step()
            >>> scheduler.step()
            >>> optimizer.param_groups[0]["lr"]
            0.05
        """
        ...


_Item_co = TypeVar("_Item_co", covariant=True, default=Any)


class SizedIterable(Protocol[_Item_co]):
    """A loader that a run accepts: it has a length, and can be iterated over repeatedly, once for each epoch.

    It is a protocol: ``len(loader)`` is the number of batches on this process, and each ``iter(loader)`` begins a new
    epoch. A ``DataLoader`` fits, and so does a list of batches. It is the type of ``trainer.train_dataloader`` and of
    the result of ``create_train_dataloader``; use it to annotate functions that take or return loaders of any class. A
    generator does not fit, because it has no length and can be iterated over only once.

    Example:
        >>> from pa_core.types import SizedIterable
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

    It is a protocol for annotations: ``Trainer`` and its subclasses fit. Use it for a helper function that works with
    any trainer and preserves the type of its predictions for type checkers.

    Example:
        >>> import torch
        >>> from pa_core import Trainer
        >>> from pa_core.types import PredictsBatches
        >>> def predict_first(trainer: PredictsBatches[torch.Tensor], batches: list[torch.Tensor]) -> torch.Tensor:
        ...     return trainer.predict_batch(batches[0])
        >>> predict_first(Trainer(torch.nn.Identity(), None, None, callbacks=[]), [torch.ones(2)])
        tensor([1., 1.])
    """

    def predict_batch(self, batch: Any, /) -> PredictionT_co:
        """Return the predictions for a batch, which ``predict()`` yields or writes.

        ``predict()`` calls it once for each batch, with the model in evaluation mode and without gradients.
        ``Trainer.predict_batch`` calls the model; override it there to compute predictions from the outputs. It must
        not communicate with other processes.

        Args:
            batch: A batch of the loader, on the device.

        Returns:
            The predictions, of any type; with a row for each sample if they are written to a file.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> Trainer(torch.nn.Identity(), None, None, callbacks=[]).predict_batch(torch.ones(2))
            tensor([1., 1.])
        """
        ...


class PredictionWriter(Protocol[PredictionT_contra]):
    """The type of a function for ``predict(write=...)``, which stores predictions if no file format fits.

    It is a protocol: any function of two arguments, predictions and positions, fits. ``predict()`` calls it once for
    each batch, on the process that computed the predictions. It may be called again for the same positions after the
    script was killed, so write in a way that can be repeated.

    Example:
        >>> import torch
        >>> from pa_core import Trainer
        >>> from pa_core.types import PredictionWriter
        >>> found = {}
        >>> def store(predictions: torch.Tensor, positions: range) -> None:
        ...     found.update(zip(positions, predictions.tolist()))
        >>> write: PredictionWriter[torch.Tensor] = store
        >>> trainer = Trainer(torch.nn.Identity(), None, None, callbacks=[])
        >>> trainer.predict(torch.arange(3.0), per_device_batch_size=2, write=write)
        >>> found
        {0: 0.0, 1: 1.0, 2: 2.0}
    """

    def __call__(self, predictions: PredictionT_contra, positions: range, /) -> object:
        """Store the predictions for the samples at some positions of the dataset; the result is ignored.

        ``predict()`` calls it once for each batch, on the process that computed the predictions, in any order across
        processes. An exception that it raises ends the prediction.

        Args:
            predictions: The result of ``predict_batch`` for a batch, with its tensors on the CPU.
            positions: The positions of the samples in the dataset, counted from 0, in the order of the rows of
                ``predictions``.

        Example:
            >>> def show(predictions: list[str], positions: range) -> None:
            ...     print(dict(zip(positions, predictions)))
            >>> show(["cat", "dog"], range(8, 10))
            {8: 'cat', 9: 'dog'}
        """
        ...


TensorsT = TypeVar("TensorsT", bound=Tensor | Mapping[Any, Any] | list[Any] | tuple[Any, ...])
LossFunction: TypeAlias = Callable[..., Any]

ModelT_co = TypeVar("ModelT_co", bound=nn.Module, default=nn.Module, covariant=True)
BatchT = TypeVar("BatchT", default=Any)
OutputT_co = TypeVar("OutputT_co", bound=BatchOutput | dict[str, Any], default=dict[str, Any], covariant=True)
SchedulerT = TypeVar("SchedulerT", bound=StatefulScheduler, default=SchedulerLike)

SchedulerFactory: TypeAlias = Callable[[Optimizer], SchedulerT]
