"""What a trial can ask of its context, before, in and after training."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

import pa_trial
from pa_trial import Batch, DistributedContext, LRScheduler, PyTorchTrialContext, Trainer
from tests.event_files import read_curves
from tests.support.trials import TinyTrial

if TYPE_CHECKING:
    from collections.abc import Callable


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


BEFORE_TRAINING: dict[str, Callable[[PyTorchTrialContext], Any]] = {
    "current_train_batch": lambda context: context.current_train_batch(),
    "current_train_epoch": lambda context: context.current_train_epoch(),
    "is_epoch_start": lambda context: context.is_epoch_start(),
    "is_epoch_end": lambda context: context.is_epoch_end(),
}


@pytest.mark.parametrize("name", BEFORE_TRAINING)
def test_there_is_no_batch_before_training(name: str) -> None:
    """Asking for the current batch or epoch before training is an InternalException that names the call."""
    with pa_trial.init() as context, pytest.raises(pa_trial.InternalException, match=name):
        BEFORE_TRAINING[name](context)


class AskingTrial(TinyTrial):
    """Asks its context in each batch where it is."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        super().__init__(context)
        self.answers: list[tuple[int, int, bool, bool]] = []
        self.initial: list[int] = []

    @override
    def build_training_data_loader(self) -> pa_trial.DataLoader:
        self.initial.append(self.context.get_initial_batch())
        return super().build_training_data_loader()

    @override
    def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        context = self.context
        self.answers.append(
            (
                context.current_train_batch(),
                context.current_train_epoch(),
                context.is_epoch_start(),
                context.is_epoch_end(),
            )
        )
        return super().train_batch(batch, epoch_idx, batch_idx)


def test_where_a_training_is(tmp_path: Path) -> None:
    """In ``train_batch``, the context tells batch, epoch, and whether one begins or ends; also when resumed."""
    in_order = [(n, n // 4, n % 4 == 0, n % 4 == 3) for n in range(9)]
    with pa_trial.init(checkpoint_dir=tmp_path, seed=0) as context:
        trial = AskingTrial(context)
        Trainer(trial, context).fit(max_length=Batch(6), checkpoint_policy="none")
        assert trial.answers == in_order[:6]
        assert trial.initial == [0]
    with pa_trial.init(checkpoint_dir=tmp_path, seed=0) as context:
        trial = AskingTrial(context)
        latest = context.get_latest_checkpoint()
        assert latest is not None
        Trainer(trial, context).fit(max_length=Batch(9), latest_checkpoint=latest, checkpoint_policy="none")
        assert trial.answers == in_order[6:]
        assert trial.initial == [6]
        assert context.get_initial_batch() == 6


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


def test_data_are_moved_and_warned_of_once() -> None:
    """``to_device`` warns once of each type that it cannot move, for as long as the context lasts."""
    with pa_trial.init() as context:
        with pytest.warns(UserWarning, match="str") as caught:
            moved = context.to_device({"a": "text", "b": ["more"]})
        assert moved == {"a": "text", "b": ["more"]}
        assert len(caught) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            context.to_device("again")


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


def test_tensorboard_without_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a path, the path is None, and the writer makes a folder of its own below ``runs``."""
    monkeypatch.chdir(tmp_path)
    with pa_trial.init() as context:
        assert context.get_tensorboard_path() is None
        assert not (tmp_path / "runs").exists()
        context.get_tensorboard_writer().add_scalar("mine", 2.0, 1)
    [folder] = (tmp_path / "runs").iterdir()
    assert read_curves(folder) == {"mine": [(1, 2.0)]}


def test_tensorboard_with_a_path(tmp_path: Path) -> None:
    """The writer writes to the path that was chosen, is the same each time, and is closed with the block."""
    with pa_trial.init(tensorboard_path=str(tmp_path)) as context:
        assert context.get_tensorboard_path() == tmp_path
        writer = context.get_tensorboard_writer()
        assert context.get_tensorboard_writer() is writer
        writer.add_scalar("mine", 2.0, 1)
    assert read_curves(tmp_path) == {"mine": [(1, 2.0)]}


@pytest.mark.parametrize("by_init", [True, False])
def test_metrics_need_not_go_to_tensorboard(by_init: bool, tmp_path: Path) -> None:
    """Logging for TensorBoard can be turned off in ``init`` and by the context."""
    tensorboard = tmp_path / "tensorboard"
    with pa_trial.init(
        checkpoint_dir=tmp_path, tensorboard_path=tensorboard, enable_tensorboard_logging=not by_init
    ) as context:
        assert context.get_enable_tensorboard_logging() is not by_init
        context.set_enable_tensorboard_logging(False)
        assert context.get_enable_tensorboard_logging() is False
        Trainer(TinyTrial(context), context).fit(max_length=Batch(1), checkpoint_policy="none")
        with pytest.raises(AssertionError, match="True or False"):
            context.set_enable_tensorboard_logging("no")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert not tensorboard.exists()


class Deciding(TinyTrial):
    """Turns its curves off after the second batch."""

    @override
    def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        if batch_idx == 2:
            self.context.set_enable_tensorboard_logging(False)
        return super().train_batch(batch, epoch_idx, batch_idx)


def test_curves_can_be_turned_off_in_the_course_of_training(tmp_path: Path) -> None:
    """What was asked for counts from the next report on."""
    with pa_trial.init(checkpoint_dir=tmp_path, tensorboard_path=tmp_path / "curves") as context:
        options: dict[str, Any] = {"reporting_period": Batch(1), "checkpoint_policy": "none"}
        Trainer(Deciding(context), context).fit(max_length=Batch(4), **options)
    assert [step for step, _ in read_curves(tmp_path / "curves")["Determined/batches"]] == [1, 2]


def test_what_needs_no_process_can_be_asked_after_the_block(tmp_path: Path) -> None:
    """A script prints where its training ended, and its settings, once the block of ``init`` is left."""
    settings: dict[str, Any] = {"hparams": {"global_batch_size": 4, "lr": 0.1}, "exp_conf": {"data": {"rows": 3}}}
    with pa_trial.init(checkpoint_dir=tmp_path, tensorboard_path=tmp_path, seed=3, **settings) as context:
        Trainer(TinyTrial(context), context).fit(max_length=Batch(4), checkpoint_policy="none")
        context.set_stop_requested(True)
    assert (context.current_train_batch(), context.current_train_epoch(), context.get_initial_batch()) == (3, 0, 0)
    assert (context.is_epoch_start(), context.is_epoch_end()) == (False, True)
    assert (context.get_hparam("lr"), context.get_per_slot_batch_size(), context.get_trial_seed()) == (0.1, 4, 3)
    assert (context.get_experiment_id(), context.get_trial_id()) == (0, 0)
    assert (context.get_data_config(), context.get_tensorboard_path()) == ({"rows": 3}, tmp_path)
    assert context.get_stop_requested()
    assert context.get_enable_tensorboard_logging()
    assert context.profiler is None
    for acts in (context.get_latest_checkpoint, context.get_tensorboard_writer, context.wrap_model):
        with pytest.raises(pa_trial.InternalException, match="with block"):
            acts(*([nn.Linear(1, 1)] if acts == context.wrap_model else []))


class ProfiledTrial(TinyTrial):
    """Profiles its batches, as it was told."""

    settings: dict[str, Any]

    def __init__(self, context: PyTorchTrialContext) -> None:
        super().__init__(context)
        assert context.profiler is None
        context.set_profiler(activities=[torch.profiler.ProfilerActivity.CPU], **self.settings)


@pytest.mark.parametrize(("asked", "folder"), [({"tensorboard_path": Path("board")}, "board"), ({}, "runs")])
def test_a_profiler_writes_traces_for_tensorboard(
    asked: dict[str, Any], folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``set_profiler`` makes a step after each batch, and its traces are in the folder of TensorBoard."""
    monkeypatch.chdir(tmp_path)
    ProfiledTrial.settings = {"schedule": torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1)}
    with pa_trial.init(checkpoint_dir=tmp_path / "checkpoints", **asked) as context:
        Trainer(ProfiledTrial(context), context).fit(max_length=Batch(3), checkpoint_policy="none")
        assert isinstance(context.profiler, torch.profiler.profile)
        assert context.profiler.step_num == 3
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

    ProfiledTrial.settings = {"on_trace_ready": note}
    with pa_trial.init(checkpoint_dir=tmp_path / "checkpoints", enable_tensorboard_logging=False) as context:
        Trainer(ProfiledTrial(context), context).fit(max_length=Batch(2), checkpoint_policy="none")
    assert steps == [2]
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]


