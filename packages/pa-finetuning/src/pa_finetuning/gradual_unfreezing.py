"""Unfreezes a model while it is trained, from the output to the input, stage after stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor
from torch.optim import Optimizer

from pa_finetuning.layer_groups import LayerGroups, owned_parameters
from pa_finetuning.learning_rates import LearningRates
from pa_finetuning.model_freezer import ModelFreezer
from pa_finetuning.parameters import held_by, is_frozen


class _RunHistory(Protocol):
    @property
    def current_epoch(self) -> int: ...


class _RunConfig(Protocol):
    @property
    def num_epochs(self) -> int: ...


class TrainerLike(Protocol):
    """The attributes of a trainer that ``GradualUnfreezing`` reads in its ``on_*`` methods.

    ``pa_core.Trainer`` has all of them, so you need this type only to call these methods from a different trainer. Any
    object with these attributes is accepted, and its class need not derive from this class. A custom loop calls
    ``GradualUnfreezing.start_epoch`` instead, and needs no such object.

    Example:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> from pa_finetuning import GradualUnfreezing, ModelFreezer
        >>> freezer = ModelFreezer(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)))
        >>> freezer.freeze()
        >>> trainer = SimpleNamespace(
        ...     optimizer=torch.optim.SGD(freezer.model.parameters(), lr=0.1),
        ...     scheduler=None,
        ...     run_history=SimpleNamespace(current_epoch=1),
        ...     run_config=SimpleNamespace(num_epochs=2),
        ...     num_epochs_completed=1,
        ...     num_updates_completed=10,
        ... )
        >>> GradualUnfreezing(freezer).on_training_run_epoch_end(trainer)
        >>> len(freezer.get_trainable_parameters())
        4
    """

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer of the run, a ``torch.optim.Optimizer``; None if the run has no optimizer.

        Return the same optimizer as long as the run lasts. ``on_prepare_start`` adds the frozen parameters to it if
        ``GradualUnfreezing`` was given ``learning_rates``. ``on_training_run_start`` always checks that it
        holds all parameters that the stages unfreeze, and raises a ``ValueError`` if not. With None, nothing is added,
        and the check fails.

        Example:
            >>> import torch
            >>> class Loop:  # a custom trainer
            ...     def __init__(self, model):
            ...         self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # frozen parameters, too
        """
        ...

    @property
    def scheduler(self) -> object:
        """The scheduler of the run, for example a ``torch.optim.lr_scheduler.LRScheduler``; None if the run has none.

        ``on_training_run_start`` reads it once. If it has ``base_lrs`` (a list with a rate for each parameter group, as
        schedulers of torch have), the list must be as long as ``optimizer.param_groups``; otherwise a ``ValueError``
        says that the scheduler was created before the frozen parameters were added. Schedulers without ``base_lrs`` are
        not checked.

        Example:
            >>> from types import SimpleNamespace
            >>> trainer = SimpleNamespace(scheduler=None)  # a run with a constant rate
        """
        ...

    @property
    def run_history(self) -> _RunHistory:
        """The history of the run: any object with a ``current_epoch`` attribute, the epoch number, an integer.

        The number counts from 1. It is 1 when a new run starts, and the saved number when a run resumes. In
        ``on_training_run_epoch_end``, it is still the number of the epoch that ends. ``GradualUnfreezing`` decides by
        it which layer groups are unfrozen.

        Example:
            >>> from types import SimpleNamespace
            >>> trainer = SimpleNamespace(run_history=SimpleNamespace(current_epoch=1))
            >>> trainer.run_history.current_epoch += 1  # after on_training_run_epoch_end
        """
        ...

    @property
    def run_config(self) -> _RunConfig:
        """The settings of the run: any object with a ``num_epochs`` attribute, the number of epochs of the run.

        ``num_epochs`` is an integer of at least 1. ``on_training_run_epoch_end`` compares it with
        ``num_epochs_completed``, because nothing is unfrozen after the last epoch.

        Example:
            >>> from dataclasses import dataclass
            >>> from types import SimpleNamespace
            >>> @dataclass
            ... class Config:
            ...     num_epochs: int = 10
            >>> trainer = SimpleNamespace(run_config=Config())
        """
        ...

    @property
    def num_epochs_completed(self) -> int:
        """The number of completed epochs of the run, an integer: 0 during the first epoch, 1 during the second.

        Increment it before you call ``on_training_run_epoch_end``, so that it includes the epoch that ends: it is 1 in
        the first call. In a resumed run, it continues at the saved number.
        """
        ...

    @property
    def num_updates_completed(self) -> int:
        """The number of optimizer updates that the run has made, an integer.

        It is 0 when a new run starts, and the saved number, above 0, when a resumed run starts. Only
        ``on_training_run_start`` reads it: with 0, it unfreezes the parameters of the first epoch, and otherwise it
        leaves this to ``load_state_dict``.
        """
        ...


