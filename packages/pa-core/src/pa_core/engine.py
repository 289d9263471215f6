"""What a trainer consists of: the parts of its runs, which it passes on to what needs them."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch.optim import Optimizer

from pa_core import _accelerate
from pa_core.attributes import temporarily
from pa_core.data.evaluation_sets import EvaluationSets
from pa_core.data.loaders import Loaders
from pa_core.distributed.comparison import Describe
from pa_core.distributed.rank_sync import RankSync
from pa_core.errors import ConfigurationError
from pa_core.exchange import Alone, Averaged, Exchange, Tree
from pa_core.extra_models import AddedModules
from pa_core.optimizer_modes import OptimizerModes
from pa_core.parts import Part
from pa_core.progress import Progress, Stage
from pa_core.run_config import TrainerRunConfig
from pa_core.sharding.sharding_plan import ShardingSettings
from pa_core.tracking import InMemoryRunHistory, StepMeans
from pa_core.training_state.checkpointer import Checkpointer
from pa_core.training_state.resume import ResumePlan
from pa_core.training_state.snapshotable import ResumableRun
from pa_core.types import SupportsStateDict
from pa_core.undoing import attributes_kept, left_as_it_was
from pa_distributed import HangDetector

if TYPE_CHECKING:  # few runs need it, and the import of the others takes no time for it
    from pa_core.fitting import BatchSizeFitting

RunKind: TypeAlias = Literal["train", "evaluate", "predict"]


class Engine:
    """The parts of a trainer, and of the run that it is in or was in last.

    Args:
        accelerator: The accelerator of the trainer.
        watch: Ends all processes if one waits for another one for too long.
        sharding: How models are split over the processes, None where they are not.
        reproducible: Whether runs are bit-for-bit identical on any number of processes.

    Attributes:
        accelerator: As passed.
        num_processes: The number of processes.
        device: The device of this process.
        watch: As passed.
        sharding: As passed.
        reproducible: As passed.
        exchange: What makes one update of what the processes have computed.
        loaders: Makes and splits loaders.
        checkpointer: Saves training states.
        added: The modules that are trained with the model.
        eval_sets: What the run evaluates.
        means: The means of the epoch so far: of its losses, and of what its steps have logged.
        gradient_clip_norm: The argument of the run.
        progress: The counters of the run.
        rank_sync: What the processes decide together.
        resumption: Where the run began.
        fitting: What chooses batch sizes by the memory, None in other runs.
        trained: What the run trains, by the name of the optimizer.
        running: What kind of run is in progress, None between runs.
        contexts: What ends with the run.
        placed: What makes the models what they were before the run.
        optimizer_modes: Which optimizers are in training mode and have another one.
        makes_optimizer: Whether the run makes the optimizer, if there is none.
        steps_scheduler_itself: Whether a subclass steps the scheduler in its own way.
        is_padding_batch: Whether the current batch is there for the other processes only.
        last_batch: What may stand in for a batch that this process does not have.
        checked_steps: The default steps whose first batch was checked.
    """

    def __init__(
        self,
        accelerator: _accelerate.AcceleratorLike,
        watch: HangDetector,
        sharding: ShardingSettings | None,
        reproducible: bool = False,
    ) -> None:
        self.accelerator = accelerator
        self.num_processes: int = accelerator.num_processes
        self.device: torch.device = _accelerate.device_of(accelerator)
        self.watch = watch
        self.sharding = sharding
        self.reproducible = reproducible
        self.exchange: Exchange = Alone()
        self.loaders: Loaders = Loaders(accelerator, fixed_batches=reproducible)
        self.added: AddedModules = AddedModules()
        self.eval_sets: EvaluationSets = EvaluationSets()
        self.means: StepMeans = StepMeans(exact=reproducible)
        self.gradient_clip_norm: float | None = None
        self.running: RunKind | None = None
        self.contexts: ExitStack = ExitStack()
        self.placed: ExitStack = ExitStack()
        self.optimizer_modes: OptimizerModes = OptimizerModes()
        self.makes_optimizer: bool = False
        self.steps_scheduler_itself: bool = False
        self._start_run({}, dict)
        self.checkpointer: Checkpointer = Checkpointer(self)

    def start_run(self, trained: dict[str, Part], describe_course: Describe) -> None:
        """Forget the run before.

        Args:
            trained: What the new one trains, by the name of the optimizer.
            describe_course: Returns what must stay the same on all processes in its course.
        """
        self._start_run(trained, describe_course)
        self.checkpointer.start_run()

    def _start_run(self, trained: dict[str, Part], describe_course: Describe) -> None:
        self.trained = trained
        self.progress: Progress = Progress()
        self.rank_sync: RankSync = RankSync(self.device, self.num_processes, describe_course)
        self.resumption: ResumePlan = ResumePlan(self.progress, self.device, reproducible=self.reproducible)
        self.loaders.start_run()
        self.fitting: BatchSizeFitting | None = None
        self.checked_steps: set[str] = set()
        self.last_batch: Any = None
        self.is_padding_batch: bool = False

    @property
    def shares_buffers(self) -> bool:
        """Whether all processes have the buffers of the models in common: what the first one has, or their means.

        Otherwise, each process keeps its own from the start of the training on.
        """
        return self.exchange.shares_buffers

    def create_exchange(self) -> Exchange:
        """Return the exchange of a run as it was requested and launched."""
        if self.reproducible:
            return Tree(self.accelerator, lambda: (self.resumption.seed, self.progress.updates))
        return Averaged(self.accelerator) if self.num_processes > 1 else Alone()

    @property
    def scaler(self) -> SupportsStateDict | None:
        """The gradient scaler of fp16."""
        return self.accelerator.scaler

    def nominal_items(self) -> dict[str, float | None]:
        """Return the reference number of items of an update of each optimizer, by name; None where samples count."""
        return {name: one.accumulation.reference_items for name, one in self.trained.items()}

    def require_between_steps(self, what: str) -> None:
        """Raise an error within a step of a reproducible run, as not all processes have as many steps.

        Args:
            what: What was called.

        Raises:
            ConfigurationError: A step is in progress.
        """
        if self.reproducible and self.means.is_in_step and not self.checkpointer.is_between_steps:
            raise ConfigurationError(
                f"{what} within a step of a reproducible run, where not all processes have as many steps, and which "
                "samples it would see follows their number.",
                do="Call it between two updates, or log the mean of each batch with log(name, value).",
            )

    def make_run_config(
        self, run: ResumableRun, numbers: tuple[int, int, int, int | None, float | None]
    ) -> TrainerRunConfig:
        """Describe a run, from what was requested and from the loaders that were made.

        Args:
            run: The run, with its loaders.
            numbers: The arguments of ``Trainer._create_run_config``, in their order.
        """
        batch_size, num_epochs, accumulation_steps, max_num_train_steps, clip_value = numbers
        training = self.loaders.settings("train", run.train_dataloader, batch_size)
        evaluation = self.loaders.settings("eval", run.eval_dataloader, batch_size)
        updates_per_epoch, samples_per_update = 0, None
        if self.running == "train":
            samples_per_update = self.loaders.samples_per_update
            lengths = run.epoch_lengths
            if max_num_train_steps is None:
                max_num_train_steps = lengths.updates_before(num_epochs)
            else:
                num_epochs = lengths.epochs_for(max_num_train_steps)
            updates_per_epoch = lengths.mean_updates(num_epochs)
        processes = self.num_processes
        return TrainerRunConfig(
            num_epochs=num_epochs,
            train_per_device_batch_size=training.batch_size,
            train_dl_kwargs=training.kwargs,
            eval_per_device_batch_size=evaluation.batch_size,
            eval_dl_kwargs=evaluation.kwargs,
            gradient_accumulation_steps=accumulation_steps,
            gradient_clip_value=clip_value,
            train_total_batch_size=samples_per_update or training.batch_size * processes * accumulation_steps,
            eval_total_batch_size=evaluation.batch_size * processes,
            num_update_steps_per_epoch=updates_per_epoch,
            max_num_train_steps=max_num_train_steps,
            is_local_process_zero=self.accelerator.is_local_main_process,
            is_world_process_zero=self.accelerator.is_main_process,
            is_distributed=processes > 1,
            mixed_precision=_accelerate.computed_precision(self.accelerator),
            num_processes=processes,
            gradient_clip_norm=self.gradient_clip_norm,
            seed=self.resumption.seed,
        )

    def train_optimizers(self, optimizers: Iterable[Optimizer]) -> None:
        """Put optimizers that have modes into training mode until the run ends.

        Args:
            optimizers: All optimizers of the run.
        """
        self.placed.callback(self.optimizer_modes.end)
        self.optimizer_modes.train(optimizers)

    @contextmanager
    def evaluating(self, stage: Stage) -> Generator[None]:
        """Within the context, keep the means of the training apart, and have the weights that are evaluated.

        Args:
            stage: What the run is in meanwhile.
        """
        with temporarily(self.progress, stage=stage), self.separate_means(), self.optimizer_modes.evaluating():
            yield

    def separate_means(self) -> AbstractContextManager[None]:
        """Return a context in which losses and logged values belong to something else, such as an evaluation."""
        return temporarily(self, means=StepMeans(exact=self.reproducible))

    @contextmanager
    def kept(self, trainer: object) -> Generator[None]:
        """Restore all attributes afterwards: of the trainer, of this and of what saves states, and the gradient scaler.

        Args:
            trainer: The trainer.
        """
        scaler = self.accelerator.scaler
        of_scaler = None if scaler is None else scaler.state_dict()
        try:
            with attributes_kept(trainer, self, self.checkpointer), self.separate_means():
                yield
        finally:
            if scaler is not None and of_scaler is not None:
                scaler.load_state_dict(of_scaler)

    @contextmanager
    def dry_run(self, trainer: ResumableRun, data: Sequence[object]) -> Generator[None]:
        """Let runs leave no trace.

        Args:
            trainer: The trainer.
            data: Loaders, and what they are made with.
        """
        with left_as_it_was(trainer, data), self.kept(trainer):
            trainer.run_history = InMemoryRunHistory()
            yield
