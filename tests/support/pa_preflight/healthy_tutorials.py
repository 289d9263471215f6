"""Scripts without a mistake: what tutorials teach, in small, and data sets of scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adadelta, Adam, AdamW
from torch.optim.lr_scheduler import ExponentialLR, StepLR
from torch.utils.data import DataLoader, TensorDataset, random_split
from typing_extensions import override

from pa_core import Trainer
from tests.support.pa_preflight.data import pictures, texts
from tests.support.pa_preflight.scripts import Apply, Healthy, Script, perceptron, script

healthy = Healthy()


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _clothes(num_samples: int, seed: int) -> TensorDataset:
    """Grey pictures of 28 x 28 pixels from 0 to 1, ten patterns with noise."""
    patterns = torch.rand(10, 1, 28, 28, generator=_seeded(0)).round()
    targets = torch.randint(0, 10, (num_samples,), generator=_seeded(seed))
    noise = 0.3 * torch.rand(num_samples, 1, 28, 28, generator=_seeded(seed + 1))
    return TensorDataset(0.7 * patterns[targets] + noise, targets)


@healthy
def quickstart() -> Script:
    """Three layers over pictures, with SGD at a thousandth, and loaders of the script."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
    model.append(nn.Linear(512, 10))
    train, evaluation = (DataLoader(_clothes(640, 1), batch_size=64), DataLoader(_clothes(128, 5), batch_size=64))
    optimizer = SGD(model.parameters(), lr=1e-3)
    return script(model, nn.CrossEntropyLoss(), train, optimizer=optimizer, eval_dataset=evaluation)


@healthy
def digits_with_adadelta() -> Script:
    """Convolutions, dropout and log-probabilities, with Adadelta at a rate of 1, and a step a epoch."""
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(2704, 64),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(64, 10),
        nn.LogSoftmax(dim=1),
    )
    return script(
        model,
        functional.nll_loss,
        _clothes(320, 1),
        optimizer=Adadelta(model.parameters(), lr=1.0),
        create_scheduler_fn=partial(StepLR, step_size=1, gamma=0.7),
        step_scheduler="epoch",
        eval_dataset=_clothes(64, 5),
    )


@healthy
def transfer_learning() -> Script:
    """The layers of a trained network are frozen, and its head is a new one."""
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    body = nn.Sequential(*layers).requires_grad_(False)
    head = nn.Linear(64, 2)
    targets = torch.randint(0, 2, (160,), generator=_seeded(1))
    images = torch.randn(160, 3, 16, 16, generator=_seeded(2)) + targets[:, None, None, None]
    train, evaluation = random_split(TensorDataset(images, targets), [120, 40], _seeded(3))
    return script(
        nn.Sequential(body, head),
        nn.CrossEntropyLoss(),
        train,
        optimizer=SGD(head.parameters(), lr=1e-3, momentum=0.9),
        create_scheduler_fn=partial(StepLR, step_size=7, gamma=0.1),
        step_scheduler="epoch",
        eval_dataset=evaluation,
        per_device_batch_size=4,
    )


