"""What Determined calls experimental: data of one's own kind, and mixed precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pa_trial.context import PyTorchTrialContext

__all__ = ["PyTorchExperimentalContext"]


class PyTorchExperimentalContext:
    """Reached as ``context.experimental``.

    Args:
        parent: The context that it belongs to.

    Attributes:
        moves_batches: Whether batches are moved to the device before a trial gets them.
        checks_reproducibility: Whether loaders must be those of this package.

    Example:
        >>> import pa_trial
        >>> with pa_trial.init() as context:
        ...     context.experimental.disable_auto_to_device()
        ...     context.experimental.moves_batches
        False
    """

    def __init__(self, parent: PyTorchTrialContext) -> None:
        self._parent = parent
        self.moves_batches: bool = True
        self.checks_reproducibility: bool = True
        self.wrap_reducer: Any = parent.wrap_reducer

    def disable_auto_to_device(self) -> None:
        """Leave batches where the loader put them; ``context.to_device`` moves what is to be moved."""
        self.moves_batches = False

    def disable_dataset_reproducibility_checks(self) -> None:
        """Allow loaders of torch, which are used as they are.

        Nothing is split over processes, and a training that resumes does not skip what was seen before.
        """
        self.checks_reproducibility = False

    def use_amp(self) -> None:
        """Compute forward passes in mixed precision, and scale losses and gradients where that needs it.

        Call it before models are wrapped, and without ``wrap_scaler``.
        """
        self._parent._use_amp()  # pyright: ignore[reportPrivateUsage]  # the two are one object for the user
