"""State dicts: which objects have one, and which weights of a model and of a file differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from typing_extensions import TypeIs

from pa_checkpoint import StoredTensor
from pa_core.errors import ConfigurationError
from pa_core.types import SupportsStateDict

__all__ = [
    "differences_of_weights",
    "frozen_names",
    "kind_of_tensor",
    "list_differences",
    "missing_methods",
    "supports_state_dict",
    "without_frozen",
]

_SHOWN_DIFFERENCES = 8  # enough to see which model it is, few enough to read


def missing_methods(one: object) -> list[str]:
    """Return which of the methods ``state_dict`` and ``load_state_dict`` an object lacks."""
    return [name for name in ("state_dict", "load_state_dict") if not callable(getattr(one, name, None))]


def supports_state_dict(one: object) -> TypeIs[SupportsStateDict]:
    """Whether the state of an object can be saved and restored."""
    return not missing_methods(one)


def differences_of_weights(model: nn.Module, weights: Mapping[str, Any], source: str) -> dict[str, str]:
    """Describe, by name, the weights that a model and its saved weights do not share; empty if all match.

    Args:
        model: The model without wrappers.
        weights: The saved state dict, with tensors in memory or on disk.
        source: Where it was saved, in a word.

    Example:
        >>> differences_of_weights(nn.Linear(2, 1, bias=False), {"weight": nn.Linear(3, 1).weight}, "file")
        {'weight': 'weight: (1, 3) in the file, (1, 2) in the model'}
    """
    own = model.state_dict()
    differences = {name: f"missing: {name}" for name in own if name not in weights}
    differences |= {name: f"unexpected: {name}" for name in weights if name not in own}
    for name in (name for name in own if name in weights and not _is_extra_state(name)):
        value = weights[name].example() if isinstance(weights[name], StoredTensor) else weights[name]
        for property_of in (_shape, kind_of_tensor):
            saved, present = property_of(value), property_of(own[name])
            if saved != present:
                differences[name] = f"{name}: {saved} in the {source}, {present} in the model"
                break
    return differences


def frozen_names(state: Mapping[str, Any]) -> set[str]:
    """Return the names of the frozen parameters in what ``state_dict(keep_vars=True)`` of a model returned."""
    return {name for name, one in state.items() if isinstance(one, nn.Parameter) and not one.requires_grad}


def without_frozen(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a state dict that training changes: all but parameters that are frozen.

    Args:
        state: What ``state_dict(keep_vars=True)`` of a model returned.

    Raises:
        ConfigurationError: All parameters are frozen.
    """
    frozen = frozen_names(state)
    trained = {name: one for name, one in state.items() if name not in frozen}
    if any(isinstance(one, nn.Parameter) for one in trained.values()):
        return trained
    raise ConfigurationError(
        "Nothing of the model is trained, so that trainable_only=True leaves nothing to save. Call it while "
        "the adapter is trainable, or leave out trainable_only."
    )


def list_differences(differences: Iterable[str]) -> str:
    """Return the first few differences, and how many more there are."""
    listed = list(differences)
    hidden = len(listed) - _SHOWN_DIFFERENCES
    return "; ".join(listed[:_SHOWN_DIFFERENCES]) + (f"; and {hidden} more" if hidden > 0 else "")


def _is_extra_state(name: str) -> bool:
    """Whether a module made this by ``get_extra_state``; only its ``set_extra_state`` knows what may be in it."""
    return name.rpartition(".")[2] == "_extra_state"


def kind_of_tensor(value: object) -> str | None:
    """Return what a tensor of another kind cannot take, with any shape; precision can change."""
    if not isinstance(value, Tensor):
        return None
    numbers = "complex numbers" if value.is_complex() else "numbers" if value.is_floating_point() else "whole numbers"
    place = ", without values" if value.is_meta else ", quantized" if value.is_quantized else ""
    return f"{numbers} in a tensor of layout {str(value.layout).removeprefix('torch.')}{place}"


def _shape(value: object) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, Tensor) else None
