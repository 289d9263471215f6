"""A loop of accelerate, as its guides to training and checkpointing write it."""

from __future__ import annotations

from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from task import BATCH_SIZE, NUM_EPOCHS, UPDATES_BETWEEN_STATES, Record, Samples, Values, network
from torch import nn
from torch.utils.data import DataLoader


def main() -> None:
    """Train, evaluate, and write down what was seen."""
    record = Record()
    accelerator = Accelerator(cpu=True)
    set_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = DataLoader(Samples(record), batch_size=BATCH_SIZE, shuffle=True)
    eval_loader = DataLoader(Values(), batch_size=2)
    model, optimizer, loader, eval_loader = accelerator.prepare(model, optimizer, loader, eval_loader)
    update, first_epoch, to_skip = 0, 0, 0
    if record.is_resumed:
        newest = max(Path(record.states).iterdir(), key=lambda path: int(path.name.split("_")[1]))
        accelerator.load_state(str(newest))
        update = int(newest.name.split("_")[1])
        first_epoch, to_skip = divmod(update, len(loader))
    for epoch in range(first_epoch, NUM_EPOCHS):
        loader.set_epoch(epoch)
        batches = accelerator.skip_first_batches(loader, to_skip) if epoch == first_epoch and to_skip else loader
        for features, targets, numbers in batches:
            record.step(update, numbers)
            loss = nn.functional.mse_loss(model(features), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            update += 1
            if update % UPDATES_BETWEEN_STATES == 0:
                accelerator.save_state(f"{record.states}/step_{update}")
    mean = None
    if record.evaluates:
        values = [accelerator.gather_for_metrics(targets) for _, targets, _ in eval_loader]
        mean = float(torch.cat(values).mean())
    record.finish(accelerator.unwrap_model(model), mean)


if __name__ == "__main__":
    main()
