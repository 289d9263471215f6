"""A third corpus of mistakes, of the kind that no error reports."""

from __future__ import annotations

import copy
import itertools
from functools import partial
from typing import Any

import torch
from sklearn.datasets import load_diabetes, load_wine
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import Dataset, TensorDataset, WeightedRandomSampler
from typing_extensions import override

from pa_core import DEFAULT_CALLBACKS, SaveBestModelCallback, Trainer
from tests.unseen.corpus import Corpus, Program, digits, parts, program

mistake = Corpus()
PROGRAMS = mistake.cases


def perceptron(inputs: int, outputs: int, hidden: int = 64) -> nn.Sequential:
    """Return a small network."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


class Classifier(Trainer[nn.Module]):
    """Logs the accuracy of its evaluations."""

    @override
    def calculate_eval_batch_loss(self, batch: Any) -> Any:
        """Log which share of the samples is classified rightly."""
        output = super().calculate_eval_batch_loss(batch)
        self.log("accuracy", (output["model_outputs"].argmax(1) == batch[1]).float().mean())
        return output


# Images


class NoisyDigits(Dataset[tuple[Tensor, Tensor]]):
    """Noisy scans, of which half are mirrored, and where the ink is."""

    def __init__(self, images: Tensor, training: bool, with_mask: bool) -> None:
        self.images, self.training, self.with_mask = images.view(-1, 1, 8, 8), training, with_mask

    def __len__(self) -> int:
        return len(self.images)

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, mask = self.images[index], (self.images[index] > 0.5).float()
        if self.training and torch.rand(()) < 0.5:
            image = image.flip(-1)
            if self.with_mask:
                mask = mask.flip(-1)
        if self.training:
            image = image + 0.1 * torch.randn(image.shape)
        return image, mask


@mistake("flip", "mirror", "augment", "misalign", "aligned", "mask", "agree with")
def flipped_without_mask(right: bool = False) -> Program:
    """Segmentation: the augmentation flips half of the images, but not their masks.

    The mask of a flipped image shows where the ink was before.
    """
    images, _ = digits()
    train, held_out = NoisyDigits(images[:1400], True, with_mask=right), NoisyDigits(images[1400:], False, right)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 1)
    )
    trainer = Trainer(model, nn.BCEWithLogitsLoss(), torch.optim.Adam(model.parameters(), lr=3e-3))
    return program(trainer, train, 5, held_out)


@mistake("momentum", "running mean", "running stat", "running average", "batch norm", "batchnorm", "batch-norm")
def momentum_of_keras(right: bool = False) -> Program:
    """Batch norm has a momentum of 0.99, which in PyTorch is the share of the newest batch.

    The averages that evaluations use are those of the last eight samples. Keras calls 0.99 what is 0.01 here.
    """
    momentum = 0.01 if right else 0.99
    train, held_out = parts(*digits())
    model = nn.Sequential(
        nn.Linear(64, 64, bias=False),
        nn.BatchNorm1d(64, momentum=momentum),
        nn.ReLU(),
        nn.Linear(64, 64, bias=False),
        nn.BatchNorm1d(64, momentum=momentum),
        nn.ReLU(),
        nn.Linear(64, 10),
    )
    trainer = Classifier(model, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), lr=1e-3))
    return program(trainer, train, 10, held_out, per_device_batch_size=8)


def pictures_with_boxes(count: int, size: int) -> tuple[Tensor, Tensor]:
    """Return noisy pictures of one bright rectangle each, and its centre, width and height in pixels."""
    extent = torch.randint(3, size // 2, (count, 2))
    corner = (torch.rand(count, 2) * (size - extent)).long()
    places = torch.arange(size)
    within = (places >= corner[..., None]) & (places < (corner + extent)[..., None])
    bright = (within[:, 1, :, None] & within[:, 0, None, :]).float()
    pictures = bright[:, None] + 0.2 * torch.randn(count, 1, size, size)
    return pictures, torch.cat([corner + extent / 2, extent], dim=1).float()


@mistake("sigmoid", "between 0 and 1", "range", "pixels", "outside", "reach", "saturat")
def boxes_in_pixels(right: bool = False) -> Program:
    """Detection: the network ends in a sigmoid, between 0 and 1, but the boxes are in pixels, up to 16."""
    pictures, boxes = pictures_with_boxes(1000, size=16)
    train, held_out = parts(pictures, boxes / 16 if right else boxes)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 64, 64),
        nn.ReLU(),
        nn.Linear(64, 4),
        nn.Sigmoid(),
    )
    return program(Trainer(model, nn.SmoothL1Loss(), torch.optim.Adam(model.parameters(), lr=1e-3)), train, 8, held_out)


class ShiftedDigits(Dataset[tuple[Tensor, Tensor]]):
    """Scans that are shifted by up to a pixel in both directions."""

    def __init__(self, images: Tensor, targets: Tensor, seed: int | None) -> None:
        self.images, self.targets, self.seed = images.view(-1, 8, 8), targets, seed

    def __len__(self) -> int:
        return len(self.images)

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.default_generator if self.seed is None else torch.Generator().manual_seed(self.seed)
        down, across = torch.randint(-1, 2, (2,), generator=generator).tolist()
        return self.images[index].roll((down, across), dims=(0, 1)).flatten(), self.targets[index]


@mistake("augment", "same seed", "seeded", "generator", "same shift", "same noise", "same way", "not random")
def shifts_are_all_one(right: bool = False) -> Program:
    """The augmentation makes a new generator of the same seed for each sample: all are shifted by the same pixels."""
    images, targets = digits()
    train = ShiftedDigits(images[:400], targets[:400], seed=None if right else 42)
    held_out = TensorDataset(images[400:], targets[400:])
    model = perceptron(64, 10)
    trainer = Classifier(model, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), lr=3e-3))
    return program(trainer, train, 15, held_out)


# Tables


@mistake("leak", "column", "feature", "copy of", "gives away", "the target itself", "among the inputs")
def target_among_columns(right: bool = False) -> Program:
    """The first column of the table is what is to be predicted, and it is among the inputs too.

    The network copies it, and could predict nothing for a new patient.
    """
    rows, progression = load_diabetes(return_X_y=True)
    table = torch.cat([torch.tensor(progression)[:, None], torch.tensor(rows)], dim=1).float()
    table = (table - table[:350].mean(0)) / table[:350].std(0)
    inputs = table[:, 1:] if right else table
    train, held_out = parts(inputs, table[:, :1])
    model = perceptron(inputs.shape[1], 1, hidden=32)
    return program(Trainer(model, nn.MSELoss(), torch.optim.AdamW(model.parameters(), lr=3e-3)), train, 20, held_out)


@mistake("one class", "single class", "only class", "sorted", "split", "classes", "distribut")
def split_while_sorted(right: bool = False) -> Program:
    """The wines are sorted by their cultivar, and the last fifth is held out without shuffling.

    The evaluation has wines of the third cultivar only, and training has hardly any.
    """
    data, target = load_wine(return_X_y=True)
    rows, cultivars = torch.tensor(data).float(), torch.tensor(target)
    if right:
        order = torch.randperm(len(rows))
        rows, cultivars = rows[order], cultivars[order]
    count = int(len(rows) * 0.8)
    train, held_out = parts((rows - rows[:count].mean(0)) / rows[:count].std(0), cultivars)
    model = perceptron(13, 3, hidden=32)
    trainer = Classifier(model, nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters(), lr=1e-3))
    return program(trainer, train, 15, held_out, per_device_batch_size=16)


@mistake("sampler", "distinct", "never drawn", "never seen", "different samples", "repeat", "drawn", "visits")
def weights_of_classes(right: bool = False) -> Program:
    """A WeightedRandomSampler gets the weights of the two classes instead of a weight for each sample.

    It draws only the first two samples, again and again.
    """
    images, numbers = digits()
    train, held_out = parts(images, (numbers == 8).long())
    targets = train.tensors[1]
    weights = 1 / targets.bincount().float()
    sampler = WeightedRandomSampler((weights[targets] if right else weights).tolist(), num_samples=len(train))
    model = perceptron(64, 2)
    trainer = Classifier(model, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), lr=1e-3))
    return program(trainer, train, 5, held_out, train_dataloader_kwargs={"sampler": sampler})


class SeveralLabels(Trainer[nn.Module]):
    """Logs which share of the samples has all labels right."""

    @override
    def calculate_eval_batch_loss(self, batch: Any) -> Any:
        """Log the accuracy."""
        output = super().calculate_eval_batch_loss(batch)
        self.log("accuracy", ((output["model_outputs"] > 0) == (batch[1] > 0.5)).all(1).float().mean())
        return output


@mistake("multi-label", "multilabel", "multi-hot", "sum to", "add up", "bcewithlogits", "several labels", "softmax")
def cross_entropy_of_labels(right: bool = False) -> Program:
    """Each image has from none to all of four labels, but the loss is a cross-entropy instead of BCEWithLogitsLoss.

    Its softmax lets the labels compete, and images without a label are not trained on.
    """
    images, numbers = digits()
    has_label = [numbers >= 2, numbers >= 4, numbers >= 6, numbers % 3 == 2]
    train, held_out = parts(images, torch.stack(has_label, dim=1).float())
    model = perceptron(64, 4)
    loss_func = nn.BCEWithLogitsLoss() if right else nn.CrossEntropyLoss()
    return program(SeveralLabels(model, loss_func, torch.optim.Adam(model.parameters(), lr=3e-3)), train, 20, held_out)


# Sequences and texts


class RowsAsWords(nn.Module):
    """Reads the eight rows of an image as if they were words."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.positions = nn.Parameter(torch.randn(8, 32) * 0.02)
        self.layer = nn.TransformerEncoderLayer(32, nhead=4, dim_feedforward=64, dropout=0.1, batch_first=batch_first)
        self.head = nn.Linear(32, 10)

    @override
    def forward(self, images: Tensor) -> Tensor:
        rows: Tensor = self.layer(self.embed(images.view(-1, 8, 8)) + self.positions)
        logits: Tensor = self.head(rows.mean(dim=1))
        return logits


