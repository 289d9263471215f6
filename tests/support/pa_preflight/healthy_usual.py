"""Scripts without a mistake, as most users write them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import LinearLR, OneCycleLR
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, random_split
from typing_extensions import override

from pa_core import Trainer, TrainerPlaceholderValues
from tests.support.pa_preflight import healthy_models as models
from tests.support.pa_preflight.data import (
    Named,
    Shifted,
    labels_of_several,
    lines,
    masks,
    pictures,
    points,
    sorted_by_target,
    texts,
    walks,
)
from tests.support.pa_preflight.scripts import Healthy, Script, conv_net, perceptron, script

healthy = Healthy()


@healthy
def classification_of_vectors() -> Script:
    """Cross entropy of the logits of a small network."""
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), points(), eval_dataset=points(96, seed=2))


@healthy
def linear_classifier() -> Script:
    """A single layer with SGD."""
    model = nn.Linear(8, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    return script(model, nn.CrossEntropyLoss(), points(), optimizer=optimizer, eval_dataset=points(96, seed=2))


@healthy
def log_softmax_with_its_loss() -> Script:
    """NLLLoss of log-probabilities."""
    model = nn.Sequential(*perceptron(8, 4), nn.LogSoftmax(dim=1))
    return script(model, nn.NLLLoss(), points(), eval_dataset=points(96, seed=2))


@healthy
def regression() -> Script:
    """The mean squared error of standardised targets."""
    return script(perceptron(6, 1), nn.MSELoss(), lines(), eval_dataset=lines(96, seed=2))


@healthy
def regression_of_many_outputs() -> Script:
    """Three targets a sample, with SmoothL1Loss and a network with LayerNorm and dropout."""
    model = nn.Sequential(nn.Linear(6, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 3))
    return script(model, nn.SmoothL1Loss(), lines(outputs=3), eval_dataset=lines(96, seed=2, outputs=3))


@healthy
def small_ordinal_regression() -> Script:
    """Two hundred samples with grades from 1 to 5 as float targets."""
    inputs, targets = lines(200).tensors
    data = TensorDataset(inputs, (3 + targets).round().clamp(1, 5))
    return script(perceptron(6, 1), nn.MSELoss(), data, per_device_batch_size=16)


@healthy
def flat_outputs_and_targets() -> Script:
    """Outputs and targets both have the shape (B,)."""
    inputs, targets = lines().tensors
    model = nn.Sequential(*perceptron(6, 1), nn.Flatten(0))
    return script(model, nn.L1Loss(), TensorDataset(inputs, targets.squeeze(1)))


@healthy
def two_classes_with_one_output() -> Script:
    """BCEWithLogitsLoss of one logit."""
    inputs, targets = points(classes=2).tensors
    return script(perceptron(8, 1), nn.BCEWithLogitsLoss(), TensorDataset(inputs, targets.float().unsqueeze(1)))


@healthy
def probabilities_with_bce() -> Script:
    """A sigmoid at the end, and the loss that takes probabilities."""
    inputs, targets = points(classes=2).tensors
    model = nn.Sequential(*perceptron(8, 1), nn.Sigmoid())
    return script(model, nn.BCELoss(), TensorDataset(inputs, targets.float().unsqueeze(1)))


@healthy
def several_labels() -> Script:
    """BCEWithLogitsLoss of several labels a sample."""
    data, evaluation = labels_of_several(), labels_of_several(96, seed=2)
    return script(perceptron(8, 5), nn.BCEWithLogitsLoss(), data, eval_dataset=evaluation)


@healthy
def imbalanced_classes() -> Script:
    """Nine of ten samples are of one class."""
    inputs, targets = points(900, classes=2).tensors
    positive = (targets == 1).nonzero().flatten()[:50]
    chosen = torch.cat([(targets == 0).nonzero().flatten()[:450], positive])
    return script(perceptron(8, 2), nn.CrossEntropyLoss(), TensorDataset(inputs[chosen], targets[chosen]))


@healthy
def weighted_classes() -> Script:
    """The losses of samples are weighted by class, and divided by the number of samples."""
    weights = torch.tensor([1.0, 1.0, 2.0, 3.0])

    def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets, weight=weights, reduction="none").mean()

    return script(perceptron(8, 4), weighted, points())


@healthy
def label_smoothing() -> Script:
    """The lowest loss is far from zero."""
    return script(perceptron(8, 4), nn.CrossEntropyLoss(label_smoothing=0.1), points())


@healthy
def targets_as_probabilities() -> Script:
    """Cross entropy of targets that are distributions over the classes."""
    inputs, targets = points().tensors
    soft = 0.9 * functional.one_hot(targets, 4).float() + 0.1 / 4
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), TensorDataset(inputs, soft))


@healthy
def counts_by_poisson() -> Script:
    """PoissonNLLLoss of counts, whose logarithm the model predicts."""
    inputs, targets = lines().tensors
    counts = torch.poisson((0.5 + 0.5 * targets).exp(), generator=torch.Generator().manual_seed(3))
    return script(perceptron(6, 1), nn.PoissonNLLLoss(), TensorDataset(inputs, counts))


@healthy
def constant_feature() -> Script:
    """Some features are one-hot, and one of them never occurs."""
    inputs, targets = points().tensors
    kinds = functional.one_hot(torch.randint(0, 3, (len(inputs),), generator=torch.Generator().manual_seed(4)), 4)
    return script(perceptron(12, 4), nn.CrossEntropyLoss(), TensorDataset(torch.cat([inputs, kinds], 1), targets))


@healthy
def conv_net_with_augmentation() -> Script:
    """BatchNorm and pictures that are shifted at random, in training only."""
    return script(conv_net(), nn.CrossEntropyLoss(), Shifted(pictures()), eval_dataset=pictures(80, seed=2))


@healthy
def brightness_between_zero_and_one() -> Script:
    """Pictures from 0 to 1, as torchvision's ToTensor returns them."""

    def scaled(data: TensorDataset) -> TensorDataset:
        images, targets = data.tensors
        return TensorDataset(((images + 3) / 6).clamp(0, 1), targets)

    evaluation = scaled(pictures(80, seed=2))
    return script(conv_net(), nn.CrossEntropyLoss(), scaled(pictures()), eval_dataset=evaluation)


