"""What the loops train: each task is made anew for each measurement, the same for all of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import DataLoader, Dataset, Sampler, Subset, TensorDataset
from typing_extensions import override

from benchmarks.models import NextToken, ResNet, TokenLoss, Transformer, layers_of

__all__ = [
    "DEVICE",
    "IS_DRY",
    "MAX_TOKENS",
    "TASKS",
    "AdversarialTask",
    "AugmentedImages",
    "Sentences",
    "Task",
    "digits",
    "images_in_workers",
    "pad",
    "training_loader",
    "vectors",
]

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
IS_DRY = "BENCHMARKS_DRY_RUN" in os.environ
"""Whether the smallest sizes are enough, to see that everything works."""


@dataclass(frozen=True)
class Task:
    """A network, its data, and the settings that every loop takes over.

    Attributes:
        model: The network, on the device.
        optimizer: Its optimizer.
        loss_func: Called with outputs and targets.
        dataset: Pairs of inputs and targets, for training and for evaluation.
        batch_size: Samples in a batch of one process.
        num_epochs: Epochs in one measurement: a second or two of work.
        accumulation: Batches in an optimizer update.
        num_workers: Processes that fetch the samples.
        mixed_precision: The precision of the forward pass.
    """

    model: nn.Module
    optimizer: Optimizer
    loss_func: nn.Module
    dataset: Dataset[Any]
    batch_size: int
    num_epochs: int
    accumulation: int = 1
    num_workers: int = 0
    mixed_precision: Literal["no", "bf16", "fp16"] = "no"


@dataclass(frozen=True)
class AdversarialTask(Task):
    """Two networks that train against each other; the model and the optimizer are those of the generator.

    Attributes:
        discriminator: The network that tells real samples from generated ones.
        discriminator_optimizer: Its optimizer.
        noise: How many numbers the generator makes a sample of.
    """

    discriminator: nn.Module = field(kw_only=True)
    discriminator_optimizer: Optimizer = field(kw_only=True)
    noise: int = field(kw_only=True)


def training_loader(task: Task, sampler: Sampler[int] | None = None) -> DataLoader[Any]:
    """The loader of every loop that needs one made by hand, shuffled unless a sampler shares the samples."""
    return DataLoader(
        task.dataset,
        batch_size=task.batch_size,
        shuffle=sampler is None,
        sampler=sampler,
        num_workers=task.num_workers,
        persistent_workers=task.num_workers > 0,
        pin_memory=DEVICE.type == "cuda",
    )


def vectors(number: int) -> TensorDataset:
    """Samples of 64 numbers in memory, of ten classes."""
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.rand(number, 64, generator=generator), torch.randint(10, (number,), generator=generator))


def digits() -> Task:
    """Small vectors in memory: 1,797 samples of 64 numbers, as many as scikit-learn has digits."""
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    return Task(model, optimizer, nn.CrossEntropyLoss(), vectors(1797), batch_size=32, num_epochs=20)


def long_epoch() -> Task:
    """The same network and one epoch of 64,000 such samples: 1,000 updates on two processes."""
    return replace(digits(), dataset=vectors(64_000), num_epochs=1)


def wide() -> Task:
    """Layers of 1,024 units: 8 MB of gradients, with more to compute and to send."""
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024))
    model.append(nn.Linear(1024, 10))
    return replace(digits(), model=model, optimizer=SGD(model.parameters(), lr=0.05, momentum=0.9), num_epochs=3)


class AugmentedImages(Dataset[tuple[Tensor, int]]):
    """Images that are cropped and mirrored at random, one by one."""

    def __init__(self, number: int) -> None:
        self.images = torch.rand(number, 3, 36, 36)
        self.targets = torch.randint(10, (number,)).tolist()

    def __len__(self) -> int:
        return len(self.images)

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        top, left, mirrored = (int(torch.randint(size, ()).item()) for size in (5, 5, 2))
        image = self.images[index, :, top : top + 32, left : left + 32]
        return (image.flip(-1) if mirrored else image.clone()), self.targets[index]


def images() -> Task:
    """Images with random augmentation and a small convolutional network, the samples fetched by the main process."""
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(64, 10)),
    )
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    return Task(model, optimizer, nn.CrossEntropyLoss(), AugmentedImages(1024), batch_size=32, num_epochs=3)


def images_in_workers() -> Task:
    """The same images, fetched by two workers."""
    return replace(images(), num_workers=2)


def texts(number: int, length: int = 64, vocabulary: int = 256) -> TensorDataset:
    """Random tokens in memory, each with the one that follows it."""
    tokens = torch.randint(vocabulary, (number, length + 1))
    return TensorDataset(tokens[:, :-1], tokens[:, 1:])


def text() -> Task:
    """A transformer of two layers over 64 tokens, with four batches in an update."""
    model = Transformer()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    return Task(model, optimizer, TokenLoss(), texts(384), batch_size=8, num_epochs=1, accumulation=4)


def sharded_text() -> Task:
    """The transformer with an update for each batch, so that every step gathers the blocks and shares the gradients."""
    task = text()
    return replace(task, dataset=Subset(task.dataset, range(128)), batch_size=4, num_epochs=2, accumulation=1)


def sharded_wide_text() -> Task:
    """A transformer of 50 MB, of which a copy would be noticed, and little to compute."""
    model = Transformer(width=512, depth=4)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    return Task(model, optimizer, TokenLoss(), texts(8), batch_size=1, num_epochs=1)


def gan() -> AdversarialTask:
    """A generator of small vectors and a discriminator of them."""
    generator = torch.Generator().manual_seed(0)
    noise, size = 16, 64
    model = nn.Sequential(nn.Linear(noise, 128), nn.ReLU(), nn.Linear(128, size))
    discriminator = nn.Sequential(nn.Linear(size, 128), nn.ReLU(), nn.Linear(128, 1))
    return AdversarialTask(
        model,
        SGD(model.parameters(), lr=0.05, momentum=0.9),
        nn.BCEWithLogitsLoss(),
        TensorDataset(torch.rand(1797, size, generator=generator)),
        batch_size=32,
        num_epochs=10,
        discriminator=discriminator,
        discriminator_optimizer=SGD(discriminator.parameters(), lr=0.05, momentum=0.9),
        noise=noise,
    )


class Sentences(Dataset[tuple[Tensor, Tensor]]):
    """Tokens of many lengths, each with the one that follows it.

    Attributes:
        lengths: The number of tokens of each sample.
    """

    def __init__(self, number: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.lengths = (torch.randn(number, generator=generator) * 0.7 + 3).exp().long().clamp(2, 256)
        self.tokens = [torch.randint(256, (int(length) + 1,), generator=generator) for length in self.lengths]

    def __len__(self) -> int:
        return len(self.tokens)

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.tokens[index][:-1], self.tokens[index][1:]


def pad(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Pad inputs with zeros, and targets with what a loss leaves out."""
    inputs, targets = map(list, zip(*samples, strict=True))
    return pad_sequence(inputs, batch_first=True), pad_sequence(targets, batch_first=True, padding_value=-100)


