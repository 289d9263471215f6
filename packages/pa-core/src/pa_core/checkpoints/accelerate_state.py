"""Detecting training states that accelerate wrote for other trainers, without unpickling them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pa_checkpoint import CheckpointInfo
from pa_core.errors import CheckpointError

_SAFETENSORS, _PICKLED, _OPTIMIZER = "model.safetensors", "pytorch_model.bin", "optimizer.bin"
_RANDOM_STATES = "random_states_*.pkl"


def find_accelerate_state(path: Path) -> Path | None:
    """Return a directory that ``Accelerator.save_state`` wrote: the path itself, or the newest in it, or None.

    Args:
        path: A directory; for other paths the result is None.
    """
    if not path.is_dir() or CheckpointInfo.at(path) is not None:
        return None
    if _is_accelerate_state(path):
        return path
    return max(filter(_is_accelerate_state, path.iterdir()), key=lambda state: state.stat().st_mtime, default=None)


def refusal_of_accelerate_state(state: Path) -> CheckpointError:
    """Return the error for an accelerate state, with the code that loads its weights.

    Args:
        state: The directory that ``find_accelerate_state`` returned.
    """
    names = sorted(entry.name for entry in state.iterdir())
    return CheckpointError(
        "This training state was written by accelerate, for pytorch-accelerated or another trainer: a run cannot "
        "resume from it, but its weights can be loaded.",
        given=f"{state} with {', '.join(names)}",
        do=f"In place of loading or resuming it, run before train(): {_code_that_loads(state)}",
    )


def _is_accelerate_state(directory: Path) -> bool:
    has_weights = any((directory / name).is_file() for name in (_SAFETENSORS, _PICKLED))
    return has_weights and next(directory.glob(_RANDOM_STATES), None) is not None


def _code_that_loads(state: Path) -> str:
    optimizer = state / _OPTIMIZER
    of_optimizer = f"; trainer.optimizer.load_state_dict(torch.load({str(optimizer)!r}, weights_only=True))"
    return f"{_code_for_weights(state)}{of_optimizer if optimizer.is_file() else ''}"


def _code_for_weights(state: Path) -> str:
    path = str(state / _SAFETENSORS)
    if not (state / _SAFETENSORS).is_file():
        return _code_without_prefix(f"torch.load({str(state / _PICKLED)!r}, weights_only=True)")
    if any(name.startswith("module.") for name in _names_in_safetensors(state / _SAFETENSORS)):
        return f"import safetensors.torch; {_code_without_prefix(f'safetensors.torch.load_file({path!r})')}"
    return f"import safetensors.torch; safetensors.torch.load_model(trainer.get_model(), {path!r})"


def _code_without_prefix(weights: str) -> str:
    """Return code that removes the prefix ``module.``, which a model wrapped for several processes has."""
    names = f"{{name.removeprefix('module.'): tensor for name, tensor in {weights}.items()}}"
    return f"trainer.get_model().load_state_dict({names})"


def _names_in_safetensors(path: Path) -> list[str]:
    from safetensors import SafetensorError, safe_open

    try:
        opened: Any = safe_open(path, framework="pt")  # it has no annotations
        with opened as file:
            names: list[str] = list(file.keys())
            return names
    except (OSError, SafetensorError):
        return []
