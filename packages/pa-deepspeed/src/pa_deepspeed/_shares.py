"""The shares of a process: their gradients, and optimizer states that become whole tensors and shares again."""

from __future__ import annotations

import importlib
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pa_core.distributed import num_processes, rank, sum_over_processes
from pa_core.errors import NonFiniteLossError, UnsupportedConfigurationError
from pa_deepspeed._engine import SPLITS_WEIGHTS, Engine, Traces, gathered, start_engine

_PARAMETERS: Final = "params"

_OF_STEPS: Final = frozenset({"eta", "mu", "mu_product", "step"})
"""The states of the supported optimizers that depend on the number of steps alone; others have a value per element."""


class Shares:
    """An engine for a model, whose optimizer steps shares of flat weights in place of the script's optimizer.

    The script's optimizer keeps the parameters of the model and their settings, for example the learning rate, which
    each step copies to the optimizer of the shares. Between two steps its state is empty.

    Args:
        module: The model, on the device.
        optimizer: The optimizer of the script, with whole states or none.
        stage: The stage of ZeRO.
        settings: Settings of ``zero_optimization``.
        device: The device of the run.

    Attributes:
        engine: The engine.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        stage: int,
        settings: Mapping[str, object],
        device: torch.device,
    ) -> None:
        self._module, self._optimizer, self._stage = module, optimizer, stage
        self._groups = [group for group in optimizer.param_groups if _trainable(group)]
        self._trained = [_trainable(group) for group in self._groups]
        self._all_trainable = _ids_of_trainable(optimizer)
        states = _states_by_group(optimizer, self._trained)
        self._traces = Traces(module)
        inner = _optimizer_like(
            optimizer,
            [
                {**group, _PARAMETERS: list(parameters)}
                for group, parameters in zip(self._groups, self._trained, strict=True)
            ],
        )
        self.engine: Engine = start_engine(module, inner, stage, settings, device)
        if any(states):
            self._set_states(states)
        optimizer.state.clear()

    def fit(self) -> bool:
        """Return whether the same parameters are trained as when the engine started."""
        return self._all_trainable == _ids_of_trainable(self._optimizer)

    # Gradients

    def collect_gradients(self) -> None:
        """Exchange the gradients that were not exchanged in the backward passes of an update, and complete them."""
        engine = self.engine
        engine.set_gradient_accumulation_boundary(True)
        if self._stage > 1:
            engine.optimizer.finalize_gradient_accumulation_boundary()
            return
        for parameter in (parameter for group in self._trained for parameter in group):
            if parameter.grad is None:  # all processes send the same elements
                parameter.grad = torch.zeros_like(parameter)
        engine.allreduce_gradients()

    def gradients(self) -> list[Tensor]:
        """Return the gradients of the shares of this process, after ``collect_gradients``."""
        by_group = self.engine.optimizer.averaged_gradients.values()
        return [gradient for gradients in by_group for gradient in gradients or ()]

    def clip(self, *, value: float | None, norm: float | None) -> Tensor | None:
        """Clip the gradients, and return their norm before it was clipped; every process must call this.

        Args:
            value: The largest absolute value of an element, or None.
            norm: The largest norm of the gradients of all processes together, or None.
        """
        gradients = self.gradients()
        if value is not None:
            for gradient in gradients:
                gradient.clamp_(-value, value)
        if norm is None:
            return None
        squares = [gradient.double().square().sum() for gradient in gradients]  # float32 ends before norms do
        found = sum_over_processes(torch.stack(squares).sum()).sqrt().float()
        factor = (norm / (found + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factor)
        return found

    # The step

    def step(self) -> None:
        """Step the shares with the settings of the script's optimizer.

        Raises:
            NonFiniteLossError: DeepSpeed has left out the step, because gradients were not finite.
        """
        for group, given in zip(self._inner.param_groups, self._groups, strict=True):
            group.update({name: value for name, value in given.items() if name != _PARAMETERS})
        self.engine.step()
        if not self.engine.was_step_applied():
            raise NonFiniteLossError("The gradients of an update are infinite or NaN, so DeepSpeed made no step.")

    @property
    def _inner(self) -> Optimizer:
        return self.engine.optimizer.optimizer

    # Whole tensors

    @contextmanager
    def whole(self, *, optimizers: bool) -> Generator[None]:
        """Return a context in which weights and the script's optimizer are whole; every process must enter it.

        Args:
            optimizers: Whether the state of the optimizer is needed.
        """
        with ExitStack() as contexts:
            if self._stage == SPLITS_WEIGHTS:
                contexts.enter_context(gathered(self._module.parameters()))
            if optimizers:
                contexts.callback(self._optimizer.state.clear)
                self._optimizer.state.update(self._whole_states())
            yield

    def release(self) -> None:
        """Make everything whole for good, and remove the engine; every process must call this."""
        with self.whole(optimizers=True):
            states = dict(self._optimizer.state)
            weights = [parameter.detach().clone() for parameter in self._module.parameters()]
        parameters = list(self._module.parameters())
        self.abandon()
        for parameter, weight in zip(parameters, weights, strict=True):
            parameter.data = weight
        self._optimizer.state.update(states)

    def abandon(self) -> None:
        """Remove the engine without communication; states, and weights in stage 3, are lost."""
        self._traces.remove(self.engine)
        for parameter in self._module.parameters():
            parameter.grad = None

    def _whole_states(self) -> dict[Tensor, dict[str, Any]]:
        utils: Any = importlib.import_module("deepspeed.utils")
        self._link_states()
        whole: dict[Tensor, dict[str, Any]] = {}
        for flats, parameters in zip(self._flat(), self._trained, strict=True):
            state = self._inner.state.get(flats[0], {})
            for parameter in parameters if state else ():
                whole[parameter] = {
                    name: utils.safe_get_full_optimizer_state(parameter, name).clone()
                    if _is_of_elements(name)
                    else _copied(value)
                    for name, value in state.items()
                }
        return whole

    def _set_states(self, states: list[list[dict[str, Any]]]) -> None:
        """Set whole states, of each parameter of each group, in the optimizer of the shares."""
        self._create_states()
        for of_group, parameters, flats in zip(states, self._trained, self._flat(), strict=True):
            if not of_group:
                continue
            names = self._inner.state[flats[0]].keys()
            for flat in flats:
                steps = {name: _copied(of_group[0][name]) for name in names if not _is_of_elements(name)}
                self._inner.state[flat].update(steps)
            for parameter, saved in zip(parameters, of_group, strict=True):
                for name in filter(_is_of_elements, names):
                    self._set_state(parameter, name, saved[name].to(parameter.device))

    def _set_state(self, parameter: nn.Parameter, name: str, value: Tensor) -> None:
        utils: Any = importlib.import_module("deepspeed.utils")
        if self._stage < SPLITS_WEIGHTS:
            utils.safe_set_full_optimizer_state(parameter, value, name)
            return
        # The function for whole tensors needs a number of elements that the processes can divide.
        size = cast("Any", parameter).ds_tensor.numel()
        padded = value.new_zeros(size * num_processes())
        padded[: value.numel()] = value.flatten()
        share = padded.narrow(0, size * rank(), size)
        utils.safe_set_local_optimizer_state(parameter, share, name)

    def _create_states(self) -> None:
        """Create the states of all shares by a step without effect: the gradients and the learning rate are 0."""
        inner = self._inner
        before = [dict(group) for group in inner.param_groups]
        weights = [(flat, flat.detach().clone()) for flats in self._flat() for flat in flats]
        for group, flats in zip(inner.param_groups, self._flat(), strict=True):
            group[_PARAMETERS] = flats
            group["lr"] = 0.0
            for flat in flats:
                flat.grad = torch.zeros_like(flat)
        inner.step()
        for group, settings in zip(inner.param_groups, before, strict=True):
            group.update(settings)
        for flat, weight in weights:
            flat.grad = None
            flat.data.copy_(weight)
        self._link_states()

    def _link_states(self) -> None:
        """Let DeepSpeed find the states of its shares, in the stages 1 and 2; it does so once, for the first group."""
        if self._stage < SPLITS_WEIGHTS and self._inner.state:
            optimizer: Any = self.engine.optimizer
            optimizer._hp_optimizer_states_linked = False
            optimizer._lazy_init_hp_params_optimizer_state()

    def _flat(self) -> list[list[Tensor]]:
        """Return the flat shares of each group: one, or in stage 3 one for each of its parts."""
        optimizer: Any = self.engine.optimizer
        if self._stage < SPLITS_WEIGHTS:
            return [[flat] for flat in optimizer.single_partition_of_fp32_groups]
        flats: list[list[Tensor]] = [list[Tensor]() for _ in self._groups]
        for number, flat in enumerate(optimizer.fp32_partitioned_groups_flat):
            group: int = optimizer.sub_group_to_group_id[number]
            flats[group].append(flat)
        return flats


def _trainable(group: Mapping[str, Any]) -> list[nn.Parameter]:
    return [parameter for parameter in group[_PARAMETERS] if parameter.requires_grad]


def _ids_of_trainable(optimizer: Optimizer) -> list[list[int]]:
    return [[id(parameter) for parameter in _trainable(group)] for group in optimizer.param_groups]


def _optimizer_like(optimizer: Optimizer, groups: list[dict[str, Any]]) -> Optimizer:
    """Return an optimizer of the same class without hooks and states, as unpickling would create it."""
    other: Any = object.__new__(type(optimizer))
    other.__setstate__({"defaults": optimizer.defaults, "state": {}, "param_groups": groups})
    other.state = type(optimizer.state)(dict) if hasattr(optimizer.state, "default_factory") else {}
    return cast("Optimizer", other)


def _states_by_group(optimizer: Optimizer, trained: list[list[nn.Parameter]]) -> list[list[dict[str, Any]]]:
    """Return the states of the parameters of each group, an empty list for a group without states.

    Raises:
        UnsupportedConfigurationError: Parameters of a group have made different numbers of steps.
    """
    states: list[list[dict[str, Any]]] = []
    for parameters in trained:
        of_group: list[dict[str, Any]] = [optimizer.state.get(parameter, {}) for parameter in parameters]
        if not any(of_group):
            states.append(list[dict[str, Any]]())
            continue
        numbers = [{name: value for name, value in state.items() if not _is_of_elements(name)} for state in of_group]
        if not all(of_group) or any(not _are_same(number, numbers[0]) for number in numbers):
            raise UnsupportedConfigurationError(
                "ZeRO steps all parameters of a group together, but some parameters of a group have made fewer steps "
                "than others. Pass them in a group of their own.",
            )
        states.append(list(of_group))
    return states


def _are_same(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    return left.keys() == right.keys() and all(bool(left[name] == right[name]) for name in left)


def _is_of_elements(name: str) -> bool:
    return name not in _OF_STEPS


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
