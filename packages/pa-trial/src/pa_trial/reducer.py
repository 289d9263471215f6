"""How metrics of many batches and processes are combined: built-in reductions and custom reducers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any


class Reducer(Enum):
    """How a metric of ``evaluate_batch`` is reduced over all batches and processes of a validation.

    Return it from ``evaluation_reducer`` of the trial, alone or by the name of each metric. If a metric is an array, it
    is also reduced over its elements. For other reductions, derive from ``MetricReducer``.

    Attributes:
        AVG: The mean over the numbers of all batches. If ``evaluate_batch`` returns a single number, a short last batch
            has the same weight as any other batch, unless ``fit(weigh_by_records=True)`` weights each batch by its
            number of records. AVG is the default of a trial.
        SUM: The sum over all batches of all processes.
        MAX: The maximum over all batches of all processes.
        MIN: The minimum over all batches of all processes.

    Example:
        >>> from pa_trial import Reducer
        >>> def evaluation_reducer(self):  # a method of a trial
        ...     return {"loss": Reducer.AVG, "num_errors": Reducer.SUM, "worst": Reducer.MAX}
    """

    AVG = 1
    SUM = 2
    MAX = 3
    MIN = 4


class MetricReducer(ABC):
    """The base class of reducers for metrics that are not simply the mean over the batches, such as an F1 score.

    Derive from it, and register an instance with ``context.wrap_reducer`` in ``__init__`` of the trial. Collect values
    in a method that you add, and that you call from ``train_batch`` or ``evaluate_batch``. At the end of a training
    workload (the batches between two reports, validations or checkpoints) or of a validation, ``per_slot_reduce`` is
    called on each process, and then ``cross_slot_reduce`` on each process with the values that all processes returned.
    For a function of all collected values, pass the function to ``wrap_reducer`` instead; for a mean, sum, maximum or
    minimum, use ``Reducer``.

    Example:
        >>> from pa_trial import MetricReducer
        >>> class Accuracy(MetricReducer):
        ...     def __init__(self) -> None:
        ...         self.reset()
        ...     def reset(self) -> None:
        ...         self.correct = self.total = 0
        ...     def update(self, correct: int, total: int) -> None:
        ...         self.correct += correct
        ...         self.total += total
        ...     def per_slot_reduce(self) -> tuple[int, int]:
        ...         return self.correct, self.total
        ...     def cross_slot_reduce(self, per_slot_metrics: list[tuple[int, int]]) -> float:
        ...         correct, total = zip(*per_slot_metrics)
        ...         return sum(correct) / sum(total)
        >>> accuracy = Accuracy()  # in a trial: self.accuracy = context.wrap_reducer(Accuracy(), name="accuracy")
        >>> accuracy.update(correct=3, total=4)
        >>> accuracy.cross_slot_reduce([accuracy.per_slot_reduce(), (1, 4)])  # fit calls both, here for two processes
        0.5
    """

    @abstractmethod
    def reset(self) -> None:
        """Forget all collected values.

        Implement it in your reducer. ``fit`` calls it on each process before each training workload and each
        validation. See the example in `MetricReducer`.
        """

    @abstractmethod
    def per_slot_reduce(self) -> Any:
        """Return the contribution of this process to the metric.

        Implement it in your reducer. ``fit`` calls it on each process at the end of a training workload or a
        validation, before ``cross_slot_reduce``. See the example in `MetricReducer`.

        Returns:
            Any value that can be pickled, usually a small summary such as counts. Tensors in it are moved to the CPU.
        """

    @abstractmethod
    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        """Return the metric, computed from the contributions of all processes.

        Implement it in your reducer. ``fit`` calls it on each process with the same argument, after
        ``per_slot_reduce``. An error in it ends the training with a ``MetricReducerError``. See the example in
        `MetricReducer`.

        Args:
            per_slot_metrics: The return values of ``per_slot_reduce`` on all processes, in the order of the ranks.

        Returns:
            The metric, if the reducer was wrapped with a name: a number or an array of numbers. Otherwise, a dictionary
            of metrics by name. The returned value has to be the same on all processes.
        """
