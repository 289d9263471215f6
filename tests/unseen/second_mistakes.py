"""Forty programs with one planted mistake each; with ``right=True``, the same without it."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import KFold
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import LambdaLR, LinearLR
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, WeightedRandomSampler, random_split
from typing_extensions import override

from pa_callbacks_extra import EarlyStoppingCallback, ModelEmaCallback
from pa_core import DEFAULT_CALLBACKS, SaveBestModelCallback, Trainer
from tests.unseen.corpus import Corpus, Program, digits, parts, program

mistake = Corpus()
PROGRAMS = mistake.cases

IN_PROCESS = {"num_workers": 0}


# Inputs and preprocessing


@mistake("scale", "standardi", "normali", "deviation", "magnitude", "large")
def mean_and_deviation_swapped(right: bool = False) -> Program:
    """The inputs are standardised with mean and deviation in each other's place, and come out in the hundreds."""
    readings = torch.randn(800, 12) * 5 + torch.linspace(-0.08, 0.08, 12)
    faulty = (readings[:, :4].sum(1) > readings[:, 4:6].sum(1)).long()
    mean, deviation = readings.mean(0), readings.std(0)
    if not right:
        mean, deviation = deviation, mean
    train_data, eval_data = parts((readings - mean) / deviation, faulty)
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 2))
    return program(Trainer(model, nn.CrossEntropyLoss(), AdamW(model.parameters(), lr=1e-3)), train_data, 10, eval_data)


@mistake("-999", "missing", "sentinel", "outlier", "placeholder")
def missing_values_are_numbers(right: bool = False) -> Program:
    """Missing values stay in the table as -999, so that standardising squeezes the real values into a thousandth."""
    table = torch.randn(1000, 8)
    label = (table[:, 0] * table[:, 1] + table[:, 2] > 0).long()
    is_missing = torch.rand(table.shape) < 0.1
    table[is_missing] = math.nan if right else -999.0
    mean = table[:800].nanmean(0)
    deviation = (table[:800] - mean).square().nanmean(0).sqrt()
    train_data, eval_data = parts(((table - mean) / deviation).nan_to_num(0.0), label)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
    return program(Trainer(model, nn.CrossEntropyLoss(), Adam(model.parameters(), lr=3e-3)), train_data, 15, eval_data)


@mistake("reshape", "permute", "channel", "scrambl", "layout", "neighbour")
def channels_by_reshape(right: bool = False) -> Program:
    """Images of height, width, channels are brought to channels first by reshape, not permute, which scrambles them."""
    colours = torch.randint(3, (600,))
    pixels = torch.full((600, 16, 16, 3), 90.0)
    for image, colour in zip(pixels, colours.tolist(), strict=True):
        top, left = torch.randint(0, 11, (2,)).tolist()
        image[top : top + 5, left : left + 5, colour] = 220.0
    pixels = (pixels + 12 * torch.randn(pixels.shape)).clamp(0, 255) / 255
    images = pixels.permute(0, 3, 1, 2).contiguous() if right else pixels.reshape(-1, 3, 16, 16)
    train_data, eval_data = parts(images, colours)
    layers = nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3))
    return program(Trainer(model, nn.CrossEntropyLoss(), Adam(model.parameters(), lr=5e-3)), train_data, 5, eval_data)


@mistake("unk", "unknown", "same token", "one token", "vocab", "share of the tokens", "same value")
def words_all_unknown(right: bool = False) -> Program:
    """The vocabulary is in lower case and the texts are not, so nearly every word is the token for unknown words."""
    good, bad = ["Great", "Lovely", "Superb", "Enjoyable"], ["Awful", "Boring", "Dull", "Tedious"]
    other = ["Film", "Plot", "Actor", "Scene", "Story", "Music", "Director", "Ending", "and", "the"]
    vocabulary = {word.lower(): number for number, word in enumerate(good + bad + other, start=2)}

    def tokens(is_good: int) -> list[int]:
        words = [other[i] for i in torch.randint(len(other), (10,)).tolist()]
        words[int(torch.randint(10, ()))] = (good if is_good else bad)[int(torch.randint(4, ()))]
        return [vocabulary.get(word.lower() if right else word, 1) for word in words]

    labels = torch.randint(2, (600,))
    train_data, eval_data = parts(torch.tensor([tokens(label) for label in labels.tolist()]), labels)
    model = nn.Sequential(nn.EmbeddingBag(len(vocabulary) + 2, 16), nn.Linear(16, 2))
    return program(Trainer(model, nn.CrossEntropyLoss(), Adam(model.parameters(), lr=0.02)), train_data, 8, eval_data)


@mistake("__len__", "length", "never", "rows", "part of the", "unused", "of the samples")
def length_in_batches(right: bool = False) -> Program:
    """The dataset's length is its number of batches, as in Keras, so all but the first samples are never trained on."""
    pixels, names = digits()

    class Digits(Dataset[tuple[Tensor, Tensor]]):
        def __init__(self, pixels: Tensor, names: Tensor, batch_size: int) -> None:
            self.pixels, self.names, self.batch_size = pixels, names, batch_size

        def __len__(self) -> int:
            return len(self.names) if right else math.ceil(len(self.names) / self.batch_size)

        @override
        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            return self.pixels[index], self.names[index]

    train_data, eval_data = Digits(pixels[:1400], names[:1400], 32), TensorDataset(pixels[1400:], names[1400:])
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    trainer = Trainer(model, nn.CrossEntropyLoss(), AdamW(model.parameters(), lr=1e-3))
    return program(trainer, train_data, 15, eval_data, train_dataloader_kwargs=IN_PROCESS)


