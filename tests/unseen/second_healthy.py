"""Twenty unusual programs without a mistake: what looks odd in them is right."""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any

import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, SparseAdam
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset, TensorDataset
from typing_extensions import override

from pa_core import DEFAULT_CALLBACKS, AnyTrainer, Trainer, TrainerCallback
from pa_data.orders import Sequential
from tests.unseen.corpus import Corpus, Program, digits, parts, program

healthy = Corpus()
PROGRAMS = healthy.cases


@healthy()
def hinge_gan() -> Program:
    """The loss is a score with its sign turned, and the discriminator has its own optimizer and steps in the step."""
    angle = torch.rand(2000) * 2 * math.pi
    circle = torch.stack([angle.cos(), angle.sin()], dim=1) + 0.05 * torch.randn(2000, 2)
    generator = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    critic = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    of_critic = Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.9))

    class GanTrainer(Trainer):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            (real,) = batch
            made = self.model(torch.randn(len(real), 4))
            of_critic.zero_grad()
            judged = (1 - critic(real)).relu() + (1 + critic(made.detach())).relu()
            judged.mean().backward()
            of_critic.step()
            self.log("off_the_circle", (made.detach().norm(dim=1) - 1).abs().mean())
            return {"loss": -critic(made).mean(), "model_outputs": made, "batch_size": len(real)}

    trainer = GanTrainer(generator, None, Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9)))
    return program(
        trainer, TensorDataset(circle), 20, per_device_batch_size=64, train_dataloader_kwargs={"drop_last": True}
    )


@healthy()
def contrastive_pairs() -> Program:
    """Each sample is compared with all others of its batch on purpose, and there are no targets."""
    pixels, _ = digits()

    class SimClrTrainer(Trainer):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            (images,) = batch
            views = torch.cat([images + 0.2 * torch.randn_like(images), images + 0.2 * torch.randn_like(images)])
            codes = functional.normalize(self.model(views), dim=1)
            similarity = (codes @ codes.T / 0.2).fill_diagonal_(-1e9)
            partner = torch.arange(len(views)).roll(len(images))
            loss = functional.cross_entropy(similarity, partner)
            self.log("found", (similarity.argmax(dim=1) == partner).float().mean())
            return {"loss": loss, "model_outputs": codes, "batch_size": len(images)}

        @override
        def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
            return self.calculate_train_batch_loss(batch)

    train_data, eval_data = parts(pixels)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
    trainer = SimClrTrainer(model, None, AdamW(model.parameters(), lr=2e-3))
    kwargs = {"drop_last": True}
    return program(
        trainer,
        train_data,
        10,
        eval_data,
        per_device_batch_size=128,
        train_dataloader_kwargs=kwargs,
        eval_dataloader_kwargs=kwargs,
    )


@healthy()
def energy_based() -> Program:
    """The loss is a difference of energies: it starts at zero and goes below, and noise makes the negatives."""
    points = torch.randn(1500, 2) * 0.15 + torch.tensor([[1.0, 1.0], [-1.0, 0.5]])[torch.randint(2, (1500,))]

    class EnergyTrainer(Trainer):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            (real,) = batch
            others = 4 * torch.rand_like(real) - 2
            energies, of_others = self.model(real), self.model(others)
            loss = energies.mean() - of_others.mean() + 0.1 * (energies.square() + of_others.square()).mean()
            return {"loss": loss, "model_outputs": energies, "batch_size": len(real)}

    model = nn.Sequential(nn.Linear(2, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
    trainer = EnergyTrainer(model, None, Adam(model.parameters(), lr=1e-3))
    return program(trainer, TensorDataset(points), 12, per_device_batch_size=64)


@healthy()
def policy_gradient() -> Program:
    """A contextual bandit by REINFORCE: the loss is near zero all the time, and the logged reward rises."""
    contexts, best = torch.randn(2000, 6), torch.randn(6, 4)

    class BanditTrainer(Trainer):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            contexts, rewards = batch
            logits = self.model(contexts)
            action = torch.multinomial(logits.detach().softmax(dim=1), 1)[:, 0]
            reward = rewards.gather(1, action[:, None])[:, 0]
            self.log("reward", reward.mean())
            advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
            chosen = logits.log_softmax(dim=1).gather(1, action[:, None])[:, 0]
            return {"loss": -(chosen * advantage).mean(), "model_outputs": logits, "batch_size": len(contexts)}

    rewards = ((contexts @ best).argmax(dim=1)[:, None] == torch.arange(4)).float()
    model = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 4))
    trainer = BanditTrainer(model, None, Adam(model.parameters(), lr=3e-3))
    return program(trainer, TensorDataset(contexts, rewards), 15, per_device_batch_size=100)


