"""Finds a learning rate in a short run at rising rates, and restores everything afterwards."""

# pyright: reportUnknownMemberType=false
# (matplotlib leaves the keyword arguments of its methods untyped)

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from pa_core import (
    AnyTrainer,
    ArgumentTypeError,
    BatchOutput,
    ConfigurationError,
    MoveModulesToDeviceCallback,
    StopTrainingError,
    Trainer,
    TrainerCallback,
    UnsupportedConfigurationError,
)
from pa_core.tracking.plot_style import PlotStyle, plot_style
from pa_schedulers.argument_checks import whole_number
from pa_schedulers.figures import legend_above, single_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_SMOOTHING = 0.8  # each smoothed loss is an average of about five losses
_DIVERGED = 4.0  # times the lowest smoothed loss
_BELOW_LOWEST = 10.0
_PLAIN = (bool, int, float, str, type(None))


class LearningRateLoss(NamedTuple):
    """The learning rate and the loss of an update of a learning rate search.

    ``LearningRateCurve.rows``, which ``find_learning_rate`` returns, contains one for each update. It is a named tuple,
    and you need not create one yourself.

    Attributes:
        rate: The learning rate; with several parameter groups, the highest of them.
        loss: The mean loss of the samples of the update, on all processes.
        smoothed: The weighted mean of this loss and the losses before it; each loss has a weight that is a fifth lower
            than the weight of the loss after it.

    Example:
        >>> from pa_schedulers import LearningRateLoss
        >>> rows = [LearningRateLoss(0.1, loss=0.5, smoothed=0.6), LearningRateLoss(0.2, loss=0.7, smoothed=0.62)]
        >>> [row.rate for row in rows if row.loss < 0.6]
        [0.1]
    """

    rate: float
    loss: float
    smoothed: float


@dataclass(frozen=True)
class LearningRateCurve:
    """The losses that ``find_learning_rate`` measured at rising learning rates.

    ``find_learning_rate`` returns it; you need not create it yourself. Use ``suggestion`` as the learning rate of your
    run, or look at the curve with ``plot``.

    Attributes:
        rows: A ``LearningRateLoss`` for each update, in order, up to the update whose loss was infinite or whose
            smoothed loss was more than four times the lowest.

    Example:
        >>> from pa_schedulers import LearningRateCurve, LearningRateLoss
        >>> losses = [LearningRateLoss(10.0**power, loss, loss) for power, loss in ((-3, 2.0), (-2, 1.0), (-1, 3.0))]
        >>> LearningRateCurve(losses).suggestion
        0.001
    """

    rows: list[LearningRateLoss]

    @property
    def suggestion(self) -> float:
        """A tenth of the rate at which the smoothed loss is lowest, which is high but safely below rates that diverge.

        A float, for example 0.003. Use it as the learning rate of the optimizer, or as the highest rate of a schedule.

        Raises:
            ConfigurationError: The loss still falls at the highest rate, or it never falls (the message says whether to
                search at higher or lower rates), or there are no rows. It is a ``ValueError``.
        """
        self._require_rows()
        lowest = min(self.rows, key=lambda row: row.smoothed)
        if lowest is self.rows[0] or lowest is self.rows[-1]:
            falls = lowest is self.rows[-1] and len(self.rows) > 1
            do = "Search up to a greater `highest`." if falls else "Search from a smaller `lowest`, over more updates."
            end = "highest" if falls else "lowest"
            raise ConfigurationError(
                f"These losses suggest no learning rate: they are lowest at the {end} rate, {lowest.rate:.3g}. {do}"
            )
        return lowest.rate / _BELOW_LOWEST

    def plot(self, path: str | Path, *, dark: bool = False) -> Path:
        """Draw the loss over the learning rate, and save the picture.

        You call it after ``find_learning_rate``, to check that the suggested rate, which is marked, is where the loss
        falls.

        Args:
            path: The file to save, a PNG unless it has a different file extension, for example ``.svg`` or ``.pdf``. It
                is replaced if it exists. Missing folders are created.
            dark: Whether to draw on a dark background, for dark pages or slides. The default is False, for a white
                background.

        Returns:
            The path of the picture.

        Raises:
            ConfigurationError: There are no rows. It is a ``ValueError``.
            ImportError: matplotlib is not installed (``pip install "pa-schedulers[plot]"``).

        Example:
            >>> import tempfile
            >>> from pa_schedulers import LearningRateCurve, LearningRateLoss
            >>> pairs = ((-3, 2.0), (-2, 1.0), (-1, 3.0))
            >>> losses = [LearningRateLoss(10.0**power, loss, loss) for power, loss in pairs]
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     LearningRateCurve(losses).plot(f"{folder}/search.png").name
            'search.png'
        """
        self._require_rows()
        style = plot_style(dark=dark)
        return style.save(_draw(self, style), path)

    def _require_rows(self) -> None:
        if not self.rows:
            raise ConfigurationError(
                "A learning rate curve needs losses, got no rows. Make it with find_learning_rate."
            )


