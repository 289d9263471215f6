"""The weights of models that were created on the meta device, without memory."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from pa_core._torch import BUFFERS, PARAMETERS
from pa_core.errors import ConfigurationError


class NamedTensor(NamedTuple):
    """A parameter or buffer with its place in a model.

    Attributes:
        module: The module that has it as an attribute.
        kind: The dictionary of the module that contains it.
        name: The name of the attribute.
        tensor: The tensor at this place.
    """

    module: nn.Module
    kind: str
    name: str
    tensor: Tensor

    def put(self, tensor: Tensor) -> None:
        """Replace the tensor."""
        if type(self.module).__setattr__ is nn.Module.__setattr__:
            vars(self.module)[self.kind][self.name] = tensor
        else:  # recurrent layers keep a list of their weights
            setattr(self.module, self.name, tensor)


def tensors_of(modules: Iterable[nn.Module]) -> list[NamedTensor]:
    """Return the parameters and buffers that are direct attributes of modules.

    Args:
        modules: The modules; modules within them are not searched.
    """
    return [
        NamedTensor(module, kind, name, tensor)
        for module in modules
        for kind in (PARAMETERS, BUFFERS)
        for name, tensor in vars(module)[kind].items()
        if tensor is not None
    ]


def has_meta_tensors(model: nn.Module) -> bool:
    """Whether some parameters or buffers of a model are on the meta device."""
    return any(named.tensor.is_meta for named in tensors_of(model.modules()))


class MetaWeights:
    """Creates the weights of a model, a few of its modules at a time.

    The model's ``init_weights()`` sets the weights. It may use the weights of all modules, so it is called for a few
    modules at a time, while the other modules stay on the meta device, where nothing is computed. If the model does not
    have this method, its modules need ``reset_parameters()``.

    Args:
        model: The whole model.

    Example:
        >>> with torch.device("meta"):
        ...     model = nn.Sequential(nn.Linear(2, 1), nn.ReLU())
        >>> MetaWeights(model).make(tensors_of(model.modules()), torch.device("cpu"))
        >>> model(torch.zeros(1, 2)).shape
        torch.Size([1, 1])
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._on_meta: dict[int, Tensor] = {}

    def make(self, missing: Sequence[NamedTensor], device: torch.device) -> None:
        """Replace tensors on the meta device with real tensors, and let the model fill them.

        Args:
            missing: The tensors that are on the meta device.
            device: The device of the real tensors.

        Raises:
            ConfigurationError: Some of the tensors are not set by any method of the model.
        """
        allocate(missing, device)
        with self._others_on_meta(missing), torch.no_grad():
            if hasattr(self._model, "init_weights"):
                init_weights: Callable[[], object] = cast("Any", self._model).init_weights
                try:
                    init_weights()
                except NotImplementedError as error:
                    error.add_note("init_weights() makes a few modules at a time: tie weights instead of copying them.")
                    raise
            else:
                for module in dict.fromkeys(named.module for named in missing):
                    # Some modules of torch have the method under a private name.
                    reset: object = getattr(module, "reset_parameters", getattr(module, "_reset_parameters", None))
                    if callable(reset):
                        reset()
        # Tensors that a module assigned are real, too.
        for named in missing:
            tensor = vars(named.module)[named.kind][named.name]
            if tensor.is_meta or _is_unmade(tensor):
                raise self._not_made(named)

    @contextmanager
    def _others_on_meta(self, missing: Sequence[NamedTensor]) -> Generator[None]:
        """Hide all other tensors of the model, so that they are not changed."""
        ours = {(id(named.module), named.kind, named.name) for named in missing}
        others = [
            named
            for named in tensors_of(self._model.modules())
            if (id(named.module), named.kind, named.name) not in ours
        ]
        for named in others:
            named.put(self._hidden(named))
        try:
            yield
        finally:
            for named in others:
                named.put(named.tensor)

    def _hidden(self, missing: NamedTensor) -> Tensor:
        tensor = missing.tensor
        if id(tensor) not in self._on_meta:
            plain = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
            is_parameter = missing.kind == PARAMETERS
            self._on_meta[id(tensor)] = nn.Parameter(plain, tensor.requires_grad) if is_parameter else plain
        return self._on_meta[id(tensor)]

    def _not_made(self, missing: NamedTensor) -> ConfigurationError:
        names = cast("Iterable[tuple[str, nn.Module]]", self._model.named_modules())
        path = next(name for name, module in names if module is missing.module)
        kind = "parameter" if missing.kind == PARAMETERS else "buffer"
        maker = (
            f"{type(self._model).__name__}.init_weights()"
            if hasattr(self._model, "init_weights")
            else f"{type(missing.module).__name__}.reset_parameters()"
        )
        return ConfigurationError(
            f"A {kind} of a model on the meta device has no values.",
            given=f"{f'{path}.{missing.name}'.lstrip('.')}, which {maker} does not set",
            do=f"Set it in {maker}.",
        )


def allocate(missing: Iterable[NamedTensor], device: torch.device) -> None:
    """Replace tensors on the meta device with real tensors, filled with values that initialization never sets.

    Args:
        missing: The tensors; a tensor may occur under several names.
        device: The device of the real tensors.
    """
    made: dict[int, Tensor] = {}
    for named in missing:
        if id(named.tensor) not in made:
            real = torch.full(named.tensor.shape, _unset(named.tensor.dtype), dtype=named.tensor.dtype, device=device)
            if named.kind == PARAMETERS:
                real = nn.Parameter(real, named.tensor.requires_grad)
            made[id(named.tensor)] = real
        named.put(made[id(named.tensor)])


def _unset(dtype: torch.dtype) -> float:
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return 0 if dtype == torch.bool else torch.iinfo(dtype).max


def _is_unmade(tensor: Tensor) -> bool:
    if tensor.is_floating_point() or tensor.is_complex():
        return bool(tensor.isnan().any())
    return tensor.dtype != torch.bool and bool((tensor == _unset(tensor.dtype)).all()) and tensor.numel() > 0
