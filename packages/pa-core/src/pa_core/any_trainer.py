"""What callbacks and helper functions may expect of a trainer, whichever trainer it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from pa_core import _accelerate
from pa_core.distributed import processes
from pa_core.errors import ConfigurationError
from pa_core.events import CallbackHandler
from pa_core.progress import Progress
from pa_core.run_config import TrainerRunConfig
from pa_core.tracking import LossTracker, MetricValue, RunHistory, StepMeans
from pa_core.types import LossFunction, SizedIterable, StatefulScheduler, SupportsStateDict, TensorsT

__all__ = ["AnyTrainer"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


class AnyTrainer(ABC):
    """A trainer of any model, batch, output and scheduler.

    Annotate callbacks and helper functions with this class. ``Trainer`` derives from it and adds the type
    parameters; nobody else needs to.

    Attributes:
        model: The module being trained. While a run goes on this may be the wrapped module; use ``get_model()``
            to reach the attributes of your own class.
        loss_func: The loss function that was given to the trainer.
        optimizer: The optimizer that was given to the trainer.
        scheduler: The scheduler of the current run, None without one.
        create_scheduler_fn: The factory that was given to ``train()``.
        collate_fn: The collate function that was given to ``train()`` or ``evaluate()``.
        train_dataset: The dataset of the current or last training run, also where a ``DataLoader`` was given.
        eval_dataset: The dataset that is evaluated, None where nothing is.
        train_dataloader: The loader of the current or last training run; a callback may replace it in
            ``on_prepare_start``.
        eval_dataloader: The loader that is evaluated; a callback may replace it between epochs.
        run_history: The recorded metrics.
        run_config: The settings of the current or last run.
        callback_handler: The registered callbacks.
        gradient_norm: The norm of all gradients before clipping at the last update, as a tensor on the
            device of the run; None unless the run clips by norm.
        resume_from: The path given to ``train()`` that the current or last run was to resume from; None for one that
            just begins.
        was_complete: Whether the run goes on from the training state of a complete one, and nothing is left of it to
            do. Its first and its last event are called.
        preemptible: Whether evaluation epochs look for a request to leave between their batches; a callback sets it
            on every process when a run starts, and a new run begins without.

    Example:
        >>> from pa_core import AnyTrainer, TrainerCallback
        >>> class PrintSamples(TrainerCallback):
        ...     def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: object) -> None:
        ...         trainer.print(trainer.run_history.clock.samples)
    """

    model: nn.Module
    loss_func: LossFunction
    optimizer: Optimizer
    scheduler: StatefulScheduler | None
    create_scheduler_fn: Callable[[Optimizer], StatefulScheduler] | None
    collate_fn: Callable[[list[Any]], Any] | None
    train_dataset: Dataset[Any]
    eval_dataset: Dataset[Any] | None
    train_dataloader: SizedIterable
    eval_dataloader: SizedIterable | None
    run_history: RunHistory
    run_config: TrainerRunConfig
    callback_handler: CallbackHandler[Any]
    gradient_norm: Tensor | None
    resume_from: Path | None
    was_complete: bool
    preemptible: bool
    _accelerator: _accelerate.AcceleratorLike
    _progress: Progress

    @property
    def num_updates_completed(self) -> int:
        """Optimizer updates of the current or last run so far."""
        return self._progress.updates

    @property
    def num_epochs_completed(self) -> int:
        """Epochs of the current or last run that have been trained and evaluated."""
        return self._progress.epochs

    # Which process this is, and what one of them does for the others

    @property
    def num_processes(self) -> int:
        """The number of processes that train together, on all machines."""
        return self._accelerator.num_processes

    @property
    def process_index(self) -> int:
        """Which of them this process is, from 0: its rank."""
        return self._accelerator.process_index

    @property
    def local_process_index(self) -> int:
        """Which of the processes on its machine this one is, from 0."""
        return self._accelerator.local_process_index

    @property
    def is_main_process(self) -> bool:
        """Whether this is the process of rank zero."""
        return self._accelerator.is_main_process

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is the first process on its machine."""
        return self._accelerator.is_local_main_process

    def wait_for_everyone(self) -> None:
        """Wait until every process has come here; every process must call this.

        Raises:
            ConfigurationError: This process runs a function that the others do not, such as one that
                ``on_main_process`` decorates, and would wait for ever.
        """
        processes.require_all_processes("wait_for_everyone()")
        self._accelerator.wait_for_everyone()

    def on_main_process(self, function: Callable[_P, _R]) -> Callable[_P, _R | None]:
        """Make a function run on the process of rank zero only; the others return None at once.

        Nobody waits, so that it may be called anywhere, also by some processes only. Use ``world_process_zero_only``
        for what the others need before they go on.

        Args:
            function: What is decorated.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> trainer = Trainer(torch.nn.Linear(1, 1), torch.nn.MSELoss(), None, callbacks=[])
            >>> @trainer.on_main_process
            ... def describe(loss: float) -> str:
            ...     return f"loss {loss}"
            >>> describe(0.5)
            'loss 0.5'
        """
        return processes.run_if(self.is_main_process, function)

    def on_local_main_process(self, function: Callable[_P, _R]) -> Callable[_P, _R | None]:
        """Make a function run on the first process of each machine only; see ``on_main_process``.

        Args:
            function: What is decorated.
        """
        return processes.run_if(self.is_local_main_process, function)

    def on_process(self, *, process_index: int) -> Callable[[Callable[_P, _R]], Callable[_P, _R | None]]:
        """Make a function run on one process only, or on the only one there is; see ``on_main_process``.

        Args:
            process_index: The rank of the process, such as ``trainer.num_processes - 1`` for the last one.

        Raises:
            ConfigurationError: Of several processes, none has this rank.
        """
        if self.num_processes > 1 and process_index not in range(self.num_processes):
            raise ConfigurationError(
                "The function would run on no process.",
                given=f"on_process(process_index={process_index!r}) on {self.num_processes} processes",
                expected=f"a rank from 0 to {self.num_processes - 1}",
                do="Choose one of them, for example trainer.num_processes - 1 for the last process.",
            )
        return partial(processes.run_if, process_index == self.process_index or self.num_processes == 1)

    def main_process_first(self) -> processes.BlockOrDecorator:
        """Let the process of rank zero run a block before all others; every process must come to it.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> trainer = Trainer(torch.nn.Linear(1, 1), torch.nn.MSELoss(), None, callbacks=[])
            >>> with trainer.main_process_first():
            ...     print("downloaded once to a shared disk, then read by all")
            downloaded once to a shared disk, then read by all
        """
        return processes.world_process_zero_first()

    def local_main_process_first(self) -> processes.BlockOrDecorator:
        """Let the first process of each machine run a block before the others, as ``local_process_zero_first``."""
        return processes.local_process_zero_first()

    # Precision

    @property
    def mixed_precision(self) -> str:
        """The mixed precision that the model computes in: "no", "bf16" or "fp16"."""
        return _accelerate.computed_precision(self._accelerator)

    def autocast(self) -> AbstractContextManager[None]:
        """Return a context in which torch computes in the mixed precision of the trainer.

        ``trainer.model`` does so anyway when it is called. The context is for what else a step computes: a method of
        the model other than ``forward``, a loss function with layers of its own, a second module.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> trainer = Trainer(torch.nn.Linear(1, 1), torch.nn.MSELoss(), None, callbacks=[])
            >>> with trainer.autocast():
            ...     product = torch.ones(2, 2, device=trainer.device) @ torch.ones(2, 2, device=trainer.device)
            >>> product.dtype
            torch.float32
        """
        return self._accelerator.autocast()

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device that this process computes on."""

    @property
    @abstractmethod
    def loss_tracker(self) -> LossTracker:
        """The losses of the current epoch so far, of this process."""

    @property
    @abstractmethod
    def step_means(self) -> StepMeans:
        """The means of what the steps of the current epoch have logged so far, of this process."""

    @abstractmethod
    def log(self, name: str, value: MetricValue) -> None:
        """Log a value of the present step, the mean of which over the samples of the epoch is recorded."""

    @abstractmethod
    def get_model(self, keep_torch_compile: bool = True) -> nn.Module:
        """Return the model without its distributed wrappers."""

    def named_models(self) -> dict[str, nn.Module]:
        """Return everything that the run trains, without wrappers, by name: "model", and what stands beside it."""
        return {"model": self.get_model(keep_torch_compile=False)}

    def named_optimizers(self) -> dict[str, Optimizer]:
        """Return the optimizers of the run by name: "optimizer", and any others; empty without one."""
        optimizer = cast("Optimizer | None", self.optimizer)
        return {} if optimizer is None else {"optimizer": optimizer}

    def named_schedulers(self) -> dict[str, StatefulScheduler]:
        """Return the schedulers of the run by name: "scheduler", and any others; empty without one."""
        return {} if self.scheduler is None else {"scheduler": self.scheduler}

    @abstractmethod
    def gather(self, tensor: TensorsT, padding_value: float | None = None) -> TensorsT:
        """Return the tensors of all processes, concatenated along the first dimension."""

    @abstractmethod
    def print(self, *args: object, **kwargs: Any) -> None:
        """Print once per node."""

    @abstractmethod
    def describe_run(self) -> str:
        """Return one line that says what runs: processes, backend, device and precision."""

    @abstractmethod
    def run_evaluation_epoch(self, *, is_intermediate: bool = False) -> None:
        """Evaluate ``eval_dataset`` once in the middle of a training run, and go on training as before."""

    @abstractmethod
    def save_checkpoint(
        self,
        save_path: str | Path,
        checkpoint_kwargs: dict[str, Any] | None = None,
        save_optimizer: bool = True,
        save_scheduler: bool = True,
        save_per_node: bool = True,
    ) -> None:
        """Write the weights, and what belongs to them, to one file."""

    @abstractmethod
    def load_checkpoint(
        self, checkpoint_path: str | Path, load_optimizer: bool = True, load_scheduler: bool = True
    ) -> dict[str, Any]:
        """Read a file that ``save_checkpoint`` wrote, and return its whole content."""

    @abstractmethod
    def save_model(self, save_directory: str | Path, max_shard_size: int | str = "5GB") -> None:
        """Export the weights as safetensors."""

    @abstractmethod
    def save_training_state(
        self,
        output_dir: str | Path,
        checkpoint_kwargs: Mapping[str, Any] | None = None,
        *,
        asynchronous: bool = False,
        sequence: int = 0,
        on_saved: Callable[[Path], object] | None = None,
        keep_other_runs: bool = False,
    ) -> None:
        """Save everything that a run consists of, so that ``train(resume_from=...)`` goes on from there."""

    @abstractmethod
    def load_training_state(self, input_dir: str | Path) -> dict[str, Any]:
        """Load model, optimizer and scheduler of a training state, without going on with its run."""

    @abstractmethod
    def check_training_state(self) -> None:
        """Refuse, before any time is spent on training, what could not be saved in a training state."""

    @abstractmethod
    def request_training_state(self) -> None:
        """Ask that all processes save a training state after the same update."""

    @abstractmethod
    def request_preemption(self) -> None:
        """Ask that all processes save a training state after the same update, and end."""

    @abstractmethod
    def register_for_checkpointing(self, *objects: SupportsStateDict) -> None:
        """Make objects a part of training states."""
