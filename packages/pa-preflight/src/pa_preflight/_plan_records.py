"""A plan: the records of a run, and their table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from typing_extensions import override

from pa_core import TrainerRunConfig

_MOST = 5
"""The most rows of the same kind."""

_KIB, _MINUTE = 1024, 60

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

_KINDS = {"sanity": "before the run", "intermediate": "within epochs", "epoch": "after epochs"}


@dataclass(frozen=True)
class PlannedParameters:
    """The parameters of a child of the model; parameters that several children share are counted in the first of them.

    Attributes:
        name: The name of the child, or of a module that was added to the trainer; "" for parameters that belong to the
            model itself.
        trained: The number of trained parameters, which are those that require gradients and belong to an optimizer.
        frozen: The number of other parameters.
        trained_bytes: The memory of the trained parameters.
        frozen_bytes: The memory of the other parameters.
    """

    name: str
    trained: int
    frozen: int
    trained_bytes: int
    frozen_bytes: int


@dataclass(frozen=True)
class PlannedEpoch:
    """An epoch; ``max_num_train_steps`` may cut the last epoch short.

    Attributes:
        batches: The number of batches on this process.
        updates: The number of optimizer updates.
        ends_at: The number of updates that the run has made at the end of the epoch.
    """

    batches: int
    updates: int
    ends_at: int


@dataclass(frozen=True)
class PlannedEvaluation:
    """An evaluation of a dataset.

    Attributes:
        update: The update after which it takes place; 0 means before the first update.
        name: The name of the set; None for a dataset without a name.
        batches: The number of batches on this process; None for data without a length.
        kind: "sanity" before the first epoch, "intermediate" within an epoch, "epoch" after an epoch.
    """

    update: int
    name: str | None
    batches: int | None
    kind: str


@dataclass(frozen=True)
class PlannedSave:
    """A training state that is saved.

    Attributes:
        update: The update after which it is saved.
        name: The folder in ``save_dir``; a number is appended to it if another run has a state with the same name.
        deletes: The states that are deleted once it is saved.
    """

    update: int
    name: str
    deletes: tuple[str, ...]


@dataclass(frozen=True)
class PlannedRate:
    """The learning rate of an update.

    Attributes:
        update: The number of the update, from 1.
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
        points: The rates at the turning points, in order: the first rate, the first occurrence of the highest and of
            the lowest rate, the last rate before the rate falls or rises again, and the last rate of the run.
        course: About 1,000 rates from the whole run, and the points, for a picture.
    """

    optimizer: str
    group: int
    points: tuple[PlannedRate, ...]
    course: tuple[PlannedRate, ...]


@dataclass(frozen=True)
class PlannedMemory:
    """The memory of a run in bytes, without datasets in memory and the libraries of the device.

    Activations and peaks come from an update with tensors that have no values, for the largest of the first batches.
    Updates with larger batches need more memory. These attributes are None if a step needs values, for example for
    ``numpy()``; a note says why.

    Attributes:
        weights: Parameters and buffers.
        gradients: The gradients of all trained parameters.
        optimizer: The state of the optimizers after an update; None if it could not be predicted.
        activations: The memory that the forward pass of a batch keeps for its backward pass.
        peak: The largest memory use at any time within an update, for all of the above, the batch, and the temporary
            tensors of operations. A CPU without AVX-512 has no kernels for convolutions in bf16, and needs up to twice
            as much for them.
        peak_on_accelerator: The same on a GPU, even if there is none: in blocks of 512 bytes, with optimizers that work
            on all parameters at once. It corresponds to ``torch.cuda.max_memory_allocated``, without workspaces of
            cuDNN and cuBLAS; layers that have other kernels there, such as attention and LSTM, need more or less. The
            context of the device and fragmentation need additional memory, often more than a GiB. The number applies to
            the mixed precision of this run: on a CPU, bf16 or none.
        saved_state: The approximate size of a training state on the disk, without the states of callbacks; None if
            ``optimizer`` is None. A state that is saved within an epoch of a custom loader is 15 kB larger.
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
    """The space that the training states of a run need on a disk, in bytes, each of the size ``memory.saved_state``.

    Attributes:
        peak: The largest space at any time, because a new state is saved before an old state is deleted.
        at_end: The space of the states that are kept.
        free: The space that is free now.
    """

    peak: int
    at_end: int
    free: int


