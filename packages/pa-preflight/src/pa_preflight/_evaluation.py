"""Evaluates some batches twice, and compares the results."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from typing_extensions import override

from pa_core import AnyTrainer, TrainerCallback
from pa_data.rng import seed_rng
from pa_preflight._arguments import is_overridden
from pa_preflight._findings import Finding, failure, noticed
from pa_preflight._first_batch import outputs_replaced
from pa_preflight._samples import Job, Samples, spread
from pa_preflight._tensors import flipped, is_same, scales_that_differ, tensors_in, with_tensors

_BATCHES = 4

_QUALITIES = ("acc", "auc", "correct", "dice", "f1", "iou", "mae", "mse", "precision", "r2", "recall", "rmse", "top")
"""Parts of the names of metrics that depend on the outputs of the model."""

_SMOOTH = 0.1


class _Watch(TrainerCallback):
    """Records the mode of the model, and its inputs."""

    def __init__(self) -> None:
        self.was_training = False
        self.inputs: list[Tensor] = []

    @override
    def on_eval_step_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        model = trainer.get_model()
        self.was_training |= model.training
        if self.inputs:
            return

        def note(_model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.inputs += tensors_in((args, kwargs))
            handle.remove()

        handle = model.register_forward_pre_hook(note, with_kwargs=True)


def check_evaluation(job: Job, samples: Samples, train_inputs: list[Tensor], *, is_random: bool) -> Iterator[Finding]:
    """Yield findings about an evaluation.

    Args:
        job: The run.
        samples: Samples of the evaluation set, whose dataset has positions.
        train_inputs: The inputs of the model in training.
        is_random: Whether the samples are known to change, so that results cannot be compared.
    """
    has_own_step = is_overridden(job.trainer, "calculate_eval_batch_loss")
    results: list[dict[str, float]] = []
    watches = _Watch(), _Watch()
    some = spread(samples.dataset, _BATCHES, job.batches(samples)[0])
    try:
        for seed, watch in enumerate(watches):
            with job.undone(watch, data=samples.dataset):
                seed_rng(seed)
                results.append(job.evaluate(samples, some))
    except Exception as error:
        yield failure("The evaluation", error, "Call trainer.evaluate alone, and look at the traceback.")
        return
    if not is_random and has_own_step:
        yield from _check_metrics(job, samples, some, results[0])
    inputs = watches[0].inputs
    are_same = len(inputs) == len(watches[1].inputs) and all(map(is_same, inputs, watches[1].inputs))
    if watches[0].was_training:
        yield noticed(
            "trains-in-evaluation",
            "The model is in training mode when it is evaluated: dropout is on, and BatchNorm learns from the samples.",
            "Call model.eval(); the default eval_epoch_start does.",
        )
    elif not is_random and not _agree(*results):
        yield noticed(
            "evaluation-not-repeatable",
            f"Two evaluations of the same weights differ: {_shown(results[0])}, then {_shown(results[1])}.",
            "Look for dropout or noise that ignores self.training.",
            # a collate_fn may mask tokens at random
            "note" if has_own_step or not are_same else "mistake",
        )
    for trained, other in zip(train_inputs, inputs, strict=False):
        yield from _check_scale(trained, other)


def _check_metrics(job: Job, samples: Samples, some: Dataset[Any], before: dict[str, float]) -> Iterator[Finding]:
    """Replace the outputs of the model: a metric of their quality must change."""
    names = {name for name in before if any(part in name.lower() for part in _QUALITIES)}
    for change in _CHANGES:
        if not names:
            return
        with (
            job.undone(data=samples.dataset),
            outputs_replaced(job.trainer.get_model(), partial(with_tensors, change=change)),
        ):
            seed_rng(0)
            try:
                changed = job.evaluate(samples, some)
            except Exception:  # a step that checks its outputs
                return
        names = {name for name in names if changed.get(name) == before[name]}
    for name in sorted(names):
        yield noticed(
            "metric-does-not-depend-on-outputs",
            f"{name} does not depend on the outputs of the model: it is {before[name]:.6g} even when they are negated, "
            "swapped between samples, or replaced by noise.",
            "Look at how predictions are made from outputs: the argmax of a single column is always 0.",
        )


def _negated(tensor: Tensor) -> Tensor:
    return -tensor if tensor.is_floating_point() else tensor


def _noise(tensor: Tensor) -> Tensor:
    return 10 * torch.randn_like(tensor) if tensor.is_floating_point() else tensor


def _agree(metrics: dict[str, float], other: dict[str, float]) -> bool:
    return all(
        math.isnan(value) or math.isclose(value, other.get(name, math.nan), rel_tol=1e-6)
        for name, value in metrics.items()
    )


def _shown(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.6g}" for name, value in metrics.items())


def _check_scale(train: Tensor, evaluated: Tensor) -> Iterator[Finding]:
    if not train.is_floating_point() or not evaluated.is_floating_point() or train.shape[1:] != evaluated.shape[1:]:
        return
    if _is_series(train):  # a series may go far in time, but with steps of the same size
        train, evaluated = train.diff(dim=1), evaluated.diff(dim=1)
    scales = scales_that_differ(train, evaluated)
    if scales is not None:
        yield noticed(
            "evaluation-inputs-differ",
            f"Inputs {scales}",
            "Normalise both datasets in the same way, with the statistics of the training data.",
        )


def _is_series(inputs: Tensor) -> bool:
    """Whether inputs are windows of a series: each number is near the number before it."""
    if inputs.dim() != 2 or inputs.shape[1] < 2:  # noqa: PLR2004  # numbers in a row
        return False
    steps = inputs.double().diff(dim=1).square().mean()
    return bool(steps < _SMOOTH * inputs.double().var())


_CHANGES = (_noise, _negated, flipped)
