"""Makes some updates as the run would, and experiments with the first batch."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from pa_core import BatchMismatchError, Trainer
from pa_data import is_in_memory
from pa_data.orders import Order
from pa_data.rng import restored_rng_states
from pa_preflight._arguments import ignore, trial, with_methods
from pa_preflight._batch_checks import (
    check_batch,
    check_outputs,
    check_parts,
    check_step,
    is_of_model,
)
from pa_preflight._findings import Finding, failure, first_line, noticed
from pa_preflight._first_batch import FirstBatch
from pa_preflight._losses import check_loss, check_sigmoid
from pa_preflight._models import (
    batches_of_norms,
    check_frozen_norms,
    check_gradients,
    check_progress,
    check_units,
    not_in_training_mode,
)
from pa_preflight._optimizers import Movement, check_decay, check_schedules
from pa_preflight._outputs import check_dependence, check_output_experiments
from pa_preflight._plan_rates import PlannedRun
from pa_preflight._samples import Job
from pa_preflight._watching import KeptGraphs, Observer, RecomputedNorms, Routing

_UPDATES = 10
"""Enough to see layers that are left out at random."""

_SLOW = 0.005
"""The seconds for a batch above which workers are worthwhile."""

_PART = 100_000
"""The numbers of a model that are processed at once."""


class Steps:
    """The first updates of a run.

    Args:
        job: The run.

    Attributes:
        trainer: The trainer.
        findings: The findings in the first batch.
        observer: The observations.
        planned: The updates and rates of the run.
        left_out: The checks that could not be made, with the reasons.
        error: The error that ended the updates, if any.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self.trainer = trainer = job.trainer
        asked = job.asked
        self.findings: list[Finding] = []
        self.left_out: list[str] = []
        model = trainer.get_model()
        self._first: FirstBatch | None = None
        optimizers = list(trainer.named_optimizers().values())
        self.observer = Observer(model, optimizers, self._note, _UPDATES, self._experiment)
        self.error: Exception | None = None
        self.has_changed = False
        before, norms = _numbers_of(model), batches_of_norms(model)
        order: Order | None = asked["order"]
        if order is not None and order.makes_batches:  # the batch size is only for evaluations, which are left out
            usual = inspect.signature(Trainer.train).parameters["per_device_batch_size"].default
            asked = {**asked, "per_device_batch_size": usual}
        self.planned = PlannedRun(trainer, asked)
        self._movement = Movement(trainer.named_optimizers())
        self._of_weights: list[Finding] = []
        graphs, self._routing = KeptGraphs(model), Routing(model)
        recomputed = RecomputedNorms(model)
        watching = [self.planned, graphs, recomputed, self.observer]
        with trial(trainer, *watching, self._routing, data=asked.values()):  # the routing does not watch experiments
            hooks = [optimizer.register_step_pre_hook(self._note_gradients) for optimizer in optimizers]
            try:
                trainer.train(**asked)
            except Exception as error:
                self.error = error
            finally:
                self.observer.close()
                self._routing.close()
                for hook in hooks:
                    hook.remove()
            self.has_changed = before != _numbers_of(model)
            if self.error is None and self.has_changed:
                self._of_weights += check_units(model)
                self._of_weights += check_frozen_norms(model, norms)
            self._of_weights += graphs.check()
            self._of_weights += recomputed.check()

    def _note(self, batch: Any, loss: Tensor) -> None:
        observer = self.observer
        for call in observer.loss_calls:
            found = check_loss(call)
            if not is_of_model(call, observer.model_calls):  # margins and scores have no usual size
                found = (
                    replace(finding, level="note") if finding.name == "loss-at-start" else finding for finding in found
                )
            self.findings += found
        self._first = FirstBatch(
            self._job,
            batch,
            loss.detach(),
            observer.first_modes,
            list(observer.model_calls),
            list(observer.loss_calls),
            list(observer.first_inputs),
        )

    def _note_gradients(self, optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        self._movement.note(optimizer)
        if not self._of_weights:
            self._of_weights += check_decay({"": optimizer}, self.trainer.get_model())

    def _experiment(self) -> None:
        first = self._first
        if first is None or any(finding.name == "targets-not-finite" for finding in self.findings):
            return
        parts = check_batch, check_output_experiments, check_step, self._check_outputs, check_parts
        with with_methods(self.trainer, log=ignore):  # a step may log a name only once, and the experiments repeat it
            for part in parts:
                self._try(part, first)

    def _try(self, experiment: Callable[[FirstBatch], Iterator[Finding]], first: FirstBatch) -> None:
        try:
            with restored_rng_states(self.trainer.device):
                self.findings += experiment(first)
        except Exception as error:  # a step that cannot be repeated, or requires certain batches
            reason = f"experiments with the first batch: {first_line(error)}"
            self.left_out += [reason] if reason not in self.left_out else []

    def _check_outputs(self, first: FirstBatch) -> Iterator[Finding]:
        names = {finding.name for finding in self.findings}
        yield from (finding for finding in check_dependence(first) if finding.name not in names)

    def check(self) -> Iterator[Finding]:
        """Yield the findings."""
        yield from self.findings
        if self.error is not None:
            if self.findings:
                return
            failed = [call for call in self.observer.loss_calls if call.value is None]
            explained = [finding for call in failed for finding in check_loss(call)]
            do = "Train a single update, with max_num_train_steps=1, and look at the traceback."
            plain = failure("The first update", self.error, do)
            if any(
                not type(callback).__module__.startswith("pa_") for callback in self.trainer.callback_handler.callbacks
            ):
                plain = replace(plain, saw=f"{plain.saw} Callbacks were not called.", level="note")
            if isinstance(self.error, BatchMismatchError):
                plain = noticed("targets-broadcast", f"{plain.saw} {self.error.given}.", self.error.do)
            yield from explained or [plain]
            return
        yield from self._check_updates()

    def _check_updates(self) -> Iterator[Finding]:
        observer = self.observer
        if not all(observer.is_training):
            yield not_in_training_mode("Call model.train(); the default train_epoch_start does.")
        yield from check_progress(
            observer.rates,
            len(observer.rates),
            has_changed=self.has_changed,
            do="Look for an overridden optimizer_step that does not call the optimizer, and for weights that are "
            "replaced.",
        )
        if observer.keeps_gradients:
            yield noticed(
                "gradients-not-cleared",
                "Gradients are not cleared after an update, so the next update adds to them.",
                "Look for an overridden optimizer_zero_grad that does not call zero_grad.",
            )
        yield from self._of_weights
        yield from check_schedules(self.planned)
        yield from self._movement.check(
            self.planned, self._job.asked["gradient_clip_norm"], self._job.asked["gradient_clip_value"]
        )
        yield from check_gradients(
            observer.model, observer.stepped - observer.with_gradient, self._routing.may_leave_out
        )
        yield from check_sigmoid(observer.loss_calls)
        yield from check_outputs(observer.model_calls, len(observer.losses))
        yield from self._check_fetching()

    def _check_fetching(self) -> Iterator[Finding]:
        observer = self.observer
        options = self._job.options
        data = self._job.asked["train_dataset"]
        if not observer.fetching or isinstance(data, DataLoader) or is_in_memory(data):
            return
        fetching, computing = min(observer.fetching), min(observer.computing)
        workers: int = options.get("num_workers", 0)
        most = min(round(fetching / computing) + 1, os.cpu_count() or 1)
        if fetching > max(_SLOW, computing) and workers < most:
            yield noticed(
                "workers-are-the-bottleneck",
                f"Steps wait for data: fetching a batch takes {1000 * fetching:.0f} ms, the rest of the step "
                f"{1000 * computing:.0f} ms.",
                f"Pass num_workers={most} in train_dataloader_kwargs.",
            )


@torch.no_grad()
def _numbers_of(model: nn.Module) -> list[tuple[float, float]]:
    """Return numbers that distinguish weights from others; a copy of the weights would need memory."""
    flat = [parameter.detach().flatten() for parameter in model.parameters()]
    parts = (weights[start : start + _PART].double() for weights in flat for start in range(0, len(weights), _PART))
    return [(float(part.sum()), float(part.square().sum())) for part in parts]
