"""How metrics of many batches and processes are combined: built-in reductions and custom reducers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any


class Reducer(Enum):
    """How a metric of ``evaluate_batch`` is reduced over all batches and elements; ``evaluation_reducer`` returns it.

    ``AVG`` is the mean over the batches, in which a short last batch counts as much as any other, unless
    ``fit(weigh_by_records=True)``. ``SUM``, ``MAX`` and ``MIN`` are over all batches of all processes. For other
    reductions, derive from ``MetricReducer``.

    Example:
        >>> def evaluation_reducer() -> dict[str, Reducer]:
        ...     return {"loss": Reducer.AVG, "num_errors": Reducer.SUM, "worst": Reducer.MAX}
    """

    AVG = 1
    SUM = 2
    MAX = 3
    MIN = 4


class MetricReducer(ABC):
    """A metric that is more than the mean of its batches; derive from it and register it with ``context.wrap_reducer``.

    Collect values in a custom method that you call from ``train_batch`` or ``evaluate_batch``. At the end of
    the workload, ``per_slot_reduce`` is called on each process, and ``cross_slot_reduce`` on each process with the
    values that all of them returned.

    Example:
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
        >>> accuracy = Accuracy()
        >>> accuracy.update(correct=3, total=4)
        >>> accuracy.cross_slot_reduce([accuracy.per_slot_reduce(), (1, 4)])
        0.5
    """

    @abstractmethod
    def reset(self) -> None:
        """Forget all values; ``fit`` calls it before each training workload and each validation."""

    @abstractmethod
    def per_slot_reduce(self) -> Any:
        """Return the contribution of this process, which can be any picklable value. Tensors are moved to the CPU."""

    @abstractmethod
    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        """Return the metric, or metrics by name if the reducer was wrapped without a name.

        Args:
            per_slot_metrics: The return values of ``per_slot_reduce`` on all processes, in the order of the ranks.

        Returns:
            A number, an array of numbers, or a dictionary of them; the same on all processes.
        """
