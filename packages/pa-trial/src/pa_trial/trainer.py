"""The trainer of trials."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

from pa_distributed import HangDetector
from pa_trial.callback import PyTorchCallback
from pa_trial.callback_calls import CallbackCalls, check_callbacks
from pa_trial.checkpoints import Checkpoints
from pa_trial.context import PyTorchTrialContext
from pa_trial.context_parts import ContextParts, Stage
from pa_trial.errors import ArgumentTypeError, InternalException
from pa_trial.fit_options import DEFAULT_REPORTING_PERIOD, FitOptions
from pa_trial.loop import TrainingLoop
from pa_trial.running import agree_on_seed, closing_in_order, require_same_parts, saving_before_invalid_hp
from pa_trial.stop_requests import StopRequests
from pa_trial.trial import PyTorchTrial
from pa_trial.trial_data import TrialData
from pa_trial.trial_methods import check_trial
from pa_trial.units import Epoch, TrainUnit
from pa_trial.user_warnings import warn_user
from pa_trial.watched_metric import WatchedMetric, choose_watched_metric


class Trainer:
    """Trains a trial; create and use it within the ``with`` block of ``init``.

    It trains subclasses of ``PyTorchTrial`` in the style of Determined. To train a plain model, use
    ``pa_core.Trainer``.

    Args:
        trial: The trial, an instance of a subclass of ``PyTorchTrial``.
        context: The context that the trial was created with.

    Raises:
        ArgumentTypeError: ``context`` is not a ``PyTorchTrialContext``. The error is also a ``TypeError``.
        InternalException: The ``with`` block of ``init`` has ended.
        UnsupportedConfigurationError: The context has several processes, but they are not connected. Start the script
            with torchrun.

    Example:
        >>> import pa_trial
        >>> def train(trial_class: type[pa_trial.PyTorchTrial]) -> None:
        ...     with pa_trial.init(hparams={"global_batch_size": 32}) as context:
        ...         trainer = pa_trial.Trainer(trial_class(context), context)
        ...         trainer.fit(max_length=pa_trial.Epoch(2), validation_period=pa_trial.Epoch(1))
    """

    def __init__(self, trial: PyTorchTrial[Any], context: PyTorchTrialContext) -> None:
        if not isinstance(context, PyTorchTrialContext):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise ArgumentTypeError(
                f"This is not the context of a trial: context={context!r}.",
                do="Pass the context of init: with pa_trial.init() as context: trainer = Trainer(..., context).",
            )
        _parts_of(context)  # raises an error after the block of init
        self._trial = trial
        self._context = context

    def configure_profiler(self, sync_timings: bool, enabled: bool, begin_on_batch: int, end_after_batch: int) -> None:
        """Ignore the settings for the profiler of Determined's platform, so that scripts for Determined run unchanged.

        Remove the call, or replace it with ``context.set_profiler``, which profiles with ``torch.profiler``.

        Args:
            sync_timings: No effect.
            enabled: No effect, except that True causes a warning.
            begin_on_batch: No effect.
            end_after_batch: No effect.

        Example:
            >>> def train(trainer):
            ...     trainer.configure_profiler(sync_timings=True, enabled=False, begin_on_batch=0, end_after_batch=10)
        """
        del sync_timings, begin_on_batch, end_after_batch
        if enabled:
            _warn_of_profiler("configure_profiler(enabled=True)")

    def fit(
        self,
        checkpoint_period: TrainUnit | None = None,
        validation_period: TrainUnit | None = None,
        max_length: TrainUnit | None = None,
        reporting_period: TrainUnit = DEFAULT_REPORTING_PERIOD,
        checkpoint_policy: str = "best",
        latest_checkpoint: str | Path | None = None,
        step_zero_validation: bool = False,
        test_mode: bool = False,
        profiling_enabled: bool = False,
        *,
        warm_start: str | Path | None = None,
        weigh_by_records: bool = False,
        trust_pickle: bool = False,
    ) -> None:
        """Train, validate and save checkpoints until ``max_length`` is reached or a stop is requested.

        Metrics are printed, passed to callbacks and, unless you turn this off, written for TensorBoard. To be able to
        resume after an interruption, always pass ``latest_checkpoint=context.get_latest_checkpoint()``, even at the
        first start, when there is no checkpoint yet. Every process calls ``fit`` with the same arguments.

        Args:
            checkpoint_period: When to save, in addition to ``checkpoint_policy``. A checkpoint always follows the last
                batch. The default, None, uses ``min_checkpoint_period`` of ``exp_conf``; without it, there are no
                further checkpoints.
            validation_period: When to validate. The default, None, uses ``min_validation_period`` of ``exp_conf``;
                without it, there is only the validation after the last batch.
            max_length: How long to train: a ``Batch`` or an ``Epoch`` with an int, counted from the beginning of the
                training even when it resumes. It is required unless ``test_mode`` is True.
            reporting_period: When to report training metrics, which are means over the batches since the last report.
                Each validation and each checkpoint also causes a report. The default is ``scheduling_unit`` of
                ``exp_conf``, or else 100 batches, which is often enough to follow a training, but not so often that it
                becomes slower.
            checkpoint_policy: Which validations are followed by a checkpoint. "best" (the default) means validations
                that are better than all previous validations in the metric that was passed to ``init``; without a
                metric, it means every validation. "all" means every validation, and "none" means no validation.
            latest_checkpoint: The checkpoint to continue from, by its uuid or its path;
                ``context.get_latest_checkpoint()`` returns the newest. The default, None, starts from the beginning.
            step_zero_validation: Whether to validate before the first batch. The default is False.
            test_mode: Whether to run a smoke test, which trains and validates on a single batch and saves a checkpoint.
            profiling_enabled: No effect, except that True causes a warning; call ``context.set_profiler`` to profile.
            warm_start: A checkpoint; the training starts with its weights if ``latest_checkpoint`` is None. With the
                default, None, the training starts with the weights that the trial has created.
            weigh_by_records: Whether ``Reducer.AVG`` weights each batch by its number of records, so that the result of
                a validation does not depend on the number of processes. By default, all batches have the same weight,
                as in Determined.
            trust_pickle: Whether callbacks may save objects of any kind, and whether checkpoints with such objects,
                which Determined may have written, are loaded. The author of such a checkpoint can run any code in this
                process, so the default is False.

        Raises:
            ArgumentTypeError: The trial, or an argument, is of the wrong type.
            CheckFailedError: Metrics have different names in some batches or on some processes.
            CheckpointNotFound: There is no such checkpoint.
            ConfigurationError: A value is missing or invalid, for example ``max_length=None``.
            EmptyLoaderError: A loader has no batches.
            InternalException: ``fit`` is already running, or the ``with`` block of ``init`` has ended.
            InvalidCheckpointException: The checkpoint is damaged, or does not fit the trial.
            InvalidExperimentException: The trial is incomplete, for example because it has no model.
            MetricReducerError: A metric reducer failed.
            NoMetricsError: A method of the trial returned no metrics.
            RanksDifferError: The processes passed different arguments.
            UsageError: ``build_callbacks`` or a loader method returned a value of the wrong type.

        Example:
            >>> import tempfile
            >>> import pa_trial
            >>> def train(trial_class: type[pa_trial.PyTorchTrial], folder: str) -> None:
            ...     with pa_trial.init(seed=0, metric="loss", checkpoint_dir=folder) as context:
            ...         pa_trial.Trainer(trial_class(context), context).fit(
            ...             max_length=pa_trial.Epoch(10),
            ...             validation_period=pa_trial.Epoch(1),
            ...             latest_checkpoint=context.get_latest_checkpoint(),  # None in the first start
            ...         )
        """
        parts = _parts_of(self._context)
        if parts.stage:
            raise InternalException("fit() was called within fit(): call it after the other call has returned.")
        if profiling_enabled:
            _warn_of_profiler("fit(profiling_enabled=True)")
        check_trial(self._trial)
        options = FitOptions(
            checkpoint_period=checkpoint_period,
            validation_period=validation_period,
            max_length=max_length,
            reporting_period=reporting_period,
            checkpoint_policy=checkpoint_policy,
            latest_checkpoint=latest_checkpoint,
            step_zero_validation=step_zero_validation,
            test_mode=test_mode,
            warm_start=warm_start,
            weigh_by_records=weigh_by_records,
            trust_pickle=trust_pickle,
        ).completed(parts.settings)
        parts.trained.require_trainable()
        metric = choose_watched_metric(options.checkpoint_policy, parts.progress, parts.run_settings)
        watch = HangDetector(parts.run_settings.max_wait_seconds)
        parts.stage = Stage.START
        try:
            with watch.run(lambda: (parts.stage, parts.progress.batches_trained)):
                parts.progress.begin(agree_on_seed(self._trial, parts, options))
                _fit(self._trial, parts, options, metric, watch)
        finally:
            parts.stage = ""


def _parts_of(context: PyTorchTrialContext) -> ContextParts:
    return context._run_parts()  # pyright: ignore[reportPrivateUsage]  # the only internal entry point of the context


def _fit(
    trial: PyTorchTrial[Any],
    parts: ContextParts,
    options: FitOptions,
    metric: WatchedMetric | None,
    watch: HangDetector,
) -> None:
    """Put a training together, in the documented order, and let it run."""
    progress, trained, stop = parts.progress, parts.trained, StopRequests(parts)
    with closing_in_order(watch) as resources:
        resources.enter_context(stop.watching_signals())  # before workers of loaders start, which inherit it
        callbacks = check_callbacks(trial.build_callbacks())
        calls = CallbackCalls(callbacks)
        checkpoints = Checkpoints(trial, parts, callbacks)
        saved = checkpoints.find(options.latest_checkpoint, trust_pickle=options.trust_pickle)
        if saved is not None:
            _warn_of_other_seed(parts, saved.progress.seed)
            progress.resume(saved.progress)
        origin = options.warm_start if saved is None else options.latest_checkpoint
        resources.enter_context(calls.started(progress.batches_trained, None if origin is None else str(origin)))

        data = _build_data(trial, parts, options)
        resources.callback(data.close)
        require_same_parts(parts, lambda: calls.describe() | data.describe())
        loop = TrainingLoop(trial, parts, options, data, calls, checkpoints, metric, stop)

        trained.start_training()
        resources.callback(trained.end_training)
        stop.start_training()
        if saved is not None:
            checkpoints.restore(saved)
        elif options.warm_start is not None:
            checkpoints.load_weights(options.warm_start, trust_pickle=options.trust_pickle)
        calls.call(PyTorchCallback.on_training_start)
        with saving_before_invalid_hp(loop.save_unless_current, resources):
            loop.run()


def _build_data(trial: PyTorchTrial[Any], parts: ContextParts, options: FitOptions) -> TrialData:
    progress = parts.progress
    data = TrialData(
        trial.build_training_data_loader(),
        trial.build_validation_data_loader(),
        checks=parts.experimental.checks_reproducibility,
        rank=parts.distributed.rank,
        num_processes=parts.distributed.size,
        seed=cast("int", progress.seed),
        skip=progress.batches_trained,
    )
    if (samples := parts.run_settings.samples_per_update) is not None:
        data.cut(samples, cast("int", parts.run_settings.per_device_batch_size))
    progress.epoch_length = data.epoch_length
    if isinstance(options.max_length, Epoch) and data.epoch_length == sys.maxsize:
        warn_user(
            f"max_length={options.max_length!r} is never reached: the training data loader has no length, so its "
            "epochs never end. Pass max_length=Batch(...), or a loader with a length."
        )
    return data


def _warn_of_other_seed(parts: ContextParts, saved: int | None) -> None:
    if parts.distributed.rank == 0 and saved is not None and parts.trial_seed not in (None, saved):
        warn_user(
            f"init(seed={parts.trial_seed}) changes neither the order of the data nor random augmentation: the "
            f"resumed training keeps its seed, {saved}."
        )


def _warn_of_profiler(given: str) -> None:
    warn_user(
        f"{given} has no effect: it configures the profiler of Determined's platform. context.set_profiler(...) sets a "
        "torch profiler."
    )
