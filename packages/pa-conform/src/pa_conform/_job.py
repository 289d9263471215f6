"""What a loop is asked to train, and what is written down while it does: the side of the kit inside the adapter's processes."""

from __future__ import annotations

import json
import math
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from torch import nn
from torch.optim.lr_scheduler import (
    ExponentialLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from torch.utils.data import Dataset, IterableDataset
from typing_extensions import override

Sample: TypeAlias = tuple[torch.Tensor, torch.Tensor]

IGNORED = -100.0
"""The target of a token that no loss counts."""
FEATURES, TOKENS, BALLAST = 4, 4, 200_000
MOST_WRITTEN = 200_000
"""The bytes after which a file that is written breaks off, where a process is killed in a save: less than `BALLAST`."""


def features(sample: int, token: int = 0) -> list[float]:
    """The inputs of one sample, by arithmetic: the kit computes them again where it checks weights."""
    return [math.cos((sample + 1) * (number + 1) * 0.7 + token) for number in range(FEATURES)]


def target(sample: int, token: int = 0, *, slope: float = 1.0) -> float:
    """What is to be predicted of one sample; the model learns `slope` as each of its four weights."""
    return slope * sum(features(sample, token)) + 0.1 * math.sin(sample)


def tokens(sample: int) -> int:
    """The number of tokens of one sample that count."""
    return 1 + sample % TOKENS


class _Samples(Dataset[Sample]):
    def __init__(self, job: Job, length: int, slope: float) -> None:
        self.job, self.length, self.slope = job, length, slope

    def __len__(self) -> int:
        return self.length

    @override
    def __getitem__(self, index: int) -> Sample:
        draws = [torch.rand(()).item(), random.random()] if self.job.augment else [0.0, 0.0]
        if not self.job.tokens:
            y = target(index, slope=self.slope)
            return torch.tensor([index, *draws, *features(index)]), torch.tensor(y)
        counted = tokens(index)
        y_of = [target(index, token) if token < counted else IGNORED for token in range(TOKENS)]
        return torch.tensor([[index, *draws, *features(index, token)] for token in range(TOKENS)]), torch.tensor(y_of)


class _Stream(IterableDataset[Sample]):
    def __init__(self, samples: _Samples) -> None:
        self.samples = samples

    @override
    def __iter__(self) -> Iterator[Sample]:
        return (self.samples[index] for index in range(len(self.samples)))


class _SizedStream(_Stream):
    def __len__(self) -> int:
        return len(self.samples)


class _Model(nn.Module):
    def __init__(self, job: Job) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)
        for number, layer in enumerate((self.first, self.second)):
            nn.init.constant_(layer.weight, 0.01 * (number + 1))
        self.norm = nn.BatchNorm1d(FEATURES) if job.frozen else nn.Identity()
        self.drop = nn.Dropout(job.dropout)
        if job.unused:
            self.unused = nn.Linear(1, 1, bias=False)
        if job.ballast:
            self.register_buffer("ballast", torch.zeros(BALLAST))

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        firsts = x[:, 0] if x.dim() == 3 else x
        kept = self.drop(torch.ones(len(x))) if self.drop.p else torch.ones(len(x))
        broken = _now().forward(self.training, firsts[:, 0].tolist(), firsts[:, 1:3].tolist(), kept.tolist())
        inputs = self.norm(x[..., 3:])
        outputs = (self.first(inputs[..., :2]) + self.second(inputs[..., 2:])).squeeze(-1)
        return outputs * math.nan if broken else outputs


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that a loop is to do in one training.

    An adapter reads what its questions need. Numbers that are zero, and strings that are empty, ask for nothing.

    Args:
        folder: where states are saved, and where a run that resumes finds them.
        samples: how many samples there are in `train_set()`, or in its stream.
        batch: samples of a batch of one process.
        epochs: how many times the samples are trained on.
        accumulate: batches of one update; the last group of an epoch may be shorter, and never goes on in the next.
        processes: how many processes train together.
        rank: the number of this process among them.
        seed: of the order of samples, and of everything random.
        rate: the learning rate, or the highest one of a schedule.
        save_every: after how many updates a state is saved. Loops that save at ends of epochs only may do that.
        resume: whether to go on from the newest state in `folder`.
        eval_samples: how many samples there are in `eval_set()`, which is evaluated after every epoch.
        schedule: what the schedule follows: every `"epochs"`, every update (`"updates"`, `"chained"`), or the loss of
            every evaluation (`"plateau"`).
        clip: the largest norm of the gradients, applied to the average over the whole update.
        tokens: whether samples have several tokens; the loss of an update is the mean over all tokens of the update.
        workers: processes of every data loader.
        augment: whether samples draw random numbers, from `torch` and from `random`.
        weighted: whether samples are drawn with `weights()` and with replacement.
        stream: whether `train_set()` is an iterable: `"sized"` has a length, `"unsized"` has none.
        ema: the decay of averaged weights, updated after every update.
        best: whether to hand the weights of the lowest evaluation loss to `Seen.finished`.
        patience: after how many evaluations in a row without a lower loss training stops.
        optimizers: 1, or 2, each with a half of the weights; both step in every update.
        dropout: the rate of the model's dropout layer.
        frozen: whether the layer `norm` is to stay as it is, its statistics included.
        unused: whether the model has a parameter that no output depends on.
        ballast: whether the model has a large buffer.
        timeout: after how many seconds a process stops waiting for others.
    """

    folder: str
    samples: int = 24
    batch: int = 4
    epochs: int = 2
    accumulate: int = 1
    processes: int = 1
    rank: int = 0
    seed: int = 0
    rate: float = 0.1
    save_every: int = 0
    resume: bool = False
    eval_samples: int = 0
    schedule: Literal["", "epochs", "updates", "plateau", "chained"] = ""
    clip: float = 0.0
    tokens: bool = False
    workers: int = 0
    augment: bool = False
    weighted: bool = False
    stream: Literal["", "sized", "unsized"] = ""
    ema: float = 0.0
    best: bool = False
    patience: int = 0
    optimizers: int = 1
    dropout: float = 0.0
    frozen: bool = False
    unused: bool = False
    ballast: bool = False
    timeout: float = 60.0

    @property
    def updates_per_epoch(self) -> int:
        """Updates of an epoch, the shorter last one included."""
        return math.ceil(math.ceil(self.samples / self.batch / self.processes) / self.accumulate)

    @property
    def updates(self) -> int:
        """Updates of the whole training: the steps of a schedule that follows updates."""
        return self.epochs * self.updates_per_epoch

    def train_set(self) -> Dataset[Sample]:
        """The samples to train on: pairs of inputs and a target."""
        samples = _Samples(self, self.samples, 1.0)
        if not self.stream:
            return samples
        return _SizedStream(samples) if self.stream == "sized" else _Stream(samples)

    def eval_set(self) -> Dataset[Sample]:
        """The samples to evaluate on; the weights of the lowest loss on them are passed on the way to those of training."""
        return _Samples(self, self.eval_samples, 0.5)

    def weights(self) -> list[float]:
        """How likely each sample is drawn: every second one never."""
        return [float(index % 2) for index in range(self.samples)]

    def model(self) -> nn.Module:
        """The model, whose `forward` takes the inputs of a batch, and notes which samples they are."""
        return _now().watch(_Model(self))

    def make_optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        """One optimizer, or two where `optimizers` is 2. Their steps are noted."""
        named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        halves = [[p for n, p in named if ("second" in n) == second] for second in (False, True)]
        groups = halves if self.optimizers == 2 else [[*halves[0], *halves[1]]]
        made = [torch.optim.SGD(group, lr=self.rate / (number + 1)) for number, group in enumerate(groups)]
        for optimizer in made:
            optimizer.register_step_post_hook(lambda stepped, *_: _now().step(stepped.param_groups[0]["lr"]))
        return list(made)

    def make_schedule(self, optimizer: torch.optim.Optimizer) -> LRScheduler | None:
        """The schedule that `schedule` names, or None."""
        match self.schedule:
            case "epochs":
                return StepLR(optimizer, 1, 0.5)
            case "updates":
                return OneCycleLR(optimizer, self.rate, self.updates, cycle_momentum=False)
            case "plateau":
                return ReduceLROnPlateau(optimizer, patience=0)
            case "chained":
                parts = [LinearLR(optimizer, 0.1, total_iters=4), ExponentialLR(optimizer, 0.8)]
                return SequentialLR(optimizer, parts, [4])
            case _:
                return None

    def losses(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The squared error of each sample or token, zero for tokens that do not count."""
        return torch.where(y == IGNORED, 0.0, (outputs - y) ** 2)

    def count(self, y: torch.Tensor) -> torch.Tensor:
        """How many samples or tokens of a batch count."""
        return (y != IGNORED).sum()

    def loss(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The mean of `losses()` over what counts."""
        return self.losses(outputs, y).sum() / self.count(y)

    def metric(self, outputs: torch.Tensor) -> float:
        """The middle one of all outputs of an evaluation: a metric that is no mean of the metrics of parts."""
        return outputs.flatten().sort().values[outputs.numel() // 2].item()


class Seen:
    """What happened in one process of a training, written to a file at once, so that a killed process leaves it behind.

    The model and the optimizers of the job note batches and updates by themselves. An adapter adds what only it knows.
    """

    def __init__(self, file: Path, rank: int, plan: Mapping[str, int]) -> None:
        """Notes go to `file`; `plan` says which misfortune happens after which update, and is no business of a loop."""
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._plan, self._rank, self._updates, self._stepped, self._evaluated = dict(plan), rank, 0, False, 0
        self._model: nn.Module | None = None

    def evaluated(self, loss: float, metric: float | None = None) -> None:
        """Notes the result of an evaluation over all processes: the mean loss, and where it is offered `Job.metric`."""
        weights = _values(self._model) if self._model is not None else {}
        self._write("evaluated", float(loss), None if metric is None else float(metric), weights)

    def finished(
        self,
        model: nn.Module | Mapping[str, torch.Tensor],
        *,
        ema: nn.Module | Mapping[str, torch.Tensor] | None = None,
        best: nn.Module | Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """Notes the weights at the end: the last ones, and where the job asks for them the averaged and the best ones."""
        self._write("finished", *({} if part is None else _values(part) for part in (model, ema, best)))

    def watch(self, model: nn.Module) -> nn.Module:
        """Remembers the model whose weights `evaluated` notes, and returns it."""
        self._model = model
        return model

    def forward(self, training: bool, samples: list[float], draws: list[list[float]], kept: list[float]) -> bool:
        """Notes a batch; returns whether its outputs are to be no numbers."""
        if training and self._stepped:
            self._updates, self._stepped = self._updates + 1, False
        done = self._updates + self._stepped
        self._write("batch", training, [int(sample) for sample in samples], draws, kept)
        if not training:
            self._evaluated += 1
            if 0 < self._plan.get("kill_in_evaluation", 0) <= done:
                os.kill(os.getpid(), signal.SIGKILL)
            return False
        if self._rank == 1 and self._plan.get("fail") == done:
            raise RuntimeError("this failure of rank 1 was planned")
        if self._rank == 1 and self._plan.get("hang") == done:
            time.sleep(3600)
        return self._rank == 1 and self._plan.get("not_a_number") == done

    def step(self, rate: float) -> None:
        """Notes a step of an optimizer, and lets happen what is planned after it."""
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        self._write("step", rate, time.perf_counter(), memory)
        self._stepped = True
        done = self._updates + 1
        if done == self._plan.get("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if done == self._plan.get("kill_in_save"):
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_WRITTEN, resource.RLIM_INFINITY))

    def _write(self, *note: object) -> None:
        os.write(self._file, (json.dumps(note) + "\n").encode())


def _values(model: nn.Module | Mapping[str, torch.Tensor]) -> dict[str, list[float]]:
    state: Mapping[str, torch.Tensor] = model.state_dict() if isinstance(model, nn.Module) else model
    named = {".".join(name.split(".")[-2:]): value for name, value in state.items() if "ballast" not in name}
    return {name: value.detach().double().flatten().tolist() for name, value in named.items() if value.dim()}


_current: list[Seen] = []


def use(seen: Seen) -> None:
    """Says where what happens in this process is noted."""
    _current[:] = [seen]


def _now() -> Seen:
    return _current[0]
