"""Classify tumours in mixed precision: tracked, and resumable from a checkpoint every few steps."""

import argparse
from functools import partial
from typing import Any

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import f1_score
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import Dataset, TensorDataset, random_split

from pa_callbacks_extra import TrackerCallback
from pa_core import Run, SaveTrainingStateCallback, TrainerPlaceholderValues


def load_data() -> list[Dataset[Any]]:
    tumours = load_breast_cancer()
    features = torch.tensor(tumours.data, dtype=torch.float32)
    features = (features - features.mean(dim=0)) / features.std(dim=0)
    dataset = TensorDataset(features, torch.tensor(tumours.target))
    return random_split(dataset, [0.7, 0.3], generator=torch.Generator().manual_seed(0))


def create_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    train_data, eval_data = load_data()
    model = create_model()
    loss_func = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr / 25)
    updates = TrainerPlaceholderValues.NUM_EPOCHS * TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH
    states = f"{args.output}/states"
    with Run(
        model, optimizer, train_data, num_epochs=args.epochs, per_device_batch_size=args.batch_size,
        create_scheduler_fn=partial(OneCycleLR, max_lr=args.lr, total_steps=updates),
        callbacks=[TrackerCallback("tensorboard", "tumours", logging_dir=args.output, config=vars(args)),
                   SaveTrainingStateCallback(states, save_every_n_steps=args.checkpointing_steps)],
        resume_from=states, resume_missing="start", mixed_precision=args.mixed_precision,
    ) as run:
        for epoch in run.epochs():
            model.train()
            for features, targets in run.batches():
                loss = loss_func(model(features), targets)
                run.backward(loss)
                run.step()

            model.eval()
            all_predictions, all_targets = [], []
            for features, targets in run.evaluation_batches(eval_data, per_device_batch_size=64):
                with torch.no_grad():
                    predictions = model(features).argmax(dim=-1)
                predictions, targets = run.gather((predictions, targets))
                all_predictions.append(predictions.cpu())
                all_targets.append(targets.cpu())
            f1 = f1_score(torch.cat(all_targets), torch.cat(all_predictions))
            run.record("f1", f1)
            run.print(f"epoch {epoch} f1 {f1:.3f}")

    run.save_model(f"{args.output}/model")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mixed-precision", choices=["no", "bf16", "fp16"], default="bf16")
    parser.add_argument("--checkpointing-steps", type=int, default=20)
    parser.add_argument("--output", default="tumours")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
