"""A digest of the results of a run, to compare runs bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from numbers import Number
from typing import Any, cast

from torch import Tensor, nn

from pa_core._tensors import bytes_of
from pa_core.distributed import broadcast_buffers
from pa_core.engine.rank_checks import digest_of_weights
from pa_core.sharding.sharded_states import gather_state
from pa_core.tracking import RunHistory
from pa_core.tracking.metric_values import as_number
from pa_core.training_state.own_buffers import digests_of_own_buffers
from pa_core.training_state.snapshotable import ResumableRun
from pa_distributed import require_same


def fingerprint(run: ResumableRun, *, shares_buffers: bool, requires_same_buffers: bool) -> str:
    """Return a digest of weights, buffers, optimizers, schedulers and metrics; every process must call this.

    Args:
        run: The run.
        shares_buffers: Whether all processes have the same buffers of the models: rank zero's, as in training states.
        requires_same_buffers: Whether the buffers must already be the same on all processes.

    Raises:
        RanksDifferError: The results are not the same on all processes.
    """
    if shares_buffers and not requires_same_buffers:
        for model in run.named_models().values():
            broadcast_buffers(model)
    own = {} if requires_same_buffers else digests_of_own_buffers(run, shares_buffers=shares_buffers)
    modules = {**run.named_models(), **run.untrained_modules(), **_weighted(run.loss_func)}
    optimizers = {
        name: gather_state(optimizer.state_dict(), keep=True) for name, optimizer in run.named_optimizers().items()
    }
    metrics = _metrics(run.run_history)
    parts = {
        "weights": digest_of_weights(modules, without=own),
        "optimizers": _digest(optimizers),
        "schedulers": _digest({name: scheduler.state_dict() for name, scheduler in run.named_schedulers().items()}),
        "metrics": _digest(metrics),
    }
    if own:
        parts["buffers of each process"] = _digest(dict(sorted(own.items())))
    by_name = {f"the metric {name}": f"{_digest(values)[:8]}, last {_last(values)}" for name, values in metrics.items()}
    require_same({**by_name, **{name: digest for name, digest in parts.items() if name != "metrics"}})
    return _digest(parts)[:16]


def _weighted(loss_func: object) -> dict[str, nn.Module]:
    """Return the loss function by its name in training states, if it is a module with weights."""
    is_weighted = isinstance(loss_func, nn.Module) and any(True for _ in loss_func.parameters())
    return {"loss_func": loss_func} if is_weighted and isinstance(loss_func, nn.Module) else {}


def _metrics(history: RunHistory) -> dict[str, list[Any]]:
    """Return the values of each metric, with Python numbers, as after a resume."""
    return {
        name: [value if (number := as_number(value)) is None else number for value in history.get_metric_values(name)]
        for name in sorted(history.get_metric_names())
    }


def _last(values: list[Any]) -> str:
    return f"{values[-1]!r:.40}" if values else "none"


def _digest(value: object) -> str:
    whole = hashlib.sha256()
    for piece in _pieces(value):
        whole.update(piece)
    return whole.hexdigest()


def _pieces(value: Any) -> Iterator[bytes | memoryview]:
    """Yield the content that identifies a value: the items of containers, the class of opaque objects."""
    if isinstance(value, Mapping):
        value = [*cast("Mapping[object, object]", value).items()]
    elif isinstance(value, set):
        value = sorted(cast("set[object]", value), key=repr)
    elif hasattr(value, "tolist") and not isinstance(value, Tensor):  # an array of numpy, which may not be installed
        value = value.tolist()
    if isinstance(value, list | tuple):
        entries = cast("list[object]", value)
        yield f"{len(entries)} entries\n".encode()
        for entry in entries:
            yield from _pieces(entry)
    elif isinstance(value, Tensor):
        yield f"{value.dtype} {tuple(value.shape)}\n".encode()
        yield bytes_of(value.detach())
    else:
        has_value = value is None or isinstance(value, Number | str | bytes)
        yield f"{value if has_value else type(value).__qualname__}\n".encode()
