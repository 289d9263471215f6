"""Add a custom event for callbacks.

This trainer counts its mistakes for each pair of digits. After an evaluation, it fires an event with the counts of all
processes. One callback prints the most frequent mistake, and another ends the training when few mistakes are left.
Neither knows how they are counted. The event is passed as a method, so that type checkers compare its arguments.

    python examples/custom_event.py
    torchrun --nproc-per-node 2 examples/custom_event.py
    accelerate launch --mixed_precision bf16 examples/custom_event.py

The last line that it prints:

    8 of 297 digits are mistaken, most often 5 for 9, 2 times
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset, random_split

from pa_core import DEFAULT_CALLBACKS, AnyTrainer, StopTrainingError, Trainer, TrainerCallback

Batch = tuple[Tensor, Tensor]


class DigitsCallback(TrainerCallback):
    """Base of the callbacks that listen to a `DigitsTrainer`."""

    def on_confusions(self, trainer: AnyTrainer, confusions: Tensor) -> None:
        """Called when an evaluation has ended.

        Args:
            trainer: The trainer.
            confusions: How often each digit (row) was mistaken for another (column), on all processes.
        """


class PrintConfusion(DigitsCallback):
    """Prints, when the training has ended, which digit was most often mistaken."""

    confusions: Tensor

    def on_confusions(self, trainer: AnyTrainer, confusions: Tensor) -> None:
        self.confusions = confusions

    def on_training_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        mistakes, most = int(self.confusions.sum()), int(self.confusions.max())
        digit, taken_for = divmod(int(self.confusions.argmax()), 10)
        trainer.print(f"{mistakes} of 297 digits are mistaken, most often {digit} for {taken_for}, {most} times")


class StopWhenFewMistakes(DigitsCallback):
    """Ends the training when an evaluation has found at most so many mistakes."""

    def __init__(self, at_most: int) -> None:
        self.at_most = at_most

    def on_confusions(self, trainer: AnyTrainer, confusions: Tensor) -> None:
        if confusions.sum() <= self.at_most:
            raise StopTrainingError(f"at most {self.at_most} digits are mistaken")


class DigitsTrainer(Trainer):
    """A trainer that tells its callbacks which digits it confused."""

    def eval_epoch_start(self) -> None:
        super().eval_epoch_start()
        self.confusions = torch.zeros(10, 10, dtype=torch.long, device=self.device)

    def calculate_eval_batch_loss(self, batch: Batch) -> dict[str, Any]:
        output = super().calculate_eval_batch_loss(batch)
        guesses = output["model_outputs"].argmax(dim=1)
        wrong = guesses != batch[1]
        self.confusions.index_put_((batch[1][wrong], guesses[wrong]), torch.tensor(1), accumulate=True)
        return output

    def eval_epoch_end(self) -> None:
        of_all_processes = self.gather(self.confusions.unsqueeze(0)).sum(dim=0)
        self.callback_handler.call_event(DigitsCallback.on_confusions, self, of_all_processes)


def load_data() -> list[Subset]:
    """Return the training and evaluation parts of the digits that come with scikit-learn."""
    data, target = load_digits(return_X_y=True)
    dataset = TensorDataset(torch.tensor(data, dtype=torch.float32).view(-1, 8, 8) / 16, torch.tensor(target))
    return random_split(dataset, [1500, 297], generator=torch.Generator().manual_seed(0))


def main(epochs: int = 30, mistakes: int = 9) -> None:
    """Train until few mistakes are left, and print the most frequent one."""
    torch.manual_seed(0)
    train_dataset, eval_dataset = load_data()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    trainer = DigitsTrainer(
        model,
        nn.CrossEntropyLoss(),
        optimizer,
        callbacks=[*DEFAULT_CALLBACKS, PrintConfusion, StopWhenFewMistakes(at_most=mistakes)],
    )
    trainer.train(train_dataset, epochs, eval_dataset, per_device_batch_size=32)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Add a custom event to a trainer.")
    parser.add_argument("--epochs", type=int, default=30, help="after how many epochs to stop at the latest")
    parser.add_argument("--mistakes", type=int, default=9, help="how many mistakes are few enough")
    main(**vars(parser.parse_args()))
