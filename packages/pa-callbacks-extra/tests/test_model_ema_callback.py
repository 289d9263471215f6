"""The callback that averages the weights of a run, of models of any kind."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DynamoBackend, TorchDynamoPlugin
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.optim import SGD
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_callbacks_extra import ModelEma, ModelEmaCallback
from pa_core import (
    AnyTrainer,
    CheckpointError,
    ConfigurationError,
    LogMetricsCallback,
    NonFiniteLossError,
    SaveBestModelCallback,
    StopTrainingError,
    TerminateOnNaNCallback,
    Trainer,
    TrainerCallback,
)
from pa_core.testing import RecordingCallback, TinyClassifier, make_classification
from tests.support.callbacks import CallAt, FailAt
from tests.support.explained import assert_explained
from tests.support.pa_callbacks_extra.averaged_models import values
from tests.support.pa_callbacks_extra.averaged_runs import EVERYWHERE, AverageByHand, make_trainer, require_equal, train
from tests.support.schedule_free import Averaging


@pytest.mark.runs_on(*EVERYWHERE)
@pytest.mark.parametrize(("every", "accumulation"), [(1, 1), (3, 1), (2, 2)])
def test_the_average_follows_the_updates_of_a_run(shared_tmp_path: Path, every: int, accumulation: int) -> None:
    """After a run the average is that of its updates, the same on all ranks, with the buffers of the first one."""
    by_hand = AverageByHand(decay=0.8**every, every=every)
    callback = ModelEmaCallback(0.8, save_path=shared_tmp_path / "ema.pt", update_every_n_steps=every)
    trainer = make_trainer(callback, by_hand)

    train(trainer, gradient_accumulation_steps=accumulation)

    average = values(callback.ema.module)
    assert callback.ema.num_updates == trainer.num_updates_completed // every
    for name, value in average.items():
        of_first_rank: Tensor = trainer.gather(by_hand.average[name][None])[0]
        torch.testing.assert_close(value, of_first_rank)
        of_all_ranks: Tensor = trainer.gather(value[None])
        assert all(torch.equal(of_one, value) for of_one in of_all_ranks), name


@pytest.mark.runs_on(*EVERYWHERE)
def test_the_average_is_evaluated_as_the_model_is(shared_tmp_path: Path) -> None:
    """What is recorded of the average is, to the last bit, what evaluating a model with these weights gives."""
    callback = ModelEmaCallback(0.8, save_path=shared_tmp_path / "ema.pt")
    trainer = make_trainer(callback)

    train(trainer)

    history = trainer.run_history
    recorded = list(history.get_metric_values("ema_model_eval_loss_epoch"))
    assert len(recorded) == len(list(history.get_metric_values("eval_loss_epoch"))) == 3
    own = values(trainer.model)
    with callback.ema.applied_to(trainer.model):
        trainer.evaluate(reset_run_history=False)
    assert history.get_latest_metric("evaluation_loss") == recorded[-1]
    assert history.get_latest_metric("eval_loss_epoch") != recorded[-1]
    require_equal(values(trainer.model), own)
    assert "forward" not in vars(callback.ema.module)


@pytest.mark.runs_on(*EVERYWHERE)
def test_the_best_average_is_saved(shared_tmp_path: Path) -> None:
    """The file has the average of the best epoch, by a metric that a callback measured on the average."""
    path = shared_tmp_path / "folder" / "ema.pt"
    by_hand = AverageByHand(decay=0.5)
    scores = iter([1.0, 3.0, 2.0])
    record = CallAt("on_eval_epoch_end", lambda trainer: trainer.run_history.update_metric("score", next(scores)))
    callback = ModelEmaCallback(0.5, True, path, "ema_model_score", greater_is_better=True, callbacks=[record])
    trainer = make_trainer(callback, by_hand)

    train(trainer)
    trainer.gather(torch.zeros(1))  # wait until the first rank has written

    saved = torch.load(path, weights_only=True)
    assert {key: value for key, value in saved.items() if key != "model_state_dict"} == {
        "watch_metric": "ema_model_score",
        "best_value": 3.0,
        "best_epoch": 2,
    }
    if trainer.run_config.is_world_process_zero:
        for name, value in saved["model_state_dict"].items():
            torch.testing.assert_close(value, by_hand.after_epochs[1][name])
    assert not torch.equal(saved["model_state_dict"]["layers.0.weight"], values(trainer.model)["layers.0.weight"])
    fresh = make_trainer()
    fresh.load_checkpoint(path)
    require_equal(values(fresh.model), saved["model_state_dict"])


@pytest.mark.runs_on(*EVERYWHERE)
def test_without_evaluation_the_newest_average_is_saved(shared_tmp_path: Path) -> None:
    """With `evaluate_during_training=False` the file is that of the last epoch, and no evaluation is needed."""
    path = shared_tmp_path / "ema.pt"
    callback = ModelEmaCallback(0.5, evaluate_during_training=False, save_path=path)
    trainer = make_trainer(callback)

    train(trainer, eval_dataset=None)
    trainer.gather(torch.zeros(1))  # wait until the first rank has written

    saved = torch.load(path, weights_only=True)
    assert saved["epoch"] == 3
    require_equal(saved["model_state_dict"], values(callback.ema.module))
    assert set(trainer.run_history.get_metric_names()) == {"train_loss_epoch"}


def test_a_script_may_change_its_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path is in the folder from which the run was started."""
    change_folder = CallAt("on_training_run_epoch_end", lambda _: monkeypatch.chdir(tmp_path / "another"))
    (tmp_path / "another").mkdir()
    monkeypatch.chdir(tmp_path)
    train(make_trainer(change_folder, ModelEmaCallback(0.5, save_path="ema.pt")))
    assert (tmp_path / "ema.pt").exists()
    assert list((tmp_path / "another").iterdir()) == []


