"""Short runs: memorizing a single batch, and inputs that must distinguish their targets from others."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, Subset
from typing_extensions import override

from pa_core import AnyTrainer, BatchOutput, StopTrainingError, TrainerCallback
from pa_preflight._findings import Finding, noticed
from pa_preflight._models import BATCH_NORMS, in_evaluation_mode
from pa_preflight._registry import Level
from pa_preflight._samples import Job, inputs_of, subset, targets_of
from pa_preflight._tensors import features_of

_UPDATES, _SECONDS = 100, 15.0

_ENOUGH, _NOTHING, _GROWN, _LEARNT = 0.05, 0.001, 3.0, 1e-3

_WELL, _BADLY, _USUAL_MOMENTUM = 0.1, 0.6, 0.1

_FEWEST, _MOST, _CLASSES, _WIDEST = 150, 400, 50, 64

_SHUFFLES, _NOTICED, _CLEAR, _NEIGHBOURS = 100, 2.5, 6.0, 5

_MORE_UPDATES, _MORE_SECONDS, _ROLLS, _BETTER = 400, 8.0, 19, 3.0

_TOKENS = 2048

_ADVICE = (
    "Look for the place where inputs and targets lose each other: only one of them shuffled or sorted, an index off by "
    "one, noise that is drawn again."
)


class _TimeLimit(TrainerCallback):
    """Ends a run when time is up."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: BatchOutput, **kwargs: Any) -> None:
        if time.monotonic() > self._until:
            raise StopTrainingError("Time is up.")