MAX_TOKENS = 512
"""Of a batch of sentences, with padding."""


def sentences() -> Task:
    """Texts of many lengths, in batches of at most so many tokens; the size of a batch is the mean."""
    model = NextToken(width=128)
    return Task(model, AdamW(model.parameters(), lr=1e-3), TokenLoss(), Sentences(1600), 18, num_epochs=1)


def samples_of(batch_size: int, updates: int) -> int:
    """The samples of so many updates; in a dry run, of 20."""
    return batch_size * (20 if IS_DRY else updates)


def digits_on_device() -> Task:
    """A network of which a step is over before Python has prepared the next one."""
    batch_size = 32 if IS_DRY else 128
    task = digits()
    return replace(
        task,
        model=task.model.to(DEVICE),
        dataset=vectors(samples_of(batch_size, 200)),
        batch_size=batch_size,
        num_epochs=1,
        mixed_precision="bf16",
    )


def transformer() -> Task:
    """A transformer of the size of GPT-2 small, without dropout."""
    batch_size, vocabulary, length = (2, 128, 32) if IS_DRY else (8, 50257, 1024)
    with DEVICE:
        if IS_DRY:
            model = Transformer(vocabulary, 64, length, 2, dropout=0.0)
        else:
            model = Transformer(vocabulary, 768, length, 12, heads=12, dropout=0.0)
    dataset = texts(samples_of(batch_size, 25), length, vocabulary)
    optimizer = AdamW(model.parameters(), lr=1e-4)
    return Task(model, optimizer, TokenLoss(), dataset, batch_size, num_epochs=1, mixed_precision="bf16")


def sharded_transformer() -> Task:
    """The same, of which this process has all pieces and gathers a layer at a time, in bf16."""
    from torch.distributed.device_mesh import init_device_mesh  # memory that other tasks do without
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    task = transformer()
    mesh = init_device_mesh(DEVICE.type, (1,))
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in (*layers_of(task.model), task.model):
        fully_shard(module, mesh=mesh, mp_policy=precision)
    return replace(task, optimizer=AdamW(task.model.parameters(), lr=1e-4), mixed_precision="no")


def resnet() -> Task:
    """Images of bytes in memory, and a ResNet-50."""
    side, batch_size, width = (32, 4, 4) if IS_DRY else (224, 128, 64)
    with DEVICE:
        model: nn.Module = ResNet((3, 4, 6, 3), bottleneck=True, width=width)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]  # torch leaves this overload out
    images = torch.randint(256, (2 * batch_size, 3, side, side), dtype=torch.uint8)
    numbers = [index % len(images) for index in range(samples_of(batch_size, 25))]
    dataset = Subset(TensorDataset(images, torch.randint(1000, (len(images),))), numbers)
    optimizer = AdamW(model.parameters(), lr=1e-4)
    return Task(model, optimizer, nn.CrossEntropyLoss(), dataset, batch_size, num_epochs=1, mixed_precision="bf16")


TASKS: dict[str, Callable[[], Task]] = {
    "digits": digits,
    "digits_on_device": digits_on_device,
    "gan": gan,
    "images": images,
    "images_in_workers": images_in_workers,
    "long_epoch": long_epoch,
    "resnet": resnet,
    "sentences": sentences,
    "sharded_text": sharded_text,
    "sharded_transformer": sharded_transformer,
    "sharded_wide_text": sharded_wide_text,
    "text": text,
    "transformer": transformer,
    "wide": wide,
}
