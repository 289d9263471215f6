"""Train a small network on scanned digits, and go on from the last epoch after a crash."""

import argparse
from functools import partial

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import Subset, TensorDataset, random_split

from pa_core import Run, SaveTrainingStateCallback, TrainerPlaceholderValues


def load_data() -> list[Subset[tuple[Tensor, ...]]]:
    digits = load_digits()
    pixels = torch.tensor(digits.data, dtype=torch.float32) / 16
    dataset = TensorDataset(pixels, torch.tensor(digits.target))
    return random_split(dataset, [1500, 297], generator=torch.Generator().manual_seed(0))


def create_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10))


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    train_data, eval_data = load_data()
    model = create_model()
    loss_func = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    updates = TrainerPlaceholderValues.NUM_EPOCHS * TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH
    with Run(
        model, optimizer, train_data, num_epochs=args.epochs, per_device_batch_size=args.batch_size,
        gradient_accumulation_steps=args.accumulation, gradient_clip_norm=1.0,
        create_scheduler_fn=partial(CosineAnnealingLR, T_max=updates),
        callbacks=[SaveTrainingStateCallback(args.output, save_every_n_epochs=1)],
        resume_from=args.output, resume_missing="start",
    ) as run:
        for epoch in run.epochs():
            model.train()
            for pixels, targets in run.batches():
                loss = loss_func(model(pixels), targets)
                run.backward(loss)
                run.step()

            model.eval()
            for pixels, targets in run.evaluation_batches(eval_data, per_device_batch_size=128):
                with torch.no_grad():
                    predictions = model(pixels).argmax(dim=-1)
                run.log("accuracy", (predictions == targets).float().mean())
            mean_loss, accuracy = map(run.run_history.get_latest_metric, ("train_loss_epoch", "eval_accuracy_epoch"))
            run.print(f"epoch {epoch} loss {mean_loss:.3f} accuracy {accuracy:.3f}")

        run.save_model(f"{args.output}/model")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument("--output", default="outputs/digits")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