@mistake(
    "batch_first", "other samples", "across samples", "across the batch", "mixes", "rest of the batch", "another sample"
)
def attends_to_other_samples(right: bool = False) -> Program:
    """The batch is the first dimension, but the transformer layer is made without batch_first=True.

    Each row attends to the same row of the other images of the batch, instead of to the other rows of its own.
    """
    train, held_out = parts(*digits())
    model = RowsAsWords(batch_first=right)
    trainer = Classifier(model, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), lr=3e-3))
    return program(trainer, train, 8, held_out)


def reviews() -> tuple[Tensor, Tensor]:
    """Return short reviews as numbers of words, padded with zeros to 48, and whether they are good."""
    starts = ["the film was", "we thought that the plot was", "in the end I must say it was", "honestly this is"]
    words = ["good", "great", "lovely", "clever", "bad", "dull", "awful", "silly"]
    ends = ["", "and far too long", "if you ask me", "but my sister fell asleep", "from start to finish"]
    texts, targets = [], []
    for start, negation, word, end in itertools.product(starts, ["", "not", "really", "never"], words, ends):
        texts.append(f"{start} {negation} {word} {end}".split())
        targets.append((words.index(word) < 4) != (negation in {"not", "never"}))
    vocabulary = {word: 1 + at for at, word in enumerate(sorted({word for text in texts for word in text}))}
    padded = torch.zeros(len(texts), 48, dtype=torch.long)
    for at, text in enumerate(texts):
        padded[at, : len(text)] = torch.tensor([vocabulary[word] for word in text])
    return padded, torch.tensor(targets).long()


