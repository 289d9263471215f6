"""Metrics and data of the reference's code samples are what their readers expect, on one process and on two."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, TensorDataset
from typing_extensions import override

import pa_trial as pytorch
from pa_trial import PyTorchTrialContext, samplers
from tests.pa_trial.plane import (
    Listener,
    Plane,
    assert_same_weights,
    by_hand,
    fit,
    listening,
    samples,
)

pytestmark = pytest.mark.runs_on("one_process", "two_ranks")


class MyAvgMetricReducer(pytorch.MetricReducer):
    """The reference's sample, letter by letter but for its types."""

    def __init__(self) -> None:
        self.reset()

    @override
    def reset(self) -> None:
        self.sum = 0.0
        self.counts = 0

    def update(self, value: Sequence[float]) -> None:
        """Take over some values."""
        self.sum += sum(value)
        self.counts += 1

    @override
    def per_slot_reduce(self) -> tuple[float, int]:
        return self.sum, self.counts

    @override
    def cross_slot_reduce(self, per_slot_metrics: Sequence[tuple[float, int]]) -> float:
        sums, counts = zip(*per_slot_metrics, strict=True)
        return float(sum(sums) / sum(counts))


def test_the_sample_of_a_metric_reducer(folder: Path) -> None:
    """Its metric is among those of each workload and of each validation, from all processes."""

    class MyPyTorchTrial(Plane):
        def __init__(self, context: PyTorchTrialContext) -> None:
            super().__init__(context)
            self.my_avg = context.wrap_reducer(MyAvgMetricReducer(), name="my_avg")
            self.my_max = context.experimental.wrap_reducer(max, name="my_max", for_training=False)
            self.my_dict = context.wrap_reducer(lambda values: {"first": values[0], "number": len(values)})

        @override
        def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> pytorch.TrainingMetrics:
            self.my_avg.update([batch_idx, 1])
            self.my_dict.update(batch_idx)
            return super().train_batch(batch, epoch_idx, batch_idx)

        @override
        def evaluate_batch(self, batch: list[Tensor], batch_idx: int) -> pytorch.Metrics:
            self.my_avg.update([10 * batch_idx])
            self.my_max.update(batch_idx)
            self.my_dict.update(batch_idx)
            return {}

    listener = Listener()
    fit(listening(MyPyTorchTrial, listener), folder, validation_period=pytorch.Batch(3))

    first, last = listener.averages
    processes = dist.get_world_size() if dist.is_initialized() else 1
    assert first["my_avg"] == pytest.approx((0 + 1 + 2 + 3) / 3)
    assert last["my_avg"] == pytest.approx(3 + 1)
    assert (first["first"], first["number"]) == (0, 3 * processes)
    assert "my_max" not in first
    assert "my_avg" not in listener.batch_metrics[0][0]
    for metrics in listener.validations:
        assert metrics["my_avg"] == pytest.approx(15)
        assert metrics["my_max"] == 3


def test_a_function_gets_the_values_in_the_order_of_the_samples(folder: Path) -> None:
    """Updated once a batch, they are interleaved over the processes."""

    class Order(Plane):
        def __init__(self, context: PyTorchTrialContext) -> None:
            super().__init__(context)
            self.inputs = context.wrap_reducer(lambda values: np.concatenate(values).tolist(), name="inputs")

        @override
        def evaluate_batch(self, batch: list[Tensor], batch_idx: int) -> pytorch.Metrics:
            self.inputs.update(batch[1].cpu().numpy().ravel())
            return {}

        @override
        def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> pytorch.TrainingMetrics:
            self.inputs.update(batch[1].cpu().numpy().ravel())
            return super().train_batch(batch, epoch_idx, batch_idx)

    listener = Listener()
    fit(listening(Order, listener), folder)

    expected = pytest.approx(samples().tensors[1].ravel().tolist())
    assert listener.validations[0]["inputs"] == expected
    assert listener.averages[0]["inputs"] == expected


