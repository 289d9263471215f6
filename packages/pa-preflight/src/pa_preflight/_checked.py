"""Training that begins with a check."""

from __future__ import annotations

from typing import Generic, ParamSpec

from pa_core import UnsupportedConfigurationError
from pa_core.user_warnings import warn_user
from pa_preflight._arguments import Trains
from pa_preflight._check import check

_P = ParamSpec("_P")


class _Checked(Generic[_P]):
    """A trainer that checks before it trains.

    Args:
        trainer: The trainer.
    """

    def __init__(self, trainer: Trains[_P]) -> None:
        self._trainer = trainer

    def train(self, *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Check, print what was found, and train if there are no mistakes.

        Args:
            *args: The arguments of ``trainer.train``.
            **kwargs: As well.

        Raises:
            ConfigurationError: There are mistakes; nothing was trained.
        """
        try:
            report = check(self._trainer, *args, **kwargs)
        except UnsupportedConfigurationError as error:
            warn_user(f"The check is left out: {error}")
        else:
            report.require_none()
            print(report)  # noqa: T201  # as the script asks for
        self._trainer.train(*args, **kwargs)


def checked(trainer: Trains[_P]) -> Trains[_P]:
    """Return what checks a run before it trains, in one line of a script: ``checked(trainer).train(dataset, ...)``.

    The report is printed, and a run with mistakes does not begin; one with warnings does. On several processes, and
    with a sharded model, the check is left out with a warning.

    Args:
        trainer: The trainer.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from torch.utils.data import TensorDataset
        >>> from pa_core import ConfigurationError, Trainer
        >>> _ = torch.manual_seed(0)
        >>> x = torch.randn(64, 4)
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1))
        >>> trainer = Trainer(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), 0.1), callbacks=[])
        >>> try:
        ...     checked(trainer).train(TensorDataset(x, x[:, :3].argmax(1)), num_epochs=1)
        ... except ConfigurationError as error:
        ...     print(str(error).splitlines()[2].partition(":")[0])
        softmax-before-cross-entropy
    """
    return _Checked(trainer)
