"""A trainer for timm's schedulers, which are passed the number of epochs or updates instead of counting themselves."""

from __future__ import annotations

import inspect
from typing import Any, Protocol

from torch.optim.lr_scheduler import LRScheduler
from typing_extensions import override

from pa_core._tensors import missing_methods
from pa_core.errors import ConfigurationError
from pa_core.trainer import Trainer
from pa_core.types import BatchT, ModelT_co, OutputT_co, StatefulScheduler


class TimmSchedulerLike(StatefulScheduler, Protocol):
    """The interface of timm's schedulers, for annotations; ``TrainerWithTimmScheduler`` has an example."""

    def step(self, epoch: int, metric: float | None = None) -> object:
        """Set the learning rate at the end of an epoch.

        Args:
            epoch: The number of completed epochs of the run, 1 after the first.
            metric: The evaluation loss of the epoch; None without an evaluation.
        """
        ...

    def step_update(self, num_updates: int, metric: float | None = None) -> object:
        """Set the learning rate after an optimizer update.

        Args:
            num_updates: The number of completed optimizer updates of the run, 1 after the first.
            metric: Not passed by the trainer.
        """
        ...


class TrainerWithTimmScheduler(Trainer[ModelT_co, BatchT, OutputT_co, TimmSchedulerLike]):
    """Train with a scheduler that has the interface of timm's schedulers; timm itself is not needed.

    Use it for ``timm.scheduler``, whose schedulers do not count their own steps; use ``Trainer`` for torch's
    schedulers. This class has the arguments and methods of ``Trainer``. Pass ``train()`` a function that creates the
    scheduler as ``create_scheduler_fn``, for example
    ``functools.partial(timm.scheduler.CosineLRScheduler, t_initial=10)``.

    The trainer calls ``scheduler.step_update(num_updates=...)`` after each optimizer update, with the number of updates
    that the run has completed, and ``scheduler.step(epoch, metric)`` after each epoch, with the number of completed
    epochs and the evaluation loss (None without an evaluation).

    Args:
        model: The module to train.
        loss_func: A function that is called as ``loss_func(model_outputs, targets)``; None for a model that returns its
            own loss.
        optimizer: An optimizer of the model's parameters; None for a trainer that only evaluates or predicts.
        callbacks: Callbacks, as classes or instances. The default, ``DEFAULT_CALLBACKS``, prints the progress and the
            metrics, and ends a run whose loss is NaN.
        run_history: The history that records the metrics; None, the default, creates an ``InMemoryRunHistory``.
        mixed_precision: "no", "bf16" or "fp16". None, the default, uses the launcher's setting.
        cpu: True trains on the CPU. None, the default, uses the launcher's setting.
        max_wait_seconds: The number of seconds that a process waits for another process before all of them print where
            they are and exit. The default is 600, the same as NCCL's timeout.
        create_optimizer_fn: A function that is called with the model and returns its optimizer, in place of
            ``optimizer``; None by default.
        reproducible: "any_processes" makes results bit-for-bit identical on any number of processes; None, the default,
            does not. The docstring of ``Trainer`` explains all arguments in detail.

    Raises:
        ArgumentTypeError: An argument has the wrong type.
        ConfigurationError: An argument cannot work. ``train()`` also raises it if the scheduler does not have
            ``step_update`` and ``step``.
        UnsupportedConfigurationError: An earlier trainer of the process uses a different precision or device.

    Example:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from pa_core import TrainerWithTimmScheduler
        >>> class Halve:
        ...     def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        ...         self.group = optimizer.param_groups[0]
        ...     def step(self, epoch: int, metric: float | None = None) -> None:
        ...         self.group["lr"] = 0.1 * 0.5**epoch
        ...     def step_update(self, num_updates: int, metric: float | None = None) -> None:
        ...         pass
        ...     def state_dict(self) -> dict[str, object]:
        ...         return {}
        ...     def load_state_dict(self, state_dict: dict[str, object]) -> None:
        ...         pass
        >>> data = TensorDataset(torch.ones(8, 1), torch.ones(8, 1))
        >>> model = torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = TrainerWithTimmScheduler(model, torch.nn.MSELoss(), optimizer, callbacks=[])
        >>> trainer.train(data, num_epochs=2, create_scheduler_fn=Halve)
        >>> optimizer.param_groups[0]["lr"]
        0.025
    """

    @override
    def create_scheduler(self) -> TimmSchedulerLike | None:
        """Create the scheduler of the run from ``create_scheduler_fn``, and check that it has timm's interface.

        The trainer calls it once in each ``train()`` call; you need not call it yourself. Placeholders in a
        ``functools.partial`` are replaced by the numbers of the run. Override it to create the scheduler without a
        function; ``self.optimizer`` and ``self.run_config`` are ready when it is called.

        Returns:
            The scheduler; None if ``train()`` was passed no function.

        Raises:
            ConfigurationError: The scheduler has no ``step_update``, or its ``step`` does not take an epoch and a
                metric.

        Example:
            An override that creates a timm scheduler::

                class WithCosine(TrainerWithTimmScheduler):
                    def create_scheduler(self):
                        return timm.scheduler.CosineLRScheduler(self.optimizer, t_initial=self.run_config.num_epochs)
        """
        scheduler = super().create_scheduler()
        steps_as_timm = type(self).scheduler_step is TrainerWithTimmScheduler.scheduler_step
        if scheduler is not None and steps_as_timm and not _follows_timm(scheduler):
            name = type(scheduler).__name__
            raise ConfigurationError(
                "TrainerWithTimmScheduler steps schedulers with step_update(num_updates) and step(epoch, metric), as "
                f"timm's do; {name} does not. Use Trainer, which steps other schedulers."
            )
        if scheduler is not None:
            _complete_state(scheduler)
        return scheduler

    @override
    def scheduler_step(self) -> None:
        """Call ``scheduler.step_update`` with the number of completed updates of the run, 1 after the first update.

        The trainer calls it after each optimizer update, except after updates whose gradients overflowed in fp16; you
        need not call it yourself. Override it if your scheduler needs other arguments, for example a metric;
        ``super()`` need not be called.

        Example:
            >>> from pa_core import TrainerWithTimmScheduler
            >>> class SchedulerWithLoss(TrainerWithTimmScheduler):
            ...     def scheduler_step(self) -> None:
            ...         self.scheduler.step_update(self.num_updates_completed + 1, metric=self.loss_tracker.average)
        """
        if self.scheduler is not None:
            self.scheduler.step_update(num_updates=self.num_updates_completed + 1)

    @override
    def training_run_epoch_end(self) -> None:
        """Call ``scheduler.step`` with the number of completed epochs of the run and the evaluation loss.

        The trainer calls it at the end of each epoch, after its evaluation; you need not call it yourself. The loss is
        None without an evaluation in this epoch; with several evaluation sets, it is the loss of the first set. An
        override has to call ``super()``, because otherwise the learning rate would not change.

        Example:
            >>> from pa_core import TrainerWithTimmScheduler
            >>> class PrintsRate(TrainerWithTimmScheduler):
            ...     def training_run_epoch_end(self) -> None:
            ...         super().training_run_epoch_end()
            ...         self.print("learning rate:", self.optimizer.param_groups[0]["lr"])
        """
        if self.scheduler is not None:
            name = next((f"eval_{name}_loss_epoch" for name in self.eval_sets), "eval_loss_epoch")
            evaluated = self.eval_dataset is not None and self.is_evaluated_in_epoch(name)
            metric = float(self.run_history.get_latest_metric(name)) if evaluated else None
            self.scheduler.step(self.num_epochs_completed, metric)


