"""Scripts that keep state beside the parts of their run, each of which decides the weights at the end."""

from __future__ import annotations

import copy
import functools
import itertools
import random
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils.data import Dataset, TensorDataset
from typing_extensions import override

from pa_core import AnyTrainer, Run, SaveTrainingStateCallback, Trainer, TrainerCallback

NUM_UPDATES = 16


def data() -> TensorDataset:
    """The samples of all scripts but those that draw their own: 8 updates of 4 samples."""
    inputs = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


class Scripted(Trainer[nn.Module]):
    """A trainer whose loss has a factor that a subclass computes from what it keeps.

    Args:
        callbacks: Its callbacks.
        model: Its model; None for a linear one.
        loss_func: Its loss function; None for the mean squared error.
    """

    def __init__(self, *callbacks: TrainerCallback, model: nn.Module | None = None, loss_func: Any = None) -> None:
        torch.manual_seed(0)
        model = nn.Linear(4, 1) if model is None else model
        loss_func = nn.MSELoss() if loss_func is None else loss_func
        weights = [*model.parameters(), *(loss_func.parameters() if isinstance(loss_func, nn.Module) else ())]
        super().__init__(model, loss_func, SGD(weights, lr=0.05), callbacks=callbacks)

    def factor(self, loss: Tensor) -> float:
        """Return the factor of a loss."""
        return 1.0

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        output["loss"] = output["loss"] * self.factor(output["loss"].detach())
        return output


class Annealing(Scripted):
    """A counter, as for the weight of a Kullback-Leibler term."""

    step = 0

    @override
    def factor(self, loss: Tensor) -> float:
        self.step += 1
        return min(1.0, self.step / 20)


class RecentLosses(Scripted):
    """The last losses."""

    def __init__(self, *callbacks: TrainerCallback) -> None:
        super().__init__(*callbacks)
        self.recent: deque[float] = deque(maxlen=3)

    @override
    def factor(self, loss: Tensor) -> float:
        self.recent.append(loss.item())
        return 1.0 / (1.0 + sum(self.recent))


class Meter:
    """An object of the script's own, with slots for nothing."""

    def __init__(self) -> None:
        self.mean = np.zeros(2)
        self.by_kind = {"easy": [0]}
        self.ids = itertools.count()


class NestedMeter(Scripted):
    """A running mean in an object that the trainer has."""

    def __init__(self, *callbacks: TrainerCallback) -> None:
        super().__init__(*callbacks)
        self.meter = Meter()

    @override
    def factor(self, loss: Tensor) -> float:
        self.meter.mean = 0.9 * self.meter.mean + 0.1 * loss.item()
        self.meter.by_kind["easy"].append(next(self.meter.ids))
        return float(1.0 / (1.0 + self.meter.mean[0] + 0.01 * len(self.meter.by_kind["easy"])))


class Level(Enum):
    """How hard samples are."""

    EASY = "easy"
    HARD = "hard"


class Curriculum(Scripted):
    """A stage by name, one as a constant, and when it changes by a generator of the trainer's own."""

    def __init__(self, *callbacks: TrainerCallback) -> None:
        super().__init__(*callbacks)
        self.stage = "warm-up"
        self.level = Level.EASY
        self.chance = random.Random(0)
        self.noise = torch.Generator().manual_seed(0)

    @override
    def factor(self, loss: Tensor) -> float:
        if self.chance.random() < 0.2:
            self.stage = "training"
        if self.stage == "training" and self.chance.random() < 0.2:
            self.level = Level.HARD
        return (
            {"warm-up": 0.5, "training": 1.0}[self.stage]
            * (2.0 if self.level is Level.HARD else 1.0)
            * float(torch.rand((), generator=self.noise))
        )


class LowersRate(TrainerCallback):
    """A callback without a state that adds up losses."""

    def __init__(self) -> None:
        self.total = 0.0

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        self.total += float(trainer.gather(batch_output["loss"].detach().reshape(1)).mean())
        for group in trainer.optimizer.param_groups:
            group["lr"] = 0.05 / (1.0 + self.total)


def total_in_callback(*callbacks: TrainerCallback) -> Trainer[nn.Module]:
    """The rate follows from a number that a callback keeps."""
    return Scripted(*callbacks, LowersRate())


class Fades(nn.Module):
    """A layer that counts its calls in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 1)
        self.calls = 0

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        outputs: Tensor = self.inner(inputs)
        return outputs * (1.0 + 0.02 * self.calls)


def counter_in_module(*callbacks: TrainerCallback) -> Trainer[nn.Module]:
    """What a module counts decides its outputs."""
    torch.manual_seed(0)
    return Scripted(*callbacks, model=Fades())


class Centres(Fades):
    """A layer that keeps a mean in a plain tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(1)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        outputs = super().forward(inputs)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * outputs.detach().mean()
        return outputs - self.mean


def tensor_in_module(*callbacks: TrainerCallback) -> Trainer[nn.Module]:
    """A mean decides the outputs of a module."""
    torch.manual_seed(0)
    return Scripted(*callbacks, model=Centres())