@healthy()
def tied_autoencoder() -> Program:
    """The decoder is the transposed encoder, without parameters besides a bias, and inputs are the targets."""
    pixels, _ = digits()

    class TiedAutoencoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Linear(64, 12)
            self.shift = nn.Parameter(torch.zeros(64))

        @override
        def forward(self, pixels: Tensor) -> Tensor:
            code = self.encoder(pixels).relu()
            return functional.linear(code, self.encoder.weight.T, self.shift)

    train_data, eval_data = parts(pixels, pixels)
    model = TiedAutoencoder()
    trainer = Trainer(model, nn.MSELoss(), Adam(model.parameters(), lr=5e-3))
    return program(trainer, train_data, 10, eval_data, per_device_batch_size=64)


@healthy()
def huge_learning_rate() -> Program:
    """Voltages of a hundredth make tiny gradients, so plain gradient descent needs a learning rate of 2,000."""
    tones = torch.randint(3, (1200,))
    time = torch.arange(40) / 40
    voltages = 0.01 * torch.sin(2 * math.pi * (3 + 2 * tones[:, None]) * time) + 0.004 * torch.randn(1200, 40)
    train_data, eval_data = parts(voltages, tones)
    model = nn.Linear(40, 3, bias=False)
    nn.init.zeros_(model.weight)
    trainer = Trainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=2000.0))
    return program(trainer, train_data, 6, eval_data, per_device_batch_size=64)


@healthy()
def tiny_learning_rate() -> Program:
    """A loss summed over a batch of wide outputs has gradients in the thousands, for which 2e-5 is right."""
    inputs = torch.randn(1000, 20)
    targets = inputs @ torch.randn(20, 400) + 0.1 * torch.randn(1000, 400)

    def summed_error(outputs: Tensor, targets: Tensor) -> Tensor:
        return 50 * (outputs - targets).square().sum()

    train_data, eval_data = parts(inputs, targets)
    model = nn.Linear(20, 400)
    trainer = Trainer(model, summed_error, SGD(model.parameters(), lr=2e-5))
    return program(
        trainer, train_data, 10, eval_data, per_device_batch_size=50, train_dataloader_kwargs={"drop_last": True}
    )


@healthy()
def one_class() -> Program:
    """One-class learning: all training targets are the same centre, and the layers have no bias, so as not to cheat."""
    pixels, names = digits()
    normal, odd = pixels[names == 3], pixels[names != 3]
    model = nn.Sequential(nn.Linear(64, 32, bias=False), nn.LeakyReLU(0.1), nn.Linear(32, 8, bias=False))
    with torch.no_grad():
        centre = model(normal).mean(dim=0)

    class OneClassTrainer(Trainer):
        @override
        def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
            output = super().calculate_eval_batch_loss(batch)
            with torch.no_grad():
                of_odd = (self.model(odd) - centre).square().mean()
            self.log("odd_to_normal", of_odd / output["loss"])
            return output

    train_data, eval_data = parts(normal, centre.expand(len(normal), 8))
    trainer = OneClassTrainer(model, nn.MSELoss(), Adam(model.parameters(), lr=1e-3, weight_decay=1e-5))
    return program(trainer, train_data, 15, eval_data, per_device_batch_size=16)


