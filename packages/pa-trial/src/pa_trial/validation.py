"""A validation: by batches on all processes, or by the whole dataset on the chief."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader

from pa_trial.callback import PyTorchCallback
from pa_trial.callback_calls import CallbackCalls
from pa_trial.context_parts import ContextParts
from pa_trial.fit_options import FitOptions
from pa_trial.trial import PyTorchTrial
from pa_trial.trial_data import TrialData
from pa_trial.trial_methods import batch_evaluation, evaluates_batches
from pa_trial.types import Metrics
from pa_trial.validation_metrics import ValidationMetrics, metrics_of_full_dataset


class Validation:
    """Validates a trial, with its models in eval mode and without gradients.

    The models stay in eval mode until the next workload begins.

    Args:
        trial: The trial.
        parts: The parts of its context.
        data: Its loaders.
        calls: Its callbacks.
        options: The arguments of ``fit``; in test mode, each process validates on a single batch.
    """

    def __init__(
        self, trial: PyTorchTrial[Any], parts: ContextParts, data: TrialData, calls: CallbackCalls, options: FitOptions
    ) -> None:
        self._trial = trial
        self._parts = parts
        self._data = data
        self._calls = calls
        self._max_batches = 1 if options.test_mode else None
        self._weigh_by_records = options.weigh_by_records
        self._by_batch = evaluates_batches(trial)
        self._evaluate = batch_evaluation(trial)

    @torch.no_grad()
    def run(self) -> Metrics:
        """Validate, and return the metrics, which are the same on all processes."""
        self._parts.trained.set_training(False)
        self._parts.reducers.reset()
        self._calls.call(PyTorchCallback.on_validation_start)
        metrics = self._by_batches() if self._by_batch else self._by_full_dataset()
        self._calls.call(PyTorchCallback.on_validation_end, metrics)
        return metrics

    def _by_batches(self) -> Metrics:
        metrics = ValidationMetrics(self._trial.evaluation_reducer(), weigh_by_records=self._weigh_by_records)
        self._calls.call(PyTorchCallback.on_validation_epoch_start)
        batches: Iterable[Any] = islice(self._data.validation_batches(), self._max_batches)
        if self._parts.experimental.moves_batches:
            batches = map(self._parts.mover, batches)
        for batch_idx, batch in enumerate(batches):
            returned = self._evaluate(batch, batch_idx)
            metrics.add(returned, self._trial.get_batch_length(batch) if self._weigh_by_records else 1)
        self._calls.call(PyTorchCallback.on_validation_epoch_end, metrics.outputs())
        payloads, of_reducers = self._parts.reducers.exchange(metrics.payload(), training=False)
        return metrics.reduce(payloads) | of_reducers

    def _by_full_dataset(self) -> Metrics:
        """Validate on the chief, while the others wait for its metrics."""
        found: Metrics = {}
        if self._parts.distributed.rank == 0:
            loader: TorchDataLoader[Any] = self._data.full_validation_loader
            found = metrics_of_full_dataset(self._trial.evaluate_full_dataset(data_loader=loader))
        of_each, of_reducers = self._parts.reducers.exchange(found, training=False)
        return of_each[0] | of_reducers
