"""Runs a training function on the workers of Ray Train."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Any

from pa_core import ConfigurationError, TrainingPreempted
from pa_ray._session import find_session

if TYPE_CHECKING:
    from ray.train import Result


@dataclass(frozen=True)
class _Preempted:
    """The result of a worker whose run was preempted."""

    reason: str
    signal: Signals | None


def train_on_ray(
    function: Callable[..., object],
    config: Mapping[str, Any] | None = None,
    *,
    num_workers: int | tuple[int, int] = 1,
    use_gpu: bool = False,
    resources_per_worker: Mapping[str, float] | None = None,
    storage_path: str | Path | None = None,
    name: str | None = None,
    max_failures: int = 3,
    num_to_keep: int | None = 1,
    **options: Any,
) -> Result:
    """Run a training function on the workers of Ray, and start it again after a failure.

    Use it in a script that trains on a Ray cluster, instead of ``torchrun``. ``function`` trains as in any other
    script: Ray connects the processes, and the trainer joins them. For a run that continues after a failure, pass
    ``SaveTrainingStateCallback`` and ``ReportToRay`` to the trainer, and ``resume_from=newest_state(...)`` to
    ``train()``. Pass ``samples_per_update`` to ``train()``, too, if the number of workers may change, so that the
    updates stay the same.

    In a trial of Ray Tune, the reports of the first worker are also passed to Ray Tune.

    Args:
        function: The function. It gets ``config`` if it has a parameter.
        config: A dictionary for the function. The default, None, is an empty dictionary.
        num_workers: The number of processes, one per GPU. A pair, such as ``(2, 8)``, is the smallest and the largest
            number; Ray uses as many as the cluster has room for, and starts the function again when the number
            changes. The default is 1.
        use_gpu: Whether each worker gets a GPU. The default, False, trains on CPUs.
        resources_per_worker: The resources that Ray reserves for each worker, such as ``{"CPU": 8, "GPU": 1}``. The
            default, None, is one CPU, or one GPU with ``use_gpu``.
        storage_path: Where Ray keeps its checkpoints and its record of the run: a folder that all machines share, or
            the URL of an object store. The default, None, is ``~/ray_results``, which is for a single machine.
        name: The name of the run in ``storage_path``. If the script starts again with the same name, Ray continues with
            the last checkpoint of that name. The default, None, makes a new name from the time.
        max_failures: How many times the function is started again after the failure of a worker; -1 is without a limit.
            The default is 3. Restarts because Ray has announced the loss of a machine do not count.
        num_to_keep: The number of checkpoints that Ray keeps. The default, 1, keeps only the newest, as the states are
            also in the folder of ``SaveTrainingStateCallback``. None keeps all.
        **options: Further arguments of ``ray.train.torch.TorchTrainer``, for example ``datasets``.

    Returns:
        The ``ray.train.Result``, with the last report as ``metrics`` and the newest state as ``checkpoint``;
        ``return_value`` is the value that ``function`` has returned on the first worker.

    Raises:
        ConfigurationError: ``config`` was passed for a function that has no parameter.
        TrainingPreempted: The run has ended before it was complete, because of its deadline or a
            ``request_preemption()``, and has saved a state. The script ends with status 75, and continues if it is
            started again. Ray itself would count this end as a failure.
        ray.train.TrainingFailedError: The function has failed more than ``max_failures`` times.

    Example:
        Train with two processes::

            def train(config):
                model = nn.Linear(4, 1)
                optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
                save = SaveTrainingStateCallback("/shared/states", save_every_n_epochs=1)
                trainer = Trainer(model, nn.MSELoss(), optimizer, callbacks=[*DEFAULT_CALLBACKS, save, ReportToRay()])
                trainer.train(
                    make_regression(640), 10, samples_per_update=32, resume_from=newest_state("/shared/states")
                )

            result = train_on_ray(train, {"lr": 0.1}, num_workers=2, storage_path="/shared/ray")
            print(result.metrics["train_loss_epoch"])
    """
    if config and not inspect.signature(function).parameters:
        raise ConfigurationError(
            "The function does not take the config that was passed for it.",
            given=f"config={dict(config)!r}",
            expected="a function with one parameter",
            do="Give the function a parameter, or leave config out.",
        )
    import ray.train
    from ray.train.torch import TorchTrainer

    callbacks: list[Any] = []
    if find_session() == "tune":
        from ray.tune.integration.ray_train import TuneReportCallback

        callbacks = [TuneReportCallback()]
    trainer = TorchTrainer(
        partial(_run, function),
        train_loop_config=dict(config or {}),
        scaling_config=ray.train.ScalingConfig(
            num_workers=num_workers,
            use_gpu=use_gpu,
            resources_per_worker=None if resources_per_worker is None else dict(resources_per_worker),
        ),
        run_config=ray.train.RunConfig(
            name=name,
            storage_path=None if storage_path is None else str(storage_path),
            failure_config=ray.train.FailureConfig(max_failures=max_failures),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=num_to_keep),
            callbacks=callbacks,
        ),
        **options,
    )
    result = trainer.fit()
    if isinstance(result.return_value, _Preempted):
        raise TrainingPreempted(result.return_value.reason, result.return_value.signal)
    return result


def _run(function: Callable[..., object], config: dict[str, Any]) -> object:
    """Call the function on a worker; a preemption is a result, because Ray starts a function that raises again."""
    try:
        return function(config) if inspect.signature(function).parameters else function()
    except TrainingPreempted as preempted:
        return _Preempted(preempted.reason, preempted.signal)
