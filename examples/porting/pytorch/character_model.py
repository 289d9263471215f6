"""Train a small character model: micro-steps, a learning rate set by hand, and the best weights kept."""

import argparse
import math
import os
from pathlib import Path

import torch
from pydoc_data.topics import topics
from torch import Tensor, nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

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
ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group("nccl" if torch.cuda.is_available() else "gloo")
rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
master_process = rank == 0
assert args.gradient_accumulation_steps % world_size == 0
gradient_accumulation_steps = args.gradient_accumulation_steps // world_size
torch.manual_seed(1337 + rank)

# data: the text of Python's own reference
text = "".join(topics.values())[:200_000]
chars = sorted(set(text))
data = torch.tensor([chars.index(char) for char in text])
splits = {"train": data[: int(0.9 * len(data))], "val": data[int(0.9 * len(data)) :]}


def get_batch(split: str) -> tuple[Tensor, Tensor]:
    tokens = splits[split]
    starts = torch.randint(len(tokens) - block_size, (args.batch_size,))
    x = torch.stack([tokens[i : i + block_size] for i in starts])
    y = torch.stack([tokens[i + 1 : i + 1 + block_size] for i in starts])
    return x.to(device), y.to(device)


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


model: nn.Module = CharacterModel().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=weight_decay)
raw_model = model
if ddp:
    model = DistributedDataParallel(model)


@torch.no_grad()
def estimate_loss() -> dict[str, float]:
    losses: dict[str, float] = {}
    model.eval()
    for split in splits:
        values = torch.zeros(args.eval_iters)
        for k in range(args.eval_iters):
            x, y = get_batch(split)
            values[k] = model(x, y)[1].item()
        losses[split] = values.mean().item()
    model.train()
    return losses


def get_lr(it: int) -> float:
    if it < args.warmup_iters:
        return learning_rate * (it + 1) / (args.warmup_iters + 1)
    ratio = (it - args.warmup_iters) / (args.max_iters - args.warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * min(ratio, 1.0))) * (learning_rate - min_lr)


best_val_loss, iter_num = math.inf, 0
x, y = get_batch("train")
while True:
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

    for micro_step in range(gradient_accumulation_steps):
        if ddp:
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        _, loss = model(x, y)
        loss = loss / gradient_accumulation_steps
        x, y = get_batch("train")
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

    iter_num += 1
    if iter_num > args.max_iters:
        break

if ddp:
    destroy_process_group()
