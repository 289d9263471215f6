"""Buffers in which a process differs from the first one, such as a queue of what each process has computed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from pa_checkpoint import StoredTensor
from pa_core import distributed
from pa_core.model_tensors import is_sharded
from pa_core.training_state.snapshotable import ResumableRun
from pa_core.user_warnings import warn_user

_MOST_NUMBERS = 2**20
_LOSS_FUNC = "loss_func"


class OwnBuffers:
    """Returns what a training state has to hold for each process of modules whose buffers no exchange makes equal.

    These are modules that no optimizer trains, and the loss function. A buffer that is too large to be collected on the
    first process is named in one warning.
    """

    def __init__(self) -> None:
        self._has_warned = False

    def capture(self, run: ResumableRun) -> dict[str, Tensor]:
        """Return the buffers in which this process differs from the first one, by place; every process must call this.

        Args:
            run: The run.
        """
        buffers = {} if distributed.num_processes() == 1 else _buffers(run)
        if not buffers:
            return {}
        own = {place: _digest(one.detach()) for place, one in buffers.items()}
        of_all = distributed.gather_objects(own)
        differing = [place for place in own if any(other.get(place) != own[place] for other in of_all)]
        large = [place for place in differing if buffers[place].numel() > _MOST_NUMBERS]
        if large and not self._has_warned and distributed.rank() == 0:
            self._has_warned = True
            warn_user(
                f"{', '.join(large)} differ between the processes, and are too large for each process to have its own "
                "in a training state: a resumed run has what process 0 had. If later steps need "
                "them, keep them equal, as with trainer.gather(...)."
            )
        first = of_all[0]
        return {
            place: buffers[place].detach().to("cpu", copy=True)
            for place in differing
            if place not in large and first.get(place) != own[place]
        }


def restore_own_buffers(run: ResumableRun, stored: Mapping[str, Tensor | StoredTensor]) -> None:
    """Put back what ``OwnBuffers.capture`` returned, over what the first process had.

    Args:
        run: The run.
        stored: What this process stored, by place.
    """
    buffers = _buffers(run) if stored else {}
    with torch.no_grad():
        for place, one in stored.items():
            if place in buffers and tuple(buffers[place].shape) == tuple(one.shape):
                StoredTensor.of(one).read_into(buffers[place])


def _digest(tensor: Tensor) -> str:
    values = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.sha256(values.data).hexdigest()


def _buffers(run: ResumableRun) -> dict[str, Tensor]:
    modules = dict(run.untrained_modules())
    if isinstance(run.loss_func, nn.Module):
        modules[_LOSS_FUNC] = run.loss_func
    return {
        f"{name}.{inner}": one
        for name, module in modules.items()
        for inner, one in module.named_buffers()
        if one.layout is torch.strided and not (is_sharded(one) or one.is_meta)
    }
