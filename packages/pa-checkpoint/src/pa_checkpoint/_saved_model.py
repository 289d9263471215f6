"""The saved form of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from pa_checkpoint._sharded_tensor import StoredTensor
from pa_checkpoint._torch import is_sharded

EXTRA_STATE = "_extra_state"
"""The last part of the name that torch gives to the extra state of a module."""


class SavedModel(NamedTuple):
    """The weights of a model, and the values that its state dict leaves out.

    A state dict contains neither non-persistent buffers nor the ``requires_grad`` of the parameters, so a frozen layer
    would train after a resume. Use ``SavedModel.of(model)._asdict()`` as a part of a checkpoint, and
    ``SavedModel(**part).load_into(model, names)`` after loading it. If your model has neither frozen parameters nor
    such buffers, ``model.state_dict()`` is enough. ``SavedModel`` is a named tuple; you rarely pass its fields
    yourself.

    Attributes:
        weights: The state dict of the model. Its tensors share memory with the model, or are on the CPU after ``load``.
        other_buffers: The buffers that a state dict leaves out, by name. With ``load(path, lazy=True)``, sharded
            buffers are ``StoredTensor`` objects.
        trainable: Whether each parameter requires a gradient, by name.

    Example:
        >>> import tempfile
        >>> from torch import nn
        >>> from pa_checkpoint import load, save
        >>> from pa_checkpoint.torch_states import SavedModel
        >>> model, restored = nn.Linear(2, 1), nn.Linear(2, 1)
        >>> _ = model.bias.requires_grad_(False)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(f"{folder}/step_1", {"model": SavedModel.of(model)._asdict()})
        ...     saved = SavedModel(**load(f"{folder}/step_1")["model"])
        >>> saved.load_into(restored, saved.weights)
        >>> restored.bias.requires_grad, bool((restored.weight == model.weight).all())
        (False, True)
    """

    weights: Mapping[str, Any]
    other_buffers: Mapping[str, Tensor | StoredTensor]
    trainable: Mapping[str, bool]

    @classmethod
    def of(cls, model: nn.Module) -> SavedModel:
        """Capture the state of a model without copying its tensors.

        You call it before each save, and pass ``_asdict()`` of the result to ``save`` or ``Writer.save``.

        Args:
            model: The model without wrappers such as ``DistributedDataParallel``, so that the names have no prefix.

        Returns:
            The state. Its tensors share memory with the model, so save or copy it before the next update.

        Example:
            >>> from torch import nn
            >>> from pa_checkpoint.torch_states import SavedModel
            >>> saved = SavedModel.of(nn.BatchNorm1d(3))
            >>> sorted(saved.weights), saved.trainable
            (['bias', 'num_batches_tracked', 'running_mean', 'running_var', 'weight'], {'weight': True, 'bias': True})
        """
        weights = model.state_dict()
        return cls(
            weights=dict(weights),
            other_buffers={name: buffer for name, buffer in model.named_buffers() if name not in weights},
            trainable={name: parameter.requires_grad for name, parameter in model.named_parameters()},
        )

    def load_into(self, model: nn.Module, names: Iterable[str]) -> None:
        """Load the saved values into a model through its ``load_state_dict``.

        You call it after ``load``. Weights that are still on disk, and weights that are sharded over processes, are
        read directly into the memory of the model, without a whole copy on this process. The saved ``requires_grad`` of
        the parameters and the other buffers are loaded as well, where names and shapes match. An error may leave the
        model with some loaded weights; to restore the model then, call it through ``TransactionalLoad.load_models``.

        Args:
            model: The model without wrappers such as ``DistributedDataParallel``.
            names: The names of the weights to load. All other weights keep their values. Pass ``saved.weights`` for
                all.

        Raises:
            KeyError: A name is not among the saved weights.
            RuntimeError: The shape of a weight differs from the shape in the model.
            CheckpointError: A file can no longer be read.

        Example:
            >>> from torch import nn
            >>> from pa_checkpoint.torch_states import SavedModel
            >>> pretrained, model = nn.Linear(2, 1), nn.Linear(2, 1)
            >>> SavedModel.of(pretrained).load_into(model, ["weight"])  # keeps the new bias
            >>> bool((model.weight == pretrained.weight).all()), bool((model.bias == pretrained.bias).all())
            (True, False)
        """
        own = model.state_dict()
        read: dict[str, Any] = {}
        for name in names:
            value = self.weights[name]
            if not name.endswith(EXTRA_STATE) and (isinstance(value, StoredTensor) or is_sharded(own[name])):
                StoredTensor.of(value).read_into(own[name])
                read[name] = own[name]
            else:
                read[name] = StoredTensor.resolve(value)
        model.load_state_dict(read, strict=read.keys() == own.keys() == self.weights.keys())
        buffers = dict(model.named_buffers())
        for name, buffer in self.other_buffers.items():
            if name in buffers and buffers[name].shape == buffer.shape:
                StoredTensor.of(buffer).read_into(buffers[name])
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(self.trainable.get(name, parameter.requires_grad))