def find_learning_rate(
    trainer: Trainer[Any, Any, Any, Any],
    train_dataset: Dataset[Any] | DataLoader[Any],
    *,
    lowest: float = 1e-7,
    highest: float = 10.0,
    num_updates: int = 100,
    per_device_batch_size: int = 8,
    gradient_accumulation_steps: int = 1,
    train_dataloader_kwargs: dict[str, Any] | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
) -> LearningRateCurve:
    """Make some updates at rising learning rates, and return the loss at each rate.

    Use it before the first run of a new model, instead of trying rates in whole runs. ``suggestion`` is a rate to start
    with, and ``plot`` draws the curve. The rate grows by the same factor with each update (Smith, 2017,
    arXiv:1506.01186, section 3.3), and the search ends early once the loss is four times its lowest. With several
    parameter groups, ``lowest`` and ``highest`` apply to the group with the highest rate, and the others keep their
    ratio to it. Callbacks are not called, except for ``MoveModulesToDeviceCallback``.

    Afterwards the model, the optimizer and the random states are restored, as after ``trainer.dry_run(...)``, so a
    search does not change the run that follows.

    Args:
        trainer: The trainer of the run for which you search a rate.
        train_dataset: The training dataset of the run.
        lowest: The rate of the first update. The default, 1e-7, is too low for nearly every model to learn.
        highest: The rate of the last update. The default, 10, makes nearly every model diverge.
        num_updates: The maximum number of updates. The default, 100, takes seconds to minutes and still has more than
            ten updates for each power of ten.
        per_device_batch_size: The batch size on each process. Use the batch size of the run, because a good rate
            depends on it. The default, 8, is the default of ``Trainer.train``.
        gradient_accumulation_steps: The number of batches in an update, as in the run. The default, 1, does not
            accumulate gradients.
        train_dataloader_kwargs: Arguments of the data loader, as in the run. The default, None, passes none.
        collate_fn: A function that makes a batch from a list of samples, as in the run. The default, None, uses the
            trainer's function or torch's default.

    Returns:
        The losses; ``suggestion`` is the suggested rate, ``plot(path)`` draws the curve, and ``rows`` has the rate and
        the losses of each update.

    Raises:
        ArgumentTypeError: ``trainer`` is not a trainer. It is a ``TypeError``.
        ConfigurationError: ``lowest``, ``highest`` or ``num_updates`` is out of range, the trainer sets its rates
            itself, or the loss of the first update is NaN or infinite. It is a ``ValueError``.
        UnsupportedConfigurationError: The trainer is reproducible, the model is sharded, or its optimizer or parameters
            are created only when a run starts. It is a ``RuntimeError``.

    Example:
        >>> import torch
        >>> from pa_core import Trainer
        >>> from pa_core.testing import make_regression
        >>> from pa_schedulers import find_learning_rate
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[])
        >>> found = find_learning_rate(trainer, make_regression(64), lowest=1e-4)
        >>> 0.01 < found.suggestion < 1
        True
    """
    if not isinstance(trainer, Trainer):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        raise ArgumentTypeError(
            f"find_learning_rate needs the Trainer of the run, got a trainer of type {type(trainer).__name__}."
        )
    num_updates = whole_number("num_updates", num_updates, minimum=2)
    are_numbers = all(isinstance(rate, (int, float)) for rate in cast("tuple[object, ...]", (lowest, highest)))
    if not are_numbers or not 0 < lowest < highest < math.inf:
        raise ConfigurationError(
            f"lowest and highest must be numbers with 0 < lowest < highest, got lowest={lowest!r}, highest={highest!r}."
        )
    _require_searchable(trainer)
    peak = max(float(group["lr"]) for group in trainer.optimizer.param_groups)
    growth = (highest / lowest) ** (1 / (num_updates - 1))
    search = _Search(lowest, growth)
    data = (train_dataset, collate_fn, *(train_dataloader_kwargs or {}).values())
    with trainer.dry_run(*data), trainer.callback_handler.replaced_by([MoveModulesToDeviceCallback, search]):
        trainer.train(
            train_dataset,
            num_epochs=1,
            max_num_train_steps=num_updates,
            per_device_batch_size=per_device_batch_size,
            gradient_accumulation_steps=gradient_accumulation_steps,
            train_dataloader_kwargs=train_dataloader_kwargs,
            collate_fn=collate_fn,
            create_scheduler_fn=partial(LambdaLR, lr_lambda=lambda update: lowest * growth**update / peak),
        )
    if not search.rows:
        raise ConfigurationError(
            f"The loss is NaN or infinite in the first update of the search, at the learning rate {lowest:.3g}. Train "
            "an update with TerminateOnNaNCallback, which reports the cause, or lower `lowest`."
        )
    return LearningRateCurve(search.rows)


