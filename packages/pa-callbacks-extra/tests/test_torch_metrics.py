"""Metrics of torchmetrics, over one process or several, and for several evaluation sets."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torchmetrics import Metric, MetricCollection
from torchmetrics.aggregation import CatMetric, MaxMetric, MeanMetric, SumMetric
from torchmetrics.classification import (
    BinaryAccuracy,
    BinaryAUROC,
    BinaryPrecision,
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassConfusionMatrix,
    MulticlassRecall,
)
from torchmetrics.regression import PearsonCorrCoef
from torchmetrics.retrieval import RetrievalMAP
from torchmetrics.wrappers import ClasswiseWrapper
from typing_extensions import override

from pa_callbacks_extra import EarlyStoppingCallback, ModelEmaCallback, TorchMetricsCallback
from pa_callbacks_extra.metric_states import compute_over_processes, take_out
from pa_core import (
    AnyTrainer,
    ConfigurationError,
    EvaluationSet,
    MetricNotFoundError,
    SaveBestModelCallback,
    SaveTrainingStateCallback,
    StepBasedEvaluationCallback,
    StopTrainingError,
    Trainer,
    TrainerCallback,
    UnsupportedConfigurationError,
    gather_objects,
)
from pa_core.distributed import num_processes, rank
from pa_core.testing import TinyClassifier, make_classification
from tests.support.explained import assert_explained


def accuracy() -> MulticlassAccuracy:
    """The share of samples that are recognised."""
    return MulticlassAccuracy(num_classes=3, average="micro")


def collection() -> MetricCollection:
    """A metric of counts, and one that keeps all samples."""
    return MetricCollection({"accuracy": accuracy(), "auroc": MulticlassAUROC(num_classes=3, thresholds=None)})


def make_trainer(
    *callbacks: TrainerCallback, lr: float = 0.1, kind: type[Trainer[Any]] = Trainer
) -> Trainer[TinyClassifier]:
    """A trainer of a small classifier, the same one on every call."""
    torch.default_generator.manual_seed(0)
    model = TinyClassifier()
    return kind(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=lr), callbacks=callbacks)


class Observer(TrainerCallback):
    """Computes the metrics of each epoch on one process, of what all processes have seen."""

    def __init__(self) -> None:
        self.seen: list[tuple[Tensor, Tensor]] = []
        self.expected: dict[str, list[float]] = {}

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        self.seen.append((batch_output["model_outputs"].detach().clone(), batch[1]))

    on_eval_step_end = on_train_step_end

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self._compute("train_")

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self._compute("eval_")

    def _compute(self, prefix: str) -> None:
        metrics = collection()
        for metric in metrics.values():
            metric.distributed_available_fn = lambda: False
        for outputs, targets in (pair for of_process in gather_objects(self.seen) for pair in of_process):
            metrics.update(outputs, targets)
        for name, value in metrics.compute().items():
            self.expected.setdefault(prefix + name, []).append(value.item())
        self.seen = []


@pytest.mark.runs_on("one_process", "two_ranks", "bf16")
@pytest.mark.parametrize("num_samples", [21, 17, 3])
def test_each_sample_of_an_epoch_counts_once(num_samples: int) -> None:
    """Metrics of training and evaluation are those of all samples, also where a process has fewer of them, or none."""
    observer = Observer()
    callback = TorchMetricsCallback(collection(), in_training=True)
    trainer = make_trainer(callback, observer)
    dataset = make_classification(num_samples)
    trainer.train(dataset, num_epochs=2, eval_dataset=dataset, per_device_batch_size=4)

    history = trainer.run_history
    recorded = {name: history.get_metric_values(name) for name in history.get_metric_names() if "loss" not in name}
    assert set(recorded) == {"train_accuracy", "train_auroc", "eval_accuracy", "eval_auroc"}
    for name, values in recorded.items():
        assert values == pytest.approx(observer.expected[name]), name
    assert gather_objects(recorded) == [recorded] * trainer.run_config.num_processes


class EvaluateInside(TrainerCallback):
    """Evaluates once more, under a prefix, in the middle of each evaluation."""

    def __init__(self, callback: TrainerCallback) -> None:
        self.callback = callback

    @override
    def on_eval_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        if kwargs["step"] == 2:
            trainer.run_history.set_metric_name_prefix("inner_")
            with trainer.callback_handler.replaced_by([self.callback]):
                trainer.run_evaluation_epoch()
            trainer.run_history.set_metric_name_prefix()


@pytest.mark.runs_on("one_process", "two_ranks")
def test_evaluations_within_disturb_nothing() -> None:
    """Evaluations in mid-epoch and within each other leave the metrics of the training and of the outer one exact."""
    dataset = make_classification(24)
    plain = make_trainer(TorchMetricsCallback(collection(), in_training=True), lr=0.0)
    plain.train(dataset, num_epochs=1, eval_dataset=dataset, per_device_batch_size=4)

    callback = TorchMetricsCallback(collection(), in_training=True)
    often = StepBasedEvaluationCallback(1)
    trainer = make_trainer(EvaluateInside(callback), callback, often, lr=0.0)
    trainer.train(dataset, num_epochs=1, eval_dataset=dataset, per_device_batch_size=4)

    assert len(list(trainer.run_history.get_metric_values("eval_accuracy"))) > 2
    for name in plain.run_history.get_metric_names():
        expected = float(plain.run_history.get_latest_metric(name))
        for value in trainer.run_history.get_metric_values(name):
            assert float(value) == pytest.approx(expected), name
        if name.startswith("eval_a"):
            assert float(trainer.run_history.get_latest_metric(f"inner_{name}")) == pytest.approx(expected)


@pytest.mark.runs_on("one_process", "two_ranks")
def test_averaged_weights_have_metrics_of_their_own(shared_tmp_path: Path) -> None:
    """Given to the evaluation of an average as well, the metrics are recorded under its prefix too."""
    metrics = TorchMetricsCallback(collection())
    average = ModelEmaCallback(0.0, save_path=shared_tmp_path / "ema.pt", callbacks=[metrics])
    trainer = make_trainer(metrics, average)
    trainer.train(make_classification(24), num_epochs=2, eval_dataset=make_classification(21))
    for name in ("eval_accuracy", "eval_auroc"):
        of_model, of_average = map(trainer.run_history.get_metric_values, (name, f"ema_model_{name}"))
        assert of_average == of_model  # with a decay of zero, the average is the model


class Keep(TrainerCallback):
    """Takes the state of a callback after some updates, or puts one in when the first events of an epoch are over."""

    def __init__(self, callback: Any, *, after: int = 0, state: dict[str, Any] | None = None) -> None:
        self.callback = callback
        self.after = after
        self.state = state

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        if self.state is not None and not self.after and trainer.run_history.current_epoch == 1:
            self.callback.load_state_dict(self.state)

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        if update == self.after:
            self.state = self.callback.state_dict()


def train_in_order(*callbacks: TrainerCallback, samples: slice = slice(None), num_epochs: int = 1) -> dict[str, float]:
    """The metrics of the last epoch over some of 36 samples in their order, with weights that stay as they are."""
    trainer = make_trainer(*callbacks, lr=0.0)
    dataset = torch.utils.data.Subset(make_classification(36), range(36)[samples])
    batch_size = 6 // num_processes()
    trainer.train(dataset, num_epochs, per_device_batch_size=batch_size, train_dataloader_kwargs={"shuffle": False})
    history = trainer.run_history
    return {name: float(history.get_latest_metric(name)) for name in ("train_accuracy", "train_auroc")}


def in_training() -> TorchMetricsCallback:
    """What is interrupted below."""
    return TorchMetricsCallback(collection(), in_training=True, in_evaluation=False)


@pytest.mark.runs_on("one_process", "two_ranks", "bf16")
def test_a_resumed_run_records_what_an_uninterrupted_one_records(shared_tmp_path: Path) -> None:
    """From each of its training states, within epochs and between them, a run has the same metrics to the last bit."""

    def run(*callbacks: TrainerCallback, resume_from: Path | None = None) -> str:
        trainer = make_trainer(TorchMetricsCallback(collection(), in_training=True), *callbacks)
        dataset = make_classification(29)
        trainer.train(dataset, 2, dataset, per_device_batch_size=6 // num_processes(), resume_from=resume_from)
        return trainer.fingerprint()

    save = SaveTrainingStateCallback(shared_tmp_path, save_every_n_steps=1, max_checkpoints=None)
    expected = run(save)
    states = sorted(shared_tmp_path.glob("[!.]*"))  # rank 0 may not have released the folder yet
    assert len(states) >= 10
    for state in states[::3]:
        assert run(resume_from=state) == expected, state


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("processes_before", [1, 2, 3])
def test_an_interrupted_epoch_may_go_on_on_other_processes(processes_before: int) -> None:
    """Whatever number of processes was interrupted, all of their samples count once, also after a second time."""
    callback = in_training()
    expected = train_in_order(callback)
    states: list[Any] = []
    for part in range(processes_before):
        # what one process of several had seen: a part of the first twelve samples
        alone = in_training()
        size = 12 // processes_before
        metrics = cast("MetricCollection", alone.train_metrics)
        for outputs, targets in outputs_in_order(slice(part * size, (part + 1) * size)):
            metrics.update(outputs, targets)
        states.append(alone.state_dict()["processes"][0])
    state = {"processes": states, "earlier": []}

    callback = in_training()
    again = type("KeepAgain", (Keep,), {})(callback, after=2)
    assert train_in_order(callback, Keep(callback, state=state), again, samples=slice(12, None)) == pytest.approx(
        expected
    )
    callback = in_training()
    assert train_in_order(callback, Keep(callback, state=again.state), samples=slice(24, None)) == pytest.approx(
        expected
    )
    callback = in_training()
    next_epoch = train_in_order(callback, Keep(callback, state=state), samples=slice(12, None), num_epochs=2)
    assert next_epoch == train_in_order(in_training(), samples=slice(12, None))


def outputs_in_order(samples: slice) -> list[tuple[Tensor, Tensor]]:
    """What the model of these tests makes of samples, and their targets; the same on every process."""
    model = make_trainer().model
    inputs, targets = make_classification(36)[samples]
    return [(model(inputs).detach(), targets)]


def test_a_state_of_other_metrics_is_told_and_left_out() -> None:
    """A run may be resumed with other metrics: of the epoch that goes on they see the rest, and a warning says so."""
    callback = in_training()
    keep = Keep(callback, after=2)
    train_in_order(callback, keep)
    other = TorchMetricsCallback(MetricCollection({"accuracy": accuracy(), "auroc": accuracy()}), in_training=True)
    with pytest.warns(UserWarning, match="cover only the remaining samples"):
        rest = train_in_order(other, Keep(other, state=keep.state), samples=slice(12, None))
    assert rest == train_in_order(
        type("Other", (TorchMetricsCallback,), {})(
            MetricCollection({"accuracy": accuracy(), "auroc": accuracy()}), in_training=True
        ),
        samples=slice(12, None),
    )


class StopAfter(TrainerCallback):
    """Stops the first run after one update."""

    stops = True

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        if self.stops:
            self.stops = False
            raise StopTrainingError("enough")


@pytest.mark.runs_on("one_process", "two_ranks")
def test_a_run_that_was_stopped_leaves_nothing_to_the_next() -> None:
    """The samples of an epoch that was cut short do not count in the next run."""
    dataset = make_classification(30)
    total = MetricCollection({"samples": SumMetric()})
    count = TorchMetricsCallback(
        total, predictions=lambda batch, _output: torch.ones(len(batch[0])), targets=None, in_training=True
    )
    trainer = make_trainer(count, StopAfter())
    for _ in range(2):
        trainer.train(dataset, num_epochs=1, eval_dataset=dataset)
    history = trainer.run_history
    assert [history.get_metric_values(f"{phase}_samples") for phase in ("train", "eval")] == [[30], [30]]


def test_a_sanity_evaluation_finds_a_metric_that_does_not_fit_and_counts_for_nothing(tmp_path: Path) -> None:
    """A metric of the wrong number of classes fails before the first epoch; one that fits has the same values."""
    data = make_classification(24)
    trainer = make_trainer(TorchMetricsCallback(MulticlassAccuracy(num_classes=2)))
    with pytest.raises(Exception, match="classes"):
        trainer.train(data, 1, data, sanity_eval_steps=1)
    assert trainer.num_updates_completed == 0

    def recorded(steps: int) -> dict[str, list[Any]]:
        best = SaveBestModelCallback(tmp_path / "best.pt", "eval_accuracy", greater_is_better=True)
        trainer = make_trainer(TorchMetricsCallback(collection()), best)
        trainer.train(data, 2, data, sanity_eval_steps=steps)
        return {name: [*trainer.run_history.get_metric_values(name)] for name in trainer.run_history.get_metric_names()}

    assert recorded(2) == recorded(0)
    misspelt = SaveBestModelCallback(tmp_path / "best.pt", "eval_acuracy", greater_is_better=True)
    with pytest.raises(MetricNotFoundError, match="watch_metric='eval_accuracy'"):
        make_trainer(TorchMetricsCallback(collection()), misspelt).train(data, 1, data, sanity_eval_steps=1)


def test_predictions_may_be_nested() -> None:
    """Mappings and lists of tensors, as detection metrics take them, arrive as they are, without their graphs."""
    given: list[Any] = []

    class Taking(SumMetric):
        @override
        def update(self, value: Any, targets: Any = None) -> None:
            given.append((value, targets))

    callback = TorchMetricsCallback(
        Taking(),
        predictions=lambda _batch, output: [{"scores": output["model_outputs"], "labels": ("a", 1)}],
        in_training=True,
    )
    make_trainer(callback).train(make_classification(8), num_epochs=1)
    (((first,), _targets),) = given
    assert first["labels"] == ["a", 1]
    assert not first["scores"].requires_grad


@pytest.mark.runs_on("one_process", "two_ranks")
def test_metrics_with_other_arguments() -> None:
    """A derived class may update its metrics in a way of its own, beside the first callback."""

    class Loss(TorchMetricsCallback):
        @override
        def update_metrics(self, metrics: MetricCollection, batch: Any, output: Any) -> None:
            metrics.update(output["loss"], weight=output["batch_size"])

    trainer = make_trainer(TorchMetricsCallback(accuracy()), Loss(MetricCollection({"mean": MeanMetric()})))
    trainer.evaluate(make_classification(21))
    history = trainer.run_history
    assert history.get_latest_metric("evaluation_mean") == pytest.approx(history.get_latest_metric("evaluation_loss"))
    assert "evaluation_MulticlassAccuracy" in history.get_metric_names()


def test_what_was_passed_in_is_left_alone() -> None:
    """The user's own metrics are neither updated nor reset: the callback has copies."""
    metrics = MetricCollection({"accuracy": accuracy()})
    metrics.update(torch.tensor([0, 1]), torch.tensor([0, 2]))
    samples = make_classification(8)
    make_trainer(TorchMetricsCallback(metrics, in_training=True)).train(samples, 1, eval_dataset=samples)
    assert metrics["accuracy"].update_count == 1
    assert metrics.compute() == {"accuracy": 0.5}