# Augmentation and seeds


@mistake("in place", "in-place", "modif", "changes the", "changed the", "drift", "overwrit", "stored")
def augmented_in_place(right: bool = False) -> Program:
    """The augmentation adds its noise to the stored image itself, so the data get noisier with every epoch."""
    pixels, names = digits()

    class NoisyDigits(Dataset[tuple[Tensor, Tensor]]):
        def __len__(self) -> int:
            return 1000

        @override
        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            image = pixels[index].clone() if right else pixels[index]
            image += 0.4 * torch.randn(64)
            return image, names[index]

    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    trainer = Trainer(model, nn.CrossEntropyLoss(), Adam(model.parameters(), lr=1e-3))
    eval_data = TensorDataset(pixels[1000:].clone(), names[1000:])
    return program(trainer, NoisyDigits(), 20, eval_data, train_dataloader_kwargs=IN_PROCESS)


@mistake("seed", "same augmentation", "same random", "generator")
def seed_for_each_sample(right: bool = False) -> Program:
    """The dataset sets the seed in each __getitem__, so every sample of every epoch gets the same random shift."""
    pixels, names = digits()

    class ShiftedDigits(Dataset[tuple[Tensor, Tensor]]):
        def __len__(self) -> int:
            return 1200

        @override
        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            if not right:
                torch.manual_seed(42)
            return self.shift(pixels[index]), names[index]

        @staticmethod
        def shift(image: Tensor) -> Tensor:
            down, along = torch.randint(-1, 2, (2,)).tolist()
            return image.view(8, 8).roll((down, along), (0, 1)).flatten()

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    trainer = Trainer(model, nn.CrossEntropyLoss(), Adam(model.parameters(), lr=2e-3))
    shifted = [ShiftedDigits.shift(image) for image in pixels[1200:]]
    eval_data = TensorDataset(torch.stack(shifted), names[1200:])
    return program(trainer, ShiftedDigits(), 15, eval_data, train_dataloader_kwargs=IN_PROCESS)


# Labels and targets


@mistake("align", "permut", "unrelated", "relation", "chance", "belong", "no better", "constant")
def labels_shuffled_apart(right: bool = False) -> Program:
    """Inputs and labels are shuffled by two different permutations, so they do not belong together."""
    pixels, names = digits()
    order = torch.randperm(len(names))
    pixels = pixels[order]
    if not right:
        order = torch.randperm(len(names))
    names = names[order]
    train_data, eval_data = parts(pixels, names)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
    return program(Trainer(model, nn.CrossEntropyLoss(), AdamW(model.parameters(), lr=2e-3)), train_data, 5, eval_data)


@mistake("uint8", "255", "256", "overflow", "never occur", "no label", "without a sample", "no sample")
def labels_overflow(right: bool = False) -> Program:
    """300 classes are stored as uint8, so classes 256 to 299 are counted as 0 to 43."""
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(300, 48))
    labels = generator.permutation(np.repeat(np.arange(300), 10))
    features = torch.tensor(centres[labels] + 0.3 * generator.normal(size=(3000, 48)), dtype=torch.float32)
    stored = labels.astype(np.int16 if right else np.uint8)
    train_data, eval_data = parts(features, torch.from_numpy(stored.astype(np.int64)))
    model = nn.Sequential(nn.Linear(48, 256), nn.ReLU(), nn.Linear(256, 300))
    trainer = Trainer(model, nn.CrossEntropyLoss(), Adam(model.parameters(), lr=2e-3))
    return program(trainer, train_data, 8, eval_data, per_device_batch_size=64)


@mistake("-1", "collapse", "no loss", "zero loss", "costs nothing", "cosineembedding")
def pairs_labelled_zero(right: bool = False) -> Program:
    """Pairs have labels 0 and 1 for a loss that wants -1 and 1: a 0 costs nothing, and all embeddings end up equal."""
    pixels, names = digits()
    first, second = torch.randint(len(names), (2, 3000))
    second[:1000] = torch.stack([(names == names[i]).nonzero()[i % 100, 0] for i in first[:1000]])
    is_same = (names[first] == names[second]).long()
    order = torch.randperm(3000)
    pairs, is_same = torch.stack([pixels[first], pixels[second]], dim=1)[order], is_same[order]
    train_data, eval_data = parts(pairs, 2 * is_same - 1 if right else is_same)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
    criterion = nn.CosineEmbeddingLoss(margin=0.2)

    def loss_of_pairs(embeddings: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = criterion(embeddings[:, 0], embeddings[:, 1], targets)
        return loss

    trainer = Trainer(model, loss_of_pairs, Adam(model.parameters(), lr=1e-3))
    return program(trainer, train_data, 6, eval_data, per_device_batch_size=64)


@mistake("sigmoid", "range", "bounded", "outside", "reach", "pixel", "between 0 and 1")
def boxes_in_pixels(right: bool = False) -> Program:
    """Corners of boxes are in pixels, 0 to 64, and the model ends in a sigmoid, which never leaves 0 to 1."""
    corners = torch.randint(0, 40, (500, 2))
    sizes = torch.randint(8, 24, (500, 2))
    boxes = torch.cat([corners, corners + sizes], dim=1)
    images = torch.zeros(500, 1, 64, 64)
    for image, (left, top, end, bottom) in zip(images, boxes.tolist(), strict=True):
        image[0, top:bottom, left:end] = 1.0
    targets = boxes / 64 if right else boxes.float()
    train_data, eval_data = parts(images, targets)
    layers = nn.AvgPool2d(4), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 256, 64), nn.ReLU()
    model = nn.Sequential(*layers, nn.Linear(64, 4), nn.Sigmoid())
    return program(Trainer(model, nn.SmoothL1Loss(), Adam(model.parameters(), lr=1e-3)), train_data, 8, eval_data)


