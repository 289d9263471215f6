"""Runs in experiment trackers: what is sent to them, and when."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from typing_extensions import override

from pa_callbacks_extra import TrackerCallback
from pa_callbacks_extra.experiment_trackers import (
    flatten_config,
    installed_trackers,
    known_trackers,
    open_trackers,
    require_trackers,
)
from pa_core import (
    AnyTrainer,
    SaveTrainingStateCallback,
    StepBasedEvaluationCallback,
    StopTrainingError,
    Trainer,
    TrainerCallback,
)
from pa_core.distributed import num_processes
from pa_core.errors import ConfigurationError, ExplainedError, UnsupportedConfigurationError
from pa_core.testing import make_regression
from tests.event_files import Curve, accumulated, read_configs, read_curves, read_images, wait_for_the_next_file
from tests.support.callbacks import FailAt

DATASET = make_regression(30)


class NoteSums(TrainerCallback):
    """Notes the sum of the losses of all samples so far, after each update of an epoch, over all processes."""

    def __init__(self) -> None:
        self.sums: list[float] = []

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        totals: Tensor = trainer.gather(trainer.loss_tracker.totals()[None])
        self.sums.append(float(totals[:, 0].sum()))


def make_trainer(*callbacks: TrainerCallback, num_groups: int = 1) -> Trainer[nn.Linear]:
    """A trainer of a linear model, the same one on every call."""
    torch.default_generator.manual_seed(0)
    model = nn.Linear(4, 1)
    groups = [{"params": [parameter]} for parameter in model.parameters()][: num_groups if num_groups > 1 else 0]
    return Trainer(model, nn.MSELoss(), SGD(groups or model.parameters(), lr=0.1), callbacks=callbacks)


def tracker(folder: Path, every: int = 2) -> TrackerCallback:
    """What most tests track with."""
    return TrackerCallback("tensorboard", "run", logging_dir=folder, every_n_updates=every, config={"note": (1, None)})


def assert_curve(curve: Curve, steps: list[int], values: list[float]) -> None:
    """The curve has these points and no others."""
    assert [step for step, _ in curve] == steps
    assert [value for _, value in curve] == pytest.approx(values)


@pytest.mark.runs_on("one_process", "two_ranks")
def test_a_run_is_shown_with_all_that_belongs_to_it(shared_tmp_path: Path) -> None:
    """Epoch metrics, loss, rate, norm and speed of all processes, and the settings, written once, at the right step."""
    note = NoteSums()
    trainer = make_trainer(tracker(shared_tmp_path), note)

    trainer.train(
        DATASET,
        num_epochs=2,
        eval_dataset=DATASET,
        per_device_batch_size=10 // num_processes(),
        gradient_clip_norm=math.inf,
        create_scheduler_fn=lambda optimizer: StepLR(optimizer, step_size=1, gamma=0.5),
    )

    history = trainer.run_history
    curves = read_curves(shared_tmp_path / "run")
    sums = note.sums
    for name in ("train_loss_epoch", "eval_loss_epoch"):
        assert_curve(curves.pop(name), [3, 6], [float(value) for value in history.get_metric_values(name)])
    # the second update, which closes a window of two; the first of the second epoch, alone in its window; two more
    losses = [sums[1] / 20, sums[3] / 10, (sums[5] - sums[3]) / 20]
    assert_curve(curves.pop("train/loss"), [2, 4, 6], losses)
    assert_curve(curves.pop("train/learning_rate"), [2, 4, 6], [0.1 * 0.5**update for update in (1, 3, 5)])
    assert_curve(curves.pop("epoch"), [2, 3, 3, 4, 6, 6, 6], [1, 1, 1, 2, 2, 2, 2])
    norms = curves.pop("train/gradient_norm")
    assert_curve(norms[-1:], [6], [float(cast("Tensor", trainer.gradient_norm))])
    assert all(speed > 0 for _, speed in curves.pop("train/samples_per_second"))
    assert curves == {}
    (config,) = read_configs(shared_tmp_path / "run")
    assert config["num_epochs"] == 2
    assert config["gradient_clip_value"] == "None"
    assert config["train_dl_kwargs.shuffle"] is True
    assert config["note"] == "(1, None)"
    assert config["seed"] == str(trainer.run_config.seed)


def test_runs_follow_each_other_on_one_axis(tmp_path: Path) -> None:
    """A second training and an evaluation go on where the first training ended, in one run that was opened once."""
    trainer = make_trainer(tracker(tmp_path, every=4))
    trainer.train(DATASET, num_epochs=1, per_device_batch_size=10)
    trainer.train(DATASET, num_epochs=2, per_device_batch_size=10)
    trainer.evaluate(DATASET)
    curves = read_curves(tmp_path / "run")
    assert [step for step, _ in curves["train_loss_epoch"]] == [3, 6, 9]
    assert [step for step, _ in curves["train/loss"]] == [4, 8]
    assert [step for step, _ in curves["evaluation_loss"]] == [9]
    assert_curve(curves["epoch"][-1:], [9], [2])
    assert len(read_configs(tmp_path / "run")) == 1
    assert len(event_files(tmp_path)) == 1


@pytest.mark.parametrize("error", [OSError("disk"), KeyboardInterrupt(), StopTrainingError("enough")], ids=repr)
def test_what_was_sent_before_an_exception_is_kept(tmp_path: Path, error: BaseException) -> None:
    """However a run ends, the next one goes on in the same run of the tracker."""
    track = tracker(tmp_path)
    trainer = make_trainer(track, FailAt("on_optimizer_step_end", error, 2))
    try:
        trainer.train(DATASET, num_epochs=1, per_device_batch_size=10)
    except BaseException as raised:
        assert raised is error  # noqa: PT017 - not every one of them is raised
    make_trainer(track).train(DATASET, num_epochs=1, per_device_batch_size=10)
    curves = read_curves(tmp_path / "run")
    assert [step for step, _ in curves["train/loss"]] == [2, 4]
    assert [step for step, _ in curves["train_loss_epoch"]] == [5]


@pytest.mark.runs_on("one_process", "two_ranks")
def test_a_resumed_run_shows_what_an_uninterrupted_one_shows(shared_tmp_path: Path) -> None:
    """From states within epochs and between them, the curves are the same, also where the first run went on."""

    def run(name: str, *callbacks: TrainerCallback, resume_from: Path | None = None) -> None:
        track = TrackerCallback("tensorboard", name, logging_dir=shared_tmp_path, every_n_updates=3)
        trainer = make_trainer(track, *callbacks)
        options: dict[str, Any] = {"per_device_batch_size": 6 // num_processes(), "gradient_clip_norm": math.inf}
        if resume_from is None:
            trainer.train(DATASET, 1, **options)
        trainer.train(DATASET, 3, DATASET, **options, resume_from=resume_from)

    run("whole")
    expected = read_curves(shared_tmp_path / "whole")
    assert [step for step, _ in expected["train/loss"]] == list(range(3, 21, 3))
    for update in (7, 10):
        states = shared_tmp_path / f"states_{update}"
        save = SaveTrainingStateCallback(states, save_every_n_steps=update)
        with pytest.raises(KeyboardInterrupt):
            run(f"run_{update}", save, FailAt("on_optimizer_step_end", KeyboardInterrupt(), 13))
        assert read_curves(shared_tmp_path / f"run_{update}")["train/loss"][-1][0] == 18
        wait_for_the_next_file()
        run(f"run_{update}", resume_from=states)

        curves = read_curves(shared_tmp_path / f"run_{update}")
        assert curves.keys() == expected.keys()
        for name, curve in expected.items():
            # what belongs to the very update of the state may be there twice
            points = sorted(set(curves[name]))
            assert [step for step, _ in points] == [step for step, _ in sorted(set(curve))], name
            assert points == sorted(set(curve)) or name == "train/samples_per_second"
            assert len(curves[name]) <= len(curve) + 2
        assert len(read_configs(shared_tmp_path / f"run_{update}")) == 1


def test_an_evaluation_after_a_resumed_run_that_was_complete_is_where_the_run_ended(tmp_path: Path) -> None:
    """Nothing is left to train: the evaluation stands at the last update and the last epoch all the same."""
    save = SaveTrainingStateCallback(tmp_path / "states")
    make_trainer(tracker(tmp_path), save).train(DATASET, 2, per_device_batch_size=10)
    track = tracker(tmp_path)
    trainer = make_trainer(track)
    trainer.train(DATASET, 2, per_device_batch_size=10, resume_from=tmp_path / "states")
    trainer.evaluate(DATASET)
    track.finish()
    curves = read_curves(tmp_path / "run")
    assert [step for step, _ in curves["evaluation_loss"]] == [6]
    assert_curve(curves["epoch"][-1:], [6], [2])


def event_files(folder: Path) -> list[Path]:
    """What TensorBoard's writers have written: a file each time that one was opened."""
    return list(folder.glob("run/events*"))