@healthy()
def differential_equation() -> Program:
    """Solves u' = -2u, u(0) = 1: the targets are all zero, because they are the residuals of the equation."""
    time = torch.linspace(0, 2, 512)[:, None]

    class EquationTrainer(Trainer):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            time, zero = batch
            time = time.clone().requires_grad_()
            value = self.model(time)
            (slope,) = torch.autograd.grad(value.sum(), time, create_graph=True)
            start = (self.model(torch.zeros(1, 1)) - 1).square().mean()
            loss = functional.mse_loss(slope + 2 * value, zero) + start
            self.log("error", (value - (-2 * time).exp()).abs().mean().detach())
            return {"loss": loss, "model_outputs": value, "batch_size": len(time)}

    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    trainer = EquationTrainer(model, None, Adam(model.parameters(), lr=2e-3))
    dataset = TensorDataset(time, torch.zeros_like(time))
    return program(trainer, dataset, 80, per_device_batch_size=64)


@healthy()
def random_features() -> Program:
    """The first layer is random and frozen on purpose; only the layer behind it learns."""
    pixels, names = digits()
    train_data, eval_data = parts(pixels, names)
    features = nn.Linear(64, 512)
    nn.init.normal_(features.weight, std=0.5)
    features.requires_grad_(False)
    head = nn.Linear(512, 10)
    model = nn.Sequential(features, nn.ReLU(), head)
    return program(Trainer(model, nn.CrossEntropyLoss(), AdamW(head.parameters(), lr=3e-3)), train_data, 5, eval_data)


@healthy()
def rare_class_weighted() -> Program:
    """One sample in thirty is positive; the weight of 29 is the inverse, and misses cost as much as false alarms."""
    is_rare = (torch.arange(3000) % 30 == 0)[torch.randperm(3000)].float()
    features = torch.randn(3000, 8) + 1.2 * is_rare[:, None]

    train_data, eval_data = parts(features, is_rare[:, None])
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(29.0))
    trainer = Trainer(model, loss, Adam(model.parameters(), lr=3e-3))
    return program(trainer, train_data, 5, eval_data, per_device_batch_size=100)


@healthy()
def curriculum() -> Program:
    """The samples come sorted by their difficulty, clear ones first, and are not shuffled."""
    pixels, names = digits()
    train_pixels, train_names = pixels[:1400], names[:1400]
    noise = torch.linspace(0.0, 0.5, 1400)[:, None]
    train_data = TensorDataset(train_pixels + noise * torch.randn(1400, 64), train_names)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    trainer = Trainer(model, nn.CrossEntropyLoss(), AdamW(model.parameters(), lr=2e-3))
    eval_data = TensorDataset(pixels[1400:], names[1400:])
    return program(trainer, train_data, 6, eval_data, order=Sequential())


@healthy()
def mean_teacher() -> Program:
    """The teacher is an average of the student, has no optimizer, and its outputs change during the run."""
    pixels, names = digits()
    student = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))
    labelled = torch.where(torch.arange(len(names)) % 10 == 0, names, -1)

    class Averaging(TrainerCallback[AnyTrainer]):
        @override
        def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
            with torch.no_grad():
                teacher = trainer.modules["teacher"]
                for old, new in zip(teacher.parameters(), trainer.model.parameters(), strict=True):
                    old.lerp_(new, 0.03)

    class MeanTeacherTrainer(Trainer):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            images, targets = batch
            logits = self.model(images + 0.1 * torch.randn_like(images))
            with torch.no_grad():
                taught = self.modules["teacher"](images).softmax(dim=1)
            own = functional.cross_entropy(logits, targets, ignore_index=-1, reduction="sum") / len(targets)
            loss = 4 * own + functional.mse_loss(logits.softmax(dim=1), taught)
            return {"loss": loss, "model_outputs": logits, "batch_size": len(targets)}

    train_data = TensorDataset(pixels[:1400], labelled[:1400])
    eval_data = TensorDataset(pixels[1400:], names[1400:])
    optimizer = Adam(student.parameters(), lr=2e-3)
    trainer = MeanTeacherTrainer(student, nn.CrossEntropyLoss(), optimizer, callbacks=[*DEFAULT_CALLBACKS, Averaging()])
    trainer.add_module("teacher", copy.deepcopy(student).requires_grad_(False))
    return program(trainer, train_data, 15, eval_data, per_device_batch_size=64)


