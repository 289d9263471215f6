"""What a process of a run is given, so that a row of the table can give one process something else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch import nn
from torch.optim import SGD, Optimizer
from typing_extensions import override

from pa_core import AnyTrainer, Run, Trainer, TrainerCallback
from pa_core.testing import make_regression

Door: TypeAlias = Literal["train", "evaluate", "Run"]
Act: TypeAlias = Callable[[AnyTrainer], object]


class Meanwhile(TrainerCallback):
    """Does in some events what this process alone is to do; the others have it too, with nothing to do."""

    def __init__(self, acts: dict[str, Act]) -> None:
        self.acts = acts

    def _act(self, event: str, trainer: AnyTrainer) -> None:
        if event in self.acts:
            self.acts[event](trainer)

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self._act("on_training_run_start", trainer)

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self._act("on_train_epoch_start", trainer)

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        self._act("on_optimizer_step_end", trainer)

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self._act("on_train_epoch_end", trainer)

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self._act("on_eval_epoch_end", trainer)

    @override
    def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self._act("on_training_run_epoch_end", trainer)


def layers() -> list[nn.Module]:
    """Those of the small model."""
    return [nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.1), nn.ReLU(), nn.Linear(4, 1)]


def momentum(model: nn.Module) -> Optimizer:
    """Gradient descent with momentum."""
    return SGD(model.parameters(), lr=0.1, momentum=0.9)


@dataclass
class Case:
    """A small run, as one process is about to start it.

    Attributes:
        door: By what it is started.
        model: The model.
        loss_func: The loss function.
        optimizer: Makes the optimizer of the model.
        data: What is trained on.
        eval_data: What is evaluated after each epoch; None for no evaluation.
        arguments: Of `train()`, or of `Run`.
        eval_arguments: Of `evaluate()`, or of `evaluation_batches()`.
        acts: What this process does in events, by their names.
        callbacks: The callbacks, beside the one that does this.
        trainer_class: The class of the trainer.
        precision: The mixed precision that is asked for.
        max_wait_seconds: For how long the processes wait for each other.
        before: Called with the trainer or the run before it begins.
    """

    door: Door
    model: nn.Module = field(default_factory=lambda: nn.Sequential(*layers()))
    loss_func: Any = field(default_factory=nn.MSELoss)
    optimizer: Callable[[nn.Module], Optimizer] = momentum
    data: Any = field(default_factory=lambda: make_regression(24))
    eval_data: Any = field(default_factory=lambda: make_regression(8))
    arguments: dict[str, Any] = field(default_factory=lambda: {"num_epochs": 2, "per_device_batch_size": 4})
    eval_arguments: dict[str, Any] = field(default_factory=dict)
    acts: dict[str, Act] = field(default_factory=dict)
    callbacks: list[Any] = field(default_factory=list)
    trainer_class: type[Trainer] = Trainer
    precision: Literal["no", "bf16"] | None = None
    max_wait_seconds: float = 600.0
    before: Callable[[Any], object] = lambda _: None

    def run(self) -> None:
        """Start the run, and stay in it until it ends."""
        callbacks = [Meanwhile(self.acts), *self.callbacks]
        if self.door == "Run":
            self._run_own_loop(callbacks)
            return
        trainer = self.trainer_class(
            self.model,
            self.loss_func,
            self.optimizer(self.model),
            callbacks,
            mixed_precision=self.precision,
            max_wait_seconds=self.max_wait_seconds,
        )
        self.before(trainer)
        if self.door == "train":
            trainer.train(self.data, eval_dataset=self.eval_data, **self.arguments)
        else:
            trainer.evaluate(self.eval_data, **self.eval_arguments)

    def _run_own_loop(self, callbacks: list[Any]) -> None:
        loop: Run[nn.Module, Any] = Run(
            self.model,
            self.optimizer(self.model),
            self.data,
            callbacks=callbacks,
            mixed_precision=self.precision,
            max_wait_seconds=self.max_wait_seconds,
            **self.arguments,
        )
        self.before(loop)
        with loop as run:
            for _ in run.epochs():
                for update in run.updates():
                    for inputs, targets in update:
                        update.backward(self.loss_func(self.model(inputs), targets))
                    update.step()
                if self.eval_data is not None:
                    for inputs, targets in run.evaluation_batches(self.eval_data, **self.eval_arguments):
                        run.log("loss", self.loss_func(self.model(inputs), targets))


def seeded_case(door: Door) -> Case:
    """The same case on each process that asks for it."""
    torch.manual_seed(0)
    return Case(door)