def _follows_timm(scheduler: TimmSchedulerLike) -> bool:
    """Whether a scheduler really has timm's interface; the result of the factory is not checked elsewhere."""
    return hasattr(scheduler, "step_update") and len(inspect.signature(scheduler.step).parameters) > 1


_LEFT_OUT = "left_out"
_PLAIN = (bool, int, float, str, list, tuple, type(None))


def _complete_state(scheduler: TimmSchedulerLike) -> None:
    """Complete the state of a timm scheduler that wraps a scheduler of torch.

    For ``PlateauLRScheduler``, timm saves only the best value, but not the number of epochs since then.
    """
    attributes: dict[str, Any] = getattr(scheduler, "__dict__", {})
    inner = {name: value for name, value in attributes.items() if isinstance(value, LRScheduler)}
    if not inner or missing_methods(scheduler):
        return
    own_state, load_own_state = scheduler.state_dict, scheduler.load_state_dict
    left_out = attributes.keys() - own_state().keys()
    inner = {name: scheduler for name, scheduler in inner.items() if name in left_out}
    plain = [name for name in left_out if isinstance(attributes[name], _PLAIN)]

    def state_dict() -> dict[str, Any]:
        states = {name: scheduler.state_dict() for name, scheduler in inner.items()}
        return {**own_state(), _LEFT_OUT: {**states, **{name: attributes[name] for name in plain}}}

    def load_state_dict(state_dict: dict[str, Any]) -> None:
        load_own_state({name: value for name, value in state_dict.items() if name != _LEFT_OUT})
        for name, value in state_dict.get(_LEFT_OUT, {}).items():
            if name in inner:
                inner[name].load_state_dict(value)
            else:
                attributes[name] = value

    if inner:
        attributes.update(state_dict=state_dict, load_state_dict=load_state_dict)