@pytest.mark.parametrize(
    ("returned", "name", "text"),
    [
        (1.0, None, "name=None but it did not return a dict"),
        ({"a": 1}, "metric", "with name set but it returned a dict anyway"),
    ],
)
def test_names_of_reducers(returned: object, name: str | None, text: str, folder: Path) -> None:
    """A dict names its metrics itself; anything else needs a name."""

    class Misnamed(Plane):
        def __init__(self, context: PyTorchTrialContext) -> None:
            super().__init__(context)
            context.wrap_reducer(lambda _values: returned, name=name)

    with pytest.raises(AssertionError, match=text):
        fit(Misnamed, folder)


def test_evaluation_reducers_by_name(folder: Path) -> None:
    """Each metric is reduced over all batches of all processes as its reducer says."""

    class Reduced(Plane):
        @override
        def evaluate_batch(self, batch: list[Tensor], batch_idx: int) -> pytorch.Metrics:
            lowest = batch[1].min()
            return {"avg": batch[1].mean(), "sum": batch[1].sum(), "max": batch[1].max(), "min": lowest}

        @override
        def evaluation_reducer(self) -> dict[str, pytorch.Reducer]:
            reducer = pytorch.Reducer
            return {"avg": reducer.AVG, "sum": reducer.SUM, "max": reducer.MAX, "min": reducer.MIN}

    listener = Listener()
    fit(listening(Reduced, listener), folder)

    targets = samples().tensors[1]
    (metrics,) = listener.validations
    expected = {"avg": targets.mean(), "sum": targets.sum(), "max": targets.max(), "min": targets.min()}
    for name, value in expected.items():
        assert float(metrics[name]) == pytest.approx(float(value)), name


def test_metrics_that_json_does_not_know(folder: Path) -> None:
    """Are named in a TypeError; infinities and NaN are metrics."""

    class Returned(Plane):
        returned: object = float("nan")

        @override
        def evaluate_batch(self, batch: list[Tensor], batch_idx: int) -> pytorch.Metrics:
            return {"fine": 1.0, "strange": self.returned}

    fit(Returned, folder)
    Returned.returned = object()
    with pytest.raises(TypeError, match="strange"):
        fit(Returned, folder)


class Words(Dataset[str]):
    """A dataset that is not made of tensors."""

    def __len__(self) -> int:
        return 16

    @override
    def __getitem__(self, index: int) -> str:
        return "word" * (index + 1)


class Sentence:
    """A batch of a kind of its own."""

    def __init__(self, words: list[str]) -> None:
        self.words = words


def test_batches_of_a_kind_of_their_own(folder: Path) -> None:
    """A `collate_fn` makes them, `get_batch_length` counts them; they are passed on as they are, with one warning."""

    class Sentences(Plane):
        @override
        def build_training_data_loader(self) -> pytorch.DataLoader:
            size = self.context.get_per_slot_batch_size()
            return pytorch.DataLoader(Words(), batch_size=size, collate_fn=Sentence)

        @override
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> pytorch.TrainingMetrics:
            assert isinstance(batch, Sentence)
            loss = self.model(torch.tensor([[float(len(word)), 1.0] for word in batch.words])).mean()
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
            return {"loss": loss, "words": len(batch.words)}

        @override
        def get_batch_length(self, batch: Any) -> int:
            return len(batch.words) if isinstance(batch, Sentence) else super().get_batch_length(batch)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(Sentences, folder)
    assert len([one for one in caught if "Sentence" in str(one.message)]) <= 1