@healthy
def group_norm_and_residuals() -> Script:
    """A residual network with GroupNorm and dropout of channels."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        models.Residual(8),
        models.Residual(8),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 4),
    )
    return script(model, nn.CrossEntropyLoss(), pictures(), eval_dataset=pictures(80, seed=2))


@healthy
def segmentation() -> Script:
    """A class for each pixel, with targets of shape (B, H, W)."""
    return script(
        models.Unet(), nn.CrossEntropyLoss(), masks(), eval_dataset=masks(48, seed=2), per_device_batch_size=16
    )


@healthy
def segmentation_with_ignored_pixels() -> Script:
    """Pixels without a class are marked by 255, which the loss ignores."""
    images, targets = masks().tensors
    targets[:, 0] = 255
    data = TensorDataset(images, targets)
    return script(models.Unet(), nn.CrossEntropyLoss(ignore_index=255), data, per_device_batch_size=16)


@healthy
def batch_norm_that_drops_the_last_batch() -> Script:
    """The only sample of the last batch is left out, as BatchNorm cannot use it."""
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    return script(model, nn.CrossEntropyLoss(), points(481), train_dataloader_kwargs={"drop_last": True})


@healthy
def bags_of_embeddings() -> Script:
    """The mean of the embeddings of tokens."""
    model = nn.Sequential(nn.EmbeddingBag(20, 16), nn.Linear(16, 3))
    return script(model, nn.CrossEntropyLoss(), texts(), eval_dataset=texts(80, seed=2))


@healthy
def padded_texts() -> Script:
    """Texts of several lengths, which a ``collate_fn`` pads."""

    def pad(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        tokens = [tokens[: 6 + int(tokens[0]) % 7] for tokens, _ in samples]
        padded = nn.utils.rnn.pad_sequence(tokens, batch_first=True)
        return padded, torch.stack([target for _, target in samples])

    return script(models.PaddedTextClassifier(), nn.CrossEntropyLoss(), texts(), collate_fn=pad)


@healthy
def transformer_encoder() -> Script:
    """Transformer layers with dropout, and AdamW with decay of the weights of layers only."""
    model = models.TextClassifier()
    decayed = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    optimizer = AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=5e-3)
    evaluation = texts(80, seed=2)
    return script(model, nn.CrossEntropyLoss(), texts(), optimizer=optimizer, eval_dataset=evaluation)


@healthy
def gru_over_vectors() -> Script:
    """A recurrent network in a regression."""
    layer = nn.GRU(4, 32, batch_first=True)
    return script(models.Recurrent(layer, 1), nn.MSELoss(), walks(), eval_dataset=walks(80, seed=2))


@healthy
def lstm_over_tokens() -> Script:
    """A recurrent network with clipped gradients."""
    model = models.Recurrent(nn.LSTM(16, 32, batch_first=True), 3, vocabulary=20)
    return script(model, nn.CrossEntropyLoss(), texts(), gradient_clip_norm=1.0)


class _PredictsNextToken(Trainer):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        tokens = batch[0]
        logits = self.model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:])
        return {"loss": loss, "model_outputs": logits, "batch_size": len(tokens)}

    @override
    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        return self.calculate_train_batch_loss(batch)


def _counting(num_samples: int, *, seed: int = 1) -> Tensor:
    """Texts in which nine of ten tokens are the one before plus three."""
    draws = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 20, (num_samples, 12), generator=draws)
    follows = torch.rand(num_samples, 12, generator=draws) < 0.9
    for position in range(1, 12):
        next_tokens = (tokens[:, position - 1] + 3) % 20
        tokens[:, position] = torch.where(follows[:, position], next_tokens, tokens[:, position])
    return tokens


@healthy
def language_model() -> Script:
    """The targets are the inputs, shifted in the step."""
    model = models.CausalTransformer()
    train, evaluation = TensorDataset(_counting(400)), TensorDataset(_counting(80, seed=2))
    optimizer = Adam(model.parameters(), lr=5e-3)
    return script(model, None, train, optimizer=optimizer, kind=_PredictsNextToken, eval_dataset=evaluation)


@healthy
def language_model_with_tied_weights() -> Script:
    """The head has the weights of the embedding, and the data are pairs of inputs and shifted targets."""
    tokens = _counting(400)

    def of_all_positions(logits: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    data = TensorDataset(tokens[:, :-1], tokens[:, 1:])
    return script(models.LanguageModel(tied=True), of_all_positions, data)


@healthy
def autoencoder() -> Script:
    """The targets are the inputs, which have fewer degrees of freedom than features."""
    inputs = lines(480, features=4, outputs=12).tensors[1]
    return script(models.Autoencoder(), nn.MSELoss(), TensorDataset(inputs, inputs))


class _Reconstructs(Trainer):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        (inputs,) = batch
        outputs = self.model(inputs)
        return {"loss": functional.mse_loss(outputs, inputs), "model_outputs": outputs, "batch_size": len(inputs)}

    @override
    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        return self.calculate_train_batch_loss(batch)


@healthy
def denoising_autoencoder() -> Script:
    """Batches have no targets, and the model adds noise in training only."""
    inputs = lines(480, features=4, outputs=12).tensors[1]
    evaluation = lines(96, seed=2, features=4, outputs=12).tensors[1]
    return script(
        models.Autoencoder(noise=0.2),
        None,
        TensorDataset(inputs),
        kind=_Reconstructs,
        eval_dataset=TensorDataset(evaluation),
    )


@healthy
def model_that_returns_its_loss() -> Script:
    """Batches are dictionaries of several inputs and the labels."""

    def samples(num_samples: int, seed: int) -> Named:
        tokens, labels = texts(num_samples, seed=seed).tensors
        (features, *_) = points(num_samples, seed=seed, classes=3).tensors
        return Named(TensorDataset(tokens, features, labels), "tokens", "features", "labels")

    return script(models.ReturnsLoss(), None, samples(320, 1), eval_dataset=samples(80, 2))


class _ComparesPairs(Trainer):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        left, right, is_same = batch
        outputs = self.model(left, right)
        loss = functional.binary_cross_entropy_with_logits(outputs, is_same)
        return {"loss": loss, "model_outputs": outputs, "batch_size": len(left)}

    @override
    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        return self.calculate_train_batch_loss(batch)


@healthy
def siamese_inputs() -> Script:
    """Whether two inputs are of the same class."""
    left, classes_left = points(480, classes=2).tensors
    right, classes_right = points(480, seed=2, classes=2).tensors
    data = TensorDataset(left, right, (classes_left == classes_right).float())
    return script(models.Siamese(), None, data, kind=_ComparesPairs)


class _Contrasts(Trainer):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        left, right = batch
        outputs = self.model(left, right)
        similarities = outputs[0] @ outputs[1].t() / 0.2
        loss = functional.cross_entropy(similarities, torch.arange(len(left), device=left.device))
        return {"loss": loss, "model_outputs": outputs, "batch_size": len(left)}


@healthy
def contrastive_loss() -> Script:
    """Each sample is to be more like its second view than like those of the other samples of the batch."""
    views = lines(480, features=4, outputs=16).tensors[1]
    data = TensorDataset(views[:, :8], views[:, 8:])
    return script(models.TwoTowers(), None, data, kind=_Contrasts, train_dataloader_kwargs={"drop_last": True})


class _MixesUp(Trainer):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        inputs, targets = batch
        share = 0.7 + 0.3 * torch.rand((), device=inputs.device)
        others = torch.randperm(len(inputs), device=inputs.device)
        outputs = self.model(share * inputs + (1 - share) * inputs[others])
        soft = share * functional.one_hot(targets, 4) + (1 - share) * functional.one_hot(targets[others], 4)
        return {"loss": functional.cross_entropy(outputs, soft), "model_outputs": outputs, "batch_size": len(inputs)}


@healthy
def mix_up() -> Script:
    """The step mixes samples and targets at random, in training only."""
    evaluation = points(96, seed=2)
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), points(), kind=_MixesUp, eval_dataset=evaluation)


@healthy
def frozen_backbone() -> Script:
    """The backbone is frozen, and not in the optimizer."""
    backbone = nn.Sequential(nn.Linear(8, 64), nn.ReLU()).requires_grad_(False)
    model = nn.Sequential(backbone, nn.Linear(64, 4))
    optimizer = Adam((one for one in model.parameters() if one.requires_grad), lr=0.02)
    return script(model, nn.CrossEntropyLoss(), points(), optimizer=optimizer)


@healthy
def several_parameter_groups() -> Script:
    """The body is trained with a tenth of the rate of the head."""
    body, head = nn.Sequential(nn.Linear(8, 32), nn.ReLU()), nn.Linear(32, 4)
    groups: list[dict[str, Any]] = [{"params": body.parameters(), "lr": 2e-3}, {"params": head.parameters()}]
    optimizer = Adam(groups, lr=2e-2)
    return script(nn.Sequential(body, head), nn.CrossEntropyLoss(), points(), optimizer=optimizer)


@healthy
def adagrad() -> Script:
    """A regression with Adagrad."""
    model = perceptron(6, 1)
    return script(model, nn.HuberLoss(), lines(), optimizer=Adagrad(model.parameters(), lr=0.05))


@healthy
def rms_prop() -> Script:
    """A classification with RMSprop."""
    model = perceptron(8, 4)
    return script(model, nn.CrossEntropyLoss(), points(), optimizer=RMSprop(model.parameters(), lr=3e-3))


@healthy
def momentum_with_a_cycle() -> Script:
    """SGD with momentum, and a scheduler that is told the length of the run."""
    model = conv_net()
    total = TrainerPlaceholderValues.NUM_EPOCHS * TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH
    return script(
        model,
        nn.CrossEntropyLoss(),
        pictures(),
        optimizer=SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True),
        create_scheduler_fn=partial(OneCycleLR, max_lr=0.1, total_steps=total),
    )


@healthy
def warm_up() -> Script:
    """The rate begins at a thousandth of its value."""
    warm = partial(LinearLR, start_factor=1e-3, total_iters=10)
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), points(), create_scheduler_fn=warm)


@healthy
def accumulated_gradients() -> Script:
    """Four small batches make an update."""
    return script(
        perceptron(8, 4), nn.CrossEntropyLoss(), points(), per_device_batch_size=8, gradient_accumulation_steps=4
    )


@healthy
def samples_of_an_update() -> Script:
    """The number of samples of an update is given."""
    return script(perceptron(6, 1), nn.MSELoss(), lines(), per_device_batch_size=16, samples_per_update=64)


@healthy
def batches_of_one_without_batch_norm() -> Script:
    """One sample a batch, with LayerNorm."""
    model = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = SGD(model.parameters(), lr=0.01)
    return script(model, nn.CrossEntropyLoss(), points(240), optimizer=optimizer, per_device_batch_size=1)


class _WithAccuracy(Trainer):
    @override
    def train_epoch_start(self) -> None:
        super().train_epoch_start()
        self.num_correct = 0

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        self.num_correct += int((output["model_outputs"].argmax(dim=1) == batch[1]).sum())
        return output

    @override
    def optimizer_step(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        super().optimizer_step()

    @override
    def optimizer_zero_grad(self) -> None:
        self.optimizer.zero_grad(set_to_none=False)


@healthy
def overridden_methods() -> Script:
    """A trainer whose overrides all do their duty."""
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), points(), kind=_WithAccuracy)


class _FrozenStatistics(Trainer):
    @override
    def train_epoch_start(self) -> None:
        super().train_epoch_start()
        for module in self.model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()


@healthy
def frozen_batch_norm() -> Script:
    """Only BatchNorm is left in evaluation mode, as it is in many a fine-tuning."""
    return script(conv_net(), nn.CrossEntropyLoss(), pictures(), kind=_FrozenStatistics)


class _NormalizesTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 4)
        self.norm = nn.BatchNorm1d(32)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.norm(self.first(inputs)).relu()
        logits: Tensor = self.head(self.norm(self.second(hidden)).relu())
        return logits


@healthy
def batch_norm_for_two_layers() -> Script:
    """One BatchNorm normalizes two layers, so that its statistics move twice in the forward pass."""
    return script(_NormalizesTwice(), nn.CrossEntropyLoss(), points())


@healthy
def random_split_of_one_set() -> Script:
    """Training and evaluation are disjoint parts of a dataset that is sorted by class."""
    train, evaluation = random_split(sorted_by_target(points(600)), [500, 100], torch.Generator().manual_seed(1))
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), train, eval_dataset=evaluation)


@healthy
def several_evaluation_sets() -> Script:
    """Two evaluation sets by name."""
    sets = {"near": points(96, seed=2), "far": points(64, seed=3)}
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), points(), eval_dataset=sets)


class _Stream(IterableDataset[tuple[Tensor, Tensor]]):
    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    @override
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(*self.data.tensors, strict=True)


@healthy
def iterable_dataset() -> Script:
    """A stream with a length, whose samples come in random order."""
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), _Stream(points()))


@healthy
def data_loaders() -> Script:
    """The script makes its loaders itself."""
    train = DataLoader(points(), batch_size=24, shuffle=True)
    evaluation = DataLoader(points(96, seed=2), batch_size=48)
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), train, eval_dataset=evaluation)


@healthy
def shuffling_off_for_unsorted_data() -> Script:
    """Shuffling is off, and the data are in random order already."""
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), points(), train_dataloader_kwargs={"shuffle": False})


@healthy
def few_samples() -> Script:
    """Two hundred samples, in batches of the default size."""
    inputs, targets = points(200, classes=3).tensors
    return script(perceptron(8, 3), nn.MultiMarginLoss(), TensorDataset(inputs, targets), per_device_batch_size=8)
