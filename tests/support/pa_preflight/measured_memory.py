"""The memory of updates as planned and as measured; run as a program, it writes the table for maintainers."""

from __future__ import annotations

import json
import platform
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adafactor, AdamW, Optimizer
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from pa_core import Trainer
from pa_preflight import plan
from tests.support.pa_preflight.models import recurrent
from tests.support.pa_preflight.scripts import Net, Script, layer

_TABLE = Path(__file__).parents[3] / "docs" / "maintainers" / "planned-memory-figures.md"
_WORDS = 5_000


class Case(NamedTuple):
    """What a run is made of."""

    model: Callable[[], nn.Module]
    optimizer: Callable[..., Optimizer]
    data: Callable[[], TensorDataset]
    batch_size: int
    accumulation: int = 1

    def make(self, data: TensorDataset) -> Script:
        """The trainer of the run, and its arguments."""
        model = self.model()
        trainer = Trainer(model, nn.CrossEntropyLoss(), self.optimizer(model.parameters()), callbacks=[])
        arguments: dict[str, Any] = {
            "train_dataset": data,
            "num_epochs": 1,
            "max_num_train_steps": 3,
            "per_device_batch_size": self.batch_size,
            "gradient_accumulation_steps": self.accumulation,
        }
        return Script(trainer, arguments)


class Memory(NamedTuple):
    """The peak of an update in bytes."""

    planned: int | None
    measured: int


def _encoder(*, keeps_activations: bool = True) -> Net:
    def compute(net: Any, tokens: Tensor) -> Tensor:
        hidden: Tensor = net.embedding(tokens)
        for one in net.layers:
            hidden = one(hidden) if keeps_activations else checkpoint(one, hidden, use_reentrant=False)
        outputs: Tensor = net.head(hidden.mean(1))
        return outputs

    embedding = nn.Embedding(_WORDS, 64)
    layers = nn.ModuleList(nn.TransformerEncoderLayer(64, 4, 256, batch_first=True) for _ in range(3))
    return Net(compute, embedding=embedding, layers=layers, head=nn.Linear(64, 10))


def _next_words() -> nn.Module:
    layers = [nn.Embedding(_WORDS, 64), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, _WORDS)]
    return nn.Sequential(*layers, layer(lambda outputs: outputs.transpose(1, 2)))


def _cut_and_masked() -> Net:
    def compute(net: Any, tokens: Tensor) -> Tensor:
        tokens = tokens[:, : int((tokens > 0).sum(1).max().item())]
        texts, _ = (tokens > 0).nonzero(as_tuple=True)
        words = net.layer(net.embedding(tokens)[tokens > 0]).relu()
        outputs: Tensor = net.head(words.new_zeros(len(tokens), 128).index_add(0, texts, words))
        return outputs

    return Net(compute, embedding=nn.Embedding(_WORDS, 64), layer=nn.Linear(64, 128), head=nn.Linear(128, 10))


def _in_bf16(model: nn.Module) -> Net:
    def compute(net: Any, inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            outputs: Tensor = net.model(inputs)
        return outputs

    return Net(compute, model=model)


def _perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Linear(256, 512), nn.ReLU(), nn.Dropout(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )


def _convolutions() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def _labelled(*size: int, words: int = 0) -> TensorDataset:
    inputs = torch.randint(words, size) if words else torch.randn(size)
    return TensorDataset(inputs, torch.randint(10, size[:1]))


def _padded() -> TensorDataset:
    tokens = torch.randint(1, _WORDS, (48, 200))
    tokens[:, 1::2] = 0
    return TensorDataset(tokens, torch.randint(10, (48,)))


def _texts() -> TensorDataset:
    return TensorDataset(torch.randint(_WORDS, (24, 32)), torch.randint(_WORDS, (24, 32)))


_sgd, _adamw = partial(SGD, lr=1e-3), partial(AdamW, lr=1e-3)
_momentum = partial(SGD, lr=1e-3, momentum=0.9)
_vectors = partial(_labelled, 768, 256)
_pictures = partial(_labelled, 48, 3, 32, 32)
_tokens = partial(_labelled, 48, 64, words=_WORDS)
_series = partial(_labelled, 96, 20, 32)

CASES: dict[str, Case] = {
    "perceptron, SGD": Case(_perceptron, _sgd, _vectors, 256),
    "perceptron, AdamW": Case(_perceptron, _adamw, _vectors, 256),
    "perceptron, Adafactor": Case(_perceptron, partial(Adafactor, lr=1e-3), _vectors, 256),
    "perceptron, momentum, two batches an update": Case(_perceptron, _momentum, _vectors, 128, 2),
    "convolutions with batch norm, momentum": Case(_convolutions, _momentum, _pictures, 16),
    "the same in bf16": Case(lambda: _in_bf16(_convolutions()), _momentum, _pictures, 16),
    "transformer, AdamW": Case(_encoder, _adamw, _tokens, 16),
    "the same with checkpoints": Case(partial(_encoder, keeps_activations=False), _adamw, _tokens, 16),
    "the same in bf16, fused AdamW": Case(lambda: _in_bf16(_encoder()), partial(_adamw, fused=True), _tokens, 16),
    "GRU, AdamW": Case(lambda: recurrent(nn.GRU(32, 128, batch_first=True), 10), _adamw, _series, 32),
    "LSTM, AdamW": Case(lambda: recurrent(nn.LSTM(32, 128, 2, batch_first=True), 10), _adamw, _series, 32),
    "sums of embeddings, momentum": Case(
        lambda: nn.Sequential(nn.EmbeddingBag(_WORDS, 64), nn.Linear(64, 10)), _momentum, _tokens, 16
    ),
    "texts without padding, by item() and a mask": Case(_cut_and_masked, _sgd, _padded, 16),
    "softmax over 5,000 words, AdamW": Case(_next_words, _adamw, _texts, 8),
}


def memory_of(case: Case) -> Memory:
    """Plan a run, and make it."""
    torch.manual_seed(0)
    data = case.data()
    trainer, arguments = case.make(data)
    planned = plan(trainer, **arguments).memory.peak
    del trainer
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as measured:
        trainer, arguments = case.make(data)
        trainer.train(**arguments)
    return Memory(planned, max(_totals(measured)))


def _totals(measured: profile) -> Iterator[int]:
    """The bytes of what was allocated meanwhile and is still there, whenever that changes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        measured.export_chrome_trace(str(path))
        events = [one for one in json.loads(path.read_text())["traceEvents"] if one.get("name") == "[memory]"]
    alive: dict[int, int] = {}
    total = 0
    for event in sorted(events, key=lambda one: one["ts"]):
        address, size = event["args"]["Addr"], event["args"]["Bytes"]
        total += size if size > 0 else -alive.pop(address, 0)
        if size > 0:
            alive[address] = size
        yield total


def _table() -> Iterator[str]:
    yield (
        f"Measured with torch {torch.__version__} on {platform.machine()}. This table is written by `python -m "
        f"{__spec__.name}`.\n"
    )
    yield "| model, optimizer | planned, MiB | measured, MiB | difference |"
    yield "|---|---|---|---|"
    for name, case in CASES.items():
        planned, measured = memory_of(case)
        assert planned is not None
        sizes = " | ".join(f"{one / 2**20:.2f}" for one in (planned, measured))
        yield f"| {name} | {sizes} | {planned / measured - 1:+.1%} |"


if __name__ == "__main__":
    _TABLE.write_text("\n".join(_table()) + "\n")
