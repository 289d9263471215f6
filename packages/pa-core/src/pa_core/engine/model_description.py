"""A table of a model: its modules, their parameters and their memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import filterfalse, groupby

from torch import nn
from torch.nn.parameter import is_lazy

from pa_core._tensors import is_sharded, local_piece, unwrap_model
from pa_core._torch import CHILDREN
from pa_core.run_config import check_count

_HEADER: tuple[str, ...] = ("module", "type", "parameters", "trainable", "memory", "dtype", "")
_LEFT = (0, 1, 5, 6)
_KIB = 1024


def describe_model(model: nn.Module | Mapping[str, nn.Module], depth: int = 2) -> str:
    """Return a table of the modules of a model, with parameter counts, memory and dtypes.

    You call it before training, to see where the parameters are and which are frozen; ``trainer.describe_model()`` does
    the same for the models of a run. Each row counts all parameters in the module, each once. Identical neighbors, for
    example the blocks of a transformer, share a row. The memory column counts parameters and buffers on this process,
    but not gradients or optimizer states. The last column has remarks: ``meta`` for parameters that have no memory yet
    (the memory counts the real parameters), ``lazy`` for parameters whose sizes are determined by the first batch
    (which are not counted), and ``sharded`` for parameters that are split over processes (the memory counts the part on
    this process). It does not communicate.

    Args:
        model: The model, which may be wrapped or compiled; or several models by name.
        depth: The number of levels of modules below the model; 0 for the model alone. The default, 2, fits on a screen
            for most models.

    Returns:
        A string of several lines, to be printed, with the columns module, type, parameters, trainable (parameters),
        memory and dtype, and a column of remarks if there are any.

    Raises:
        ConfigurationError: ``depth`` is not a whole number of at least 0.

    Example:
        >>> import torch
        >>> from pa_core import describe_model
        >>> layers = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
        >>> print(describe_model(layers))
        module  type        parameters  trainable    memory  dtype
        model   Sequential       2,410      2,410  9.41 KiB  float32
          0     Linear           2,080      2,080  8.12 KiB  float32
          1     ReLU                 0          0       0 B
          2     Linear             330        330  1.29 KiB  float32
    """
    check_count("depth", depth, minimum=0)
    models = {"model": model} if isinstance(model, nn.Module) else model
    rows = [_HEADER]
    for name, module in models.items():
        whole = unwrap_model(module, keep_torch_compile=False)
        rows += _rows(name, [whole], 0, depth)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in _LEFT else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _measures(modules: Sequence[nn.Module]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the cells of numbers of some modules, and the remarks on their tensors."""
    parameters = list({id(parameter): parameter for module in modules for parameter in module.parameters()}.values())
    buffers = list({id(buffer): buffer for module in modules for buffer in module.buffers()}.values())
    known = [*filterfalse(is_lazy, parameters)]
    tensors = [*known, *filterfalse(is_lazy, buffers)]
    kinds = {
        "lazy": len(known) < len(parameters),
        "meta": any(tensor.is_meta for tensor in tensors),
        "sharded": any(map(is_sharded, tensors)),
    }
    cells = (
        f"{sum(tensor.numel() for tensor in known):,}",
        f"{sum(tensor.numel() for tensor in known if tensor.requires_grad):,}",
        _format_memory(sum(piece.numel() * piece.element_size() for piece in map(local_piece, tensors))),
        ", ".join(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in known or tensors})),
    )
    return cells, tuple(kind for kind, applies in kinds.items() if applies)


def _rows(name: str, modules: Sequence[nn.Module], level: int, depth: int) -> Iterator[tuple[str, ...]]:
    """Yield the row of some identical modules, and for a single module the rows of its children."""
    first, (cells, kinds) = modules[0], _measures(modules)
    kind = type(first).__name__ if len(modules) == 1 else f"{len(modules)} x {type(first).__name__}"
    yield "  " * level + name, kind, *cells, ", ".join(kinds)
    if level == depth or len(modules) > 1:
        return
    named: dict[str, nn.Module | None] = vars(first)[CHILDREN]
    children = [(child, module) for child, module in named.items() if module is not None]
    for _, alike in groupby(children, key=_likeness):
        names, of_group = zip(*alike, strict=True)
        title = names[0] if len(names) == 1 else f"{names[0]} - {names[-1]}"
        yield from _rows(title, of_group, level + 1, depth)


def _likeness(child: tuple[str, nn.Module]) -> object:
    """Return a key that is equal for neighbors that share a row: numbered modules of the same class and size."""
    name, module = child
    is_numbered = name.isdigit() and any(True for _ in module.parameters())
    return (type(module), _measures([module])) if is_numbered else name


def _format_memory(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < _KIB:
            return f"{size:.3g} {unit}"
        size /= _KIB
    return f"{size:.3g} TiB"
