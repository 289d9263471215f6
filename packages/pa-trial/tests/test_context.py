"""What a trial can ask of its context, before, in and after training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typing_extensions import override

import pa_trial
from pa_trial import Batch, DistributedContext, LRScheduler, PyTorchTrialContext, Trainer
from pa_trial.context import CoreContext
from tests.event_files import read_curves
from tests.support.models import weights_of
from tests.support.trials import TinyTrial, fit, variant


def test_what_is_wrapped_is_listed_in_order() -> None:
    """``models``, ``optimizers`` and ``lr_schedulers`` hold what was wrapped, once; schedulers in their wrappers."""
    with pa_trial.init() as context:
        first, second = (context.wrap_model(nn.Linear(1, 1)) for _ in range(2))
        optimizer = context.wrap_optimizer(torch.optim.SGD(first.parameters()))
        assert (context.wrap_model(first), context.wrap_optimizer(optimizer)) == (first, optimizer)
        inner = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        returned = context.wrap_lr_scheduler(inner, LRScheduler.StepMode.MANUAL_STEP)
        assert context.models == [first, second]
        assert context.optimizers == [optimizer]
        assert returned is inner
        [wrapper] = context.lr_schedulers
        assert isinstance(wrapper, LRScheduler)
        assert wrapper.scheduler is inner
        assert context.device == torch.device("cpu")
        assert context.distributed.get_size() == 1


@pytest.mark.parametrize("name", ["current_train_batch", "current_train_epoch", "is_epoch_start", "is_epoch_end"])
def test_there_is_no_batch_before_training(name: str) -> None:
    """Asking for the current batch or epoch before training is an InternalException that names the call."""
    with pa_trial.init() as context, pytest.raises(pa_trial.InternalException, match=name):
        getattr(context, name)()


class AskingTrial(TinyTrial):
    """Asks its context where it is: in each batch, and when it builds its loader."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        super().__init__(context)
        self.answers: list[tuple[int, int, bool, bool]] = []
        self.initial: list[int] = []

    @override
    def build_training_data_loader(self) -> pa_trial.DataLoader:
        self.initial.append(self.context.get_initial_batch())
        return super().build_training_data_loader()

    @override
    def before_batch(self, batch_idx: int) -> None:
        batch, epoch = self.context.current_train_batch(), self.context.current_train_epoch()
        self.answers.append((batch, epoch, self.context.is_epoch_start(), self.context.is_epoch_end()))


