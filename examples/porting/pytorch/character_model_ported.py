"""Train a small character model: micro-steps, a learning rate set by hand, and the best weights kept."""

import argparse
import math
import os
from pathlib import Path

import torch
from pydoc_data.topics import topics
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Subset, TensorDataset

from pa_core import Run, SaveTrainingStateCallback

parser = argparse.ArgumentParser()
parser.add_argument("--out-dir", type=Path, default=Path("out"))
parser.add_argument("--max-iters", type=int, default=200)
parser.add_argument("--eval-interval", type=int, default=50)
parser.add_argument("--eval-iters", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--gradient-accumulation-steps", type=int, default=4)
parser.add_argument("--warmup-iters", type=int, default=20)
args = parser.parse_args()
block_size, n_embd, n_head, n_layer = 32, 64, 4, 2
learning_rate, min_lr, weight_decay, grad_clip = 3e-3, 3e-4, 0.1, 1.0

# processes, device, seed
rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
master_process = rank == 0
assert args.gradient_accumulation_steps % world_size == 0
gradient_accumulation_steps = args.gradient_accumulation_steps // world_size
torch.manual_seed(1337 + rank)

# data: the text of Python's own reference
text = "".join(topics.values())[:200_000]
chars = sorted(set(text))
data = torch.tensor([chars.index(char) for char in text])
splits = {"train": data[: int(0.9 * len(data))], "val": data[int(0.9 * len(data)) :]}


def windows(split: str) -> TensorDataset:
    views = splits[split].unfold(0, block_size + 1, 1)
    return TensorDataset(views[:, :-1], views[:, 1:])


class CharacterModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(len(chars), n_embd), nn.Embedding(block_size, n_embd)
        layer = nn.TransformerEncoderLayer(n_embd, n_head, 4 * n_embd, dropout=0.1, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, n_layer, enable_nested_tensor=False)
        self.head = nn.Linear(n_embd, len(chars))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        hidden = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        logits = self.head(self.blocks(hidden, mask=mask, is_causal=True))
        return logits, F.cross_entropy(logits.flatten(0, 1), y.flatten())


model: nn.Module = CharacterModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=weight_decay)
raw_model = model


def estimate_loss() -> dict[str, float]:
    losses: dict[str, float] = {}
    for split in splits:
        some = Subset(windows(split), range(args.eval_iters * args.batch_size))
        for x, y in run.evaluation_batches(some, name=split):
            run.log("loss", model(x, y)[1])
        losses[split] = run.run_history.get_latest_metric(f"{split}_loss_epoch")
    return losses


def get_lr(it: int) -> float:
    if it < args.warmup_iters:
        return learning_rate * (it + 1) / (args.warmup_iters + 1)
    ratio = (it - args.warmup_iters) / (args.max_iters - args.warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * min(ratio, 1.0))) * (learning_rate - min_lr)


with Run(
    model, optimizer, windows("train"), max_num_train_steps=args.max_iters + 1, gradient_clip_norm=grad_clip,
    per_device_batch_size=args.batch_size, gradient_accumulation_steps=gradient_accumulation_steps,
    callbacks=[SaveTrainingStateCallback(args.out_dir, save_every_n_steps=args.eval_interval)],
    resume_from=args.out_dir, resume_missing="start",
) as run:
    for update in run.updates():
        iter_num = run.num_updates_completed
        best_val_loss = min(run.run_history.get_metric_values("val_loss_epoch"), default=math.inf)
        lr = get_lr(iter_num)
        for group in optimizer.param_groups:
            group["lr"] = lr

        if iter_num % args.eval_interval == 0:
            losses = estimate_loss()
            if master_process:
                print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
            if losses["val"] < best_val_loss:
                best_val_loss = losses["val"]
                if iter_num > 0 and master_process:
                    args.out_dir.mkdir(exist_ok=True)
                    torch.save({"model": raw_model.state_dict(), "optimizer": optimizer.state_dict(),
                                "iter_num": iter_num, "best_val_loss": best_val_loss}, args.out_dir / "ckpt.pt")

        for x, y in update:
            _, loss = model(x, y)
            update.backward(loss)
        update.step()
