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
    """Accumulate the mean loss over samples, without waiting for an accelerator.

    Use it for your own means in a callback. Losses that are tensors are summed on their device, in double precision on
    the CPU and on CUDA and in single precision elsewhere (not every device has doubles). Only reading the sum waits for
    the device.

    Example:
        >>> tracker = LossTracker()
        >>> tracker.update(torch.tensor(1.0), batch_size=3)
        >>> tracker.update(2.0, batch_size=1)
        >>> tracker.average, tracker.total_loss, tracker.running_count
        (1.25, 5.0, 4)
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start again without losses: ``average`` is NaN, and ``running_count`` is 0."""
        self._host_total: float = 0.0
        self._device_total: Tensor | None = None
        self._count: int = 0

    def update(self, loss: MetricValue, batch_size: int = 1) -> None:
        """Add the mean loss of a batch; a batch of 0 samples has no effect.

        Args:
            loss: The mean over the samples of the batch: a number, or a tensor with one element, whose graph is not
                kept.
            batch_size: The number of samples of the mean; the default is 1.
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
        """The sum of the losses of all samples, 0.0 before the first; reading it waits for the accelerator."""
        return self._host_total + (0.0 if self._device_total is None else self._device_total.item())

    @property
    def running_count(self) -> int:
        """The number of samples so far, on this process."""
        return self._count

    @property
    def average(self) -> float:
        """The mean loss of all samples; reading it waits for the accelerator.

        It is the sum of the losses divided by the number of samples, NaN before the first.
        """
        return self.total_loss / self._count if self._count else float("nan")

    def totals(self) -> Tensor:
        """Return ``[total_loss, running_count]`` as a tensor on the device of the losses, without waiting for them.

        Sum it over processes, and pass it to ``load_totals``, for the mean of all of them.

        Returns:
            A tensor of shape ``(2,)``, in float64, or in float32 on a device without doubles.

        Example:
            >>> from pa_core.distributed import sum_over_processes
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
        """Continue from the result of ``totals``; waits for the accelerator.

        Args:
            totals: The result of ``totals``, or its sum over processes; it replaces the losses so far.
        """
        self._device_total = None if totals.is_cpu else totals[0].clone()
        self._host_total = float(totals[0]) if totals.is_cpu else 0.0
        self._count = round(float(totals[1]))

    def numbers(self) -> tuple[float, ...]:
        """Return the numbers of ``totals`` as a tuple, for JSON; waits for the accelerator.

        They are not rounded to the precision of the device.
        """
        return self.total_loss, self._count


class ExactLossTracker(LossTracker):
    """Accumulate the mean loss bit-for-bit identically in any order of the batches, on any number of processes.

    The product of the mean of a batch and its number of samples is rounded to a double, the sum is exact, and the mean
    is rounded once. Losses on an accelerator are read when they have arrived; only reading a sum waits for them.

    Example:
        >>> tracker, rounding = ExactLossTracker(), LossTracker()
        >>> for loss in (1e16, 1.0, -1e16):
        ...     tracker.update(loss)
        ...     rounding.update(loss)
        >>> tracker.total_loss, rounding.total_loss
        (1.0, 0.0)
    """

    @override
    def reset(self) -> None:
        """Start again without losses: ``average`` is NaN, and ``running_count`` is 0."""
        super().reset()  # the sum on the host is that of losses that are not finite, the same in any order
        self._exact_total: int = 0
        self._transfer = ScalarTransfer[int]()

    @override
    def update(self, loss: MetricValue, batch_size: int = 1) -> None:
        """Add the mean loss of a batch, as in ``LossTracker``.

        Args:
            loss: The mean over the samples of the batch: a number, or a tensor with one element.
            batch_size: The number of samples of the mean; the default is 1.
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
        """The sum of the losses of all samples, rounded; reading it waits for the accelerator."""
        return self._divide(1)

    @property
    @override
    def average(self) -> float:
        """The mean loss of all samples, NaN before the first; reading it waits for the accelerator."""
        return self._divide(self._count) if self._count else math.nan

    @override
    def totals(self) -> Tensor:
        """Return the sum and the count on the CPU, and the digits of the exact sum; waits for the accelerator.

        Returns:
            A tensor in float64, which can be summed over processes without rounding, for ``load_totals``.
        """
        return torch.tensor(self.numbers(), dtype=torch.float64)

    @override
    def load_totals(self, totals: Tensor) -> None:
        """Continue from the result of ``totals``, of this class or of ``LossTracker``.

        Args:
            totals: The result of ``totals``, or its sum over processes; it replaces the losses so far.
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
        """Return the numbers of ``totals`` as a tuple, for JSON; waits for the accelerator.

        They end with the sum of non-finite losses and the digits of the exact sum of the others.
        """
        total, last = self.total_loss, _NUM_DIGITS - 1
        above = [self._exact_total >> place * _DIGIT_BITS for place in range(last)]
        digits = [part & ((1 << _DIGIT_BITS) - 1) for part in above]
        return total, self._count, self._host_total, *digits, self._exact_total >> last * _DIGIT_BITS  # with its sign