class _Search(TrainerCallback):
    """Records the loss of each update, and ends the run when the loss has grown too much."""

    def __init__(self, lowest: float, growth: float) -> None:
        self.rows: list[LearningRateLoss] = []
        self._lowest, self._growth = lowest, growth
        self._average = 0.0
        self._of_update: list[Tensor] = []

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: BatchOutput, **kwargs: Any) -> None:
        loss, samples = batch_output["loss"], batch_output["batch_size"]
        self._of_update.append(torch.stack([loss.detach().double() * samples, loss.new_tensor(samples).double()]))

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        rate = self._lowest * self._growth ** (update - 1)
        used = max(float(group["lr"]) for group in trainer.optimizer.param_groups) / self._growth
        if not math.isclose(rate, used, rel_tol=1e-4):
            raise ConfigurationError(
                f"This trainer sets its learning rates itself: {used:.3g} instead of {rate:.3g} in update {update} of "
                "a search. Let create_scheduler() use create_scheduler_fn, and leave the rates to the scheduler."
            )
        nothing = [torch.zeros(2, dtype=torch.float64, device=trainer.device)]
        of_process = torch.stack(self._of_update or nothing).sum(0, keepdim=True)
        summed, samples = trainer.gather(of_process).sum(0)
        self._of_update.clear()
        loss = float(summed / samples)
        if math.isfinite(loss):
            self._average = _SMOOTHING * self._average + (1 - _SMOOTHING) * loss
            smoothed = self._average / (1 - _SMOOTHING ** (len(self.rows) + 1))
            self.rows.append(LearningRateLoss(rate, loss, smoothed))
        if not math.isfinite(loss) or self.rows[-1].smoothed > _DIVERGED * min(row.smoothed for row in self.rows):
            raise StopTrainingError(f"The loss has grown too much at the learning rate {rate:.3g}.")


def _require_searchable(trainer: Trainer[Any, Any, Any, Any]) -> None:
    optimizer = trainer.named_optimizers().get("optimizer")
    if trainer.reproducible:
        raise UnsupportedConfigurationError(
            "find_learning_rate does not support a reproducible trainer. Search with another trainer of the same "
            "model, without reproducible."
        )
    if trainer.is_sharded or optimizer is None:
        why = (
            "a sharded model"
            if trainer.is_sharded
            else "a trainer whose optimizer is missing, or made when a run starts"
        )
        raise UnsupportedConfigurationError(
            f"find_learning_rate does not support {why}. Search with a smaller model, or on one process."
        )
    model = trainer.get_model()
    if any(map(is_lazy, (*model.parameters(), *model.buffers()))):
        raise UnsupportedConfigurationError(
            "find_learning_rate does not support lazy modules without parameters. Call the model on the "
            "inputs of a batch first."
        )
    if not any(float(group["lr"]) > 0 for group in optimizer.param_groups):
        raise ConfigurationError(
            "The learning rates of the optimizer are all 0, so the ratios of its parameter groups are unknown. "
            "Make the optimizer with lr=1e-3, for example."
        )


def _draw(curve: LearningRateCurve, style: PlotStyle) -> Figure:
    """Draw the losses faintly, their average, and the suggested rate."""
    figure, axes = single_axes("search")
    rates = [row.rate for row in curve.rows]
    smoothed = [row.smoothed for row in curve.rows]
    axes.plot(rates, [row.loss for row in curve.rows], color=style.curves[0], linewidth=1, alpha=0.35, label="loss")
    axes.plot(rates, smoothed, color=style.curves[0], label="smoothed")
    try:
        suggestion = curve.suggestion
    except ConfigurationError:
        pass  # the curve shows why no rate is suggested
    else:
        axes.axvline(suggestion, color=style.curves[1], linestyle=(0, (4, 3)), label=f"suggestion {suggestion:.2g}")
    axes.set_xscale("log")
    lowest, first = min(min(row.loss, row.smoothed) for row in curve.rows), smoothed[0]
    height = first - lowest or 1.0
    axes.set_ylim(lowest - 0.1 * height, first + 0.3 * height)  # where it diverges, the loss leaves the picture
    legend_above(axes, style, columns=3)
    axes.set_title("loss", loc="left")
    axes.set_xlabel("learning rate")
    style.dress(axes)
    return figure
