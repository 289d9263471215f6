"""Periods, checkpoints and the context do what the reference documents, on one process and on two."""

from __future__ import annotations

import copy
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim import Adam
from torch.utils.data import DataLoader as TorchDataLoader
from typing_extensions import override

import pa_trial as pytorch
from pa_trial import PyTorchTrialContext
from tests.launching import free_port
from tests.pa_trial.plane import (
    HPARAMS,
    Listener,
    Plane,
    assert_same_weights,
    fit,
    listening,
    samples,
    small_model,
)

pytestmark = pytest.mark.runs_on("one_process", "two_ranks")


@pytest.mark.parametrize(
    ("settings", "workloads"),
    [
        ({"max_length": pytorch.Batch(5)}, [5]),
        ({"max_length": pytorch.Epoch(2), "validation_period": pytorch.Batch([5, 30, 45])}, [5, 3]),
        ({"max_length": pytorch.Epoch(2), "validation_period": pytorch.Batch(range(3, 8, 3))}, [3, 3, 2]),
        ({"max_length": pytorch.Epoch(3), "validation_period": pytorch.Epoch({1, 3})}, [4, 8]),
        ({"max_length": pytorch.Batch(3), "validation_period": pytorch.Batch(0)}, [1, 1, 1]),
        ({"max_length": pytorch.Batch(6), "checkpoint_period": pytorch.Batch((4,))}, [4, 2]),
        ({"max_length": pytorch.Batch(6), "reporting_period": pytorch.Epoch(1)}, [4, 2]),
        ({"max_length": pytorch.Batch(6), "reporting_period": pytorch.Batch(5)}, [5, 1]),
        ({"max_length": pytorch.Batch(0)}, []),
        ({"max_length": pytorch.Epoch(2), "test_mode": True}, [1]),
    ],
)
def test_periods_cut_the_training(settings: dict[str, Any], workloads: list[int], folder: Path) -> None:
    """As an int or as any container, in batches or epochs."""
    listener = Listener()
    fit(listening(Plane, listener), folder, **settings)

    assert [batches for name, *rest in listener.heard for batches in rest if name == "workload"] == workloads
    assert listener.names[:2] == ["startup", "training start"]
    assert listener.names[-1] == "shutdown"


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"max_length": None}, ValueError),
        ({"max_length": 3}, TypeError),
        ({"max_length": pytorch.Batch([3])}, TypeError),
        ({"max_length": pytorch.Batch(3), "checkpoint_policy": "beast"}, ValueError),
    ],
)
def test_lengths_and_policies_that_are_none(settings: dict[str, Any], error: type[Exception], folder: Path) -> None:
    """Are refused before anything is trained."""
    with pytorch.init(hparams=HPARAMS, checkpoint_dir=folder) as context:
        trial = Plane(context)
        with pytest.raises(error):
            pytorch.Trainer(trial, context).fit(**settings)
        assert trial.trained == []


def test_a_validation_before_training(folder: Path) -> None:
    """It takes no checkpoint, whatever the policy."""
    listener = Listener()
    fit(
        listening(Plane, listener),
        folder,
        pytorch.Batch(2),
        step_zero_validation=True,
        checkpoint_policy="all",
        validation_period=pytorch.Batch(2),
    )

    assert listener.names.index("validation start") < listener.names.index("epoch start")
    assert len(listener.validations) == 2
    assert len(listener.uuids) == 1


def test_a_stop_takes_effect_where_a_workload_ends(folder: Path) -> None:
    """With a checkpoint and without a final validation, whichever process asks for it."""

    class Stops(Plane):
        @override
        def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> pytorch.TrainingMetrics:
            if batch_idx == 1 and self.context.distributed.get_rank() == self.context.distributed.get_size() - 1:
                self.context.set_stop_requested(True)
            return super().train_batch(batch, epoch_idx, batch_idx)

    listener = Listener()
    trial = fit(listening(Stops, listener), folder, pytorch.Epoch(4), reporting_period=pytorch.Batch(3))

    assert len(trial.trained) == 3
    assert len(listener.uuids) == 1
    assert listener.validations == []


