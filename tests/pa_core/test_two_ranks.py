"""The same run on two processes: the same updates, each sample once, nobody waiting."""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader, Dataset, TensorDataset
from typing_extensions import override

from pa_core import (
    AnyTrainer,
    BatchOutput,
    ConfigurationError,
    StopTrainingError,
    Trainer,
    TrainerCallback,
    gather_objects,
)
from pa_core.device_reads import LateReader
from pa_core.testing import RecordingCallback, TinyClassifier, make_classification, make_regression
from tests.support.loops import updates_of
from tests.support.models import weights_of

pytestmark = pytest.mark.runs_on("two_ranks")


def regression(num_samples: int) -> TensorDataset:
    """A regression dataset in double precision."""
    return TensorDataset(*(tensor.double() for tensor in make_regression(num_samples).tensors))


class ReadsLate(Trainer):
    """Reads what the processes agreed on two updates late, as on an accelerator."""

    @override
    def training_run_start(self) -> None:
        self._engine.rank_sync.reader = LateReader(delay=2)


def small_network(seed: int = 0) -> nn.Module:
    """A network with smooth activations in double precision, the same on each rank."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double()


def train_by_hand(model: nn.Module, data: TensorDataset, seed: int, samples_per_update: int, epochs: int) -> None:
    """Update a model by the whole batches of each update, as one process without accumulation would."""
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    for inputs, targets in updates_of(data, seed, epochs, samples_per_update):
        torch.autograd.backward(nn.functional.mse_loss(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()


def test_two_ranks_run_over_gloo() -> None:
    """What follows is tested with two processes that exchange gradients, not with two that are alone."""
    model = nn.Linear(4, 1)
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[])
    trainer.train(make_regression(8), 1)
    assert (dist.get_world_size(), dist.get_backend()) == (2, "gloo")
    assert (trainer.run_config.num_processes, trainer.run_config.is_distributed) == (2, True)
    assert trainer.describe_run().startswith("2 processes (gloo)")


@pytest.mark.parametrize("accumulation", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [1, 2, 3])
@pytest.mark.parametrize("num_samples", [12, 13, 14, 15, 17, 19])
def test_updates_are_those_of_the_single_large_batch(num_samples: int, batch_size: int, accumulation: int) -> None:
    """Uneven tails, ranks without a sample and short groups move the weights as one process would."""
    data = regression(num_samples)
    model = small_network()
    reference = copy.deepcopy(model)
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1, momentum=0.9), callbacks=[])
    torch.manual_seed(7)
    trainer.train(data, 2, per_device_batch_size=batch_size, gradient_accumulation_steps=accumulation)
    assert trainer.run_config.seed is not None
    train_by_hand(reference, data, trainer.run_config.seed, 2 * batch_size * accumulation, epochs=2)
    assert torch.allclose(weights_of(model), weights_of(reference), rtol=0, atol=1e-12)
    assert torch.equal(trainer.gather(weights_of(model)[None])[0], weights_of(model))


def test_every_sample_is_trained_on_once_per_epoch() -> None:
    """The ranks share an epoch without repeating or losing a sample, also where the tail is one sample."""
    seen: list[float] = []

    class Seen(TrainerCallback):
        @override
        def on_train_step_end(
            self, trainer: AnyTrainer, batch: list[Tensor], batch_output: BatchOutput, **kwargs: Any
        ) -> None:
            seen.extend(batch[0].flatten().tolist())

    data = TensorDataset(torch.arange(9.0).unsqueeze(1), torch.zeros(9, 1))
    model = nn.Linear(1, 1)
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.0), callbacks=[Seen])
    trainer.train(data, 1, per_device_batch_size=2)
    mine, theirs = gather_objects(seen)
    assert sorted(mine + theirs) == list(range(9))
    assert (len(mine), len(theirs)) == (5, 4)
    assert (trainer.num_updates_completed, trainer.run_history.clock.samples) == (3, 9)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5])
@pytest.mark.parametrize("num_samples", [2, 3, 4, 5, 7, 10, 21])
def test_evaluation_counts_every_sample_once(num_samples: int, batch_size: int) -> None:
    """The loss is that of one process, and gathered outputs are complete and in the order of the dataset."""
    gathered: list[float] = []

    class Gather(TrainerCallback):
        @override
        def on_eval_step_end(
            self, trainer: AnyTrainer, batch: list[Tensor], batch_output: BatchOutput, **kwargs: Any
        ) -> None:
            gathered.extend(trainer.gather(batch[0][:, 0]).tolist())

    data = regression(num_samples)
    model = small_network()
    expected = nn.functional.mse_loss(model(data.tensors[0]), data.tensors[1]).item()
    trainer = Trainer(model, nn.MSELoss(), None, callbacks=[Gather])
    trainer.evaluate(data, per_device_batch_size=batch_size)
    assert trainer.run_history.get_latest_metric("evaluation_loss") == pytest.approx(expected, rel=1e-12)
    assert gathered == data.tensors[0][:, 0].tolist()


def test_fewer_samples_than_ranks_cannot_be_evaluated() -> None:
    """One sample on two ranks is refused before anything starts."""
    trainer = Trainer(small_network(), nn.MSELoss(), None, callbacks=[])
    with pytest.raises(ConfigurationError):
        trainer.evaluate(regression(1))


def test_running_statistics_are_those_of_rank_zero_when_evaluated() -> None:
    """BatchNorm evaluates with the same statistics on each rank, although each saw other samples."""
    statistics: list[list[float]] = []

    class Statistics(TrainerCallback):
        @override
        def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            model = trainer.get_model()
            assert isinstance(model, TinyClassifier)
            norm = model.layers[1]
            assert isinstance(norm, nn.BatchNorm1d)
            assert norm.running_mean is not None
            statistics.extend(gather_objects(norm.running_mean.tolist()))

    torch.manual_seed(0)
    model = TinyClassifier(batch_norm=True)
    trainer = Trainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks=[Statistics])
    trainer.train(make_classification(36), 1, make_classification(12), per_device_batch_size=6)
    assert statistics[0] == statistics[1]


def test_the_seed_of_rank_zero_is_that_of_all() -> None:
    """Ranks that were seeded differently, or not at all, still share one order of the samples."""
    torch.manual_seed(dist.get_rank())
    model = small_network(seed=dist.get_rank())
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[])
    trainer.train(regression(8), 1)
    seeds = gather_objects(trainer.run_config.seed)
    assert seeds[0] == seeds[1]
    weights = gather_objects(weights_of(model).tolist())
    assert weights[0] == weights[1]


class Halves(nn.Module):
    """A model that uses only one of its two layers, another one each time."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])
        self.calls = 0

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        outputs: Tensor = self.layers[self.calls % 2](inputs)
        return outputs


