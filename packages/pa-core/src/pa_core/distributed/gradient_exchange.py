"""Whether the gradients of an update were exchanged between the processes, and what to do where they were not."""

from __future__ import annotations

import re
from collections.abc import Collection, Generator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from pa_core._torch import COMPILED, ignored_by_ddp, require_finished_exchange
from pa_core.distributed.collectives import synchronising_wrapper, values_of_all
from pa_core.errors import UnsupportedConfigurationError

__all__ = ["GradientExchange", "never_used"]

_NOT_FINISHED = "Expected to have finished reduction in the prior iteration"
_SHOWN = 4


class GradientExchange:
    """Looks whether ``DistributedDataParallel`` has exchanged the gradients of an update.

    Args:
        module: The inner module, before it is wrapped, with all that the wrapper will find in it.
        hidden: The names of those parameters in it that are not the user's.
    """

    def __init__(self, module: nn.Module, hidden: frozenset[str] = frozenset()) -> None:
        ignored = ignored_by_ddp(module)
        self._parameters = {
            name: parameter
            for name, parameter in module.named_parameters()
            if parameter.requires_grad and name not in ignored
        }
        self._hidden = hidden
        self._was_compared = False

    def check(self, model: nn.Module) -> None:
        """Check the gradients after the backward pass that exchanges them; every process must call this.

        That each parameter got one is checked every time. That they are the same on all processes is checked once, by
        one small exchange.

        Args:
            model: The wrapped model.

        Raises:
            UnsupportedConfigurationError: They were not exchanged, or not all of them.
        """
        wrapper = synchronising_wrapper(model)
        if wrapper is None:
            return
        try:  # as naming_unused_parameters, at a fraction of the cost
            require_finished_exchange(wrapper)
        except RuntimeError as error:
            self._raise_explained(error)
            raise
        if not self._was_compared:
            self._compare(
                "The step bypasses the wrapper that exchanges gradients: the processes would train apart.",
                "In calculate_train_batch_loss, call self.model with gradients enabled, not self.get_model() or a part "
                "of it; what another method needs goes through forward.",
            )

    def complete(self, model: nn.Module, zero_only: Collection[str] = ()) -> set[str]:
        """Finish an exchange that waits for gradients which its backward pass has not computed: they are zero.

        The gradient penalty of a critic, for one, does not depend on its last bias. Zero changes nothing where another
        pass of the update computes a gradient. Every process must call this.

        Args:
            model: The wrapped model.
            zero_only: What this returned after the pass before, in the same update.

        Returns:
            The names of parameters that have got nothing but these zeros in the update so far, where one process alone
            would have no gradient.

        Raises:
            UnsupportedConfigurationError: As ``check``.
        """
        wrapper = cast("nn.Module", synchronising_wrapper(model))
        missing: list[str] = []
        try:
            require_finished_exchange(wrapper)
        except RuntimeError as error:
            missing = self._unused(str(error))
            if not missing:
                self._raise_explained(error)
                raise
        without = {name for name in missing if name in zero_only or self._parameters[name].grad is None}
        if missing:
            parameters = [self._parameters[name] for name in missing]
            torch.autograd.backward(parameters, [torch.zeros_like(parameter) for parameter in parameters])
            require_finished_exchange(wrapper)
        if not self._was_compared:
            self._compare(
                "The gradients of an update are not the same on all processes, which would train apart.",
                "Leave the exchange of gradients to backward(...): without a communication hook that keeps them apart.",
            )
        return without

    @contextmanager
    def naming_unused_parameters(self) -> Generator[None]:
        """Explain torch's error about parameters without a gradient, which names them by numbers.

        Raises:
            UnsupportedConfigurationError: Torch found such parameters.
        """
        try:
            yield
        except RuntimeError as error:
            self._raise_explained(error)
            raise

    def _raise_explained(self, error: RuntimeError) -> None:
        """Raise what names the parameters, if the error is about them."""
        if _NOT_FINISHED in str(error):
            raise self._explain(str(error)) from error

    def _explain(self, message: str) -> UnsupportedConfigurationError:
        unused = self._unused(message)
        if not unused:
            return UnsupportedConfigurationError(
                "The gradients of an extra backward pass could not be exchanged.",
                given="a model whose output holds no tensor that the trainer finds, and a second backward pass",
                do="Let the model return one of these.",
            )
        return UnsupportedConfigurationError(
            "On several processes, each parameter has to get a gradient in each backward pass.",
            given=f"no gradient for {_enumerate(unused)}",
            do="Return Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)]) from "
            "_create_accelerator, or freeze what is never used with requires_grad_(False).",
        )

    def _unused(self, message: str) -> list[str]:
        """The names of the parameters without a gradient that an error of torch is about."""
        found = re.search(r"Parameter indices which did not receive grad for rank \d+:((?: \d+)+)", message)
        names = list(self._parameters)
        numbers = [] if found is None else [int(number) for number in found[1].split()]
        return [names[number] for number in numbers if number < len(names) and names[number] not in self._hidden]

    def _compare(self, problem: str, do: str) -> None:
        self._was_compared = True
        names = [name for name in self._parameters if name not in self._hidden]
        norms = values_of_all(torch.stack([_norm_of_gradient(self._parameters[name]) for name in names]))
        same = torch.isclose(norms, norms[:1], rtol=1e-4, atol=0.0, equal_nan=True).all(dim=0)
        of_each = cast("list[bool]", same.tolist())  # pyright: ignore[reportUnknownMemberType]  # not annotated by torch
        differing = [name for name, is_same in zip(names, of_each, strict=True) if not is_same]
        if differing:
            raise UnsupportedConfigurationError(
                problem, given=f"other gradients on each process for {_enumerate(differing)}", do=do
            )


def never_used(names: Collection[str]) -> UnsupportedConfigurationError:
    """Return the error of an update in which a parameter has no gradient, which the wrapper cannot leave out.

    Args:
        names: The names of such parameters.
    """
    return UnsupportedConfigurationError(
        "On several processes, each trainable parameter has to get a gradient in each update.",
        given=f"no gradient for {_enumerate(sorted(names))}",
        do="Freeze what the losses of the update do not depend on, with requires_grad_(False).",
    )


def _norm_of_gradient(parameter: Tensor) -> Tensor:
    gradient: Any = parameter.grad
    if gradient is None:
        return torch.zeros((), dtype=torch.float32, device=parameter.device)
    values: Any = gradient.coalesce().values() if gradient.is_sparse else gradient
    return cast("Tensor", values.norm(dtype=torch.promote_types(values.dtype, torch.float32))).to(torch.float32)


def _enumerate(names: list[str]) -> str:
    shown = ", ".join(name.replace(f"{COMPILED}.", "") for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
