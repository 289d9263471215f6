"""The trainer with a budget of tokens."""

from __future__ import annotations

from typing import cast

from benchmarks.tasks import MAX_TOKENS, Sentences, Task, pad
from pa_core import DEFAULT_CALLBACKS, Trainer
from pa_data.orders import TokenBudget

__all__ = ["train"]


def train(task: Task, num_epochs: int) -> None:
    """One update for each batch."""
    order = TokenBudget(cast("Sentences", task.dataset).lengths, max_tokens=MAX_TOKENS)
    Trainer(task.model, task.loss_func, task.optimizer, DEFAULT_CALLBACKS).train(
        task.dataset, num_epochs, order=order, collate_fn=pad, train_dataloader_kwargs={"num_workers": 0}
    )