def never(_batch: Any, _output: Any) -> Any:
    """A function that is not called."""
    raise AssertionError


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: TorchMetricsCallback(cast("Any", {"a": accuracy()})), "metrics must be a metric"),
        (lambda: TorchMetricsCallback(accuracy(), in_evaluation=False), "never be computed"),
        (lambda: TorchMetricsCallback(accuracy(), predictions=cast("Any", "logits")), "predictions must .* 'logits'"),
        (lambda: TorchMetricsCallback(accuracy(), targets=cast("Any", 1)), "targets must be .* got 1"),
        (lambda: TorchMetricsCallback(MetricCollection({"loss_epoch": accuracy()})), "eval_loss_epoch"),
        (lambda: TorchMetricsCallback(MetricCollection({"loss": accuracy()})), "evaluation_loss"),
    ],
)
def test_what_cannot_work_is_refused_at_once(make: Callable[[], TrainerCallback], told: str) -> None:
    """Something that is no metric or no function, and names of the trainer's own, are refused when it is made."""
    with pytest.raises(ConfigurationError, match=told):
        make()


def test_without_torchmetrics_the_way_to_install_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is an extra: where it is missing, an error says how to get it."""
    metric = accuracy()
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    with pytest.raises(UnsupportedConfigurationError, match=r"pip install 'pa-callbacks-extra\[torchmetrics\]'"):
        TorchMetricsCallback(metric)


class Another(TorchMetricsCallback):
    """A second callback of this kind."""


@pytest.mark.runs_on("one_process", "two_ranks")
def test_two_callbacks_of_metrics_with_one_name_are_refused_before_the_first_step() -> None:
    """Before anything is trained, a name that two of these callbacks have is told, with both of them."""
    metrics = MetricCollection({"accuracy": accuracy()})
    trainer = make_trainer(TorchMetricsCallback(metrics), Another(metrics, in_training=True))
    with pytest.raises(ConfigurationError, match="eval_accuracy is recorded by Another too"):
        trainer.train(make_classification(8), num_epochs=1)
    assert trainer.run_history.clock.update == 0


@pytest.mark.parametrize(
    ("metric", "told"),
    [
        (MulticlassConfusionMatrix(num_classes=3), r"a tensor of shape \(3, 3\)"),
        (MulticlassRecall(num_classes=3, average=None), "evaluation_recall_0"),
    ],
)
def test_a_value_that_cannot_be_recorded_is_explained(metric: Metric, told: str) -> None:
    """A matrix, and an element of a vector whose name another metric has, are told with the name of the metric."""
    trainer = make_trainer(TorchMetricsCallback(MetricCollection({"recall": metric, "recall_0": accuracy()})))
    with pytest.raises(ConfigurationError, match=told):
        trainer.evaluate(make_classification(21))


class Seen(Metric):
    """Is one if a batch was seen, the mean over processes."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("seen", torch.zeros(()), dist_reduce_fx="mean")

    @override
    def update(self, predictions: Tensor) -> None:
        self.seen = torch.ones(())

    @override
    def compute(self) -> Tensor:
        return self.seen


