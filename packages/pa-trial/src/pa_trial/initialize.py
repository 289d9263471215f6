"""Makes the context of a trial, and ends it."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pa_trial.context import CoreContext, PyTorchTrialContext
from pa_trial.distributed_context import DistributedContext
from pa_trial.errors import ConfigurationError, InvalidHP
from pa_trial.processes import connect_processes
from pa_trial.settings import ExperimentSettings, RunSettings, default_checkpoint_dir, is_whole
from pa_trial.user_warnings import warn_user

_log = logging.getLogger("pa_trial")


def init(
    *,
    hparams: dict[str, Any] | None = None,
    exp_conf: dict[str, Any] | None = None,
    distributed: DistributedContext | None = None,
    aggregation_frequency: int = 1,
    enable_tensorboard_logging: bool = True,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    tensorboard_path: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    metric: str | None = None,
    smaller_is_better: bool | None = None,
    max_checkpoints: int | None = None,
    stop_on_signals: str | Iterable[str] = ("SIGTERM",),
    max_wait_seconds: float | None = 600.0,
    samples_per_update: int | None = None,
    per_device_batch_size: int | None = None,
) -> AbstractContextManager[PyTorchTrialContext]:
    """Create the context of a trial, which begins and ends with the ``with`` block.

    Create the trial and its ``Trainer`` within the block. Under torchrun and ``accelerate launch``, the processes are
    connected, with NCCL on GPUs and Gloo on CPUs, unless the script has already connected them. If an ``InvalidHP``
    leaves the block, the program exits cleanly with status 0.

    Args:
        hparams: Hyperparameters by name, for ``context.get_hparam``. "global_batch_size" is the number of samples in a
            batch of all processes together.
        exp_conf: The experiment configuration, for ``context.get_experiment_config``. Its entries ``searcher.metric``,
            ``searcher.smaller_is_better``, ``scheduling_unit``, ``min_checkpoint_period`` and ``min_validation_period``
            are the defaults for the arguments of ``init`` and ``fit``.
        distributed: The number of processes and the rank of this process. By default, both are read from the
            environment.
        aggregation_frequency: The number of batches whose gradients are accumulated for an optimizer step. With the
            default, 1, the optimizer steps after each batch.
        enable_tensorboard_logging: Whether metrics are written for TensorBoard, by default True.
        checkpoint_dir: The folder for checkpoints. The default is Determined's folder, ``$XDG_DATA_HOME/determined`` on
            Linux, which all local trainings of a user share. Pass a folder to resume with
            ``context.get_latest_checkpoint()``.
        tensorboard_path: The folder for TensorBoard; by default, a new folder in ``runs``.
        seed: A number from 0 to ``2**32 - 1`` with which Python, NumPy and torch are seeded on all processes. With a
            seed, the order of the samples and their random draws are the same in each training. By default, nothing is
            seeded.
        metric: The validation metric that the checkpoint policy "best" compares. By default, it is read from
            ``exp_conf``; without a metric, each validation counts as the best.
        smaller_is_better: Whether smaller values of the metric are better. The default is the value in ``exp_conf``, or
            True, which is right for a loss.
        max_checkpoints: The number of newest checkpoints to keep; the best checkpoint is kept, too. With the default,
            None, all checkpoints are kept.
        stop_on_signals: The signals after which a checkpoint is saved and ``fit`` returns. The default is SIGTERM,
            which schedulers send before they end a job.
        max_wait_seconds: The number of seconds that a process waits for another process before it reports an error; the
            default is ten minutes, and None waits forever.
        samples_per_update: The number of samples of all processes in an optimizer step, the same on any number of
            processes. The gradient is computed from the mean loss over these samples. ``Batch``, ``batch_idx`` and the
            length of an epoch then count updates, and ``train_batch`` is called for each piece of an update that this
            process computes. Pass it together with ``per_device_batch_size``, and without ``aggregation_frequency``. By
            default, the size of an update follows from the batches of the loader.
        per_device_batch_size: The maximum number of samples that a process trains on at a time, with
            ``samples_per_update``. It replaces the ``batch_size`` of the training loader.

    Returns:
        A context manager that yields the ``PyTorchTrialContext``.

    Raises:
        ArgumentTypeError: ``hparams`` or ``exp_conf`` is not a dictionary.
        ConfigurationError: A value is invalid. The error is also a ``ValueError``.
        InvalidExperimentException: A setting of the trial is invalid, for example a ``global_batch_size`` that is
            smaller than the number of processes. It is a ``ConfigurationError``.

    Example:
        >>> import pa_trial
        >>> with pa_trial.init(hparams={"lr": 0.1, "global_batch_size": 32}, seed=0) as context:
        ...     context.get_hparam("lr"), context.get_per_slot_batch_size()
        (0.1, 32)
    """
    if seed is not None and not (is_whole(seed) and 0 <= seed < 2**32):
        raise ConfigurationError(f"seed must be a whole number from 0 to 2**32 - 1, got seed={seed!r}.")
    sizes = (samples_per_update, per_device_batch_size)
    if sizes != (None, None) and (None in sizes or aggregation_frequency != 1):
        given = f"{samples_per_update=}, {per_device_batch_size=}, {aggregation_frequency=}"
        raise ConfigurationError("Pass samples_per_update and per_device_batch_size, both and alone.", given=given)
    configured = ExperimentSettings(None, exp_conf, 1)
    if smaller_is_better is None:
        smaller_is_better = configured.smaller_is_better if metric is None else True
    run_settings = RunSettings(
        checkpoint_dir=default_checkpoint_dir() if checkpoint_dir is None else Path(checkpoint_dir),
        has_own_checkpoint_dir=checkpoint_dir is not None,
        tensorboard_path=None if tensorboard_path is None else Path(tensorboard_path),
        metric=configured.metric if metric is None else metric,
        smaller_is_better=smaller_is_better,
        max_checkpoints=max_checkpoints,
        stop_on_signals=(stop_on_signals,) if isinstance(stop_on_signals, str) else tuple(stop_on_signals),
        max_wait_seconds=max_wait_seconds,
        samples_per_update=samples_per_update,
        per_device_batch_size=per_device_batch_size,
    )

    def open_context() -> PyTorchTrialContext:
        _warn_of_launch_settings()
        device, processes = connect_processes(distributed, max_wait_seconds)
        if seed is not None:
            random.seed(seed)
            np.random.seed(seed)
            torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]  # not annotated by torch
        return PyTorchTrialContext(
            CoreContext(processes),
            seed,
            hparams,
            processes.size,
            torch.cuda.device_count(),
            exp_conf,
            aggregation_frequency,
            steps_completed=0,
            managed_training=True,
            debug_enabled=False,
            run_settings=run_settings,
            device=device,
            enable_tensorboard_logging=enable_tensorboard_logging,
        )

    return _within(open_context)


@contextmanager
def _within(open_context: Callable[[], PyTorchTrialContext]) -> Generator[PyTorchTrialContext]:
    context = open_context()
    try:
        yield context
    except InvalidHP as error:
        _log.warning("The training ends because its hyperparameters cannot work: %s", error)
        raise SystemExit(0) from error
    finally:
        context._close()  # pyright: ignore[reportPrivateUsage]  # this function begins and ends the context


def _warn_of_launch_settings() -> None:
    """Warn about options of ``accelerate launch`` that a trial does not support."""
    for name, instead in _WITHOUT_EFFECT.items():
        value = os.environ.get(name, "").lower()
        if value not in _REQUESTS_NOTHING and (name, value) != (
            _ACCUMULATION,
            "1",
        ):  # accumulating 1 batch is the default
            warn_user(f"{name}={value} of accelerate launch has no effect on a trial: {instead}.")


_REQUESTS_NOTHING = ("", "0", "false", "no")
_ACCUMULATION = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
_WITHOUT_EFFECT = {
    "ACCELERATE_MIXED_PRECISION": "call context.experimental.use_amp() in the trial's __init__",
    _ACCUMULATION: "pass aggregation_frequency to init()",
    "ACCELERATE_USE_FSDP": "each process has the whole model",
    "ACCELERATE_USE_DEEPSPEED": "each process has the whole model",
    "ACCELERATE_USE_MEGATRON_LM": "each process has the whole model",
    "ACCELERATE_DYNAMO_BACKEND": "compile the model that you wrap with torch.compile",
}
