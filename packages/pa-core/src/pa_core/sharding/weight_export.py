"""Writes the weights of a sharded model as safetensors; one process has those of one file at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from pa_core import _accelerate
from pa_core.errors import ConfigurationError
from pa_core.model_tensors import without_frozen


class WeightExport:
    """The weights of a sharded model on their way into files.

    Every process must make one and enter the context of ``gathering(export.tensors())``; one of them writes. The files
    are the same as for the model without sharding.

    Args:
        model: The model without wrappers.
        max_shard_size: The size of a file, in bytes or as in ``"5GB"``.
        trainable_only: Whether parameters that are frozen are left out.

    Raises:
        ConfigurationError: Something in the state of the model is not a tensor that can be exported, or nothing of it
            is trainable.
    """

    def __init__(self, model: nn.Module, max_shard_size: int | str, *, trainable_only: bool = False) -> None:
        state = model.state_dict(keep_vars=True)  # where tied weights are the same object
        self._tensors = _tied_ones_once(without_frozen(state) if trainable_only else state)
        described = {
            name: torch.empty(one.shape, dtype=one.dtype, device="meta") for name, one in self._tensors.items()
        }
        self._files, self._index = _accelerate.files_of_export(described, max_shard_size)

    def tensors(self) -> Iterator[Tensor]:
        """Yield the tensors in the order of the files; of a model that is not sharded, what ``write`` needs."""
        return (self._tensors[name].detach() for names in self._files.values() for name in names)

    def write(self, folder: Path, whole: Iterator[Tensor]) -> None:
        """Write the files and, if there are several, their index.

        Args:
            folder: The folder.
            whole: The whole tensors, in the order of ``tensors``. Those of one file at a time take memory.
        """
        import safetensors.torch

        save_file: Any = cast("Any", safetensors.torch).save_file  # annotated in part
        for file, names in self._files.items():
            # Copies, for the library takes neither views nor tensors that share memory.
            on_host = {name: next(whole).to("cpu", copy=True).contiguous() for name in names}
            save_file(on_host, folder / file, metadata={"format": "pt"})
        if self._index is not None:
            (folder / "model.safetensors.index.json").write_text(json.dumps(self._index, indent=2, sort_keys=True))


def _tied_ones_once(state: dict[str, Any]) -> dict[str, Tensor]:
    other = [name for name, value in state.items() if not _is_storable(value)]
    if other:
        raise ConfigurationError(
            "Something in the state of the model has no place in a safetensors file.",
            given=f"{', '.join(other)} of type {type(state[other[0]]).__name__}",
            do="Save it with save_checkpoint().",
        )
    first = {id(value): name for name, value in reversed(state.items())}
    return {name: value for name, value in state.items() if first[id(value)] == name}


def _is_storable(value: object) -> bool:
    """Whether the format has a place for a tensor of this dtype."""
    import safetensors.torch

    if not isinstance(value, Tensor) or value.is_complex():
        return False
    try:
        safetensors.torch.save({"empty": torch.empty(0, dtype=value.dtype)})
    except (KeyError, RuntimeError):
        return False
    return True