def test_experimental_settings() -> None:
    """What is experimental is off by default, and can be asked for; ``wrap_reducer`` is that of the context."""
    with pa_trial.init() as context:
        experimental = context.experimental
        assert isinstance(experimental, pa_trial.PyTorchExperimentalContext)
        total = experimental.wrap_reducer(sum, name="total")
        total.update(3)
        assert total.per_slot_reduce() == [3]
        with pytest.raises(AssertionError):
            context.wrap_reducer(total)


@dataclass(frozen=True)
class Core:
    """Stands for the context of Determined's core."""

    distributed: DistributedContext


def test_a_context_made_by_hand(tmp_path: Path) -> None:
    """The documented constructor makes a context that trains, in place of ``init``."""
    context = PyTorchTrialContext(
        core_context=None,
        trial_seed=3,
        hparams={"global_batch_size": 8},
        slots_per_trial=2,
        num_gpus=0,
        exp_conf={"data": {"url": "x"}},
        aggregation_frequency=1,
        steps_completed=5,
        managed_training=True,
        debug_enabled=False,
    )
    assert (context.get_trial_seed(), context.get_per_slot_batch_size(), context.get_initial_batch()) == (3, 4, 5)
    assert context.get_data_config() == {"url": "x"}
    assert context.device == torch.device("cpu")
    by_position = PyTorchTrialContext(None, None, None, 1, 0, None, 2, 0, True, False)
    trial = TinyTrial(by_position)
    before = trial.model.weight.clone()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path))
        Trainer(trial, by_position).fit(max_length=Batch(2), checkpoint_policy="none")
    assert not torch.equal(before, trial.model.weight)
    distributed = DistributedContext()
    of_core = PyTorchTrialContext(Core(distributed), None, None, 1, 0, None, 1, 0, True, False)
    assert of_core.distributed is distributed
