"""What a training step costs over a loop written by hand, as a ratio measured in one process.

`nox -s benchmark` runs it. Three variants take turns, so that a machine that slows down slows all of them: the loop of
PyTorch's tutorials, the trainer without callbacks, and the trainer with its default callbacks. What is timed is a whole
run, the preparation of the trainer and the edges of its epochs included.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import time
from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from pa_core import DEFAULT_CALLBACKS, Trainer

EPOCHS = 5
ROUNDS = 15
BATCH_SIZE = 32


def digits() -> TensorDataset:
    """The 1,797 digits as vectors of 64 pixels."""
    pixels, targets = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(targets))


def network_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A network of three layers with stochastic gradient descent."""
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def by_hand(data: TensorDataset) -> None:
    """Train as PyTorch's tutorials do, with the mean loss of each epoch."""
    model, optimizer = network_and_optimizer()
    loss_func = nn.CrossEntropyLoss()
    loader = DataLoader(data, batch_size=BATCH_SIZE, shuffle=True)
    for _ in range(EPOCHS):
        model.train()
        total = 0.0
        for inputs, targets in loader:
            loss = loss_func(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.item() * len(targets)


def without_callbacks(data: TensorDataset) -> None:
    """Train with the bare trainer."""
    model, optimizer = network_and_optimizer()
    Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[]).train(data, EPOCHS, per_device_batch_size=BATCH_SIZE)


def with_default_callbacks(data: TensorDataset) -> None:
    """Train with the trainer as it comes, its output thrown away."""
    model, optimizer = network_and_optimizer()
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=DEFAULT_CALLBACKS)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        trainer.train(data, EPOCHS, per_device_batch_size=BATCH_SIZE)


def microseconds_per_step(variant: Callable[[TensorDataset], None], data: TensorDataset) -> float:
    """Run a variant once and divide its time by its steps."""
    steps = EPOCHS * -(-len(data) // BATCH_SIZE)
    start = time.perf_counter()
    variant(data)
    return (time.perf_counter() - start) / steps * 1e6


def main() -> None:
    """Print the median and the least time of each variant, and the median ratio to the loop by hand."""
    torch.set_num_threads(1)
    data = digits()
    variants = (by_hand, without_callbacks, with_default_callbacks)
    times: dict[str, list[float]] = {variant.__name__: [] for variant in variants}
    for round_ in range(ROUNDS + 1):
        for variant in variants:
            taken = microseconds_per_step(variant, data)
            if round_ > 0:  # the first round warms up
                times[variant.__name__].append(taken)
    print(f"{'variant':24}{'median us':>10}{'least us':>10}{'ratio':>8}")
    for name, taken_times in times.items():
        ratios = [own / reference for own, reference in zip(taken_times, times["by_hand"], strict=True)]
        print(
            f"{name:24}{statistics.median(taken_times):10.0f}{min(taken_times):10.0f}{statistics.median(ratios):8.2f}"
        )


if __name__ == "__main__":
    main()