class _NamesModel(nn.Module):
    """Letters come first, then samples: the last state of a recurrent layer is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrence = nn.RNN(26, 64)
        self.head = nn.Linear(64, 3)

    @override
    def forward(self, letters: Tensor) -> Tensor:
        _, last = self.recurrence(letters)
        chances: Tensor = functional.log_softmax(self.head(last[0]), dim=1)
        return chances


def _letters_first(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    tokens, targets = zip(*samples, strict=True)
    return functional.one_hot(torch.stack(tokens, 1), 26).float(), torch.stack(targets)


@healthy
def names_by_letters() -> Script:
    """One-hot letters, batches in which the letters come first, and NLLLoss."""
    model = _NamesModel()
    optimizer = SGD(model.parameters(), lr=0.15)
    names = texts(tokens_of_class=8)
    return script(model, nn.NLLLoss(), names, optimizer=optimizer, collate_fn=_letters_first, gradient_clip_norm=3)


class _Translates(nn.Module):
    """A recurrent encoder, and a decoder with attention that is fed the words before."""

    def __init__(self, words: int = 20, width: int = 32) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(words, width), nn.Embedding(words, width)
        self.encoder, self.decoder = nn.GRU(width, width, batch_first=True), nn.GRUCell(2 * width, width)
        self.dropout, self.head = nn.Dropout(0.1), nn.Linear(width, words)

    @override
    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        states, last = self.encoder(self.dropout(self.source(source)))
        hidden, word = last[0], torch.zeros_like(target[:, 0])
        outputs: list[Tensor] = []
        for position in range(target.shape[1]):
            weights = torch.softmax((states @ hidden[:, :, None])[:, :, 0], dim=1)
            context = (weights[:, :, None] * states).sum(dim=1)
            hidden = self.decoder(torch.cat([self.target(word), context], dim=1), hidden)
            outputs.append(self.head(hidden))
            is_forced = self.training and bool(torch.rand(()) < 0.5)
            word = target[:, position] if is_forced else outputs[-1].argmax(dim=1)
        return functional.log_softmax(torch.stack(outputs, dim=1), dim=2)


class _TrainsTranslation(Trainer):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        source, target = batch
        outputs = self.model(source, target)
        loss = functional.nll_loss(outputs.flatten(0, 1), target.flatten(), ignore_index=0)
        return {"loss": loss, "model_outputs": outputs, "batch_size": len(source)}

    @override
    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        return self.calculate_train_batch_loss(batch)


def _reversed_sentences(num_samples: int, seed: int) -> TensorDataset:
    source = torch.randint(1, 20, (num_samples, 6), generator=_seeded(seed))
    target = source.flip(1)
    target[::3, 4:] = 0
    return TensorDataset(source, target)


@healthy
def sequence_to_sequence() -> Script:
    """Attention, teacher forcing at random in training, and padding that the loss ignores."""
    data, evaluation = _reversed_sentences(240, 1), _reversed_sentences(48, 2)
    return script(_Translates(), None, data, kind=_TrainsTranslation, eval_dataset=evaluation)


class _TransformerPair(nn.Module):
    """`nn.Transformer` with masks of padding."""

    def __init__(self, words: int = 20, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.positions = nn.Parameter(0.02 * torch.randn(8, width))
        self.layers = nn.Transformer(width, 2, 1, 1, 64, batch_first=True)
        self.head = nn.Linear(width, words)

    @override
    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        inputs = functional.pad(target[:, :-1], (1, 0), value=1)
        hidden = self.layers(
            self.words(source) + self.positions[: source.shape[1]],
            self.words(inputs) + self.positions[: inputs.shape[1]],
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(inputs.shape[1]),
            src_key_padding_mask=torch.zeros(source.shape).masked_fill(source == 0, -torch.inf),
            tgt_is_causal=True,
        )
        logits: Tensor = self.head(hidden)
        return logits


class _TrainsTransformer(_TrainsTranslation):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        source, target = batch
        outputs = self.model(source, target)
        loss = functional.cross_entropy(outputs.transpose(1, 2), target, ignore_index=0, label_smoothing=0.1)
        return {"loss": loss, "model_outputs": outputs, "batch_size": len(source)}


@healthy
def translation_with_a_transformer() -> Script:
    """Both sides of a transformer, with padding and smoothed labels."""
    model = _TransformerPair()
    optimizer = Adam(model.parameters(), lr=5e-4, betas=(0.9, 0.98), eps=1e-9)
    data, evaluation = _reversed_sentences(240, 1), _reversed_sentences(48, 2)
    return script(model, None, data, optimizer=optimizer, kind=_TrainsTransformer, eval_dataset=evaluation)


@healthy
def word_embeddings() -> Script:
    """Two words predict the next one: all pairs of a text, a sample a step, SGD at a thousandth."""
    words = torch.randint(0, 60, (90,), generator=_seeded(1))
    contexts = torch.stack([words[:-2], words[1:-1]], dim=1)
    model = nn.Sequential(nn.Embedding(60, 10), nn.Flatten(), *perceptron(20, 60, hidden=128), nn.LogSoftmax(dim=1))
    optimizer = SGD(model.parameters(), lr=1e-3)
    data = TensorDataset(contexts, words[2:])
    return script(model, nn.NLLLoss(), data, optimizer=optimizer, per_device_batch_size=1)


class _Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.recurrence, self.head = nn.Embedding(20, 6), nn.LSTM(6, 6), nn.Linear(6, 3)

    @override
    def forward(self, words: Tensor) -> Tensor:
        states, _ = self.recurrence(self.words(words).unsqueeze(1))
        tags: Tensor = functional.log_softmax(self.head(states.squeeze(1)), dim=1)
        return tags


@healthy
def tags_of_a_sentence() -> Script:
    """A batch is one sentence without a dimension for samples, and each word has a tag."""
    sentences = torch.randint(0, 20, (100, 7), generator=_seeded(1))

    def only(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        return samples[0]

    data = TensorDataset(sentences, sentences % 3)
    model = _Tagger()
    optimizer = SGD(model.parameters(), lr=0.1)
    return script(model, nn.NLLLoss(), data, optimizer=optimizer, per_device_batch_size=1, collate_fn=only)


class _WordModel(nn.Module):
    def __init__(self, words: int = 30, width: int = 32) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(words, width), nn.TransformerEncoderLayer(width, 2, 64, 0.2)
        self.head = nn.Linear(width, words)
        for weight in (self.words.weight, self.head.weight):
            nn.init.uniform_(weight, -0.1, 0.1)

    @override
    def forward(self, words: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(len(words))
        logits: Tensor = self.head(self.layer(self.words(words) * 5.6, src_mask=mask))
        return logits.flatten(0, 1)


@healthy
def words_in_columns() -> Script:
    """Chunks of a text in columns, words first, with a rate of 5 that falls, and clipped gradients."""
    text = (torch.arange(2000) * 7 % 30).view(20, 100).t()
    chunks = TensorDataset(torch.stack([text[i : i + 10] for i in range(0, 80, 2)]).clone())

    def chunk(samples: list[tuple[Tensor, ...]]) -> tuple[Tensor, Tensor]:
        return samples[0][0][:-1], samples[0][0][1:].flatten()

    model = _WordModel()
    return script(
        model,
        nn.CrossEntropyLoss(),
        chunks,
        optimizer=SGD(model.parameters(), lr=5.0),
        create_scheduler_fn=partial(ExponentialLR, gamma=0.95),
        step_scheduler="epoch",
        gradient_clip_norm=0.5,
        per_device_batch_size=1,
        collate_fn=chunk,
    )


class _News(Trainer):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        labels, words, offsets = batch
        outputs = self.model(words, offsets)
        loss = functional.cross_entropy(outputs, labels)
        return {"loss": loss, "model_outputs": outputs, "batch_size": len(labels)}


class _Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags, self.head = nn.EmbeddingBag(20, 16), nn.Linear(16, 3)

    @override
    def forward(self, words: Tensor, offsets: Tensor) -> Tensor:
        logits: Tensor = self.head(self.bags(words, offsets))
        return logits


def _joined(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    lengths = torch.tensor([6 + int(words[0]) % 7 for words, _ in samples])
    words = torch.cat([words[:length] for (words, _), length in zip(samples, lengths, strict=True)])
    return torch.stack([label for _, label in samples]), words, lengths.cumsum(0) - lengths


@healthy
def joined_texts() -> Script:
    """Texts are joined and their beginnings noted, labels come first, and the rate is 5."""
    model = _Bags()
    optimizer = SGD(model.parameters(), lr=5.0)
    return script(model, None, texts(), optimizer=optimizer, kind=_News, collate_fn=_joined, gradient_clip_norm=0.1)


class _Localised(nn.Module):
    """A network that looks for the place of what it is to see, which begins with the whole picture."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 6))
        last = self.place.get_submodule("3")
        nn.init.zeros_(last.get_parameter("weight"))
        last.get_parameter("bias").data.copy_(torch.tensor([1.0, 0, 0, 0, 1, 0]))
        self.head = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))

    @override
    def forward(self, images: Tensor) -> Tensor:
        grid = functional.affine_grid(self.place(images).view(-1, 2, 3), list(images.shape), align_corners=False)
        logits: Tensor = self.head(functional.grid_sample(images, grid, align_corners=False))
        return logits


