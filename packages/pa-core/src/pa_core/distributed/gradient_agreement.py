"""What all processes decide together about an update, without a separate collective: it travels with the gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from pa_core._torch import adds_to_gradient
from pa_core.device_reads import to_device
from pa_core.distributed.collectives import num_processes, synchronising_wrapper
from pa_core.errors import UnsupportedConfigurationError

__all__ = [
    "GradientAgreement",
    "gradients_carry_counts",
    "synchronises_every_parameter",
]


def gradients_carry_counts(module: nn.Module) -> bool:
    """Whether the gradients of a module have the precision to add up counts."""
    dtypes = {parameter.dtype for parameter in module.parameters() if parameter.requires_grad}
    return dtypes <= {torch.float32, torch.float64}


def synchronises_every_parameter(model: nn.Module) -> bool:
    """Whether each backward pass exchanges the gradient of every trainable parameter, used or not."""
    wrapper = synchronising_wrapper(model)
    return wrapper is not None and not (wrapper.find_unused_parameters or wrapper.static_graph)


class GradientAgreement:
    """Adds up small numbers of all processes with the gradients of an update, at no extra collective.

    A small parameter is registered on the module while ``DistributedDataParallel`` wraps it, and taken out of it
    again, so that state dicts stay clean. Its gradient travels in the same bucket as the others.

    Args:
        module: The inner module, before it is wrapped, on the device of the run.
        num_values: How many numbers travel with each update.

    Raises:
        UnsupportedConfigurationError: The module has no trainable parameter, so that there are no gradients.

    Example:
        >>> import torch
        >>> module = torch.nn.Linear(2, 1)
        >>> agreement = GradientAgreement(module, num_values=2)
        >>> agreement.hide_from(module)
        >>> sorted(module.state_dict())
        ['bias', 'weight']
        >>> agreement.add_to(module(torch.ones(1, 2)).sum(), [0, 7]).backward()
        >>> agreement.sums()
        tensor([0., 7.])
    """

    NAME: Final = "_agreement_of_processes"

    def __init__(self, module: nn.Module, num_values: int = 1) -> None:
        trainable = next((p for p in module.parameters() if p.requires_grad), None)
        if trainable is None:
            raise UnsupportedConfigurationError(
                "Several processes cannot train a model without trainable parameters.",
                given=f"{type(module).__name__}, every parameter of which has requires_grad=False",
                do="Unfreeze a part of the model before the run begins, or evaluate it without training.",
            )
        self._values = nn.Parameter(torch.zeros(num_values, dtype=trainable.dtype, device=trainable.device))
        self._num_processes = num_processes()
        self._last: tuple[Sequence[float], Tensor] = [0.0] * num_values, torch.zeros_like(self._values)
        self._sent: Sequence[float] | None = None
        self._has_joined = False
        self._trained: list[nn.Parameter] = []
        module.register_parameter(self.NAME, self._values)

    @property
    def parameter(self) -> nn.Parameter:
        """The parameter whose gradient the numbers are."""
        return self._values

    def hide_from(self, module: nn.Module) -> None:
        """Take the parameter out of the module again, once it is wrapped."""
        delattr(module, self.NAME)

    def join_backward_passes_of(self, model: nn.Module) -> None:
        """Take part in each synchronised backward pass, including ones that a step or an optimizer runs itself.

        Torch waits in each of them for the gradient of every parameter that it was given. The passes of ``add_to`` have
        the gradient of this one already; in others, the gradients of the model's outputs bring it about. Passes that
        add to the gradient of no parameter, such as with ``torch.autograd.grad``, exchange nothing.

        Args:
            model: The wrapped model.
        """
        self._trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        model.register_forward_hook(self._watch_outputs)

    def _watch_outputs(self, model: nn.Module, _inputs: object, output: object) -> None:
        wrapper = synchronising_wrapper(model)
        if wrapper is None or not (torch.is_grad_enabled() and wrapper.require_backward_grad_sync):
            return
        self._has_joined = False
        for tensor in _tensors_in(output):
            if tensor.requires_grad:
                cast("Any", tensor).register_hook(self._join_backward_pass)

    def _join_backward_pass(self, _gradient: Tensor) -> None:
        if not self._has_joined and any(map(_accumulates_gradient_of, self._trained)):
            self._has_joined = True
            with torch.enable_grad():
                torch.autograd.backward(self._values.sum() * 0)

    def add_to(self, loss: Tensor, values: Sequence[float]) -> Tensor:
        """Return the loss of a synchronised backward pass with the numbers of this process; its value is kept.

        A further pass of the same update sends what was added to the numbers since.
        """
        sent, self._sent = self._sent, values
        if sent is not None:
            values = [value - before for value, before in zip(values, sent, strict=True)]
        if values != self._last[0]:  # mostly nothing is asked for, as in the update before
            # Gradients are averaged: the mean of so many times the values is their sum.
            times = [value * self._num_processes for value in values]
            self._last = values, to_device(times, self._values.dtype, self._values.device)
        self._has_joined = True
        return loss + torch.dot(self._values, self._last[1]).to(loss.dtype)

    def sums(self) -> Tensor:
        """Return the sums over all processes after the synchronised backward pass, on the device."""
        gradient = self._values.grad
        self._values.grad = self._sent = None
        return torch.zeros_like(self._values) if gradient is None else gradient


def _accumulates_gradient_of(parameter: nn.Parameter) -> bool:
    """Whether the backward pass that is in progress adds to the gradient of a parameter."""
    with torch.enable_grad():
        return adds_to_gradient(torch.autograd.graph.get_gradient_edge(parameter).node)


def _tensors_in(output: object) -> Iterator[Tensor]:
    """The tensors that a model returned, no matter how they are nested."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in cast("Mapping[object, object]", output).values():
            yield from _tensors_in(value)
    elif isinstance(output, list | tuple):
        for value in cast("list[object] | tuple[object, ...]", output):
            yield from _tensors_in(value)
    elif dataclasses.is_dataclass(output):
        for field in dataclasses.fields(output):
            yield from _tensors_in(getattr(output, field.name))