class MonteCarloDropout(nn.Module):
    """Dropout that draws in evaluations too."""

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        return nn.functional.dropout(inputs, 0.2, training=True)


@pytest.mark.runs_on(*EVERYWHERE)
@pytest.mark.parametrize("evaluate", [True, False])
def test_the_training_is_the_same_as_without(shared_tmp_path: Path, evaluate: bool) -> None:
    """Weights, buffers and losses of a run that always draws are, to the last bit, those of one without an average."""

    def run(*callbacks: TrainerCallback) -> tuple[dict[str, Tensor], list[float]]:
        torch.default_generator.manual_seed(0)
        model = nn.Sequential(MonteCarloDropout(), TinyClassifier(batch_norm=True))
        trainer = make_trainer(*callbacks, model=model)
        train(trainer)
        return values(trainer.model), list(map(float, trainer.run_history.get_metric_values("eval_loss_epoch")))

    weights, losses = run()
    with_average = run(ModelEmaCallback(0.8, evaluate, shared_tmp_path / "ema.pt"))

    require_equal(with_average[0], weights)
    assert with_average[1] == losses


class Note(TrainerCallback):
    """Notes what a trainer is like just before the average is evaluated, and when an error leaves the run."""

    def __init__(self) -> None:
        self.notes: list[tuple[Any, ...]] = []
        self.weights: list[dict[str, Tensor]] = []

    def note(self, trainer: AnyTrainer) -> None:
        """Note it."""
        modes = [module.training for module in trainer.model.modules()]
        loader, tracker = trainer.eval_dataloader, trainer.loss_tracker
        callbacks = list(trainer.callback_handler.callbacks)
        self.notes.append((trainer.model, modes, trainer.run_history.metric_name_prefix, callbacks, loader, tracker))
        self.weights.append(values(trainer.get_model()))

    @override
    def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.note(trainer)

    @override
    def on_stop_training_error(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.note(trainer)

    @override
    def on_exception(self, trainer: AnyTrainer, exception: BaseException, **kwargs: Any) -> None:
        self.note(trainer)


@pytest.mark.runs_on(*EVERYWHERE)
@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt(), StopTrainingError("enough")])
def test_a_failing_evaluation_leaves_everything_as_it_was(shared_tmp_path: Path, error: BaseException) -> None:
    """Model, weights, modes, prefix, callbacks, loader and losses are those of before when an evaluation fails."""
    note = Note()
    trainer = make_trainer(
        note, ModelEmaCallback(0.5, save_path=shared_tmp_path / "ema.pt", callbacks=[FailAt("on_eval_step_end", error)])
    )
    trainer.run_history.set_metric_name_prefix("first_")

    with contextlib.nullcontext() if isinstance(error, StopTrainingError) else pytest.raises(type(error)):
        train(trainer)

    assert len(note.notes) == 2
    assert note.notes[0] == note.notes[1]
    assert note.notes[0][2] == "first_"
    require_equal(note.weights[0], note.weights[1])
    require_equal(values(trainer.model), note.weights[0])
    assert not (shared_tmp_path / "ema.pt").exists()


