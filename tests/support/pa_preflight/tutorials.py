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

from tests.support.pa_preflight.data import first_sample, pictures, seeded, texts
from tests.support.pa_preflight.scripts import (
    Healthy,
    Net,
    Script,
    classes,
    followed_by,
    images,
    layer,
    numbers,
    perceptron,
    script,
)

healthy = Healthy()


def _clothes(num_samples: int, seed: int) -> TensorDataset:
    """Grey pictures of 28 x 28 pixels from 0 to 1, ten patterns with noise."""
    patterns = torch.rand(10, 1, 28, 28, generator=seeded(0)).round()
    targets = torch.randint(0, 10, (num_samples,), generator=seeded(seed))
    noise = 0.3 * torch.rand(num_samples, 1, 28, 28, generator=seeded(seed + 1))
    return TensorDataset(0.7 * patterns[targets] + noise, targets)


def _transfer_learning() -> Script:
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    body, head = nn.Sequential(*layers).requires_grad_(False), nn.Linear(64, 2)
    targets = torch.randint(0, 2, (160,), generator=seeded(1))
    photos = torch.randn(160, 3, 16, 16, generator=seeded(2)) + targets[:, None, None, None]
    train, evaluation = random_split(TensorDataset(photos, targets), [120, 40], seeded(3))
    return classes(
        nn.Sequential(body, head),
        data=train,
        train=SGD(head.parameters(), lr=1e-3, momentum=0.9),
        create_scheduler_fn=partial(StepLR, step_size=7, gamma=0.1),
        step_scheduler="epoch",
        eval_dataset=evaluation,
        per_device_batch_size=4,
    )


# Three layers over pictures, with SGD at a thousandth, and loaders of the script.
healthy["quickstart"] = lambda: images(
    nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), *perceptron(512, 10, hidden=512)),
    data=DataLoader(_clothes(640, 1), batch_size=64),
    train=partial(SGD, lr=1e-3),
    eval_dataset=DataLoader(_clothes(128, 5), batch_size=64),
)
# Convolutions, dropout and log-probabilities, with Adadelta at a rate of 1, and a step a epoch.
healthy["digits_with_adadelta"] = lambda: images(
    nn.Sequential(
        *(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(), nn.Linear(2704, 64)),
        *(nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10), nn.LogSoftmax(dim=1)),
    ),
    functional.nll_loss,
    _clothes(320, 1),
    train=partial(Adadelta, lr=1.0),
    create_scheduler_fn=partial(StepLR, step_size=1, gamma=0.7),
    step_scheduler="epoch",
    eval_dataset=_clothes(64, 5),
)
# The layers of a trained network are frozen, and its head is a new one.
healthy["transfer_learning"] = _transfer_learning

# -- texts -------------------------------------------------------------------------------------------------------------