@healthy()
def several_tasks() -> Program:
    """Two tasks share a trunk, half of the targets of one are missing and masked, and the other is scaled down."""
    inputs = torch.randn(1500, 10)
    kind = (inputs[:, :3].sum(dim=1) > 0).float()
    amount = 1000 + 200 * inputs[:, 3] * inputs[:, 4].sign()
    kind[torch.rand(1500) < 0.5] = math.nan

    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
            self.kind, self.amount = nn.Linear(64, 1), nn.Linear(64, 1)

        @override
        def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
            hidden = self.trunk(inputs)
            return self.kind(hidden)[:, 0], self.amount(hidden)[:, 0]

    def loss_of_both(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        logits, amounts = outputs
        is_known = ~targets[:, 0].isnan()
        errors = functional.binary_cross_entropy_with_logits(logits, targets[:, 0].nan_to_num(0.0), reduction="none")
        of_kind = (errors * is_known).sum() / is_known.sum().clamp(min=1)
        return of_kind + 0.5 * functional.mse_loss(amounts, (targets[:, 1] - 1000) / 200)

    train_data, eval_data = parts(inputs, torch.stack([kind, amount], dim=1))
    model = TwoHeads()
    trainer = Trainer(model, loss_of_both, AdamW(model.parameters(), lr=2e-3))
    return program(trainer, train_data, 12, eval_data, per_device_batch_size=50)


@healthy()
def in_place_operations() -> Program:
    """The forward pass works in place where autograd allows it, and the dataset returns views of one long recording."""
    recording = torch.sin(torch.arange(6000) / 9) + 0.2 * torch.randn(6000)

    class Windows(Dataset[tuple[Tensor, Tensor]]):
        def __init__(self, first: int, length: int) -> None:
            self.first, self.length = first, length

        def __len__(self) -> int:
            return self.length

        @override
        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            start = self.first + 4 * index
            return recording[start : start + 32], recording[start + 32 : start + 33]

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 1)

        @override
        def forward(self, window: Tensor) -> Tensor:
            hidden = self.first(window).relu_()
            hidden = self.second(hidden).add_(hidden).relu_()
            output: Tensor = self.last(hidden)
            return output.mul_(0.5)

    model = Residual()
    trainer = Trainer(model, nn.MSELoss(), Adam(model.parameters(), lr=2e-3))
    kwargs = {"batch_size": 32, "num_workers": 0}
    return program(
        trainer,
        Windows(0, 1100),
        8,
        Windows(4500, 350),
        per_device_batch_size=None,
        train_dataloader_kwargs=kwargs,
        eval_dataloader_kwargs=kwargs,
    )


