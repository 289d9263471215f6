"""Checks a script: its settings, then some updates, learning a single batch by heart, and an evaluation."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Generic, ParamSpec, overload

from torch import nn
from torch.utils.data import Dataset

from pa_core import Run, Trainer, UnsupportedConfigurationError
from pa_core.user_warnings import warn_user
from pa_preflight._arguments import Trains, arguments_of, evaluated_sets, is_run, require_alone
from pa_preflight._callbacks import check_callbacks, check_states
from pa_preflight._evaluation import check_evaluation
from pa_preflight._fetch_checks import check_fetching
from pa_preflight._findings import Finding, Report, failure, first_line, in_order
from pa_preflight._learning import check_learning, check_relation, check_rows
from pa_preflight._losses import check_all_targets, check_calls
from pa_preflight._models import check_batch_norm, check_layers, check_model, check_running_statistics, modules_of
from pa_preflight._optimizers import check_loss_weights, check_options
from pa_preflight._own_loops import check_run
from pa_preflight._plan import plan_of
from pa_preflight._sample_checks import check_many_samples, check_samples
from pa_preflight._samples import Job, Samples, targets_of
from pa_preflight._set_checks import check_evaluation_samples, check_sets
from pa_preflight._steps import Steps

_P = ParamSpec("_P")

_SIZE = 8
"""A batch size that fits, where the run finds the largest size that fits."""


@overload
def check(
    trainer: Run[Any, Any], *, eval_dataset: Dataset[Any] | Mapping[str, Dataset[Any]] | None = None
) -> Report: ...


@overload
def check(trainer: Trains[_P], *args: _P.args, **kwargs: _P.kwargs) -> Report: ...


def check(trainer: Any, *args: Any, **kwargs: Any) -> Report:
    """Look for mistakes in a training run before the run starts, usually in less than a minute.

    Call it once for a new script, and after changes to the model, the loss or the data. It makes a few updates, with
    experiments on the first batch, trains on a single batch until the model has memorized it, and evaluates some
    samples twice. No callback except ``MoveModulesToDeviceCallback`` is called. Afterwards, everything is restored, as
    after ``trainer.dry_run()``, so you can then call ``trainer.train`` with the same arguments.
    ``checked(trainer).train(...)`` does both, and `plan` predicts the memory and the time of the run.

    For a ``Run``, call it before the ``with`` block. It then checks everything that can be checked without the loop.
    The command ``python -m pa_preflight script.py`` also watches the first updates of the loop.

    Args:
        trainer: The trainer of the run, or a ``Run``.
        *args: The positional arguments of ``trainer.train``.
        **kwargs: The keyword arguments of ``trainer.train``; for a ``Run``, pass the data that its loop evaluates as
            ``eval_dataset``.

    Returns:
        A ``Report`` of the findings; print it, or let ``require_none()`` end the script if there are mistakes.

    Raises:
        ArgumentTypeError: ``trainer`` is not a ``Trainer``, or ``train`` does not take these arguments. The error is
            also a ``TypeError``.
        UnsupportedConfigurationError: There are several processes, or the model is sharded. The error is also a
            ``RuntimeError``.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from torch.utils.data import TensorDataset
        >>> from pa_core import Trainer
        >>> from pa_preflight import check
        >>> _ = torch.manual_seed(0)
        >>> x = torch.randn(64, 4)
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1))
        >>> trainer = Trainer(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), 0.1), callbacks=[])
        >>> report = check(trainer, TensorDataset(x, x[:, :3].argmax(1)), num_epochs=1)
        >>> [finding.name for finding in report.findings]
        ['softmax-before-cross-entropy']
    """
    if is_run(trainer):
        return _check_run(trainer, *args, **kwargs)
    return _check(*arguments_of("check", trainer, args, kwargs))


def _check_run(run: Run[Any, Any], *, eval_dataset: Any = None) -> Report:
    require_alone("check", run)
    report = check_run(run, evaluated_sets(eval_dataset))
    return replace(report, findings=in_order(report.findings))


def _check(trainer: Trainer[Any, Any, Any, Any], given: Mapping[str, Any]) -> Report:
    started = time.monotonic()
    evaluated = evaluated_sets(given["eval_dataset"])
    without = dict.fromkeys(("eval_dataset", "resume_from", "watch_metric"))
    fixed = {"per_device_batch_size": _SIZE} if given["per_device_batch_size"] == "fit" else {}
    asked: dict[str, Any] = {**given, **without, **fixed, "sanity_eval_steps": 0}
    data: Any = asked["train_dataset"]
    findings: list[Finding] = []
    left_out: list[str] = []
    samples: dict[str, Samples] = {}
    with trainer.dry_run(*given.values()):
        try:
            train = Samples(data)
            job = Job(trainer, asked, train)
            findings += _check_parts(trainer, given)
            findings += _check_data(job)
            for name, dataset in evaluated.items():
                samples[name] = Samples(dataset)
                found = list(check_evaluation_samples(train, samples[name], data, dataset))
                found += () if found else check_sets(train, samples[name])
                # the training samples may be among several evaluation sets
                findings += (replace(finding, level="note") if len(evaluated) > 1 else finding for finding in found)
        except Exception as error:
            do = "Fetch a sample of the dataset on its own, dataset[0], and look at the traceback."
            findings.append(failure("Fetching a sample", error, do))
            return Report(findings, left_out, time.monotonic() - started)
    steps = Steps(job)
    if steps.observer.is_training:  # a step has begun, so the arguments are valid
        in_training = steps.observer.in_training - steps.observer.over_lengths
        findings += check_batch_norm(in_training, job.batch_size, job.smallest_batch)
    findings += steps.check()
    findings += _check_lengths(trainer, steps)
    findings = [
        replace(finding, level="note") if _may_be_meant(finding, job, steps) else finding for finding in findings
    ]
    left_out += steps.left_out
    findings += _check_targets(job, steps)
    if steps.error is None and not any(finding.name.endswith("not-finite") for finding in findings):
        findings += _check_learning(job, left_out, is_scheduled=given["create_scheduler_fn"] is not None)
        for drawn in samples.values():
            if drawn.dataset is None:
                left_out.append("the evaluation, because its dataset has no positions (an IterableDataset).")
                continue
            is_random = any(finding.name == "augmentation-in-evaluation" for finding in findings)
            inputs = [tensor for call in steps.observer.model_calls[:1] for tensor in call.inputs]
            findings += check_evaluation(job, drawn, inputs, is_random=is_random)
    callbacks = trainer.callback_handler.callbacks if steps.error is None else []
    of_states, missing = check_states(
        trainer,
        callbacks,
        partial(plan_of, trainer, given, is_timed=False),
        asked,
        is_resuming=given["resume_from"] is not None,
    )
    return Report(in_order([*findings, *of_states]), [*left_out, *missing], time.monotonic() - started)


def _check_data(job: Job) -> Iterator[Finding]:
    # others may mask targets
    is_torch_loss = type(job.trainer.loss_func).__module__ == nn.CrossEntropyLoss.__module__
    yield from check_samples(job.train, job.options, is_torch_loss=is_torch_loss)
    yield from check_many_samples(job.train, job.trainer.get_model(), is_own_step=job.has_own_step)
    yield from check_fetching(job)


def _check_learning(job: Job, left_out: list[str], *, is_scheduled: bool) -> Iterator[Finding]:
    if job.train.dataset is None:
        left_out.append("whether a batch can be memorised, because the dataset has no positions (an IterableDataset).")
        return
    try:
        yield from check_learning(job, is_scheduled=is_scheduled)
        yield from check_relation(job)
    except Exception as error:  # a script that requires all of the data
        left_out.append(f"whether a batch can be memorised: {first_line(error)}")


def _check_targets(job: Job, steps: Steps) -> Iterator[Finding]:
    observer, targets = steps.observer, targets_of(job.train)
    if observer.loss_calls:
        yield from check_all_targets(observer.loss_calls[:1], targets)
    yield from check_calls(observer.function_calls, targets)
    if job.has_own_step:
        yield from check_rows(observer.rows)


def _check_parts(trainer: Trainer[Any, Any, Any, Any], given: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield findings about model and optimizers, before any batch."""
    model, optimizers = trainer.get_model(), trainer.named_optimizers()
    yield from check_model(model, modules_of(trainer), optimizers)
    yield from check_layers(model)
    has_schedulers = given["create_scheduler_fn"] is not None or bool(trainer.named_schedulers())
    yield from check_loss_weights(trainer.loss_func, optimizers)
    yield from check_options(optimizers, has_schedulers=has_schedulers)


