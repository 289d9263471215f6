"""Tensors in safetensors files, written from their memory without a second copy."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from pa_checkpoint._files import DigestingReader, DigestingWriter

_WIDEST = 1 << 20  # bytes that a small tensor may extend over in memory, as a part of a larger tensor
_COMPLEX = frozenset({torch.complex64, torch.complex128})


def is_storable(tensor: Tensor) -> bool:
    """Return whether a tensor has values in memory, of a type that a file can hold."""
    return (
        tensor.layout is torch.strided
        and not (tensor.is_meta or tensor.is_nested or tensor.is_quantized)
        and (tensor.dtype in DTYPE_NAMES or tensor.dtype in _COMPLEX)
        and (tensor.numel() == 0 or tensor.untyped_storage().nbytes() > 0)  # sharding frees memory now and then
    )


def memory_of(tensor: Tensor) -> Hashable:
    """Return a key that is equal for tensors that show the same memory in the same way, as tied weights do.

    It is valid for as long as the tensors live.
    """
    if tensor.numel() == 0:  # it has no address
        return object()
    shown = (tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg())
    return (tensor.device, tensor.data_ptr(), *shown)


def memory_of_piece(piece: Tensor, whole: Sequence[int]) -> Hashable:
    """Return a key for the piece that this process holds of a sharded tensor, equal for tied weights.

    A piece without elements is identified by its storage, so that tied weights are tied on all processes.

    Args:
        piece: The piece.
        whole: The shape of the whole tensor.
    """
    if piece.numel():
        return (memory_of(piece), tuple(whole))
    storage = piece.untyped_storage()
    return (piece.dtype, tuple(whole), storage, piece.storage_offset())


def recorded_strides(tensor: Tensor) -> tuple[int, ...] | None:
    """Return the strides of a tensor, or None if they are the usual strides or if elements overlap in memory."""
    strides = tensor.stride()
    if strides == _usual_strides(tensor.shape) or _reach(tensor.shape, strides) is None:
        return None
    return strides


def _usual_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a new tensor, ten times as fast as torch does."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _reach(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """Return the distance from the first to the last element, or None if elements overlap."""
    reach = 0
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1 and stride <= reach:
            return None
        reach += stride * max(size - 1, 0)
    return reach


def has_overlap(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether elements of a tensor would overlap in memory.

    Raises:
        ValueError: No tensor of the shape has these strides.
    """
    return _reach(shape, strides) is None


def with_strides(tensor: Tensor, strides: Sequence[int]) -> Tensor:
    """Return a tensor with the same values and the given strides, or the same tensor if that took too much memory.

    Raises:
        ValueError: No tensor of its shape has these strides, or its elements would overlap.
    """
    reach = _reach(tensor.shape, strides)
    if reach is None:
        raise ValueError(f"the strides {strides} for a tensor of shape {tuple(tensor.shape)}")
    if reach * tensor.element_size() > max(_WIDEST, 5 * tensor.nbytes):
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


DTYPE_NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}
DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}

_METADATA = "__metadata__"
_MOST_DIMENSIONS, _MOST_ELEMENTS = 64, 2**60  # of what torch can address; a tensor without elements has any shape
_ALIGNMENT = 8  # bytes: the data begin at a multiple of the largest element


class MalformedFileError(ValueError):
    """The bytes are not a tensor file; the message gives the reason in a few words."""


