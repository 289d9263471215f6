"""Classify tumours in mixed precision: tracked, and resumable from a checkpoint every few steps."""

import argparse
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import f1_score
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Dataset, TensorDataset, random_split


def load_data() -> list[Dataset[Any]]:
    tumours = load_breast_cancer()
    features = torch.tensor(tumours.data, dtype=torch.float32)
    features = (features - features.mean(dim=0)) / features.std(dim=0)
    dataset = TensorDataset(features, torch.tensor(tumours.target))
    return random_split(dataset, [0.7, 0.3], generator=torch.Generator().manual_seed(0))


def create_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def train(args: argparse.Namespace) -> None:
    accelerator = Accelerator(mixed_precision=args.mixed_precision, log_with="tensorboard", project_dir=args.output)
    accelerator.init_trackers("tumours", config=vars(args))
    set_seed(args.seed)
    train_data, eval_data = load_data()
    train_loader = DataLoader(train_data, batch_size=args.batch_size, shuffle=True)
    eval_loader = DataLoader(eval_data, batch_size=64)
    model = create_model()
    loss_func = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr / 25)
    scheduler = OneCycleLR(optimizer, max_lr=args.lr, total_steps=args.epochs * len(train_loader))
    model, optimizer, train_loader, eval_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, eval_loader, scheduler
    )

    overall_step, first_epoch, resume_step = 0, 0, 0
    checkpoints = sorted(Path(args.output).glob("step_*"), key=lambda path: int(path.name.split("_")[1]))
    if checkpoints:
        accelerator.load_state(str(checkpoints[-1]))
        overall_step = int(checkpoints[-1].name.split("_")[1])
        first_epoch, resume_step = divmod(overall_step, len(train_loader))

    for epoch in range(first_epoch, args.epochs):
        model.train()
        total_loss = 0.0
        active_loader = train_loader
        if epoch == first_epoch and resume_step > 0:
            active_loader = accelerator.skip_first_batches(train_loader, resume_step)
        for features, targets in active_loader:
            loss = loss_func(model(features), targets)
            total_loss += loss.detach().float()
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            overall_step += 1
            if overall_step % args.checkpointing_steps == 0:
                accelerator.save_state(f"{args.output}/step_{overall_step}")

        model.eval()
        all_predictions, all_targets = [], []
        for features, targets in eval_loader:
            with torch.no_grad():
                predictions = model(features).argmax(dim=-1)
            predictions, targets = accelerator.gather_for_metrics((predictions, targets))
            all_predictions.append(predictions.cpu())
            all_targets.append(targets.cpu())
        f1 = f1_score(torch.cat(all_targets), torch.cat(all_predictions))
        accelerator.log({"train_loss": float(total_loss) / len(train_loader), "f1": f1}, step=overall_step)
        accelerator.print(f"epoch {epoch} f1 {f1:.3f}")

    accelerator.end_training()
    accelerator.save_model(model, f"{args.output}/model")


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
