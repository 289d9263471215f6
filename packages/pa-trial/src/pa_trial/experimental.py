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
    """Options for custom data and mixed precision, reached as ``context.experimental``.

    Args:
        parent: The context that it belongs to.

    Attributes:
        moves_batches: Whether batches are moved to the device before a trial gets them.
        checks_reproducibility: Whether loaders must come from this package.

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
        """Leave batches where the loader puts them; move them yourself with ``context.to_device``.

        Call it in ``__init__`` of the trial, for example to move only a part of each batch.
        """
        self.moves_batches = False

    def disable_dataset_reproducibility_checks(self) -> None:
        """Allow loaders of torch, for example of an ``IterableDataset``; call it in ``__init__`` of the trial.

        They are not sharded over processes, and a resumed training does not skip samples that it has seen.
        """
        self.checks_reproducibility = False

    def use_amp(self) -> None:
        """Compute forward passes in mixed precision, and scale losses and gradients if that is needed.

        Call it in ``__init__`` of the trial, before models are wrapped, and without ``wrap_scaler``. It uses float16 on
        a CUDA device; on others it has no effect, with a warning.

        Raises:
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