def counting_loss() -> Callable[[Tensor, Tensor], Tensor]:
    """Return a loss function that counts its calls in a variable around it."""
    calls = 0

    def loss_func(outputs: Tensor, targets: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return (outputs - targets).square().mean() / calls

    return loss_func


def counter_in_closure(*callbacks: TrainerCallback) -> Trainer[nn.Module]:
    """What a loss function counts decides the loss."""
    return Scripted(*callbacks, loss_func=counting_loss())


class HalvesOnPlateau:
    """A scheduler whose state lacks how many updates were no better, as that of a widely used library does."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.updates = self.bad_updates = 0

    def step(self) -> None:
        """Halve the rate after each third update."""
        self.updates += 1
        self.bad_updates += 1
        if self.bad_updates == 3:
            self.bad_updates = 0
            for group in self.optimizer.param_groups:
                group["lr"] /= 2

    def state_dict(self) -> dict[str, int]:
        """Return a part of what counts."""
        return {"updates": self.updates}

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Take it back."""
        self.updates = state_dict["updates"]


class WithTeacher(Scripted):
    """A student and the average of its weights, as in BYOL and DINO."""

    def __init__(self, *callbacks: TrainerCallback) -> None:
        super().__init__(*callbacks)
        self.add_module("teacher", copy.deepcopy(self.model).requires_grad_(False))

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        with torch.no_grad():
            target = self.modules["teacher"](batch[0])
        output["loss"] = output["loss"] + (output["model_outputs"] - target).square().mean()
        return output

    @override
    def optimizer_step(self) -> None:
        super().optimizer_step()
        self.follow(zip(self.modules["teacher"].parameters(), self.model.parameters(), strict=True))

    def follow(self, pairs: Any) -> None:
        """Move the teacher towards the student."""
        for of_teacher, of_student in pairs:
            of_teacher.data.mul_(0.9).add_(of_student.data, alpha=0.1)


class ReplacedTeacher(WithTeacher):
    """The same, with new tensors in the parameters."""

    @override
    def follow(self, pairs: Any) -> None:
        for of_teacher, of_student in pairs:
            of_teacher.data = of_teacher.data * 0.9 + of_student.data * 0.1


class Queue(nn.Module):
    """The last keys, as in MoCo, and where the next ones go."""

    keys: Tensor
    at: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(8))
        self.register_buffer("at", torch.zeros((), dtype=torch.int64))


class WithQueue(Scripted):
    """A memory of outputs."""

    def __init__(self, *callbacks: TrainerCallback) -> None:
        super().__init__(*callbacks)
        self.add_module("queue", Queue().eval())

    @override
    def optimizer_step(self) -> None:
        super().optimizer_step()
        queue: Any = self.modules["queue"]
        queue.keys[int(queue.at)] = next(self.model.parameters()).detach().sum()
        queue.at += 1
        queue.at %= 8

    @override
    def factor(self, loss: Tensor) -> float:
        queue: Any = self.modules["queue"]
        return 1.0 / (1.0 + float(queue.keys.square().sum()))


class TaskWeights(nn.Module):
    """A loss function with a trained weight for each of two tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.log_variances = nn.Parameter(torch.zeros(2))

    @override
    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        errors = torch.stack([(outputs - targets).square().mean(), (outputs - targets).abs().mean()])
        return ((-self.log_variances).exp() * errors + self.log_variances).sum()


class Centred(nn.Module):
    """A loss function whose centre is another tensor after each step, as in DINO."""

    centre: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(1))

    @override
    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.move(outputs.detach().mean())
        return (outputs - targets - self.centre).square().mean()

    def move(self, mean: Tensor) -> None:
        """Move the centre."""
        self.centre = 0.9 * self.centre + 0.1 * mean


class CentredInPlace(Centred):
    """The same, in the same tensor."""

    @override
    def move(self, mean: Tensor) -> None:
        self.centre.mul_(0.9).add_(0.1 * mean)


class Projected(nn.Module):
    """A loss function with a trained network, as those for metric learning have."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))

    @override
    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        projected: Tensor = self.head(outputs)
        return (projected - targets).square().mean()


TRAINERS: dict[str, Callable[..., Trainer[nn.Module]]] = {
    "teacher": WithTeacher,
    "teacher, replaced": ReplacedTeacher,
    "queue": WithQueue,
    "annealing": Annealing,
    "recent losses": RecentLosses,
    "nested": NestedMeter,
    "curriculum": Curriculum,
    "callback": total_in_callback,
    "module": counter_in_module,
    "tensor in module": tensor_in_module,
    "closure": counter_in_closure,
    "plateau": Scripted,
}
"""What the state is kept in."""


def train(kind: str, folder: Path, *callbacks: TrainerCallback, **options: Any) -> str:
    """Train one of the scripts, and return its fingerprint; it resumes from states in the folder."""
    saving = SaveTrainingStateCallback(folder, save_every_n_steps=1)
    trainer = TRAINERS[kind](*callbacks, saving)
    if kind == "plateau":
        options["create_scheduler_fn"] = HalvesOnPlateau
    size = 4 // trainer.num_processes
    trainer.train(data(), 2, per_device_batch_size=size, resume_from=folder, resume_missing="start", **options)
    return trainer.fingerprint()