@pytest.mark.runs_on(*EVERYWHERE)
def test_only_the_given_callbacks_see_the_evaluation_of_the_average(shared_tmp_path: Path) -> None:
    """Callbacks of the trainer are not called in it; those given are, whether as instances or as classes."""
    of_trainer, of_average = RecordingCallback(), RecordingCallback()
    callback = ModelEmaCallback(0.5, save_path=shared_tmp_path / "ema.pt", callbacks=[of_average, LogMetricsCallback])
    trainer = make_trainer(of_trainer, callback)

    train(trainer)

    assert of_trainer.events.count("on_eval_epoch_start") == of_average.events.count("on_eval_epoch_start") == 3
    steps = len(cast("Any", trainer.eval_dataloader))
    epoch = ["on_eval_epoch_start", *["on_eval_step_start", "on_eval_step_end"] * steps, "on_eval_epoch_end"]
    assert of_average.events == 3 * epoch
    assert isinstance(callback.callbacks[1], LogMetricsCallback)


class KeepLogged(LogMetricsCallback):
    """Keeps what would be printed."""

    def __init__(self) -> None:
        self.logged: list[str] = []

    @override
    def log_metrics(self, trainer: AnyTrainer, metrics: dict[str, float]) -> None:
        self.logged += metrics


def test_metrics_of_the_average_can_be_logged_and_watched(tmp_path: Path) -> None:
    """Loggers and other callbacks behind this one see the metrics of the average in the same epoch."""
    log = KeepLogged()
    best = SaveBestModelCallback(tmp_path / "best.pt", watch_metric="ema_model_eval_loss_epoch")
    trainer = make_trainer(ModelEmaCallback(0.5, save_path=tmp_path / "ema.pt"), best, log)

    train(trainer, num_epochs=2)

    assert log.logged == 2 * ["train_loss_epoch", "eval_loss_epoch", "ema_model_eval_loss_epoch"]
    assert best.best.value == min(map(float, trainer.run_history.get_metric_values("ema_model_eval_loss_epoch")))


def test_what_steps_log_has_a_mean_for_the_average(tmp_path: Path) -> None:
    """It is recorded beside that of the model, and is not mixed with it."""

    class LogInEvaluation(TrainerCallback):
        @override
        def on_eval_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
            trainer.log("own", batch_output["loss"])

    log = LogInEvaluation()
    average = ModelEmaCallback(0.5, save_path=tmp_path / "ema.pt", callbacks=[log])
    trainer = make_trainer(average, log)

    train(trainer, num_epochs=2)

    for prefix in ("", "ema_model_"):
        losses = list(trainer.run_history.get_metric_values(f"{prefix}eval_loss_epoch"))
        assert list(trainer.run_history.get_metric_values(f"{prefix}eval_own_epoch")) == pytest.approx(losses)


def test_a_logger_before_the_callback_is_warned_of(tmp_path: Path) -> None:
    """Where a logger is called first, a warning says that it logs the average late; no value of it is lost."""
    log = KeepLogged()

    with pytest.warns(UserWarning, match="KeepLogged is called before ModelEmaCallback.*an epoch late"):
        train(make_trainer(log, ModelEmaCallback(0.5, save_path=tmp_path / "ema.pt")))

    assert log.logged.count("ema_model_eval_loss_epoch") == 3