def write_tensors(file: DigestingWriter, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors one after the other; tensors on an accelerator are copied to the host one at a time.

    Args:
        file: A file that is open for writing.
        tensors: The tensors by name; the dtypes are in ``DTYPE_NAMES``.
    """
    names, header = header_of(tensors)
    file.write(header)
    for name in names:
        file.write(bytes_of(tensors[name]))


def header_of(tensors: Mapping[str, Tensor]) -> tuple[list[str], bytes]:
    """Return the names of tensors in the order of their file, and the bytes of the file before the first tensor.

    Args:
        tensors: The tensors by name; the dtypes are in ``DTYPE_NAMES``. Only their shapes and dtypes are read.
    """
    # the largest elements first, as the library does, so that every tensor is aligned in a mapped file
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    header: dict[str, object] = {_METADATA: {"format": "pt"}}
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.numel() * tensor.element_size()
        dtype = DTYPE_NAMES[tensor.dtype]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return [name for name, _ in ordered], len(text).to_bytes(8, "little") + text


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor as in a file, without a copy if it is contiguous and on the CPU."""
    return memory_of_values(tensor.detach().to("cpu").contiguous()) if tensor.numel() else memoryview(b"")


def read_tensors(file: DigestingReader, size: int) -> dict[str, Tensor]:
    """Read a whole file into tensors on the CPU.

    Args:
        file: A file that is open for reading, at its beginning.
        size: The number of its bytes. No larger memory is allocated.

    Raises:
        MalformedFileError: It is not a tensor file.
    """
    return {name: read_tensor(file, entry) for name, entry in read_header(file, size).entries.items()}


def read_tensor(file: DigestingReader, entry: TensorEntry) -> Tensor:
    """Read a tensor from a file that is at its beginning.

    Raises:
        MalformedFileError: The file ends within the tensor.
    """
    tensor = torch.empty(entry.shape, dtype=entry.dtype, device="cpu")
    if entry.size and file.read_into(memory_of_values(tensor)) < entry.size:
        raise MalformedFileError(f"an end within the tensor {entry.name}")
    return tensor


class TensorEntry(NamedTuple):
    """The description of a tensor in the header; begin and size are in bytes, relative to the start of the data."""

    name: str
    dtype: torch.dtype
    shape: list[int]
    begin: int
    size: int


class Header(NamedTuple):
    """The descriptions of the tensors by name, in the order of their data, and the offset of the data in the file."""

    entries: dict[str, TensorEntry]
    data_begin: int


def read_header(file: DigestingReader, size: int) -> Header:
    """Read the descriptions of the tensors in a file.

    Args:
        file: A file that is open for reading, at its beginning. Afterwards it is at the start of the data.
        size: The number of its bytes.

    Raises:
        MalformedFileError: It is not a tensor file.
    """
    length = int.from_bytes(file.read(8), "little")
    if length > size - 8:
        raise MalformedFileError(f"a header of {length} bytes in a file of {size}")
    entries = _parse_header(file.read(length), size - 8 - length)
    return Header({entry.name: entry for entry in entries}, 8 + length)


def _parse_header(text: bytes, data_size: int) -> list[TensorEntry]:
    """Return the descriptions in the order of their data, which must fill the file without gaps."""
    try:
        header = cast("dict[str, dict[str, Any]]", json.loads(text))
        entries = sorted(
            (_parse_entry(name, fields) for name, fields in header.items() if name != _METADATA),
            key=lambda entry: (entry.begin, entry.size),
        )
    except (MalformedFileError, MemoryError, RecursionError):
        raise
    except Exception as error:  # what wrong JSON does is not limited to some kinds of errors
        raise MalformedFileError(f"a header: reading it raised {type(error).__name__}: {error}") from error
    position = 0
    for entry in entries:
        if entry.begin != position:
            raise MalformedFileError(f"the tensor {entry.name} at byte {entry.begin} of the data, not {position}")
        position += entry.size
    if position != data_size:
        raise MalformedFileError(f"tensors of {position} bytes in a file with {data_size}")
    return entries


def _parse_entry(name: str, fields: dict[str, Any]) -> TensorEntry:
    """Return the checked description of a tensor."""
    dtype = DTYPES[fields["dtype"]]
    shape: list[int] = fields["shape"]
    begin, end = cast("list[int]", fields["data_offsets"])
    are_counts = all(type(number) is int and number >= 0 for number in (*shape, begin, end))
    fits = are_counts and len(shape) <= _MOST_DIMENSIONS and math.prod(filter(None, shape)) <= _MOST_ELEMENTS
    if not fits or end - begin != math.prod(shape) * dtype.itemsize:
        raise MalformedFileError(
            f"the tensor {name} of shape {shape} and dtype {fields['dtype']} from byte {begin} to {end}"
        )
    return TensorEntry(name, dtype, shape, begin, end - begin)


def memory_of_values(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous tensor on the CPU with elements."""
    return memoryview(cast("Any", tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()))