def test_where_a_training_is(tmp_path: Path) -> None:
    """In ``train_batch``, the context tells batch, epoch, and whether one begins or ends; also when resumed."""
    in_order = [(n, n // 4, n % 4 == 0, n % 4 == 3) for n in range(9)]
    trial = fit(AskingTrial, tmp_path, max_length=Batch(6))
    assert (trial.answers, trial.initial) == (in_order[:6], [0])
    (checkpoint,) = tmp_path.iterdir()
    trial = fit(AskingTrial, tmp_path, max_length=Batch(9), latest_checkpoint=checkpoint)
    assert (trial.answers, trial.initial, trial.context.get_initial_batch()) == (in_order[6:], [6], 6)


def test_ids() -> None:
    """Experiment and trial have the number 0, and nothing is contacted to find out."""
    with pa_trial.init() as context:
        assert (context.get_experiment_id(), context.get_trial_id()) == (0, 0)
    info: object = pa_trial.get_cluster_info()
    assert info is None


@pytest.mark.parametrize("value", [1, None, "yes"])
def test_requests_to_stop_are_bools(value: Any) -> None:
    """Something else than a bool is an AssertionError, and the request stays as it was."""
    with pa_trial.init() as context:
        assert context.get_stop_requested() is False
        context.set_stop_requested(True)
        with pytest.raises(AssertionError, match="True or False"):
            context.set_stop_requested(value)
        assert context.get_stop_requested() is True
        context.set_stop_requested(False)
        assert context.get_stop_requested() is False


def test_apex() -> None:
    """Apex is passed through where it is not enabled; otherwise the error names what to use instead."""
    with pa_trial.init() as context:
        model = context.wrap_model(nn.Linear(1, 1))
        optimizer = context.wrap_optimizer(torch.optim.SGD(model.parameters()))
        assert context.configure_apex_amp(model, optimizer, enabled=False) == (model, optimizer)
        models, optimizers = context.configure_apex_amp([model], [optimizer], enabled=False, opt_level="O2")
        assert (models, optimizers) == ([model], [optimizer])
        with pytest.raises(pa_trial.InvalidExperimentException, match="use_amp"):
            context.configure_apex_amp(model, optimizer, num_losses=2)


def test_tensorboard_with_a_path(tmp_path: Path) -> None:
    """The writer writes to the path that was chosen, is the same each time, and is closed with the block."""
    with pa_trial.init() as context:
        assert context.get_tensorboard_path() is None
    with pa_trial.init(tensorboard_path=str(tmp_path)) as context:
        assert context.get_tensorboard_path() == tmp_path
        writer = context.get_tensorboard_writer()
        assert context.get_tensorboard_writer() is writer
        writer.add_scalar("mine", 2.0, 1)
    assert read_curves(tmp_path) == {"mine": [(1, 2.0)]}


def test_curves_can_be_turned_off(tmp_path: Path) -> None:
    """In ``init`` and by the context, from the next report on."""
    board = tmp_path / "tensorboard"
    trial = fit(
        TinyTrial,
        tmp_path / "off",
        settings={"tensorboard_path": board, "enable_tensorboard_logging": False},
        max_length=Batch(1),
    )
    assert trial.context.get_enable_tensorboard_logging() is False
    assert not board.exists()

    def before_batch(trial: TinyTrial, batch_idx: int) -> None:
        with pytest.raises(AssertionError, match="True or False"):
            trial.context.set_enable_tensorboard_logging("no")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # that is the test
        trial.context.set_enable_tensorboard_logging(batch_idx < 2)

    asked: dict[str, Any] = {"max_length": Batch(4), "reporting_period": Batch(1)}
    fit(variant(TinyTrial, before_batch=before_batch), tmp_path, settings={"tensorboard_path": board}, **asked)
    assert [step for step, _ in read_curves(board)["Determined/batches"]] == [1, 2]


USES: dict[str, Callable[[PyTorchTrialContext], Any]] = {
    "wrap_model": lambda context: context.wrap_model(nn.Linear(1, 1)),
    "backward": lambda context: context.backward(torch.ones((), requires_grad=True)),
    "to_device": lambda context: context.to_device(torch.ones(1)),
    "set_stop_requested": lambda context: context.set_stop_requested(True),
    "get_latest_checkpoint": lambda context: context.get_latest_checkpoint(),
    "get_tensorboard_writer": lambda context: context.get_tensorboard_writer(),
    "configure_apex_amp": lambda context: context.configure_apex_amp(context.models, context.optimizers, enabled=False),
    "use_amp": lambda context: context.experimental.use_amp(),
    "collective": lambda context: context.distributed.allgather(1),
    "wrap_reducer": lambda context: context.wrap_reducer(sum, "total"),
}


def test_what_needs_no_process_can_be_asked_after_the_block(tmp_path: Path) -> None:
    """A script prints where its training ended, and its settings; who acts is told to move the line into the block."""
    given: dict[str, Any] = {"hparams": {"global_batch_size": 4, "lr": 0.1}, "exp_conf": {"data": {"rows": 3}}}
    settings: dict[str, Any] = {"tensorboard_path": tmp_path, "seed": 3, **given}
    with pa_trial.init(checkpoint_dir=tmp_path, **settings) as context:
        trial = TinyTrial(context)
        Trainer(trial, context).fit(max_length=Batch(4), checkpoint_policy="none")
        context.set_stop_requested(True)
    assert (context.models, context.optimizers, context.lr_schedulers) == ([trial.model], [trial.optimizer], [])
    assert (context.current_train_batch(), context.current_train_epoch(), context.get_initial_batch()) == (3, 0, 0)
    assert (context.is_epoch_start(), context.is_epoch_end()) == (False, True)
    assert (context.get_hparam("lr"), context.get_per_slot_batch_size(), context.get_trial_seed()) == (0.1, 4, 3)
    assert (context.get_experiment_id(), context.get_trial_id()) == (0, 0)
    assert (context.get_data_config(), context.get_tensorboard_path()) == ({"rows": 3}, tmp_path)
    assert context.get_stop_requested()
    assert context.get_enable_tensorboard_logging()
    assert context.profiler is None
    for use in USES.values():
        with pytest.raises(pa_trial.InternalException, match="block"):
            use(context)


def profiled(**settings: Any) -> Callable[[PyTorchTrialContext], TinyTrial]:
    """A trial that profiles its batches."""

    def make(context: PyTorchTrialContext) -> TinyTrial:
        assert context.profiler is None
        context.set_profiler(activities=[torch.profiler.ProfilerActivity.CPU], **settings)
        return TinyTrial(context)

    return make


@pytest.mark.parametrize(("asked", "folder"), [({"tensorboard_path": Path("board")}, "board"), ({}, "runs")])
def test_a_profiler_writes_traces_for_tensorboard(
    asked: dict[str, Any], folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``set_profiler`` makes a step after each batch, and its traces are in the folder of TensorBoard."""
    monkeypatch.chdir(tmp_path)
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1)
    trial = fit(profiled(schedule=schedule), tmp_path / "checkpoints", settings=asked, max_length=Batch(3))
    assert isinstance(trial.context.profiler, torch.profiler.profile)
    assert trial.context.profiler.step_num == 3
    traces = list((tmp_path / folder).glob("*.pt.trace.json"))
    assert traces
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", folder}
    names = {event.get("name") for trace in traces for event in json.loads(trace.read_text())["traceEvents"]}
    assert "aten::mse_loss" in names


def test_a_profiler_can_hand_its_traces_to_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an ``on_trace_ready`` of the user's, nothing is written, not even to a folder named None."""
    monkeypatch.chdir(tmp_path)
    steps: list[int] = []

    def note(profiler: torch.profiler.profile) -> None:
        steps.append(profiler.step_num)

    make = profiled(on_trace_ready=note)
    fit(make, tmp_path / "checkpoints", settings={"enable_tensorboard_logging": False}, max_length=Batch(2))
    assert steps == [2]
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]


def test_a_context_made_by_hand(tmp_path: Path) -> None:
    """The documented constructor makes a context that trains, in place of ``init``."""
    numbers: dict[str, Any] = {"trial_seed": 3, "slots_per_trial": 2, "num_gpus": 0, "aggregation_frequency": 1}
    numbers |= {"steps_completed": 5, "managed_training": True, "debug_enabled": False}
    hparams, exp_conf = {"global_batch_size": 8}, {"data": {"url": "x"}}
    context = PyTorchTrialContext(core_context=None, hparams=hparams, exp_conf=exp_conf, **numbers)
    assert (context.get_trial_seed(), context.get_per_slot_batch_size(), context.get_initial_batch()) == (3, 4, 5)
    assert context.get_data_config() == {"url": "x"}
    assert context.device == torch.device("cpu")
    by_position = PyTorchTrialContext(None, None, None, 1, 0, None, 2, 0, True, False)
    trial = TinyTrial(by_position)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path))
        Trainer(trial, by_position).fit(max_length=Batch(2), checkpoint_policy="none")
    assert not torch.equal(weights_of(trial.model), trial.first)
    distributed = DistributedContext()
    of_core = PyTorchTrialContext(CoreContext(distributed), None, None, 1, 0, None, 1, 0, True, False)
    assert of_core.distributed is distributed
