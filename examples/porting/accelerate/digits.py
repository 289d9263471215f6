"""Train a small network on scanned digits, and go on from the last epoch after a crash."""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split


def load_data() -> list[Subset[tuple[Tensor, ...]]]:
    digits = load_digits()
    pixels = torch.tensor(digits.data, dtype=torch.float32) / 16
    dataset = TensorDataset(pixels, torch.tensor(digits.target))
    return random_split(dataset, [1500, 297], generator=torch.Generator().manual_seed(0))


def create_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10))


def train(args: argparse.Namespace) -> None:
    accelerator = Accelerator(gradient_accumulation_steps=args.accumulation)
    set_seed(0)
    train_data, eval_data = load_data()
    train_loader = DataLoader(train_data, batch_size=args.batch_size, shuffle=True, drop_last=True)
    eval_loader = DataLoader(eval_data, batch_size=128)
    model = create_model()
    loss_func = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    updates = args.epochs * len(train_loader) // args.accumulation
    scheduler = CosineAnnealingLR(optimizer, T_max=updates)
    model, optimizer, train_loader, eval_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, eval_loader, scheduler
    )

    first_epoch = 0
    checkpoints = sorted(Path(args.output).glob("epoch_*"), key=lambda path: int(path.name.split("_")[1]))
    if checkpoints:
        accelerator.load_state(str(checkpoints[-1]))
        first_epoch = int(checkpoints[-1].name.split("_")[1]) + 1

    for epoch in range(first_epoch, args.epochs):
        model.train()
        total_loss = torch.tensor(0.0, device=accelerator.device)
        for pixels, targets in train_loader:
            with accelerator.accumulate(model):
                loss = loss_func(model(pixels), targets)
                total_loss += loss.detach()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()

        model.eval()
        correct, seen = 0, 0
        for pixels, targets in eval_loader:
            with torch.no_grad():
                predictions = model(pixels).argmax(dim=-1)
            predictions, targets = accelerator.gather_for_metrics((predictions, targets))
            correct += int((predictions == targets).sum())
            seen += len(targets)
        mean_loss = accelerator.reduce(total_loss, "mean").item() / len(train_loader)
        accelerator.print(f"epoch {epoch} loss {mean_loss:.3f} accuracy {correct / seen:.3f}")
        accelerator.save_state(f"{args.output}/epoch_{epoch}")

    accelerator.wait_for_everyone()
    accelerator.save_model(model, f"{args.output}/model")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument("--output", default="outputs/digits")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