def test_unused_parameters_are_allowed_where_accelerate_is_told_so() -> None:
    """find_unused_parameters works, early stops included, although the ranks then have to agree in another way."""
    from accelerate import Accelerator, DistributedDataParallelKwargs

    class Finds(Trainer[Halves]):
        @override
        def _create_accelerator(self) -> Any:
            return Accelerator(cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)])

    recorder = RecordingCallback()
    model = Halves()
    trainer = Finds(model, nn.MSELoss(), SGD(model.parameters(), lr=0.01), callbacks=[recorder])
    trainer.train(make_regression(14), 1, per_device_batch_size=2)
    assert trainer.num_updates_completed == 4
    weights = gather_objects(weights_of(model).tolist())
    assert weights[0] == weights[1]


def test_parameters_unfrozen_in_mid_run_train_equally() -> None:
    """A layer that was frozen when the run began gets the gradients of all ranks once it is unfrozen."""

    class Unfreeze(TrainerCallback):
        @override
        def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            trainer.get_model().requires_grad_(True)

    model = small_network()
    for parameter in list(model.parameters())[:2]:
        parameter.requires_grad_(False)
    before = weights_of(model)
    trainer = Trainer(model, nn.MSELoss(), Adam(model.parameters(), lr=0.01), callbacks=[Unfreeze])
    trainer.train(regression(12), 3, per_device_batch_size=2)
    weights = gather_objects(weights_of(model).tolist())
    assert weights[0] == weights[1]
    assert not torch.equal(weights_of(model)[:4], before[:4])


def test_state_dicts_hold_only_what_the_model_has() -> None:
    """What the ranks use to agree never shows in the weights, during the run or after it."""
    keys: list[list[str]] = []

    class Keys(TrainerCallback):
        @override
        def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            keys.append(sorted(trainer.get_model().state_dict()))

    model = small_network()
    expected = sorted(model.state_dict())
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[Keys])
    trainer.train(regression(8), 1)
    assert keys == [expected]
    assert sorted(model.state_dict()) == expected