def test_finished_trackers_are_opened_again_when_there_is_more(tmp_path: Path) -> None:
    """``finish`` ends the run in the tracker at once, and can be repeated; what comes later continues it."""
    track = tracker(tmp_path)
    trainer = make_trainer(track)
    track.finish()
    trainer.train(DATASET, num_epochs=1, per_device_batch_size=10)
    writer: Any = track.native("tensorboard")
    track.finish()
    track.finish()
    assert writer.all_writers is None
    wait_for_the_next_file()
    trainer.evaluate(DATASET)
    assert len(event_files(tmp_path)) == 2
    assert [step for step, _ in read_curves(tmp_path / "run")["evaluation_loss"]] == [3]


def test_a_process_has_one_run_of_a_tracker_open(tmp_path: Path) -> None:
    """The tracker of the next trainer ends the run of the one before; an evaluation by that opens it again."""
    first, second = tracker(tmp_path), TrackerCallback("tensorboard", "second", logging_dir=tmp_path)
    trainers = [make_trainer(first), make_trainer(second)]
    trainers[0].train(DATASET, num_epochs=1, per_device_batch_size=10)
    writer: Any = first.native("tensorboard")
    trainers[1].train(DATASET, num_epochs=1, per_device_batch_size=10)
    assert writer.all_writers is None
    wait_for_the_next_file()
    trainers[0].evaluate(DATASET)
    assert read_curves(tmp_path / "run")["evaluation_loss"][0][0] == 3
    assert "evaluation_loss" not in read_curves(tmp_path / "second")


