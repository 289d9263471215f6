"""The evaluation of a few batches before the first epoch: what it finds, and that nothing is left of it."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader
from typing_extensions import override

from pa_core import (
    AnyTrainer,
    ConfigurationError,
    MetricNotFoundError,
    PrintProgressCallback,
    SaveBestModelCallback,
    SaveTrainingStateCallback,
    StepBasedEvaluationCallback,
    StopTrainingError,
    Trainer,
    TrainerCallback,
)
from pa_core.testing import RecordingCallback, TinyClassifier, make_classification
from tests.support.callbacks import AlsoAt, CallAt, FailAt
from tests.support.pa_core.training_states.small_runs import DrawingDataset, make_trainer, train
from tests.support.trainers import classifier_trainer

DATA = make_classification(24)


class CountsInEvaluation(TrainerCallback):
    """Keeps a number, a tensor and a list that evaluations change, and a network of its own."""

    def __init__(self) -> None:
        self.calls = 0
        self.seen = torch.zeros(1)
        self.losses: list[float] = []
        self.trainer: AnyTrainer | None = None

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.trainer = trainer

    @override
    def on_eval_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        assert trainer is self.trainer
        self.calls += 1
        self.seen += torch.rand(1)
        self.losses.append(float(batch_output["loss"]))


class CountsItself(Trainer[TinyClassifier]):
    """The same in the trainer, whose model also counts its calls in a buffer."""

    def __init__(self, *callbacks: TrainerCallback) -> None:
        torch.manual_seed(3)
        model = TinyClassifier(batch_norm=True)
        model.register_buffer("calls", torch.zeros(()))
        super().__init__(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks=callbacks)
        self.confusion = torch.zeros(3)
        self.outputs: list[Tensor] = []
        self.first_callback = callbacks[0]

    @override
    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_eval_batch_loss(batch)
        self.model.get_buffer("calls").add_(1)
        self.confusion += output["model_outputs"].detach().mean(0)
        self.outputs.append(output["model_outputs"])
        self.last = output["loss"]
        return output


def loader_that_draws(generator: torch.Generator) -> DataLoader[Any]:
    """Shuffles with a generator of its own, and keeps its workers."""
    return DataLoader(DATA, 4, shuffle=True, generator=generator, num_workers=1, persistent_workers=True)


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("eval_dataset", [DrawingDataset(20), {"val": DrawingDataset(20), "ood": DrawingDataset(12)}])
def test_a_run_is_the_same_to_the_last_bit(eval_dataset: Any, shared_tmp_path: Path) -> None:
    """Weights, optimizer, history and what is drawn afterwards, where samples and layers draw all kinds of numbers."""

    def outcome(steps: int) -> tuple[dict[str, Any], list[Any]]:
        recorder = RecordingCallback()
        trainer = make_trainer(recorder, SaveTrainingStateCallback(shared_tmp_path / str(steps)))
        result = train(trainer, 2, eval_dataset=eval_dataset, sanity_eval_steps=steps)
        return result, recorder.events

    assert outcome(2) == outcome(0)


def test_what_callbacks_and_a_subclass_keep_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also buffers of the model, and the generators of a loader of the script's own."""
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)  # torch would wait for workers for 5 s

    def outcome(steps: int) -> list[Any]:
        counts, generator, starts = CountsInEvaluation(), torch.Generator().manual_seed(5), list[Any]()

        def note_start(trainer: AnyTrainer) -> None:
            names = sorted(vars(trainer)), sorted(trainer.run_history.get_metric_names())
            starts.append((*names, len(vars(trainer)["outputs"]), trainer.run_history.clock.samples))

        trainer = CountsItself(counts, CallAt("on_train_epoch_start", note_start))
        trainer.train(DATA, 2, loader_that_draws(generator), sanity_eval_steps=steps)
        return [
            starts,
            counts.calls,
            counts.seen.tolist(),
            counts.losses,
            trainer.confusion.tolist(),
            [one.tolist() for one in trainer.outputs],
            trainer.model.get_buffer("calls").item(),
            generator.get_state().tolist(),
            torch.rand(1).item(),
        ]

    assert outcome(1) == outcome(0)
    gc.collect()  # the loaders, which trainers hold in a circle of references


