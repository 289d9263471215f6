"""Finding a learning rate: a short run over rising rates, after which everything is as it was."""

# pyright: reportUnknownMemberType=false
# (matplotlib leaves the keyword arguments of its methods untyped)

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from pa_core import (
    AnyTrainer,
    BatchOutput,
    ConfigurationError,
    InMemoryRunHistory,
    MoveModulesToDeviceCallback,
    StopTrainingError,
    Trainer,
    TrainerCallback,
    UnsupportedConfigurationError,
)
from pa_core.plot_style import PlotStyle, plot_style
from pa_schedulers.argument_checks import whole_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["LearningRateCurve", "LearningRateLoss", "find_learning_rate"]

_SMOOTHING = 0.8  # each smoothed loss is an average of about five losses
_DIVERGED = 4.0  # times the lowest smoothed loss
_BELOW_LOWEST = 10.0


class LearningRateLoss(NamedTuple):
    """What one update of a search used and found.

    Example:
        >>> LearningRateLoss(rate=0.1, loss=0.5, smoothed=0.6).rate
        0.1
    """

    rate: float
    """The learning rate; of several parameter groups, that of the one with the highest."""
    loss: float
    """The mean loss of the samples of the update, on all processes."""
    smoothed: float
    """The mean of this loss and those before it, of which each counts a fifth less than the next."""


@dataclass(frozen=True)
class LearningRateCurve:
    """The loss over rising learning rates.

    Example:
        >>> losses = [LearningRateLoss(10.0**power, loss, loss) for power, loss in ((-3, 2.0), (-2, 1.0), (-1, 3.0))]
        >>> LearningRateCurve(losses).suggestion
        0.001
    """

    rows: list[LearningRateLoss]
    """One for each update, up to the one at which the loss was infinite or four times its lowest."""

    @property
    def suggestion(self) -> float:
        """A tenth of the rate at which the smoothed loss is lowest.

        Raises:
            ConfigurationError: The loss falls until the highest rate, or at none. The rows say more.
        """
        lowest = min(self.rows, key=lambda row: row.smoothed)
        if lowest is self.rows[0] or lowest is self.rows[-1]:
            falls = lowest is self.rows[-1] and len(self.rows) > 1
            raise ConfigurationError(
                "These losses suggest no learning rate.",
                given=f"losses that are lowest at the {'highest' if falls else 'lowest'} rate, {lowest.rate:.3g}",
                expected="a loss that falls, and rises again at rates that are too high",
                do="Search up to a greater `highest`."
                if falls
                else "Search from a smaller `lowest`, over more updates.",
            )
        return lowest.rate / _BELOW_LOWEST

    def plot(self, path: str | Path, *, dark: bool = False) -> Path:
        """Draw the curve, and save the picture.

        Args:
            path: Where to save it: a PNG, unless the ending says otherwise. Missing folders are made.
            dark: Draw on a dark ground, for a page or slides that are dark.

        Returns:
            The path of the picture.

        Raises:
            ImportError: matplotlib is not installed.
        """
        style = plot_style(dark=dark)
        return style.save(_draw(self, style), path)


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
    """Train for some updates at rising learning rates, and return the loss at each of them.

    The rate grows by the same factor with each update (Smith, 2017, arXiv:1506.01186), and the search ends early once
    the loss is four times its lowest. Of several parameter groups, each keeps its ratio to the one with the highest
    rate. Afterwards weights, buffers, optimizers, scheduler, history and random numbers are as before, so that a run
    after a search is the run without it. What tells of the last run, such as ``run_config``, tells of the search.
    Callbacks are not called, except for ``MoveModulesToDeviceCallback``.

    Args:
        trainer: The trainer of the run that the rate is for.
        train_dataset: What the run will train on.
        lowest: The rate of the first update.
        highest: The rate of the last update.
        num_updates: How many updates to make, at most.
        per_device_batch_size: That of the run: a good rate depends on it. As all further arguments, it is one of
            ``Trainer.train``.
        gradient_accumulation_steps: That of the run.
        train_dataloader_kwargs: Those of the run.
        collate_fn: That of the run.

    Raises:
        ConfigurationError: An argument cannot work, or the trainer sets its rates itself.
        UnsupportedConfigurationError: The model is sharded, or its optimizer is made when a run starts.

    Example:
        >>> from pa_core.testing import make_regression
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[])
        >>> found = find_learning_rate(trainer, make_regression(64), lowest=1e-4)
        >>> 0.01 < found.suggestion < 1
        True
    """
    num_updates = whole_number("num_updates", num_updates, minimum=2)
    if not 0 < lowest < highest < math.inf:
        raise ConfigurationError(
            "There are no rates between these.",
            given=f"lowest={lowest!r}, highest={highest!r}",
            expected="0 < lowest < highest",
            do="Leave both out for 1e-7 to 10.",
        )
    _require_searchable(trainer)
    peak = max(float(group["lr"]) for group in trainer.optimizer.param_groups)
    growth = (highest / lowest) ** (1 / (num_updates - 1))
    search = _Search(lowest, growth)
    with _left_as_it_was(trainer), trainer.callback_handler.replaced_by([MoveModulesToDeviceCallback, search]):
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
    return LearningRateCurve(search.rows)