def test_data_stays_where_it_is_if_the_user_says_so(folder: Path) -> None:
    """`context.to_device` moves what it is given, and turns arrays into tensors."""

    class Manual(Plane):
        def __init__(self, context: PyTorchTrialContext) -> None:
            super().__init__(context)
            context.experimental.disable_auto_to_device()

        @override
        def build_training_data_loader(self) -> pytorch.DataLoader:
            return pytorch.DataLoader(
                samples(), batch_size=self.context.get_per_slot_batch_size(), collate_fn=self.collate
            )

        @staticmethod
        def collate(rows: list[tuple[Tensor, Tensor]]) -> Any:
            return {"input": np.stack([row[0].numpy() for row in rows]), "target": [row[1] for row in rows]}

        @override
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> pytorch.TrainingMetrics:
            inputs: object = batch["input"]
            assert isinstance(inputs, np.ndarray)
            moved: object = self.context.to_device(batch["input"])
            assert isinstance(moved, Tensor)
            return super().train_batch([moved, torch.stack(batch["target"])], epoch_idx, batch_idx)

    assert_same_weights(fit(Manual, folder).model, by_hand(4))


def test_loaders_of_torch_need_leave(folder: Path) -> None:
    """The error names the method that gives it; then they are used as they are, epoch after epoch."""

    class OwnLoaders(Plane):
        allowed = False

        def __init__(self, context: PyTorchTrialContext) -> None:
            super().__init__(context)
            if self.allowed:
                context.experimental.disable_dataset_reproducibility_checks()

        @override
        def build_training_data_loader(self) -> TorchDataLoader[Any]:
            return TorchDataLoader(samples(), batch_size=4)

        @override
        def build_validation_data_loader(self) -> TorchDataLoader[Any]:
            return TorchDataLoader(samples(), batch_size=4)

    with pytest.raises(RuntimeError, match="you can disable this check by calling"):
        fit(OwnLoaders, folder)
    OwnLoaders.allowed = True
    trial = fit(OwnLoaders, folder, pytorch.Epoch(2))
    assert trial.trained[-1] == (1, 7)
    assert_same_weights(trial.model, by_hand(8))


def test_the_data_of_a_rank() -> None:
    """Repeated, shared out by batches, then skipped into."""
    loader = pytorch.DataLoader(TensorDataset(torch.arange(12)), batch_size=2)

    def batches(number: int, **arguments: Any) -> list[list[int]]:
        iterator = iter(loader.get_data_loader(**arguments))
        return [batch[0].tolist() for batch, _ in zip(iterator, range(number), strict=False)]

    assert len(loader) == 6
    assert [batch[0].tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]
    assert batches(99, num_replicas=4, rank=1) == [[2, 3], [10, 11]]
    assert batches(99, num_replicas=4, rank=3) == [[6, 7]]
    assert batches(4, repeat=True, num_replicas=4, rank=1) == [[2, 3], [10, 11], [6, 7], [2, 3]]
    assert batches(2, repeat=True, skip=2, num_replicas=4, rank=1) == [[6, 7], [2, 3]]
    assert batches(99, skip=5) == [[10, 11]]


def test_samplers_are_composed() -> None:
    """Shuffle, repeat, share out, batch, skip: in this order each epoch is another permutation."""
    base = torch.utils.data.SequentialSampler(range(8))
    shuffled = samplers.ReproducibleShuffleSampler(base, seed=777)
    expected = np.random.RandomState(777)
    epochs: list[int] = []
    for _ in range(2):
        indices = list(range(8))
        expected.shuffle(indices)
        epochs += indices
    repeated = samplers.RepeatSampler(shuffled)
    shard = samplers.DistributedSampler(repeated, num_workers=2, rank=1)
    batched = torch.utils.data.BatchSampler(shard, batch_size=4, drop_last=False)
    skipping = samplers.SkipBatchSampler(batched, 1)

    assert next(iter(skipping)) == epochs[1::2][4:]
    assert len(samplers.DistributedBatchSampler(torch.utils.data.BatchSampler(base, 3, drop_last=False), 2, 1)) == 1
    assert pytorch.data_length({"a": torch.zeros(3, 1), "b": torch.zeros(2)}) == 3