class Reader(nn.Module):
    """Reads a padded text word by word, and decides at its end."""

    def __init__(self, words: int, at_length: bool) -> None:
        super().__init__()
        self.at_length = at_length
        self.embed = nn.Embedding(words, 16, padding_idx=0)
        self.gru = nn.GRU(16, 32, batch_first=True)
        self.head = nn.Linear(32, 2)

    @override
    def forward(self, texts: Tensor) -> Tensor:
        states, _ = self.gru(self.embed(texts))
        last = states[torch.arange(len(texts)), (texts != 0).sum(1) - 1] if self.at_length else states[:, -1]
        logits: Tensor = self.head(last)
        return logits


@mistake("padding", "padded", "lengths", "last step", "last position", "trailing", "zeros at the end")
def state_after_padding(right: bool = False) -> Program:
    """The classifier takes the state of the GRU at the last position, dozens of padding steps after the last word."""
    texts, targets = reviews()
    order = torch.randperm(len(texts))
    train, held_out = parts(texts[order], targets[order])
    model = Reader(int(texts.max()) + 1, at_length=right)
    trainer = Classifier(model, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), lr=3e-3))
    return program(trainer, train, 10, held_out)


RHYME = """the ship was small, the sea was wide, the captain slept on his left side. the cook made soup of peas and
salt, and all that burned was the cook's own fault. the mate sang songs of a distant shore, and knocked three times on
the captain's door. wake up, wake up, the wind has turned, the sail is torn and the soup is burned. the captain yawned
and put on a shoe, and said that he knew what they had to do. they mended the sail with a spoon and a thread, and ate
the burned soup with a slice of bread. the wind was kind and the night was long, and the mate forgot how to end his
song. the ship came home on a sunday noon, with a sail that was held by a wooden spoon."""