def test_the_average_can_be_saved_in_other_ways(tmp_path: Path) -> None:
    """Another callback may evaluate or export the model with its averaged weights, for example as safetensors."""
    from safetensors.torch import load_file

    def export(trainer: AnyTrainer) -> None:
        with callback.averaged_weights(trainer):
            trainer.save_model(tmp_path / "exported")

    callback = ModelEmaCallback(0.5, False, tmp_path / "ema.pt")
    trainer = make_trainer(callback, CallAt("on_training_run_end", export))

    train(trainer)

    require_equal(load_file(tmp_path / "exported" / "model.safetensors"), values(callback.ema.module))


@pytest.mark.runs_on(*EVERYWHERE)
def test_each_run_has_an_average_of_its_own(shared_tmp_path: Path) -> None:
    """A second run begins a new average with its own weights; `evaluate()` in between leaves the last one alone."""
    callback = ModelEmaCallback(1.0, save_path=shared_tmp_path / "ema.pt")
    trainer = make_trainer(callback)
    start = values(trainer.model)

    train(trainer)
    first = callback.ema
    require_equal({**values(first.module), **_counters(trainer.model)}, {**start, **_counters(trainer.model)})
    trainer.evaluate(reset_run_history=False)
    assert callback.ema is first
    between = values(trainer.model)
    train(trainer)

    require_equal({**values(callback.ema.module), **_counters(trainer.model)}, {**between, **_counters(trainer.model)})
    assert callback.best.epoch == 1


def _counters(model: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in values(model).items() if not value.is_floating_point()}


def test_a_run_without_anything_to_evaluate_is_an_error(tmp_path: Path) -> None:
    """The default wants to evaluate the average: where there is no dataset for it, the run does not begin."""
    trainer = make_trainer(ModelEmaCallback(save_path=tmp_path / "ema.pt"))
    weights = values(trainer.model)

    with pytest.raises(ValueError, match=r"evaluate_during_training=True.*eval_dataset to Trainer\.train\(\)"):
        train(trainer, eval_dataset=None)

    require_equal(values(trainer.model), weights)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"decay": 1.5}, "decay=1.5"),
        ({"decay": "0.9"}, "decay='0.9'"),
        ({"decay": float("nan")}, "decay=nan"),
        ({"update_every_n_steps": 0}, "update_every_n_steps must"),
        ({"callbacks": [RecordingCallback, RecordingCallback]}, "second callback of class RecordingCallback"),
    ],
)
def test_impossible_arguments_are_refused(arguments: dict[str, Any], named: str) -> None:
    """What cannot work is refused when the callback is made."""
    with pytest.raises(ValueError, match=named):
        ModelEmaCallback(**arguments)


def test_there_is_no_average_before_a_run() -> None:
    """Asking for it says when there will be one."""
    with pytest.raises(ValueError, match=r"Call trainer.train\(\) first"):
        _ = ModelEmaCallback().ema


def test_a_file_that_cannot_be_written_is_refused_when_the_run_starts(tmp_path: Path) -> None:
    """Not after the first epoch."""
    trainer = make_trainer(ModelEmaCallback(0.5, evaluate_during_training=False, save_path=tmp_path))
    with pytest.raises(CheckpointError, match="save_path"):
        train(trainer)
    assert trainer.num_updates_completed == 0


class Scaled(Trainer[nn.Module]):
    """A trainer whose accelerator scales losses, as accelerate does for fp16."""

    @override
    def create_accelerator(self) -> Any:
        accelerator: Any = super().create_accelerator()
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
        return accelerator


@pytest.mark.runs_on("one_process", "two_ranks")
def test_an_update_that_was_skipped_does_not_move_the_average(shared_tmp_path: Path) -> None:
    """Where the gradients of fp16 overflow, neither the model nor the average takes a step."""
    inputs, targets = make_classification(16).tensors
    inputs = inputs.clone()
    inputs[0] = 1e38
    model = nn.Linear(4, 3)
    nn.init.zeros_(model.weight)
    by_hand = AverageByHand(decay=0.5)
    callback = ModelEmaCallback(0.5, False, shared_tmp_path / "ema.pt")
    optimizer = SGD(model.parameters(), lr=0.1)
    trainer = Scaled(model, nn.CrossEntropyLoss(), optimizer, callbacks=[callback, by_hand])

    # The large input comes first: later, the model might be right about it, and have no gradient.
    data = TensorDataset(inputs, targets)
    trainer.train(data, 1, per_device_batch_size=2, train_dataloader_kwargs={"shuffle": False})

    assert (
        callback.ema.num_updates == trainer.num_updates_completed == trainer.run_config.num_update_steps_per_epoch - 1
    )
    for name, value in values(callback.ema.module).items():
        torch.testing.assert_close(value, by_hand.average[name])