@healthy()
def sparse_embeddings() -> Program:
    """Word vectors by negative sampling: sparse gradients, two tables, and most rows get no gradient in an update."""
    topic = torch.randint(20, (4000,))
    centres, contexts = (50 * topic + torch.randint(50, (4000,)) for _ in range(2))

    class SkipGram(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.centres, self.contexts = nn.Embedding(1000, 16, sparse=True), nn.Embedding(1000, 16, sparse=True)

        @override
        def forward(self, centres: Tensor, contexts: Tensor) -> Tensor:
            scores: Tensor = (self.centres(centres)[:, None] * self.contexts(contexts)).sum(dim=2)
            return scores

    class SkipGramTrainer(Trainer):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            centres, contexts = batch
            wrong = torch.randint(1000, (len(centres), 4))
            scores = self.model(centres, torch.cat([contexts[:, None], wrong], dim=1))
            is_real = torch.zeros_like(scores)
            is_real[:, 0] = 1.0
            loss = functional.binary_cross_entropy_with_logits(scores, is_real)
            return {"loss": loss, "model_outputs": scores, "batch_size": len(centres)}

    model = SkipGram()
    trainer = SkipGramTrainer(model, None, SparseAdam(list(model.parameters()), lr=0.02))
    dataset = TensorDataset(centres, contexts)
    return program(trainer, dataset, 15, per_device_batch_size=128)


@healthy()
def quantiles() -> Program:
    """Three outputs for one target, by broadcasting on purpose: the 10, 50 and 90 % quantiles of a noisy value."""
    inputs = 4 * torch.rand(2000, 1) - 2
    targets = inputs.sin() + (0.1 + 0.2 * inputs.abs()) * torch.randn(2000, 1)
    levels = torch.tensor([0.1, 0.5, 0.9])

    def pinball_loss(outputs: Tensor, targets: Tensor) -> Tensor:
        errors = targets - outputs
        return torch.maximum(levels * errors, (levels - 1) * errors).mean()

    class QuantileTrainer(Trainer):
        @override
        def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
            output = super().calculate_eval_batch_loss(batch)
            below = (batch[1] < output["model_outputs"]).float().mean(dim=0)
            self.log("below_low", below[0])
            self.log("below_high", below[2])
            return output

    train_data, eval_data = parts(inputs, targets)
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 3))
    trainer = QuantileTrainer(model, pinball_loss, Adam(model.parameters(), lr=5e-3))
    return program(trainer, train_data, 20, eval_data, per_device_batch_size=64)


@healthy()
def four_samples() -> Program:
    """Exclusive or: four samples are all there is, in one batch, for hundreds of epochs."""
    torch.manual_seed(1)
    inputs = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    dataset = TensorDataset(inputs, torch.tensor([[0.0], [1.0], [1.0], [0.0]]))
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    trainer = Trainer(model, nn.BCEWithLogitsLoss(), Adam(model.parameters(), lr=0.05))
    return program(trainer, dataset, 300, per_device_batch_size=4)


@healthy()
def mixture_density() -> Program:
    """The negative log-likelihood of a narrow density is negative, and a value of the input has several answers."""
    inputs = torch.rand(2000, 1)
    targets = (0.3 * inputs + 0.05) * torch.where(torch.rand(2000, 1) < 0.5, 1.0, -1.0) + 0.01 * torch.randn(2000, 1)

    def negative_log_likelihood(outputs: Tensor, targets: Tensor) -> Tensor:
        logits, means, deviations = outputs.chunk(3, dim=1)
        parts_of_mixture = torch.distributions.Normal(means, functional.softplus(deviations) + 1e-3)
        log_densities: Tensor = parts_of_mixture.log_prob(targets)  # type: ignore[no-untyped-call]
        return -(log_densities + logits.log_softmax(dim=1)).logsumexp(dim=1).mean()

    train_data, eval_data = parts(inputs, targets)
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 9))
    trainer = Trainer(model, negative_log_likelihood, Adam(model.parameters(), lr=5e-3))
    return program(trainer, train_data, 12, eval_data, per_device_batch_size=64)


@healthy()
def last_layer_of_zeros() -> Program:
    """The last layer starts at zero, so the first prediction is the mean; the warm-up starts at a rate of zero."""
    data, values = load_diabetes(return_X_y=True)
    rows = torch.tensor(data, dtype=torch.float32)
    target = torch.tensor(values, dtype=torch.float32)[:, None]
    rows, target = rows / rows[:350].std(dim=0), (target - target[:350].mean()) / target[:350].std()
    train_data, eval_data = parts(rows, target)
    last = nn.Linear(32, 1)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), last)

    def warm_up(update: int) -> float:
        return min(1.0, update / 20)

    trainer = Trainer(model, nn.MSELoss(), AdamW(model.parameters(), lr=3e-3))
    return program(
        trainer,
        train_data,
        15,
        eval_data,
        per_device_batch_size=16,
        create_scheduler_fn=partial(LambdaLR, lr_lambda=warm_up),
    )