class Speller(nn.Module):
    """Predicts characters out of those before them."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, 16)
        self.gru = nn.GRU(16, 64, batch_first=True)
        self.head = nn.Linear(64, characters)

    @override
    def forward(self, texts: Tensor) -> Tensor:
        states, _ = self.gru(self.embed(texts))
        logits: Tensor = self.head(states)
        return logits


class SpellerTrainer(Trainer[Speller]):
    """Trains a language model; a sample has characters, and for each of them the one that follows."""

    shifts_labels = True

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        """Predict the next characters."""
        texts, labels = batch
        logits = self.model(texts)
        if self.shifts_labels:
            logits, labels = logits[:, :-1], labels[:, 1:]
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "model_outputs": logits, "batch_size": len(texts)}

    calculate_eval_batch_loss = calculate_train_batch_loss


class OnceShiftedSpellerTrainer(SpellerTrainer):
    """Leaves the labels as the data has them."""

    shifts_labels = False


def passages(text: str) -> TensorDataset:
    """Return passages of a text as numbers of characters, and each one character later."""
    characters = sorted(set(RHYME))
    windows = torch.tensor([characters.index(character) for character in text]).unfold(0, 33, 2)
    return TensorDataset(windows[:, :-1], windows[:, 1:])


@mistake("shift", "next token", "two ahead", "one ahead", "off by one", "skips", "first label")
def shifted_twice(right: bool = False) -> Program:
    """The labels are the inputs one character later already, and the step shifts them once more.

    The model learns to predict the character after the next one.
    """
    train, held_out = passages(RHYME[:600]), passages(RHYME[600:])
    model = Speller(len(set(RHYME)))
    trainer = (OnceShiftedSpellerTrainer if right else SpellerTrainer)(
        model, None, torch.optim.Adam(model.parameters(), lr=3e-3)
    )
    return program(trainer, train, 8, held_out, per_device_batch_size=16)


# Generative models


class Autoencoder(nn.Module):
    """A variational autoencoder of digits."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = perceptron(64, 16), perceptron(8, 64)

    @override
    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(images).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decoder(code), mean, log_variance


class AutoencoderTrainer(Trainer[Autoencoder]):
    """Trains it by its evidence lower bound."""

    sums_pixels = False

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        """Encode and decode the images."""
        images = batch[0]
        outputs, mean, log_variance = self.model(images)
        reconstruction = functional.binary_cross_entropy_with_logits(outputs, images)
        self.log("pixel_error", functional.mse_loss(outputs.sigmoid(), images))
        if self.sums_pixels:
            reconstruction = 64 * reconstruction
        kl = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1).mean()
        self.log("kl", kl)
        return {"loss": reconstruction + kl, "model_outputs": outputs, "batch_size": len(images)}

    calculate_eval_batch_loss = calculate_train_batch_loss


class SummingAutoencoderTrainer(AutoencoderTrainer):
    """Sums over the pixels, as the evidence lower bound does."""

    sums_pixels = True