@dataclass(frozen=True)
class PlannedSeconds:
    """The seconds that a run takes, without callbacks and saves; None if they could not be measured.

    Attributes:
        update: One update, including its batches.
        updates: All updates.
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
    """The plan of a run: updates, evaluations, training states, learning rates, memory and time; print it.

    ``plan(trainer, ...)`` returns it; you need not create it yourself. ``print(planned)`` shows a table of about 25
    lines.

    Attributes:
        config: The settings of the run, a ``TrainerRunConfig``: the number of processes, the batch size, and the number
            of samples in an update.
        device: The device on which the run trains, such as "cpu" or "cuda:0".
        parameters: A record for each child of the model, with its ``name``, the numbers of ``trained`` and ``frozen``
            parameters, and their ``trained_bytes`` and ``frozen_bytes``.
        samples: The number of samples that the first epoch trains on; None if its loader does not know it.
        epochs: A record for each epoch, with the number of its ``batches`` on this process, the number of its
            ``updates``, and the number of updates that the run has made at its end, ``ends_at``.
        updates: The number of updates of the run.
        evaluations: A record for each evaluation, in their order, with the ``update`` after which it runs, the ``name``
            of the set (None for a dataset without a name), its ``batches`` (None if unknown) and its ``kind``:
            "sanity", "intermediate" or "epoch".
        saves: A record for each training state, in their order, with the ``update`` after which it is saved, its
            ``name``, and the names of the states that it ``deletes``.
        rates: A record for each parameter group, with the names ``optimizer`` and ``group``, the rates at its turning
            ``points``, and about 1,000 rates from its whole ``course``, each with ``update`` and ``rate``;
            ``plot_rates`` draws them. The list is empty if the rates could not be planned.
        memory: The memory of an update in bytes: ``weights``, ``gradients``, ``optimizer``, ``activations``, ``peak``
            and ``peak_on_accelerator``; and ``saved_state``, the size of a training state. A number that could not be
            planned is None.
        disk: The space of the training states in bytes: ``peak``, ``at_end`` and the space that is free now, ``free``.
            It is None if the run saves no states.
        seconds: The duration in seconds, without callbacks and saves: ``update``, ``updates``, ``evaluations`` and
            ``total``. A duration that could not be measured is None.
        notes: The parts that could not be planned, each with the reason, in a sentence.

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
        """Draw the learning rates of all updates, a curve for each parameter group, and save the picture.

        Call it to see whether warm-up and decay end where you expect. It needs matplotlib.

        Args:
            path: The file to save, a PNG unless it has a different file extension, such as ".svg". Missing folders are
                created, and an existing file is replaced.
            dark: Whether to draw on a dark background, for dark pages or slides. The default is False, for a white
                background.

        Returns:
            The path of the picture.

        Raises:
            ConfigurationError: No learning rates could be planned; a note in ``notes`` gives the reason.
            ImportError: matplotlib is not installed (``pip install "pa-preflight[plot]"``).

        Example:
            >>> import tempfile, torch
            >>> from torch import nn
            >>> from pa_core import Trainer
            >>> from pa_core.testing import make_regression
            >>> from pa_preflight import plan
            >>> model = nn.Linear(4, 1)
            >>> trainer = Trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=[])
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     plan(trainer, make_regression(64), num_epochs=2).plot_rates(f"{folder}/rates.png").name
            'rates.png'
        """
        from pa_preflight._plan_picture import draw_rates  # it imports matplotlib, which only drawing needs

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
