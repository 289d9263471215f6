"""The states of models and optimizers in a training state, and checks that they fit the run."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple, cast

from torch import Tensor, nn
from torch.optim import Optimizer

from pa_checkpoint import StoredTensor
from pa_checkpoint.torch_states import SavedModel, does_not_fit, incompatibility
from pa_core import distributed
from pa_core._tensors import (
    buffers_of_module,
    is_sharded_module,
    names_by_group,
    parameters_beside,
    parameters_of,
    parameters_of_module,
)
from pa_core._torch import NESTED_SCHEDULERS
from pa_core.errors import CheckpointError, ConfigurationError
from pa_core.training_state.snapshotable import ResumableRun, modules_of
from pa_core.types import StatefulScheduler
from pa_core.user_warnings import warn_user
from pa_data.state_search import Snapshot


class SavedOptimizer(NamedTuple):
    """The saved state of an optimizer.

    Attributes:
        state: The result of its ``state_dict``.
        parameters: The names of its parameters, group by group; None for a parameter of no model.
        parameters_beside_the_model: The parameters of no model, in their order.
    """

    state: dict[str, Any]
    parameters: list[list[str | None]]
    parameters_beside_the_model: list[Tensor | StoredTensor]


def require_same_optimizers(
    optimizers: Mapping[str, Optimizer], parameters: Mapping[str, nn.Parameter], saved: Mapping[str, SavedOptimizer]
) -> None:
    """Raise an error for the saved states of other optimizers, or of optimizers with other parameters.

    Args:
        optimizers: The optimizers by name, as the script created them.
        parameters: The parameters of all models, by name.
        saved: The saved states, by name.

    Raises:
        CheckpointError: The states do not belong to these optimizers.
    """
    if optimizers.keys() != saved.keys():
        raise CheckpointError(
            "The run has other optimizers than the saved run.",
            given=", ".join(optimizers) or "no optimizer",
            expected=", ".join(saved),
            do="Create the optimizers like the saved run, with the same names, or begin a new run.",
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
    others = [tuple(parameter.shape) for parameter in parameters_beside(optimizer, parameters)]
    if found is None and [tuple(parameter.shape) for parameter in saved.parameters_beside_the_model] != others:
        found = f"its parameters outside of the model have shapes other than {', '.join(map(str, others)) or 'none'}"
    if found is not None:
        do = "Use another state, or create the optimizer like the saved run."
        raise does_not_fit(optimizer, f"optimizers.{name}.state", do, found)


def added_groups(optimizer: Optimizer, parameters: Mapping[str, Tensor], saved: SavedOptimizer) -> list[list[Tensor]]:
    """Return the groups that the saved run added to the optimizer, for layers that it unfroze.

    Args:
        optimizer: The optimizer, as the script created it.
        parameters: The parameters of all models, by name.
        saved: The saved state.
    """
    added = saved.parameters[len(optimizer.param_groups) :]
    return [[parameters[name] for name in names if name is not None] for names in added]


def restore_parameters_beside_the_model(
    optimizer: Optimizer, parameters: Mapping[str, nn.Parameter], saved: SavedOptimizer
) -> None:
    """Restore the parameters of an optimizer that are in no model.

    Args:
        optimizer: The optimizer.
        parameters: The parameters of all models, by name.
        saved: The saved state.
    """
    others = parameters_beside(optimizer, parameters)
    for parameter, stored in zip(others, saved.parameters_beside_the_model, strict=True):
        StoredTensor.of(stored).read_into(parameter)


def hyperparameters(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the plain settings of each group, for example the learning rate."""
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
    """Apply the settings of an optimizer that the script has changed since the saved run.

    A learning rate is changed in proportion, so that a scheduler continues from the same point of its curve.

    Args:
        optimizer: The optimizer with the state of the saved run.
        scheduler: The scheduler with the state of the saved run.
        before: The result of ``hyperparameters`` at the beginning of the saved run.
        requested: The result of ``hyperparameters`` at the beginning of this run.
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
    nested = getattr(scheduler, NESTED_SCHEDULERS, ())  # in SequentialLR and ChainedScheduler
    for inner in cast("Sequence[object]", nested) if isinstance(nested, list | tuple) else ():
        _scale_base_rate(inner, index, factor)


def _require_same_parameters(
    given: list[list[str | None]], saved: list[list[str | None]], known: Container[object]
) -> None:
    """Compare the groups; groups that the saved run added must have parameters of a model."""
    for number, (names, expected) in enumerate(zip(given, saved, strict=False)):
        if names != expected:
            raise _other_parameters(f"group {number} with {_list(names)}", f"group {number} with {_list(expected)}")
    if len(given) > len(saved):
        raise _other_parameters(f"{len(given)} groups", f"{len(saved)} groups")
    for number, names in enumerate(saved[len(given) :], start=len(given)):
        if unknown := [name for name in names if name not in known]:
            raise _other_parameters(f"{len(given)} groups", f"group {number} with {_list(unknown)}")


def _other_parameters(given: str, expected: str) -> CheckpointError:
    return CheckpointError(
        "The optimizer has other parameters than the saved optimizer.",
        given=f"an optimizer with {given}",
        expected=expected,
        do="Create the optimizer like the saved run, in the same order. Or resume without the optimizer's statistics: "
        'pass resume_allow=("optimizer",) to train() or Run.',
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
    """Raise an error for the saved states of other models.

    Args:
        models: The models without wrappers, by name.
        saved: The saved states, by name.

    Raises:
        CheckpointError: The states do not belong to these models.
    """
    if models.keys() != saved.keys():
        raise _other_model(f"the models {', '.join(models)}", f"the models {', '.join(saved)}")
    for name, model in models.items():
        if found := incompatibility(model, saved[name].weights):
            kind = type(model).__name__ if len(models) == 1 else f"{name}, of type {type(model).__name__}"
            raise _other_model(f"{kind}: {found}", "the model of the saved run")


def _other_model(given: str, expected: str) -> CheckpointError:
    return CheckpointError(
        "The training state belongs to another model.",
        given=given,
        expected=expected,
        do='Create the model like that run. Or load only fitting weights: resume_allow=("model",).',
    )


class TrainedLayers:
    """Compares the parameters of a run with those at its beginning, only when states are saved.

    Args:
        run: The run, before its first hook is called.
    """

    def __init__(self, run: ResumableRun) -> None:
        self._names = {id(parameter): name for name, parameter in _named_parameters(run).items()}
        self._held = [*_named_parameters(run).values()]  # kept alive, because ids of deleted objects are reused
        self._has_warned = False
        self._is_sharded = any(map(is_sharded_module, run.named_models().values()))
        self._of_loss_func = _buffers_now(run.loss_func) if isinstance(run.loss_func, nn.Module) else Snapshot({})

    def check(self, run: ResumableRun) -> None:
        """Raise an error for replaced layers, because the optimizers train parameters of no model.

        A warning names added layers once, if they get gradients that no optimizer uses.

        Args:
            run: The run, between two updates.

        Raises:
            ConfigurationError: Layers were replaced.
        """
        if self._is_sharded:  # its parameters are different objects while they are gathered
            return
        modules = modules_of(run).values()
        if {id(parameter) for module in modules for parameter in parameters_of_module(module)} == self._names.keys():
            return
        present = _named_parameters(run)
        trained = {
            id(parameter): parameter
            for optimizer in run.named_optimizers().values()
            for parameter in parameters_of(optimizer)
        }
        missing = trained.keys() & self._names.keys() - {id(parameter) for parameter in present.values()}
        new = {
            name: parameter
            for name, parameter in present.items()
            if parameter.requires_grad and id(parameter) not in self._names
        }
        untrained = [name for name, parameter in new.items() if id(parameter) not in trained]
        if missing and untrained:
            gone = [name for identity, name in self._names.items() if identity in missing]
            raise ConfigurationError(
                "Layers were replaced within the run, and the optimizer trains the removed layers.",
                given=f"an optimizer of the earlier {_list(gone)}, and no optimizer of the present {_list(untrained)}",
                do=f"Replace layers before creating the optimizer, or pass the new layers to it: {_HOW_TO_ADD}.",
            )
        self._warn([name for name in untrained if new[name].grad is not None])

    def _warn(self, added: list[str]) -> None:
        """Warn about added layers without an optimizer, except for layers without gradients, such as a teacher's."""
        if self._has_warned or not added:
            return
        self._has_warned = True
        if distributed.rank() == 0:
            warn_user(
                f"Layers were added within the run, and no optimizer trains them: {_list(added)}. Pass them to the "
                f"optimizer, {_HOW_TO_ADD}, or freeze them: layer.requires_grad_(False)."
            )

    def changed_in(self, loss_func: nn.Module) -> bool:
        """Return whether the run changed buffers of a loss function.

        Args:
            loss_func: The loss function.
        """
        return bool(self._of_loss_func.changed(_buffers_now(loss_func)))


def _buffers_now(module: nn.Module) -> Snapshot:
    return Snapshot({str(number): buffer for number, buffer in enumerate(buffers_of_module(module))})


def _named_parameters(run: ResumableRun) -> Mapping[str, Tensor]:
    modules = modules_of(run)
    return {
        f"{name}.{inner}": parameter
        for name, module in modules.items()
        for inner, parameter in module.named_parameters()
    }