@mistake(
    "collaps",
    "latent",
    "reconstruct",
    "divergence",
    "kl term",
    "same output",
    "ignores its input",
    "depend on the input",
)
def mean_against_sum(right: bool = False) -> Program:
    """The reconstruction is a mean over 64 pixels, and the KL divergence a sum over the latent dimensions.

    The latter outweighs it: the code collapses, and each image is decoded to the mean image.
    """
    train, held_out = parts(*digits())
    model = Autoencoder()
    trainer = (SummingAutoencoderTrainer if right else AutoencoderTrainer)(
        model, None, torch.optim.Adam(model.parameters(), lr=3e-3)
    )
    return program(trainer, train, 10, held_out)


class DiffusionTrainer(Trainer[nn.Sequential]):
    """Trains a network to predict which noise is in an image."""

    def noise_to_predict(self, added: Tensor) -> Tensor:
        """Return the target of the network."""
        return torch.randn_like(added)

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        """Add noise of a random strength, and predict it."""
        images = 2 * batch[0] - 1
        signal = torch.rand(len(images), 1, device=images.device)
        noise = torch.randn_like(images)
        noisy = signal.sqrt() * images + (1 - signal).sqrt() * noise
        predicted = self.model(torch.cat([noisy, signal], dim=1))
        loss = functional.mse_loss(predicted, self.noise_to_predict(noise))
        return {"loss": loss, "model_outputs": predicted, "batch_size": len(images)}

    calculate_eval_batch_loss = calculate_train_batch_loss


class RightDiffusionTrainer(DiffusionTrainer):
    """Predicts the noise that was added."""

    @override
    def noise_to_predict(self, added: Tensor) -> Tensor:
        """Return the noise that was added."""
        return added


@mistake("noise", "independent", "unrelated", "randn", "nothing to learn", "does not depend", "no better than")
def noise_drawn_anew(right: bool = False) -> Program:
    """Diffusion: the noise to predict is drawn anew, instead of being the noise that was added to the image.

    Nothing can be learned but its mean, zero.
    """
    train, held_out = parts(*digits())
    model = perceptron(65, 64, hidden=128)
    trainer = (RightDiffusionTrainer if right else DiffusionTrainer)(
        model, None, torch.optim.Adam(model.parameters(), lr=2e-3)
    )
    return program(trainer, train, 10, held_out)


# Reinforcement and contrastive learning


def corridor(count: int) -> tuple[Tensor, ...]:
    """Return random steps in a corridor of ten places: where, to which side, reward, where then, whether it ended.

    Where an episode ended, the next place is the start of another one.
    """
    places, sides = torch.randint(1, 9, (count,)), torch.randint(2, (count,))
    after = places + 2 * sides - 1
    rewards = torch.where(after == 0, 0.35, torch.where(after == 9, 1.0, 0.0))
    done = (after == 0) | (after == 9)
    after = torch.where(done, 2, after)
    return functional.one_hot(places, 10).float(), sides, rewards, functional.one_hot(after, 10).float(), done.float()


class QTrainer(Trainer[nn.Sequential]):
    """Learns the values of actions, with a copy of the network that follows it slowly."""

    uses_done = False

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        """Compare the values with the rewards and the values of the next places."""
        places, sides, rewards, after, done = batch
        values = self.model(places)
        with torch.no_grad():
            for slow, fast in zip(self.modules["target"].parameters(), self.model.parameters(), strict=True):
                slow.lerp_(fast, 0.05)
            following = self.modules["target"](after).amax(1)
            if self.uses_done:
                following = following * (1 - done)
            wanted = rewards + 0.9 * following
        loss = functional.smooth_l1_loss(values.gather(1, sides[:, None])[:, 0], wanted)
        return {"loss": loss, "model_outputs": values, "batch_size": len(places)}


class EpisodicQTrainer(QTrainer):
    """Knows that nothing follows the end of an episode."""

    uses_done = True


