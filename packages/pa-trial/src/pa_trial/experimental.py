"""Determined's experimental options: custom data, and mixed precision."""

from __future__ import annotations

from typing import Protocol

from typing_extensions import override

from pa_trial.metric_reducers import MetricReducers, WrapsReducers


class _Parent(Protocol):
    """The methods of a ``PyTorchTrialContext`` that its experimental part calls."""

    def _use_amp(self) -> None: ...
    def _reducers(self) -> MetricReducers: ...


class PyTorchExperimentalContext(WrapsReducers):
    """Options for custom data and mixed precision, which Determined calls experimental.

    Every context has an instance as ``context.experimental``; you need not create one yourself. Call its methods in
    ``__init__`` of the trial.

    Args:
        parent: The context that it belongs to.

    Attributes:
        moves_batches: Whether batches are moved to the device before a trial gets them; True until
            ``disable_auto_to_device``.
        checks_reproducibility: Whether loaders must be a ``pa_trial.DataLoader``; True until
            ``disable_dataset_reproducibility_checks``.

    Example:
        >>> import pa_trial
        >>> with pa_trial.init() as context:
        ...     context.experimental.disable_auto_to_device()
        ...     context.experimental.moves_batches
        False
    """

    def __init__(self, parent: _Parent) -> None:
        self._parent = parent
        self.moves_batches: bool = True
        self.checks_reproducibility: bool = True

    def disable_auto_to_device(self) -> None:
        """Leave batches where the loader puts them, usually on the CPU.

        Call it in ``__init__`` of the trial, for example to move only a part of each batch, and move batches yourself
        with ``context.to_device``. See the example in `PyTorchExperimentalContext`.
        """
        self.moves_batches = False

    def disable_dataset_reproducibility_checks(self) -> None:
        """Allow torch loaders, for example for an ``IterableDataset``.

        Call it in ``__init__`` of the trial. Torch loaders are not divided among the processes, and a resumed training
        does not skip the samples that were already used, so you have to do both yourself. Without this call, ``fit``
        raises an error for such loaders.

        Example:
            >>> import torch
            >>> def __init__(self, context):  # of a trial
            ...     context.experimental.disable_dataset_reproducibility_checks()
            >>> def build_training_data_loader(self):
            ...     return torch.utils.data.DataLoader(self.stream, batch_size=32)
        """
        self.checks_reproducibility = False

    def use_amp(self) -> None:
        """Compute forward passes in float16 mixed precision, and scale losses and gradients.

        Call it in ``__init__`` of the trial, before models are wrapped, and without ``wrap_scaler``; then call
        ``backward`` and ``step_optimizer`` as usual. It uses float16 on a CUDA device. On other devices, it has no
        effect except a warning. For bfloat16, enter ``torch.autocast`` in ``train_batch`` yourself.

        Raises:
            InternalException: The ``with`` block of ``init`` has ended.
            InvalidExperimentException: A model is wrapped already, or there is a scaler.

        Example:
            >>> import torch
            >>> def __init__(self, context):  # of a trial
            ...     context.experimental.use_amp()
            ...     self.model = context.wrap_model(torch.nn.Linear(2, 1))
        """
        self._parent._use_amp()  # pyright: ignore[reportPrivateUsage]  # for the user, both are the same object

    @override
    def _reducers(self) -> MetricReducers:
        return self._parent._reducers()  # pyright: ignore[reportPrivateUsage]  # as above
