"""Checks custom training loops: before the loop, and in its first updates."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from pa_core import AnyTrainer, Run, SaveTrainingStateCallback
from pa_preflight._arguments import trial
from pa_preflight._batch_checks import check_outputs
from pa_preflight._callbacks import check_capture, check_states, stand_ins
from pa_preflight._findings import Finding, Report, failure
from pa_preflight._losses import check_all_targets, check_calls, check_loss, check_sigmoid
from pa_preflight._models import check_batch_norm, check_gradients, check_model, check_progress, not_in_training_mode
from pa_preflight._plan import plan
from pa_preflight._sample_checks import check_samples
from pa_preflight._samples import Samples, targets_of
from pa_preflight._set_checks import check_evaluation_samples
from pa_preflight._tensors import parameters_of
from pa_preflight._watching import Observer

_UPDATES = 10

_LOOP = (
    "the loop: whether gradients come, parameters change, and losses fit. python -m pa_preflight script.py also "
    "watches its first updates."
)

_BEYOND = "evaluations, experiments with a batch, and whether it can be memorised, because the loop is in the script."


def check_run(run: Run[Any, Any], evaluated: Mapping[str, Any]) -> Report:
    """Return the findings that do not require the loop of a run.

    Args:
        run: The run, before its block.
        evaluated: The data that its loop evaluates, by name.
    """
    started = time.monotonic()
    findings, left_out, _ = _before_the_loop(run, evaluated)
    return Report(findings, [_LOOP, *left_out], time.monotonic() - started)


def trained_model(run: Run[Any, Any]) -> nn.Module:
    """Return the models that the optimizers of a run train: its only model, or those whose parameters they have.

    Args:
        run: The run, in its block.
    """
    models = run.named_models()
    trained = set(map(id, parameters_of(run.named_optimizers().values())))
    used = {name: model for name, model in models.items() if not trained.isdisjoint(map(id, model.parameters()))}
    return next(iter(models.values())) if len(models) == 1 else nn.ModuleDict(used)


def _before_the_loop(run: Run[Any, Any], evaluated: Mapping[str, Any]) -> tuple[list[Finding], list[str], Samples]:
    findings: list[Finding] = []
    left_out: list[str] = []
    train = Samples(None)
    callbacks = list[Any](run.callback_handler.callbacks)
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            trial(run, *stand_ins(callbacks), data=evaluated.values()),
            run,
        ):
            model = trained_model(run)
            findings += check_model(model, (), run.named_optimizers())
            if any(isinstance(callback, SaveTrainingStateCallback) for callback in callbacks):
                findings += check_capture(run, folder)
            config, steps = run.run_config, run.epoch_lengths.steps_of(0) if run.epoch_lengths.are_known else 0
            split = getattr(run.train_dataloader, "split", None)
            last = config.train_per_device_batch_size if split is None else int(split.size(max(0, steps - 1)))
            in_training = {type(module) for module in model.modules() if module.training}
            findings += check_batch_norm(in_training, config.train_per_device_batch_size, last)
            data: Any = run.train_dataset
            train = Samples(data)
            findings += check_samples(train, dict(config.train_dl_kwargs), is_torch_loss=False)
            for dataset in evaluated.values():
                findings += check_evaluation_samples(train, Samples(dataset), data, dataset)
    except Exception as error:
        findings.append(failure("The beginning of the run", error, "Look at the traceback without the check."))
    else:
        found, missing = check_states(run, callbacks, partial(plan, run))
        findings, left_out = [*findings, *found], missing
    return findings, left_out, train


class WatchedLoop(Observer):
    """Watches the first updates of a loop, and ends the script after them.

    Args:
        run: The run, in which everything is undone.
        end: Called with the report after enough updates, or when the loop has ended. It does not return, except when an
            error ends the script anyway.
    """

    def __init__(self, run: Run[Any, Any], end: Callable[[Report, BaseException | None], None]) -> None:
        self._begun = time.monotonic()
        self._callbacks = list[Any](run.callback_handler.callbacks)
        self._findings, self._left_out, self._train = _before_the_loop(run, {})
        self._run, self._end = run, end
        self._before: dict[str, Tensor] = {}
        self._modes: dict[nn.Module, bool] = {}
        super().__init__(run.model, (), self._check_losses, _UPDATES)

    def _check_losses(self, _batch: Any, _loss: Tensor) -> None:
        found = [finding for call in self.loss_calls for finding in check_loss(call)]
        # rewards and scores have no usual size
        self._findings += (
            replace(finding, level="note") if finding.name == "loss-at-start" else finding for finding in found
        )
        self._findings += check_all_targets(self.loss_calls[:1], targets_of(self._train))
        self._findings += check_calls(self.function_calls, targets_of(self._train))

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.model, self.called = trained_model(self._run), list(self._run.named_models().values())
        self.optimizers = list(self._run.named_optimizers().values())
        self._before = {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}

    @override
    def on_train_step_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        super().on_train_step_start(trainer, **kwargs)
        self._modes = {}

    @override
    def on_eval_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.close()  # a break may have left a batch

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        self.computing.append(time.perf_counter())
        if update >= _UPDATES:
            self.on_training_run_end(trainer)

    @override
    def on_training_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.close()
        self._end(self._report(), None)

    @override
    def on_exception(self, trainer: AnyTrainer, exception: BaseException, **kwargs: Any) -> None:
        self.close()
        if isinstance(exception, Exception):
            for call in self.loss_calls if not self.losses else []:
                self._findings += check_loss(call)
            self._end(self._report(), exception)

    @override
    def _note_call(self, _model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if torch.is_grad_enabled():
            was_training = self._modes.get(_model, False)  # a GAN calls a model in both modes
            self._modes[_model] = was_training or any(module.training for module in _model.modules())
            super()._note_call(_model, args, kwargs, output)

    def _report(self) -> Report:
        left_out = [*self._left_out, _BEYOND]
        if self._callbacks:
            left_out.append("callbacks, which were not called.")
        return Report([*self._findings, *self._check_updates()], left_out, time.monotonic() - self._begun)

    def _check_updates(self) -> Iterator[Finding]:
        if not all(
            training or not any(parameter.requires_grad for parameter in model.parameters())
            for model, training in self._modes.items()
        ):
            yield not_in_training_mode("Call model.train() after each evaluation of the loop.")
        stays = self.stepped and all(
            torch.equal(parameter, self._before[name]) for name, parameter in self._stepped_parameters()
        )
        do = "Look for weights that are replaced, and for losses that are multiplied by zero."
        yield from check_progress(self.rates, len(self.computing), has_changed=not stays, do=do)
        yield from check_gradients(self.model, self.stepped - self.with_gradient)
        yield from check_sigmoid(self.loss_calls)
        yield from check_outputs(self.model_calls, len(self.losses))

    def _stepped_parameters(self) -> list[tuple[str, Tensor]]:
        parameters = self.model.named_parameters()
        return [
            (name, parameter.detach())
            for name, parameter in parameters
            if id(parameter) in self.stepped and name in self._before
        ]
