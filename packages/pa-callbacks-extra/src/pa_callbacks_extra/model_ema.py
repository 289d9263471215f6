"""The exponential moving average of a model's weights."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from itertools import compress
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from typing_extensions import override

from pa_core.errors import ConfigurationError

__all__ = ["ModelEma"]


class ModelEma(nn.Module):
    """A copy of a model whose weights are the exponential moving average of the model's.

    Each update moves every parameter and every floating-point buffer of the copy to
    ``decay * average + (1 - decay) * value``, in one fused pass without temporaries. Tied weights are averaged
    once. Other buffers, such as the counters of batch norm layers, are copied, and so are buffers with
    infinities in them, such as attention masks, which have no average.

    The average has the precision of the weights. In bfloat16, whose numbers are 0.4 % apart, an average with
    a slow decay does not move at all: keep the weights in float32 and let autocast compute in bfloat16, as
    mixed precision does.

    Calling this module calls the copy, which is in eval mode and not trainable.

    Args:
        model: The model. A distributed or compiled wrapper around it is left out of the copy. Make the
            average before layers are converted to ``SyncBatchNorm``, so that it can be evaluated on one
            process.
        decay: How much of the average each update keeps, from 0 (the copy is the model) to 1 (it never
            changes). The average looks back over about ``1 / (1 - decay)`` updates: the default suits long
            trainings.

    Attributes:
        module: The averaged model.
        decay: As given.

    Raises:
        ConfigurationError: The decay is not between 0 and 1.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> _ = torch.nn.init.constant_(model.weight, 0.0)
        >>> ema = ModelEma(model, decay=0.75)
        >>> _ = torch.nn.init.constant_(model.weight, 1.0)
        >>> ema.update(model)
        >>> ema(torch.ones(1, 1))
        tensor([[0.2500]])
    """

    def __init__(self, model: nn.Module, decay: float = 0.9999) -> None:
        super().__init__()
        if not 0 <= decay <= 1:
            raise ConfigurationError(
                "The decay of the average is not a fraction.",
                given=f"decay={decay!r}",
                expected="a number from 0 to 1",
                do="Pass how much of the average each update keeps, for example 0.999.",
            )
        self.decay = decay
        self.module = copy.deepcopy(_without_wrappers(model)).eval().requires_grad_(False)
        self._is_averaged = [_has_an_average(tensor) for tensor in _tensors(self.module)]

    @override
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the average towards the present values of the model; call it after each optimizer update.

        Args:
            model: The model that the average was made of, with or without wrappers.

        Raises:
            ConfigurationError: The model has other parameters or buffers than the average; nothing was
                changed.
        """
        averages, values = _tensors(self.module), _tensors(_without_wrappers(model))
        if _kinds(averages) != _kinds(values):
            raise _another_model(self.module, _without_wrappers(model))
        torch._foreach_lerp_(  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]  # no public one is fused
            list(compress(averages, self._is_averaged)),
            list(compress(values, self._is_averaged)),
            1 - self.decay,
        )
        for copied, value, is_averaged in zip(averages, values, self._is_averaged, strict=True):
            if not is_averaged:
                copied.copy_(value)


def _tensors(module: nn.Module) -> list[Tensor]:
    """Return the parameters and then the buffers, each tensor once."""
    return [*module.parameters(), *module.buffers()]


_Kind: TypeAlias = tuple[torch.Size, torch.dtype, torch.device]


def _kinds(tensors: Iterable[Tensor]) -> list[_Kind]:
    return [(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors]


def _has_an_average(tensor: Tensor) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    return isinstance(tensor, nn.Parameter) or bool(tensor.isfinite().all())


def _without_wrappers(model: nn.Module) -> nn.Module:
    while True:
        if isinstance(model, DistributedDataParallel | DataParallel):
            model = cast("nn.Module", model.module)
        elif isinstance(inside_compiled := getattr(model, "_orig_mod", None), nn.Module):
            model = inside_compiled
        else:
            return model


def _another_model(average: nn.Module, model: nn.Module) -> ConfigurationError:
    expected, given = _describe_tensors(average), _describe_tensors(model)
    names = sorted(name for name in {*expected, *given} if expected.get(name) != given.get(name))
    return ConfigurationError(
        "The model is not the one that the average was made of, or has changed since.",
        given=", ".join(f"{name}: {given.get(name, 'not there')}" for name in names),
        expected=", ".join(f"{name}: {expected.get(name, 'not there')}" for name in names),
        do="Make a new ModelEma of the changed model; if only the device is another, move the ModelEma there.",
    )


def _describe_tensors(module: nn.Module) -> dict[str, str]:
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {
        name: f"{tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}" for name, tensor in tensors.items()
    }
