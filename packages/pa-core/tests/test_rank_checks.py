"""What processes may have each by itself: scripts that differ in it run as before."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, DistributedSampler
from typing_extensions import override

from pa_core import Trainer, TrainerCallback
from pa_core.testing import make_regression
from pa_core.types import SizedIterable
from tests.support.callbacks import CallAt
from tests.support.pa_core.ranks_that_differ.cases import Case, Door, seeded_case


class Knows(TrainerCallback):
    """A callback that is told its rank."""

    def __init__(self, rank: int, *, verbose: bool) -> None:
        self.rank = rank
        self.verbose = verbose


class Shares(Trainer):
    """Loaders of each process by itself, over a share of the samples."""

    @override
    def create_train_dataloader(self, batch_size: int, train_dl_kwargs: Any = None) -> SizedIterable[Any]:
        return list(DataLoader(self.train_dataset, batch_size))

    @override
    def create_eval_dataloader(self, batch_size: int, eval_dl_kwargs: Any = None) -> SizedIterable[Any]:
        assert self.eval_dataset is not None
        return list(DataLoader(self.eval_dataset, batch_size))


def own_seed(case: Case) -> None:
    """Weights and random numbers of its own."""
    torch.manual_seed(1)
    nn.init.normal_(next(case.model.parameters()))


def own_temporary_folder(case: Case) -> None:
    """A new folder for temporary files, in which there is no state yet."""
    case.arguments.update(resume_from=Path(tempfile.mkdtemp()) / "states", resume_missing="start")


def own_workers(case: Case) -> None:
    """As many workers as its machine has room for."""
    case.data = [(torch.full((4,), float(index)), torch.zeros(1)) for index in range(24)]
    case.arguments["train_dataloader_kwargs"] = {"num_workers": dist.get_rank(), "timeout": 30 * dist.get_rank()}


def own_share(case: Case) -> None:
    """Datasets of its own share, with more to evaluate on the first process."""
    case.trainer_class = Shares
    rank = dist.get_rank()
    case.data, case.eval_data = make_regression(24 + rank), make_regression(16 - 8 * rank)
    case.arguments["per_device_batch_size"] = 5


def own_lambda(case: Case) -> None:
    """A schedule by a function that is made anew, and a partial of it."""
    case.arguments["create_scheduler_fn"] = partial(LambdaLR, lr_lambda=lambda epoch: 0.9**epoch)


class Steps:
    """A schedule that can do nothing but step."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        """Halve the learning rate."""
        self.optimizer.param_groups[0]["lr"] /= 2


def plain_schedule(case: Case) -> None:
    """A schedule without a state, whose type is not one that the trainer asks for."""
    case.arguments["create_scheduler_fn"] = Steps


def distributed_sampler(case: Case) -> None:
    """A DataLoader with the share of this process."""
    data = make_regression(24)
    case.data = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
    del case.arguments["per_device_batch_size"]


def told_its_rank(case: Case) -> None:
    """A callback that is told its rank."""
    case.callbacks.append(Knows(dist.get_rank(), verbose=dist.get_rank() == 0))


@pytest.mark.runs_on("two_ranks")
@pytest.mark.parametrize("door", ["train", "Run"])
@pytest.mark.parametrize(
    "change",
    [own_seed, own_temporary_folder, own_workers, own_lambda, plain_schedule, distributed_sampler, told_its_rank],
)
def test_what_may_differ_is_not_compared(change: Callable[[Case], None], door: Door) -> None:
    """A run whose processes differ in this trains as before."""
    case = seeded_case(door)
    change(case)
    case.run()


@pytest.mark.runs_on("two_ranks")
def test_loaders_of_each_process_have_datasets_of_their_own() -> None:
    """Where they have as many batches to train on, datasets may have other lengths, and evaluations too."""
    case = seeded_case("train")
    own_share(case)
    case.run()


@pytest.mark.runs_on("two_ranks")
def test_a_metric_of_one_process_differs_only_in_what_it_decides() -> None:
    """Recorded values may differ between processes, as the history is that of each."""
    case = seeded_case("train")
    record = CallAt("on_train_epoch_end", lambda one: one.run_history.update_metric("figure", dist.get_rank()))
    case.callbacks.append(record)
    case.run()