class GradualUnfreezing:
    """Unfreezes the layer groups of a model in turn during a run, starting near the output.

    This is the gradual unfreezing of ULMFiT (arXiv 1801.06146, section 3.3). Use it to fine-tune on little data. The
    layers near the output, which are the least adapted to the new task, then learn first, and the gradients from their
    random weights do not disturb the layers below. To unfreeze layers at points that you choose yourself, call
    ``ModelFreezer.unfreeze``.

    With ``pa_core.Trainer``, derive ``class Unfreezing(GradualUnfreezing, TrainerCallback)`` and pass an object of that
    class in ``callbacks``. You can also use this class without a trainer. In a custom loop, call ``start_epoch`` before
    each epoch, and save ``state_dict()`` with the checkpoint.

    The optimizer must contain the frozen parameters from the start, so that schedulers, checkpoints and states have the
    same parameter groups in all stages. Either create the optimizer from
    ``freezer.get_parameter_groups(learning_rates, include_frozen=True)``, or, with a trainer, pass ``learning_rates``
    to this class, which then adds the groups before the scheduler of the run is created.

    Epochs are counted as in the history of the run. Which layer groups are unfrozen depends only on the epoch number,
    so a run that resumes from a training state, even mid-epoch, has the same layer groups unfrozen as an uninterrupted
    run. The saved state contains the stages.

    Args:
        freezer: The freezer, after you have called its ``freeze()``. The stages unfreeze the parameters that are frozen
            now.
        learning_rates: The rates for the frozen parameters that are added to the optimizer when a trainer prepares the
            run: a number for all layer groups, a list with a rate for each group (as ``freezer.get_learning_rates``
            returns it), or a mapping from indexes to rates. The default, None, is for an optimizer that already
            contains these parameters. ``start_epoch`` does not use the rates.
        epochs_per_stage: The number of epochs in each stage. The default is 1, as in ULMFiT. The first stage unfreezes
            no parameters. Each further stage unfreezes the last layer group that still has frozen parameters.
        stages: Custom stages, which override ``epochs_per_stage``: a mapping from epochs, counted from 1, to indexes of
            layer groups. In each of these epochs, a stage begins, and the layer group and all groups after it are
            unfrozen. With the default, None, there is a stage for each layer group.
        set_modules_as_training: Whether unfrozen modules are put into training mode. The default is True, since trained
            layers usually use dropout and update their batch norm statistics. If False, modules that ``freeze`` put
            into eval mode stay there.

    Attributes:
        freezer: The freezer, as given.
        learning_rates: The learning rates, as given.
        set_modules_as_training: Whether unfrozen modules are put into training mode, as given.
        stages: The stages: a mapping from epochs to indexes of layer groups, counted from the start.

    Raises:
        ValueError: No parameter is frozen, a stage would unfreeze no parameter, or an epoch or ``epochs_per_stage`` is
            not positive.
        IndexError: A stage names a layer group that does not exist.
        TypeError: An epoch or an index is not an integer.

    Example:
        >>> import torch
        >>> from pa_finetuning import GradualUnfreezing, ModelFreezer
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 3), torch.nn.Linear(3, 2))
        >>> freezer = ModelFreezer(model)
        >>> freezer.freeze()
        >>> learning_rates = freezer.get_learning_rates(0.1)
        >>> optimizer = torch.optim.Adam(freezer.get_parameter_groups(learning_rates, include_frozen=True))
        >>> unfreezing = GradualUnfreezing(freezer, epochs_per_stage=2)
        >>> unfreezing.stages
        {3: 1, 5: 0}
        >>> for epoch in range(1, 7):
        ...     unfreezing.start_epoch(epoch)  # and train for an epoch
        ...     print(epoch, "trains", len(freezer.get_trainable_parameters()), "parameters")
        1 trains 2 parameters
        2 trains 2 parameters
        3 trains 4 parameters
        4 trains 4 parameters
        5 trains 6 parameters
        6 trains 6 parameters
    """

    def __init__(
        self,
        freezer: ModelFreezer,
        learning_rates: LearningRates | None = None,
        epochs_per_stage: int = 1,
        stages: Mapping[int, int] | None = None,
        set_modules_as_training: bool = True,
    ) -> None:
        self.freezer: ModelFreezer = freezer
        self.learning_rates: LearningRates | None = learning_rates
        self.set_modules_as_training: bool = set_modules_as_training
        self.stages: dict[int, int] = (
            _stages_with_a_group_each(_groups_of(freezer), epochs_per_stage)
            if stages is None
            else _checked_stages(_groups_of(freezer), stages)
        )
        self._extended: Optimizer | None = None
        self._epoch = 0

    def start_epoch(self, epoch: int) -> None:
        """Unfreeze the parameters that are trained in an epoch.

        You call it before each epoch of a custom loop, on every process; a trainer calls the ``on_*`` methods instead.
        Parameters that are already unfrozen stay unfrozen. A second call for the same epoch changes nothing. Wrap the
        model in ``DistributedDataParallel`` again after a stage begins, since the wrapper does not notice the change.

        Args:
            epoch: The number of the epoch that is about to begin, from 1. In a resumed run, continue the count.

        Example:
            >>> import torch
            >>> from pa_finetuning import GradualUnfreezing, ModelFreezer
            >>> freezer = ModelFreezer(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)))
            >>> freezer.freeze()
            >>> unfreezing = GradualUnfreezing(freezer)
            >>> for epoch in (1, 2):
            ...     unfreezing.start_epoch(epoch)
            ...     print(epoch, len(freezer.get_trainable_parameters()))
            1 2
            2 4
        """
        self._epoch = epoch
        reached = [index for begins_at, index in self.stages.items() if begins_at <= epoch]
        if reached:
            self.freezer.unfreeze(min(reached), -1, set_modules_as_training=self.set_modules_as_training)

    def on_prepare_start(self, trainer: TrainerLike, **kwargs: Any) -> None:
        """Add the frozen parameters to the optimizer, once, if learning rates were given.

        The trainer calls it before it prepares the model and creates the scheduler; you need not call it yourself.
        Without ``learning_rates``, it does nothing.

        Args:
            trainer: The trainer, with the attributes of ``TrainerLike``.
            **kwargs: Not used.

        Raises:
            ValueError: The optimizer already holds some of these parameters, or the rates are wrong.
        """
        optimizer = trainer.optimizer
        if self.learning_rates is not None and optimizer is not None and optimizer is not self._extended:
            self.freezer.add_frozen_parameters(optimizer, self.learning_rates, min(self.stages.values()), -1)
            self._extended = optimizer

    def on_training_run_start(self, trainer: TrainerLike, **kwargs: Any) -> None:
        """Unfreeze the parameters that the first epoch of the run trains; in a resumed run, the state has done so.

        The trainer calls it when a run starts; you need not call it yourself.

        Args:
            trainer: The trainer, with the attributes of ``TrainerLike``.
            **kwargs: Not used.

        Raises:
            ValueError: The optimizer lacks parameters that the stages unfreeze, or the scheduler was created before
                they were added to the optimizer.
        """
        self._require_held(trainer.optimizer)
        _require_rate_for_each_group(trainer.scheduler, trainer.optimizer)
        self._epoch = trainer.run_history.current_epoch
        if trainer.num_updates_completed == 0:
            self.start_epoch(self._epoch)

    def on_training_run_epoch_end(self, trainer: TrainerLike, **kwargs: Any) -> None:
        """Unfreeze the parameters that the next epoch trains, unless this epoch was the last.

        The trainer calls it at the end of each epoch; you need not call it yourself. Unfreezing the parameters only at
        the start of the next epoch would be too late if several processes train the model.

        Args:
            trainer: The trainer, with the attributes of ``TrainerLike``.
            **kwargs: Not used.
        """
        if trainer.num_epochs_completed < trainer.run_config.num_epochs:
            self.start_epoch(trainer.run_history.current_epoch + 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the stages, because a resumed run keeps the stages that it began with.

        A trainer calls it to save the state with its callbacks. In a custom loop, you call it and save the result with
        the checkpoint.

        Returns:
            ``{"stages": {epoch: index of a layer group}}``, a copy.
        """
        return {"stages": dict(self.stages)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the stages of a run, and unfreeze the parameters of the resumed epoch.

        A trainer calls it when it loads a training state. In a custom loop, you call it after ``freeze()`` and before
        ``start_epoch`` of the resumed epoch, which then unfreezes the parameters.

        Args:
            state_dict: The return value of ``state_dict``. It is not changed.

        Raises:
            IndexError: The model has fewer layer groups than the model of the saved run.
            KeyError: The mapping has no ``"stages"``.

        Example:
            >>> import torch
            >>> from pa_finetuning import GradualUnfreezing, ModelFreezer
            >>> freezer = ModelFreezer(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)))
            >>> freezer.freeze()
            >>> saved = GradualUnfreezing(freezer, epochs_per_stage=5).state_dict()
            >>> resumed = GradualUnfreezing(freezer)
            >>> resumed.load_state_dict(saved)
            >>> resumed.stages
            {6: 0}
            >>> resumed.start_epoch(7)
            >>> len(freezer.get_trainable_parameters())
            4
        """
        groups, stages = _groups_of(self.freezer), state_dict["stages"]
        self.stages = {epoch: groups.resolve_index(index) for epoch, index in stages.items()}
        self.start_epoch(self._epoch)

    def _require_held(self, optimizer: Optimizer | None) -> None:
        held = set[Tensor]() if optimizer is None else held_by(optimizer)
        of_groups = _groups_of(self.freezer).parameters
        lacking = [
            index
            for index in range(min(self.stages.values()), len(of_groups))
            if not held.issuperset(parameter for parameter in of_groups[index] if is_frozen(parameter))
        ]
        if lacking:
            raise ValueError(
                f"Given: {type(optimizer).__name__} without the frozen parameters of layer groups {lacking}, which "
                "would be unfrozen and not trained. Expected: an optimizer that holds all these parameters."
                " Make it of freezer.get_parameter_groups(learning_rates, include_frozen=True), or pass learning_rates "
                "to GradualUnfreezing."
            )


def _groups_of(freezer: ModelFreezer) -> LayerGroups:
    return LayerGroups(freezer.model, freezer.get_layer_groups())


def _require_rate_for_each_group(scheduler: object, optimizer: Optimizer | None) -> None:
    """Raise an error now; schedulers of torch fail at their first step if groups were added after they were made."""
    groups = [] if optimizer is None else optimizer.param_groups
    num_scheduled = len(getattr(scheduler, "base_lrs", groups))
    if num_scheduled < len(groups):
        raise ValueError(
            f"Given: {type(scheduler).__name__} made for {num_scheduled} parameter groups, before frozen groups were "
            f"added. Expected: a scheduler of all {len(groups)}. Pass create_scheduler_fn to the run; or make the "
            "optimizer of freezer.get_parameter_groups(learning_rates, include_frozen=True), then the scheduler, and "
            "give GradualUnfreezing no learning_rates."
        )


def _stages_with_a_group_each(groups: LayerGroups, epochs_per_stage: int) -> dict[int, int]:
    if _integer("epochs_per_stage", epochs_per_stage) < 1:
        raise ValueError(
            f"Given: epochs_per_stage={epochs_per_stage}. Expected: at least 1. Pass the number of epochs after which "
            "the next layer group is unfrozen."
        )
    indexes = sorted(_groups_to_unfreeze(groups), reverse=True)
    return {1 + epochs_per_stage * number: index for number, index in enumerate(indexes, start=1)}


def _checked_stages(groups: LayerGroups, stages: Mapping[int, int]) -> dict[int, int]:
    to_unfreeze = _groups_to_unfreeze(groups)
    if not stages:
        raise ValueError(
            "Given: stages without an epoch. Expected: {epoch: index of a layer group}. Pass at least a stage, or "
            "leave stages out to unfreeze the layer groups in turn."
        )
    checked: dict[int, int] = {}
    for epoch in sorted(_integer("an epoch of stages", epoch) for epoch in stages):
        index = groups.resolve_index(stages[epoch])
        if epoch < 1:
            raise ValueError(f"Given: stages with epoch {epoch}. Expected: epochs from 1. Correct the epoch.")
        reached = {group for group in to_unfreeze if group >= index}
        if not reached:
            raise ValueError(
                f"Given: stages={dict(stages)!r}, where epoch {epoch} unfreezes nothing. Expected: an index further "
                "down at each later epoch, with frozen parameters above it. Correct the stage, or remove it."
            )
        to_unfreeze -= reached
        checked[epoch] = index
    return checked


def _groups_to_unfreeze(groups: LayerGroups) -> set[int]:
    """Return the layer groups with frozen parameters; a shared parameter counts for the last of its groups."""
    owned = reversed(owned_parameters(reversed(groups.parameters)))
    indexes = {index for index, group in enumerate(owned) if any(map(is_frozen, group))}
    if not indexes:
        raise ValueError(
            f"There is nothing to unfreeze: no parameter of {groups.model_name} is frozen. Call freezer.freeze() "
            "before you make GradualUnfreezing, even in a script that resumes a run."
        )
    return indexes


def _integer(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(
            f"Given as {name}: {value!r}, of type {type(value).__name__}. Expected: an integer. Pass a number of "
            "epochs, such as 1."
        )
    return value