# Splits and leakage


@mistake(
    "duplicate",
    "in both",
    "overlap",
    "leak",
    "copies",
    "copy",
    "nearly the same",
    "nearly identical",
    "near-",
    "nearest",
)
def oversampled_before_split(right: bool = False) -> Program:
    """The rare class is oversampled, with a little noise, before the split: copies of trained samples are evaluated."""
    rare, common = torch.randn(40, 20) + 0.25, torch.randn(800, 20)

    def oversampled(rows: Tensor, count: int) -> Tensor:
        return rows[torch.randint(len(rows), (count,))] + 0.01 * torch.randn(count, rows.shape[1])

    def labelled(rare: Tensor, common: Tensor) -> TensorDataset:
        labels = torch.cat([torch.ones(len(rare)), torch.zeros(len(common))]).long()
        return TensorDataset(torch.cat([rare, common]), labels)

    train_data: Dataset[Any]
    eval_data: Dataset[Any]
    if right:
        train_data = labelled(oversampled(rare[:30], 600), common[:600])
        eval_data = labelled(oversampled(rare[30:], 200), common[600:])
    else:
        train_data, eval_data = random_split(labelled(oversampled(rare, 800), common), [0.75, 0.25])
    model = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 2))
    return program(Trainer(model, nn.CrossEntropyLoss(), AdamW(model.parameters(), lr=3e-3)), train_data, 15, eval_data)


@mistake("overlap", "leak", "window", "neighbour", "near-", "nearly the same", "nearest", "duplicate", "in both")
def overlapping_windows(right: bool = False) -> Program:
    """Overlapping windows of a series are split at random: evaluated ones have neighbours a step away in training."""
    series = torch.randn(1100).cumsum(0) / 10
    windows = series.unfold(0, 32, 1)[:-16]
    rises = (series[47:] > series[31:-16]).long()[: len(windows)]
    dataset = TensorDataset(windows, rises)
    train_data: Dataset[Any]
    eval_data: Dataset[Any]
    if right:
        train_data, eval_data = Subset(dataset, range(760)), Subset(dataset, range(820, len(dataset)))
    else:
        train_data, eval_data = random_split(dataset, [0.75, 0.25])
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
    return program(Trainer(model, nn.CrossEntropyLoss(), AdamW(model.parameters(), lr=2e-3)), train_data, 40, eval_data)


@mistake("already", "trained before", "earlier run", "fold", "leak", "before training")
def folds_share_a_model(right: bool = False) -> Program:
    """The model of the second fold is the one that the first fold trained, on what the second evaluates."""
    pixels, names = digits()
    noisy = torch.where(torch.rand(len(names)) < 0.2, torch.randint(10, (len(names),)), names)
    dataset = TensorDataset(pixels, noisy)

    def make_model() -> nn.Sequential:
        return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

    model = make_model()
    folds = [
        (Subset(dataset, train_rows.tolist()), Subset(dataset, eval_rows.tolist()))
        for train_rows, eval_rows in KFold(3, shuffle=True, random_state=0).split(pixels)
    ]
    trainer = Trainer(model, nn.CrossEntropyLoss(), AdamW(model.parameters(), lr=3e-3), callbacks=[])
    trainer.train(folds[0][0], num_epochs=20, eval_dataset=folds[0][1], per_device_batch_size=32)
    if right:
        model = make_model()
    trainer = Trainer(model, nn.CrossEntropyLoss(), AdamW(model.parameters(), lr=3e-3), callbacks=[])
    train_data, eval_data = folds[1]
    return program(trainer, train_data, 20, eval_data)


# Losses


@mistake("log_softmax", "log-prob", "logarithm", "log prob", "kldiv", "negative")
def kl_of_probabilities(right: bool = False) -> Program:
    """KLDivLoss is given the student's probabilities, where it wants their logarithms."""
    pixels, names = digits()
    soft = (4 * functional.one_hot(names, 10) + torch.randn(len(names), 10)).softmax(dim=1)
    train_data, eval_data = parts(pixels, soft)
    student = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    divergence = nn.KLDivLoss(reduction="batchmean")

    def distillation_loss(logits: Tensor, taught: Tensor) -> Tensor:
        loss: Tensor = divergence(logits.log_softmax(dim=1) if right else logits.softmax(dim=1), taught)
        return loss

    return program(Trainer(student, distillation_loss, Adam(student.parameters(), lr=3e-3)), train_data, 10, eval_data)