class StepMeans(dict[str, LossTracker]):
    """The means over the samples of this process of values that the steps of an epoch log, by name.

    ``trainer.log`` adds to it, and ``trainer.step_means`` is for reading it; the trainer calls the other methods. It is
    a dictionary of a ``LossTracker`` for each name. A value counts as often as its step has samples. It may be logged
    before their number is known, and is copied at that moment: a tensor stays on its device, without its graph, and is
    not waited for.

    Args:
        exact: Whether the means are bit-for-bit identical in any order of the steps.

    Attributes:
        losses: The losses of the steps.
        is_in_step: Whether a step is in progress, in which values can be logged.

    Example:
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
        """Remove all values and losses; called when an epoch begins."""
        self.clear()
        self.losses.reset()

    def step(self) -> AbstractContextManager[None]:
        """Return the context of a step, within which values can be logged; use it as ``with means.step():``."""
        return self

    def __enter__(self) -> None:
        self.end_step()
        self.is_in_step = True

    def __exit__(self, *exception: BaseException | type[BaseException] | TracebackType | None) -> None:
        self.end_step()

    @contextmanager
    def interrupted(self) -> Generator[None]:
        """Return a context in which other steps begin and end; the step in progress continues after it.

        Used for an evaluation, or updates of other batches, in the middle of a step.
        """
        before = self._names_of_step, self._pending, self._samples, self.is_in_step
        self._names_of_step, self._pending, self._samples, self.is_in_step = set(), {}, None, False
        try:
            yield
        finally:
            self._names_of_step, self._pending, self._samples, self.is_in_step = before

    def end_step(self) -> None:
        """End the step, after which nothing can be logged; has no effect if it has ended already.

        Values whose number of samples was never counted are dropped.
        """
        self.is_in_step = False
        self._names_of_step.clear()
        self._samples = None
        self._pending = {}

    def add(self, loss: MetricValue, weight: int, samples: int) -> None:
        """Add the loss of the step.

        Args:
            loss: The mean over the samples, or over items.
            weight: The number of samples or items of the mean.
            samples: The number of samples.
        """
        self.losses.update(loss, weight)
        self.count_samples(samples)

    def count_samples(self, samples: int) -> None:
        """Set the number of samples of the step, which is the weight of its logged values.

        Args:
            samples: The number of samples of this process in the step.
        """
        self._samples, pending, self._pending = samples, self._pending, {}
        for name in pending:
            self._add(name, pending[name], samples)

    def log(self, name: str, value: MetricValue, count: int | None = None) -> None:
        """Add a value to a mean.

        Args:
            name: An identifier, other than "loss"; once in a step.
            value: A number, or a tensor with one element.
            count: The weight of the value; None for the number of samples of the step.

        Raises:
            ConfigurationError: There is no step in progress, the name cannot be used or was logged in this step
                already, or the value is not a single number.
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
        """Return the sum over the samples and their number, by name; waits for the accelerator.

        Returns:
            For each name, the result of ``LossTracker.numbers``, for a training state.
        """
        return {name: tracker.numbers() for name, tracker in self.items()}

    def load_totals(self, of_processes: Iterable[Mapping[str, Sequence[float]]]) -> None:
        """Continue from the results of ``totals``, of this process or of all processes together.

        Args:
            of_processes: The results of ``totals``, which are added up.
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
        """Record the means of an epoch.

        Args:
            history: The history that records them.
            loss_name: The name of the loss of the epoch; each mean has its own name in the place of "loss".
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
    """Return the error of a second value with the same name in a step."""
    return ConfigurationError(
        f"log({name!r}, ...) was called twice in the same step. Log the sum or the mean, or use another name for each."
    )
