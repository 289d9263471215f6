"""A plan: records of what a run is going to do, and their table for people."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from typing_extensions import override

from pa_core import TrainerRunConfig

_MOST = 5
"""Rows of one kind."""

_KIB, _MINUTE = 1024, 60

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

_KINDS = {"sanity": "before the run", "intermediate": "within epochs", "epoch": "after epochs"}


@dataclass(frozen=True)
class PlannedParameters:
    """The parameters of a child of the model; one that several children share is in the first of them.

    Attributes:
        name: The name of the child, or of a module that was added to the trainer; "" for parameters of the model's own.
        trained: How many are trained: they need gradients, and an optimizer has them.
        frozen: How many are not.
        trained_bytes: The memory of those that are trained.
        frozen_bytes: The memory of the others.
    """

    name: str
    trained: int
    frozen: int
    trained_bytes: int
    frozen_bytes: int


@dataclass(frozen=True)
class PlannedEpoch:
    """An epoch; ``max_num_train_steps`` may cut the last one short.

    Attributes:
        batches: Batches of this process.
        updates: Optimizer updates.
        ends_at: The number of updates of the run at its end.
    """

    batches: int
    updates: int
    ends_at: int


@dataclass(frozen=True)
class PlannedEvaluation:
    """An evaluation of one set.

    Attributes:
        update: After which update; 0 is before the first one.
        name: The name of the set; None for a dataset without one.
        batches: Batches of this process; None for data without a length.
        kind: "sanity" before the first epoch, "intermediate" within an epoch, "epoch" after one.
    """

    update: int
    name: str | None
    batches: int | None
    kind: str


@dataclass(frozen=True)
class PlannedSave:
    """A training state that is saved.

    Attributes:
        update: After which update.
        name: The folder in ``save_dir``; it gets a number where another run has a state of the name.
        deletes: The states that are deleted once it is there.
    """

    update: int
    name: str
    deletes: tuple[str, ...]


@dataclass(frozen=True)
class PlannedRate:
    """A learning rate.

    Attributes:
        update: The update that is made with it, counted from 1.
        rate: The learning rate.
    """

    update: int
    rate: float


@dataclass(frozen=True)
class PlannedRates:
    """The course of the learning rate of a parameter group.

    Attributes:
        optimizer: The name of the optimizer.
        group: The number of the group.
        points: The rates at the turning points, in their order: the first, the first of the highest and of the lowest,
            the last before it falls again or rises again, and the last of the run.
        course: About 1,000 rates all over the run, and the points, for a picture.
    """

    optimizer: str
    group: int
    points: tuple[PlannedRate, ...]
    course: tuple[PlannedRate, ...]


@dataclass(frozen=True)
class PlannedMemory:
    """Memory in bytes, without data that is kept in memory and what the device's libraries take.

    Activations and peaks come from an update with tensors that have no values, for the largest of the first batches:
    updates of larger ones need more. They are None where a step needs values, as for ``numpy()``; a note says why.

    Attributes:
        weights: Parameters and buffers.
        gradients: The gradients of all trained parameters.
        optimizer: The state of the optimizers after an update; None where that could not be tried.
        activations: What the forward pass of a batch leaves for its backward pass.
        peak: The most at one time within an update: all of the above, the batch, and what operations need meanwhile.
        peak_on_accelerator: The same on a GPU, even if there is none: in blocks of 512 bytes, with optimizers that work
            on all parameters at once. It is what ``torch.cuda.max_memory_allocated`` counts, without workspaces of
            cuDNN and cuBLAS; layers that have other kernels there, such as attention and LSTM, need more or less. The
            context of the device and fragmentation come on top, often more than a GiB. It is for the mixed precision of
            this run: on a CPU, bf16 or none.
        saved_state: A training state on the disk, about, without what callbacks store in it; None as ``optimizer``.
            Within the epochs of a custom loader it is 15 kB more.
    """

    weights: int
    gradients: int
    optimizer: int | None
    activations: int | None
    peak: int | None
    peak_on_accelerator: int | None
    saved_state: int | None


@dataclass(frozen=True)
class PlannedDisk:
    """What the training states of a run need on a disk, in bytes, each taken for as large as ``memory.saved_state``.

    Attributes:
        peak: The most at one time: a new state is there before an old one is deleted.
        at_end: What stays.
        free: What is free there now.
    """

    peak: int
    at_end: int
    free: int


@dataclass(frozen=True)
class PlannedSeconds:
    """How long a run takes, without callbacks and saves; None where it could not be timed.

    Attributes:
        update: An update, with its batches.
        updates: All of them.
        evaluations: All evaluations.
    """

    update: float | None
    updates: float | None
    evaluations: float | None

    @property
    def total(self) -> float | None:
        """The seconds of the run."""
        return None if self.updates is None or self.evaluations is None else self.updates + self.evaluations


@dataclass(frozen=True)
class Plan:
    """What a run is going to do; print it.

    Attributes:
        config: The settings of the run: the number of processes, the size of batches, samples of an update.
        device: Where it trains.
        parameters: The parameters by child of the model.
        samples: The samples that the first epoch trains on; None where its loader does not tell.
        epochs: The epochs, in their order.
        updates: The updates of the run.
        evaluations: The evaluations, in their order.
        saves: The training states that are saved and deleted, in their order.
        rates: The learning rates of the parameter groups.
        memory: What an update needs.
        disk: What the training states need; None without any.
        seconds: How long it takes.
        notes: What could not be planned, and why.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from pa_core import Trainer
        >>> from pa_core.testing import TinyClassifier, make_classification
        >>> from pa_preflight import plan
        >>> model = TinyClassifier(num_features=4, num_classes=3)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[])
        >>> data = make_classification(80, num_features=4, num_classes=3)
        >>> planned = plan(trainer, data, num_epochs=3, eval_dataset=data)
        >>> planned.updates, [evaluation.update for evaluation in planned.evaluations]
        (30, [10, 20, 30])
    """

    config: TrainerRunConfig
    device: str
    parameters: tuple[PlannedParameters, ...]
    samples: int | None
    epochs: tuple[PlannedEpoch, ...]
    updates: int
    evaluations: tuple[PlannedEvaluation, ...]
    saves: tuple[PlannedSave, ...]
    rates: tuple[PlannedRates, ...]
    memory: PlannedMemory
    disk: PlannedDisk | None
    seconds: PlannedSeconds
    notes: tuple[str, ...]

    @override
    def __str__(self) -> str:
        """Return a table of about 25 lines."""
        return "\n".join(_lines_of(self))

    def plot_rates(self, path: str | Path, *, dark: bool = False) -> Path:
        """Draw the learning rates of all updates, a curve for each parameter group.

        Args:
            path: The file to save, a PNG unless it has another ending. Missing folders are created.
            dark: Draw on a dark background, for dark pages or slides.

        Returns:
            The path of the picture.

        Raises:
            ConfigurationError: No learning rates are planned; a note says why.
            ImportError: matplotlib is not installed (``pip install "pa-preflight[plot]"``).
        """
        from pa_preflight._plan_picture import draw_rates  # with matplotlib, for those who draw

        curves = {
            f"{group.optimizer}, group {group.group}": [(point.update, point.rate) for point in group.course]
            for group in self.rates
        }
        return draw_rates(curves, path, dark=dark)


def _lines_of(plan: Plan) -> Iterator[str]:
    config = plan.config
    rows = [("run", f"{config.num_processes} process on {plan.device}, mixed precision {config.mixed_precision}")]
    rows += _first_rows("parameters", _parameters(plan))
    samples = "" if plan.samples is None else f"{plan.samples:,} samples in the first epoch, "
    update = f"{config.gradient_accumulation_steps:,} accumulated = {config.train_total_batch_size:,} an update"
    samples += f"{config.train_per_device_batch_size:,} x {update}"
    rows += [("samples", samples)]
    rows += _first_rows("epochs", _epochs(plan))
    rows += _first_rows("evaluations", _evaluations(plan))
    saved = [save.update for save in plan.saves]
    deleted = [save.update for save in plan.saves for _ in save.deletes]
    rows += (
        [("states", f"{size_of(plan.memory.saved_state)} each, saved after update {_listed(saved)}")] if saved else []
    )
    rows += [("states", f"deleted after update {_listed(deleted)}")] if deleted else []
    if plan.disk is not None:
        sizes = tuple(map(size_of, (plan.disk.peak, plan.disk.at_end, plan.disk.free)))
        rows.append(("states", "{} in all at the most, {} at the end; {} are free".format(*sizes)))
    rows += _first_rows("learning rate", _rates(plan))
    rows += [*(("memory", row) for row in _memory(plan)), ("time", _time(plan.seconds))]
    rows += [("left out", note) for note in plan.notes]
    for title, of_title in groupby(rows, key=lambda row: row[0]):
        for number, (_, text) in enumerate(of_title):
            yield f"{'' if number else title:<15}{text}"


def _parameters(plan: Plan) -> Iterator[str]:
    yield f"{'':<20}{'trained':>16}{'':>10}{'frozen':>16}"
    for part in plan.parameters:
        trained, frozen = (f"{number:>16,}" for number in (part.trained, part.frozen))
        memory, of_frozen = (f"{size_of(number):>10}" for number in (part.trained_bytes, part.frozen_bytes))
        yield f"{part.name or '(its own)':<20}{trained}{memory}{frozen}{of_frozen}"


def _epochs(plan: Plan) -> Iterator[str]:
    yield f"{len(plan.epochs):,} with {plan.updates:,} updates in all"
    for (batches, updates), equal in groupby(plan.epochs, key=lambda epoch: (epoch.batches, epoch.updates)):
        yield f"{len(list(equal)):,} x {_counted(batches)} in {updates:,} update{'s' * (updates != 1)}"


def _evaluations(plan: Plan) -> Iterator[str]:
    by_kind: dict[tuple[str, str | None, int | None], list[int]] = {}
    for evaluation in plan.evaluations:
        by_kind.setdefault((evaluation.kind, evaluation.name, evaluation.batches), []).append(evaluation.update)
    for (kind, name, batches), updates in by_kind.items():
        yield f"{_KINDS[kind]}, {name or 'the set'}: {_counted(batches)}, after update {_listed(updates)}"


def _rates(plan: Plan) -> Iterator[str]:
    for group in plan.rates:
        shown = ", ".join(_shortened([f"{point.rate:.4g} at update {point.update:,}" for point in group.points]))
        yield f"{group.optimizer}, group {group.group}: {shown}"


def _memory(plan: Plan) -> Iterator[str]:
    names = ("weights", "gradients", "optimizer", "activations")
    yield ", ".join(f"{name} {size_of(getattr(plan.memory, name))}" for name in names)
    peaks = size_of(plan.memory.peak), size_of(plan.memory.peak_on_accelerator)
    yield "{} at the peak of an update; on an accelerator {}".format(*peaks)


def _time(seconds: PlannedSeconds) -> str:
    parts = f"updates {_duration(seconds.updates)}, evaluations {_duration(seconds.evaluations)}"
    return f"an update {_duration(seconds.update)}, all {parts}, without callbacks and saves"


def _first_rows(title: str, texts: Iterator[str]) -> list[tuple[str, str]]:
    rows = [(title, text) for text in texts]
    return rows if len(rows) <= _MOST else [*rows[: _MOST - 1], (title, f"and {len(rows) - _MOST + 1:,} more")]


def _listed(updates: list[int]) -> str:
    times = f" ({len(updates):,} times)" if len(updates) > _MOST else ""
    return ", ".join(_shortened([f"{update:,}" for update in updates])) + times


def _shortened(items: list[str]) -> list[str]:
    return items if len(items) <= _MOST else [*items[: _MOST - 2], "...", items[-1]]


def _counted(batches: int | None) -> str:
    return "an unknown number of batches" if batches is None else f"{batches:,} batch{'es' * (batches != 1)}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    if seconds < _MINUTE:
        return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
    minutes = round(seconds / _MINUTE)
    return f"{minutes} min" if minutes < _MINUTE else f"{minutes // _MINUTE:,} h {minutes % _MINUTE} min"


def size_of(number: float | None) -> str:
    if number is None:
        return "unknown"
    unit = min(int(math.log(max(number, 1), _KIB)), len(_UNITS) - 1)
    return f"{number / _KIB**unit:.4g} {_UNITS[unit]}"
