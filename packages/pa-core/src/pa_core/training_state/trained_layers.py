"""Whether optimizers still train what models have, and what of a loss function a run has changed."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from pa_core import distributed
from pa_core.errors import ConfigurationError
from pa_core.model_tensors import buffers_of_module, is_sharded_module, parameters_of
from pa_core.training_state.snapshotable import ResumableRun
from pa_core.user_warnings import warn_user
from pa_data.state_search import mark_of

_MOST_SHOWN = 4
_HOW_TO_ADD = 'optimizer.add_param_group({"params": layer.parameters()})'


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
        buffers = buffers_of_module(run.loss_func) if isinstance(run.loss_func, nn.Module) else []
        self._of_loss_func = [(one, mark_of(one)) for one in buffers]

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
        noted, present = self._of_loss_func, buffers_of_module(loss_func)
        if len(noted) != len(present):
            return True
        return any(one is not now or mark_of(now) != mark for (one, mark), now in zip(noted, present, strict=True))


def _named_parameters(run: ResumableRun) -> Mapping[str, Tensor]:
    modules = {**run.named_models(), **run.untrained_modules()}
    if isinstance(run.loss_func, nn.Module):
        modules["loss_func"] = run.loss_func
    return {f"{name}.{inner}": one for name, module in modules.items() for inner, one in module.named_parameters()}


def _list(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return ", ".join(names[:_MOST_SHOWN]) + more
