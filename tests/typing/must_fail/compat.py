"""What must not pass a type checker under the names of pytorch-accelerated."""

# What is unknown because of an error is no error of its own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from pytorch_accelerated import Trainer, TrainerPlaceholderValues, notebook_launcher
from pytorch_accelerated.tracking import RunHistory
from tests.typing.vocabulary import Net

Trainer(Net)  # type: ignore[call-arg, type-var]  # pyright: ignore[reportCallIssue]  # pytorch_accelerated.Trainer: an instance of the model, a loss, an optimizer
rate: list[int] = TrainerPlaceholderValues.EVAL_DATALOADER_LEN  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # pytorch_accelerated.TrainerPlaceholderValues: a number
notebook_launcher("train.py")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # pytorch_accelerated.notebook_launcher: a function
RunHistory()  # type: ignore[abstract]  # pyright: ignore[reportAbstractUsage]  # pytorch_accelerated.tracking.RunHistory: it is abstract
