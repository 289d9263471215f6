"""The exponential moving average of a model's weights."""

from __future__ import annotations

import copy
from collections.abc import Collection, Generator
from contextlib import contextmanager
from numbers import Real
from typing import Any, Generic, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from typing_extensions import TypeVar, override

from pa_callbacks_extra.sharded_average import ShardedAverage, averaged_dtype
from pa_callbacks_extra.tensor_pairs import TensorPairs, computed_tensors, named_tensors
from pa_core import ConfigurationError, gather_objects, unwrap_model
from pa_core.sharding import is_sharded_module, local_piece, reshard

ModelT_co = TypeVar("ModelT_co", bound=nn.Module, default=nn.Module, covariant=True)


class ModelEma(nn.Module, Generic[ModelT_co]):
    """A copy of a model whose weights are the exponential moving average of the model's weights.

    Averaged weights often generalize better than the last weights, and change less from epoch to epoch. In a custom
    loop, call ``update`` after each optimizer update; for a trainer, use ``ModelEmaCallback``.

    Each update moves every parameter and every floating-point buffer of the copy to ``decay * average + (1 - decay) *
    value``, in a fused pass without temporaries. Tied weights are averaged once. Frozen weights are averaged like all
    others, because they may be unfrozen at any time. Tensors of whole numbers, such as the counters of batch norm
    layers, are copied. So are tensors that contain infinities when the average is created, such as attention masks,
    because infinities cannot be averaged.

    The average is kept in the precision of the weights, but at least in float32. In bfloat16, in which neighboring
    numbers differ by about 0.4 %, an average with a slow decay would not move at all. The average of a bfloat16 model
    is therefore a float32 model of twice the size, and an update needs a temporary tensor as large as the largest
    tensor. ``applied_to`` evaluates and saves the average in the precision of the model.

    If the model is sharded, each process averages its own shards, and nothing is exchanged. Every process must create
    the average and enter ``applied_to``. The copy then has the weights of the model but not its code, so you cannot
    call it.

    Calling this module calls the copy, which is in eval mode and not trainable. Its state dict contains the average and
    everything that the next updates depend on.

    Args:
        model: The model. Distributed or compiled wrappers are not copied. Create the average before layers are
            converted to ``SyncBatchNorm``, so that the copy has the original layers.
        decay: The fraction of the average that each update keeps, from 0 (the copy follows the model) to 1 (it never
            changes). The average looks back over about ``1 / (1 - decay)`` updates: the default, 0.9999, suits runs of
            100,000 updates or more. Pass a smaller value for shorter runs, for example 0.99.
        warm_up: Whether the decay is lower at first, so that the untrained weights soon lose their influence. Update
            ``n``, counted from 1, then keeps ``min(decay, (1 + n) / (10 + n))``. This is the rule of TensorFlow's
            ``tf.train.ExponentialMovingAverage``. A decay of 0.9999 is reached after 90,000 updates. The default,
            False, uses the given decay from the first update on.

    Attributes:
        module: The averaged model.
        decay: The ``decay`` argument.
        warm_up: The ``warm_up`` argument.
        num_updates: The number of updates so far.

    Raises:
        ConfigurationError: The decay is not between 0 and 1, or the model has lazy modules whose shapes are not known
            yet.

    Example:
        >>> import torch
        >>> from pa_callbacks_extra import ModelEma
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> _ = torch.nn.init.constant_(model.weight, 0.0)
        >>> ema = ModelEma(model, decay=0.75)
        >>> _ = torch.nn.init.constant_(model.weight, 1.0)
        >>> ema.update(model)
        >>> ema(torch.ones(1, 1))
        tensor([[0.2500]])
        >>> with ema.applied_to(model):
        ...     model.weight.item()
        0.25
        >>> model.weight.item()
        1.0
    """

    def __init__(self, model: ModelT_co, decay: float = 0.9999, *, warm_up: bool = False) -> None:
        super().__init__()
        check_decay(decay)
        self.decay = decay
        self.warm_up = warm_up
        self.num_updates: int = 0
        inner = unwrap_model(model, keep_torch_compile=False)
        if is_lazy(inner):
            raise ConfigurationError(
                "The model has parameters without a shape, so they cannot be averaged. Call the model with a batch "
                "before ModelEma(model)."
            )
        reshard(inner)
        self.module: ModelT_co = cast("ModelT_co", _independent_copy(inner))
        self._copied = _names_without_average(inner)
        self._pairs: WeakKeyDictionary[nn.Module, TensorPairs] | None = None

    @override
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the averaged copy of the model; call the instance itself, as in ``ema(inputs)``.

        Use it to predict with the average in a custom loop. The copy is in eval mode, in at least float32, and on the
        device that the model had when the average was made. To use the model's own code and precision, enter
        ``applied_to`` and call the model instead.

        Args:
            *args: The positional arguments of the model.
            **kwargs: The keyword arguments of the model.

        Returns:
            The outputs of the copy, without a gradient with respect to its weights.

        Raises:
            ConfigurationError: The model is sharded, so the copy has its weights but not its code.

        Example:
            >>> import torch
            >>> from pa_callbacks_extra import ModelEma
            >>> ema = ModelEma(torch.nn.Linear(4, 1))
            >>> ema(torch.ones(8, 4)).shape
            torch.Size([8, 1])
        """
        return self.module(*args, **kwargs)

    def update(self, model: nn.Module) -> None:
        """Move the average toward the current values of the model; call it after each optimizer update.

        You call it in a custom loop. ``ModelEmaCallback`` calls it for a trainer. ``reset`` sets the average to these
        values instead.

        Args:
            model: The model from which the average was made, with or without wrappers.

        Raises:
            ConfigurationError: The model and the average have different parameters or buffers, or are on different
                devices. Nothing is changed then.

        Example:
            >>> import torch
            >>> from pa_callbacks_extra import ModelEma
            >>> model = torch.nn.Linear(1, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> ema = ModelEma(model, decay=0.99)
            >>> for batch in torch.ones(3, 8, 1):
            ...     model(batch).mean().backward()
            ...     optimizer.step()
            ...     optimizer.zero_grad()
            ...     ema.update(model)
            >>> ema.num_updates
            3
        """
        pairs = self._pairs_with(model)
        self.num_updates += 1
        pairs.lerp(1 - self._decay_of_update(self.num_updates))

    def reset(self, model: nn.Module) -> None:
        """Set the average to the current values of the model, and forget all updates.

        You call it when training begins again with other weights, for example after you have loaded a checkpoint into
        the model. ``decay`` and ``warm_up`` do not change, and ``num_updates`` becomes 0.

        Args:
            model: The model from which the average was made, with or without wrappers.

        Raises:
            ConfigurationError: The model and the average have different parameters or buffers, or are on different
                devices.

        Example:
            >>> import torch
            >>> from pa_callbacks_extra import ModelEma
            >>> model = torch.nn.Linear(1, 1)
            >>> ema = ModelEma(model)
            >>> _ = torch.nn.init.constant_(model.weight, 3.0)
            >>> ema.reset(model)
            >>> ema.module.weight.item(), ema.num_updates
            (3.0, 0)
        """
        inner = unwrap_model(model, keep_torch_compile=False)
        self._pairs_with(model).copy()
        self.num_updates = 0
        self._copied = _names_without_average(inner)
        self._pairs = None

    @contextmanager
    def applied_to(self, model: nn.Module) -> Generator[None]:
        """Give the model the averaged weights within a ``with`` block, for evaluating or saving it, not for training.

        Use it to run the average with the model's own code, precision and wrappers; call the instance to run the copy.
        The model's own weights are always restored at the end of the block. No weight is copied unless the average is
        sharded or has a different precision from the model. If it is sharded, each process copies its shards, and every
        process must enter the block. The gradients, mode, hooks and wrappers of the model are not changed, so call
        ``model.eval()`` yourself.

        Args:
            model: The model from which the average was made, with or without wrappers.

        Raises:
            ConfigurationError: The model and the average have different parameters or buffers, or are on different
                devices.

        Example:
            >>> import torch
            >>> from pa_callbacks_extra import ModelEma
            >>> model = torch.nn.Linear(1, 1)
            >>> ema = ModelEma(model)
            >>> with ema.applied_to(model):  # model and its own code, with averaged weights
            ...     exported = {name: weight.clone() for name, weight in model.state_dict().items()}
            >>> sorted(exported)
            ['bias', 'weight']
        """
        with self._pairs_with(model).averages_in_place():
            try:
                yield
            finally:
                reshard(model)  # the gathered copy of the weights has the averages

    @override
    def get_extra_state(self) -> dict[str, Any]:
        """Return the part of the state that no tensor in the state dict holds.

        ``ema.state_dict()`` calls it, so you need not call it yourself: save ``ema.state_dict()``.

        Returns:
            A dictionary with the keys "num_updates" (an integer), "copied" (the names of the tensors that are copied
            instead of averaged) and "other_buffers" (the non-persistent buffers by their names).

        Example:
            >>> import torch
            >>> from pa_callbacks_extra import ModelEma
            >>> ModelEma(torch.nn.Linear(1, 1)).get_extra_state()
            {'num_updates': 0, 'copied': [], 'other_buffers': {}}
        """
        in_state_dict = self.module.state_dict().keys()
        others = {name: buffer for name, buffer in self.module.named_buffers() if name not in in_state_dict}
        return {"num_updates": self.num_updates, "copied": sorted(self._copied), "other_buffers": others}

    @override
    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the return value of ``get_extra_state``.

        ``ema.load_state_dict(...)`` calls it, so you need not call it yourself. Buffers that the model does not have,
        or that have another shape, are ignored.

        Args:
            state: The return value of ``get_extra_state``.

        Raises:
            KeyError: The key "num_updates" or "copied" is missing.

        Example:
            >>> import torch
            >>> from pa_callbacks_extra import ModelEma
            >>> model = torch.nn.Linear(1, 1)
            >>> ema, resumed = ModelEma(model), ModelEma(model)
            >>> ema.update(model)
            >>> resumed.load_state_dict(ema.state_dict())
            <All keys matched successfully>
            >>> resumed.num_updates
            1
        """
        self.num_updates = state["num_updates"]
        self._copied = frozenset(state["copied"])
        self._pairs = None
        buffers = dict(self.module.named_buffers())
        with torch.no_grad():
            for name, saved in state.get("other_buffers", {}).items():  # earlier versions did not save them
                if name in buffers and buffers[name].shape == saved.shape:
                    buffers[name].copy_(saved)

    @override
    def __getstate__(self) -> dict[str, Any]:
        """Leave out the attributes that a copy computes again."""
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]  # torch does not annotate it
        return {**state, "_pairs": None}

    def _decay_of_update(self, number: int) -> float:
        return min(self.decay, (1 + number) / (10 + number)) if self.warm_up else self.decay

    def _pairs_with(self, model: nn.Module) -> TensorPairs:
        """Cache the pairs of tensors, because finding them takes longer than averaging a small model."""
        known = self._pairs
        pairs = None if known is None else known.get(model) or known.get(unwrap_model(model, keep_torch_compile=False))
        if pairs is None or not pairs.are_current():
            inner = unwrap_model(model, keep_torch_compile=False)
            reshard(inner)
            pairs = TensorPairs(self.module, inner, self._copied)
            self._pairs = WeakKeyDictionary({inner: pairs})
        return pairs