IMAGES = {
    "one channel": torch.linspace(0, 1, 6).view(1, 2, 3),
    "no channel": torch.linspace(0, 1, 6).view(2, 3).bfloat16(),
    "too bright": torch.linspace(-1, 2, 18, requires_grad=True).view(3, 2, 3),
    "bytes": torch.arange(24, dtype=torch.uint8).view(4, 2, 3),
}


@pytest.mark.runs_on("one_process", "two_ranks")
def test_images_and_what_else_a_tracker_takes_stand_beside_the_metrics(shared_tmp_path: Path) -> None:
    """Each process may send an image; the tracker's own object is there for all else, at the same step."""
    track = tracker(shared_tmp_path)

    class SendImages(TrainerCallback):
        @override
        def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            for name, image in IMAGES.items():
                track.log_image(name, image)
            if (writer := track.native("tensorboard")) is not None:
                writer.add_text("remark", "good", track.step)

    trainer = make_trainer(track, SendImages())
    trainer.train(DATASET, 2, DATASET, per_device_batch_size=10 // num_processes(), gradient_clip_norm=1.0)
    track.finish()
    trainer.wait_for_everyone()
    images = read_images(shared_tmp_path / "run")
    assert {name: [step for step, _ in shown] for name, shown in images.items()} == {name: [3, 6] for name in IMAGES}
    for name, shown in images.items():
        image = IMAGES[name].detach()
        expected = (image.float().clamp(0, 1) * 255).round() if image.is_floating_point() else image
        torch.testing.assert_close(shown[0][1].to(torch.float32), expected.expand_as(shown[0][1]).to(torch.float32))
    assert [event.step for event in accumulated(shared_tmp_path / "run").Tensors("remark/text_summary")] == [3, 6]


@pytest.mark.parametrize("shape", [(4,), (2, 3, 4), (8, 1, 4, 4)], ids=str)
def test_what_is_no_image_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """The error tells the shapes of images, and how a batch becomes one."""
    with pytest.raises(ConfigurationError, match="make_grid"):
        tracker(tmp_path).log_image("batch", torch.zeros(shape))


class SlowEvaluation(TrainerCallback):
    """Takes its time in evaluations, and records something when the epoch is over."""

    @override
    def on_eval_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        time.sleep(0.4)

    @override
    def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        trainer.run_history.update_metric("afterthought", trainer.run_history.current_epoch)


def test_evaluations_do_not_slow_the_training_down(tmp_path: Path) -> None:
    """The speed is that of the training alone, and a metric that is recorded behind the tracker's back is sent too."""
    make_trainer().train(DATASET, num_epochs=1)  # the first step of a process imports, and is no measure
    trainer = make_trainer(tracker(tmp_path), StepBasedEvaluationCallback(1), SlowEvaluation())
    trainer.train(make_regression(10), num_epochs=1, eval_dataset=make_regression(2), per_device_batch_size=5)
    curves = read_curves(tmp_path / "run")
    ((_, speed),) = curves["train/samples_per_second"]
    assert speed > 10 / 0.4
    assert curves["afterthought"] == [(2, 1)]


def test_each_parameter_group_has_its_rate(tmp_path: Path) -> None:
    """With several parameter groups there is a curve of the learning rate for each."""
    make_trainer(tracker(tmp_path), num_groups=2).train(DATASET, num_epochs=1)
    curves = read_curves(tmp_path / "run")
    assert {name for name in curves if "rate" in name} == {"train/learning_rate_0", "train/learning_rate_1"}


def test_between_reports_nothing_is_read_from_tensors(tmp_path: Path) -> None:
    """A tracker reads no tensor in the updates between its reports: on an accelerator each reading is a wait."""

    def readings(*callbacks: TrainerCallback) -> int:
        trainer = make_trainer(*callbacks)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            trainer.train(DATASET, num_epochs=1, per_device_batch_size=2)
        counted: Any = profile.key_averages()
        return sum(entry.count for entry in counted if entry.key == "aten::_local_scalar_dense")

    rare = TrackerCallback("tensorboard", "run", logging_dir=tmp_path, every_n_updates=1000)
    assert readings(rare) == readings()
    assert readings(TrackerCallback("tensorboard", "run", logging_dir=tmp_path, every_n_updates=1)) > readings()


@pytest.mark.parametrize(
    ("name", "every", "told"), [("tensorbord", 1, "'tensorbord'"), ("tensorboard", 0, "every_n_updates must")]
)
def test_a_wrong_tracker_is_refused_at_once(name: str, every: int, told: str) -> None:
    """A wrong name or a wrong number is told when the callback is made."""
    with pytest.raises(ConfigurationError, match=told):
        TrackerCallback(name, "run", every_n_updates=every)


def test_a_tracker_that_refuses_its_arguments_ends_the_run_before_its_first_step(tmp_path: Path) -> None:
    """Arguments that a tracker does not take are told before anything was trained."""
    wrong = TrackerCallback("tensorboard", "run", logging_dir=tmp_path, init_kwargs={"tensorboard": {"colour": 1}})
    trainer = make_trainer(wrong)
    with pytest.raises(ConfigurationError, match="colour"):
        trainer.train(DATASET, num_epochs=1)
    assert trainer.run_history.clock.update == 0


NOT_INSTALLED = next(name for name in known_trackers() if name not in installed_trackers())


@pytest.mark.parametrize(
    ("arguments", "kind", "told"),
    [
        ({"names": "tensorbord"}, ConfigurationError, "no tracker 'tensorbord'.*tensorboard"),
        ({"names": []}, ConfigurationError, "without a name"),
        ({"names": ["tensorboard", NOT_INSTALLED]}, UnsupportedConfigurationError, f"pip install {NOT_INSTALLED}"),
        ({"init_kwargs": {"wandb": {}}}, ConfigurationError, "init_kwargs names 'wandb'"),
        ({"init_kwargs": {"tensorboard": {"key": "secret"}}}, ConfigurationError, "key; TypeError: .*'key'"),
        (
            {"init_kwargs": {"tensorboard": {"key": "secret"}}, "run_ids": {"tensorboard": "run 7"}},
            ConfigurationError,
            "To continue the run 'run 7', start in the same working directory",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_opened_is_explained(
    tmp_path: Path, arguments: dict[str, Any], kind: type[ExplainedError], told: str
) -> None:
    """A wrong name, a missing package or a wrong argument is told, no secret with it, and nothing is written."""
    arguments = {"names": "tensorboard", "project_name": "digits", **arguments}
    with pytest.raises(kind, match=told) as raised:
        open_trackers(**arguments, logging_dir=tmp_path)
    assert "secret" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_names_are_taken_once() -> None:
    """A name given twice is one tracker."""
    assert require_trackers(["tensorboard", "tensorboard"]) == ("tensorboard",)


class Tracker:
    """A tracker of one's own, as accelerate lets a program register one; it fails where it is told to."""

    requires_logging_directory = True
    tracker = None

    def __init__(self, project: str, folder: str, fails_to: str = "", name: str = "a run") -> None:
        self.called = [f"made for {name} of {project}"]
        self.fails_to = fails_to
        made.append(self)

    def __getattr__(self, method: str) -> Callable[..., None]:
        def note(*_values: Any, **_step: Any) -> None:
            self.called.append(method)
            if method == self.fails_to:
                raise OSError(f"cannot {method}")

        return note


made: list[Tracker] = []


@pytest.fixture
def two_of_our_own(monkeypatch: pytest.MonkeyPatch) -> list[Tracker]:
    """Two registered trackers, ``first`` and ``second``; the list of those that were made."""
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    for name in ("first", "second"):
        monkeypatch.setitem(cast("dict[str, Any]", LOGGER_TYPE_TO_CLASS), name, Tracker)
    made.clear()
    return made


def test_a_tracker_of_ones_own_is_used_by_its_name(two_of_our_own: list[Tracker], tmp_path: Path) -> None:
    """What a program has registered with accelerate is opened, written to and finished like the others."""
    trackers = open_trackers(
        "first", "digits", logging_dir=tmp_path, config={"epochs": 1}, init_kwargs={"first": {"name": "run 7"}}
    )
    trackers.log({"loss": 0.5}, step=1)
    trackers.finish()
    (tracker,) = two_of_our_own
    assert tracker.called == ["made for run 7 of digits", "start", "store_init_configuration", "log", "finish"]


@pytest.mark.parametrize("failing", ["start", "store_init_configuration", "finish"])
def test_no_tracker_stays_open_when_another_one_fails(
    two_of_our_own: list[Tracker], tmp_path: Path, failing: str
) -> None:
    """Whatever the second tracker cannot do, the first one is finished, and the error is told."""
    with pytest.raises((OSError, ConfigurationError), match=f"cannot {failing}"):
        open_trackers(
            ["first", "second"],
            "digits",
            logging_dir=tmp_path,
            config={"epochs": 1},
            init_kwargs={"second": {"fails_to": failing}},
        ).finish()
    first, second = two_of_our_own
    assert first.called[-1] == "finish"
    assert failing in second.called


SETTINGS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), SETTINGS, max_size=4))
def test_settings_become_plain_and_none_is_lost(config: dict[str, object]) -> None:
    """However nested, each setting has one name of its own and a value that every tracker takes and can give back."""

    def leaves(value: object) -> int:
        return sum(map(leaves, value.values())) if isinstance(value, dict) else 1

    flat = flatten_config(config)
    assert len(flat) == leaves(config)
    for value in flat.values():
        assert isinstance(value, bool | int | float | str)
        assert isinstance(value, str) or (math.isfinite(value) and float(value) == value)
