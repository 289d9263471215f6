"""The setup of a trainer, for all of its runs, and the state of each run."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from pa_core import _accelerate
from pa_core._attributes import temporarily
from pa_core.data.evaluation_sets import EvaluationSets
from pa_core.data.loaders import Loaders
from pa_core.distributed.comparison import Describe
from pa_core.distributed.rank_sync import PreemptionRequest, RankSync
from pa_core.engine.added_modules import AddedModules
from pa_core.engine.dry_run import attributes_restored, dry_run
from pa_core.engine.exchange import Alone, Exchange, require_between_steps
from pa_core.engine.optimizer_modes import OptimizerModes
from pa_core.engine.parts import Part
from pa_core.run_config import TrainerRunConfig
from pa_core.sharding.sharding_plan import ShardingSettings, read_settings
from pa_core.tracking import InMemoryRunHistory, StepMeans
from pa_core.training_state.checkpointer import Checkpointer
from pa_core.training_state.progress import Progress
from pa_core.training_state.resume import ResumePlan
from pa_core.training_state.snapshotable import ResumableRun
from pa_core.types import SupportsStateDict
from pa_distributed import HangDetector

if TYPE_CHECKING:  # few runs need it; the import of the others stays fast
    from pa_core.engine.fitting import BatchSizeFitting
    from pa_core.sharding.deepspeed_config import DeepSpeedConfig

RunKind: TypeAlias = Literal["train", "evaluate", "predict"]


@dataclass(frozen=True, kw_only=True)
class TrainingHooks:
    """The behavior of a trainer in its runs; the defaults are for scripts with their own loop.

    Attributes:
        pads: Whether a process without a sample gets the batch of another process, even if no model is sharded.
        overlaps: Whether each batch has a single backward pass, during which a reproducible run may send gradients.
        looks_at_gradients: Whether only the run makes backward passes, so that other gradients are detected.
        looks_at_optimizer: Whether only the run steps the optimizer, so that other steps are detected.
        steps_scheduler_itself: Whether a subclass overrides ``scheduler_step``.
        overrides: Returns whether a subclass or an instance overrides a hook, by its name. The default is True, because
            code of a script runs at these places.
        update_weights: Called with the part and whether its gradients overflowed in fp16: clips the gradients, steps
            optimizers and schedulers unless they overflowed, and clears the gradients. None only steps the optimizers.
        rehearsed: Computes the gradients of a batch, and returns its loss. A reproducible run rehearses it before its
            first update. None in other runs, and if only the script computes.
    """

    pads: bool = False
    overlaps: bool = False
    looks_at_gradients: bool = False
    looks_at_optimizer: bool = False
    steps_scheduler_itself: bool = False
    overrides: Callable[[str], bool] = lambda _hook: True
    update_weights: Callable[[Part, bool], None] | None = None
    rehearsed: Callable[[Any], Tensor] | None = None


class Setup:
    """The setup of a trainer, for all of its runs.

    Args:
        accelerator: The accelerator of the trainer.
        watch: The watch that ends all processes if one of them waits too long for another.
        arguments: The arguments of the Accelerator, from ``compatibility.create_accelerator``.
        reproducible: Whether runs are bit-for-bit identical on any number of processes.

    Attributes:
        accelerator: The accelerator of the trainer.
        num_processes: The number of processes.
        is_main_process: Whether this is the process of rank zero.
        is_local_main_process: Whether this is the first process on its machine.
        device: The device of this process.
        watch: The watch for hanging processes.
        sharding: The settings of sharding, or None.
        reproducible: Whether runs are bit-for-bit identical on any number of processes.
        deepspeed: The configuration of DeepSpeed that the sharding follows, or None.
        exchange: The exchange of gradients between processes.
        loaders: The creation and splitting of loaders.
        checkpointer: The saving of training states.
        added: The modules that are trained with the model.
        optimizer_modes: The modes of optimizers that have modes.
        hooks: The behavior of the trainer in its runs.
        makes_optimizer: Whether a run creates the optimizer, if there is none.
        turn: Empty while a run is in progress. A list, because its ``pop`` returns the item to only one of two threads.
        preempt: The request for preemption, which the next training run serves if no run is in progress.
    """

    def __init__(
        self,
        accelerator: _accelerate.AcceleratorLike,
        watch: HangDetector,
        arguments: dict[str, Any],
        reproducible: bool = False,
    ) -> None:
        self.accelerator = accelerator
        self.num_processes: int = accelerator.num_processes
        self.is_main_process: bool = accelerator.is_main_process
        self.is_local_main_process: bool = accelerator.is_local_main_process
        self.device: torch.device = _accelerate.device_of(accelerator)
        self.watch = watch
        self.sharding: ShardingSettings | None = read_settings(accelerator, arguments)
        self.reproducible = reproducible
        self.deepspeed: DeepSpeedConfig | None = arguments["deepspeed"]
        self.exchange: Exchange = Alone()
        self.loaders: Loaders = Loaders(accelerator, fixed_batches=reproducible)
        self.checkpointer: Checkpointer = Checkpointer()
        self.added: AddedModules = AddedModules()
        self.optimizer_modes: OptimizerModes = OptimizerModes()
        self.hooks: TrainingHooks = TrainingHooks()
        self.makes_optimizer: bool = False
        self.turn: list[None] = [None]
        self.preempt: PreemptionRequest = PreemptionRequest()


class RunState:
    """The parts and the position of a run; kept until the next run begins.

    Args:
        setup: The setup of the trainer.
        parts: The trained parts of the run, by the name of the optimizer.
        eval_sets: The evaluation sets of the run.
        progress: The position of the run.
        describe: Returns the values that must stay the same on all processes.
        means: The means to begin with; None for new means.

    Attributes:
        setup: The setup of the trainer.
        parts: The trained parts of the run, by the name of the optimizer.
        eval_sets: The evaluation sets of the run.
        exchange: The exchange of gradients between processes.
        checkpointer: The saving of training states.
        means: The means of the epoch so far: of its losses and of logged values.
        progress: The position of the run.
        rank_sync: The common decisions of the processes.
        resumption: The beginning of the run: its saved state, if it resumed.
        fitting: The choice of batch sizes by memory; None in other runs.
        running: The kind of the run in progress, None when it has ended.
        contexts: The contexts that end with the run.
        placed: The functions that restore the models after the run.
        gradient_clip_norm: The argument of the run.
        is_padding_batch: Whether the current batch is a padding batch.
        last_batch: A batch that may become the padding batch of a process without a batch.
        checked_steps: The default steps whose first batch was checked.
    """

    def __init__(
        self,
        setup: Setup,
        parts: Mapping[str, Part],
        eval_sets: EvaluationSets,
        progress: Progress,
        describe: Describe = dict,
        means: StepMeans | None = None,
    ) -> None:
        self.setup = setup
        self.parts: dict[str, Part] = dict(parts)
        self.eval_sets = eval_sets
        self.exchange: Exchange = setup.exchange
        self.checkpointer: Checkpointer = setup.checkpointer
        self.means: StepMeans = StepMeans(exact=setup.reproducible) if means is None else means
        self.progress = progress
        self.rank_sync: RankSync = RankSync(setup.device, setup.num_processes, describe, setup.preempt)
        self.resumption: ResumePlan = ResumePlan(self.progress, setup.device, reproducible=setup.reproducible)
        self.fitting: BatchSizeFitting | None = None
        self.running: RunKind | None = None
        self.contexts: ExitStack = ExitStack()
        self.placed: ExitStack = ExitStack()
        self.gradient_clip_norm: float | None = None
        self.is_padding_batch: bool = False
        self.last_batch: Any = None
        self.checked_steps: set[str] = set()
        setup.loaders.start_run()
        setup.checkpointer.start_run(self)

    @property
    def shares_buffers(self) -> bool:
        """Whether all processes have the same buffers of models: the buffers of the first process, or their means.

        Otherwise, each process keeps its own buffers from the start of the training on.
        """
        return self.exchange.shares_buffers

    @property
    def scaler(self) -> SupportsStateDict | None:
        """The gradient scaler of fp16."""
        return self.setup.accelerator.scaler

    def reference_items(self) -> dict[str, float | None]:
        """Return the reference number of items of an update of each optimizer, by name; None if samples are counted."""
        return {name: part.accumulation.reference_items for name, part in self.parts.items()}

    def require_between_steps(self, what: str) -> None:
        """Raise an error within a step of a reproducible run, because processes have different numbers of steps.

        Args:
            what: The name of the call.

        Raises:
            ConfigurationError: A step is in progress.
        """
        is_in_step = self.means.is_in_step and not self.checkpointer.is_between_steps
        require_between_steps(self.exchange, what, is_in_step=is_in_step)

    def make_run_config(
        self, run: ResumableRun, numbers: tuple[int, int, int, int | None, float | None]
    ) -> TrainerRunConfig:
        """Return the config of a run, from its arguments and its loaders.

        Args:
            run: The run, with its loaders.
            numbers: The arguments of ``Trainer._create_run_config``, in their order.
        """
        batch_size, num_epochs, accumulation_steps, max_num_train_steps, clip_value = numbers
        training = self.setup.loaders.settings("train", run.train_dataloader, batch_size)
        evaluation = self.setup.loaders.settings("eval", run.eval_dataloader, batch_size)
        updates_per_epoch, samples_per_update = 0, None
        if self.running == "train":
            samples_per_update = self.setup.loaders.samples_per_update
            lengths = run.epoch_lengths
            if max_num_train_steps is None:
                max_num_train_steps = lengths.updates_before(num_epochs)
            else:
                num_epochs = lengths.epochs_for(max_num_train_steps)
            updates_per_epoch = lengths.mean_updates(num_epochs)
        processes = self.setup.num_processes
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
            is_local_process_zero=self.setup.is_local_main_process,
            is_world_process_zero=self.setup.is_main_process,
            is_distributed=processes > 1,
            mixed_precision=_accelerate.computed_precision(self.setup.accelerator),
            num_processes=processes,
            gradient_clip_norm=self.gradient_clip_norm,
            seed=self.resumption.seed,
        )

    def train_optimizers(self, optimizers: Iterable[Optimizer]) -> None:
        """Put optimizers that have modes into training mode until the run ends.

        Args:
            optimizers: All optimizers of the run.
        """
        self.placed.callback(self.setup.optimizer_modes.end)
        self.setup.optimizer_modes.train(optimizers)

    def separate_means(self) -> AbstractContextManager[None]:
        """Return a context in which losses and logged values are separate, for example in an evaluation."""
        return temporarily(self, means=StepMeans(exact=self.setup.reproducible))

    @contextmanager
    def snapshot(self, trainer: object) -> Generator[None]:
        """Restore the attributes of the trainer, the setup and its checkpointer, and the gradient scaler, afterwards.

        Args:
            trainer: The trainer.
        """
        scaler = self.setup.accelerator.scaler
        of_scaler = None if scaler is None else scaler.state_dict()
        try:
            with attributes_restored(trainer, self, self.checkpointer), self.separate_means():
                yield
        finally:
            if scaler is not None and of_scaler is not None:
                scaler.load_state_dict(of_scaler)

    @contextmanager
    def dry_run(self, trainer: ResumableRun, data: Sequence[object]) -> Generator[None]:
        """Undo runs within the context afterwards.

        Args:
            trainer: The trainer.
            data: The data of the runs: loaders and their arguments.
        """
        with dry_run(trainer, data), self.snapshot(trainer):
            trainer.run_history = InMemoryRunHistory()
            yield