@mistake("terminal", "bootstrap", "unused", "not used", "batch[4]", "ignored", "no effect", "changes nothing")
def episodes_never_end(right: bool = False) -> Program:
    """Q-learning: the flag that an episode has ended is not used.

    The value of the start of the next episode is added to the last reward: values exceed any possible return, and the
    nearer, smaller reward is chosen.
    """
    model = perceptron(10, 2, hidden=32)
    trainer = (EpisodicQTrainer if right else QTrainer)(model, None, torch.optim.Adam(model.parameters(), lr=3e-3))
    trainer.add_module("target", copy.deepcopy(model).requires_grad_(False))
    return program(trainer, TensorDataset(*corridor(2000)), 20)


def distorted(image: Tensor) -> Tensor:
    """Return an image shifted by up to a pixel, noisy, and with a fifth of its pixels erased."""
    down, across = torch.randint(-1, 2, (2,)).tolist()
    shifted = image.view(8, 8).roll((down, across), dims=(0, 1)).flatten()
    return (shifted + 0.1 * torch.randn(64)) * (torch.rand(64) > 0.2)


class TwoViews(Dataset[tuple[Tensor, Tensor]]):
    """Two distorted views of each image."""

    def __init__(self, images: Tensor, distorts_twice: bool) -> None:
        self.images, self.distorts_twice = images, distorts_twice

    def __len__(self) -> int:
        return len(self.images)

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        view = distorted(self.images[index])
        return view, distorted(self.images[index]) if self.distorts_twice else view.clone()


class ContrastiveTrainer(Trainer[nn.Sequential]):
    """Learns to tell which two views are of one image."""

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        """Compare all first views with all second views."""
        first, second = (functional.normalize(self.model(view), dim=1) for view in batch)
        similar = first @ second.T / 0.1
        loss = functional.cross_entropy(similar, torch.arange(len(first), device=similar.device))
        return {"loss": loss, "model_outputs": first, "batch_size": len(first)}


@mistake("identical", "are equal", "are the same", "views", "augment", "trivial", "distort")
def two_views_are_one(right: bool = False) -> Program:
    """Contrastive learning: each image is distorted once, and both views are this one picture.

    To tell that they belong together is trivial; nothing is learned about which distortions do not matter.
    """
    images, _ = digits()
    model = perceptron(64, 32, hidden=128)
    trainer = ContrastiveTrainer(model, None, torch.optim.Adam(model.parameters(), lr=2e-3))
    return program(
        trainer,
        TwoViews(images[:1400], distorts_twice=right),
        10,
        per_device_batch_size=64,
        train_dataloader_kwargs={"drop_last": True},
    )


# Fine-tuning, own steps, optimizers and schedules


class Pretrained(nn.Module):
    """A backbone that has learned to tell the digits 0 to 4, and a new head."""

    def __init__(self, images: Tensor, numbers: Tensor, extracts_features: bool) -> None:
        super().__init__()
        self.extracts_features = extracts_features
        self.backbone = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        old = nn.Sequential(self.backbone, nn.Linear(8, 5))
        optimizer = torch.optim.Adam(old.parameters(), lr=0.01)
        for _ in range(50):
            optimizer.zero_grad()
            torch.autograd.backward(functional.cross_entropy(old(images), numbers))
            optimizer.step()
        self.zero_grad()
        self.head = nn.Linear(8, 10)

    @override
    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of the digits 0 to 9."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.extracts_features):
            features = self.backbone(images)
        logits: Tensor = self.head(features)
        return logits


@mistake("backbone", "no gradient", "no_grad", "without gradient", "detach", "never updated", "do not change")
def features_without_gradients(right: bool = False) -> Program:
    """The backbone is to be fine-tuned and is in the optimizer, but still runs without recording gradients.

    That is left over from a time when only the head was trained: the backbone never changes.
    """
    images, numbers = digits()
    train, held_out = parts(images, numbers)
    low = numbers[:600] < 5
    model = Pretrained(images[:600][low], numbers[:600][low], extracts_features=not right)
    groups: list[dict[str, Any]] = [
        {"params": model.backbone.parameters(), "lr": 1e-3},
        {"params": model.head.parameters()},
    ]
    return program(Classifier(model, nn.CrossEntropyLoss(), torch.optim.AdamW(groups, lr=3e-3)), train, 12, held_out)


