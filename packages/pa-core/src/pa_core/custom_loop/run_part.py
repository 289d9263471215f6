"""What one optimizer trains in a custom loop: its gradients, its update and its schedule."""

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
        module: What it trains.
        accelerator: The accelerator of the run.
        is_only_model: Whether the run has no other model, whose gradients a backward pass would have to leave alone.
        exchange: What exchanges its gradients.

    Attributes:
        name: As passed.
        module: As passed.
        exchange: As passed.
        first_updates_left: In how many updates from here on the gradients are looked at.
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
            accelerator, num_averaged=exchange.num_averaged, weighs_all=exchange.is_exact, counted_by="num_items"
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
        if self._watch is not None:  # the script may step the optimizer again
            self._watch.remove()
            self._watch = None

    def watch_steps(self, optimizer: Optimizer) -> None:
        """From here on, step this optimizer, and raise an error for steps of it that the run does not make.

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
                f"The loop has called step() of the optimizer {self.name!r}, which the run steps. Remove "
                "optimizer.step() from the loop: update.step() or run.step() agrees, clips, steps and clears."
            )

    @override
    def step(self) -> None:
        self._steps = True
        try:
            super().step()
        finally:
            self._steps = False

    def let_go_of_gradients(self) -> None:
        """From here on, the run itself changes and clears the gradients."""
        self._earlier.forget()
        self.first_updates_left -= 1

    def has_lost_gradients(self) -> bool:
        """Whether nothing is left of what backward passes have added: no gradients or, in first updates, zeros."""
        has_gradients = self.has_gradients() or self.exchange.holds_gradients(self)
        return not has_gradients or (self.first_updates_left > 0 and self._earlier.are_zeros())

    def require_gradients_of(self, loss: object) -> None:
        """Raise an error for anything that no gradients of the module can be computed of.

        Args:
            loss: What was passed to ``backward``.

        Raises:
            ConfigurationError: It is not a tensor of one element with a graph, or the module is frozen.
        """
        if not isinstance(loss, Tensor) or loss.numel() != 1 or unusable_kind(loss) is not None:
            raise mistakes.unusable_loss(loss)
        if loss.requires_grad and self._is_only_model:
            return
        if not any(parameter.requires_grad for parameter in self.module.parameters()):
            raise ConfigurationError(
                f"There is nothing to train: backward(...) for {self.name!r}, every parameter of which has "
                "requires_grad=False. Call requires_grad_() on what is to be trained, before the forward pass."
            )
        if not loss.requires_grad:
            raise mistakes.unusable_loss(loss)

    def check_precision(self, loss: Tensor) -> None:
        """Warn about the first loss if the requested precision has no effect on it.

        Args:
            loss: A loss with its graph.
        """
        if self._has_checked_precision:
            return
        self._has_checked_precision = True
        if is_in_full_precision(loss):
            warn_user(
                f"The run is to compute in {self._precision}, and the first loss of {self.name!r} was computed in "
                "fp32: a model computes in the precision of the run where it is called itself. "
                "Put calls of its parts and of its other methods into a block: with run.autocast()."
            )

    def loss_of_padding(self, loss: Tensor, gathered: Sequence[Tensor]) -> Tensor | None:
        """Return what a process without a sample goes backward through; None where nothing waits for it.

        Args:
            loss: The loss of the padding batch, which adds nothing, even if it is not finite.
            gathered: What the batch has gathered of the other processes, which go backward through it.
        """
        if self.is_sharded:
            return zero_loss_of_padding(loss)
        in_graph = tensors_in_graph(loss, gathered)
        return torch.stack([tensor[:0].sum() for tensor in in_graph]).sum() if in_graph else None

    def run_pass(self, loss: Tensor, *, retain_graph: bool) -> None:
        """Run the backward pass, which leaves the gradients of other models alone.

        Args:
            loss: The loss, scaled to its share of the update.
            retain_graph: Whether another backward pass goes through the graph of this one.
        """
        scaler = self._accelerator.scaler
        scaled: Any = loss if scaler is None else scaler.scale(loss)
        scaled.backward(
            inputs=None if self._is_only_model else self.graph_tensors(self._trainable()), retain_graph=retain_graph
        )
        if self.first_updates_left > 0:
            self._earlier.note(self.parameters())

    def _trainable(self) -> list[nn.Parameter]:
        return [parameter for parameter in parameters_of_module(self.module) if parameter.requires_grad]


_AUTOCAST = ("Addmm", "Addbmm", "Baddbmm", "Bmm", "Convolution", "Linear", "Matmul", "Mm", "Mv", "ScaledDotProduct")


def is_in_full_precision(loss: Tensor) -> bool:
    """Whether matrix products that led to a loss were computed in float32, and nothing in a smaller type.

    Autocast would have computed them in the smaller type. False where the graph does not tell: compiled functions and
    custom functions hide what they compute.

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
        is_hidden = issubclass(type(node), BackwardCFunction)  # mypy takes the two for incompatible
        if is_hidden or kinds & {torch.bfloat16, torch.float16}:
            return False
        found = found or (name.startswith(_AUTOCAST) and torch.float32 in kinds)
        nodes += [previous for previous, _ in node.next_functions]
    return found