class _Search(TrainerCallback):
    """Notes the loss of each update, and ends the run when it has grown too much."""

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
                "This trainer sets its learning rates itself.",
                given=f"a rate of {used:.3g} in update {update} of a search",
                expected=f"{rate:.3g}",
                do="Let create_scheduler() use create_scheduler_fn, and leave the rates to the scheduler.",
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
    if trainer.is_sharded or optimizer is None:
        raise UnsupportedConfigurationError(
            "A learning rate cannot be searched for with this trainer.",
            given="a sharded model" if trainer.is_sharded else "a trainer whose optimizer is made when a run starts",
            expected="a model that is whole on each process, and its optimizer",
            do="Search with a smaller model of the same kind, or on one process.",
        )
    if not any(float(group["lr"]) > 0 for group in optimizer.param_groups):
        raise ConfigurationError(
            "The ratios of the rates of the parameter groups are unknown.",
            given="an optimizer whose learning rates are all 0",
            expected="a rate above 0; with a single group, any",
            do="Make the optimizer with lr=1e-3, for example.",
        )


@contextmanager
def _left_as_it_was(trainer: Trainer[Any, Any, Any, Any]) -> Generator[None]:
    """Restore what a run changes: in place, as others hold the same tensors and groups."""
    modules = [trainer.get_model(), *trainer.modules.values()]
    weights = [{name: _copied(value) for name, value in module.state_dict().items()} for module in modules]
    modes = [(part, part.training) for module in modules for part in module.modules()]
    optimizers = [
        (
            optimizer,
            {parameter: copy.deepcopy(state) for parameter, state in optimizer.state.items()},
            [dict(group) for group in optimizer.param_groups],
        )
        for optimizer in trainer.named_optimizers().values()
    ]
    rates = [
        (value, value.clone())
        for optimizer, *_ in optimizers
        for group in optimizer.param_groups
        for value in group.values()
        if isinstance(value, Tensor)
    ]
    scheduler, history = trainer.scheduler, trainer.run_history
    trainer.run_history = InMemoryRunHistory()
    try:
        with _same_random_numbers(trainer.device):
            yield
    finally:
        for module, saved in zip(modules, weights, strict=True):
            module.load_state_dict(saved)
        for part, mode in modes:
            part.training = mode
        for optimizer, state, groups in optimizers:
            optimizer.state.clear()
            optimizer.state.update(state)
            for group, values in zip(optimizer.param_groups, groups, strict=True):
                group.clear()
                group.update(values)
        for rate, value in rates:  # schedulers of torch change a rate that is a tensor in place
            rate.copy_(value)
        trainer.scheduler, trainer.run_history = scheduler, history


@contextmanager
def _same_random_numbers(device: torch.device) -> Generator[None]:
    """Restore the RNG states of Python, NumPy and torch, and of torch on the device."""
    import numpy as np  # which this package needs for nothing else

    of_python, of_numpy = random.getstate(), np.random.get_state()
    on_device: dict[str, Any] = {} if device.type == "cpu" else {"devices": [device], "device_type": device.type}
    try:
        with torch.random.fork_rng(**on_device or {"devices": []}):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value)


def _draw(curve: LearningRateCurve, style: PlotStyle) -> Figure:
    """Draw the losses faintly, their average, and the rate that it suggests."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            'Drawing a search needs matplotlib. Install it with: pip install "pa-schedulers[plot]"'
        ) from error
    figure = Figure(figsize=(7.0, 3.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    rates = [row.rate for row in curve.rows]
    smoothed = [row.smoothed for row in curve.rows]
    axes.plot(rates, [row.loss for row in curve.rows], color=style.curves[0], linewidth=1, alpha=0.35, label="loss")
    axes.plot(rates, smoothed, color=style.curves[0], label="smoothed")
    try:
        suggestion = curve.suggestion
    except ConfigurationError:
        pass  # the curve shows why there is none
    else:
        axes.axvline(suggestion, color=style.curves[1], linestyle=(0, (4, 3)), label=f"suggestion {suggestion:.2g}")
    axes.set_xscale("log")
    lowest, first = min(min(row.loss, row.smoothed) for row in curve.rows), smoothed[0]
    height = first - lowest or 1.0
    axes.set_ylim(lowest - 0.1 * height, first + 0.3 * height)  # where it diverges, the loss leaves the picture
    axes.legend(frameon=False, fontsize=9, ncols=3, loc="lower right", bbox_to_anchor=(1.0, 1.0), labelcolor=style.text)
    axes.set_title("loss", loc="left")
    axes.set_xlabel("learning rate")
    style.dress(axes)
    return figure
