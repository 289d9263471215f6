"""The same training in each way that is compared: one epoch in mixed precision, with nothing that waits for the device.

Each is written as the documentation of its library does, but that no loop reads its losses.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

from pa_core import DEFAULT_CALLBACKS, Run, Trainer
from pa_core.callbacks import CallbackLike
from tools.gpu.tasks import Samples

__all__ = ["LOOPS", "Loop", "Precision", "quietly", "train_by_hand", "train_with_trainer"]

Precision = Literal["no", "bf16", "fp16"]
Loop = Callable[[nn.Module, nn.Module, Optimizer, Samples, int], None]


def by_hand(model: nn.Module, loss_func: nn.Module, optimizer: Optimizer, data: Samples, batch_size: int) -> None:
    """The loop of PyTorch's tutorials."""
    pins = torch.cuda.is_available()
    train_by_hand(model, loss_func, optimizer, DataLoader(data, batch_size, shuffle=True, pin_memory=pins))


def by_hand_tuned(model: nn.Module, loss_func: nn.Module, optimizer: Optimizer, data: Samples, batch_size: int) -> None:
    """The same without a loader, for data in memory: each batch is one indexing operation."""
    assert isinstance(data, TensorDataset)
    indices = torch.split(torch.randperm(len(data)), batch_size)
    pins = torch.cuda.is_available()
    batches = ([tensor.pin_memory() if pins else tensor for tensor in data[index]] for index in indices)
    train_by_hand(model, loss_func, optimizer, batches)


def train_by_hand(
    model: nn.Module,
    loss_func: nn.Module,
    optimizer: Optimizer,
    batches: Iterable[Sequence[Tensor]],
    *,
    is_mixed: bool = True,
) -> None:
    """Train on some batches, in bf16 or in the precision of the model."""
    device = next(model.parameters()).device
    total = torch.zeros((), device=device)
    model.train()
    for inputs, targets in batches:
        inputs, targets = inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)  # noqa: PLW2901
        with torch.autocast(device.type, torch.bfloat16, enabled=is_mixed):
            loss = loss_func(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.detach()


def by_accelerate(model: nn.Module, loss_func: nn.Module, optimizer: Optimizer, data: Samples, batch_size: int) -> None:
    """The loop of accelerate's documentation."""
    accelerate: Any = importlib.import_module("accelerate")
    accelerator = accelerate.Accelerator(mixed_precision="bf16")
    loader = DataLoader(data, batch_size, shuffle=True, pin_memory=torch.cuda.is_available())
    model, optimizer, batches = accelerator.prepare(model, optimizer, loader)
    total = torch.zeros((), device=accelerator.device)
    model.train()
    for inputs, targets in batches:
        with accelerator.accumulate(model):
            loss = loss_func(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        total += loss.detach()


def by_lightning(model: nn.Module, loss_func: nn.Module, optimizer: Optimizer, data: Samples, batch_size: int) -> None:
    """Lightning without progress bar, logger and checkpoints."""
    lightning: Any = importlib.import_module("lightning")
    logging.getLogger("lightning").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):  # type: ignore[misc]  # its class is not known to the checker
        def __init__(self) -> None:
            super().__init__()
            self.network = model

        def training_step(self, batch: Any, _batch_idx: int) -> Any:
            inputs, targets = batch
            return loss_func(self.network(inputs), targets)

        def configure_optimizers(self) -> Any:
            return optimizer

    trainer = lightning.Trainer(
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        devices=1,
        max_epochs=1,
        precision="bf16-mixed",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), DataLoader(data, batch_size, shuffle=True, pin_memory=torch.cuda.is_available()))


def train_with_trainer(
    model: nn.Module,
    loss_func: nn.Module,
    optimizer: Optimizer,
    data: Samples,
    batch_size: int,
    *,
    callbacks: Iterable[CallbackLike] = (),
    precision: Precision = "bf16",
) -> None:
    """The trainer without workers, as the other loops have none; by default without callbacks."""
    trainer = Trainer(model, loss_func, optimizer, callbacks, mixed_precision=precision)
    trainer.train(data, 1, per_device_batch_size=batch_size, train_dataloader_kwargs={"num_workers": 0})


def by_trainer(model: nn.Module, loss_func: nn.Module, optimizer: Optimizer, data: Samples, batch_size: int) -> None:
    """The trainer as it comes, with its default callbacks."""
    train_with_trainer(model, loss_func, optimizer, data, batch_size, callbacks=DEFAULT_CALLBACKS)


def by_run(model: nn.Module, loss_func: nn.Module, optimizer: Optimizer, data: Samples, batch_size: int) -> None:
    """The loop by hand, within a ``Run``."""
    with Run(
        model,
        optimizer,
        data,
        num_epochs=1,
        per_device_batch_size=batch_size,
        train_dataloader_kwargs={"num_workers": 0},
        mixed_precision="bf16",
    ) as run:
        for update in run.updates():
            for inputs, targets in update:
                update.backward(loss_func(model(inputs), targets))
            update.step()


LOOPS: dict[str, Loop] = {
    "by hand": by_hand,
    "by hand, tuned": by_hand_tuned,
    "accelerate": by_accelerate,
    "Lightning": by_lightning,
    "Trainer without callbacks": train_with_trainer,
    "Trainer": by_trainer,
    "Run": by_run,
}
if importlib.util.find_spec("lightning") is None:
    del LOOPS["Lightning"]


@contextlib.contextmanager
def quietly() -> Generator[None]:
    """Within the context, nothing is printed, and warnings are left out."""
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield
