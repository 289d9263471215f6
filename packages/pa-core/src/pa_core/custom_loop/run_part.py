"""An optimizer of a custom loop with the module that it trains: gradients, updates and schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from pa_core import _accelerate
from pa_core._tensors import parameters_of_module
from pa_core._torch import calls_step_hooks, dtypes_of_outputs
from pa_core.custom_loop import mistakes
from pa_core.distributed.collectives import tensors_in_graph
from pa_core.engine.exchange import Exchange
from pa_core.engine.first_updates import NUM_FIRST_UPDATES, EarlierGradients
from pa_core.engine.parts import Part, zero_loss_of_padding
from pa_core.errors import ConfigurationError
from pa_core.steps.default_step import unusable_kind
from pa_core.user_warnings import warn_user


class RunPart(Part):
    """An optimizer of a run, and the module that it trains.

    Args:
        name: The name of the optimizer.
        module: The module that it trains.
        accelerator: The accelerator of the run.
        is_only_model: Whether the run has no other model, whose gradients a backward pass must not change.
        exchange: The exchange of its gradients.

    Attributes:
        name: The value that was passed.
        module: The value that was passed.
        exchange: The value that was passed.
        first_updates_left: The number of coming updates whose gradients are checked.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        accelerator: _accelerate.AcceleratorLike,
        *,
        is_only_model: bool,
        exchange: Exchange,
    ) -> None:
        super().__init__(
            accelerator, num_averaged=exchange.num_averaged, scales_all=exchange.is_exact, counted_by="num_items"
        )
        self.exchange = exchange
        self.name: str = name
        self.module: nn.Module = module
        self._is_only_model = is_only_model
        self._precision = _accelerate.computed_precision(accelerator)
        self._has_checked_precision = self._precision == "no"
        self._steps = False
        self._watch: RemovableHandle | None = None
        self._earlier = EarlierGradients()
        self.first_updates_left: int = 0 if exchange.is_exact else NUM_FIRST_UPDATES

    @override
    def close(self) -> None:
        super().close()
        self._earlier.forget()
        if self._watch is not None:  # afterwards, the script may step the optimizer
            self._watch.remove()
            self._watch = None

    def watch_steps(self, optimizer: Optimizer) -> None:
        """Step this optimizer from now on, and raise an error if the script steps it.

        Optimizers that do not call the constructor of their base class cannot be watched.

        Args:
            optimizer: The optimizer.
        """
        self.optimizers[self.name] = optimizer
        if calls_step_hooks(optimizer):
            self._watch = optimizer.register_step_pre_hook(self._require_own_step)

    def _require_own_step(self, *_arguments: object) -> None:
        if not self._steps:
            raise ConfigurationError(
                f"The loop called step() of the optimizer {self.name!r}, which the run steps. Remove "
                "optimizer.step() from the loop: update.step() or run.step() clips gradients, steps and clears them."
            )

    @override
    def step(self) -> None:
        self._steps = True
        try:
            super().step()
        finally:
            self._steps = False

    def let_go_of_gradients(self) -> None:
        """Stop checking gradients, because the run itself changes and clears them now."""
        self._earlier.forget()
        self.first_updates_left -= 1

    def has_lost_gradients(self) -> bool:
        """Whether the gradients of backward passes are gone: None or, in the first updates, zeros."""
        has_gradients = self.has_gradients() or self.exchange.holds_gradients(self)
        return not has_gradients or (self.first_updates_left > 0 and self._earlier.are_zeros())

    def require_gradients_of(self, loss: object) -> None:
        """Raise an error for a loss that has no gradients with respect to the module.

        Args:
            loss: The argument of ``backward``.

        Raises:
            ConfigurationError: The loss is not a tensor of one element with a graph, or the module is frozen.
        """
        if not isinstance(loss, Tensor) or loss.numel() != 1 or unusable_kind(loss) is not None:
            raise mistakes.unusable_loss(loss)
        if loss.requires_grad and self._is_only_model:
            return
        if not any(parameter.requires_grad for parameter in self.module.parameters()):
            raise ConfigurationError(
                f"Nothing is trained by backward(...) for {self.name!r}, because all of its parameters have "
                "requires_grad=False. Call requires_grad_() on the parameters to train, before the forward pass."
            )
        if not loss.requires_grad:
            raise mistakes.unusable_loss(loss)

    def check_precision(self, loss: Tensor) -> None:
        """Warn if the requested precision has no effect on the first loss.

        Args:
            loss: A loss with its graph.
        """
        if self._has_checked_precision:
            return
        self._has_checked_precision = True
        if is_in_full_precision(loss):
            warn_user(
                f"The precision of the run is {self._precision}, but the first loss of {self.name!r} was computed in "
                "fp32: a model uses the precision of the run only if the model itself is called. "
                "Put calls to its parts and to its other methods into a block: with run.autocast()."
            )

    def loss_of_padding(self, loss: Tensor, gathered: Sequence[Tensor]) -> Tensor | None:
        """Return the loss of a process without a sample; None if no other process waits for its backward pass.

        Args:
            loss: The loss of the padding batch, which adds nothing, even if it is not finite.
            gathered: The tensors that the batch gathered from other processes, which compute gradients through them.
        """
        if self.is_sharded:
            return zero_loss_of_padding(loss)
        in_graph = tensors_in_graph(loss, gathered)
        return torch.stack([tensor[:0].sum() for tensor in in_graph]).sum() if in_graph else None

    def run_pass(self, loss: Tensor, *, retain_graph: bool) -> None:
        """Run the backward pass without changing the gradients of other models.

        Args:
            loss: The loss, scaled to its share of the update.
            retain_graph: Whether to keep the graph for a further backward pass.
        """
        scaler = self._accelerator.scaler
        scaled: Any = loss if scaler is None else scaler.scale(loss)
        scaled.backward(
            inputs=None if self._is_only_model else self.graph_tensors(self._trainable()), retain_graph=retain_graph
        )
        if self.first_updates_left > 0:
            self._earlier.record(self.parameters())

    def _trainable(self) -> list[nn.Parameter]:
        return [parameter for parameter in parameters_of_module(self.module) if parameter.requires_grad]


_AUTOCAST = ("Addmm", "Addbmm", "Baddbmm", "Bmm", "Convolution", "Linear", "Matmul", "Mm", "Mv", "ScaledDotProduct")


def is_in_full_precision(loss: Tensor) -> bool:
    """Whether a loss was computed with matrix products in float32, and none in a smaller type.

    Autocast would have computed them in the smaller type. The result is False if the graph does not show the
    computation, because compiled functions and custom functions hide it.

    Args:
        loss: The loss, with its graph.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1)
        >>> is_in_full_precision(model(torch.ones(1, 2)).sum())
        True
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     loss = model(torch.ones(1, 2)).sum()
        >>> is_in_full_precision(loss)
        False
    """
    found = False
    nodes, seen = [loss.grad_fn], set[Node | None]()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name, kinds = node.name(), dtypes_of_outputs(node)
        is_hidden = issubclass(type(node), BackwardCFunction)  # mypy considers the two types incompatible
        if is_hidden or kinds & {torch.bfloat16, torch.float16}:
            return False
        found = found or (name.startswith(_AUTOCAST) and torch.float32 in kinds)
        nodes += [previous for previous, _ in node.next_functions]
    return found