def _letters_first(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    tokens, targets = zip(*samples, strict=True)
    return functional.one_hot(torch.stack(tokens, 1), 26).float(), torch.stack(targets)


def _translates(net: Any, source: Tensor, target: Tensor) -> Tensor:
    """A recurrent encoder, and a decoder with attention that is fed the words before."""
    states, last = net.encoder(net.dropout(net.source(source)))
    hidden, word = last[0], torch.zeros_like(target[:, 0])
    outputs: list[Tensor] = []
    for position in range(target.shape[1]):
        weights = torch.softmax((states @ hidden[:, :, None])[:, :, 0], dim=1)
        context = (weights[:, :, None] * states).sum(dim=1)
        hidden = net.decoder(torch.cat([net.target(word), context], dim=1), hidden)
        outputs.append(net.head(hidden))
        is_forced = net.training and bool(torch.rand(()) < 0.5)
        word = target[:, position] if is_forced else outputs[-1].argmax(dim=1)
    return functional.log_softmax(torch.stack(outputs, dim=1), dim=2)


def _translation_by_steps(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    outputs = trainer.model(*batch)
    return functional.nll_loss(outputs.flatten(0, 1), batch[1].flatten(), ignore_index=0), outputs


def _translation_at_once(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    outputs = trainer.model(*batch)
    loss = functional.cross_entropy(outputs.transpose(1, 2), batch[1], ignore_index=0, label_smoothing=0.1)
    return loss, outputs


def _reversed_sentences(num_samples: int, seed: int) -> TensorDataset:
    source = torch.randint(1, 20, (num_samples, 6), generator=seeded(seed))
    target = source.flip(1)
    target[::3, 4:] = 0
    return TensorDataset(source, target)


def _both_sides(net: Any, source: Tensor, target: Tensor) -> Tensor:
    """`nn.Transformer` with masks of padding."""
    inputs = functional.pad(target[:, :-1], (1, 0), value=1)
    hidden = net.layers(
        net.words(source) + net.positions[: source.shape[1]],
        net.words(inputs) + net.positions[: inputs.shape[1]],
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(inputs.shape[1]),
        src_key_padding_mask=torch.zeros(source.shape).masked_fill(source == 0, -torch.inf),
        tgt_is_causal=True,
    )
    logits: Tensor = net.head(hidden)
    return logits


def _translation(model: nn.Module, **others: Any) -> Script:
    data, evaluation = _reversed_sentences(240, 1), _reversed_sentences(48, 2)
    return script(model, None, data, evaluates=True, eval_dataset=evaluation, **others)


def _word_embeddings() -> Script:
    words = torch.randint(0, 60, (90,), generator=seeded(1))
    layers = followed_by(perceptron(20, 60, hidden=128), nn.LogSoftmax(dim=1))
    return classes(
        nn.Sequential(nn.Embedding(60, 10), nn.Flatten(), *layers),
        nn.NLLLoss(),
        TensorDataset(torch.stack([words[:-2], words[1:-1]], dim=1), words[2:]),
        train=partial(SGD, lr=1e-3),
        per_device_batch_size=1,
    )


def _tags(net: Any, words: Tensor) -> Tensor:
    states, _ = net.recurrence(net.words(words).unsqueeze(1))
    return functional.log_softmax(net.head(states.squeeze(1)), dim=1)


def _words_in_columns() -> Script:
    def chunk(samples: list[tuple[Tensor, ...]]) -> tuple[Tensor, Tensor]:
        return samples[0][0][:-1], samples[0][0][1:].flatten()

    def compute(net: Any, words: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(len(words))
        logits: Tensor = net.head(net.layer(net.words(words) * 5.6, src_mask=mask))
        return logits.flatten(0, 1)

    text = (torch.arange(2000) * 7 % 30).view(20, 100).t()
    words, transformer, head = nn.Embedding(30, 32), nn.TransformerEncoderLayer(32, 2, 64, 0.2), nn.Linear(32, 30)
    for weight in (words.weight, head.weight):
        nn.init.uniform_(weight, -0.1, 0.1)
    return classes(
        Net(compute, words=words, layer=transformer, head=head),
        data=TensorDataset(torch.stack([text[i : i + 10] for i in range(0, 80, 2)]).clone()),
        train=partial(SGD, lr=5.0),
        create_scheduler_fn=partial(ExponentialLR, gamma=0.95),
        step_scheduler="epoch",
        gradient_clip_norm=0.5,
        per_device_batch_size=1,
        collate_fn=chunk,
    )


def _news(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    outputs = trainer.model(*batch[1:])
    return functional.cross_entropy(outputs, batch[0]), outputs


def _joined(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    lengths = torch.tensor([6 + int(words[0]) % 7 for words, _ in samples])
    words = torch.cat([words[:length] for (words, _), length in zip(samples, lengths, strict=True)])
    return torch.stack([label for _, label in samples]), words, lengths.cumsum(0) - lengths


def _last_of_letters(net: Any, letters: Tensor) -> Tensor:
    return functional.log_softmax(net.head(net.recurrence(letters)[1][0]), dim=1)


def _of_bags(net: Any, words: Tensor, offsets: Tensor) -> Tensor:
    logits: Tensor = net.head(net.bags(words, offsets))
    return logits


def _sentences() -> TensorDataset:
    words = torch.randint(0, 20, (100, 7), generator=seeded(1))
    return TensorDataset(words, words % 3)


# One-hot letters, batches in which the letters come first, and NLLLoss.
healthy["names_by_letters"] = lambda: classes(
    Net(_last_of_letters, recurrence=nn.RNN(26, 64), head=nn.Linear(64, 3)),
    nn.NLLLoss(),
    texts(tokens_of_class=8),
    train=partial(SGD, lr=0.15),
    collate_fn=_letters_first,
    gradient_clip_norm=3,
)
# Attention, teacher forcing at random in training, and padding that the loss ignores.
healthy["sequence_to_sequence"] = lambda: _translation(
    Net(
        _translates,
        source=nn.Embedding(20, 32),
        target=nn.Embedding(20, 32),
        encoder=nn.GRU(32, 32, batch_first=True),
        decoder=nn.GRUCell(64, 32),
        dropout=nn.Dropout(0.1),
        head=nn.Linear(32, 20),
    ),
    step=_translation_by_steps,
)
# Both sides of a transformer, with padding and smoothed labels.
healthy["translation_with_a_transformer"] = lambda: _translation(
    Net(
        _both_sides,
        words=nn.Embedding(20, 32),
        positions=nn.Parameter(0.02 * torch.randn(8, 32)),
        layers=nn.Transformer(32, 2, 1, 1, 64, batch_first=True),
        head=nn.Linear(32, 20),
    ),
    step=_translation_at_once,
    train=partial(Adam, lr=5e-4, betas=(0.9, 0.98), eps=1e-9),
)
# Two words predict the next one: all pairs of a text, a sample a step, SGD at a thousandth.
healthy["word_embeddings"] = _word_embeddings
# A batch is one sentence without a dimension for samples, and each word has a tag.
healthy["tags_of_a_sentence"] = lambda: classes(
    Net(_tags, words=nn.Embedding(20, 6), recurrence=nn.LSTM(6, 6), head=nn.Linear(6, 3)),
    nn.NLLLoss(),
    _sentences(),
    train=partial(SGD, lr=0.1),
    per_device_batch_size=1,
    collate_fn=first_sample,
)
# Chunks of a text in columns, words first, with a rate of 5 that falls, and clipped gradients.
healthy["words_in_columns"] = _words_in_columns
# Texts are joined and their beginnings noted, labels come first, and the rate is 5.
healthy["joined_texts"] = lambda: script(
    Net(_of_bags, bags=nn.EmbeddingBag(20, 16), head=nn.Linear(16, 3)),
    None,
    texts(),
    train=partial(SGD, lr=5.0),
    step=_news,
    collate_fn=_joined,
    gradient_clip_norm=0.1,
)

# -- pictures and tables -----------------------------------------------------------------------------------------------


def _localised() -> Net:
    """A network that looks for the place of what it is to see, which begins with the whole picture."""

    def compute(net: Any, photos: Tensor) -> Tensor:
        grid = functional.affine_grid(net.place(photos).view(-1, 2, 3), list(photos.shape), align_corners=False)
        logits: Tensor = net.head(functional.grid_sample(photos, grid, align_corners=False))
        return logits

    place = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 6))
    last = place.get_submodule("3")
    nn.init.zeros_(last.get_parameter("weight"))
    last.get_parameter("bias").data.copy_(torch.tensor([1.0, 0, 0, 0, 1, 0]))
    return Net(compute, place=place, head=nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)))


def _small_and_large() -> TensorDataset:
    large = functional.avg_pool2d(torch.rand(160, 1, 18, 18, generator=seeded(1)), 3, 1)
    return TensorDataset(functional.avg_pool2d(large, 2), large)


def _powers() -> TensorDataset:
    values = torch.linspace(-3.14, 3.14, 400).unsqueeze(1)
    return TensorDataset(torch.cat([values, values**2, values**3], dim=1), values.sin())


def _standardised(values: Any) -> Tensor:
    values = np.asarray(values)
    return torch.tensor((values - values.mean(axis=0)) / values.std(axis=0).clip(1e-6), dtype=torch.float32)


def _parts(inputs: Tensor, targets: Tensor) -> dict[str, Any]:
    rest = len(inputs) // 5
    train, evaluation = random_split(TensorDataset(inputs, targets), [len(inputs) - rest, rest], seeded(1))
    return {"data": train, "eval_dataset": evaluation}


def _as_they_are(inputs: Any) -> Tensor:
    return torch.tensor(inputs, dtype=torch.float32)


def _of_scikit_learn(loader: str, kinds: int, *, scale: Callable[[Any], Tensor] = _standardised) -> dict[str, Any]:
    datasets = pytest.importorskip("sklearn.datasets")
    inputs, targets = getattr(datasets, loader)(return_X_y=True)
    return _parts(scale(inputs), torch.as_tensor(targets) if kinds else _standardised(targets).view(len(targets), -1))


def _two_moons() -> Script:
    datasets = pytest.importorskip("sklearn.datasets")
    inputs, targets = datasets.make_moons(400, noise=0.1, random_state=0)
    model = followed_by(perceptron(2, 1), layer(lambda logits: logits.squeeze(1)))
    return classes(model, nn.BCEWithLogitsLoss(), **_parts(_as_they_are(inputs), _as_they_are(targets)))


# The layers that find the place begin with the identity.
healthy["spatial_transformer"] = lambda: images(_localised(), eval_dataset=pictures(64, seed=2))
# Small pictures are made large by a shuffle of pixels.
healthy["super_resolution"] = lambda: numbers(
    nn.Sequential(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.Conv2d(32, 4, 3, padding=1), nn.PixelShuffle(2)),
    data=_small_and_large(),
    per_device_batch_size=16,
)
# Powers of a number predict its sine, with all samples in a batch.
healthy["fit_of_a_sine"] = lambda: numbers(
    nn.Linear(3, 1), data=_powers(), train=partial(Adam, lr=1e-2), num_epochs=200, per_device_batch_size=400
)
# Centimetres, which are small enough as they are.
healthy["iris_as_measured"] = lambda: classes(perceptron(4, 3), **_of_scikit_learn("load_iris", 3, scale=_as_they_are))
# Standardised features of few samples.
healthy["wines"] = lambda: classes(perceptron(13, 3), **_of_scikit_learn("load_wine", 3))
# Model and features in double precision.
healthy["tumours_in_float64"] = lambda: classes(
    perceptron(30, 2).double(),
    **_of_scikit_learn("load_breast_cancer", 2, scale=lambda inputs: _standardised(inputs).double()),
)
# Brightness from 0 to 16, without a change.
healthy["digits_of_scikit_learn"] = lambda: classes(
    perceptron(64, 10, hidden=64),
    train=partial(AdamW, lr=1e-3),
    **_of_scikit_learn("load_digits", 10, scale=_as_they_are),
)
# A regression with features of a twentieth, as they are delivered, and standardised targets.
healthy["progress_of_diabetes"] = lambda: numbers(
    perceptron(10, 1),
    nn.HuberLoss(),
    train=partial(AdamW, lr=1e-2),
    **_of_scikit_learn("load_diabetes", 0, scale=_as_they_are),
)
# Three targets of twenty samples, sixteen of which are for training.
healthy["twenty_athletes"] = lambda: numbers(perceptron(3, 3), **_of_scikit_learn("load_linnerud", 0))
# A network with a single output for two classes that no line divides.
healthy["two_moons"] = _two_moons
