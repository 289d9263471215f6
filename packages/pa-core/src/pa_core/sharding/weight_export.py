"""Writing the weights of a sharded model as safetensors, with at most one whole tensor on a process at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pa_core import _accelerate
from pa_core._tensors import without_frozen
from pa_core.errors import ConfigurationError


class WeightExport:
    """Writes the weights of a sharded model to files.

    Every process must create an export and enter ``gathering(export.tensors())``; one process writes. The files are the
    same as for the model without sharding.

    Args:
        model: The model without wrappers.
        max_shard_size: The largest size of a file, in bytes or as in ``"5GB"``.
        trainable_only: Whether frozen parameters are left out.

    Raises:
        ConfigurationError: The state of the model contains an object that is not a tensor, or the model has no
            trainable parameters.
    """

    def __init__(self, model: nn.Module, max_shard_size: int | str, *, trainable_only: bool = False) -> None:
        state = model.state_dict(keep_vars=True)  # in which tied weights are the same object
        self._tensors = _tied_ones_once(without_frozen(state) if trainable_only else state)
        described = {name: _described(tensor) for name, tensor in self._tensors.items()}
        by_file, self._index = _accelerate.files_of_export(described, max_shard_size)
        self._files: dict[str, tuple[list[str], bytes]] = {
            file: _header({name: described[name] for name in names}) for file, names in by_file.items()
        }

    def tensors(self) -> Iterator[Tensor]:
        """Yield the tensors in the order of the files."""
        return (self._tensors[name].detach() for names, _ in self._files.values() for name in names)

    def write(self, folder: Path, whole: Iterator[Tensor]) -> None:
        """Write the files and, if there are several, their index.

        Args:
            folder: The folder.
            whole: The whole tensors, in the order of ``tensors``.
        """
        for file, (names, header) in self._files.items():
            with (folder / file).open("wb") as stream:
                stream.write(header)
                for _ in names:
                    stream.write(_bytes(next(whole)))
        if self._index is not None:
            (folder / "model.safetensors.index.json").write_text(json.dumps(self._index, indent=2, sort_keys=True))


def _tied_ones_once(state: dict[str, Any]) -> dict[str, Tensor]:
    other = [name for name, value in state.items() if not isinstance(value, Tensor) or _dtype_name(value) is None]
    if other:
        raise ConfigurationError(
            "The state of the model contains an object that a safetensors file cannot hold.",
            given=f"{', '.join(other)} of type {type(state[other[0]]).__name__}",
            do="Save it with save_checkpoint().",
        )
    first = {id(value): name for name, value in reversed(state.items())}
    return {name: value for name, value in state.items() if first[id(value)] == name}


def _described(tensor: Tensor) -> Tensor:
    """Return a tensor with the same shape and dtype, without memory."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _header(tensors: dict[str, Tensor]) -> tuple[list[str], bytes]:
    """Return the names of tensors in the order of a safetensors file, and the header of the file."""
    # the largest elements first, as the library does, so that every tensor is aligned in a mapped file
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": _dtype_name(tensor), "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return [name for name, _ in ordered], len(text).to_bytes(8, "little") + text


def _dtype_name(tensor: Tensor) -> str | None:
    """Return the format's name of the dtype of a tensor, as the library writes it; None for other objects."""
    import safetensors.torch

    if tensor.is_complex():
        return None
    try:
        file = safetensors.torch.save({"empty": torch.empty(0, dtype=tensor.dtype)})
    except (KeyError, RuntimeError):
        return None
    return str(json.loads(file[8:])["empty"]["dtype"])


def _bytes(tensor: Tensor) -> memoryview:
    on_host = tensor.detach().to("cpu").contiguous()
    # strides of dimensions of one element vary
    array: Any = on_host.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
    return memoryview(array) if tensor.numel() else memoryview(b"")