def test_a_trial_goes_on_where_its_checkpoint_was_taken(folder: Path) -> None:
    """From batch 3 of an epoch of 4: batches 3, 4 and 5 follow, and the weights are those of one run."""

    class Shuffled(Plane):
        def __init__(self, context: PyTorchTrialContext) -> None:
            super().__init__(context)
            self.optimizer = context.wrap_optimizer(Adam(self.model.parameters(), lr=0.05))
            self.initial: list[int] = []

        @override
        def build_training_data_loader(self) -> pytorch.DataLoader:
            self.initial.append(self.context.get_initial_batch())
            return pytorch.DataLoader(samples(), batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    init = {"seed": 5}
    whole, first, second = Listener(), Listener(), Listener()
    expected = fit(listening(Shuffled, whole), folder / "a", pytorch.Batch(6), init=init)
    fit(listening(Shuffled, first), folder / "b", pytorch.Batch(3), init=init)
    resumed = fit(
        listening(Shuffled, second), folder / "b", pytorch.Batch(6), init=init, latest_checkpoint=first.uuids[-1]
    )
    assert isinstance(resumed, Shuffled)

    assert resumed.trained == [(0, 3), (1, 4), (1, 5)]
    assert resumed.initial == [3]
    assert second.heard[0] == ("startup", 3, first.uuids[-1])
    assert [what for what in second.heard if "epoch" in what[0] and "validation" not in what[0]] == [
        ("epoch end", 0),
        ("epoch start", 1),
    ]
    for parameter, other in zip(resumed.model.parameters(), expected.model.parameters(), strict=True):
        assert torch.equal(parameter, other)


def test_a_complete_trial_has_nothing_left_to_do(folder: Path) -> None:
    """No training, no validation, no checkpoint."""
    first, second = Listener(), Listener()
    fit(listening(Plane, first), folder, pytorch.Batch(3))
    fit(listening(Plane, second), folder, pytorch.Batch(3), latest_checkpoint=first.uuids[-1])

    assert second.names == ["startup", "training start", "shutdown"]


def test_callbacks_keep_their_state(folder: Path) -> None:
    """By their names; what they add to a checkpoint comes back before anything is restored."""

    class Counting(pytorch.PyTorchCallback):
        def __init__(self) -> None:
            self.epochs = 0
            self.added: object = None
            self.order: list[str] = []

        @override
        def state_dict(self) -> dict[str, Any]:
            return {"epochs": self.epochs}

        @override
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.order.append("load_state_dict")
            self.epochs = state_dict["epochs"]

        @override
        def on_training_epoch_end(self, epoch_idx: int) -> None:
            self.epochs += 1

        @override
        def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["added"] = {"a": [1, torch.ones(2)]}

        @override
        def on_checkpoint_load_start(self, checkpoint: dict[str, Any]) -> None:
            self.order.append("load_start")
            self.added = checkpoint["added"]["a"][0]

        @override
        def on_training_start(self) -> None:
            self.order.append("training_start")

    fit(listening(Plane, Counting()), folder)
    counting = Counting()
    with pytorch.init(hparams=HPARAMS, checkpoint_dir=folder) as context:
        latest = context.get_latest_checkpoint()
        trial = listening(Plane, counting)(context)
        assert latest is not None
        trainer = pytorch.Trainer(trial, context)
        trainer.fit(max_length=pytorch.Epoch(2), checkpoint_policy="none", latest_checkpoint=latest)

    assert counting.order == ["load_start", "load_state_dict", "training_start"]
    assert counting.epochs == 2
    assert counting.added == 1


def test_a_checkpoint_that_is_not_there(folder: Path) -> None:
    """Is an error of its own."""
    with pytest.raises(pytorch.CheckpointNotFound):
        fit(Plane, folder, latest_checkpoint="11111111-2222-3333-4444-555555555555")


class WithArgument(Plane):
    """A trial that is made with more than its context."""

    def __init__(self, context: PyTorchTrialContext, offset: float = 0.0) -> None:
        super().__init__(context)
        self.offset = offset


def test_a_trial_is_loaded_for_its_weights(folder: Path) -> None:
    """With its hparams, by the name of its class or by the class itself."""
    trained = fit(WithArgument, folder)
    (path,) = {file.parent for file in folder.rglob("load_data.json")}

    loaded = pytorch.load_trial_from_checkpoint_path(str(path))
    given = pytorch.load_trial_from_checkpoint_path(
        str(path), trial_class=WithArgument, trial_kwargs={"offset": 2.0}, torch_load_kwargs={"map_location": "cpu"}
    )

    assert {file.name for file in path.iterdir()} >= {"state_dict.pth", "load_data.json", "metadata.json"}
    assert isinstance(loaded, WithArgument)
    assert isinstance(given, WithArgument)
    assert given.offset == 2.0
    assert_same_weights(loaded.model, trained.model)
    assert_same_weights(given.model, trained.model)
    torch.load(path / "state_dict.pth", weights_only=True)


def test_best_checkpoints_by_the_experiments_metric(folder: Path) -> None:
    """A trial that brings its experiment configuration keeps those validations that are better than all before."""

    class Given(Plane):
        values = iter([3.0, 2.0, 2.5, 1.0])

        @override
        def evaluate_full_dataset(self, data_loader: TorchDataLoader[Any]) -> pytorch.Metrics:
            return {"error": next(self.values)}

        evaluate_batch = pytorch.PyTorchTrial.evaluate_batch

    class Saved(Listener):
        saved_after: list[int]

        @override
        def on_checkpoint_upload_end(self, uuid: str) -> None:
            super().on_checkpoint_upload_end(uuid)
            self.saved_after = [*getattr(self, "saved_after", []), len(self.validations)]

    listener = Saved()
    experiment = {"searcher": {"name": "single", "metric": "error", "smaller_is_better": True}}
    fit(
        listening(Given, listener),
        folder,
        pytorch.Batch(4),
        init={"exp_conf": experiment},
        validation_period=pytorch.Batch(1),
        checkpoint_policy="best",
    )

    assert listener.saved_after == [1, 2, 4]


def test_init_takes_keywords_only() -> None:
    """As the reference's."""
    with pytest.raises(TypeError):
        pytorch.init({})  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def test_hyperparameters_that_cannot_work_end_the_program_in_order(folder: Path) -> None:
    """With status 0; in the course of training, after a checkpoint."""

    class Refuses(Plane):
        @override
        def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> pytorch.TrainingMetrics:
            if batch_idx == 2:
                raise pytorch.InvalidHP("too wide")
            return super().train_batch(batch, epoch_idx, batch_idx)

    with pytest.raises(SystemExit) as ended:
        fit(Refuses, folder)
    assert not ended.value.code
    with pytest.raises(SystemExit) as ended, pytorch.init(hparams=HPARAMS, checkpoint_dir=folder):
        raise pytorch.InvalidHP("too deep")
    assert not ended.value.code
    assert len(list(folder.rglob("state_dict.pth"))) == 1


def test_what_a_context_knows(folder: Path) -> None:
    """Of hyperparameters, batch sizes, data and the experiment."""
    experiment = {"data": {"url": "here"}, "description": "a test"}
    with pytorch.init(hparams=HPARAMS, exp_conf=experiment, checkpoint_dir=folder, seed=7) as context:
        assert context.get_hparams() == HPARAMS
        assert context.get_hparam("lr") == 0.05
        with pytest.raises(ValueError, match="nothing"):
            context.get_hparam("nothing")
        assert context.get_data_config() == {"url": "here"}
        assert context.get_experiment_config()["description"] == "a test"
        assert context.get_global_batch_size() == 4
        assert context.get_per_slot_batch_size() == 4 // context.distributed.get_size()
        assert context.get_trial_seed() == 7
        assert context.get_initial_batch() == 0
        assert context.get_stop_requested() is False
        assert isinstance(context.device, torch.device)
        with pytest.raises(AssertionError):
            context.set_stop_requested(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        with pytest.raises(pytorch.InternalException):
            context.current_train_batch()
    assert pytorch.get_cluster_info() is None
    with pytorch.init(checkpoint_dir=folder) as context:
        for query in (context.get_hparams, context.get_experiment_config, context.get_global_batch_size):
            with pytest.raises(ValueError, match=r"hparams|exp_conf|global_batch_size"):
                query()


def test_a_trial_asks_where_it_is(folder: Path) -> None:
    """In each batch."""

    class Asks(Plane):
        def __init__(self, context: PyTorchTrialContext) -> None:
            super().__init__(context)
            self.answers: list[tuple[bool, bool, int, int]] = []

        @override
        def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> pytorch.TrainingMetrics:
            context = self.context
            self.answers.append(
                (
                    context.is_epoch_start(),
                    context.is_epoch_end(),
                    context.current_train_epoch(),
                    context.current_train_batch(),
                )
            )
            return super().train_batch(batch, epoch_idx, batch_idx)

    trial = fit(Asks, folder, pytorch.Batch(5))
    assert isinstance(trial, Asks)
    assert trial.answers == [
        (True, False, 0, 0),
        (False, False, 0, 1),
        (False, False, 0, 2),
        (False, True, 0, 3),
        (True, False, 1, 4),
    ]


def test_a_writer_of_tensorboard(folder: Path) -> None:
    """It writes to the path that the context tells."""
    pytest.importorskip("tensorboard")

    class Writes(Plane):
        def __init__(self, context: PyTorchTrialContext) -> None:
            super().__init__(context)
            self.writer: Any = context.get_tensorboard_writer()
            assert context.get_tensorboard_path() == folder / "board"

        @override
        def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> pytorch.TrainingMetrics:
            self.writer.add_scalar("my_metric", np.random.random(), batch_idx)
            return super().train_batch(batch, epoch_idx, batch_idx)

    fit(Writes, folder / "states", init={"tensorboard_path": folder / "board"})

    assert list((folder / "board").rglob("*tfevents*"))


def test_profilers(folder: Path) -> None:
    """Torch's writes its traces; the platform's is accepted and does nothing."""
    traces: list[Any] = []

    class Profiled(Plane):
        def __init__(self, context: PyTorchTrialContext) -> None:
            super().__init__(context)
            context.set_profiler(
                activities=[torch.profiler.ProfilerActivity.CPU],
                schedule=torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1),
                on_trace_ready=traces.append,
            )

    with pytorch.init(hparams=HPARAMS, checkpoint_dir=folder, tensorboard_path=folder) as context:
        trainer = pytorch.Trainer(Profiled(context), context)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.configure_profiler(sync_timings=True, enabled=True, begin_on_batch=0, end_after_batch=2)
        trainer.fit(max_length=pytorch.Batch(3), checkpoint_policy="none")
    assert len(traces) == 1


def test_the_trainer_ends_with_its_context(folder: Path) -> None:
    """Both say so clearly afterwards."""
    with pytorch.init(hparams=HPARAMS, checkpoint_dir=folder) as context:
        trainer = pytorch.Trainer(Plane(context), context)
    with pytest.raises(Exception, match=r"(?s)with"):
        trainer.fit(max_length=pytorch.Batch(1))


@pytest.mark.runs_on("one_process")
def test_ranks_as_threads_of_one_process() -> None:
    """Sixteen of them gather, share and spread whatever can be pickled, in the order of their ranks."""
    size = 16
    results: dict[int, Any] = {}

    def run(rank: int) -> None:
        with_context = pytorch.DistributedContext(
            rank=rank,
            size=size,
            local_rank=rank,
            local_size=size,
            cross_rank=0,
            cross_size=1,
            pub_port=port,
            pull_port=port + 1,
        )
        try:
            results[rank] = (
                with_context.gather({"rank": rank}),
                with_context.allgather(rank),
                with_context.broadcast(f"from {rank}"),
                with_context.allgather_local((rank,)),
                with_context.broadcast_local(rank),
                with_context.gather_local(rank) is None,
                with_context.get_size(),
                with_context.get_num_agents(),
            )
        finally:
            with_context.close()

    port = free_port()
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    ranks = list(range(size))
    assert sorted(results) == ranks
    for rank, result in results.items():
        gathered = [{"rank": one} for one in ranks] if rank == 0 else None
        assert result == (gathered, ranks, "from 0", [(one,) for one in ranks], 0, rank != 0, size, 1)


def test_weights_are_in_a_model_without_a_wrapper(folder: Path) -> None:
    """On several processes too: what the user wrapped is what the user gets."""
    model = small_model()
    names = list(model.state_dict())
    with pytorch.init(hparams=HPARAMS, checkpoint_dir=folder) as context:
        wrapped = context.wrap_model(model)
        assert list(wrapped.state_dict()) == names
        assert copy.deepcopy(wrapped)[0].in_features == 2  # type: ignore[index]  # pyright: ignore[reportIndexIssue]
