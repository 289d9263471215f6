"""The same run on two processes: the same updates, each sample once, nobody waiting; and what may differ."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from typing_extensions import override

from pa_core import AnyTrainer, StopTrainingError, Trainer, TrainerCallback, gather_objects
from pa_core.data import KeyedDataLoader
from pa_core.distributed.rank_sync import LateReader
from pa_core.errors import RanksDifferError
from pa_core.testing import RecordingCallback, make_regression
from pa_core.types import SizedIterable
from pa_data.errors import EmptyDatasetError
from tests.small_runs import make_trainer, samples
from tests.support.callbacks import CallAt
from tests.support.loops import in_double, network
from tests.support.models import weights_of
from tests.support.pa_core.ranks_that_differ.cases import Case, Door, seeded_case
from tests.support.pa_core.training_states.small_runs import DrawingDataset, SampleLog

pytestmark = pytest.mark.runs_on("two_ranks")


def stop_on_second_rank(event: str, update: int) -> CallAt:
    """Asks to stop on rank 1 alone, after some updates."""

    def stop(trainer: AnyTrainer) -> None:
        if trainer.process_index == 1:
            raise StopTrainingError

    return CallAt(event, stop, update)


class ReadsLate(Trainer):
    """Reads what the processes agreed on two updates late, as on an accelerator."""

    @override
    def training_run_start(self) -> None:
        self._session.rank_sync.reader = LateReader(delay=2)


def test_processes_that_compute_in_another_way_make_no_reproducible_run() -> None:
    """Another number of threads on one of them is named before the first step; other runs do not mind."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 + dist.get_rank())
    try:
        make_trainer().train(samples(8), 1)
        model = network()
        trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), (), reproducible="any_processes")
        with pytest.raises(RanksDifferError, match=r"arithmetic, threads: 1 on rank 0, 2 on rank 1"):
            trainer.train(samples(8), 1, samples_per_update=8)
    finally:
        torch.set_num_threads(before)


def test_a_model_that_was_evaluated_first_trains_alike_on_both_ranks() -> None:
    """As it would have without: accelerate 1.14 and later do not wrap such a model for training."""
    ends: list[list[torch.Tensor]] = []
    for evaluates_first in (True, False):
        torch.default_generator.manual_seed(0)
        trainer = make_trainer()
        if evaluates_first:
            trainer.evaluate(samples(8))
        trainer.train(samples(16), 2)
        ends.append(list(trainer.model.parameters()))
    assert all(map(torch.equal, *ends))
    first, second = gather_objects([one.tolist() for one in ends[0]])
    assert first == second


def test_fewer_samples_than_ranks_cannot_be_evaluated() -> None:
    """One sample on two ranks is refused before anything starts, with the argument that it was passed as."""
    trainer = Trainer(network(), nn.MSELoss(), None, callbacks=[])
    with pytest.raises(EmptyDatasetError, match=r"fewer samples to evaluate on than processes.* passed as dataset\."):
        trainer.evaluate(in_double(make_regression(1)))


def test_augmentation_does_not_depend_on_the_number_of_ranks() -> None:
    """The noise of a sample is the same whichever rank fetches it."""
    log, model = SampleLog(), nn.Linear(6, 3)
    trainer = Trainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.0), callbacks=[log])
    trainer.train(DrawingDataset(10), 1, per_device_batch_size=3, train_dataloader_kwargs={"num_workers": 0})
    assert trainer.run_config.seed is not None
    alone = KeyedDataLoader(DrawingDataset(10), batch_size=6, shuffle=True, seed=trainer.run_config.seed)
    one_process = [row for inputs, _ in alone for row in inputs[:, :2].tolist()]
    assert sorted(row for step in log.steps for row in step) == sorted(one_process)


def test_ranks_that_read_late_still_stop_at_the_same_update() -> None:
    """Where the answer is read two updates later, as on an accelerator, all ranks stop at the same later update."""
    model, recorder = network(), RecordingCallback()
    trainer = make_trainer(ReadsLate, stop_on_second_rank("on_train_step_end", 2), recorder, model=model, lr=0.1)
    trainer.train(in_double(make_regression(24)), 1, per_device_batch_size=2)
    assert gather_objects(trainer.num_updates_completed) == [4, 4]
    assert recorder.events[-2:] == ["on_stop_training_error", "on_training_run_end"]
    weights = gather_objects(weights_of(model).tolist())
    assert weights[0] == weights[1]


def test_a_stop_at_the_start_of_an_epoch_is_in_time_on_an_accelerator() -> None:
    """Asked for by one process when an epoch starts, it comes before the first update, which waits for the answer."""
    trainer = make_trainer(ReadsLate, stop_on_second_rank("on_train_epoch_start", 6), model=network())
    trainer.train(in_double(make_regression(24)), 3, per_device_batch_size=2)
    assert gather_objects(trainer.num_updates_completed) == [6, 6]


def test_a_loader_of_the_users_own_says_that_it_is_padded() -> None:
    """Where accelerate splits a loader and may repeat samples, a warning says so; every process gets its batches."""

    class Plain(Trainer):
        @override
        def create_eval_dataloader(self, batch_size: int, eval_dl_kwargs: dict[str, Any] | None = None) -> Any:
            return DataLoader(cast("TensorDataset", self.eval_dataset), batch_size=batch_size)

    trainer = Plain(network(), nn.MSELoss(), None, callbacks=[])
    with pytest.warns(UserWarning, match="repeats samples"):
        trainer.evaluate(in_double(make_regression(7)), per_device_batch_size=2)