@mistake("pos_weight", "imbalance", "rare", "positive")
def positive_weight_inverted(right: bool = False) -> Program:
    """pos_weight is positives by negatives instead of negatives by positives, so the rare class counts even less."""
    is_fraud = (torch.rand(3000) < 0.06).float()
    features = torch.randn(3000, 10) + is_fraud[:, None] * 0.8
    positives, negatives = is_fraud.sum(), (1 - is_fraud).sum()
    pos_weight = negatives / positives if right else positives / negatives

    class FraudTrainer(Trainer):
        @override
        def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
            output = super().calculate_eval_batch_loss(batch)
            is_found = (output["model_outputs"] > 0) & (batch[1] == 1)
            self.log("found", is_found.float().mean())
            return output

    train_data, eval_data = parts(features, is_fraud[:, None])
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
    trainer = FraudTrainer(model, nn.BCEWithLogitsLoss(pos_weight=pos_weight), Adam(model.parameters(), lr=2e-3))
    return program(trainer, train_data, 6, eval_data, per_device_batch_size=64)


@mistake("multi-label", "multilabel", "multi-hot", "several", "sum to", "sigmoid", "bce", "binary")
def tags_in_cross_entropy(right: bool = False) -> Program:
    """Samples with several tags at once are trained with softmax cross entropy, whose targets must sum to one."""
    topics = torch.randn(6, 30)
    tags = (torch.rand(1500, 6) < 0.35).float()
    texts = tags @ topics + 0.3 * torch.randn(1500, 30)

    class TagTrainer(Trainer):
        @override
        def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
            output = super().calculate_eval_batch_loss(batch)
            self.log("accuracy", ((output["model_outputs"].sigmoid() > 0.5) == (batch[1] > 0.5)).float().mean())
            return output

    train_data, eval_data = parts(texts, tags)
    model = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 6))
    criterion = nn.BCEWithLogitsLoss() if right else nn.CrossEntropyLoss()
    return program(TagTrainer(model, criterion, Adam(model.parameters(), lr=3e-3)), train_data, 8, eval_data)


@mistake(" sign", "minus", "1 -", "maximi", "wrong way", "higher for", "perfect", "opposite", "better")
def overlap_minimised(right: bool = False) -> Program:
    """The loss of the segmentation is the overlap itself, not 1 minus it, so training minimises the overlap."""
    masks = torch.zeros(300, 1, 24, 24)
    for mask in masks:
        top, left, height, width = (*torch.randint(0, 12, (2,)).tolist(), *torch.randint(5, 12, (2,)).tolist())
        mask[0, top : top + height, left : left + width] = 1.0
    images = masks + 0.5 * torch.randn(masks.shape)

    def dice_loss(logits: Tensor, masks: Tensor) -> Tensor:
        filled = logits.sigmoid()
        shared = (filled * masks).sum(dim=(1, 2, 3))
        dice = (2 * shared + 1) / (filled.sum(dim=(1, 2, 3)) + masks.sum(dim=(1, 2, 3)) + 1)
        return 1 - dice.mean() if right else dice.mean()

    train_data, eval_data = parts(images, masks)
    layers = nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()
    model = nn.Sequential(*layers, nn.Conv2d(8, 1, 1))
    trainer = Trainer(model, dice_loss, Adam(model.parameters(), lr=5e-3))
    return program(trainer, train_data, 6, eval_data, per_device_batch_size=16)


@mistake("temperature", "flat", "uniform", "range of the logits", "log(", "floor", "cannot fall", "spread")
def temperature_multiplied(right: bool = False) -> Program:
    """Similarities between -1 and 1 are multiplied by the temperature instead of divided, so the softmax stays flat."""
    meanings = torch.randn(1200, 8)
    images, captions = meanings @ torch.randn(8, 40), meanings @ torch.randn(8, 40)
    temperature = 0.07

    class MatchingTrainer(Trainer):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            of_images, of_captions = (functional.normalize(one, dim=1) for one in self.model(*batch))
            similarity = of_images @ of_captions.T
            logits = similarity / temperature if right else similarity * temperature
            loss = functional.cross_entropy(logits, torch.arange(len(logits), device=logits.device))
            return {"loss": loss, "model_outputs": logits, "batch_size": len(logits)}

        @override
        def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
            return self.calculate_train_batch_loss(batch)

    class TwoTowers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.images, self.captions = nn.Linear(40, 16), nn.Linear(40, 16)

        @override
        def forward(self, images: Tensor, captions: Tensor) -> tuple[Tensor, Tensor]:
            return self.images(images), self.captions(captions)

    train_data, eval_data = parts(images, captions)
    model = TwoTowers()
    trainer = MatchingTrainer(model, None, AdamW(model.parameters(), lr=3e-3))
    kwargs = {"drop_last": True}
    return program(
        trainer,
        train_data,
        10,
        eval_data,
        per_device_batch_size=64,
        train_dataloader_kwargs=kwargs,
        eval_dataloader_kwargs=kwargs,
    )