class Drawing(Dataset[tuple[Tensor, Tensor]]):
    """Samples with noise of their own draw."""

    def __len__(self) -> int:
        return 10

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.tensor([float(index)]) + torch.rand(1), torch.zeros(1)


def test_augmentation_does_not_depend_on_the_number_of_ranks() -> None:
    """The noise of a sample is the same whichever rank fetches it."""
    seen: list[float] = []

    class Seen(TrainerCallback):
        @override
        def on_train_step_end(
            self, trainer: AnyTrainer, batch: list[Tensor], batch_output: BatchOutput, **kwargs: Any
        ) -> None:
            seen.extend(batch[0].flatten().tolist())

    model = nn.Linear(1, 1)
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.0), callbacks=[Seen])
    torch.manual_seed(2)
    trainer.train(Drawing(), 1, per_device_batch_size=3, train_dataloader_kwargs={"num_workers": 0})
    from pa_core import KeyedDataLoader

    assert trainer.run_config.seed is not None
    alone = KeyedDataLoader(Drawing(), batch_size=6, shuffle=True, seed=trainer.run_config.seed)
    one_process = [value for batch in alone for value in batch[0].flatten().tolist()]
    both = gather_objects(seen)
    assert sorted(both[0] + both[1]) == sorted(one_process)


def test_ranks_that_read_late_still_stop_at_the_same_update() -> None:
    """Where the answer is read two updates later, as on an accelerator, all ranks stop at the same later update."""

    class StopsOnRankOne(TrainerCallback):
        @override
        def on_train_step_end(
            self, trainer: AnyTrainer, batch: list[Tensor], batch_output: BatchOutput, **kwargs: Any
        ) -> None:
            if dist.get_rank() == 1 and kwargs["step"] == 3:
                raise StopTrainingError

    model = small_network()
    recorder = RecordingCallback()
    optimizer = SGD(model.parameters(), lr=0.1)
    trainer = ReadsLate(model, nn.MSELoss(), optimizer, callbacks=[StopsOnRankOne, recorder])
    trainer.train(regression(24), 1, per_device_batch_size=2)
    assert gather_objects(trainer.num_updates_completed) == [4, 4]
    assert recorder.events[-2:] == ["on_stop_training_error", "on_training_run_end"]
    weights = gather_objects(weights_of(model).tolist())
    assert weights[0] == weights[1]


def test_a_stop_at_the_start_of_an_epoch_is_in_time_on_an_accelerator() -> None:
    """Asked for by one process when an epoch starts, it comes before the first update, which waits for the answer."""

    class StopsOnRankOne(TrainerCallback):
        @override
        def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            if dist.get_rank() == 1 and trainer.run_history.current_epoch == 2:
                raise StopTrainingError

    model = small_network()
    trainer = ReadsLate(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[StopsOnRankOne])
    trainer.train(regression(24), 3, per_device_batch_size=2)
    assert gather_objects(trainer.num_updates_completed) == [6, 6]


def test_a_loader_of_the_users_own_says_that_it_is_padded() -> None:
    """Where accelerate splits a loader and may repeat samples, a warning says so; every process gets its batches."""

    class Plain(Trainer):
        @override
        def create_eval_dataloader(self, batch_size: int, eval_dl_kwargs: dict[str, Any] | None = None) -> Any:
            return DataLoader(cast("TensorDataset", self.eval_dataset), batch_size=batch_size)

    trainer = Plain(small_network(), nn.MSELoss(), None, callbacks=[])
    with pytest.warns(UserWarning, match="repeats samples"):
        trainer.evaluate(regression(7), per_device_batch_size=2)


def test_weights_in_half_precision_train_and_stop_on_both_ranks() -> None:
    """Gradients of bfloat16 weights cannot carry counts: the ranks agree in another way, and stop together as well."""

    class StopsOnRankOne(TrainerCallback):
        @override
        def on_train_step_end(
            self, trainer: AnyTrainer, batch: list[Tensor], batch_output: BatchOutput, **kwargs: Any
        ) -> None:
            if dist.get_rank() == 1 and kwargs["step"] == 3:
                raise StopTrainingError

    data = TensorDataset(*(tensor.bfloat16() for tensor in make_regression(24).tensors))
    model = small_network().bfloat16()
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[StopsOnRankOne])
    trainer.train(data, 1, per_device_batch_size=2)
    assert gather_objects(trainer.num_updates_completed) == [2, 2]
    weights = gather_objects(weights_of(model).tolist())
    assert weights[0] == weights[1]
