"""Buffers that no exchange keeps the same on all processes: each process gets its own back."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator, DistributedDataParallelKwargs
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import AnyTrainer, SaveTrainingStateCallback, Trainer, TrainerCallback, gather_objects
from tests.launching import Launch
from tests.support.pa_core.training_states import own_queues
from tests.support.pa_core.training_states import script_states as scripts
from tests.support.pa_core.training_states.own_queues import WithOwnQueue, train
from tests.support.pa_core.training_states.small_runs import InterruptAt, Interrupted


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("update", [3, 11])
def test_each_process_gets_its_own_buffers_back(update: int, shared_tmp_path: Path) -> None:
    """A queue, and the centre of a loss function, are those of an undisturbed run on each process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*differ between the processes")
        whole = train(shared_tmp_path / "whole").kept()
        with pytest.raises(Interrupted):
            train(shared_tmp_path / "resumed", InterruptAt("on_train_step_end", update))
        assert train(shared_tmp_path / "resumed").kept() == whole
    assert len({str(one[:2]) for one in gather_objects(whole)}) == (2 if dist.is_initialized() else 1)


@pytest.mark.runs_on("one_process", "two_ranks")
def test_the_fingerprint_covers_the_buffers_of_each_process(shared_tmp_path: Path) -> None:
    """That of a resumed run is that of an undisturbed one, and one more bit on any process gives another one."""
    whole = train(shared_tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(shared_tmp_path / "resumed", InterruptAt("on_train_step_end", 5))
    fingerprint = train(shared_tmp_path / "resumed").fingerprint()
    assert gather_objects(fingerprint) == [whole.fingerprint()] * len(gather_objects(0))
    seen = {fingerprint}
    for rank in range(len(gather_objects(0))):
        if rank == (dist.get_rank() if dist.is_initialized() else 0):
            cast("Any", whole.modules["queue"]).keys[0].neg_()
        seen.add(whole.fingerprint())
    assert len(seen) == len(gather_objects(0)) + 1


@pytest.mark.runs_on("two_ranks")
def test_large_buffers_that_differ_are_named(shared_tmp_path: Path) -> None:
    """A state has those of the first process, which the first one says once, at the first save."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(shared_tmp_path, size=2**21)
    said = [str(one.message) for one in caught if "differ between the processes" in str(one.message)]
    assert len(said) == (1 if dist.get_rank() == 0 else 0)
    assert all(one.startswith("queue.keys ") for one in said)


def test_on_another_number_of_processes_the_buffers_of_the_first_are_taken(launch: Launch, tmp_path: Path) -> None:
    """A warning names those that differed."""
    env = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[4]), os.environ.get("PYTHONPATH", "")])}

    def kept(ranks: int) -> list[str]:
        ended = launch(Path(own_queues.__file__), str(tmp_path / "states"), ranks=ranks, env=env)
        assert ended.status == 0
        assert ("queue.keys, loss_func.centre differed" in ended.output) == (ranks == 1)
        return [line for line in ended.output.splitlines() if line.startswith("kept")]

    assert kept(2) == kept(1) != []


@pytest.mark.runs_on("two_ranks")
def test_frozen_weights_that_are_changed_on_one_process_alone_are_named(shared_tmp_path: Path) -> None:
    """Once, by the first process: a state has its weights."""

    class ChangesTeacher(TrainerCallback):
        @override
        def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            if dist.get_rank() == 1:
                next(trainer.modules["teacher"].parameters()).data.view(-1)[0].nextafter_(torch.tensor(9.0))

    class Still(scripts.WithTeacher):
        @override
        def follow(self, pairs: Any) -> None:
            """Leave it as it is."""

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        saving = SaveTrainingStateCallback(shared_tmp_path, save_every_n_steps=1)
        Still(ChangesTeacher(), saving).train(scripts.data(), 1, per_device_batch_size=2)
    said = [str(one.message) for one in caught if "no optimizer trains" in str(one.message)]
    assert [one.partition(" ")[0] for one in said] == (["teacher.weight"] if dist.get_rank() == 0 else [])


@pytest.mark.runs_on("two_ranks")
def test_a_teacher_is_the_same_on_all_processes_of_a_script_without_a_seed(shared_tmp_path: Path) -> None:
    """Like the model, it begins with the weights of the first process."""

    class Unseeded(scripts.WithTeacher):
        def __init__(self) -> None:
            super().__init__()
            for parameter in self.modules["teacher"].parameters():
                parameter.data.fill_(dist.get_rank())

        @override
        def follow(self, pairs: Any) -> None:
            """Leave it as it is."""

    trainer = Unseeded()
    trainer.train(scripts.data(), 1, per_device_batch_size=2)
    assert all(not one.any() for one in trainer.modules["teacher"].parameters())


class Projected(nn.Module):
    """A loss that compares random projections, which nothing trains."""

    scale: Tensor

    def __init__(self, value: float) -> None:
        super().__init__()
        self.project = nn.Linear(1, 2).requires_grad_(False)
        nn.init.constant_(self.project.weight, value)
        self.register_buffer("scale", torch.tensor(value + 1))

    @override
    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        differences: Tensor = self.project(outputs) - self.project(targets)
        return differences.square().mean() * self.scale


@pytest.mark.runs_on("two_ranks")
def test_a_loss_function_is_the_same_on_all_processes_of_a_script_without_a_seed() -> None:
    """Like the model, one with frozen random weights begins with those of the first process."""
    loss_func = Projected(1.0 + dist.get_rank())
    model = nn.Linear(4, 1)
    trainer = Trainer(model, loss_func, torch.optim.SGD(model.parameters(), lr=0.05), callbacks=[])
    trainer.train(scripts.data(), 1, per_device_batch_size=2)
    assert (loss_func.project.weight == 1).all()
    assert loss_func.scale == 2


class PlainNorms(scripts.Scripted):
    """A network with batch norm whose statistics no process gets of another one."""

    def __init__(self, *callbacks: TrainerCallback) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
        super().__init__(*callbacks, model=model)

    @override
    def create_accelerator(self) -> Any:
        return Accelerator(cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False)])

    def statistics(self) -> list[float]:
        """The running means of this process."""
        return cast("list[float]", cast("Any", self.model)[1].running_mean.tolist())


def train_plain(folder: Path, *callbacks: TrainerCallback) -> PlainNorms:
    """Train, or go on."""
    saving = SaveTrainingStateCallback(folder, save_every_n_steps=1)
    trainer = PlainNorms(*callbacks, saving)
    data = scripts.data()
    trainer.train(data, 2, data, per_device_batch_size=2, resume_from=folder, resume_missing="start")
    return trainer


@pytest.mark.runs_on("two_ranks")
@pytest.mark.parametrize("update", [3, 11])
def test_without_broadcasts_each_process_keeps_the_buffers_of_a_model(update: int, shared_tmp_path: Path) -> None:
    """Saving, evaluating and the fingerprint leave them, and a resumed run has those of an undisturbed one."""
    quiet = PlainNorms()
    quiet.train(scripts.data(), 2, per_device_batch_size=2)
    whole = train_plain(shared_tmp_path / "whole")
    fingerprint = whole.fingerprint()
    assert whole.statistics() == quiet.statistics()
    with pytest.raises(Interrupted):
        train_plain(shared_tmp_path / "resumed", InterruptAt("on_train_step_end", update))
    resumed = train_plain(shared_tmp_path / "resumed")
    assert resumed.statistics() == whole.statistics()
    assert resumed.fingerprint() == fingerprint
    assert len({str(one) for one in gather_objects(whole.statistics())}) == 2


@pytest.mark.runs_on("two_ranks")
def test_without_broadcasts_each_process_evaluates_its_samples_with_its_own_buffers() -> None:
    """What is recorded is the mean over all samples."""
    trainer = PlainNorms()
    trainer.train(scripts.data(), 1, per_device_batch_size=2)
    mine = TensorDataset(*(one[dist.get_rank() :: 2] for one in scripts.data().tensors))
    with torch.no_grad():
        inputs, targets = mine.tensors
        own = nn.functional.mse_loss(trainer.get_model().eval()(inputs), targets).item()
    expected = sum(gather_objects(own)) / 2
    assert trainer.evaluate(scripts.data(), 1)["evaluation_loss"] == pytest.approx(expected)


@pytest.mark.runs_on("two_ranks")
@pytest.mark.parametrize("kind", [WithOwnQueue, PlainNorms])
def test_predictions_are_those_of_the_first_process(kind: type[scripts.Scripted]) -> None:
    """They are the same on any number of processes; afterwards, each process has its own buffers again."""
    trainer = kind()
    trainer.train(scripts.data(), 1, per_device_batch_size=2)
    modules = [trainer.get_model().eval(), *trainer.modules.values()]
    own = [one.clone() for module in modules for one in module.buffers()]
    inputs = scripts.data().tensors[0]
    with torch.no_grad():
        expected = gather_objects(trainer.get_model()(inputs))[0]
    data = cast("Any", inputs)  # indexed as a dataset is
    predicted = list(trainer.predict(data, per_device_batch_size=2))
    if dist.get_rank() == 0:
        torch.testing.assert_close(torch.cat(predicted), expected)
    left = [one for module in modules for one in module.buffers()]
    assert all(map(torch.equal, own, left))
    assert any(not one.equal(other) for each in gather_objects(own) for one, other in zip(each, own, strict=True))


def test_the_centre_of_a_loss_is_in_checkpoints(tmp_path: Path) -> None:
    """A buffer that steps have changed comes back with the weights."""
    trained, loaded = scripts.CentredInPlace(), scripts.CentredInPlace()
    trainer = scripts.Scripted(loss_func=trained)
    trainer.train(scripts.data(), 1)
    trainer.save_checkpoint(tmp_path / "model.pt")
    scripts.Scripted(loss_func=loaded).load_checkpoint(tmp_path / "model.pt", load_optimizer=False)
    assert trained.centre.any()
    assert torch.equal(loaded.centre, trained.centre)
