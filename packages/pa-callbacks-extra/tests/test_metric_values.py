"""Values of metrics that do not depend on how samples are divided into batches and among processes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import (
    BinaryAccuracy,
    BinaryAUROC,
    BinaryF1Score,
    BinaryPrecision,
    MulticlassAccuracy,
    MulticlassAUROC,
    MultilabelAccuracy,
)
from torchmetrics.wrappers import MultitaskWrapper
from typing_extensions import override

from pa_callbacks_extra import TorchMetricsCallback
from pa_core import (
    ConfigurationError,
    SaveTrainingStateCallback,
    Trainer,
    TrainerCallback,
    gather_objects,
)
from pa_core.distributed import num_processes


class Listed(Metric):
    """Keeps lists whose entries are exchanged one by one, and computes the mean of all values."""

    kept: list[Any]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("kept", default=[], dist_reduce_fx=None)

    @override
    def update(self, values: Tensor) -> None:
        self.kept += self.entries(values)

    def entries(self, values: Tensor) -> list[Any]:
        """What is kept of a batch."""
        return list(values.unbind())

    @override
    def compute(self) -> Tensor:
        return torch.cat([torch.as_tensor(float(entry)).reshape(-1) for entry in self.kept]).mean()


class AsText(Listed):
    """Keeps strings, as metrics of texts may."""

    @override
    def entries(self, values: Tensor) -> list[Any]:
        return [str(value) for value in values.tolist()]


class OnlyEven(Listed):
    """Keeps some of the samples."""

    @override
    def entries(self, values: Tensor) -> list[Any]:
        return list(values[values % 2 == 0].unbind())


class OtherDimensions(Listed):
    """Keeps numbers, some of them with a dimension."""

    @override
    def entries(self, values: Tensor) -> list[Any]:
        return [value[None] if value >= 3 else value for value in values]


def evaluated(callback: TorchMetricsCallback, values: Tensor, batch_size: int, targets: Tensor | None = None) -> Any:
    """What `evaluate()` records of a model that returns its inputs, besides the loss."""
    trainer = Trainer(nn.Identity(), nn.MSELoss(), None, callbacks=[callback])
    data = TensorDataset(values, torch.zeros(len(values)) if targets is None else targets)
    recorded = trainer.evaluate(data, per_device_batch_size=batch_size)
    return {name.removeprefix("evaluation_"): value for name, value in recorded.items() if "loss" not in name}


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("kind", [Listed, AsText, OnlyEven, OtherDimensions])
@pytest.mark.parametrize("num_samples", [4, 5, 7])
def test_a_metric_that_keeps_lists_is_computed_over_the_entries_of_all_processes(
    kind: type[Listed], num_samples: int
) -> None:
    """Processes may have other numbers or kinds of entries in as many updates, and none waits for another one."""
    values = torch.arange(num_samples, dtype=torch.float32)
    expected = values[values % 2 == 0] if kind is OnlyEven else values
    callback = TorchMetricsCallback(MetricCollection({"mean": kind()}), targets=None)
    recorded = evaluated(callback, values, -(-num_samples // 2) if num_processes() == 1 else 3)
    assert recorded == pytest.approx({"mean": expected.mean().item()})
    assert gather_objects(recorded) == [recorded] * num_processes()


SCORES = torch.tensor([0.9, 0.2, 0.6, 0.4, 0.95, 0.6, 0.3, 0.1])
TRUTHS = torch.tensor([1, 0, 1, 0, 1, 1, 1, 0])


def thresholds(**arguments: Any) -> MetricCollection:
    """Two metrics that agree on the first batch of the scores above, and not on the second."""
    return MetricCollection({"low": BinaryAccuracy(0.5), "high": BinaryAccuracy(0.8)}, **arguments)


@pytest.mark.parametrize(
    "make",
    [
        thresholds,
        lambda: thresholds(prefix="of_", postfix="_scores"),
        lambda: MetricCollection({"f1": BinaryF1Score(0.5), "precision": BinaryPrecision(0.8)}),
    ],
)
def test_metrics_whose_states_agree_in_the_first_batch_stay_apart(make: Any) -> None:
    """Each metric of a collection has the value that it has alone, whatever the first batch holds."""
    first = torch.tensor([0.9, 0.2, 0.85, 0.4])
    scores, truths = torch.cat([first, SCORES]), torch.cat([torch.tensor([1, 0, 1, 0]), TRUTHS])
    alone = {name: float(metric(scores, truths)) for name, metric in make().items()}
    recorded = evaluated(TorchMetricsCallback(make()), scores, 4, truths)
    assert recorded == pytest.approx(alone)


def test_collections_within_a_metric_stay_apart_too() -> None:
    """The tasks of a wrapper may each have a collection."""
    first = torch.tensor([0.9, 0.2, 0.85, 0.4])
    scores, truths = torch.cat([first, SCORES]), torch.cat([torch.tensor([1, 0, 1, 0]), TRUTHS])

    class Flat(MultitaskWrapper):
        @override
        def compute(self) -> Any:
            return super().compute()["task"]

    class OfTask(TorchMetricsCallback):
        @override
        def update_metrics(self, metrics: MetricCollection, batch: Any, output: Any) -> None:
            metrics.update({"task": output["model_outputs"]}, {"task": batch[1]})

    recorded = evaluated(OfTask(Flat({"task": thresholds()})), scores, 4, truths)
    assert sorted(recorded.values()) == pytest.approx([float(BinaryAccuracy(t)(scores, truths)) for t in (0.8, 0.5)])


def test_metrics_that_a_collection_says_share_their_states_do_so() -> None:
    """Groups that were named are kept: the states are updated once for all of them."""
    collection = thresholds(compute_groups=[["low", "high"]])
    recorded = evaluated(TorchMetricsCallback(collection), SCORES, 4, TRUTHS)
    assert recorded["low"] == recorded["high"]


class Evaluates(Trainer[nn.Module]):
    """Evaluates a model without a loss."""

    @override
    def calculate_eval_batch_loss(self, batch: Any) -> Any:
        return {"loss": batch[0].sum(), "model_outputs": batch[0], "batch_size": len(batch[0])}


LOGITS = torch.tensor([-1.0, 0.8, 0.3, 0.6])


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize(
    ("metric", "logits"),
    [
        (BinaryAUROC(), LOGITS),
        (MultilabelAccuracy(num_labels=2), LOGITS[:, None].repeat(1, 2)),
        (MulticlassAUROC(num_classes=2), torch.stack([LOGITS, -LOGITS], 1).clamp(min=0)[:, :2] * 1.5),
    ],
)
def test_batches_of_logits_and_of_probabilities_are_noticed(metric: Metric, logits: Tensor) -> None:
    """A metric that applies a sigmoid to some batches and not to others warns once, and says what to pass."""
    targets = torch.tensor([0, 1, 0, 1])
    if isinstance(metric, MultilabelAccuracy):
        targets = torch.tensor([[0, 1], [1, 0], [1, 1], [0, 0]])
    trainer = Evaluates(nn.Identity(), None, None, callbacks=[TorchMetricsCallback(metric)])
    with pytest.warns(UserWarning, match=f"{type(metric).__name__} .* 0 to 1,.*predictions=") as seen:
        trainer.evaluate(TensorDataset(logits, targets), per_device_batch_size=1)
    assert len([one for one in seen if "predictions=" in str(one.message)]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.evaluate(TensorDataset(logits, targets), per_device_batch_size=1)


@pytest.mark.parametrize(
    ("metric", "predictions"),
    [
        (BinaryAUROC(), SCORES),
        (BinaryAUROC(), 10 * SCORES + 1),
        (BinaryAccuracy(), (SCORES > 0.5).long()),
        (MulticlassAccuracy(num_classes=2), torch.stack([SCORES, 5 * SCORES**2], 1)),
    ],
)
def test_healthy_predictions_are_taken_without_a_word(metric: Metric, predictions: Tensor) -> None:
    """Probabilities, logits alone, labels, and logits of which the largest counts, are no reason to warn."""
    trainer = Evaluates(nn.Identity(), None, None, callbacks=[TorchMetricsCallback(metric)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.evaluate(TensorDataset(predictions, TRUTHS), per_device_batch_size=2)


class TwoTasks(Trainer[nn.Module]):
    """Evaluates a model without a loss on two tasks, which have targets of their own."""

    @override
    def calculate_train_batch_loss(self, batch: Any) -> Any:
        outputs = self.model(batch[0])
        return {"loss": outputs.square().mean(), "model_outputs": outputs, "batch_size": len(batch[0])}

    calculate_eval_batch_loss = calculate_train_batch_loss


def metrics_of_tasks(**arguments: bool) -> list[TorchMetricsCallback]:
    """An unnamed callback of metrics, and two for tasks with targets of their own."""

    def for_targets(targets: Callable[[Any, Any], Tensor], name: str, **arguments: bool) -> TorchMetricsCallback:
        collection = MetricCollection({"accuracy": BinaryAccuracy(), "auroc": BinaryAUROC()})
        return TorchMetricsCallback(collection, predictions=scores, targets=targets, name=name, **arguments)

    return [
        for_targets(lambda batch, _: (batch[0] > 0.55).long()[:, 0], ""),
        for_targets(lambda batch, _: batch[1], "depth", **arguments),
        for_targets(lambda batch, _: batch[2], "pose", **arguments),
    ]


def scores(_batch: Any, output: Any) -> Tensor:
    """Probabilities."""
    return torch.sigmoid(output["model_outputs"][:, 0])


def test_metrics_of_several_tasks_have_callbacks_and_states_of_their_own(tmp_path: Path) -> None:
    """Each named callback records its metrics under its name, and is resumed to its own values."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(24, 1, generator=generator)
    data = TensorDataset(inputs, torch.arange(24) % 2, torch.arange(24) % 3 // 2)

    def run(*callbacks: TrainerCallback, resume_from: Path | None = None) -> dict[str, list[Any]]:
        torch.default_generator.manual_seed(0)
        model = nn.Linear(1, 1)
        metrics = metrics_of_tasks(in_training=True)
        trainer = TwoTasks(model, None, torch.optim.SGD(model.parameters(), lr=0.5), callbacks=[*metrics, *callbacks])
        trainer.train(data, 2, data, per_device_batch_size=4, resume_from=resume_from)
        history = trainer.run_history
        for task, labels in (("depth", data.tensors[1]), ("pose", data.tensors[2])):
            right = BinaryAccuracy()(model(inputs)[:, 0].sigmoid(), labels)
            assert history.get_latest_metric(f"eval_{task}_accuracy") == pytest.approx(right.item())
        return {name: list(history.get_metric_values(name)) for name in history.get_metric_names()}

    expected = run(SaveTrainingStateCallback(tmp_path / "states", save_every_n_steps=1, max_checkpoints=None))
    assert len(expected["train_depth_accuracy"]) == len(expected["eval_pose_auroc"]) == 2
    assert expected["train_depth_auroc"] != expected["train_pose_auroc"]
    states = sorted((tmp_path / "states").glob("[!.]*"))
    for state in states[1::4]:
        assert run(resume_from=state) == expected, state


def test_two_callbacks_of_one_name_are_refused() -> None:
    """Which of them would be meant in a training state?"""
    first, _, pose = metrics_of_tasks()
    with pytest.raises(ConfigurationError, match="a different instance_name"):
        Trainer(nn.Identity(), None, None, callbacks=[first, pose, metrics_of_tasks()[2]])