def check_decay(decay: object) -> None:
    """Raise an error unless a decay is a fraction.

    Args:
        decay: The fraction of the average that an update keeps.

    Raises:
        ConfigurationError: The decay is not between 0 and 1.
    """
    if not (isinstance(decay, Real) and 0 <= float(decay) <= 1):
        raise ConfigurationError(f"decay must be a number from 0 to 1, got decay={decay!r}.")


def _independent_copy(model: nn.Module) -> nn.Module:
    """Copy a model so that no two of its tensors share memory, in at least the precision of float32."""
    if is_sharded_module(model):
        return ShardedAverage(model)
    values: dict[int, Any] = {id(tensor): tensor.detach().clone() for tensor in computed_tensors(model)}
    duplicate = copy.deepcopy(model, values).eval().requires_grad_(False)
    for tensor in named_tensors(duplicate).values():
        if tensor.dtype != averaged_dtype(tensor):
            tensor.data = tensor.data.to(averaged_dtype(tensor))
        elif not isinstance(tensor, nn.Parameter):
            tensor.data = tensor.data.clone()  # where the original buffers share or repeat memory, their copies do
    return duplicate


def _names_without_average(model: nn.Module) -> frozenset[str]:
    """Return the names of the tensors to copy; in a sharded model, every process must call this."""
    tensors = named_tensors(model)
    own = frozenset(name for name, tensor in tensors.items() if not _has_an_average(tensor) or _is_mask(name, tensors))
    return frozenset[str]().union(*gather_objects(own)) if is_sharded_module(model) else own


def _is_mask(name: str, tensors: Collection[str]) -> bool:
    """Whether a tensor is a mask of pruned weights, which contains only the numbers 0 and 1."""
    return name.endswith("_mask") and f"{name.removesuffix('_mask')}_orig" in tensors


def is_lazy(model: nn.Module) -> bool:
    """Whether the shapes of some tensors are not known before the first forward pass.

    Args:
        model: The model.
    """
    return any(
        isinstance(tensor, UninitializedParameter | UninitializedBuffer) for tensor in named_tensors(model).values()
    )


def _has_an_average(tensor: Tensor) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    return tensor.requires_grad or bool(local_piece(tensor).isfinite().all())
