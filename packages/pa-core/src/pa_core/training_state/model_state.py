"""The states of models and optimizers in a training state, and whether the two still belong together."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple, cast

from torch import Tensor, nn
from torch.optim import Optimizer

from pa_checkpoint import StoredTensor
from pa_checkpoint.torch_states import SavedModel, does_not_fit, incompatibility
from pa_core import distributed
from pa_core._tensors import buffers_of_module, is_sharded_module, names_by_group, parameters_beside, parameters_of
from pa_core._torch import NESTED_SCHEDULERS
from pa_core.errors import CheckpointError, ConfigurationError
from pa_core.training_state.snapshotable import ResumableRun, modules_of
from pa_core.types import StatefulScheduler
from pa_core.user_warnings import warn_user
from pa_data.state_search import Snapshot


class SavedOptimizer(NamedTuple):
    """What is saved of an optimizer.

    Attributes:
        state: What its ``state_dict`` returned.
        parameters: The names of its parameters, group by group; None for one that no model holds.
        parameters_beside_the_model: Those that no model holds, in their order.
    """

    state: dict[str, Any]
    parameters: list[list[str | None]]
    parameters_beside_the_model: list[Tensor | StoredTensor]


def require_same_optimizers(
    optimizers: Mapping[str, Optimizer], parameters: Mapping[str, nn.Parameter], saved: Mapping[str, SavedOptimizer]
) -> None:
    """Raise an error for anything that was saved of other optimizers, or of optimizers of other parameters.

    Args:
        optimizers: The optimizers by name, as the script made them.
        parameters: The parameters of all models, by name.
        saved: What was saved, by name.

    Raises:
        CheckpointError: It is not of these.
    """
    if optimizers.keys() != saved.keys():
        raise CheckpointError(
            "The run has other optimizers than the one that was saved.",
            given=", ".join(optimizers) or "no optimizer",
            expected=", ".join(saved),
            do="Create the optimizers as the saved run did, under the same names, or begin a new run.",
        )
    for name, optimizer in optimizers.items():
        _require_same_parameters(names_by_group(optimizer, parameters), saved[name].parameters, parameters)
        _require_fitting_state(name, optimizer, parameters, saved[name])


def _require_fitting_state(
    name: str, optimizer: Optimizer, parameters: Mapping[str, nn.Parameter], saved: SavedOptimizer
) -> None:
    groups: list[list[Tensor]] = [group["params"] for group in optimizer.param_groups]
    groups += added_groups(optimizer, parameters, saved)
    found = incompatibility(optimizer, saved.state, groups=groups)
    others = [tuple(one.shape) for one in parameters_beside(optimizer, parameters)]
    if found is None and [tuple(one.shape) for one in saved.parameters_beside_the_model] != others:
        found = f"its parameters outside of the model have other shapes than {', '.join(map(str, others)) or 'none'}"
    if found is not None:
        do = "Use another state, or create the optimizer as the saved run did."
        raise does_not_fit(optimizer, f"optimizers.{name}.state", do, found)


def added_groups(optimizer: Optimizer, parameters: Mapping[str, Tensor], saved: SavedOptimizer) -> list[list[Tensor]]:
    """Return the groups that the saved run has added to those with which the optimizer was made, of layers it unfroze.

    Args:
        optimizer: The optimizer, as the script made it.
        parameters: The parameters of all models, by name.
        saved: What was saved.
    """
    added = saved.parameters[len(optimizer.param_groups) :]
    return [[parameters[name] for name in names if name is not None] for names in added]


def restore_parameters_beside_the_model(
    optimizer: Optimizer, parameters: Mapping[str, nn.Parameter], saved: SavedOptimizer
) -> None:
    """Restore the parameters of an optimizer that no model holds.

    Args:
        optimizer: The optimizer.
        parameters: The parameters of all models, by name.
        saved: What was saved.
    """
    others = parameters_beside(optimizer, parameters)
    for parameter, one in zip(others, saved.parameters_beside_the_model, strict=True):
        StoredTensor.of(one).read_into(parameter)


def hyperparameters(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the plain settings of each group, such as the learning rate: what a script sets on its optimizer."""
    return [
        {name: _number(value) for name, value in group.items() if name != "params" and _is_setting(value)}
        for group in optimizer.param_groups
    ]