class _Losses(_TimeLimit):
    """Records the loss of each step, and of the last batch in both modes."""

    def __init__(self, model: nn.Module, calculate_loss: Callable[[Any], Tensor] | None) -> None:
        super().__init__(_SECONDS)
        self._model, self._calculate_loss = model, calculate_loss
        self.losses: list[Tensor] = []
        self.in_evaluation = self.in_training = math.nan  # with the same weights
        self._batch: Any = None

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: BatchOutput, **kwargs: Any) -> None:
        self.losses.append(batch_output["loss"].detach())
        self._batch = batch
        super().on_train_step_end(trainer, batch, batch_output)

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Compare the modes after the last update, when its graph is gone."""
        if len(self.losses) < _UPDATES or self._calculate_loss is None:
            return
        with torch.no_grad():
            self.in_training = float(self._calculate_loss(self._batch))
            with in_evaluation_mode(self._model):
                self.in_evaluation = float(self._calculate_loss(self._batch))


def _train_shortly(job: Job, dataset: Dataset[Any], num_epochs: int) -> None:
    """Train without a scheduler, with an update for each batch.

    Args:
        job: The run, whose trainer and arguments are used.
        dataset: The dataset to train on.
        num_epochs: The number of epochs.
    """
    size, collate_fn = job.batches(job.train)
    changed: dict[str, Any] = {
        "train_dataset": dataset,
        "per_device_batch_size": size,
        "collate_fn": collate_fn,
        "train_dataloader_kwargs": {"num_workers": 0},
        "num_epochs": num_epochs,
        "max_num_train_steps": None,
        "gradient_accumulation_steps": 1,
        "samples_per_update": size if job.trainer.reproducible else None,
        "create_scheduler_fn": None,
        "step_scheduler": "update",
        "order": None,
    }
    job.trainer.scheduler = None
    job.trainer.train(**{**job.asked, **changed})


def check_learning(job: Job, *, is_scheduled: bool) -> Iterator[Finding]:
    """Yield findings about the loss of a single batch in 100 updates, without a scheduler.

    Args:
        job: The run, whose dataset has positions.
        is_scheduled: Whether the run has a scheduler, and perhaps never the rate of the optimizer.
    """
    trainer, size = job.trainer, job.batch_size
    is_own = job.has_own_step  # such as a GAN
    noted = _Losses(
        trainer.get_model(), None if is_own else lambda batch: trainer.calculate_train_batch_loss(batch)["loss"]
    )
    with job.undone(noted, data=job.train.dataset):
        _train_shortly(job, subset(job.train.dataset, size), _UPDATES)
    losses = [float(loss) for loss in noted.losses]
    if len(losses) < 10:  # noqa: PLR2004  # too slow to judge
        return
    first, last = losses[0], sorted(losses[-10:])[4]
    rates = [
        float(group["lr"]) for optimizer in trainer.named_optimizers().values() for group in optimizer.param_groups
    ]
    fall = first - last
    are_finite = all(map(math.isfinite, losses))
    if are_finite and abs(first) < _LEARNT:
        return
    level: Level = "note" if is_scheduled or (is_own and are_finite) else "mistake"
    if not are_finite or last > _GROWN * abs(first) + 1:
        yield noticed(
            "rate-too-high",
            f"Trained on a single batch at the learning rate {max(rates):.3g}, the loss grows from {first:.3g} to "
            f"{last:.3g} in {len(losses)} updates.",
            "Search for a rate with pa_schedulers.find_learning_rate.",
            level,
        )
    elif fall < _ENOUGH * abs(first):
        yield noticed(
            "batch-not-learnt",
            f"The model cannot memorise a single batch of {size} samples: at the learning rate {max(rates):.3g}, the "
            f"loss goes from {first:.4g} to {last:.4g} in {len(losses)} updates.",
            "Search for a rate with pa_schedulers.find_learning_rate; if no rate helps, look for a bug that "
            "keeps the model from learning.",
            level if fall < _NOTHING * abs(first) else "note",
        )
    elif _is_other_in_evaluation(first, last, noted) and not _has_slow_norms(trainer.get_model()):
        yield noticed(
            "evaluation-unlike-training",
            f"The model behaves differently in evaluation mode: trained on a single batch, the loss goes from "
            f"{first:.4g} to {last:.4g}, but in evaluation mode, the loss of this batch is {noted.in_evaluation:.4g}.",
            "Look for code in forward() that depends on self.training: dropout has to scale the numbers that it keeps, "
            "and evaluations need the same outputs and statistics as the training.",
        )


def _is_other_in_evaluation(first: float, last: float, noted: _Losses) -> bool:
    """Whether a batch is learnt in training mode only, and the last update has not spoilt both modes."""
    is_learnt = max(last, noted.in_training) < _WELL * first
    return is_learnt and noted.in_evaluation > _BADLY * first


def _has_slow_norms(model: nn.Module) -> bool:
    """Whether running statistics need more batches than this short training has."""
    norms = [module for module in model.modules() if isinstance(module, BATCH_NORMS)]
    return any(module.momentum is None or module.momentum < _USUAL_MOMENTUM for module in norms)


def dependence(inputs: Tensor, targets: Tensor) -> float:
    """Return how much more inputs and targets depend on each other than after shuffling, in standard deviations.

    Args:
        inputs: A table of numbers, with a row for each sample.
        targets: A table of numbers, with a row for each sample.
    """
    table, wanted = _standardised(inputs), _standardised(targets)
    linear = table @ table.T / table.shape[1]
    distances = torch.cdist(table, table).square()
    radial = (-distances / (distances.median() + 1e-12)).exp()
    near = torch.zeros_like(linear).scatter_(
        1, distances.fill_diagonal_(torch.inf).topk(_NEIGHBOURS, largest=False).indices, 1.0
    )
    generator = torch.Generator().manual_seed(0)
    largest = 0.0
    for shuffles in (_SHUFFLES // 10, _SHUFFLES):
        orders = [
            torch.arange(len(wanted)),
            *(torch.randperm(len(wanted), generator=generator) for _ in range(shuffles)),
        ]
        columns = torch.cat([wanted[order] for order in orders], dim=1)
        largest = 0.0
        for kernel in (linear, (1 + linear).square(), radial, (near + near.T) / 2):
            centred = kernel - kernel.mean(0) - kernel.mean(1, keepdim=True) + kernel.mean()
            found = (columns * (centred @ columns)).sum(0).reshape(len(orders), -1).sum(1)
            largest = max(largest, float((found[0] - found[1:].mean()) / (found[1:].std() + 1e-12)))
        if largest > _CLEAR:
            break
    return largest


def _standardised(table: Tensor) -> Tensor:
    centred = table.double() - table.double().mean(0)
    deviation = centred.std(0)
    return (centred / deviation.clamp(min=1e-9))[:, deviation > 1e-9]  # noqa: PLR2004  # constants


def _table_of_targets(targets: Tensor) -> Tensor | None:
    if targets.is_floating_point():
        table = targets.flatten(1) if targets.dim() > 1 else targets[:, None]
        return table if table.shape[1] <= _WIDEST and bool(table.isfinite().all()) else None
    values = sorted(set(map(int, targets))) if targets.dim() == 1 else []
    if not 1 < len(values) <= _CLASSES:
        return None
    return torch.stack([targets == value for value in values], dim=1)


def _table_of_inputs(inputs: Tensor) -> Tensor | None:
    if inputs.is_floating_point():
        return features_of(inputs) if bool(inputs.isfinite().all()) else None
    tokens = inputs.flatten(1).long() if inputs.dim() > 1 else inputs[:, None].long()
    size = int(tokens.max()) + 1
    if inputs.dtype == torch.uint8 or int(tokens.min()) < 0 or size * tokens.shape[1] > _TOKENS:
        return features_of(inputs.float())
    hot = functional.one_hot(tokens, size)
    return torch.cat([hot.flatten(1), hot.sum(1)], dim=1).double()


def _are_unrelated(inputs: Tensor, targets: Tensor) -> bool:
    table, wanted = _table_of_inputs(inputs[:_MOST]), _table_of_targets(targets[:_MOST])
    if table is None or wanted is None:
        return False
    table, wanted = table[:, (table != table[:1]).any(0)], wanted[:, (wanted != wanted[:1]).any(0)]
    return bool(table.shape[1] and wanted.shape[1] and dependence(table, wanted) < _NOTICED)


def check_rows(rows: Sequence[tuple[Tensor, Tensor]]) -> Iterator[Finding]:
    """Yield a finding if the targets of the outputs are independent of the inputs of the model.

    Args:
        rows: For each step, the inputs of the model and the targets of its outputs.
    """
    if len({(inputs.shape[1:], targets.shape[1:], targets.dtype) for inputs, targets in rows}) != 1:
        return
    targets = torch.cat([targets for _, targets in rows])
    is_fixed = len(rows) > 1 and torch.equal(rows[0][1], rows[1][1])  # such as positions in a batch
    if len(targets) >= _FEWEST and not is_fixed and _are_unrelated(torch.cat([inputs for inputs, _ in rows]), targets):
        yield noticed(
            "targets-unrelated-to-inputs",
            f"In {len(targets)} samples of the first steps, the targets of the loss look independent of the inputs of "
            "the model (by four statistical tests), so the model can learn nothing better than a constant.",
            _ADVICE,
        )


class _OtherTargets(Dataset[Any]):
    """Samples with the targets of other samples."""

    def __init__(self, data: Any, positions: Sequence[int], shift: int) -> None:
        self._data, self._positions, self._shift = data, positions, shift

    def __len__(self) -> int:
        return len(self._positions)

    @override
    def __getitem__(self, index: int) -> Any:
        own = self._data[self._positions[index]]
        other = self._data[self._positions[(index + self._shift) % len(self._positions)]]
        return type(own)((*own[:-1], other[-1]))


def check_relation(job: Job) -> Iterator[Finding]:
    """Yield a finding if targets are independent of inputs, by statistical tests and for a trained model.

    Args:
        job: The run, whose dataset has positions.
    """
    train = job.train
    inputs, targets = inputs_of(train), targets_of(train)
    if inputs is None or targets is None or len(targets) < _FEWEST or not isinstance(train.samples[0], tuple):
        return
    if not _are_unrelated(inputs, targets):
        return
    held = train.positions[::4]
    rest = sorted(set(range(len(train.dataset))) - set(held))
    with job.undone(_TimeLimit(_MORE_SECONDS), data=train.dataset):
        _train_shortly(job, Subset(train.dataset, rest), -(-_MORE_UPDATES * job.batch_size // len(rest)))
        shift = max(1, len(held) // (_ROLLS + 1))
        pairs = [_OtherTargets(train.dataset, held, number * shift) for number in range(_ROLLS + 1)]
        losses = [job.evaluate(train, pair)["evaluation_loss"] for pair in pairs]
    own, others = losses[0], torch.tensor(losses[1:], dtype=torch.float64)
    if own > float(others.mean() - _BETTER * others.std()):
        yield noticed(
            "targets-unrelated-to-inputs",
            f"Targets look independent of inputs: four statistical tests on {min(len(targets), _MOST)} samples find no "
            f"relation, and after a short training the loss of {len(held)} other samples is {own:.4g}, no better than "
            f"{float(others.min()):.4g} to {float(others.max()):.4g} with permuted targets.",
            _ADVICE,
        )
