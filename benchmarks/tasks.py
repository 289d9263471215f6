"""What the loops train: each task is made anew for each measurement, the same for all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import DataLoader, Dataset, Sampler, Subset, TensorDataset
from typing_extensions import override

__all__ = ["MAX_TOKENS", "TASKS", "AdversarialTask", "Sentences", "Task", "layers_of", "pad", "training_loader"]


@dataclass(frozen=True)
class Task:
    """A network, its data, and the settings that every loop takes over.

    Attributes:
        model: The network, on the CPU.
        optimizer: Its optimizer.
        loss_func: Called with outputs and targets.
        dataset: Pairs of inputs and targets, for training and for evaluation.
        batch_size: Samples in a batch of one process.
        num_epochs: Epochs in one measurement: a second or two of work.
        accumulation: Batches in an optimizer update.
        num_workers: Processes that fetch the samples.
    """

    model: nn.Module
    optimizer: Optimizer
    loss_func: nn.Module
    dataset: Dataset[Any]
    batch_size: int
    num_epochs: int
    accumulation: int = 1
    num_workers: int = 0


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
    )


def digits() -> Task:
    """Small vectors in memory: 1,797 samples of 64 numbers, as many as scikit-learn has digits."""
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.rand(1797, 64, generator=generator), torch.randint(10, (1797,), generator=generator)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    return Task(model, optimizer, nn.CrossEntropyLoss(), TensorDataset(inputs, targets), batch_size=32, num_epochs=20)


def long_epoch() -> Task:
    """The same network and one epoch of 64,000 such samples: 1,000 updates on two processes."""
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.rand(64_000, 64, generator=generator), torch.randint(10, (64_000,), generator=generator)
    return replace(digits(), dataset=TensorDataset(inputs, targets), num_epochs=1)


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


class SmallTransformer(nn.Module):
    """Predicts the next token."""

    def __init__(self, vocabulary: int = 256, width: int = 128, length: int = 64, depth: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    @override
    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of shape (batch, vocabulary, length)."""
        hidden = self.layers(self.tokens(tokens) + self.places, mask=self.mask, is_causal=True)
        logits: Tensor = self.head(hidden)
        return logits.transpose(1, 2)


def text() -> Task:
    """A transformer of two layers over 64 tokens, with four batches in an update."""
    tokens = torch.randint(256, (384, 65))
    model = SmallTransformer()
    dataset = TensorDataset(tokens[:, :-1], tokens[:, 1:])
    optimizer = AdamW(model.parameters(), lr=1e-3)
    return Task(model, optimizer, nn.CrossEntropyLoss(), dataset, batch_size=8, num_epochs=1, accumulation=4)


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a transformer, which are its blocks when it is sharded."""
    return [module for module in model.modules() if isinstance(module, nn.TransformerEncoderLayer)]


def sharded_text() -> Task:
    """The transformer with an update for each batch, so that every step gathers the blocks and shares the gradients."""
    task = text()
    return replace(task, dataset=Subset(task.dataset, range(128)), batch_size=4, num_epochs=2, accumulation=1)


def sharded_wide_text() -> Task:
    """A transformer of 50 MB, of which a copy would be noticed, and little to compute."""
    tokens = torch.randint(256, (8, 65))
    model = SmallTransformer(width=512, depth=4)
    return replace(
        text(),
        model=model,
        optimizer=AdamW(model.parameters(), lr=1e-3),
        dataset=TensorDataset(tokens[:, :-1], tokens[:, 1:]),
        batch_size=1,
        accumulation=1,
    )


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
    inputs, targets = [one for one, _ in samples], [one for _, one in samples]
    return pad_sequence(inputs, batch_first=True), pad_sequence(targets, batch_first=True, padding_value=-100)


class NextToken(nn.Module):
    """Predicts the next token from those before."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.recurrent = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 256)

    @override
    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of shape (batch, vocabulary, length)."""
        logits: Tensor = self.head(self.recurrent(self.tokens(tokens))[0])
        return logits.transpose(1, 2)


MAX_TOKENS = 512
"""Of a batch of sentences, with padding."""


def sentences() -> Task:
    """Texts of many lengths, in batches of at most so many tokens; the size of a batch is the mean."""
    model = NextToken(width=128)
    return Task(model, AdamW(model.parameters(), lr=1e-3), nn.CrossEntropyLoss(), Sentences(1600), 18, num_epochs=1)


TASKS: dict[str, Callable[[], Task]] = {
    "digits": digits,
    "gan": gan,
    "images": images,
    "images_in_workers": images_in_workers,
    "long_epoch": long_epoch,
    "sentences": sentences,
    "sharded_text": sharded_text,
    "sharded_wide_text": sharded_wide_text,
    "text": text,
    "wide": wide,
}