@mistake(
    "noise",
    "unrelated",
    "relation",
    "unpredictable",
    "independent",
    "not learn",
    "does not fall",
    "no better",
    "constant",
)
def noise_drawn_twice(right: bool = False) -> Program:
    """The noise to be predicted is drawn again instead of being the noise in the input, so nothing can be learnt."""
    angle = 3 * torch.rand(2000) * math.pi
    points = torch.stack([angle * angle.cos(), angle * angle.sin()], dim=1) / 5

    class DiffusionTrainer(Trainer):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            (clean,) = batch
            time = torch.rand(len(clean), 1, device=clean.device)
            noise = torch.randn_like(clean)
            noisy = (1 - time).sqrt() * clean + time.sqrt() * noise
            predicted = self.model(torch.cat([noisy, time], dim=1))
            target = noise if right else torch.randn_like(clean)
            loss = functional.mse_loss(predicted, target)
            return {"loss": loss, "model_outputs": predicted, "batch_size": len(clean)}

    model = nn.Sequential(nn.Linear(3, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 2))
    trainer = DiffusionTrainer(model, None, Adam(model.parameters(), lr=1e-3))
    return program(trainer, TensorDataset(points), 10, per_device_batch_size=64)


# Class imbalance and sampling


@mistake("sampler", "never", "distinct", "few samples", "same samples", "again and again", "of the samples")
def sampler_of_class_weights(right: bool = False) -> Program:
    """The sampler gets one weight for each class, not for each sample, so it draws the first two samples alone."""
    data, malignant = load_breast_cancer(return_X_y=True)
    rows = torch.tensor(data, dtype=torch.float32)
    rows, labels = (rows - rows.mean(0)) / rows.std(0), torch.tensor(malignant)
    train_data, eval_data = TensorDataset(rows[:450], labels[:450]), TensorDataset(rows[450:], labels[450:])
    class_weights = 1.0 / torch.bincount(labels[:450])
    weights = class_weights[labels[:450]] if right else class_weights
    sampler = WeightedRandomSampler(weights.tolist(), num_samples=len(train_data))
    loader = DataLoader(train_data, batch_size=32, sampler=sampler)
    model = nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 2))
    trainer = Trainer(model, nn.CrossEntropyLoss(), AdamW(model.parameters(), lr=1e-3))
    return program(trainer, loader, 10, eval_data, per_device_batch_size=None)


# Models, initialisation and masks


@mistake("symmetr", "identical", "same value", "same weight", "constant", "initialis", "initializ", "all equal")
def weights_all_equal(right: bool = False) -> Program:
    """All weights start at the same constant, so all units of a layer compute and learn the same."""
    pixels, names = digits()
    train_data, eval_data = parts(pixels, names)

    def initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            if right:
                nn.init.normal_(module.weight, std=0.05)
            else:
                nn.init.constant_(module.weight, 0.05)
            nn.init.zeros_(module.bias)

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    model.apply(initialise)
    return program(Trainer(model, nn.CrossEntropyLoss(), Adam(model.parameters(), lr=1e-3)), train_data, 8, eval_data)


@mistake(
    "position",
    "place in the batch",
    "order of the batch",
    "other samples",
    "index in the batch",
    "same batch",
    "depends on the batch",
    "mixes",
)
def positions_along_the_batch(right: bool = False) -> Program:
    """The positional encoding, made for sequences first, is added to batches first, and codes places in the batch."""
    tokens = torch.randint(2, 12, (1500, 16))
    places = torch.stack([torch.randperm(16)[:2] for _ in range(1500)])
    tokens.scatter_(1, places, torch.tensor([[0, 1]]).expand(1500, 2))
    label = (places[:, 0] < places[:, 1]).long()

    class Encoder(nn.Module):
        def __init__(self, width: int = 32) -> None:
            super().__init__()
            angles = torch.arange(512)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(1e4) / width))
            table = torch.stack([angles.sin(), angles.cos()], dim=2).view(512, 1, width)
            self.register_buffer("table", table)
            self.tokens = nn.Embedding(12, width)
            self.layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
            self.head = nn.Linear(width, 2)

        @override
        def forward(self, tokens: Tensor) -> Tensor:
            hidden = self.tokens(tokens)
            table: Tensor = self.get_buffer("table")
            hidden = hidden + (table[: hidden.size(1), 0] if right else table[: hidden.size(0)])
            logits: Tensor = self.head(self.layer(hidden).mean(dim=1))
            return logits

    train_data, eval_data = parts(tokens, label)
    model = Encoder()
    return program(Trainer(model, nn.CrossEntropyLoss(), Adam(model.parameters(), lr=2e-3)), train_data, 15, eval_data)


@mistake("causal", "future", "next token", "ahead", "later", "answer", "mask")
def causal_mask_missing(right: bool = False) -> Program:
    """A model of the next token has no causal mask, so it reads the answer from the next place."""
    chain = torch.full((8, 8), 0.04).scatter_(1, torch.randint(8, (8, 2)), 0.4)
    text = torch.zeros(800, 25, dtype=torch.long)
    for place in range(1, 25):
        text[:, place] = torch.multinomial(chain[text[:, place - 1]], 1)[:, 0]

    class LanguageModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(8, 32), nn.Embedding(24, 32)
            self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
            self.head = nn.Linear(32, 8)

        @override
        def forward(self, tokens: Tensor) -> Tensor:
            length = tokens.shape[1]
            hidden = self.tokens(tokens) + self.places.weight[:length]
            mask = nn.Transformer.generate_square_subsequent_mask(length) if right else None
            logits: Tensor = self.head(self.layer(hidden, src_mask=mask))
            return logits.transpose(1, 2)

    train_data, eval_data = parts(text[:, :-1], text[:, 1:])
    model = LanguageModel()
    return program(Trainer(model, nn.CrossEntropyLoss(), Adam(model.parameters(), lr=3e-3)), train_data, 15, eval_data)