class Discriminator(Fades):
    """One that becomes stricter with each call."""


def train_gan(folder: Path, *callbacks: TrainerCallback) -> str:
    """Train a generator and a discriminator that counts its calls, in a loop of the script's own."""
    torch.manual_seed(0)
    models = {"generator": nn.Linear(4, 4), "discriminator": Discriminator()}
    optimizers = {name: SGD(model.parameters(), lr=0.05) for name, model in models.items()}
    saving = SaveTrainingStateCallback(folder, save_every_n_steps=1)
    run = Run(
        models,
        optimizers,
        train_dataset=data(),
        num_epochs=2,
        samples_per_update=4,
        callbacks=[*callbacks, saving],
        resume_from=folder,
        resume_missing="start",
    )
    with run:
        for _ in run.epochs():
            for update in run.updates():
                for inputs, _ in update:
                    fake, discriminator = models["generator"](inputs), models["discriminator"]
                    loss = discriminator(fake.detach()).mean() - discriminator(inputs).mean()
                    update.backward(loss, model="discriminator")
                    update.backward(-discriminator(fake).mean(), model="generator")
                update.step("discriminator")
                update.step("generator")
    return run.fingerprint()


class OwnNoise(Dataset[tuple[Tensor, Tensor]]):
    """Samples with noise of a generator that the dataset owns."""

    def __init__(self, generator: Any = None) -> None:
        self.generator = np.random.default_rng(0) if generator is None else generator

    def __len__(self) -> int:
        """Return the number of samples."""
        return 32

    def draw(self) -> float:
        """Return the noise of a sample."""
        return float(self.generator.random())

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.full((4,), index / 32 + self.draw()), torch.ones(1)


class Jitter:
    """A transform with a generator of Python's."""

    def __init__(self) -> None:
        self.chance = random.Random(0)

    def __call__(self) -> float:
        """Return the noise of a sample."""
        return self.chance.random()


class Transformed(OwnNoise):
    """Samples with noise of a transform."""

    def __init__(self) -> None:
        super().__init__()
        self.transform = Jitter()

    @override
    def draw(self) -> float:
        return self.transform()


class Counted(OwnNoise):
    """Samples that depend on how many were fetched before."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched = 0

    @override
    def draw(self) -> float:
        self.fetched += 1
        return (self.fetched % 7) / 7


class SeededEach(OwnNoise):
    """Samples whose generator is seeded for each of them, out of torch's."""

    @override
    def draw(self) -> float:
        self.generator = np.random.default_rng(int(torch.randint(2**62, ())))
        return super().draw()


class SeededInPlace(OwnNoise):
    """The same, with one generator."""

    def __init__(self) -> None:
        super().__init__(random.Random(0))

    @override
    def draw(self) -> float:
        cast("random.Random", self.generator).seed(int(torch.randint(2**62, ())))
        return super().draw()


class CountsAlone(OwnNoise):
    """Samples that nothing drawn decides, of a dataset that counts and keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched = 0
        self.kept: dict[float, float] = {}

    @override
    def draw(self) -> float:
        self.fetched += 1
        return self.kept.setdefault(0.5, 0.5)


class MakesLate(OwnNoise):
    """The same, with a generator that the first sample makes, where samples are fetched."""

    def __init__(self) -> None:
        self.generator = None

    @override
    def draw(self) -> float:
        self.generator = self.generator or np.random.default_rng(0)
        return super().draw()


class DrawsInCollation:
    """A collation with a seed of its own, as some of language models have."""

    def __init__(self) -> None:
        self.generator: torch.Generator | None = torch.Generator().manual_seed(42)

    def __call__(self, samples: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """Return a batch with noise."""
        inputs, targets = (torch.stack(one) for one in zip(*samples, strict=True))
        return [inputs + torch.rand((), generator=self.generator), targets]


class SeedsLate(DrawsInCollation):
    """The same, which the first batch makes a generator for, as transformers 5 does."""

    def __init__(self) -> None:
        self.generator = None

    @override
    def __call__(self, samples: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        self.generator = self.generator or torch.Generator().manual_seed(42)
        return super().__call__(samples)


class OfMethod:
    """A collation that is a method, and draws from NumPy's older generator."""

    def __init__(self) -> None:
        self.chance = np.random.RandomState(0)

    def collate(self, samples: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """Return a batch with noise."""
        inputs, targets = (torch.stack(one) for one in zip(*samples, strict=True))
        return [inputs + self.chance.rand(), targets]


def _collate(samples: list[tuple[Tensor, Tensor]], chance: random.Random) -> list[Tensor]:
    inputs, targets = (torch.stack(one) for one in zip(*samples, strict=True))
    return [inputs + chance.random(), targets]


def bound_collation() -> Callable[[list[tuple[Tensor, Tensor]]], list[Tensor]]:
    """A collation to which a generator was bound."""
    return functools.partial(_collate, chance=random.Random(0))
