"""A callback that moves the trainer's other modules to the device of the model."""

from __future__ import annotations

from typing import Any

from torch import nn
from typing_extensions import override

from pa_core.engine.added_modules import items_of
from pa_core.engine.any_trainer import AnyTrainer, TrainerCallback


class MoveModulesToDeviceCallback(TrainerCallback):
    """Move the modules that are attributes of the trainer to its device when a run starts.

    It is a default callback, so that a loss function with class weights, a torchmetrics metric or a teacher model needs
    no ``.to(device)``. Name it in ``callbacks=[...]`` if your list replaces the default callbacks. It has no arguments
    and no state.

    It moves every ``torch.nn.Module`` that is an attribute of the trainer, or an item of an attribute that is a list, a
    tuple, a set or a dictionary. The model is left out, because the trainer places it. Values of properties and modules
    that are assigned within a run are not moved. The modules are moved in place, when ``train()``, ``evaluate()`` or
    ``predict()`` starts.

    Example:
        >>> import torch
        >>> from pa_core import MoveModulesToDeviceCallback, Trainer
        >>> class WithTeacher(Trainer):
        ...     teacher = None
        ...     def calculate_train_batch_loss(self, batch):
        ...         return super().calculate_train_batch_loss([batch[0], self.teacher(batch[0])])
        >>> model, teacher = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> move = MoveModulesToDeviceCallback()
        >>> trainer = WithTeacher(model, torch.nn.MSELoss(), optimizer, callbacks=[move])
        >>> trainer.teacher = teacher
        >>> trainer.train(torch.utils.data.TensorDataset(torch.ones(8, 1), torch.ones(8, 1)), num_epochs=1)
        >>> teacher.weight.device == trainer.device
        True
    """

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Move the modules to ``trainer.device`` when ``train()`` starts.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        _move_modules(trainer)

    @override
    def on_evaluation_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Move the modules to ``trainer.device`` when ``evaluate()`` starts.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        _move_modules(trainer)

    @override
    def on_prediction_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Move the modules to ``trainer.device`` when ``predict()`` starts.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        _move_modules(trainer)


def _move_modules(trainer: AnyTrainer) -> None:
    placed_by_trainer = {id(trainer.model), id(trainer.get_model())}
    for _, item in items_of(vars(trainer)):
        if isinstance(item, nn.Module) and id(item) not in placed_by_trainer:
            item.to(trainer.device)