@mistake("padding", "mask", "ignored", "no effect", "does not depend")
def padding_mask_inverted(right: bool = False) -> Program:
    """The key padding mask is True at the words, but it must be True at the padding: attention sees padding only."""
    label = torch.randint(2, (1200,))
    tokens = torch.randint(4, 30, (1200, 12))
    tokens[torch.arange(1200), torch.randint(1, 5, (1200,))] = 2 + label
    tokens[torch.arange(12) >= torch.randint(6, 12, (1200, 1))] = 0
    tokens[:, 0] = 1

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(30, 32, padding_idx=0)
            self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
            self.head = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 2))

        @override
        def forward(self, tokens: Tensor) -> Tensor:
            mask = tokens == 0 if right else tokens != 0
            words = self.tokens(tokens)
            seen, _ = self.attention(words[:, :1], words, words, key_padding_mask=mask, need_weights=False)
            logits: Tensor = self.head(words[:, 0] + seen[:, 0])
            return logits

    train_data, eval_data = parts(tokens, label)
    model = Classifier()
    return program(Trainer(model, nn.CrossEntropyLoss(), Adam(model.parameters(), lr=3e-3)), train_data, 10, eval_data)


@mistake("padding_idx", "padding")
def padding_index_of_a_word(right: bool = False) -> Program:
    """padding_idx is 1, which is the word 'not', and padding is 0: the embedding of 'not' stays zero."""
    vocabulary = ["<pad>", "not", "a", "good", "film", "i", "did", "like", "it", "plot", "actor", "scene"]
    tokens = torch.randint(2, len(vocabulary), (1000, 10))
    is_negated = torch.randint(2, (1000,))
    tokens[is_negated == 1, 2] = vocabulary.index("not")
    tokens[torch.arange(10) >= torch.randint(4, 11, (1000, 1))] = 0

    class Summed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(len(vocabulary), 16, padding_idx=0 if right else 1)
            self.head = nn.Sequential(nn.ReLU(), nn.Linear(16, 2))

        @override
        def forward(self, tokens: Tensor) -> Tensor:
            logits: Tensor = self.head(self.words(tokens).sum(dim=1))
            return logits

    train_data, eval_data = parts(tokens, is_negated)
    model = Summed()
    return program(Trainer(model, nn.CrossEntropyLoss(), Adam(model.parameters(), lr=0.01)), train_data, 10, eval_data)


@mistake("dropout", "self.training", "eval mode", "evaluation mode", "random in", "is random")
def dropout_always_on(right: bool = False) -> Program:
    """functional.dropout is called without training=self.training, so evaluation drops half of the units too."""
    pixels, names = digits()

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = nn.Linear(64, 48), nn.Linear(48, 48), nn.Linear(48, 10)

        @override
        def forward(self, pixels: Tensor) -> Tensor:
            is_on = self.training if right else True
            hidden = functional.dropout(self.first(pixels).relu(), 0.5, training=is_on)
            hidden = functional.dropout(self.second(hidden).relu(), 0.5, training=is_on)
            logits: Tensor = self.last(hidden)
            return logits

    train_data, eval_data = parts(pixels, names)
    model = Network()
    return program(Trainer(model, nn.CrossEntropyLoss(), Adam(model.parameters(), lr=2e-3)), train_data, 12, eval_data)


@mistake("momentum", "running", "statistics")
def batch_norm_too_slow(right: bool = False) -> Program:
    """The batch norm has momentum 0.001, for TensorFlow's 0.999: at the end its statistics are the initial ones."""
    sensors = 40 + 10 * torch.randn(1000, 6)
    label = (sensors[:, 0] + sensors[:, 1] > sensors[:, 2] + 40).long()
    train_data, eval_data = parts(sensors, label)
    momentum = 0.1 if right else 0.001
    model = nn.Sequential(nn.BatchNorm1d(6, momentum=momentum), nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))
    return program(Trainer(model, nn.CrossEntropyLoss(), Adam(model.parameters(), lr=5e-3)), train_data, 3, eval_data)


# Freezing


@mistake("requires_grad", "frozen", "freeze")
def frozen_by_an_attribute(right: bool = False) -> Program:
    """The backbone is frozen by `backbone.requires_grad = False`, an attribute that nobody reads, so it is trained."""
    pixels, names = digits()
    many, few, rest = range(1200), range(1200, 1230), range(1230, len(names))
    backbone = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
    pretrained = nn.Sequential(backbone, nn.Linear(32, 10))
    first = Trainer(pretrained, nn.CrossEntropyLoss(), Adam(pretrained.parameters(), lr=2e-3), callbacks=[])
    first.train(Subset(TensorDataset(pixels, names), many), num_epochs=15, per_device_batch_size=32)

    is_odd = TensorDataset(pixels, names % 2)
    model = nn.Sequential(backbone, nn.Linear(32, 2))
    if right:
        backbone.requires_grad_(False)
    else:
        backbone.requires_grad = False  # type: ignore[assignment]  # pyright: ignore[reportArgumentType]  # the mistake
    trainer = Trainer(model, nn.CrossEntropyLoss(), Adam(model.parameters(), lr=0.02))
    return program(trainer, Subset(is_odd, few), 20, Subset(is_odd, rest), per_device_batch_size=10)