@healthy
def spatial_transformer() -> Script:
    """The layers that find the place begin with the identity."""
    return script(_Localised(), nn.CrossEntropyLoss(), pictures(), eval_dataset=pictures(64, seed=2))


@healthy
def super_resolution() -> Script:
    """Small pictures are made large by a shuffle of pixels."""
    large = functional.avg_pool2d(torch.rand(160, 1, 18, 18, generator=_seeded(1)), 3, 1)
    data = TensorDataset(functional.avg_pool2d(large, 2), large)
    model = nn.Sequential(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.Conv2d(32, 4, 3, padding=1), nn.PixelShuffle(2))
    return script(model, nn.MSELoss(), data, per_device_batch_size=16)


@healthy
def fit_of_a_sine() -> Script:
    """Powers of a number predict its sine, with all samples in a batch."""
    numbers = torch.linspace(-3.14, 3.14, 400).unsqueeze(1)
    data = TensorDataset(torch.cat([numbers, numbers**2, numbers**3], dim=1), numbers.sin())
    model = nn.Linear(3, 1)
    optimizer = Adam(model.parameters(), lr=1e-2)
    return script(model, nn.MSELoss(), data, optimizer=optimizer, num_epochs=200, per_device_batch_size=400)


def _standardised(values: Any) -> Tensor:
    values = np.asarray(values)
    return torch.tensor((values - values.mean(axis=0)) / values.std(axis=0).clip(1e-6), dtype=torch.float32)


