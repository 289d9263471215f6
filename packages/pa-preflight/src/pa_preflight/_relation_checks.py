"""Whether targets say anything of inputs: the dependence of samples, compared with shuffled samples."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset, Subset
from typing_extensions import override

from pa_core import AnyTrainer, BatchOutput, MoveModulesToDeviceCallback, StopTrainingError, Trainer, TrainerCallback
from pa_preflight._data_checks import Samples
from pa_preflight._findings import Finding, noticed
from pa_preflight._learning import arguments_of_short_run
from pa_preflight._tables import features_of, inputs_of, targets_of

_FEWEST, _MOST, _CLASSES, _WIDEST = 150, 400, 50, 64
_SHUFFLES, _NOTICED, _CLEAR, _NEIGHBOURS = 100, 2.5, 6.0, 5
_UPDATES, _SECONDS, _ROLLS, _LEARNT = 400, 8.0, 19, 3.0
_TOKENS = 2048
_ADVICE = (
    "Look at where inputs and targets part ways: shuffled or sorted one without the other, an index off by one, noise "
    "that is drawn again."
)


def dependence(inputs: Tensor, targets: Tensor) -> float:
    """Return how much more inputs and targets have to do with each other than shuffled ones, in standard deviations.

    Args:
        inputs: A table of numbers, with a row for each sample.
        targets: Another one.
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
    return torch.stack([targets == one for one in values], dim=1)


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
    """Yield a finding if what a step compares outputs with has nothing to do with what the model gets.

    Args:
        rows: Of each step, what the model got and what its output was compared with.
    """
    if len({(inputs.shape[1:], targets.shape[1:], targets.dtype) for inputs, targets in rows}) != 1:
        return
    targets = torch.cat([one for _, one in rows])
    is_fixed = len(rows) > 1 and torch.equal(rows[0][1], rows[1][1])  # such as the positions in a batch
    if len(targets) >= _FEWEST and not is_fixed and _are_unrelated(torch.cat([one for one, _ in rows]), targets):
        yield noticed(
            "targets-unrelated-to-inputs",
            f"In {len(targets)} samples of the first steps, what the loss compares outputs with is independent of what "
            "the model gets, as far as four tests tell: nothing can be learnt that is better than a constant.",
            _ADVICE,
        )


class _Ends(TrainerCallback):
    def __init__(self) -> None:
        self._until = time.monotonic() + _SECONDS

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: BatchOutput, **kwargs: Any) -> None:
        if time.monotonic() > self._until:
            raise StopTrainingError("Time is up.")


class _OtherTargets(Dataset[Any]):
    """Samples with the targets of other ones."""

    def __init__(self, data: Any, positions: Sequence[int], shift: int) -> None:
        self._data, self._positions, self._shift = data, positions, shift

    def __len__(self) -> int:
        return len(self._positions)

    @override
    def __getitem__(self, index: int) -> Any:
        own = self._data[self._positions[index]]
        other = self._data[self._positions[(index + self._shift) % len(self._positions)]]
        return type(own)((*own[:-1], other[-1]))


def check_relation(trainer: Trainer[Any, Any, Any, Any], train: Samples, asked: dict[str, Any]) -> Iterator[Finding]:
    """Yield a finding if targets have nothing to do with inputs: tests say so, and the model cannot tell them apart.

    Args:
        trainer: The trainer.
        train: The training data, with positions.
        asked: The arguments of the run.
    """
    inputs, targets = inputs_of(train), targets_of(train)
    if inputs is None or targets is None or len(targets) < _FEWEST or not isinstance(train.samples[0], tuple):
        return
    if not _are_unrelated(inputs, targets):
        return
    size, collate_fn = train.batches(asked, asked["train_dataloader_kwargs"] or {})
    held = train.positions[::4]
    rest = sorted(set(range(len(train.dataset))) - set(held))
    num_epochs = -(-_UPDATES * size // len(rest))
    changed = arguments_of_short_run(trainer, Subset(train.dataset, rest), size, collate_fn, num_epochs=num_epochs)
    losses: list[float] = []
    with (
        trainer.dry_run(train.dataset, *asked.values()),
        trainer.callback_handler.replaced_by([MoveModulesToDeviceCallback, _Ends()]),
    ):
        trainer.scheduler = None
        trainer.train(**{**asked, **changed})
        for shift in range(_ROLLS + 1):
            pairs = _OtherTargets(train.dataset, held, shift * max(1, len(held) // (_ROLLS + 1)))
            losses.append(trainer.evaluate(pairs, size, {"num_workers": 0}, collate_fn)["evaluation_loss"])
    own, others = losses[0], torch.tensor(losses[1:], dtype=torch.float64)
    if own > float(others.mean() - _LEARNT * others.std()):
        yield noticed(
            "targets-unrelated-to-inputs",
            f"Targets look independent of inputs: four tests on {min(len(targets), _MOST)} samples see no relation, "
            f"and after a short training the loss of {len(held)} other samples is {own:.4g}, where permuted targets "
            f"have {float(others.min()):.4g} to {float(others.max()):.4g}.",
            _ADVICE,
        )