@pytest.mark.parametrize(("number", "size"), [(11, 2), (50, 16), (37, 4), (7, 1)])
def test_a_loader_that_drops_its_last_batch_says_which_batches_are_left_out(number: int, size: int) -> None:
    """Of five whole batches on two processes, accelerate deals out four; the warning gives the number."""
    trainer = make_trainer(Trainer, model=network())
    data, batches = in_double(make_regression(number)), number // size
    with pytest.warns(UserWarning, match=f"leaves out 1 of {batches} batches of each epoch"):
        trainer.train(DataLoader(data, batch_size=size, drop_last=True), 1)
    assert trainer.num_updates_completed == batches // 2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("number", [12, 13])
def test_a_loader_of_which_nothing_is_left_out_is_not_warned_of(number: int) -> None:
    """Six whole batches on two processes are three for each, and there is nothing to say."""
    trainer = make_trainer(Trainer, model=network())
    trainer.train(DataLoader(in_double(make_regression(number)), batch_size=2, drop_last=True), 1)
    assert trainer.num_updates_completed == 3


def test_weights_in_half_precision_train_and_stop_on_both_ranks() -> None:
    """Gradients of bfloat16 weights cannot carry counts: the ranks agree in another way, and stop together as well."""
    data = TensorDataset(*(tensor.bfloat16() for tensor in make_regression(24).tensors))
    model = network().bfloat16()
    trainer = make_trainer(Trainer, stop_on_second_rank("on_train_step_end", 2), model=model, lr=0.1)
    trainer.train(data, 1, per_device_batch_size=2)
    assert gather_objects(trainer.num_updates_completed) == [2, 2]
    weights = gather_objects(weights_of(model).tolist())
    assert weights[0] == weights[1]


def test_parameters_unfrozen_in_mid_run_train_equally() -> None:
    """A layer that was frozen when the run began gets the gradients of all ranks once it is unfrozen."""
    model = network()
    unfreeze = CallAt("on_training_run_epoch_end", lambda _trainer: model.requires_grad_(True))
    for parameter in list(model.parameters())[:2]:
        parameter.requires_grad_(False)
    before = weights_of(model)
    trainer = Trainer(model, nn.MSELoss(), Adam(model.parameters(), lr=0.01), callbacks=[unfreeze])
    trainer.train(in_double(make_regression(12)), 3, per_device_batch_size=2)
    weights = gather_objects(weights_of(model).tolist())
    assert weights[0] == weights[1]
    assert not torch.equal(weights_of(model)[:4], before[:4])


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


def test_loaders_of_each_process_have_datasets_of_their_own() -> None:
    """Where they have as many batches to train on, datasets may have other lengths, and evaluations too."""
    case = seeded_case("train")
    own_share(case)
    case.run()


def test_a_metric_of_one_process_differs_only_in_what_it_decides() -> None:
    """Recorded values may differ between processes, as the history is that of each."""
    case = seeded_case("train")
    record = CallAt("on_train_epoch_end", lambda one: one.run_history.update_metric("figure", dist.get_rank()))
    case.callbacks.append(record)
    case.run()


class StopsWithinTheFirstStep(Trainer):
    """Raises the request within a step, before its backward pass, on the second rank."""

    @override
    def calculate_train_batch_loss(self, batch: Any) -> Any:
        if self.process_index == 1:
            raise StopTrainingError("enough")
        return super().calculate_train_batch_loss(batch)


def test_a_step_that_stops_on_one_rank_before_its_first_backward_pass_ends_the_run_on_both() -> None:
    """Even where gradients of the other rank are on their way by then, as those of large layers are."""
    model = nn.Sequential(nn.Linear(8, 1024), nn.Linear(1024, 1024), nn.Linear(1024, 1))
    before = [one.clone() for one in model.parameters()]
    trainer = StopsWithinTheFirstStep(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[])
    trainer.train(TensorDataset(torch.ones(32, 8), torch.ones(32, 1)), 1, per_device_batch_size=8)
    assert trainer.num_updates_completed == 0
    assert all(torch.equal(one, was) for one, was in zip(model.parameters(), before, strict=True))


class StopsInItsScheduler(Trainer):
    """Requests a stop in the second step of its scheduler, of which the others learn two updates later."""

    @override
    def training_run_start(self) -> None:
        self._session.rank_sync.reader = LateReader(delay=2)

    @override
    def scheduler_step(self) -> None:
        if self.num_updates_completed == 1:
            raise StopTrainingError("the learning rate is low")


def test_a_stop_in_the_step_of_a_scheduler_leaves_no_gradient_to_the_updates_that_follow() -> None:
    """Until all processes know of it, updates are those of a run without a stop."""
    gradients: list[object] = []
    note = CallAt("on_optimizer_step_end", lambda trainer: gradients.append(trainer.model.weight.grad))
    model = nn.Linear(2, 1)
    trainer = StopsInItsScheduler(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[note])
    data = TensorDataset(torch.ones(64, 2), torch.ones(64, 1))
    trainer.train(data, 1, per_device_batch_size=4)
    assert gradients
    assert gradients == [None] * len(gradients)
