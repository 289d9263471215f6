"""How a run begins and ends: what is made new for it, compared over the ranks, and put back after it."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn

from pa_core import _accelerate, distributed, rank_checks
from pa_core.any_trainer import AnyTrainer, TrainerCallback
from pa_core.compatibility import require_usable_model
from pa_core.data.custom_loader import end_workers
from pa_core.distributed.comparison import PLACE, Describe
from pa_core.engine import Engine, RunKind
from pa_core.errors import StopTrainingError, UnsupportedConfigurationError
from pa_core.input_checks import refuse_run_within_run
from pa_core.model_tensors import is_sharded_module, reshard, unwrap_model
from pa_core.parts import Part, forget_gradients
from pa_core.progress import Stage
from pa_core.sharding.sharded_modules import ShardedModules, compile_in_place
from pa_core.training_state import initial_hyperparameters
from pa_core.training_state.run_settings import describe_arithmetic
from pa_distributed import fail_fast, print_errors_once, require_same


class RunLifecycle:
    """Begins and ends the runs of a trainer.

    Args:
        trainer: The trainer.
        engine: Its parts.
    """

    def __init__(self, trainer: AnyTrainer, engine: Engine) -> None:
        self.trainer = trainer
        self.engine = engine
        self._turn = [None]  # a list, as its pop() gives one of two threads its item, and trainers can be copied

    def require_ready(self, kind: RunKind) -> None:
        """Raise an error if another run is in progress, which a new one would overwrite.

        Args:
            kind: What the new one does.

        Raises:
            ConfigurationError: Another run is in progress.
        """
        refuse_run_within_run(kind, self.engine.running)
        reshard(self.trainer.model)  # a script may have called it, and the optimizer knows the pieces

    @contextmanager
    def running(
        self, kind: RunKind, trained: dict[str, Part], describe_arguments: Describe, *, seed: int | None = None
    ) -> Generator[None]:
        """Begin a run, and restore the user's objects no matter how it ends.

        Args:
            kind: What the run does.
            trained: What it trains, by the name of the optimizer.
            describe_arguments: Returns what was called, and with what.
            seed: What everything random follows from; None to draw it.

        Raises:
            RanksDifferError: The processes were not given the same.
        """
        trainer, engine = self.trainer, self.engine
        with self._in_turn(kind, trained), engine.watch.run(lambda: (engine.progress.stage, engine.progress.updates)):
            seed = int(torch.randint(2**63 - 1, ()).item()) if seed is None else seed
            with print_errors_once():
                require_same(lambda: {**describe_arguments(), **self._describe_setting()})
                engine.resumption.seed = distributed.gather_objects(seed)[0]
            with engine.contexts, self._ending_in_order(kind):
                engine.contexts.callback(engine.checkpointer.release_folders)
                yield
        trainer.callback_handler.warn_of_unfired_events()

    @contextmanager
    def _in_turn(self, kind: RunKind, trained: dict[str, Part]) -> Generator[None]:
        """Forget the run before, unless one is in progress, perhaps in another thread."""
        try:
            turn = self._turn.pop()
        except IndexError:
            refuse_run_within_run(kind, self.engine.running or kind)
            raise
        try:
            self.engine.start_run(trained, self.describe_course)
            self.trainer.preemptible, self.trainer.resume_from = False, None
            self.trainer.callback_handler.find_listeners()
            yield
        finally:
            self._turn.append(turn)

    @contextmanager
    def _ending_in_order(self, kind: RunKind) -> Generator[None]:
        """Let a run have its clock meanwhile, and leave everything as it was."""
        trainer, engine = self.trainer, self.engine
        trainer.run_history.clock.start()
        engine.running = kind
        model = trainer.model
        if kind == "train":  # what a script has computed before is no part of the first update
            forget_gradients(model, *trainer.named_optimizers().values())
        try:
            with fail_fast(self._close_after):
                try:
                    with engine.watch.explaining():
                        yield
                except BaseException as exception:
                    engine.checkpointer.end(exception, trainer.device)
                    if engine.fitting is not None:
                        engine.fitting.note(exception)
                    raise
        finally:
            engine.running = None
            optimizers = trainer.named_optimizers().values()
            if kind == "train":
                for optimizer in optimizers:
                    initial_hyperparameters.end_run(optimizer)
            trainer.run_history.clock.stop()
            self._end_workers()
            engine.exchange.close()
            for trained in engine.trained.values():
                trained.close()
            engine.placed.close()
            trainer.model = model
            engine.added.restore()
            forget_gradients(trainer.model, *optimizers)

    def _close_after(self, exception: BaseException, _lives_on: bool) -> None:
        """Close everything that is open when an exception ends the run, even if a callback raises an error."""
        problems: list[BaseException] = []
        for listener in self.trainer.callback_handler.listeners(TrainerCallback.on_exception.__name__):
            try:
                listener(self.trainer, exception=exception)
            except BaseException as problem:
                problems.append(problem)
        self.engine.checkpointer.abandon(exception)
        self._end_workers()
        if problems:
            raise problems[0]

    def _end_workers(self) -> None:
        trainer = self.trainer
        end_workers(trainer.train_dataloader, trainer.eval_dataloader, *trainer.eval_dataloaders.values())

    @contextmanager
    def stopping_in_order(self) -> Generator[None]:
        """Let a ``StopTrainingError`` end what is within the context; the run continues with its last events."""
        trainer, engine = self.trainer, self.engine
        try:
            yield
        except StopTrainingError as error:
            # This frame leads to one that refers to the error, from Python 3.12 on: a cycle, which keeps the last step.
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
            engine.rank_sync.stop = error
            trainer.callback_handler.call_event(TrainerCallback.on_stop_training_error, trainer, error=error)
        engine.progress.stage = Stage.RUN_END

    # Models

    def shard(self, *models: nn.Module) -> None:
        """Split models over the processes where that was requested; from then on, the optimizers train the pieces.

        Args:
            *models: The models.
        """
        engine = self.engine
        for model in models:
            if engine.sharding is not None:
                from pa_core.sharding.shard_model import shard  # large, and few models are sharded

                shard(model, engine.sharding, engine.accelerator, self.trainer.named_optimizers().values())
            compile_in_place(model, engine.accelerator)

    def place(self, model: nn.Module, for_training: bool) -> nn.Module:
        """Place a model on the device of the run and in its precision until the run ends; return what a step calls.

        That is the module itself unless accelerate compiles it: nothing is wrapped around it, even on several
        processes. A trained one begins with the weights of rank zero. A model that ``fully_shard`` was applied to stays
        as it is.

        Args:
            model: The user's module.
            for_training: Whether the run trains it.

        Raises:
            UnsupportedConfigurationError: The model cannot be trained on several processes.
        """
        require_usable_model(model)
        accelerator, undo = self.engine.accelerator, self.engine.placed
        is_sharded = is_sharded_module(model)
        modules = ShardedModules(unwrap_model(model, keep_torch_compile=False))
        undo.callback(_accelerate.forget_prepared_objects, accelerator)
        if is_sharded:
            reshard(model)
            if for_training:
                _prepare_training(modules, accelerator)
        called = model
        if not modules.computes_in_own_precision:
            called, restore = _accelerate.place(accelerator, model, compiles=not is_sharded)
            undo.callback(restore)
        if is_sharded:
            undo.callback(reshard, called)
            # Outside of compiled graphs, as torch's hooks that gather the pieces are.
            hook: Any = cast("Any", torch.compiler).disable(_reshard_unless_backward_follows)
            undo.callback(called.register_forward_hook(hook).remove)
        if for_training:
            distributed.broadcast_weights(unwrap_model(called, keep_torch_compile=False))
        return called

    # What is the same on all processes

    def require_same_parts(self) -> None:
        """Compare models, loaders and optimizers, once they are made and before their first exchange.

        Raises:
            RanksDifferError: They are not the same on all processes.
        """
        trainer = self.trainer
        require_same(lambda: {**self._describe_used(), **trainer.named_models(), **trainer.modules})

    def _describe_setting(self) -> dict[str, object]:
        """What a run works with besides its arguments."""
        trainer, engine = self.trainer, self.engine
        arithmetic = describe_arithmetic(engine.device) if engine.reproducible else {}
        return {
            "mixed_precision": _accelerate.computed_precision(engine.accelerator),
            "callbacks": rank_checks.describe_callbacks(trainer.callback_handler.callbacks),
            "loss_func": trainer.loss_func,
            "run_history": type(trainer.run_history),
            **{f"arithmetic, {name}": value for name, value in arithmetic.items()},
        }

    def _describe_used(self) -> dict[str, object]:
        """The loaders of a run, and what it trains."""
        trainer = self.trainer
        values = self._describe_evaluation()
        if self.engine.running == "train":
            values |= rank_checks.describe_trained(trainer.named_models())
            values |= rank_checks.describe_loader("training", trainer.train_dataloader)
            values |= _titled("optimizer", trainer.named_optimizers())
        return values

    def _describe_evaluation(self) -> dict[str, object]:
        trainer = self.trainer
        loaders = trainer.eval_dataloaders
        if not loaders:
            return rank_checks.describe_loader("evaluation", trainer.eval_dataloader)
        values: dict[str, object] = {"evaluation set in progress": trainer.eval_name}
        for name, loader in loaders.items():
            values |= rank_checks.describe_loader(f"evaluation of {name}:", loader)
        return values

    def describe_start(self) -> dict[str, object]:
        """Return what all processes have when their first step is about to come; schedulers are made late."""
        schedulers = _titled("scheduler", self.trainer.named_schedulers())
        return {**self.describe_course(), **rank_checks.describe_schedulers(schedulers)}

    def describe_course(self) -> dict[str, object]:
        """Return what stays the same on all processes in the course of a run, though callbacks may change it."""
        stage, updates = self.engine.progress.stage, self.trainer.num_updates_completed
        return {PLACE: f"{stage}, after {updates} update{'' if updates == 1 else 's'}", **self._describe_used()}


def _titled(kind: str, by_name: Mapping[str, object]) -> dict[str, object]:
    """Name things by their kind too, as models have the same names."""
    return {name if name == kind else f"{kind} {name}": one for name, one in by_name.items()}


def _prepare_training(modules: ShardedModules, accelerator: _accelerate.AcceleratorLike) -> None:
    """Let all processes train a sharded model together, and begin with the same weights."""
    if accelerator.scaler is not None:
        raise UnsupportedConfigurationError(
            "A sharded model is not trained in fp16: the scale of its gradients was never tried.",
            given="mixed_precision='fp16'",
            do="Use bf16.",
        )
    modules.require_trainable(accelerator.num_processes)
    modules.exchange_gradients()
    if _accelerate.finds_unused_parameters(accelerator):
        modules.allow_unused_parameters()
    modules.make_replicas_alike()


def _reshard_unless_backward_follows(module: nn.Module, *_call: object) -> None:
    """What stays gathered would not follow the weights, and hide the pieces of the optimizer."""
    if not torch.is_grad_enabled():
        reshard(module)
