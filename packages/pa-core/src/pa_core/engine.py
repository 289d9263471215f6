"""The engine: the basis of every training loop, including custom ones."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, Self, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset
from typing_extensions import override

from pa_core import (
    _accelerate,
    alike,
    compatibility,
    default_step,
    distributed,
    input_checks,
    run_scheduler,
)
from pa_core.accumulation import Accumulation, MicroBatch, forget_gradients, micro_batches
from pa_core.added_modules import AddedModules
from pa_core.any_trainer import EVENT_NAMES, AnyTrainer, CallbackHandler, CallbackLike, TrainerCallback
from pa_core.callbacks.limit_batches import add_limit_of_environment
from pa_core.data.batch_count import BatchCount
from pa_core.data.custom_loader import batches_of_slices, innermost, is_keyed
from pa_core.data.evaluation_sets import EvaluationSets
from pa_core.data.given_data import GivenData, check_arguments_of_loaders
from pa_core.data.loaders import Loaders, Purpose, batches_on_device, count_steps, end_workers
from pa_core.distributed import fail_fast, processes, sum_over_processes
from pa_core.distributed.agreement import Agreement
from pa_core.distributed.comparison import PLACE, Describe, agree_on_integer, require_alike
from pa_core.distributed.hang_detector import HangDetector, Place
from pa_core.distributed.shared_errors import showing_errors_once
from pa_core.epoch_lengths import EpochLengths
from pa_core.errors import NonFiniteLossError, StopTrainingError, UnsupportedConfigurationError
from pa_core.placeholders import placeholder_values
from pa_core.placement import place
from pa_core.progress import Phase, Progress
from pa_core.run_config import TrainerRunConfig
from pa_core.scheduler_stepping import SchedulerStepping
from pa_core.sharded_tensors import reshard
from pa_core.sharding.compiled_blocks import compile_in_place
from pa_core.sharding.gradient_clipping import clip_gradient_norm, clip_gradient_values
from pa_core.sharding.settings import read_settings
from pa_core.sharding.shard_model import shard
from pa_core.step_output import no_sample_counted
from pa_core.subclasses import check_subclass
from pa_core.tracking import InMemoryRunHistory, LossTracker, RunHistory, StepMeans
from pa_core.trained import Trained
from pa_core.training_state import (
    EvaluationInterrupted,
    Resumption,
    RunParts,
    SafePoints,
    asked_settings,
    folder_of,
    homes_of,
)
from pa_core.types import (
    LossFunction,
    SizedIterable,
    StatefulScheduler,
)
from pa_core.unwrapping import unwrap_model

__all__ = ["Engine", "nothing_kept_of_runs"]

_END: Any = object()

_P = ParamSpec("_P")


class Engine(AnyTrainer):
    """Begins and ends runs, and gives a loop its data, its events, its agreement and its training states.

    ``Trainer`` and ``Run`` derive from it, each with its own loop. It makes new parts of a run for each of them, and
    calls them in the order that keeps their promises; what they do is in separate modules.
    """

    _stepping: SchedulerStepping
    _gradient_clip_norm: float | None
    _checked_steps: set[str]
    _watch: HangDetector
    _first_step: int
    _last_batch: Any

    def __init__(
        self,
        model: nn.Module,
        loss_func: LossFunction | None,
        optimizer: Optimizer | None,
        callbacks: Iterable[CallbackLike[Self]],
        run_history: RunHistory | None,
        *,
        mixed_precision: str | None,
        cpu: bool | None,
        max_wait_seconds: float | None,
    ) -> None:
        self.model: nn.Module = model
        self.loss_func: LossFunction = cast("LossFunction", loss_func)
        self.optimizer: Optimizer = cast("Optimizer", optimizer)
        self.run_history: RunHistory = InMemoryRunHistory() if run_history is None else run_history
        self.run_config: TrainerRunConfig = _unset()
        self.train_dataset: Dataset[Any] = _unset()
        self.eval_dataset: Dataset[Any] | None = None
        self.collate_fn: Callable[[list[Any]], Any] | None = None
        self.create_scheduler_fn: Callable[[Optimizer], StatefulScheduler] | None = None
        self.scheduler: StatefulScheduler | None = None
        self.gradient_norm = None
        self.train_dataloader: SizedIterable = _unset()
        self.epoch_lengths: EpochLengths = _unset()
        self.eval_dataloader: SizedIterable | None = None
        self._loss_tracker = LossTracker()
        self._step_means = StepMeans()
        self._added = AddedModules()
        self._accelerator, arguments = compatibility.create_accelerator(self._create_accelerator, mixed_precision, cpu)
        processes.prepare_process(self._accelerator)
        with showing_errors_once():  # from here on the processes are connected
            input_checks.check_trainer_arguments(model, loss_func, optimizer)
            self._watch = HangDetector(max_wait_seconds)
            self.callback_handler: CallbackHandler[Any] = self._create_callback_handler(callbacks)
        compatibility.require_usable(self._accelerator, arguments, model)
        self._sharding = read_settings(self._accelerator, arguments)
        self._loaders = Loaders(self._accelerator)
        self._eval_sets = EvaluationSets()
        self._gradient_clip_norm = None
        self._running = None
        self._run_contexts, self._placed = ExitStack(), ExitStack()
        self._start_bookkeeping()
        self._safe_points = SafePoints(self._parts_of_run())

    def _finish_init(self) -> None:
        """End the constructor: from here on, what a subclass or a script sets is its own."""
        add_limit_of_environment(self.callback_handler)
        self.callback_handler.call_event(TrainerCallback.on_init_end, self)

    @override
    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raise an error, or warn, for methods that replace a private part of the loop, or that it would never call."""
        super().__init_subclass__(**kwargs)
        trainer_class = _trainer_class(cls)
        if trainer_class is not cls:
            check_subclass(cls, trainer_class, EVENT_NAMES)

    @override
    def __repr__(self) -> str:
        models, optimizers = (
            ", ".join(type(one).__name__ for one in named.values())
            for named in (self.named_models(), self.named_optimizers())
        )
        done = f"{self.num_epochs_completed} epochs and {self.num_updates_completed} updates completed"
        return f"<{type(self).__name__} of {models} with {optimizers or 'no optimizer'}: {done}>"

    # What a subclass may create in another way

    def _create_accelerator(self) -> _accelerate.AcceleratorLike:
        """Create the ``accelerate.Accelerator`` that places and wraps what a run needs.

        Precision and device are the ones passed to the trainer, and otherwise the launcher's settings. Override this to
        pass other arguments; an Accelerator made here follows the trainer's ``mixed_precision`` and ``cpu`` where it is
        not told otherwise.
        """
        return _accelerate.create_accelerator()

    def _create_callback_handler(self, callbacks: Iterable[CallbackLike[Self]]) -> CallbackHandler[Self]:
        """Create what calls the callbacks; override this for a custom ``CallbackHandler``.

        Args:
            callbacks: What was given to the trainer.
        """
        return CallbackHandler(callbacks)

    def _create_run_config(
        self,
        per_device_batch_size: int,
        num_epochs: int,
        gradient_accumulation_steps: int,
        max_num_train_steps: int | None,
        gradient_clip_value: float | None,
    ) -> TrainerRunConfig:
        """Describe the run, from what was requested and from the loaders that were made.

        Args:
            per_device_batch_size: Samples in a batch of one process, where a loader does not say.
            num_epochs: Epochs requested; ``max_num_train_steps`` overrides them.
            gradient_accumulation_steps: Batches of one process in an update.
            max_num_train_steps: Updates after which the run ends; None for all of the epochs.
            gradient_clip_value: The bound on each element of the gradients.
        """
        training = self._loaders.settings("train", self.train_dataloader, per_device_batch_size)
        evaluation = self._loaders.settings("eval", self.eval_dataloader, per_device_batch_size)
        updates_per_epoch = 0
        if self._running == "train":
            lengths = self.epoch_lengths
            if max_num_train_steps is None:
                max_num_train_steps = lengths.updates_before(num_epochs)
            else:
                num_epochs = lengths.epochs_for(max_num_train_steps)
            updates_per_epoch = lengths.mean_updates(num_epochs)
        processes = self._accelerator.num_processes
        return TrainerRunConfig(
            num_epochs=num_epochs,
            train_per_device_batch_size=training.batch_size,
            train_dl_kwargs=training.kwargs,
            eval_per_device_batch_size=evaluation.batch_size,
            eval_dl_kwargs=evaluation.kwargs,
            gradient_accumulation_steps=gradient_accumulation_steps,
            gradient_clip_value=gradient_clip_value,
            train_total_batch_size=training.batch_size * processes * gradient_accumulation_steps,
            eval_total_batch_size=evaluation.batch_size * processes,
            num_update_steps_per_epoch=updates_per_epoch,
            max_num_train_steps=max_num_train_steps,
            is_local_process_zero=self.is_local_main_process,
            is_world_process_zero=self.is_main_process,
            is_distributed=processes > 1,
            mixed_precision=_accelerate.computed_precision(self._accelerator),
            num_processes=processes,
            gradient_clip_norm=self._gradient_clip_norm,
            seed=self._resumption.seed,
        )

    # What every loop stands on: beginning and ending a run

    @contextmanager
    def _attributes_kept(self) -> Generator[None]:
        """The context of runs of which no attribute tells afterwards: not their progress, data, settings or scaler."""
        attributes, safe_points = dict(vars(self)), dict(vars(self._safe_points))
        scaler = self._accelerator.scaler
        of_scaler = None if scaler is None else scaler.state_dict()
        self._loss_tracker, self._step_means = LossTracker(), StepMeans()
        try:
            yield
        finally:
            for name in vars(self).keys() - attributes.keys():
                del vars(self)[name]
            vars(self).update(attributes)
            vars(self._safe_points).update(safe_points)
            if scaler is not None and of_scaler is not None:
                scaler.load_state_dict(of_scaler)

    def _require_ready(self, name: Literal["train", "evaluate", "predict"]) -> None:
        """Raise an error if another run is in progress, which a new one would overwrite."""
        input_checks.refuse_run_within_run(name, self._running)
        reshard(self.model)  # a script may have called it, and the optimizer knows the pieces

    @contextmanager
    def _run(
        self, kind: Literal["train", "evaluate", "predict"], describe_arguments: Describe, *, seed: int | None = None
    ) -> Generator[None]:
        """Begin a run, and restore the user's objects no matter how it ends.

        Args:
            kind: What the run does.
            describe_arguments: Returns what was called, and with what.
            seed: What everything random follows from; None to draw it.
        """
        self._start_bookkeeping()
        self._safe_points.start_run(self._parts_of_run())
        with self._watch.run(lambda: self._progress.updates):
            seed = int(torch.randint(2**63 - 1, ()).item()) if seed is None else seed
            with showing_errors_once():
                self._resumption.seed = agree_on_integer(
                    seed, lambda: {**describe_arguments(), **self._describe_setting()}, self.device
                )
            with self._run_contexts, self._ending_in_order(kind):
                self._run_contexts.callback(self._safe_points.release_folders)
                yield
        self.callback_handler.warn_of_unfired_events()

    @contextmanager
    def _ending_in_order(self, kind: Literal["train", "evaluate", "predict"]) -> Generator[None]:
        """Let a run have its clock meanwhile, and leave everything as it was."""
        self.run_history.clock.start()
        self._running = kind
        model = self.model
        try:
            with self._watch.explaining():
                yield
        except BaseException as exception:
            self._safe_points.end(exception, self.device)
            with fail_fast.ending_process_unless_all_fail(exception):
                self._close_after(exception)
            raise
        finally:
            self._running = None
            optimizers = self.named_optimizers().values()
            if kind == "train":
                for optimizer in optimizers:
                    asked_settings.end_run(optimizer)
            self.run_history.clock.stop()
            end_workers(self.train_dataloader, self.eval_dataloader, *self.eval_dataloaders.values())
            self._release_models()
            self.model = model
            self._added.restore()
            forget_gradients(self.model, *optimizers)

    def _close_after(self, exception: BaseException) -> None:
        """Close everything that is open when an exception ends the run, even if a callback raises an error."""
        problems: list[BaseException] = []
        for listener in self.callback_handler.listeners(TrainerCallback.on_exception.__name__):
            try:
                listener(self, exception=exception)
            except BaseException as problem:
                problems.append(problem)
        self._safe_points.abandon(exception)
        end_workers(self.train_dataloader, self.eval_dataloader, *self.eval_dataloaders.values())
        if problems:
            raise problems[0]

    def _start_bookkeeping(self) -> None:
        """Forget what was noted down in an earlier run."""
        self._progress = Progress()
        self._agreement = Agreement(self.device, self.num_processes, self._describe_course)
        self._resumption = Resumption(self._progress, self.device)
        self._loaders.start_run()
        self._checked_steps = set()
        self._first_step, self._last_batch, self._is_at_empty_batch = 0, None, False
        self.preemptible = False
        self.resume_from: Path | None = None

    def _local_folder(self, resume_from: str | Path | None) -> Path | None:
        """Where the states are that a run resumes from; of a URL, where they are put."""
        if resume_from is None:
            return None
        return folder_of(resume_from, homes_of(self.callback_handler.callbacks))

    @abstractmethod
    def _trained_by_optimizer(self) -> Mapping[str, Trained]:
        """What is trained, by the name of the optimizer."""

    def _accumulations(self) -> Mapping[str, Accumulation]:
        return {name: trained.accumulation for name, trained in self._trained_by_optimizer().items()}

    def _place(self, model: nn.Module, for_training: bool) -> nn.Module:
        """Place a model until the run ends; return what a step calls."""
        called, undo = place(model, self._accelerator, for_training=for_training)
        self._placed.callback(undo)
        return called

    def _release_models(self) -> None:
        """Make the models at the end of a run what they were before it."""
        for trained in self._trained_by_optimizer().values():
            trained.close()
        self._placed.close()

    def _parts_of_run(self) -> RunParts:
        """What decides which states are saved, and when."""
        return RunParts(
            self._progress,
            self._resumption,
            self._accumulations(),
            self._agreement,
            scaler=self._accelerator.scaler,
        )

    # What every loop stands on: what is the same on all processes

    def _describe_setting(self) -> dict[str, str]:
        """What a run works with besides its arguments."""
        return {
            "mixed_precision": _accelerate.computed_precision(self._accelerator),
            "callbacks": alike.describe_callbacks(self.callback_handler.callbacks),
            "loss_func": alike.describe_value(self.loss_func),
            "run_history": alike.describe_value(self.run_history),
        }

    def _require_same_parts(self) -> None:
        """Compare models, loaders and optimizers, once they are made and before their first exchange.

        Raises:
            RanksDifferError: They are not the same on all processes.
        """
        require_alike(self._describe_parts, self.device)

    def _shard(self, *models: nn.Module) -> None:
        """Split models over the processes where that was requested; from then on, the optimizers train the pieces."""
        for model in models:
            if self._sharding is not None:
                shard(model, self._sharding, self._accelerator, self.named_optimizers().values())
            compile_in_place(model, self._accelerator)

    def _describe_parts(self) -> dict[str, str]:
        models = {**self.named_models(), **self._added.called()}
        texts = self._describe_evaluation()
        if self._running == "train":
            optimizers = self.named_optimizers()
            texts |= alike.describe_loader("training", self.train_dataloader)
            texts |= alike.describe_optimizers(optimizers, models)
            texts |= alike.describe_hyperparameters(optimizers)
        return texts | alike.describe_models(models)

    def _describe_evaluation(self) -> dict[str, str]:
        loaders = self.eval_dataloaders
        if not loaders:
            return alike.describe_loader("evaluation", self.eval_dataloader)
        texts = {"evaluation set in progress": str(self.eval_name)}
        for name, loader in loaders.items():
            texts |= alike.describe_loader(f"evaluation of {name}:", loader)
        return texts

    def _describe_start(self) -> dict[str, str]:
        """What all processes have when their first step is about to come; schedulers are made late."""
        return {**self._describe_course(), **alike.describe_schedulers(self.named_schedulers())}

    def _describe_course(self) -> dict[str, str]:
        """What stays the same on all processes in the course of a run, though callbacks may change it."""
        updates = self.num_updates_completed
        texts = {PLACE: f"{self._watch.place}, after {updates} update{'' if updates == 1 else 's'}"}
        texts |= self._describe_evaluation()
        if self._running == "train":
            texts |= alike.describe_trained(self.named_models())
            texts |= alike.describe_loader("training", self.train_dataloader)
            texts |= alike.describe_hyperparameters(self.named_optimizers())
        return texts

    def _reset_run_history(self) -> None:
        self.run_history.reset()
        self.run_history.clock.reset()

    # What every loop stands on: events

    @contextmanager
    def _stopping_in_order(self) -> Generator[None]:
        """Let a ``StopTrainingError`` end what is within the context; the run continues with its last events."""
        try:
            yield
        except StopTrainingError as error:
            # This frame leads to one that refers to the error, from Python 3.12 on: a cycle, which keeps the last step.
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
            self._agreement.stop = error
            self.callback_handler.call_event(TrainerCallback.on_stop_training_error, self, error=error)
        self._watch.place = Place.RUN_END

    def _call_hook(self, hook: Callable[[], None]) -> None:
        """Call a method of the trainer that may stop the run."""
        try:
            hook()
        except StopTrainingError as error:
            self._agreement.ask_to_stop(error)

    def _call_event_of_evaluation(
        self, event: Callable[Concatenate[Any, Any, ...], None], is_intermediate: bool
    ) -> None:
        """The argument is passed only where it says something."""
        if is_intermediate:
            self._call_event(event, is_intermediate=True)
        else:
            self._call_event(event)

    # What every loop stands on: loaders and schedulers

    def _check_data(
        self, data: Sequence[GivenData], per_device_batch_size: int, collate_fn: Callable[[list[Any]], Any] | None
    ) -> None:
        """Raise an error for data that this trainer or process cannot use, and arguments without effect."""
        for one in data:
            one.check_for(type(self), self.process_index, self.num_processes)
        check_arguments_of_loaders(data, per_device_batch_size, collate_fn)

    def _create_dataloader(
        self,
        dataset: Dataset[Any],
        purpose: Purpose,
        defaults: dict[str, Any],
        asked: dict[str, Any] | None,
        *,
        allows_empty_shares: bool = False,
    ) -> SizedIterable[Any]:
        return self._loaders.create(
            dataset,
            purpose,
            defaults,
            asked,
            collate_fn=self.collate_fn,
            seed=self._resumption.seed,
            say=self.print,
            allows_empty_shares=allows_empty_shares,
        )

    def _placeholder_values(self) -> dict[str, float]:
        return placeholder_values(
            num_epochs=self.run_config.num_epochs,
            num_update_steps_per_epoch=self.run_config.num_update_steps_per_epoch,
            train_dataloader_len=self.epoch_lengths.mean_steps(self.run_config.num_epochs),
            eval_dataloader_len=None if self.eval_dataloader is None else count_steps(self.eval_dataloader),
        )

    @property
    def _steps_scheduler_itself(self) -> bool:
        """Whether a subclass steps the scheduler of the trainer in its own way."""
        return False

    def _require_usable_schedulers(self) -> None:
        """Raise an error for schedulers that cannot be stepped in the way that was requested."""
        schedulers: Mapping[str, object] = self.named_schedulers() or {"scheduler": None}
        for name, scheduler in schedulers.items():
            is_overridden = name == "scheduler" and self._steps_scheduler_itself
            self._stepping.require_usable(scheduler, self, is_overridden=is_overridden)

    def _check_length_of_schedules(self) -> None:
        """Raise an error for schedules that end with an error before the run does."""
        updates = cast("int", self.run_config.max_num_train_steps) - self.num_updates_completed
        steps = self._stepping.count(updates, self.run_config.num_epochs - self.num_epochs_completed)
        for name, scheduler in self.named_schedulers().items():
            if name != "scheduler" or not self._steps_scheduler_itself:
                run_scheduler.check_length_of_schedule(scheduler, steps, is_resumed=self._resumption.saved is not None)

    # What every loop stands on: steps and epochs

    @property
    def _is_at_last_update(self) -> bool:
        """Whether all updates are made, perhaps mid-epoch."""
        return self._progress.updates == self.run_config.max_num_train_steps

    @property
    def _ends_within_epoch(self) -> bool:
        """Whether the last update cut its epoch short, which a longer run would bring to its end."""
        updates_of_whole_epochs = self.epoch_lengths.updates_before(self.num_epochs_completed)
        return self._is_at_last_update and self.num_updates_completed < updates_of_whole_epochs

    @property
    def _batches_per_group(self) -> int:
        """How many batches of the training loader belong together: between two groups, states are saved."""
        return self.run_config.gradient_accumulation_steps

    def _remaining_steps(self, train_dl: SizedIterable, count: BatchCount | None) -> Iterator[tuple[MicroBatch, Any]]:
        """The rest of a training epoch: no step, if the run had its last update before it was interrupted."""
        self._watch.place = Place.TRAINING
        self._first_step = self._progress.steps_in_epoch
        if self._is_at_last_update:
            return iter(())
        for accumulation in self._accumulations().values():
            accumulation.counts_samples = count is not None and count.expected is None
        return micro_batches(
            train_dl,
            self._remaining_batches(train_dl),
            accumulation_steps=self._batches_per_group,
            rank=self._accelerator.process_index,
            num_processes=self._accelerator.num_processes,
            steps_done=self._progress.steps_in_epoch,
            count=count,
        )

    def _remaining_batches(self, train_dl: SizedIterable) -> Iterable[Any]:
        """The batches of the rest of the epoch on the device; a custom data loader is not read ahead."""
        loader = self._resumption.loaders.custom_state(train_dl)
        if loader is None:
            return batches_on_device(train_dl, self.device)
        limit = batches_of_slices(train_dl)
        batches = self._leaving_safe_point(loader.batches())
        return islice(batches, None if limit is None else max(0, limit - self._progress.steps_in_epoch))

    def _stand_in(self, part: MicroBatch) -> Any:
        """Return the batch that a process without a sample is given where it has to do what the others do.

        It is the batch of rank zero, or the last one of a custom loader: the same in each run, so that a resumed run
        draws as many random numbers as one that was not interrupted.
        """
        loader = innermost(self.train_dataloader)
        if is_keyed(loader):
            return loader.fetch_for(part.step - 1 - self._first_step, rank=0)
        if self._last_batch is None:
            raise UnsupportedConfigurationError(
                "The custom loader has no batch on this process, while it has one on others. Pass a dataset, or a "
                "loader with samples for each process."
            )
        return self._last_batch

    @contextmanager
    def _at_empty_batch(self) -> Generator[None]:
        """What is computed within the context has no weight."""
        self._is_at_empty_batch = True
        try:
            yield
        finally:
            self._is_at_empty_batch = False

    def _until_all_end(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Repeat the last batch, without weight, for as long as other processes have batches of a sharded model."""
        arriving, last = iter(batches), None
        while True:
            batch = next(arriving, _END)
            if sum_over_processes(torch.tensor([batch is not _END], dtype=torch.int64, device=self.device)) == 0:
                return
            if batch is not _END:
                last = batch
                yield batch
                continue
            with self._at_empty_batch():
                yield last

    def _leaving_safe_point(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Fetching a batch of a custom data loader changes what the state holds of it."""
        for batch in batches:
            yield batch
            self._safe_points.leave()

    def _calculate_batch_loss(self, batch: Any, method: str) -> dict[str, Any]:
        """The default step: the loss of a batch, whose parts are checked in the first step of a run."""
        return default_step.calculate_batch_loss(self.model, self.loss_func, batch, method, self._checked_steps)

    def _record_means(
        self, loss_name: str, count: BatchCount | None, *, with_loss: bool = True, requires_loss: bool = False
    ) -> None:
        """Record the means over all samples of the epoch on all processes, unless one of them requested a stop.

        Args:
            loss_name: The metric of the loss; the names of other means are made from it.
            count: The batches of a custom data loader, None for one whose length is true.
            with_loss: Whether the loss is recorded, if there was one.
            requires_loss: Whether an epoch without a loss is an error.
        """
        self._watch.place = Place.EPOCH_END
        missing = 0.0 if count is None else count.missing
        missing = self._agreement.add_up(self._loss_tracker, self._step_means, missing)
        has_loss = self._loss_tracker.running_count > 0
        if count is not None:
            self._loaders.check_count(count, missing, is_empty=not has_loss and len(self._step_means) == 0)
        # A run that is made longer may have ended with the last batch of a stream, which shows only now.
        was_over = count is not None and count.expected is None and count.given > 0
        if requires_loss and not has_loss and not was_over:
            raise no_sample_counted(loss_name)
        if with_loss and has_loss:
            self.run_history.update_metric(loss_name, self._loss_tracker.average)
        self._step_means.record(self.run_history, loss_name)

    def _record_shares(self) -> None:
        """Record how large a part of the training of this epoch each source of a mixture has had."""
        loader = innermost(self.train_dataloader)
        if is_keyed(loader):
            for source, share in loader.order.shares(self._progress.samples_in_epoch).items():
                self.run_history.update_metric(f"train_share_{source}_epoch", share)

    def _make_step(self, trained: Trained, part: MicroBatch, *, at_once: bool, is_first: bool = True) -> bool:
        """Update the weights by the gradients of one accumulation group; return False if they overflowed in fp16.

        Args:
            trained: What is updated.
            part: The part of the last batch in the update.
            at_once: Whether to wait for the flags of the other processes, where they are read late.
            is_first: Whether no other optimizer of the update has been stepped.

        Raises:
            StopTrainingError: A process requested a stop.
        """
        self._progress.steps_in_epoch = part.step

        # agree: every process stops, saves or is preempted at the same update
        items = self._agreement.before_update(
            trained.finish_exchange, trained.accumulation.items, at_once=at_once, may_stop=is_first
        )
        trained.accumulation.normalise(trained.parameters, items)

        # update; not unscaled in the methods that follow, as those of a user may know nothing of a scaler
        overflowed = _accelerate.unscale(self._accelerator, *trained.optimizers.values())
        try:
            self._update_weights(trained, overflowed=overflowed)
        except StopTrainingError as error:
            self._agreement.ask_to_stop(error)
        self._clear_gradients(trained)
        trained.end_update()

        # count
        if is_first:
            self._progress.finish_group(self.run_history.clock)
            if not overflowed:
                self._progress.finish_update(self.run_history.clock)
        if not overflowed and self._safe_points.unchecked_optimizers:
            for name in self._safe_points.unchecked_optimizers & trained.optimizers.keys():
                self._safe_points.check_optimizer(name, self)
        return not overflowed

    def _finish_update(self) -> None:
        """Call the event of an update, between two steps, where an evaluation may be interrupted."""
        self._safe_points.is_between_steps = True
        try:
            self._call_event(TrainerCallback.on_optimizer_step_end, update=self._progress.updates)
        finally:
            self._safe_points.is_between_steps = False
        self._step_means.end_step()

    def _update_weights(self, trained: Trained, *, overflowed: bool) -> None:
        """Clip the gradients; step optimizers and schedulers, unless the gradients overflowed."""
        self._clip(trained.parameters)
        if not overflowed:
            trained.step()
            if self._stepping.after == "update":
                self._step_schedules(trained)

    def _step_schedules(self, trained: Trained) -> None:
        for scheduler in trained.schedulers.values():
            self._stepping.step(scheduler, self)

    def _clear_gradients(self, trained: Trained) -> None:
        """Clear the gradients after an update."""
        for optimizer in trained.optimizers.values():
            optimizer.zero_grad()

    def _clip(self, parameters: Callable[[], Iterable[Tensor]]) -> None:
        """Clip the gradients of an update as the run was told to."""
        value, norm = self.run_config.gradient_clip_value, self.run_config.gradient_clip_norm
        if value is not None:
            clip_gradient_values(parameters(), value)
        if norm is not None:
            self.gradient_norm = clip_gradient_norm(parameters(), norm)

    @contextmanager
    def _evaluating(self, place: Place = Place.EVALUATION) -> Generator[None]:
        """Within the context the model is the module without wrappers; means and modes of training come back."""
        wrapped, losses_of_training, means_of_training = self.model, self._loss_tracker, self._step_means
        modes = [(module, module.training) for module in wrapped.modules()]
        self.model = unwrap_model(wrapped)
        self._loss_tracker, self._step_means = LossTracker(), StepMeans()
        try:
            with self._watch.at(place):
                distributed.broadcast_buffers(self.model)
                with self._added.evaluating(self.optimizer):
                    yield
        finally:
            self.model = wrapped
            self._loss_tracker, self._step_means = losses_of_training, means_of_training
            for module, training in modes:
                module.training = training

    # What every loop stands on: training states

    def _resume(self, allowed: Collection[str]) -> None:
        """Restore everything of a saved run but what callbacks set up when the run starts."""
        self._resumption.note_settings(self, str(self._stepping), self._stepping.count)
        counts_steps = not (self._steps_scheduler_itself or self._stepping.watch_metric)
        self._resumption.restore(
            self,
            scaler=self._accelerator.scaler,
            objects=self._safe_points.registered,
            allowed=allowed,
            count_steps=self._stepping.count if counts_steps else None,
        )
        if self._resumption.saved is not None:
            for name, accumulation in self._accumulations().items():
                accumulation.nominal = self._resumption.saved.nominal_items.get(name)

    def _resume_steps(self, train_dl: SizedIterable) -> None:
        """Restore what belongs to a place within an epoch, and finish an evaluation that was interrupted there."""
        phase = self._resumption.resume_steps(
            self,
            train_dl,
            report=lambda steps: self._call_event(TrainerCallback.on_train_steps_passed_over, steps=steps),
        )
        if phase is Phase.INTERMEDIATE_EVALUATION:
            self._safe_points.is_between_steps = True
            try:
                self.run_evaluation_epoch(is_intermediate=True, eval_names=self._resumption.interrupted_sets(self))
            except EvaluationInterrupted:
                self._reach_safe_point(Phase.STEP)
            finally:
                self._safe_points.is_between_steps = False

    @contextmanager
    def _interruptible_evaluation(self, names: Sequence[str | None]) -> Generator[None]:
        """Let an evaluation after a training epoch be interrupted by a preemption, for the resumed run to do it.

        Args:
            names: The evaluation sets that are left: the one that is evaluated in the context, and those after it.
        """
        try:
            with self._safe_points.interruptible(Phase.EVALUATION, self, names):
                yield
        except EvaluationInterrupted:
            self._reach_safe_point(Phase.EVALUATION)

    def _reach_end(self) -> None:
        """Save what was requested at the end of a training run, unless a loss that is not finite ended it."""
        if isinstance(self._agreement.stop, NonFiniteLossError):
            self._safe_points.end(self._agreement.stop, self.device)
            self._safe_points.drop_requests(self._agreement.stop)
        else:
            self._resumption.finish(self)
            self._reach_safe_point(Phase.COMPLETE)

    def _reach_safe_point(self, phase: Phase) -> None:
        """Save what was requested: here, everything that the run consists of belongs to the same update.

        Args:
            phase: What comes next.
        """
        self._safe_points.reach(phase, self, self._call_state_event)


def _trainer_class(cls: type[Engine]) -> type[Engine]:
    """The class with the loop that a class derives from, such as ``Trainer``."""
    return cls.__mro__[cls.__mro__.index(Engine) - 1]


def _unset() -> Any:
    """The value of attributes that have one from the first run on, and are typed as if they always had."""
    return None


def nothing_kept_of_runs(engine: Engine) -> AbstractContextManager[None]:
    """Return a context whose runs leave no trace in a trainer's attributes: progress, data, settings, fp16's scaler.

    Weights, optimizers and random numbers are the caller's to restore.

    Args:
        engine: The trainer.

    Example:
        >>> from pa_core import Trainer
        >>> from pa_core.testing import make_regression
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[])
        >>> with nothing_kept_of_runs(trainer):
        ...     trainer.train(make_regression(64), num_epochs=1)
        >>> trainer.num_updates_completed
        0
    """
    return engine._attributes_kept()  # pyright: ignore[reportPrivateUsage]  # the entry point for other distributions
