"""What is saved of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from pa_checkpoint._sharded_tensor import StoredTensor
from pa_checkpoint._torch import is_sharded

EXTRA_STATE = "_extra_state"
"""The last part of the name that torch gives it."""


class SavedModel(NamedTuple):
    """The weights of a model, and what its state dict leaves out. ``_asdict()`` of it can be a part of a checkpoint.

    Attributes:
        weights: The state dict.
        other_buffers: The buffers that a state dict leaves out, by name.
        trainable: Whether each parameter is trained, by name.

    Example:
        >>> sorted(SavedModel.of(nn.Linear(1, 1))._asdict())
        ['other_buffers', 'trainable', 'weights']
    """

    weights: Mapping[str, Any]
    other_buffers: Mapping[str, Tensor | StoredTensor]
    trainable: Mapping[str, bool]

    @classmethod
    def of(cls, model: nn.Module) -> SavedModel:
        """Return what is to be saved of a model; tensors are not copied.

        Args:
            model: The model without wrappers, whose keys are the plain ones.
        """
        weights = model.state_dict()
        return cls(
            weights=dict(weights),
            other_buffers={name: buffer for name, buffer in model.named_buffers() if name not in weights},
            trainable={name: parameter.requires_grad for name, parameter in model.named_parameters()},
        )

    def load_into(self, model: nn.Module, names: Iterable[str]) -> None:
        """Load what is saved into a model, by way of its ``load_state_dict``.

        Weights that stay on disk, or that this process has only pieces of, are read into the memory of the model
        itself: its ``load_state_dict`` gets them as those that it has already, in any form in which it keeps them.

        Args:
            model: The model without wrappers.
            names: Which weights it can load; others stay as they are.
        """
        own = model.state_dict()
        read: dict[str, Any] = {}
        for name in names:
            value = self.weights[name]
            if name.endswith(EXTRA_STATE):
                read[name] = StoredTensor.resolve(value)
            elif isinstance(value, StoredTensor) or is_sharded(own[name]):
                StoredTensor.of(value).read_into(own[name])
                read[name] = own[name]
            else:
                read[name] = value
        model.load_state_dict(read, strict=read.keys() == own.keys() == self.weights.keys())
        buffers = dict(model.named_buffers())
        for name, buffer in self.other_buffers.items():
            if name in buffers and buffers[name].shape == buffer.shape:
                StoredTensor.of(buffer).read_into(buffers[name])
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(self.trainable.get(name, parameter.requires_grad))
