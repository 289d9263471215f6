"""A run of a ``Trainer`` or a ``Run``: its events, epochs, evaluations and safe points."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import chain, islice
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from pa_core import distributed
from pa_core._attributes import temporarily
from pa_core._tensors import unwrap_model
from pa_core.data.batch_count import BatchCount
from pa_core.data.custom_loader import batches_of_slices, count_steps, innermost, is_keyed
from pa_core.data.evaluation_sets import EvaluationSets
from pa_core.data.loaders import Purpose, batches_on_device
from pa_core.distributed import sum_over_processes
from pa_core.distributed.comparison import Describe
from pa_core.engine import scheduler_stepping
from pa_core.engine.any_trainer import AnyTrainer, TrainerCallback
from pa_core.engine.callback_checks import may_request
from pa_core.engine.dry_run import restored
from pa_core.engine.first_updates import OwnSteps
from pa_core.engine.micro_batches import BatchPlace, micro_batches
from pa_core.engine.parts import Part
from pa_core.engine.run_arguments import NO_ARGUMENTS, RunArguments
from pa_core.engine.run_descriptions import describe_course
from pa_core.engine.setup import RunState, Setup
from pa_core.errors import ConfigurationError, NonFiniteLossError, StopTrainingError, UnsupportedConfigurationError
from pa_core.sharding.gradient_clipping import clip_gradient_norm, clip_gradient_values
from pa_core.steps.default_step import no_sample_counted
from pa_core.steps.placeholders import TrainerPlaceholderValues
from pa_core.tracking import StepMeans
from pa_core.training_state.checkpointer import EvaluationInterrupted
from pa_core.training_state.downloaded_states import cache_folder, local_folders
from pa_core.training_state.progress import Phase, Progress, Stage
from pa_core.types import SizedIterable
from pa_data.rng import restored_rng_states

_END: Any = object()

_AFTER_TRAINING: Final = ("on_train_epoch_end", "on_eval_epoch_start", "eval_epoch_end", "on_training_run_epoch_end")
"""The events and hooks after the training of an epoch, for which processes agree whether any may make a request."""

_HOOKS: Final = {
    "on_eval_epoch_start": "eval_epoch_start",
    "eval_epoch_end": "eval_epoch_end",
    "on_training_run_epoch_end": "training_run_epoch_end",
}
"""The hooks that are called together with an event, or alone."""


class Session(RunState):
    """A run: its data, events, agreement of processes and training states; each run has a new session.

    Args:
        trainer: The trainer.
        setup: The setup of the trainer.
        arguments: The arguments of the run; the default is for the time before the first run.
        parts: The trained parts of the run, by the name of the optimizer.
        eval_sets: The evaluation sets of the run.
        means: The means of the last training, if the run does not train; None for new means.

    Attributes:
        trainer: The trainer.
        arguments: The arguments of the run.
        update_weights: ``TrainingHooks.update_weights``, or a default that steps the optimizers.
        count: The counter of the batches of a custom loader in the training of an epoch.
        num_sets_to_come: The number of sets to evaluate after the current set, within the same training epoch.
        updates_of_batch: The number of updates with the current batch of the training loader.
        has_padding_batches: Whether a process without a sample gets the batch of another process.
        keeps_batch: Whether a batch may be needed later as a padding batch.
        own_steps: The detection of steps of a script that the run also makes.
        gathered_empty: Tensors that a process without a sample gathered from others, which compute gradients through
            them.
    """

    def __init__(
        self,
        trainer: AnyTrainer,
        setup: Setup,
        arguments: RunArguments = NO_ARGUMENTS,
        parts: Mapping[str, Part] = MappingProxyType({}),
        eval_sets: EvaluationSets | None = None,
        means: StepMeans | None = None,
    ) -> None:
        self.trainer = trainer
        progress = Progress()
        describe = partial(describe_course, trainer, progress, is_training=bool(parts))
        super().__init__(setup, parts, eval_sets or EvaluationSets(), progress, describe, means)
        self.arguments = arguments
        self.update_weights: Callable[[Part, bool], None] = setup.hooks.update_weights or self._update_by_optimizers
        self.gradient_clip_norm = arguments.gradient_clip_norm
        self.count: BatchCount | None = None
        self.has_padding_batches: bool = False
        self.keeps_batch: bool = False
        self._is_rehearsed = False
        self.own_steps: OwnSteps = OwnSteps(trainer, setup, self.parts, progress)
        self.num_sets_to_come: int = 0
        self.updates_of_batch: int = 0
        self.gathered_empty: list[Tensor] = []

    # Events

    def call(self, event: str | Callable[..., None], **kwargs: Any) -> None:
        """Call an event that may stop the run, after all callbacks have been called.

        The effect of a callback, for example saving the best model of the last epoch, must not depend on its place in
        the list; and a callback that gathers would wait for the process that stopped.

        Args:
            event: The event: a method of ``TrainerCallback``, or its name.
            **kwargs: Passed to the event.

        Raises:
            StopTrainingError: A callback requested a stop, in a run of one process.
        """
        stops = False
        trainer, rank_sync = self.trainer, self.rank_sync
        name = event if isinstance(event, str) else event.__name__
        for listener in trainer.callback_handler.heard.get(name, ()):
            try:
                listener(trainer, **kwargs)
            except NonFiniteLossError as error:
                rank_sync.request_stop(error)  # at once on a single process, so that the loss is not reported or saved
            except StopTrainingError as error:
                rank_sync.record_stop(error)
                stops = True
            except EvaluationInterrupted:
                if not self.checkpointer.is_between_steps:
                    raise
        if stops:
            rank_sync.stop_if_alone()

    def _may_request(self, place: str) -> bool:
        """Whether this process may request anything in an event with its hook, or in a hook."""
        if place in _HOOKS and self.setup.hooks.overrides(_HOOKS[place]):
            return True
        callbacks = self.trainer.callback_handler.callbacks
        return any(may_request(callback, place, TrainerCallback) for callback in callbacks)

    def call_hook(self, hook: Callable[[], None]) -> None:
        """Call a method of the trainer that may stop the run.

        Args:
            hook: The method.
        """
        try:
            hook()
        except StopTrainingError as error:
            self.rank_sync.request_stop(error)

    def call_together(
        self,
        event: Callable[..., None],
        hook: Callable[[], None] | None = None,
        describe: Describe | None = None,
        **kwargs: Any,
    ) -> None:
        """Call an event on all processes; if one of them requests a stop, all of them stop at once.

        Args:
            event: The event, as a method of ``TrainerCallback``.
            hook: The method of the trainer that is called before it.
            describe: Returns the values that must be the same on all processes afterwards; None for the values of the
                whole run.
            **kwargs: Passed to the event.
        """
        with self.rank_sync.together(describe, event.__name__):
            if hook is not None:
                hook()
            self.call(event, **kwargs)

    # The beginning of a run

    def create_loader(
        self,
        dataset: Dataset[Any],
        purpose: Purpose,
        defaults: dict[str, Any],
        kwargs: dict[str, Any] | None,
        *,
        allows_empty_shares: bool = False,
    ) -> SizedIterable[Any]:
        """Create the loader of a dataset.

        Args:
            dataset: The dataset.
            purpose: The purpose of the loader.
            defaults: The default arguments, which ``kwargs`` override.
            kwargs: The requested arguments.
            allows_empty_shares: Whether a process may have no sample in a step.
        """
        return self.setup.loaders.create(
            dataset,
            purpose,
            defaults,
            kwargs,
            collate_fn=self.trainer.collate_fn,
            seed=self.resumption.seed,
            allows_empty_shares=allows_empty_shares,
        )

    def find_state(self, arguments: RunArguments) -> None:
        """Find the training state that the run resumes from, if it does; every process must call this.

        Args:
            arguments: The arguments of the run.
        """
        trainer = self.trainer
        if arguments.resume_from is not None:
            trainer.resume_from = cache_folder(arguments.resume_from, local_folders(trainer.callback_handler.callbacks))
        self.resumption.find(trainer, arguments.resume_from, arguments.resume_missing)

    def announce(self) -> None:
        """Call the first event of a run, in which callbacks may replace loaders."""
        self.own_steps.start_run(self.contexts)
        self._is_rehearsed = False
        self.trainer.callback_handler.call_event(TrainerCallback.on_prepare_start, self.trainer)

    def placeholder_values(self) -> dict[str, float]:
        """Return the values of ``TrainerPlaceholderValues`` in this run."""
        trainer, config = self.trainer, self.trainer.run_config
        numbers: dict[TrainerPlaceholderValues, float | None] = {
            TrainerPlaceholderValues.NUM_EPOCHS: config.num_epochs,
            TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH: config.num_update_steps_per_epoch,
            TrainerPlaceholderValues.TRAIN_DATALOADER_LEN: trainer.epoch_lengths.mean_steps(config.num_epochs),
            TrainerPlaceholderValues.EVAL_DATALOADER_LEN: count_steps(trainer.eval_dataloader),
        }
        return {placeholder.value: number for placeholder, number in numbers.items() if number is not None}

    def require_usable_schedulers(self) -> None:
        """Raise an error for schedulers that cannot be stepped as requested."""
        schedulers: Mapping[str, object] = self.trainer.named_schedulers() or {"scheduler": None}
        for name, scheduler in schedulers.items():
            is_overridden = name == "scheduler" and self.setup.hooks.steps_scheduler_itself
            self.arguments.stepping.require_usable(scheduler, self.trainer, is_overridden=is_overridden)

    def check_length_of_schedules(self) -> None:
        """Raise an error for schedules that end with an error before the run does."""
        trainer, config = self.trainer, self.trainer.run_config
        updates = (config.max_num_train_steps or 0) - trainer.num_updates_completed
        steps = self.arguments.stepping.count(updates, config.num_epochs - trainer.num_epochs_completed)
        is_resumed = self.resumption.saved is not None
        for name, scheduler in trainer.named_schedulers().items():
            if name != "scheduler" or not self.setup.hooks.steps_scheduler_itself:
                scheduler_stepping.check_length_of_schedule(scheduler, steps, is_resumed=is_resumed)

    def reset_history(self) -> None:
        """Remove the metrics of the previous run."""
        self.trainer.run_history.reset()
        self.trainer.run_history.clock.reset()

    def resume(self) -> None:
        """Restore a saved run, except for the values that callbacks set up when the run starts."""
        stepping = self.arguments.stepping
        resumption = self.resumption
        self.train_optimizers(self.trainer.named_optimizers().values())
        resumption.record_settings(self.trainer, str(stepping), stepping.count)
        resumption.restore(
            self.trainer,
            scaler=self.setup.accelerator.scaler,
            objects=self.checkpointer.registered,
            allowed=self.arguments.resume_allow,
        )
        self.setup.optimizer_modes.train_again()
        if resumption.saved is not None:
            for name, part in self.parts.items():
                part.accumulation.reference_items = resumption.saved.reference_items.get(name)

        self.checkpointer.record_layers(self.trainer)

    def begin(self, hook: Callable[[], None] | None = None, describe: Describe | None = None) -> None:
        """Call the first events of the training, and record the objects of the script afterwards.

        Args:
            hook: The method of the trainer that is called before the event.
            describe: Returns the values that must be the same on all processes afterwards.
        """
        self.call_together(TrainerCallback.on_training_run_start, hook, describe)
        self.checkpointer.record_start(self.trainer)

    # The end of a run

    def finish(self, hook: Callable[[], None] | None = None) -> None:
        """Call the last events of a training run, and save a requested state, unless a loss was not finite.

        Args:
            hook: The method of the trainer that is called before the event.
        """
        self.exchange.drop_update()
        self.setup.optimizer_modes.end()
        if hook is not None:
            hook()
        self.trainer.callback_handler.call_event(TrainerCallback.on_training_run_end, self.trainer)
        if isinstance(self.rank_sync.stop, NonFiniteLossError):
            self.checkpointer.end(self.rank_sync.stop, self.trainer.device)
            self.checkpointer.drop_requests(self.rank_sync.stop)
        else:
            self.resumption.finish(self.trainer)
            self.checkpoint_if_requested(Phase.COMPLETE)

    # Epochs

    @property
    def is_at_last_update(self) -> bool:
        """Whether all updates have been made, perhaps mid-epoch."""
        return self.progress.updates == self.trainer.run_config.max_num_train_steps

    def remaining_epochs(self) -> Iterator[int]:
        """Iterate over the numbers of the remaining epochs, from 0."""
        for epoch in self.resumption.remaining_epochs(self.trainer):
            self.checkpointer.next_phase = None
            self.progress.epoch_under_way = epoch
            yield epoch

    def finish_epoch(
        self, hook: Callable[[], None] | None = None, step_schedulers: Callable[[], None] | None = None
    ) -> None:
        """Count the epoch, step the schedulers that step after epochs, and call the last event.

        Args:
            hook: The method of the trainer that is called before the event.
            step_schedulers: Steps all schedulers; None for the schedulers of the parts, one after the other.
        """
        trainer = self.trainer
        self.progress.epochs += 1
        # The last update may have ended the epoch early, which a longer run would complete.
        updates_of_whole_epochs = trainer.epoch_lengths.updates_before(trainer.num_epochs_completed)
        is_whole = not self.is_at_last_update or trainer.num_updates_completed >= updates_of_whole_epochs
        self.own_steps.require_positions(self.arguments.stepping)
        if self.arguments.stepping.after == "epoch" and is_whole and trainer.named_schedulers():
            with self.rank_sync.together():
                if step_schedulers is not None:
                    step_schedulers()
                else:
                    for part in self.parts.values():
                        self.step_schedulers(part)
        self.own_steps.record_positions(self.arguments.stepping)
        if self.is_at_last_update or self.progress.epochs == trainer.run_config.num_epochs:
            self.rank_sync.quiet.clear()  # there is no later exchange for a request
        self.call_together(TrainerCallback.on_training_run_epoch_end, hook)
        trainer.run_history.increment_epoch()
        self.progress.epoch_under_way = None
        self.checkpointer.check_layers(trainer)
        self.checkpoint_if_requested(Phase.EPOCH)

    def set_back_by_one_epoch(self) -> AbstractContextManager[None]:
        """Record metrics with the number of the previous epoch within the context, as after the last epoch.

        Training states and the last events have the number of the next epoch, no matter what ends the context.
        """
        clock = self.trainer.run_history.clock
        return temporarily(clock, epoch=clock.epoch - 1)

    def start_training(self, train_dl: SizedIterable, hook: Callable[[], None] | None = None) -> None:
        """Begin the training of an epoch, or go to the position of a saved run in it.

        Args:
            train_dl: The loader of the epoch.
            hook: The method of the trainer that is called before the event.
        """
        self.means.reset()
        self.progress.start_epoch()
        for part in self.parts.values():
            part.accumulation.items = 0.0
        if hook is not None:
            self.call_hook(hook)
        self.call(TrainerCallback.on_train_epoch_start)
        self.exchange.start_epoch(self.trainer.named_models)
        self._resume_steps(train_dl)
        self.own_steps.start_epoch(self.arguments.stepping)
        self.count = self.setup.loaders.count_batches(train_dl, "training")
        self.progress.stage = Stage.TRAINING

    def batches(self, train_dl: SizedIterable) -> Iterator[tuple[BatchPlace, Any]]:
        """Iterate over the remaining batches of the epoch, each with its place in its update.

        Args:
            train_dl: The loader of the epoch.
        """
        count, config = self.count, self.trainer.run_config
        self.progress.resumed_steps = steps_done = self.progress.steps_in_epoch
        if self.is_at_last_update:  # the run had its last update before it was interrupted
            return iter(())
        for part in self.parts.values():
            part.accumulation.counts_samples = count is not None and count.expected is None
        self.has_padding_batches = self.setup.hooks.pads or any(part.is_sharded for part in self.parts.values())
        self.keeps_batch = self.has_padding_batches and not is_keyed(innermost(train_dl))
        batches = micro_batches(
            train_dl,
            self._remaining_batches(train_dl),
            accumulation_steps=1 if self.arguments.max_updates_per_batch else config.gradient_accumulation_steps,
            rank=self.trainer.process_index,
            num_processes=self.trainer.num_processes,
            steps_done=steps_done,
            count=count,
        )
        return self._rehearsed(batches)

    def _rehearsed(self, batches: Iterator[tuple[BatchPlace, Any]]) -> Iterator[tuple[BatchPlace, Any]]:
        """Compute the first micro-batch of a reproducible run several times; it must not depend on others."""
        if self.setup.hooks.rehearsed is None or self._is_rehearsed:
            return batches
        started: list[tuple[BatchPlace, Any]] = []
        for place, batch in batches:
            started.append((place, batch))
            if place.micro_batch is not None:
                self._is_rehearsed = True
                self._rehearse(place, batch, self.setup.hooks.rehearsed)
                break
        return chain(started, batches)

    def _rehearse(self, place: BatchPlace, batch: Any, compute: Callable[[Any], Tensor]) -> None:
        from pa_core.engine.rehearsal import Rehearsal  # nothing else needs it

        trainer = self.trainer
        roots: dict[str, object] = {**trainer.named_models(), **trainer.modules, "trainer": trainer}
        if trainer.loss_func is not None:
            roots["loss_func"] = trainer.loss_func
        handled = [root for root in roots.values() if isinstance(root, nn.Module)]

        @contextmanager
        def in_turn() -> Generator[None]:
            with self.exchange.repeating(place), self.means.step():
                yield

        with restored(roots, self.setup.device), self.snapshot(trainer):
            Rehearsal(roots, handled, in_turn, compute).require_independent(batch)

    def _remaining_batches(self, train_dl: SizedIterable) -> Iterable[Any]:
        """Return the remaining batches of the epoch on the device; a custom data loader is not read ahead."""
        loader = self.resumption.loaders.custom_state(train_dl)
        if loader is None:
            return batches_on_device(train_dl, self.trainer.device)
        limit = batches_of_slices(train_dl)
        batches = self._marking_unsafe(loader.batches())
        return islice(batches, None if limit is None else max(0, limit - self.progress.resumed_steps))

    def _marking_unsafe(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Iterate over batches; fetching a batch of a custom data loader changes its state."""
        for batch in batches:
            yield batch
            self.checkpointer.next_phase = None

    def finish_training(
        self, hook: Callable[[], None] | None = None, *, with_loss: bool = True, requires_loss: bool = False
    ) -> None:
        """Record the means of the training of an epoch, and call its last event.

        Args:
            hook: The method of the trainer that is called before the event.
            with_loss: Whether a loss is recorded, if steps return it.
            requires_loss: Whether an epoch without a loss is an error.
        """
        self.checkpointer.next_phase = None
        self.own_steps.stop()
        self.exchange.end_epoch()
        self.last_batch = None
        self.means.end_step()
        if hook is not None:
            self.call_hook(hook)
        self.rank_sync.stop_if_alone()
        self.record_means(
            "train_loss_epoch", self.count, _AFTER_TRAINING, with_loss=with_loss, requires_loss=requires_loss
        )
        loader = innermost(self.trainer.train_dataloader)
        if is_keyed(loader):  # the shares of the sources of a mixture
            for source, share in loader.order.shares(self.progress.samples_in_epoch).items():
                self.trainer.run_history.update_metric(f"train_share_{source}_epoch", share)
        self.call_together(TrainerCallback.on_train_epoch_end)

    def record_means(
        self,
        loss_name: str,
        count: BatchCount | None,
        places: Sequence[str] = ("on_eval_epoch_end",),
        *,
        with_loss: bool = True,
        requires_loss: bool = False,
    ) -> None:
        """Record the means over all samples of an epoch on all processes, unless one of the processes requested a stop.

        Args:
            loss_name: The name of the loss; the names of other means are formed in the same way.
            count: The batches of a custom data loader, None for a keyed loader.
            places: The events and hooks to come, for which the processes agree whether any of them may make a request.
            with_loss: Whether a loss is recorded, if steps return it.
            requires_loss: Whether an epoch without a loss is an error.
        """
        self.progress.stage = Stage.EPOCH_END
        missing = 0.0 if count is None else count.missing
        requests = {place: self._may_request(place) for place in places} if self.setup.num_processes > 1 else {}
        missing = self.rank_sync.add_up(self.means, missing, requests)
        has_loss = self.means.losses.running_count > 0
        if count is not None:
            self.setup.loaders.check_count(count, missing, is_empty=not has_loss and len(self.means) == 0)
        # An extended run may have ended with the last batch of a stream, which only shows now.
        was_over = count is not None and count.expected is None and count.given > 0
        if requires_loss and not has_loss and not was_over:
            raise no_sample_counted(loss_name)
        if with_loss and has_loss:
            self.trainer.run_history.update_metric(loss_name, self.means.losses.average)
        self.means.record(self.trainer.run_history, loss_name)

    # Updates

    def padding_batch(self, place: BatchPlace) -> Any:
        """Return the batch of a process without a sample, which has to call the model like the others.

        It is the batch of rank zero, or the last batch of a custom loader. It is the same in each run, so that a
        resumed run draws as many random numbers as an uninterrupted run.

        Args:
            place: The place of the batch in its update.

        Raises:
            UnsupportedConfigurationError: A custom loader has not yielded a batch yet.
        """
        loader = innermost(self.trainer.train_dataloader)
        if is_keyed(loader):
            return loader.fetch_for(place.step - 1 - self.progress.resumed_steps, rank=0)
        if self.last_batch is None:
            raise UnsupportedConfigurationError(
                "The custom loader has batches on other processes, but not on this process. Pass a dataset, or a "
                "loader with samples for each process."
            )
        return self.last_batch

    def _update_by_optimizers(self, part: Part, overflowed: bool) -> None:
        try:
            self.clip(part.parameters)
            if not overflowed:
                part.step()
                if self.arguments.stepping.after == "update":
                    self.step_schedulers(part)
        except StopTrainingError:  # other processes may make further updates before they stop
            part.zero_grad()
            raise
        part.zero_grad()

    def clip(self, parameters: Callable[[], Iterable[Tensor]]) -> None:
        """Clip the gradients of an update by the arguments of the run.

        Args:
            parameters: Returns the parameters of the update.
        """
        config = self.trainer.run_config
        if config.gradient_clip_value is not None:
            clip_gradient_values(parameters(), config.gradient_clip_value)
        if config.gradient_clip_norm is not None:
            self.trainer.gradient_norm = clip_gradient_norm(parameters(), config.gradient_clip_norm)

    def step_schedulers(self, part: Part) -> None:
        """Step the schedulers of a part after its update.

        Args:
            part: The part.
        """
        for scheduler in part.schedulers.values():
            self.arguments.stepping.step(scheduler, self.trainer)

    def require_update_of_batch(self) -> None:
        """Raise an error for more updates of a batch than ``max_updates_per_batch``.

        Raises:
            ConfigurationError: There are more updates.
        """
        if self.updates_of_batch == (self.arguments.max_updates_per_batch or 1):
            raise ConfigurationError(
                f"Update {self.updates_of_batch + 1} of a batch exceeds max_updates_per_batch. Pass "
                f"Run(..., max_updates_per_batch={self.updates_of_batch + 1}) or more."
            )

    # Evaluations

    @contextmanager
    def evaluating(self, stage: Stage = Stage.EVALUATION) -> Generator[None]:
        """Return the context of an evaluation, in which means and modes are separate from the training.

        Args:
            stage: The stage of the run within the block.
        """
        trainer = self.trainer
        self.require_between_steps("An evaluation")
        wrapped = trainer.model
        models = {**trainer.named_models(), "model": wrapped, **trainer.modules}
        modes = [(module, module.training) for model in models.values() for module in model.modules()]
        trainer.model = unwrap_model(wrapped)
        try:
            with (
                temporarily(self.progress, stage=stage),
                self.separate_means(),
                self.setup.optimizer_modes.evaluating(),
            ):
                if self.shares_buffers:
                    for model in trainer.named_models().values():
                        distributed.broadcast_buffers(model)
                yield
        finally:
            trainer.model = wrapped
            for module, training in modes:
                module.training = training

    def preserved_random_numbers(self) -> AbstractContextManager[None]:
        """Return the context of an additional evaluation, which restores the random numbers of the training."""
        loaders = (self.trainer.eval_dataloader, *self.trainer.eval_dataloaders.values())
        return restored_rng_states(self.trainer.device, map(innermost, loaders))

    def batches_to_evaluate(self, loader: SizedIterable, count: BatchCount | None) -> Iterator[tuple[int, Any]]:
        """Iterate over the batches of an evaluation on the device, numbered from 1.

        Args:
            loader: The loader.
            count: The counter of a custom loader, or None.
        """
        batches = batches_on_device(loader, self.trainer.device, count)
        is_trial = loader is not self.trainer.eval_dataloader
        batches = self.exchange.batches_to_evaluate(loader, batches, is_trial=is_trial)
        if count is not None and count.may_differ and self.trainer.is_sharded:
            batches = self._until_all_end(batches)
        return enumerate(batches, start=1)

    def _until_all_end(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Repeat the last batch, with the weight 0, while other processes have batches of a sharded model."""
        arriving, last = iter(batches), None
        while True:
            batch = next(arriving, _END)
            has_batch = torch.tensor([batch is not _END], dtype=torch.int64, device=self.trainer.device)
            if sum_over_processes(has_batch) == 0:
                return
            if batch is not _END:
                last = batch
                yield batch
                continue
            with self.in_padding_batch():
                yield last

    def in_padding_batch(self) -> AbstractContextManager[None]:
        """Return the context of a padding batch, whose results have no weight."""
        return temporarily(self, is_padding_batch=True)

    @contextmanager
    def interruptible_evaluation(self, names: Sequence[str | None]) -> Generator[None]:
        """Let a preemption interrupt an evaluation after a training epoch, which the resumed run repeats.

        Args:
            names: The remaining evaluation sets: the set that is evaluated in the context, and those after it.
        """
        try:
            with self.checkpointer.interruptible(Phase.EVALUATION, self.trainer, names):
                yield
        except EvaluationInterrupted:
            self.checkpoint_if_requested(Phase.EVALUATION)

    # Training states

    def checkpoint_if_requested(self, phase: Phase) -> None:
        """Save a requested state at a safe point, at which all parts of the run belong to the same update.

        Args:
            phase: The phase that comes next.
        """
        self.checkpointer.next_phase = phase
        if self.rank_sync.is_pending:
            self.checkpointer.checkpoint(self.trainer, self.call)

    def _resume_steps(self, train_dl: SizedIterable) -> None:
        """Restore the position within an epoch, and finish an evaluation that was interrupted there."""
        resumption, trainer = self.resumption, self.trainer
        phase = resumption.resume_steps(
            trainer, train_dl, report=lambda steps: self.call(TrainerCallback.on_train_steps_skipped, steps=steps)
        )
        if phase is Phase.INTERMEDIATE_EVALUATION:
            with temporarily(self.checkpointer, is_between_steps=True):
                try:
                    trainer.run_evaluation_epoch(is_intermediate=True, eval_names=resumption.interrupted_sets(trainer))
                except EvaluationInterrupted:
                    self.checkpoint_if_requested(Phase.STEP)
