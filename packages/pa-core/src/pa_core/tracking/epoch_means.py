"""The means over the samples of an epoch: of the loss, and of values that steps log."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from numbers import Real
from types import TracebackType
from typing import Final, cast

import torch
from torch import Tensor
from typing_extensions import override

from pa_core._device_reads import ScalarTransfer
from pa_core.errors import ConfigurationError
from pa_core.tracking.metric_values import MetricValue
from pa_core.tracking.run_history import RunHistory

_EXACT_IN_DOUBLES = frozenset({torch.float32, torch.bfloat16, torch.float16})
"""The largest loss whose product with a number of samples is an exact double."""

_ONE: Final = 1 << 1074
"""The number 1 in units of the smallest double; all doubles are whole multiples of it."""

_DIGIT_BITS, _NUM_DIGITS = 32, 68
"""Digits for the sum of 2**53 of the largest doubles, which 2**21 processes can add up exactly."""


class LossTracker:
    """Accumulates the mean loss over samples, without waiting for an accelerator.

    Use it in a callback or a script for a mean over batches of different sizes. For a mean over an epoch that the
    trainer records for you, on all processes, call ``trainer.log`` instead. Losses that are tensors are summed on their
    device, in double precision on the CPU and on CUDA and in single precision elsewhere (not every device has doubles).
    Only reading the sum waits for the device. `ExactLossTracker` sums without rounding.

    Example:
        >>> import torch
        >>> from pa_core.tracking import LossTracker
        >>> tracker = LossTracker()
        >>> tracker.update(torch.tensor(1.0), batch_size=3)
        >>> tracker.update(2.0, batch_size=1)
        >>> tracker.average, tracker.total_loss, tracker.running_count
        (1.25, 5.0, 4)
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all losses, for example to begin the mean of the next epoch.

        Afterwards ``average`` is NaN, ``total_loss`` is 0.0 and ``running_count`` is 0.
        """
        self._host_total: float = 0.0
        self._device_total: Tensor | None = None
        self._count: int = 0

    def update(self, loss: MetricValue, batch_size: int = 1) -> None:
        """Add the mean loss of a batch, weighted by the number of its samples.

        You call this once for each batch. A tensor is not read, so an accelerator does not have to finish computing it.
        A batch of 0 samples has no effect, even if its loss is NaN.

        Args:
            loss: The mean over the samples of the batch: a number, or a tensor with one element of any shape. Its graph
                is not kept.
            batch_size: The number of samples that the mean is over. The default, 1, gives the mean over the values
                themselves.

        Example:
            >>> from pa_core.tracking import LossTracker
            >>> tracker = LossTracker()
            >>> for loss, batch_size in ((0.5, 32), (0.2, 8)):  # the last batch is smaller
            ...     tracker.update(loss, batch_size)
            >>> round(tracker.average, 2)
            0.44
        """
        if batch_size == 0:  # the mean over no samples is NaN, and so is its product with 0
            return
        self._count += batch_size
        if isinstance(loss, Tensor):
            if loss.is_cpu and self._device_total is None and loss.dtype in _EXACT_IN_DOUBLES:
                # A tensor on the CPU can be read at once; adding tensors takes several times as long.
                self._host_total += float(loss.item() * batch_size)
                return
            loss = loss.detach()
            self._add_on_device(loss if loss.dim() == 0 else loss.reshape(()), batch_size)
        else:
            self._host_total += loss * batch_size

    def _add_on_device(self, loss: Tensor, batch_size: int) -> None:
        total = self._device_total
        if total is None or total.device != loss.device:
            has_doubles = loss.device.type in ("cpu", "cuda")
            # If the device has doubles, continue from the sum on the host: a resumed epoch adds up in the same order.
            so_far = self.total_loss
            start, self._host_total = (so_far, 0.0) if has_doubles else (0.0, so_far)
            dtype = torch.float64 if has_doubles else torch.float32
            self._device_total = total = torch.full((), start, dtype=dtype, device=loss.device)
        total.add_(loss, alpha=batch_size)

    @property
    def total_loss(self) -> float:
        """The sum of the losses of all samples so far, a float; 0.0 before the first ``update``.

        Each mean is weighted by the number of samples in its batch, so this is ``average * running_count``. Reading it
        waits for the accelerator if losses are on it.
        """
        return self._host_total + (0.0 if self._device_total is None else self._device_total.item())

    @property
    def running_count(self) -> int:
        """The number of samples added so far on this process, an int; 0 before the first ``update``.

        ``load_totals`` sets it to the loaded number of samples. Reading it does not wait for an accelerator.
        """
        return self._count

    @property
    def average(self) -> float:
        """The mean loss over all samples so far, a float; NaN before the first ``update``.

        It is ``total_loss / running_count``. Reading it waits for the accelerator if losses are on it, so read it
        rarely, for example once per epoch.
        """
        return self.total_loss / self._count if self._count else float("nan")

    def totals(self) -> Tensor:
        """Return ``[total_loss, running_count]`` as a tensor, for example to sum it over processes.

        Pass the sum to ``load_totals`` for the mean over the samples of all processes. The call does not wait for an
        accelerator; ``numbers`` returns the same values as a tuple of Python numbers, for files.

        Returns:
            A tensor of shape ``(2,)`` on the device of the losses (on the CPU if losses are numbers), in float64, or in
            float32 on a device without doubles.

        Example:
            >>> from pa_core.distributed import sum_over_processes
            >>> from pa_core.tracking import LossTracker
            >>> tracker, of_all = LossTracker(), LossTracker()
            >>> tracker.update(1.5, batch_size=4)
            >>> of_all.load_totals(sum_over_processes(tracker.totals()))
            >>> of_all.average
            1.5
        """
        on_device = self._device_total
        if on_device is None:
            return torch.tensor([self._host_total, self._count], dtype=torch.float64)
        # Created on the device: a copy from the host would wait for it.
        return torch.stack((on_device + self._host_total, on_device.new_full((), self._count)))

    def load_totals(self, totals: Tensor) -> None:
        """Continue from the result of ``totals`` or ``numbers``, in place of the losses so far.

        Call it with sums over processes, or to restore a tracker from a file. It waits for the accelerator.

        Args:
            totals: The result of ``totals``, or its sum over processes. Convert the result of ``numbers`` with
                ``torch.tensor(numbers, dtype=torch.float64)``.

        Example:
            >>> import torch
            >>> from pa_core.tracking import LossTracker
            >>> tracker = LossTracker()
            >>> tracker.load_totals(torch.tensor([6.0, 4]))  # a total loss of 6 over 4 samples
            >>> tracker.average
            1.5
        """
        self._device_total = None if totals.is_cpu else totals[0].clone()
        self._host_total = float(totals[0]) if totals.is_cpu else 0.0
        self._count = round(float(totals[1]))

    def numbers(self) -> tuple[float, ...]:
        """Return the total loss and the number of samples as Python numbers, ready for JSON.

        Use it to save a tracker; ``load_totals`` restores it. Unlike ``totals``, it waits for the accelerator, and the
        number of samples is never rounded.

        Returns:
            ``(total_loss, running_count)``.

        Example:
            >>> from pa_core.tracking import LossTracker
            >>> tracker = LossTracker()
            >>> tracker.update(1.5, batch_size=4)
            >>> tracker.numbers()
            (6.0, 4)
        """
        return self.total_loss, self._count


class ExactLossTracker(LossTracker):
    """Accumulates the mean loss bit-for-bit identically in any order of the batches, on any number of processes.

    Use it to compare runs exactly; reproducible trainers use it. `LossTracker` has the same methods and is faster, but
    the last digits of its sum depend on the order. Here, the mean of each batch times its number of samples is rounded
    to a double, the sum of these products is exact, and the result is rounded once. Losses on an accelerator are read
    when they have arrived; only reading a sum waits for them.

    Example:
        >>> from pa_core.tracking import ExactLossTracker, LossTracker
        >>> tracker, rounding = ExactLossTracker(), LossTracker()
        >>> for loss in (1e16, 1.0, -1e16):
        ...     tracker.update(loss)
        ...     rounding.update(loss)
        >>> tracker.total_loss, rounding.total_loss
        (1.0, 0.0)
    """

    @override
    def reset(self) -> None:
        """Forget all losses, for example to begin the mean of the next epoch.

        Afterwards ``average`` is NaN, ``total_loss`` is 0.0 and ``running_count`` is 0.
        """
        super().reset()  # the sum on the host is that of losses that are not finite, the same in any order
        self._exact_total: int = 0
        self._transfer = ScalarTransfer[int]()

    @override
    def update(self, loss: MetricValue, batch_size: int = 1) -> None:
        """Add the mean loss of a batch, weighted by the number of its samples.

        You call this once for each batch. It starts to copy a loss from an accelerator and does not wait for the copy.
        A batch of 0 samples has no effect, even if its loss is NaN.

        Args:
            loss: The mean over the samples of the batch: a number, or a tensor with one element. Its graph is not kept.
            batch_size: The number of samples that the mean is over. The default, 1, gives the mean over the values
                themselves.

        Example:
            >>> from pa_core.tracking import ExactLossTracker
            >>> tracker = ExactLossTracker()
            >>> tracker.update(0.5, batch_size=3)
            >>> tracker.update(0.1, batch_size=1)
            >>> tracker.average
            0.4
        """
        if batch_size == 0:
            return
        self._count += batch_size
        if isinstance(loss, Tensor) and not loss.is_cpu:
            self._transfer.send(loss, tag=batch_size)
            self._add_all(self._transfer.arrived())
        else:
            self._add(float(loss.item() if isinstance(loss, Tensor) else loss) * batch_size)

    def _add_all(self, losses: Iterable[tuple[int, float]]) -> None:
        for batch_size, loss in losses:
            self._add(float(loss) * batch_size)

    def _add(self, value: float) -> None:
        if math.isfinite(value):
            numerator, denominator = value.as_integer_ratio()
            self._exact_total += numerator * (_ONE // denominator)
        else:
            self._host_total += value

    def _divide(self, count: int) -> float:
        self._add_all(self._transfer.wait_for_all())
        if self._host_total:
            return self._host_total if math.isinf(self._host_total) else math.nan  # a NaN without a sign
        try:
            return self._exact_total / (_ONE * count)
        except OverflowError:
            return math.copysign(math.inf, self._exact_total)

    @property
    @override
    def total_loss(self) -> float:
        """The exact sum of the losses of all samples so far, rounded to a float; 0.0 before the first ``update``.

        It is infinite or NaN if any loss was. Reading it waits for losses on an accelerator.
        """
        return self._divide(1)

    @property
    @override
    def average(self) -> float:
        """The mean loss over all samples so far, a float that is rounded once; NaN before the first ``update``.

        It is infinite or NaN if any loss was. Reading it waits for losses on an accelerator.
        """
        return self._divide(self._count) if self._count else math.nan

    @override
    def totals(self) -> Tensor:
        """Return the exact sum and the number of samples as a tensor on the CPU, for example to sum it over processes.

        Pass the sum to ``load_totals`` for the mean over the samples of all processes, which is exact too. The call
        waits for losses on an accelerator.

        Returns:
            A tensor of shape ``(71,)`` in float64: ``total_loss``, ``running_count``, the sum of the losses that are
            not finite, and 68 digits of the exact sum of the others. It can be summed over processes without rounding.

        Example:
            >>> from pa_core.distributed import sum_over_processes
            >>> from pa_core.tracking import ExactLossTracker
            >>> tracker, of_all = ExactLossTracker(), ExactLossTracker()
            >>> tracker.update(0.1, batch_size=3)
            >>> of_all.load_totals(sum_over_processes(tracker.totals()))
            >>> of_all.average == tracker.average
            True
        """
        return torch.tensor(self.numbers(), dtype=torch.float64)

    @override
    def load_totals(self, totals: Tensor) -> None:
        """Continue from the result of ``totals`` or ``numbers``, in place of the losses so far.

        Call it with sums over processes, or to restore a tracker from a file. See the example in ``totals``.

        Args:
            totals: The result of ``totals``, or its sum over processes; the two totals of a `LossTracker` work too.
                Convert the result of ``numbers`` with ``torch.tensor(numbers, dtype=torch.float64)``.
        """
        total, count, *exact = cast("list[float]", totals.tolist())  # pyright: ignore[reportUnknownMemberType]  # not annotated by torch
        self.reset()
        self._count = round(count)
        if exact:
            self._host_total, *digits = exact
            self._exact_total = sum(int(digit) << place * _DIGIT_BITS for place, digit in enumerate(digits))
        else:
            self._add(total)

    @override
    def numbers(self) -> tuple[float, ...]:
        """Return the numbers of ``totals`` as Python numbers, ready for JSON.

        Use it to save a tracker; ``load_totals`` restores it exactly. It waits for losses on an accelerator.

        Returns:
            71 numbers: ``total_loss``, ``running_count``, the sum of the losses that are not finite, and 68 digits of
            the exact sum of the others.

        Example:
            >>> from pa_core.tracking import ExactLossTracker
            >>> tracker = ExactLossTracker()
            >>> tracker.update(1.5, batch_size=4)
            >>> tracker.numbers()[:2]
            (6.0, 4)
        """
        total, last = self.total_loss, _NUM_DIGITS - 1
        above = [self._exact_total >> place * _DIGIT_BITS for place in range(last)]
        digits = [part & ((1 << _DIGIT_BITS) - 1) for part in above]
        return total, self._count, self._host_total, *digits, self._exact_total >> last * _DIGIT_BITS  # with its sign


class StepMeans(dict[str, LossTracker]):
    """The means of the values that the steps of an epoch have logged so far, over the samples of this process.

    Read it as ``trainer.step_means``, a dictionary with a `LossTracker` for each name:
    ``trainer.step_means["kl"].average``. Add values with ``trainer.log``. The trainer calls all methods of this class;
    you call them only to test your own loop. Each value is weighted by the number of samples in its step. A value may
    be logged before the number of samples is known, and is copied when it is logged; a tensor stays on its device,
    without its graph, and the copy does not wait for the device.

    Args:
        exact: Whether the means are bit-for-bit identical in any order of the steps, with `ExactLossTracker`. The
            default, False, is faster; reproducible runs pass True.

    Attributes:
        losses: The losses of the steps, a `LossTracker`.
        is_in_step: Whether a step is in progress, in which values can be logged; False before the first step.

    Example:
        >>> from pa_core.tracking import StepMeans
        >>> means = StepMeans()
        >>> for value, samples in ((1.0, 3), (2.0, 1)):
        ...     with means.step():
        ...         means.log("kl", value)
        ...         means.count_samples(samples)
        >>> {name: tracker.average for name, tracker in means.items()}
        {'kl': 1.25}
    """

    def __init__(self, *, exact: bool = False) -> None:
        super().__init__()
        self._make_tracker = ExactLossTracker if exact else LossTracker
        self.losses: LossTracker = self._make_tracker()
        self._names_of_step: set[str] = set()
        self._pending: dict[str, MetricValue] = {}  # until the samples of the step are counted
        self._samples: int | None = None
        self.is_in_step: bool = False

    def reset(self) -> None:
        """Remove all logged values and losses.

        The trainer calls this when the training or an evaluation of an epoch begins; you need not call it yourself.
        """
        self.clear()
        self.losses.reset()

    def step(self) -> AbstractContextManager[None]:
        """Return the context of a step, within which values can be logged.

        The trainer enters it around each step; you need not call it yourself. When the context ends, values whose
        number of samples was not counted are dropped. See the example in `StepMeans`.

        Returns:
            A context manager that yields None.
        """
        return self

    def __enter__(self) -> None:
        self.end_step()
        self.is_in_step = True

    def __exit__(self, *exception: BaseException | type[BaseException] | TracebackType | None) -> None:
        self.end_step()

    @contextmanager
    def interrupted(self) -> Generator[None]:
        """Return a context in which other steps begin and end; the step in progress continues after it.

        The trainer enters it for an evaluation, or for updates with other batches, in the middle of a step. You need
        not call it yourself.

        Example:
            >>> from pa_core.tracking import StepMeans
            >>> means = StepMeans()
            >>> with means.step():
            ...     with means.interrupted(), means.step():
            ...         means.log("kl", 1.0, count=8)
            ...     means.log("kl", 3.0, count=8)  # the outer step has not logged this name
            >>> means["kl"].average
            2.0
        """
        before = self._names_of_step, self._pending, self._samples, self.is_in_step
        self._names_of_step, self._pending, self._samples, self.is_in_step = set(), {}, None, False
        try:
            yield
        finally:
            self._names_of_step, self._pending, self._samples, self.is_in_step = before

    def end_step(self) -> None:
        """End the step, after which nothing can be logged; it has no effect if no step is in progress.

        The trainer calls this after each step; you need not call it yourself. Values whose number of samples was never
        counted are dropped.
        """
        self.is_in_step = False
        self._samples = None
        if self._names_of_step:
            self._names_of_step.clear()
            self._pending = {}

    def add(self, loss: MetricValue, weight: int, samples: int) -> None:
        """Add the loss of the step to ``losses``, and count the samples of the step.

        The trainer calls this once in each step with the loss that the step returned; you need not call it yourself. In
        a test, call it within ``with means.step():``. Values that the step has already logged are counted now, and
        values that it logs later are counted at once. Outside of a step, only the loss is added, and no error is
        raised.

        Args:
            loss: The mean over the samples, or over items such as tokens: a number, or a tensor with one element.
            weight: The number of samples or items of the mean, at least 0. With 0, the loss is ignored, even if it is
                NaN.
            samples: The number of samples of this process, at least 0: the weight of the values that the step logs.
                With 0, these values are dropped.

        Example:
            >>> from pa_core.tracking import StepMeans
            >>> means = StepMeans()
            >>> with means.step():
            ...     means.log("length", 8.0)
            ...     means.add(0.5, weight=64, samples=8)  # the mean over 64 tokens in 8 samples
            >>> means.losses.running_count, means["length"].running_count
            (64, 8)
        """
        self.losses.update(loss, weight)
        self.count_samples(samples)

    def count_samples(self, samples: int) -> None:
        """Set the number of samples of the step, which is the weight of its logged values.

        The trainer calls this in each step, before or after values are logged; you need not call it yourself. In a
        test, call it within ``with means.step():``, because the number is dropped when the step ends. See the example
        in `StepMeans`.

        Args:
            samples: The number of samples of this process in the step. With 0, the values of the step are dropped.
        """
        self._samples = samples
        if self._pending:
            pending, self._pending = self._pending, {}
            for name in pending:
                self._add(name, pending[name], samples)

    def log(self, name: str, value: MetricValue, count: int | None = None) -> None:
        """Add a value of the current step to the mean of its name.

        Call ``trainer.log`` instead, which calls this method. If a value is logged before the samples of the step are
        counted, it is added once they are counted.

        Args:
            name: An identifier (letters, digits and underscores), except "loss", which the trainer records itself. Log
                each name at most once in a step.
            value: A number, or a tensor with one element, which is copied.
            count: The weight of the value. The default, None, is the number of samples of the step.

        Raises:
            ConfigurationError: There is no step in progress, the name cannot be used or has already been logged in this
                step, or the value is not a single number.

        Example:
            >>> from pa_core.tracking import StepMeans
            >>> means = StepMeans()
            >>> with means.step():
            ...     means.log("accuracy", 0.75, count=8)
            >>> means["accuracy"].average
            0.75
        """
        if not self.is_in_step:
            raise ConfigurationError(
                f"Values can be logged within a step only, got log({name!r}, ...) outside of a step: log them from "
                "calculate_train_batch_loss or calculate_eval_batch_loss, or in an event of a step. Record a value of "
                "a whole epoch with trainer.run_history.update_metric(name, value)."
            )
        if name not in self:
            _check_name(name)
        if name in self._names_of_step:
            raise logged_twice(name)
        value = single_number(name, value)
        self._names_of_step.add(name)
        weight = self._samples if count is None else count
        if weight is not None:
            self._add(name, value, weight)
        else:
            self._pending[name] = value.clone() if isinstance(value, Tensor) else value

    def totals(self) -> dict[str, tuple[float, ...]]:
        """Return the sums and the numbers of samples of all logged values, ready for JSON.

        The trainer calls this to save a training state within an epoch; you need not call it yourself. It waits for the
        accelerator. The sum of the losses is not part of the result.

        Returns:
            For each name the result of ``LossTracker.numbers``: the sum over the samples, and the number of samples. If
            the means are exact, digits of the exact sum follow.

        Example:
            >>> from pa_core.tracking import StepMeans
            >>> means, resumed = StepMeans(), StepMeans()
            >>> with means.step():
            ...     means.log("accuracy", 0.75, count=8)
            >>> means.totals()
            {'accuracy': (6.0, 8)}
            >>> resumed.load_totals([means.totals()])
            >>> resumed["accuracy"].average
            0.75
        """
        return {name: tracker.numbers() for name, tracker in self.items()}

    def load_totals(self, of_processes: Iterable[Mapping[str, Sequence[float]]]) -> None:
        """Continue from results of ``totals``, in place of the values logged so far.

        The trainer calls this when it resumes within an epoch, and at the end of an epoch with the totals of all
        processes. You need not call it yourself. See the example in ``totals``.

        Args:
            of_processes: Results of ``totals``, one for each process; they are added up.
        """
        sums: dict[str, Tensor] = {}
        for totals in of_processes:
            for name, of_process in totals.items():
                sums[name] = torch.tensor(of_process, dtype=torch.float64) + sums.get(name, 0)
        self.clear()
        for name, total_and_count in sums.items():
            self[name] = self._make_tracker()
            self[name].load_totals(total_and_count)

    def record(self, history: RunHistory, loss_name: str) -> None:
        """Record the mean of each name in a history, without the losses.

        The trainer calls this at the end of an epoch; you need not call it yourself.

        Args:
            history: The history that records the means.
            loss_name: The name of the loss of the epoch, for example "train_loss_epoch". Each mean is recorded under
                this name with its own name in place of "loss".

        Example:
            >>> from pa_core.tracking import InMemoryRunHistory, StepMeans
            >>> means, history = StepMeans(), InMemoryRunHistory()
            >>> with means.step():
            ...     means.log("accuracy", 0.75, count=8)
            >>> means.record(history, "train_loss_epoch")
            >>> list(history.get_metric_names())
            ['train_accuracy_epoch']
        """
        for name, tracker in self.items():
            history.update_metric(loss_name.replace("loss", name, 1), tracker.average)

    def _add(self, name: str, value: MetricValue, samples: int) -> None:
        if samples > 0:  # a NaN would spoil the mean even with the weight 0
            self.setdefault(name, self._make_tracker()).update(value, samples)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name.isidentifier() or name == "loss":
        raise ConfigurationError(
            f"A logged value cannot have this name: log({name!r}, ...). Choose letters, digits and underscores, "
            "except 'loss'; the prefix train_ or eval_ and the suffix _epoch are added."
        )


def single_number(name: str, value: object) -> MetricValue:
    """Check that a value is a single number, and return it without its graph.

    Args:
        name: The name of the metric, for the message.
        value: The argument of ``log``.

    Raises:
        ConfigurationError: The value is not a single real number.
    """
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        value = value.detach().reshape(())
        return value.long() if value.dtype is torch.bool else value
    if isinstance(value, Real):
        return float(value)
    given = f"{value!r}, of type {type(value).__name__}"
    do = f"Record other values once in an epoch: run_history.update_metric({name!r}, value)."
    if isinstance(value, Tensor):
        given = f"a tensor of shape {tuple(value.shape)} and dtype {value.dtype}"
        do = f"Log its mean, log({name!r}, value.mean()), or each element under its own name."
    raise ConfigurationError(f"Only single numbers can be logged, got {given}. {do}")


def logged_twice(name: str) -> ConfigurationError:
    """Return the error for a second value with the same name in a step."""
    return ConfigurationError(
        f"log({name!r}, ...) was called twice in the same step. Log the sum or the mean, or use another name for each."
    )