class Stack(nn.Module):
    """Repeated blocks, which regional compilation compiles one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(3))

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        for block in self.blocks:
            inputs = block(inputs)
        return inputs


class Compiling(Trainer[nn.Module]):
    """A trainer whose accelerator compiles the model, or repeated blocks of it."""

    regional = False

    @override
    def create_accelerator(self) -> Any:
        plugin = TorchDynamoPlugin(backend=DynamoBackend.AOT_EAGER, use_regional_compilation=self.regional)
        return Accelerator(cpu=True, dynamo_plugin=plugin)


class Regional(Compiling):
    """The latter."""

    regional = True


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("trainer_class", [Compiling, Regional])
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch looks at it itself
def test_the_average_of_a_model_that_accelerate_compiles(shared_tmp_path: Path, trainer_class: type[Compiling]) -> None:
    """The average is that of the user's own model, and evaluated within the compiled one."""
    torch.default_generator.manual_seed(0)
    model = nn.Sequential(Stack(), nn.Linear(4, 3))
    by_hand = AverageByHand(decay=0.5)
    callback = ModelEmaCallback(0.5, save_path=shared_tmp_path / "ema.pt")
    optimizer = SGD(model.parameters(), lr=0.5)
    trainer = trainer_class(model, nn.CrossEntropyLoss(), optimizer, callbacks=[callback, by_hand])

    train(trainer, num_epochs=2)

    for name, value in values(callback.ema.module).items():
        torch.testing.assert_close(value, trainer.gather(by_hand.average[name][None])[0])
    recorded = trainer.run_history.get_latest_metric("ema_model_eval_loss_epoch")
    with callback.ema.applied_to(trainer.model):
        trainer.evaluate(reset_run_history=False)
    assert trainer.run_history.get_latest_metric("evaluation_loss") == pytest.approx(recorded, abs=1e-6)


@pytest.mark.runs_on("one_process", "two_ranks")
def test_the_average_of_a_model_in_bfloat16(shared_tmp_path: Path) -> None:
    """Weights in half precision are averaged in float32, and evaluated and saved in their own precision."""
    path = shared_tmp_path / "ema.pt"
    torch.default_generator.manual_seed(0)
    model = TinyClassifier(batch_norm=True).bfloat16()
    callback = ModelEmaCallback(0.9, save_path=path)
    trainer = make_trainer(callback, model=model)
    inputs, targets = make_classification(48).tensors
    data = TensorDataset(inputs.bfloat16(), targets)

    trainer.train(data, 2, data)
    trainer.gather(torch.zeros(1))  # wait until the first rank has written

    dtypes = {value.dtype for value in values(callback.ema.module).values()}
    assert dtypes == {torch.float32, torch.int64}
    saved = torch.load(path, weights_only=True)["model_state_dict"]
    assert {value.dtype for value in saved.values()} == {torch.bfloat16, torch.int64}
    assert all(parameter.dtype == torch.bfloat16 for parameter in model.parameters())
    assert len(list(trainer.run_history.get_metric_values("ema_model_eval_loss_epoch"))) == 2


@pytest.mark.runs_on("two_ranks")
def test_the_average_begins_with_the_weights_of_the_first_rank(shared_tmp_path: Path) -> None:
    """Ranks that made different weights and buffers train those of the first one, and average these from the start."""
    torch.default_generator.manual_seed(dist.get_rank())
    model = TinyClassifier()
    model.register_buffer("drawn", torch.randn(3))
    start = values(model)
    callback = ModelEmaCallback(1.0, save_path=shared_tmp_path / "ema.pt")
    averages: list[dict[str, Tensor]] = []
    note = CallAt("on_train_epoch_start", lambda _: averages.append(values(callback.ema.module)))
    trainer = make_trainer(callback, note, model=model)
    train(trainer, num_epochs=1)

    require_equal(averages[0], {name: trainer.gather(value[None])[0] for name, value in start.items()})