def apply_hyperparameters(
    optimizer: Optimizer,
    scheduler: StatefulScheduler | None,
    before: Sequence[Mapping[str, Any]],
    requested: Sequence[Mapping[str, Any]],
) -> None:
    """Apply what a script sets on its optimizer now and did not before.

    A learning rate is changed in proportion, so that a scheduler continues from the same point of its curve.

    Args:
        optimizer: The optimizer with the state of the saved run.
        scheduler: The scheduler with the state of the saved run.
        before: What ``hyperparameters`` returned when the saved run began.
        requested: What it returned when this run began.
    """
    for index, (group, old, new) in enumerate(zip(optimizer.param_groups, before, requested, strict=False)):
        for name in sorted(new.keys() & old.keys()):
            if new[name] == old[name]:
                continue
            if name == "lr" and old["lr"]:
                _scale_rate(group, scheduler, index, new["lr"] / old["lr"])
            elif name != "initial_lr":
                group[name] = new[name]


def _scale_rate(group: dict[str, Any], scheduler: object, index: int, factor: float) -> None:
    for name in ("lr", "initial_lr"):
        if name in group:
            group[name] = group[name] * factor
    _scale_base_rate(scheduler, index, factor)


def _scale_base_rate(scheduler: object, index: int, factor: float) -> None:
    base_rates = getattr(scheduler, "base_lrs", None)
    if isinstance(base_rates, list):
        base_rates[index] = base_rates[index] * factor
    nested = getattr(scheduler, NESTED_SCHEDULERS, ())  # of SequentialLR and ChainedScheduler
    for one in cast("Sequence[object]", nested) if isinstance(nested, list | tuple) else ():
        _scale_base_rate(one, index, factor)


def _require_same_parameters(
    given: list[list[str | None]], saved: list[list[str | None]], known: Container[object]
) -> None:
    """Compare the groups; those that the saved run has added must be of parameters that a model has."""
    for number, (names, expected) in enumerate(zip(given, saved, strict=False)):
        if names != expected:
            raise _other_parameters(f"group {number} with {_list(names)}", f"group {number} with {_list(expected)}")
    if len(given) > len(saved):
        raise _other_parameters(f"{len(given)} groups", f"{len(saved)} groups")
    for number, names in enumerate(saved[len(given) :], start=len(given)):
        if unknown := [one for one in names if one not in known]:
            raise _other_parameters(f"{len(given)} groups", f"group {number} with {_list(unknown)}")


def _other_parameters(given: str, expected: str) -> CheckpointError:
    return CheckpointError(
        "The optimizer holds other parameters than the one that was saved.",
        given=f"an optimizer of {given}",
        expected=expected,
        do="Create the optimizer as the saved run did, in the same order, or begin a new run.",
    )


_SHOWN_NAMES = 4
_HOW_TO_ADD = 'optimizer.add_param_group({"params": layer.parameters()})'


def _list(names: Sequence[str | None]) -> str:
    shown = ", ".join(name or "a parameter outside of the model" for name in names[:_SHOWN_NAMES])
    more = len(names) - _SHOWN_NAMES
    return f"{shown} and {more} more" if more > 0 else shown or "no parameters"


def _is_setting(value: object) -> bool:
    is_number = isinstance(value, bool | int | float | str | None)
    are_numbers = isinstance(value, tuple) and all(_is_setting(item) for item in cast("tuple[object, ...]", value))
    return is_number or are_numbers or (isinstance(value, Tensor) and value.numel() == 1)


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value