def _check_lengths(trainer: Trainer[Any, Any, Any, Any], steps: Steps) -> Iterator[Finding]:
    """Yield findings about settings that do not fit the number of updates of the run."""
    yield from check_running_statistics(trainer.get_model(), steps.planned.updates)
    first_loss = float(steps.observer.losses[0]) if steps.observer.losses else None
    yield from check_callbacks(trainer.callback_handler.callbacks, steps.planned, first_loss)


def _may_be_meant(finding: Finding, job: Job, steps: Steps) -> bool:
    """Whether an unusual step may do this on purpose."""
    if finding.name == "augmentation-in-evaluation":  # a step that compares random views of a sample
        return job.has_own_step
    # a teacher that follows the weights of a student
    is_of_model = finding.name == "parameters-outside-optimizer" and finding.level == "mistake"
    return is_of_model and steps.error is None and not steps.observer.reached_outside


class _Checked(Generic[_P]):
    """A trainer that checks before it trains.

    Args:
        trainer: The trainer.
    """

    def __init__(self, trainer: Trains[_P]) -> None:
        self._trainer = trainer

    def train(self, *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Check the run, print the report, and train if there are no mistakes.

        Args:
            *args: The positional arguments of ``trainer.train``.
            **kwargs: The keyword arguments of ``trainer.train``.

        Raises:
            ConfigurationError: There are mistakes; nothing was trained.
        """
        try:
            report = check(self._trainer, *args, **kwargs)
        except UnsupportedConfigurationError as error:
            warn_user(f"The run is not checked: {error}")
        else:
            report.require_none()
            print(report)  # noqa: T201  # the script wants the report
        self._trainer.train(*args, **kwargs)


def checked(trainer: Trains[_P]) -> Trains[_P]:
    """Return an object that checks a run and then trains, in a single line: ``checked(trainer).train(dataset, ...)``.

    Its ``train`` method takes the arguments of ``trainer.train``. It prints the report of `check`, and then trains,
    unless there are mistakes. A run with warnings begins. On several processes, and with a sharded model, the check is
    skipped with a warning, so the line can stay in your script.

    Args:
        trainer: The trainer.

    Returns:
        An object with the ``train`` method. If there are mistakes, this method raises a ``ConfigurationError`` with the
        report as its message, and trains nothing.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from torch.utils.data import TensorDataset
        >>> from pa_core import ConfigurationError, Trainer
        >>> from pa_preflight import checked
        >>> _ = torch.manual_seed(0)
        >>> x = torch.randn(64, 4)
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1))
        >>> trainer = Trainer(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), 0.1), callbacks=[])
        >>> try:
        ...     checked(trainer).train(TensorDataset(x, x[:, :3].argmax(1)), num_epochs=1)
        ... except ConfigurationError as error:
        ...     print(str(error).splitlines()[2].partition(":")[0])
        softmax-before-cross-entropy
    """
    return _Checked(trainer)