def pruned() -> nn.Module:
    """A network of which half of the weights of a layer are pruned."""
    model = TinyClassifier()
    untyped: Any = prune  # not annotated by torch
    untyped.l1_unstructured(model.layers[0], "weight", 0.5)
    return model


def weight_normed() -> nn.Module:
    """A network with the older ``weight_norm``, which keeps the weight as an attribute."""
    model = TinyClassifier()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.nn.utils.weight_norm(model.layers[0])
    model(torch.ones(2, 4))  # from here on the attribute has a graph
    return model


def parametrized() -> nn.Module:
    """A network with a spectral norm, whose weights have a parametrization."""
    model = TinyClassifier()
    torch.nn.utils.parametrizations.spectral_norm(model.layers[0])
    return model


def lazy() -> nn.Module:
    """A network whose first forward pass tells its shapes."""
    return nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(3))


@pytest.mark.filterwarnings("ignore:.*(Lazy modules are a new feature|weight_norm):UserWarning")
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("make_model", [pruned, weight_normed, parametrized, lazy])
def test_models_whose_tensors_torch_does_not_copy(make_model: Any, tmp_path: Path) -> None:
    """Pruned, normed and lazy layers are averaged, evaluated and saved; what is pruned stays so in the average."""
    torch.manual_seed(0)
    model: Any = make_model()
    callback = ModelEmaCallback(0.5, save_path=tmp_path / "ema.pt")
    trainer: Trainer[Any] = Trainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks=[callback])
    data = make_classification(32)
    trainer.train(data, 2, data)

    recorded = trainer.run_history.get_latest_metric("ema_model_eval_loss_epoch")
    inputs, targets = data.tensors
    of_copy = nn.functional.cross_entropy(callback.ema(inputs), targets).item()
    assert recorded == pytest.approx(of_copy, rel=1e-4)
    assert recorded != trainer.run_history.get_latest_metric("eval_loss_epoch")
    if make_model is pruned:
        mask, average = model.layers[0].weight_mask, cast("Any", callback.ema.module).layers[0]
        assert torch.equal(average.weight_mask, mask)
        assert int((average.weight == 0).sum()) == int((mask == 0).sum()) == 16


@pytest.mark.filterwarnings("ignore:.*Lazy modules are a new feature:UserWarning")
def test_a_lazy_model_is_called_before_its_average_is_made() -> None:
    """The error says so; after a batch there is an average."""
    model = lazy()
    with pytest.raises(ConfigurationError, match="Call the model with a batch before"):
        ModelEma(model)
    model(torch.ones(2, 4))
    ModelEma(model).update(model)


@pytest.mark.filterwarnings("ignore:.*Lazy modules are a new feature:UserWarning")
def test_a_lazy_model_that_makes_no_update_is_stopped_by_its_own_error(tmp_path: Path) -> None:
    """Its first loss is not finite, and the error says so instead of missing an average."""
    model = nn.LazyLinear(1)
    callback = ModelEmaCallback(save_path=tmp_path / "ema.pt", evaluate_during_training=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, nn.MSELoss(), optimizer, callbacks=[callback, TerminateOnNaNCallback])
    with pytest.raises(NonFiniteLossError):
        trainer.train(TensorDataset(torch.full((8, 4), torch.nan), torch.zeros(8, 1)), num_epochs=1)


def test_a_second_average_is_refused(tmp_path: Path) -> None:
    """An optimizer that averages by itself needs no average besides, which would be evaluated with other weights."""
    model = nn.Linear(4, 1)
    average = ModelEmaCallback(save_path=tmp_path / "ema.pt")
    trainer = Trainer(model, nn.MSELoss(), Averaging(model.parameters()), callbacks=[average])
    data = TensorDataset(torch.ones(8, 4), torch.ones(8, 1))
    with pytest.raises(ConfigurationError) as refused:
        trainer.train(data, 1, data)
    assert_explained(refused.value, "Leave ModelEmaCallback out")
