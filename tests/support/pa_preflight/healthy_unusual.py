"""Scripts without a mistake that look as if they had one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset, WeightedRandomSampler
from typing_extensions import override

from pa_core import AnyTrainer, Trainer, TrainerCallback
from pa_data.orders import ClassBalanced
from tests.support.pa_preflight.data import bytes_of, lines, masks, pictures, points, texts
from tests.support.pa_preflight.healthy_models import Autoencoder, TextClassifier, Unet
from tests.support.pa_preflight.scripts import Apply, Healthy, Script, conv_net, perceptron, script

healthy = Healthy()


def _with_zero_head(outputs: int) -> nn.Sequential:
    head = nn.Linear(32, outputs)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), head)


@healthy
def head_of_zeros() -> Script:
    """The last layer begins with zeros, as in many vision transformers, so all first outputs are equal."""
    return script(_with_zero_head(4), nn.CrossEntropyLoss(), points())


@healthy
def head_of_zeros_with_bce() -> Script:
    """The same for several labels: all first logits are 0."""
    return script(_with_zero_head(5), nn.BCEWithLogitsLoss(), labels_with_noise())


def labels_with_noise() -> TensorDataset:
    """Five labels a sample, a twentieth of them wrong."""
    inputs, values = lines(features=8, outputs=5).tensors
    flips = torch.rand(values.shape, generator=torch.Generator().manual_seed(3)) < 0.05
    return TensorDataset(inputs, ((values > 0) ^ flips).float())


@healthy
def prior_as_bias() -> Script:
    """The bias of the last layer begins at the logarithm of the odds, as one label in ten is set."""
    inputs, values = lines().tensors
    head = nn.Linear(32, 1)
    nn.init.normal_(head.weight, std=0.001)
    nn.init.constant_(head.bias, -2.2)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), head)
    return script(model, nn.BCEWithLogitsLoss(), TensorDataset(inputs, (values > 1.28).float()))


class _IgnoresTheRest(Trainer):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        return super().calculate_train_batch_loss(batch[:2])


@healthy
def third_item_is_an_index() -> Script:
    """Samples end with their number in the file, which the step does not use."""
    inputs, targets = points().tensors
    data = TensorDataset(inputs, targets, torch.arange(len(inputs)))
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), data, kind=_IgnoresTheRest)


class _Reconstructs(Trainer):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        inputs, _ = batch
        outputs = self.model(inputs)
        loss = (outputs - inputs).square().mean()
        return {"loss": loss, "model_outputs": outputs, "batch_size": len(inputs)}


@healthy
def autoencoder_of_labelled_samples() -> Script:
    """The dataset has labels, and an autoencoder needs none."""
    inputs = lines(480, features=4, outputs=12).tensors[1]
    data = TensorDataset(inputs, torch.randint(0, 4, (480,), generator=torch.Generator().manual_seed(3)))
    return script(Autoencoder(), None, data, kind=_Reconstructs)


@healthy
def pictures_from_one_folder() -> Script:
    """Unlabelled samples come with the label 0, as from a folder of one class, for an autoencoder."""
    inputs = lines(480, features=4, outputs=12).tensors[1]
    data = TensorDataset(inputs, torch.zeros(480, dtype=torch.long))
    return script(Autoencoder(), None, data, kind=_Reconstructs)


class _Variational(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
        self.decoder = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 64))

    @override
    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(images).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decoder(code), mean, log_variance


class _MaximisesEvidence(Trainer):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        images, _ = batch
        outputs, mean, log_variance = self.model(images)
        error = functional.mse_loss(outputs, images.flatten(1), reduction="sum")
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
        return {"loss": (error + divergence) / len(images), "model_outputs": outputs, "batch_size": len(images)}

    @override
    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        return self.calculate_train_batch_loss(batch)


@healthy
def variational_autoencoder() -> Script:
    """Codes are drawn at random in evaluations too, and labels are not used."""
    evaluation = pictures(80, seed=2)
    return script(_Variational(), None, pictures(), kind=_MaximisesEvidence, eval_dataset=evaluation)


class _Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.of_time = nn.Sequential(nn.Linear(16, 32), nn.SiLU())
        self.of_inputs = nn.Linear(8, 32)
        self.head = nn.Sequential(nn.SiLU(), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 8))

    @override
    def forward(self, inputs: Tensor, times: Tensor) -> Tensor:
        frequencies = torch.exp(-torch.arange(8, device=times.device))
        angles = times[:, None] * frequencies
        waves = torch.cat([angles.sin(), angles.cos()], dim=1)
        noise: Tensor = self.head(self.of_inputs(inputs) + self.of_time(waves))
        return noise


class _Diffuses(Trainer):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        inputs, _ = batch
        times = torch.randint(0, 1000, (len(inputs),), device=inputs.device).float()
        share = torch.cos(times / 1000 * torch.pi / 2)[:, None]
        noise = torch.randn_like(inputs)
        outputs = self.model(share * inputs + (1 - share.square()).sqrt() * noise, times)
        return {"loss": functional.mse_loss(outputs, noise), "model_outputs": outputs, "batch_size": len(inputs)}

    @override
    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        return self.calculate_train_batch_loss(batch)


@healthy
def diffusion() -> Script:
    """Times up to 1,000 and noise are drawn at random, in evaluations too."""
    return script(_Denoiser(), None, points(), kind=_Diffuses, eval_dataset=points(96, seed=2))


@healthy
def normalised_in_the_model() -> Script:
    """Pictures have floats from 0 to 255, and the first layer of the model normalises them."""
    model = nn.Sequential(Apply(lambda images: (images - 127.5) / 60), conv_net())
    evaluation = bytes_of(pictures(80, seed=2))
    return script(model, nn.CrossEntropyLoss(), bytes_of(pictures()), eval_dataset=evaluation)


@healthy
def noam_schedule() -> Script:
    """The optimizer has a rate of 1, and the schedule has the rates, as in "Attention is all you need"."""
    model = TextClassifier()
    schedule = partial(LambdaLR, lr_lambda=lambda step: 0.05 * min((step + 1) ** -0.5, (step + 1) / 20))
    optimizer = Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98))
    return script(model, nn.CrossEntropyLoss(), texts(), optimizer=optimizer, create_scheduler_fn=schedule)


@healthy
def warm_up_from_zero() -> Script:
    """The rate of the first update is 0."""
    warm = partial(LambdaLR, lr_lambda=lambda step: min(1.0, step / 10))
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), points(), create_scheduler_fn=warm)


class _LayerDrop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 32)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(4))
        self.head = nn.Linear(32, 4)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        hidden: Tensor = self.first(inputs)
        for layer in self.layers:
            if not self.training or random.random() > 0.5:
                hidden = hidden + layer(hidden)
        logits: Tensor = self.head(hidden)
        return logits


@healthy
def layers_dropped_at_random() -> Script:
    """In training, layers are left out of half of the batches."""
    return script(_LayerDrop(), nn.CrossEntropyLoss(), points(), eval_dataset=points(96, seed=2))


class _TrainsTheHead(Trainer):
    @override
    def train_epoch_start(self) -> None:
        super().train_epoch_start()
        self.model.eval()
        self.model.get_submodule("1").train()


@healthy
def linear_probe() -> Script:
    """The model is in evaluation mode, and its head in training mode: the rest is frozen."""
    model = nn.Sequential(conv_net(16).requires_grad_(False), nn.Sequential(nn.Dropout(0.1), nn.Linear(16, 4)))
    optimizer = Adam(model.get_submodule("1").parameters(), lr=0.01)
    return script(model, nn.CrossEntropyLoss(), pictures(), optimizer=optimizer, kind=_TrainsTheHead)


class _FrozenStatistics(Trainer):
    @override
    def train_epoch_start(self) -> None:
        super().train_epoch_start()
        for module in self.model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()


@healthy
def frozen_batch_norm_with_batches_of_one() -> Script:
    """BatchNorm keeps its statistics, as in detection, where a batch is one picture."""
    model = conv_net()
    optimizer = SGD(model.parameters(), lr=0.01)
    return script(
        model,
        nn.CrossEntropyLoss(),
        pictures(160),
        optimizer=optimizer,
        kind=_FrozenStatistics,
        per_device_batch_size=1,
    )


@healthy
def training_samples_evaluated_too() -> Script:
    """One of two evaluation sets has samples of the training set, to compare both."""
    data = points()
    sets = {"seen": Subset(data, range(96)), "unseen": points(96, seed=2)}
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), data, eval_dataset=sets)


@healthy
def weighted_sampler() -> Script:
    """A sampler of the script draws rare classes more often."""
    inputs, targets = points().tensors
    weights = (1.0 / targets.bincount())[targets]
    sampler = WeightedRandomSampler(cast("Any", weights), len(targets))
    data = TensorDataset(inputs, targets)
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), data, train_dataloader_kwargs={"sampler": sampler})


@healthy
def balanced_order() -> Script:
    """An order of the library draws equally many samples of each class."""
    data = points()
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), data, order=ClassBalanced(data.tensors[1]))


@healthy
def batch_size_of_the_loaders() -> Script:
    """The batch sizes are among the arguments of the loaders, and the last batch is left out."""
    model = perceptron(8, 4)
    optimizer = Adam(model.parameters(), lr=0.01)
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[])
    arguments: dict[str, Any] = {
        "train_dataset": points(),
        "num_epochs": 3,
        "eval_dataset": points(96, seed=2),
        "train_dataloader_kwargs": {"batch_size": 64, "drop_last": True},
        "eval_dataloader_kwargs": {"batch_size": 96, "drop_last": True},
    }
    return Script(trainer, arguments)


class _MakesItsLoader(Trainer):
    @override
    def create_train_dataloader(self, batch_size: int, train_dl_kwargs: dict[str, Any] | None = None) -> Any:
        return DataLoader(self.train_dataset, batch_size=2 * batch_size, shuffle=True, drop_last=True)


@healthy
def loader_of_an_override() -> Script:
    """``create_train_dataloader`` is overridden, with another batch size."""
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), points(), kind=_MakesItsLoader)


class _Endless(IterableDataset[tuple[Tensor, Tensor]]):
    @override
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        seed = 1
        while True:
            yield from zip(*points(128, seed=seed).tensors, strict=True)
            seed += 1


@healthy
def endless_stream() -> Script:
    """A stream without a length, and a number of updates."""
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), _Endless(), max_num_train_steps=60)


class _SolvesAnEquation(Trainer):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        (times,) = batch
        times = times.requires_grad_()
        outputs = self.model(times)
        (slopes,) = torch.autograd.grad(outputs.sum(), times, create_graph=True)
        start = self.model(torch.zeros_like(times[:1]))
        loss = (slopes + outputs).square().mean() + (start - 1).square().mean()
        return {"loss": loss, "model_outputs": outputs, "batch_size": len(times)}


@healthy
def differential_equation() -> Script:
    """The loss has a derivative by the inputs, and there are no targets."""
    times = torch.rand(480, 1, generator=torch.Generator().manual_seed(1))
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
    return script(model, None, TensorDataset(times), kind=_SolvesAnEquation)


class _PenalisesGradients(Trainer):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        inputs, targets = batch
        inputs = inputs.clone().requires_grad_()
        outputs = self.model(inputs)
        (gradients,) = torch.autograd.grad(outputs.square().sum(), inputs, create_graph=True)
        loss = functional.mse_loss(outputs, targets) + 1e-3 * gradients.square().sum(dim=1).mean()
        return {"loss": loss, "model_outputs": outputs, "batch_size": len(inputs)}


@healthy
def gradient_penalty() -> Script:
    """The loss has a penalty of the gradients by the inputs."""
    return script(perceptron(6, 1), None, lines(), kind=_PenalisesGradients)


class _Distils(Trainer):
    teacher: nn.Module

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        inputs, _ = batch
        with torch.no_grad():
            wanted = self.teacher(inputs).log_softmax(dim=1)
        outputs = self.model(inputs)
        loss = functional.kl_div(outputs.log_softmax(dim=1), wanted, reduction="batchmean", log_target=True)
        return {"loss": loss, "model_outputs": outputs, "batch_size": len(inputs)}


@healthy
def distillation() -> Script:
    """The student learns the outputs of a teacher, which was trained on the labels that it does not see."""
    teacher = perceptron(8, 4)
    first = Trainer(teacher, nn.CrossEntropyLoss(), Adam(teacher.parameters(), lr=0.01), callbacks=[])
    first.train(points(), num_epochs=3, per_device_batch_size=32)
    made = script(nn.Linear(8, 4), None, points(), kind=_Distils)
    cast("_Distils", made.trainer).teacher = teacher.eval()
    return made


@healthy
def continued_training() -> Script:
    """The model has been trained already, and has little left to learn."""
    made = script(perceptron(6, 1), nn.MSELoss(), lines(), eval_dataset=lines(96, seed=2))
    longer: dict[str, Any] = {**made.arguments, "num_epochs": 20}
    made.trainer.train(**longer)
    return Script(made.trainer, {**made.arguments, "reset_run_history": False})


class _NeedsWeights(Trainer):
    weights: Tensor

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        inputs, targets = batch
        outputs = self.model(inputs)
        losses = functional.cross_entropy(outputs, targets, reduction="none")
        return {
            "loss": (losses * self.weights[targets]).mean(),
            "model_outputs": outputs,
            "batch_size": len(inputs),
        }


class _MakesWeights(TrainerCallback):
    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        cast("_NeedsWeights", trainer).weights = torch.tensor([1.0, 1.0, 2.0, 3.0])


@healthy
def weights_made_by_a_callback() -> Script:
    """The step needs what a callback of the script makes at the start of the run."""
    model = perceptron(8, 4)
    trainer = _NeedsWeights(model, None, Adam(model.parameters(), lr=0.01), callbacks=[_MakesWeights])
    return Script(trainer, {"train_dataset": points(), "num_epochs": 3, "per_device_batch_size": 32})


@dataclass
class _Batch:
    inputs: Tensor
    targets: Tensor


def _batch(samples: list[tuple[Tensor, Tensor]]) -> _Batch:
    inputs, targets = zip(*samples, strict=True)
    return _Batch(torch.stack(inputs), torch.stack(targets))


class _TakesBatches(Trainer):
    @override
    def calculate_train_batch_loss(self, batch: _Batch) -> dict[str, Any]:
        return super().calculate_train_batch_loss((batch.inputs, batch.targets))


@healthy
def batches_as_dataclasses() -> Script:
    """A ``collate_fn`` makes an object of each batch."""
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), points(), kind=_TakesBatches, collate_fn=_batch)


class _WithFloatMask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.head = nn.Linear(16, 3)

    @override
    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        summed = (self.embedding(tokens) * mask.unsqueeze(2)).sum(dim=1)
        logits: Tensor = self.head(summed / mask.sum(dim=1, keepdim=True))
        return logits


class _Masked(Trainer):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        tokens, mask, targets = batch
        outputs = self.model(tokens, mask)
        return {
            "loss": functional.cross_entropy(outputs, targets),
            "model_outputs": outputs,
            "batch_size": len(tokens),
        }

    @override
    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        return self.calculate_train_batch_loss(batch)


@healthy
def padding_in_the_evaluation_only() -> Script:
    """Texts of the training set are cut to one length, and those of the evaluation are padded."""
    tokens, targets = texts().tensors
    others, other_targets = texts(80, seed=2).tensors
    mask = torch.ones(80, 12)
    mask[::2, 8:] = 0
    data = TensorDataset(tokens, torch.ones(320, 12), targets)
    evaluation = TensorDataset(others, mask, other_targets)
    return script(_WithFloatMask(), None, data, kind=_Masked, eval_dataset=evaluation)


class _GraphNet(nn.Module):
    def __init__(self, links: Tensor) -> None:
        super().__init__()
        self.links: Tensor
        self.register_buffer("links", links / links.sum(dim=1, keepdim=True))
        self.first = nn.Linear(8, 32)
        self.head = nn.Linear(32, 4)

    @override
    def forward(self, nodes: Tensor) -> Tensor:
        hidden = (self.links @ self.first(nodes)).relu()
        logits: Tensor = self.head(self.links @ hidden)
        return logits


@healthy
def nodes_of_a_graph() -> Script:
    """The only sample is a graph, whose nodes are classified by their neighbours."""
    inputs, targets = points(200).tensors
    links = (targets[:, None] == targets[None]) & (torch.rand(200, 200) < 0.1) | torch.eye(200).bool()
    data = TensorDataset(inputs.unsqueeze(0), targets.unsqueeze(0))

    def only(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        return samples[0]

    model = _GraphNet(links.float())
    return script(model, nn.CrossEntropyLoss(), data, num_epochs=60, per_device_batch_size=1, collate_fn=only)


@healthy
def dice_loss() -> Script:
    """A loss of the whole batch that torch does not have."""

    def dice(outputs: Tensor, targets: Tensor) -> Tensor:
        chances = outputs.softmax(dim=1)[:, 1]
        both = (chances * targets).sum()
        return 1 - 2 * both / (chances.sum() + targets.sum())

    return script(Unet(), dice, masks(), per_device_batch_size=16)


@healthy
def targets_far_from_zero() -> Script:
    """Targets of 2 with a deviation of a half, whose mean the network has to learn first."""
    inputs, targets = lines().tensors
    return script(perceptron(6, 1), nn.MSELoss(), TensorDataset(inputs, 2 + 0.5 * targets))


@healthy
def missing_targets_masked() -> Script:
    """Some targets are NaN, which the loss leaves out."""
    inputs, targets = lines(outputs=3).tensors
    targets[torch.rand(targets.shape, generator=torch.Generator().manual_seed(3)) < 0.2] = float("nan")

    def masked(outputs: Tensor, wanted: Tensor) -> Tensor:
        known = ~wanted.isnan()
        return functional.mse_loss(outputs[known], wanted[known])

    return script(perceptron(6, 3), masked, TensorDataset(inputs, targets))


@healthy
def small_rate() -> Script:
    """A rate as for fine-tuning, which is high enough for a wide network."""
    model = perceptron(8, 4, hidden=2048)
    optimizer = Adam(model.parameters(), lr=3e-5)
    return script(model, nn.CrossEntropyLoss(), points(), optimizer=optimizer)