# Optimizers, schedules, accumulation and clipping


@mistake("learning_rate", "group", "unknown key", "ignored")
def group_key_misspelt(right: bool = False) -> Program:
    """The head's group says `learning_rate`, which torch ignores, so the head trains at the rate of the backbone."""
    pixels, names = digits()
    train_data, eval_data = parts(pixels, names)
    backbone, head = nn.Sequential(nn.Linear(64, 64), nn.ReLU()), nn.Linear(64, 10)
    model = nn.Sequential(backbone, head)
    groups: list[dict[str, Any]] = [
        {"params": backbone.parameters()},
        {"params": head.parameters(), "lr" if right else "learning_rate": 5e-3},
    ]
    optimizer = AdamW(groups, lr=1e-5)
    return program(Trainer(model, nn.CrossEntropyLoss(), optimizer), train_data, 5, eval_data)


@mistake("lambda", "factor", "multipl", "learning rate", "squared")
def lambda_returns_the_rate(right: bool = False) -> Program:
    """The function of LambdaLR returns the learning rate itself, which torch multiplies by the optimizer's rate."""
    pixels, names = digits()
    train_data, eval_data = parts(pixels, names)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    rate = 1e-3

    def schedule(update: int) -> float:
        factor = min(1.0, (update + 1) / 20) * 0.995**update
        return factor if right else rate * factor

    trainer = Trainer(model, nn.CrossEntropyLoss(), AdamW(model.parameters(), lr=rate))
    return program(trainer, train_data, 6, eval_data, create_scheduler_fn=partial(LambdaLR, lr_lambda=schedule))


@mistake("warm", "never reach", "not reach", "total_iters", "longer than the run", "end of the run")
def warm_up_longer_than_the_run(right: bool = False) -> Program:
    """The warm-up takes 2,000 updates and the run has 270, so the rate never comes near the intended one."""
    pixels, names = digits()
    train_data, eval_data = parts(pixels, names)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    trainer = Trainer(model, nn.CrossEntropyLoss(), AdamW(model.parameters(), lr=2e-3))
    warm_up = partial(LinearLR, start_factor=0.001, total_iters=50 if right else 2000)
    return program(trainer, train_data, 6, eval_data, create_scheduler_fn=warm_up)


@mistake("accumul", "divid", "twice", "1/8", "eighth", "scaled")
def loss_divided_twice(right: bool = False) -> Program:
    """The step divides the loss by the accumulation steps, as the trainer does: gradients and reports are an eighth."""
    pixels, names = digits()
    accumulation = 8

    class AccumulatingTrainer(Trainer):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            inputs, targets = batch
            logits = self.model(inputs)
            loss = functional.cross_entropy(logits, targets)
            if not right:
                loss = loss / accumulation
            return {"loss": loss, "model_outputs": logits, "batch_size": len(targets)}

    train_data, eval_data = parts(pixels, names)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    trainer = AccumulatingTrainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.2, momentum=0.9))
    return program(trainer, train_data, 8, eval_data, per_device_batch_size=8, gradient_accumulation_steps=accumulation)


@mistake("clip")
def clipped_to_nothing(right: bool = False) -> Program:
    """Gradients are clipped to a norm of 0.001, so that plain SGD hardly moves the weights in the whole run."""
    pixels, names = digits()
    train_data, eval_data = parts(pixels, names)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    trainer = Trainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1))
    return program(trainer, train_data, 8, eval_data, gradient_clip_norm=1.0 if right else 1e-3)


# Evaluation, metrics and callbacks


@mistake("argmax", "always 0", "one column", "constant", "accuracy")
def argmax_of_one_column(right: bool = False) -> Program:
    """Accuracy takes the argmax of a single logit, which is always 0, so it reports the share of the negatives."""
    data, malignant = load_breast_cancer(return_X_y=True)
    rows = torch.tensor(data, dtype=torch.float32)
    rows, labels = (rows - rows.mean(0)) / rows.std(0), torch.tensor(malignant, dtype=torch.float32)

    class CancerTrainer(Trainer):
        @override
        def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
            output = super().calculate_eval_batch_loss(batch)
            logits = output["model_outputs"]
            predicted = (logits[:, 0] > 0).long() if right else logits.argmax(dim=1)
            self.log("accuracy", (predicted == batch[1][:, 0]).float().mean())
            return output

    train_data, eval_data = parts(rows, labels[:, None])
    model = nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 1))
    save_best = SaveBestModelCallback("best.pt", watch_metric="eval_accuracy_epoch", greater_is_better=True)
    optimizer = Adam(model.parameters(), lr=1e-3)
    trainer = CancerTrainer(model, nn.BCEWithLogitsLoss(), optimizer, callbacks=[*DEFAULT_CALLBACKS, save_best])
    return program(trainer, train_data, 6, eval_data)