def _parts(inputs: Tensor, targets: Tensor) -> dict[str, Any]:
    rest = len(inputs) // 5
    train, evaluation = random_split(TensorDataset(inputs, targets), [len(inputs) - rest, rest], _seeded(1))
    return {"train_dataset": train, "eval_dataset": evaluation}


def _of_scikit_learn(loader: str, classes: int, *, scale: Callable[[Any], Tensor] = _standardised) -> dict[str, Any]:
    datasets = pytest.importorskip("sklearn.datasets")
    inputs, targets = getattr(datasets, loader)(return_X_y=True)
    return _parts(scale(inputs), torch.as_tensor(targets) if classes else _standardised(targets).view(len(targets), -1))


@healthy
def iris_as_measured() -> Script:
    """Centimetres, which are small enough as they are."""
    parts = _of_scikit_learn("load_iris", 3, scale=lambda inputs: torch.tensor(inputs, dtype=torch.float32))
    return script(perceptron(4, 3), nn.CrossEntropyLoss(), **parts)


@healthy
def wines() -> Script:
    """Standardised features of few samples."""
    return script(perceptron(13, 3), nn.CrossEntropyLoss(), **_of_scikit_learn("load_wine", 3))


@healthy
def tumours_in_float64() -> Script:
    """Model and features in double precision."""
    parts = _of_scikit_learn("load_breast_cancer", 2, scale=lambda inputs: _standardised(inputs).double())
    return script(perceptron(30, 2).double(), nn.CrossEntropyLoss(), **parts)


@healthy
def digits_of_scikit_learn() -> Script:
    """Brightness from 0 to 16, without a change."""
    parts = _of_scikit_learn("load_digits", 10, scale=lambda inputs: torch.tensor(inputs, dtype=torch.float32))
    model = perceptron(64, 10, hidden=64)
    return script(model, nn.CrossEntropyLoss(), optimizer=AdamW(model.parameters(), lr=1e-3), **parts)


@healthy
def progress_of_diabetes() -> Script:
    """A regression with features of a twentieth, as they are delivered, and standardised targets."""
    parts = _of_scikit_learn("load_diabetes", 0, scale=lambda inputs: torch.tensor(inputs, dtype=torch.float32))
    model = perceptron(10, 1)
    return script(model, nn.HuberLoss(), optimizer=AdamW(model.parameters(), lr=1e-2), **parts)


@healthy
def twenty_athletes() -> Script:
    """Three targets of twenty samples, sixteen of which are for training."""
    return script(perceptron(3, 3), nn.MSELoss(), **_of_scikit_learn("load_linnerud", 0))


@healthy
def two_moons() -> Script:
    """A network with a single output for two classes that no line divides."""
    datasets = pytest.importorskip("sklearn.datasets")
    inputs, targets = datasets.make_moons(400, noise=0.1, random_state=0)
    model = nn.Sequential(*perceptron(2, 1), Apply(lambda logits: logits.squeeze(1)))
    parts = _parts(torch.tensor(inputs, dtype=torch.float32), torch.tensor(targets, dtype=torch.float32))
    return script(model, nn.BCEWithLogitsLoss(), **parts)