@dataclass(frozen=True)
class Case:
    """Metrics, and what each batch gives them."""

    make: Callable[[], MetricCollection]
    arguments: Callable[[Tensor, Tensor], tuple[Tensor, ...]]

    def update(self, metrics: MetricCollection, number: int) -> None:
        """Update metrics with a batch of three samples, the same ones for the same number."""
        predictions = torch.rand(3, generator=torch.Generator().manual_seed(number))
        metrics.update(*self.arguments(predictions, torch.tensor([0, 1, number % 2])))


CASES = {
    "one argument, each reduction": Case(
        lambda: MetricCollection(
            {"sum": SumMetric(), "mean": MeanMetric(), "max": MaxMetric(), "all": CatMetric(), "seen": Seen()}
        ),
        lambda predictions, _targets: (predictions,),
    ),
    "counts that two share, all samples": Case(
        lambda: MetricCollection(
            {"accuracy": BinaryAccuracy(), "precision": BinaryPrecision(), "auroc": BinaryAUROC(thresholds=None)}
        ),
        lambda predictions, targets: (predictions, targets),
    ),
    "one inside another": Case(
        lambda: MetricCollection({"recall": ClasswiseWrapper(MulticlassRecall(num_classes=2, average=None))}),
        lambda predictions, targets: (predictions.round().long(), targets),
    ),
    "moments, reduced by the metric": Case(
        lambda: MetricCollection({"correlation": PearsonCorrCoef()}),
        lambda predictions, targets: (predictions, targets + predictions**2),
    ),
    "lists that are exchanged item by item": Case(
        lambda: MetricCollection({"ranking": RetrievalMAP()}),
        lambda predictions, targets: (predictions, targets, (predictions > 0.5).long()),
    ),
}


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("batches_of_ranks", [(3, 3), (3, 1), (2, 0)], ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_batch_counts_once_whichever_process_had_it(case: Case, batches_of_ranks: tuple[int, ...]) -> None:
    """The value of all processes is that of one process with all batches; each goes on with its own samples."""
    metrics, of_one_process = case.make(), case.make()
    for of_rank, count in enumerate(batches_of_ranks[: num_processes()]):
        for number in range(count):
            case.update(of_one_process, 10 * of_rank + number)
            if of_rank == rank():
                case.update(metrics, 10 * of_rank + number)

    before = take_out(metrics)
    values, expected = compute_over_processes(metrics), compute_alone(of_one_process)

    torch.testing.assert_close(take_out(metrics), before)
    assert values.keys() == expected.keys()
    for name, value in values.items():
        torch.testing.assert_close(value, expected[name], msg=name)


def compute_alone(metrics: MetricCollection) -> dict[str, Tensor]:
    """Compute as in a process that has no others."""
    modules: Any = metrics.modules()
    for module in modules:
        module.distributed_available_fn = lambda: False
    return metrics.compute()


TRAIN, VAL, OOD = make_classification(16), make_classification(12, seed=1), make_classification(10, seed=2)
SETS: dict[str, Any] = {"val": VAL, "ood": EvaluationSet(OOD, every_n_epochs=2)}


@pytest.mark.runs_on("one_process", "two_ranks")
def test_metrics_are_those_of_each_set_under_its_name() -> None:
    """Of all of its samples, and of no other set's: as if it had been evaluated alone."""

    class RecordVectors(TorchMetricsCallback):
        """A second callback, of other metrics."""

    accuracy = TorchMetricsCallback(MetricCollection({"accuracy": MulticlassAccuracy(3, average="micro")}))
    recalls = RecordVectors(MetricCollection({"recall": MulticlassAccuracy(3, average=None)}))
    trainer = make_trainer(accuracy, recalls, StepBasedEvaluationCallback(1))
    trainer.train(TRAIN, 2, SETS, per_device_batch_size=4)
    history = trainer.run_history
    for name, data in (("val", VAL), ("ood", OOD)):
        inputs, targets = data.tensors
        right = (trainer.model(inputs).argmax(1) == targets).float()
        assert history.get_latest_metric(f"eval_{name}_accuracy") == pytest.approx(float(right.mean()))
        assert history.get_latest_metric(f"eval_{name}_recall_0") == pytest.approx(float(right[targets == 0].mean()))
    assert history.count_metric_values("eval_val_accuracy") == 2
    assert history.count_metric_values("eval_ood_accuracy") == 1
    names = set(history.get_metric_names())
    assert "intermediate_eval_val_accuracy" in names
    assert "eval_accuracy" not in names
    trainer.evaluate({"test": VAL})
    assert "evaluation_test_accuracy" in history.get_metric_names()


def test_the_average_is_evaluated_on_the_sets_of_the_epoch(tmp_path: Path) -> None:
    """Its metrics have the names of the sets, and the best average is kept by one of them."""
    average = ModelEmaCallback(0.5, save_path=tmp_path / "ema.pt", watch_metric="ema_model_eval_ood_loss_epoch")
    trainer = make_trainer(average)
    trainer.train(TRAIN, 3, SETS)
    history = trainer.run_history
    assert history.count_metric_values("ema_model_eval_val_loss_epoch") == 3
    assert history.count_metric_values("ema_model_eval_ood_loss_epoch") == 2
    assert average.best.value == min(history.get_metric_values("ema_model_eval_ood_loss_epoch"))
    with average.averaged_weights(trainer), torch.no_grad():
        loss = nn.CrossEntropyLoss()(trainer.model(OOD.tensors[0]), OOD.tensors[1])
    assert history.get_latest_metric("ema_model_eval_ood_loss_epoch") == pytest.approx(float(loss))


class Losses(Trainer):
    """A trainer whose losses of the set "ood" are told beforehand, by epoch."""

    losses = (1.0, 5.0, 1.0, 5.0, 1.0, 5.0, 1.0, 5.0)

    @override
    def calculate_eval_batch_loss(self, batch: Any) -> Any:
        loss = self.losses[self.run_history.current_epoch - 1]
        return {"loss": torch.tensor(loss), "model_outputs": None, "batch_size": len(batch[0])}


def test_patience_counts_the_evaluations_of_the_set() -> None:
    """An epoch in which the set is not evaluated is none without an improvement."""
    stop = EarlyStoppingCallback(2, watch_metric="eval_ood_loss_epoch")
    trainer = make_trainer(stop, kind=Losses)
    trainer.train(TRAIN, 8, SETS)
    assert trainer.num_epochs_completed == 6  # 5.0 in epoch 2, and no better in epochs 4 and 6
    assert (stop.best.epoch, stop.epochs_without_improvement) == (2, 2)


def test_the_loss_of_a_single_dataset_cannot_be_watched(tmp_path: Path) -> None:
    """The default of each callback is refused before anything is trained, with the name to watch."""
    watching: list[tuple[TrainerCallback, str]] = [
        (EarlyStoppingCallback(2), "'eval_val_loss_epoch'"),
        (ModelEmaCallback(save_path=tmp_path / "ema.pt"), "'ema_model_eval_val_loss_epoch'"),
    ]
    for callback, advised in watching:
        trainer = make_trainer(callback)
        with pytest.raises(ConfigurationError) as refused:
            trainer.train(TRAIN, 1, SETS)
        assert_explained(refused.value, f"watch_metric={advised}")
        assert trainer.num_updates_completed == 0