def test_a_mistake_in_the_evaluation_is_found_before_anything_is_trained(tmp_path: Path) -> None:
    """The error says where it was raised, and the trainer can be used again."""

    def fail(_batch: Any) -> None:
        raise KeyError("labels")

    trainer = classifier_trainer(Trainer)
    vars(trainer)["calculate_eval_batch_loss"] = fail
    with pytest.raises(KeyError, match="labels") as caught:
        trainer.train(DATA, 1, DATA, sanity_eval_steps=2)
    assert any("sanity evaluation of 2 batches" in note for note in caught.value.__notes__)
    assert trainer.num_updates_completed == 0
    trainer.train(DATA, 1)
    assert trainer.num_updates_completed == 3


def test_a_misspelt_metric_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    """Before hours are spent on the first epoch."""
    trainer = classifier_trainer(Trainer, SaveBestModelCallback(tmp_path / "best.pt", watch_metric="eval_los_epoch"))
    with pytest.raises(MetricNotFoundError, match="watch_metric='eval_loss_epoch'"):
        trainer.train(DATA, 1, DATA, sanity_eval_steps=1)
    assert trainer.num_updates_completed == 0


@pytest.mark.parametrize(
    "metric",
    ["train_multiclass_accuracy_epoch", "train_loss_epoch", "eval_loss_epoch", "intermediate_eval_loss_epoch"],
)
def test_a_metric_of_the_training_is_not_taken_for_a_misspelt_one_of_the_evaluation(
    metric: str, tmp_path: Path
) -> None:
    """Only an epoch of training records it, however much its name is like that of the evaluation."""
    logs = [
        kind(f"on_{part}_step_end", lambda trainer: trainer.log("multiclass_accuracy", 0.5))
        for kind, part in ((CallAt, "train"), (AlsoAt, "eval"))
    ]
    best = SaveBestModelCallback(tmp_path / "best.pt", metric, greater_is_better="accuracy" in metric)
    callbacks = [StepBasedEvaluationCallback(1), best, *logs]
    classifier_trainer(Trainer, *callbacks).train(DATA, 1, DATA, sanity_eval_steps=1)
    assert isinstance(best.best.value, float)


@pytest.mark.runs_on("one_process", "two_ranks")
def test_a_callback_that_stops_after_an_evaluation_does_not_stop_a_run_that_has_not_begun() -> None:
    """The run ends after the training of its first epoch, as without the sanity evaluation."""
    trainer = classifier_trainer(Trainer, FailAt("on_eval_epoch_end", StopTrainingError("good enough")))
    trainer.train(DATA, 3, DATA, sanity_eval_steps=1)
    assert trainer.num_updates_completed == len(trainer.train_dataloader)


class WritesLines(TrainerCallback):
    """Leaves something behind that no copy keeps to itself."""

    joins_sanity_evaluation = False
    lines: ClassVar[list[str]] = []

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.lines.append("evaluated")


def test_nothing_is_printed_or_written_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows and tables are those of the run, and a callback that says so is left out."""
    classifier_trainer(Trainer, PrintProgressCallback(), WritesLines()).train(DATA, 1, DATA, sanity_eval_steps=2)
    assert WritesLines.lines == ["evaluated"]
    lines = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["Training", "Trains", "epoch", "1", "Training", "metric", "eval_loss_epoch", "train_loss_epoch"]


def test_a_sanity_evaluation_of_nothing_is_refused() -> None:
    """Without an evaluation dataset it would have no effect."""
    with pytest.raises(ConfigurationError, match="sanity_eval_steps=2 has nothing to evaluate"):
        classifier_trainer(Trainer).train(DATA, 1, sanity_eval_steps=2)
    with pytest.raises(ConfigurationError, match=r"sanity_eval_steps must .* got -1"):
        classifier_trainer(Trainer).train(DATA, 1, DATA, sanity_eval_steps=-1)