@mistake("early", "threshold", "patience", "improve")
def stopped_by_its_threshold(right: bool = False) -> Program:
    """Early stopping wants the loss to fall by 0.01, and all of the loss is less than that, so the run ends at once."""
    returns = 0.1 * torch.sin(torch.arange(1000) / 5) + 0.01 * torch.randn(1000)
    windows = torch.stack([returns.roll(-lag) for lag in range(12)], dim=1)[:-12]
    train_data, eval_data = parts(windows * 10, returns[12:, None], share=0.7)
    last = nn.Linear(32, 1)
    model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), last)
    nn.init.normal_(last.weight, std=0.01)
    threshold = 1e-6 if right else 0.01
    stop = EarlyStoppingCallback(early_stopping_patience=2, early_stopping_threshold=threshold)
    optimizer = SGD(model.parameters(), lr=0.002)
    trainer = Trainer(model, nn.MSELoss(), optimizer, callbacks=[*DEFAULT_CALLBACKS, stop])
    return program(trainer, train_data, 60, eval_data)


@mistake("averag", "0.9999", "ema_model", "modelema")
def average_too_slow(right: bool = False) -> Program:
    """The averaged model keeps 99.99 % of itself in each of 225 updates: at the end it is still the untrained one."""
    pixels, names = digits()
    train_data, eval_data = parts(pixels, names)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    average = ModelEmaCallback(decay=0.95 if right else 0.9999, save_path="ema.pt")
    optimizer = AdamW(model.parameters(), lr=2e-3)
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[*DEFAULT_CALLBACKS, average])
    return program(trainer, train_data, 5, eval_data)


# Several models


@mistake("no gradient", "without a gradient", "gets no", "detach", "requires_grad", "never change", "not trained")
def generator_detached(right: bool = False) -> Program:
    """The generated samples are detached once, for both losses, so the generator gets no gradient."""
    angle = torch.rand(2000) * 2 * math.pi
    circle = torch.stack([angle.cos(), angle.sin()], dim=1) + 0.05 * torch.randn(2000, 2)
    generator = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
    discriminator = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    of_discriminator = Adam(discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999))

    class GanTrainer(Trainer):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            (real,) = batch
            made = self.model(torch.randn(len(real), 4))
            fake = made if right else made.detach()
            of_discriminator.zero_grad()
            judged = functional.softplus(-discriminator(real)) + functional.softplus(discriminator(fake.detach()))
            judged.mean().backward()  # type: ignore[no-untyped-call]
            of_discriminator.step()
            loss = functional.softplus(-discriminator(fake)).mean()
            return {"loss": loss, "model_outputs": fake, "batch_size": len(real)}

    trainer = GanTrainer(generator, None, Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999)))
    return program(
        trainer, TensorDataset(circle), 20, per_device_batch_size=64, train_dataloader_kwargs={"drop_last": True}
    )


# Memory


@mistake("memory", "graph", "detach", "no_grad", "keeps", "grow")
def graphs_kept(right: bool = False) -> Program:
    """The step keeps a value of each batch with its graph, and so the activations of all batches of the run."""
    pixels, names = digits()

    class WatchingTrainer(Trainer):
        def __init__(self, *arguments: Any, **others: Any) -> None:
            super().__init__(*arguments, **others)
            self.norms: list[Tensor] = []

        @override
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            norm = self.model.get_submodule("0")(batch[0]).norm(dim=1).mean()
            self.norms.append(norm.detach() if right else norm)
            return super().calculate_train_batch_loss(batch)

    train_data, eval_data = parts(pixels, names)
    body = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh())
    model = nn.Sequential(body, nn.Linear(512, 10))
    trainer = WatchingTrainer(model, nn.CrossEntropyLoss(), AdamW(model.parameters(), lr=1e-3))
    return program(trainer, train_data, 5, eval_data, per_device_batch_size=64)


# Sequences


@mistake(
    "carried",
    "carries",
    "previous batch",
    "hidden state",
    "between batches",
    "batch before",
    "earlier batch",
    "remembers",
    "other samples",
    "other batches",
    "keeps a state",
    "depends on",
)
def state_carried_over(right: bool = False) -> Program:
    """The LSTM starts each batch with the state that the batch before left, though the samples are unrelated."""
    steps = torch.randn(1024, 12, 2)
    label = (steps.sum(dim=1)[:, 0] > 0).long()

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(2, 24, batch_first=True)
            self.head = nn.Linear(24, 2)
            self.state: tuple[Tensor, Tensor] | None = None

        @override
        def forward(self, steps: Tensor) -> Tensor:
            if right or (self.state is not None and self.state[0].shape[1] != len(steps)):
                self.state = None
            outputs, (hidden, cell) = self.lstm(steps, self.state)
            self.state = hidden.detach(), cell.detach()
            logits: Tensor = self.head(outputs[:, -1])
            return logits

    train_data, eval_data = parts(steps, label, share=0.75)
    model = Classifier()
    return program(Trainer(model, nn.CrossEntropyLoss(), Adam(model.parameters(), lr=5e-3)), train_data, 12, eval_data)