class CleanAccuracyTrainer(Classifier):
    """Logs the accuracy of training batches without dropout."""

    returns_to_training = False

    @override
    def calculate_train_batch_loss(self, batch: Any) -> Any:
        """Measure the accuracy, then train."""
        self.model.eval()
        with torch.no_grad():
            self.log("accuracy", (self.model(batch[0]).argmax(1) == batch[1]).float().mean())
        if self.returns_to_training:
            self.model.train()
        return super().calculate_train_batch_loss(batch)


class ReturningTrainer(CleanAccuracyTrainer):
    """Puts the model back into training mode."""

    returns_to_training = True


@mistake("eval mode", "evaluation mode", "eval()", "training mode", "train mode", "train()", "dropout", "batchnorm")
def stays_in_eval_mode(right: bool = False) -> Program:
    """The step puts the model into evaluation mode to measure the accuracy, and does not put it back.

    All training is done without dropout and with the first averages of batch norm, and the network overfits.
    """
    images, numbers = digits()
    noisy = torch.where(torch.rand(600) < 0.4, torch.randint(10, (600,)), numbers[:600])
    held_out = TensorDataset(images[600:], numbers[600:])
    model = nn.Sequential(
        nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 128), nn.BatchNorm1d(128)
    )
    model.extend([nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)])
    trainer = (ReturningTrainer if right else CleanAccuracyTrainer)(
        model, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), lr=3e-3)
    )
    return program(trainer, TensorDataset(images[:600], noisy), 40, held_out)


@mistake("weight_decay", "weight decay", "adamw", "l2", "shrink", "decayed", "regulari")
def decay_of_adam(right: bool = False) -> Program:
    """A weight decay of 0.1, usual for AdamW, is given to Adam, which adds it to the gradients that it scales up.

    The weights shrink until the network does not tell its inputs apart.
    """
    train, held_out = parts(*digits())
    model = nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    optimizer = (torch.optim.AdamW if right else torch.optim.Adam)(model.parameters(), lr=1e-3, weight_decay=0.1)
    return program(Classifier(model, nn.CrossEntropyLoss(), optimizer), train, 15, held_out)


@mistake("schedul", "exponentiallr", "gamma", "learning rate falls", "learning rate decays", "decays to")
def decays_each_update(right: bool = False) -> Program:
    """ExponentialLR with gamma 0.9 is meant for epochs, but steps after each update.

    Within the first five of thirty epochs, the learning rate falls to nothing.
    """
    train, held_out = parts(*digits())
    model = perceptron(64, 10)
    trainer = Classifier(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    return program(
        trainer,
        train,
        30,
        held_out,
        per_device_batch_size=64,
        create_scheduler_fn=partial(ExponentialLR, gamma=0.9),
        step_scheduler="epoch" if right else "update",
    )


# Evaluation


class EightsTrainer(Trainer[nn.Module]):
    """Logs how often it is right about which digits are eights."""

    threshold = 0.0

    @override
    def calculate_eval_batch_loss(self, batch: Any) -> Any:
        """Log the accuracy."""
        output = super().calculate_eval_batch_loss(batch)
        predicted = output["model_outputs"].sigmoid() > self.threshold
        self.log("accuracy", (predicted == (batch[1] > 0)).float().mean())
        return output


class HalfwayEightsTrainer(EightsTrainer):
    """Says that it is an eight where this is more probable than not."""

    threshold = 0.5


@mistake("eval_accuracy", "accuracy is", "accuracy stays", "constant", "never changes", "does not change", "threshold")
def accuracy_of_positives(right: bool = False) -> Program:
    """The accuracy counts each probability above 0 as a yes, which is all of them, and is the share of eights forever.

    As it never improves, the best model, which is loaded at the end, is that of the first epoch.
    """
    images, numbers = digits()
    train, held_out = parts(images, (numbers == 8).float()[:, None])
    model = perceptron(64, 1)
    trainer = (HalfwayEightsTrainer if right else EightsTrainer)(
        model,
        nn.BCEWithLogitsLoss(),
        torch.optim.Adam(model.parameters(), lr=1e-3),
        callbacks=[
            *DEFAULT_CALLBACKS,
            SaveBestModelCallback("best.pt", watch_metric="eval_accuracy_epoch", greater_is_better=True),
        ],
    )
    return program(trainer, train, 10, held_out)