def require_same_models(models: Mapping[str, nn.Module], saved: Mapping[str, SavedModel]) -> None:
    """Raise an error for anything that was saved of other models.

    Args:
        models: The models without wrappers, by name.
        saved: What was saved, by name.

    Raises:
        CheckpointError: It is not of these.
    """
    if models.keys() != saved.keys():
        raise _other_model(f"the models {', '.join(models)}", f"the models {', '.join(saved)}")
    for name, model in models.items():
        if found := incompatibility(model, saved[name].weights):
            kind = type(model).__name__ if len(models) == 1 else f"{name}, of type {type(model).__name__}"
            raise _other_model(f"{kind}: {found}", "the model of the run that was saved")


def _other_model(given: str, expected: str) -> CheckpointError:
    return CheckpointError(
        "The training state belongs to another model.",
        given=given,
        expected=expected,
        do='Make the model as that run did. Or carry over what fits: resume_allow=("model",).',
    )


class TrainedLayers:
    """Compares the parameters of a run with those that it began with; steps pay nothing for it.

    Args:
        run: The run, before its first hook is called.
    """

    def __init__(self, run: ResumableRun) -> None:
        self._names = {id(one): name for name, one in _named_parameters(run).items()}
        self._held = [*_named_parameters(run).values()]  # an identity is given to another object without them
        self._has_warned = False
        self._is_sharded = any(map(is_sharded_module, run.named_models().values()))
        self._of_loss_func = _buffers_now(run.loss_func) if isinstance(run.loss_func, nn.Module) else Snapshot({})

    def check(self, run: ResumableRun) -> None:
        """Raise an error for layers that have been replaced, so that the optimizers train what no model has.

        Layers that have been added, and that get gradients which no optimizer uses, are named in a warning, once.

        Args:
            run: The run, between two updates.

        Raises:
            ConfigurationError: There are such layers.
        """
        if self._is_sharded:  # its parameters are others while they are whole
            return
        present = _named_parameters(run)
        trained = {id(one): one for optimizer in run.named_optimizers().values() for one in parameters_of(optimizer)}
        missing = trained.keys() & self._names.keys() - {id(one) for one in present.values()}
        new = {name: one for name, one in present.items() if one.requires_grad and id(one) not in self._names}
        untrained = [name for name, one in new.items() if id(one) not in trained]
        if missing and untrained:
            gone = [name for identity, name in self._names.items() if identity in missing]
            raise ConfigurationError(
                "Layers were replaced within the run, and the optimizer trains those that are gone.",
                given=f"an optimizer of {_list(gone)} as before, and no optimizer of {_list(untrained)} as now",
                do=f"Replace layers before the optimizer is made, or pass what is new to the optimizer: {_HOW_TO_ADD}.",
            )
        self._warn([name for name in untrained if new[name].grad is not None])

    def _warn(self, added: list[str]) -> None:
        """Name what is trained by nobody; what has no gradients, such as a teacher, is left alone."""
        if self._has_warned or not added:
            return
        self._has_warned = True
        if distributed.rank() == 0:
            warn_user(
                f"Layers were added within the run, and no optimizer trains them: {_list(added)}. Pass them to the "
                f"optimizer, {_HOW_TO_ADD}, or freeze them: layer.requires_grad_(False)."
            )

    def changed_in(self, loss_func: nn.Module) -> bool:
        """Return whether the run has changed buffers of a loss function.

        Args:
            loss_func: The loss function.
        """
        return bool(self._of_loss_func.changed(_buffers_now(loss_func)))


def _buffers_now(module: nn.Module) -> Snapshot:
    return Snapshot({str(number): one for number, one in enumerate(buffers_of_module(module))})


def _named_parameters(run: ResumableRun) -> Mapping[str, Tensor]:
    modules = modules_of(run)
    return {f"{name}.{inner}": one for name, module in modules.items() for inner, one in module.named_parameters()}
