"""What a run has recorded: histories, their clock, and the mean loss."""

from __future__ import annotations

import copy
import gc
import json
import math
import pickle
import time
import tracemalloc
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD
from typing_extensions import override

from pa_checkpoint import load
from pa_checkpoint._checkpoint import write_checkpoint
from pa_checkpoint._encoding import JsonScalar
from pa_core import DEFAULT_CALLBACKS, PrintProgressCallback, Trainer
from pa_core.errors import CheckpointError, ConfigurationError, MetricNotFoundError
from pa_core.testing import TinyClassifier, make_classification
from pa_core.tracking import (
    ExactLossTracker,
    InMemoryRunHistory,
    LossTracker,
    MetricRecord,
    MetricValue,
    RunClock,
    StepMeans,
)
from tests.small_runs import make_trainer, samples
from tests.support.histories import DocumentedHistory


def test_a_history_of_ones_own_needs_only_the_documented_methods() -> None:
    """Epochs are counted, the clock runs and is resumed, without a call of the base class's constructor."""
    history, resumed = DocumentedHistory("x_"), DocumentedHistory()

    assert history.current_epoch == 1
    history.increment_epoch()
    history.clock.update = 30
    assert history.current_epoch == history.clock.epoch == 2
    assert resumed.current_epoch == 1
    resumed.load_state_dict(json.loads(json.dumps(history.state_dict())))
    assert (resumed.current_epoch, resumed.clock.update) == (2, 30)
    with pytest.raises(NotImplementedError, match="DocumentedHistory cannot delete 'x_loss'"):
        history.delete_metric("x_loss")


def test_a_history_may_count_its_epochs_itself() -> None:
    """One that was written for pytorch-accelerated brings a count of its own, which the trainer advances."""

    class OwnCount(InMemoryRunHistory):
        own_epoch = 1

        @property
        @override
        def current_epoch(self) -> int:
            return self.own_epoch

        @override
        def _increment_epoch(self) -> None:
            self.own_epoch += 1

    trainer, history = make_trainer(), OwnCount()
    trainer.run_history = history
    trainer.train(samples(4), 2)
    assert history.current_epoch == 3


class ForgetfulHistory(InMemoryRunHistory):
    """A subclass that does not call ``super().__init__()``."""

    def __init__(self, note: str) -> None:
        self.note = note


@pytest.mark.parametrize("history", [InMemoryRunHistory(), ForgetfulHistory("x")])
def test_values_are_read_back_under_their_names(history: InMemoryRunHistory) -> None:
    """The latest and all of them, with the prefix of their moment; a default stands for what was never recorded."""
    with pytest.raises(MetricNotFoundError, match="Recorded were: none so far"):
        history.get_latest_metric("loss")
    assert history.get_latest_metric("loss", 0.5) == 0.5
    assert history.get_latest_metric("loss", None) is None
    history.update_metric("loss", 2.0)
    history.update_metric("accuracy", 0.5)
    assert history.metric_name_prefix == ""
    history.set_metric_name_prefix("ema_")
    history.update_metric("loss", 1.0)
    assert history.metric_name_prefix == "ema_"
    assert history.get_latest_metric("loss") == 2.0  # reading takes the full name
    assert history.get_latest_metric("ema_loss") == 1.0
    history.set_metric_name_prefix()
    assert history.metric_name_prefix == ""
    history.update_metric("loss", 1.5)
    assert history.get_metric_names() == {"loss", "accuracy", "ema_loss"}
    assert history.get_metric_values("loss") == [2.0, 1.5]
    assert history.get_latest_metric("loss", 0.5) == 1.5
    assert history.get_latest_metric("ema_loss") == 1.0
    for read in (history.get_latest_metric, history.records, history.delete_metric):
        for kind in (KeyError, ValueError):
            with pytest.raises(kind, match=r"'los'.*loss, accuracy"):
                read("los")
    assert (history.get_metric_values("los"), history.count_metric_values("los")) == ([], 0)

    for name in history.get_metric_names():  # as a callback does that keeps the best value of each
        history.update_metric(f"best_{name}", history.get_latest_metric(name))
    names = ["loss", "accuracy", "ema_loss"]
    assert list(history.get_metric_names()) == [*names, *(f"best_{name}" for name in names)]

    history.set_metric_name_prefix("stage2_")
    history.clock.epoch, history.clock.update, history.clock.samples = 5, 6, 7
    history.reset()
    assert (list(history.get_metric_names()), history.records()) == ([], [])
    assert (history.current_epoch, history.clock.update, history.clock.samples) == (1, 0, 0)
    assert history.metric_name_prefix == "stage2_"


def test_every_value_knows_its_moment() -> None:
    """A record carries the epoch, update, samples and seconds at which the value was recorded."""
    history = InMemoryRunHistory()
    for step in range(1, 4):
        history.clock.update, history.clock.samples = step, step * 32
        history.update_metric("loss", 1 / step)
    history.increment_epoch()
    history.update_metric("accuracy", 0.5)

    records = history.records()

    assert [(r.metric, r.value, r.epoch, r.update, r.samples) for r in records] == [
        ("loss", 1.0, 1, 1, 32),
        ("loss", 0.5, 1, 2, 64),
        ("loss", 1 / 3, 1, 3, 96),
        ("accuracy", 0.5, 2, 3, 96),
    ]
    assert 0 <= records[0].seconds <= records[1].seconds <= records[-1].seconds <= history.clock.seconds
    assert MetricRecord(*(column[0] for column in history.to_dict().values())) == records[0]
    assert list(history.to_dict()) == ["metric", "value", "epoch", "update", "samples", "seconds"]
    assert {len(column) for column in history.to_dict().values()} == {4}
    assert history.records("accuracy") == records[3:]


def test_a_value_is_recorded_as_it_is_now() -> None:
    """Without its graph, the memory around it, or what happens to it later; so is the loss of a tracker."""
    history, trackers = InMemoryRunHistory(), (LossTracker(), ExactLossTracker())
    weights = torch.ones(1000, requires_grad=True)
    kept = weakref.ref(weights)
    running = (weights * 2.0)[0]
    value = {"per_class": (weights * 0)[:2], "seen": [1]}
    totals: defaultdict[str, float] = defaultdict(float, hits=3.0)
    for name, one in (("running", running), ("a", value), ("totals", totals)):
        history.update_metric(name, one)
    for tracker in trackers:
        tracker.update(running, 1)
    with torch.no_grad():
        running += 1
        value["per_class"].detach().add_(1)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    value["seen"] = [2]
    totals["hits"] += 1
    del weights, running, value
    gc.collect()

    latest = history.get_latest_metric("running")
    assert isinstance(latest, Tensor)
    assert (latest.item(), latest.requires_grad, latest.untyped_storage().nbytes()) == (2.0, False, 4)
    assert history.get_metric_values("running") == [2.0]
    assert history.records("running")[0].value == 2.0
    assert kept() is None
    assert repr(history.get_latest_metric("a")) == repr({"per_class": torch.zeros(2), "seen": [1]})
    assert history.get_latest_metric("totals") == {"hits": 3.0}
    assert history.get_latest_metric("totals_hits") == 3.0
    for tracker in trackers:
        assert tracker.total_loss == 2.0
        assert not tracker.totals().requires_grad


NUMBERS: list[Any] = [
    *(1.5, 3, True, np.float32(0.1), np.int64(7), math.inf, 2**60),
    *(torch.tensor(0.1, dtype=dtype) for dtype in (torch.float16, torch.bfloat16, torch.float64)),
    *(torch.tensor(7), torch.tensor(True), torch.nn.Parameter(torch.tensor(0.5))),
]


def test_numbers_have_records() -> None:
    """The latest comes back as it was recorded; among all values, and after a resume, a tensor is its number."""
    for value in NUMBERS:
        history = InMemoryRunHistory()
        for one in ("high", value, None, [1.0]):  # whatever is no number has none
            history.update_metric("a", one)
            history.clock.update += 1
        history.update_metric("b", value)
        resumed = InMemoryRunHistory()
        resumed.load_state_dict(json.loads(json.dumps(history.state_dict())))
        latest = history.get_latest_metric("b")
        assert latest == value
        assert isinstance(latest, Tensor) == isinstance(value, Tensor)
        for read in (history, resumed):
            assert [(record.value, record.update) for record in read.records()] == [(value, 1), (value, 4)]
            assert read.get_metric_values("b") == [value]
            assert not isinstance(read.get_metric_values("b")[0], Tensor)


def test_what_is_a_number_in_records() -> None:
    """Numbers, tensors of one element and truth values have records; whatever else was recorded has none."""
    history = InMemoryRunHistory()
    for value in (0.5, "high", torch.tensor([0.25]), None, True, [1.0], 2**60):
        history.update_metric("a", value)
        history.clock.update += 1
    assert [(record.value, record.update) for record in history.records()] == [(0.5, 0), (0.25, 2), (1, 4), (2**60, 6)]


def name_of_type(value: object) -> str:
    """The name of a test that is the same in each process."""
    return type(value).__name__


PLAIN: list[Any] = [
    "high",
    None,
    True,
    1j,
    2**60 + 1,
    -(10**400),
    [0.25, 0.5],
    (1, "cat"),
    {"cat"},
    torch.tensor([0.5]),
    torch.tensor([0.25, 0.5]),
    torch.tensor([[1, 2], [3, 4]]),
    torch.tensor(1j),
    torch.ones(0),
    np.array([0.25, 0.5]),
    {"accuracy": 0.5, "f1": torch.tensor(0.25)},
    {"per_class": [0.25, 0.5], "names": ("cat", "dog"), "confusion": torch.eye(2), "nested": {"worst": "cat"}},
]


@pytest.mark.parametrize("value", PLAIN, ids=name_of_type)
def test_any_plain_value_comes_back_as_it_was(value: Any, tmp_path: Path) -> None:
    """Also from the files of a training state, and among numbers that were recorded under the same name."""
    history, resumed = InMemoryRunHistory(), InMemoryRunHistory()
    for recorded in (0.5, value, 0.25, value):
        history.update_metric("a", recorded)
    summary: dict[str, JsonScalar] = {"run": "r", "sequence": 1, "update": 1, "epoch": 1, "complete": False}
    write_checkpoint(tmp_path / "state", {"history": history.state_dict()}, summary)
    resumed.load_state_dict(load(tmp_path / "state").parts["history"])

    for read in (history, resumed):
        assert repr(read.get_latest_metric("a")) == repr(value)
        assert repr(read.get_metric_values("a")) == repr([0.5, value, 0.25, value])
        assert read.count_metric_values("a") == 4
    assert resumed.to_dict() == history.to_dict()


def test_the_numbers_of_a_mapping_have_names_of_their_own() -> None:
    """Each under the name of the mapping and its key, with its moment; what is not a number has none."""
    history = InMemoryRunHistory()
    history.set_metric_name_prefix("ema_")
    for epoch in (1, 2):
        history.clock.epoch = epoch
        value = {"accuracy": epoch / 4, "f1": torch.tensor(0.5), "worst": "cat", "by": {"dog": 1}, 7: 0.75}
        history.update_metric("test", value)

    names = ["ema_test", "ema_test_accuracy", "ema_test_f1", "ema_test_by_dog", "ema_test_7"]
    resumed = InMemoryRunHistory()
    resumed.load_state_dict(history.state_dict())
    for read in (history, resumed):
        assert list(read.get_metric_names()) == names
        assert read.get_metric_values("ema_test_accuracy") == [0.25, 0.5]
        assert read.get_latest_metric("ema_test_f1") == 0.5
        assert [(record.value, record.epoch) for record in read.records("ema_test_by_dog")] == [(1, 1), (1, 2)]
        assert {record.metric for record in read.records()} == set(names[1:])

    history.delete_metric("ema_test_f1")
    assert "ema_test_f1" not in history.get_metric_names()
    assert len(history.get_latest_metric("ema_test")) == 5
    history.delete_metric("ema_test")
    assert list(history.get_metric_names()) == ["ema_test_accuracy", "ema_test_by_dog", "ema_test_7"]


@pytest.mark.parametrize("value", [object(), len, {"f": [len]}, {0.5: object()}, nn.Linear(1, 1)], ids=name_of_type)
def test_what_is_not_plain_is_refused(value: Any) -> None:
    """It is refused where it is recorded, by the name of the metric, and nothing is recorded."""
    history = InMemoryRunHistory()
    history.set_metric_name_prefix("ema_")

    with pytest.raises(ConfigurationError, match=r"metric 'ema_x' cannot be recorded(.|\n)*given: +ema_x"):
        history.update_metric("x", value)

    assert list(history.get_metric_names()) == []


_values = st.floats(allow_nan=False) | st.integers(-(2**53), 2**53)


@given(recorded=st.lists(st.tuples(st.sampled_from("abc"), _values, st.integers(0, 2**62))))
def test_a_resumed_history_is_the_same_history(recorded: list[tuple[str, float, int]]) -> None:
    """Whatever was recorded, the state survives JSON: same values, same moments, and it goes on."""
    history = InMemoryRunHistory()
    history.set_metric_name_prefix("p_")
    for name, value, update in recorded:
        history.clock.update = update
        history.update_metric(name, value)

    resumed = InMemoryRunHistory()
    resumed.update_metric("forgotten", 1.0)
    resumed.load_state_dict(json.loads(json.dumps(history.state_dict())))

    for twin in (resumed, copy.deepcopy(history), pickle.loads(pickle.dumps(history))):
        assert twin.records() == history.records()
        assert twin.to_dict() == history.to_dict()
        assert twin.metric_name_prefix == "p_"
        assert list(twin.get_metric_names()) == list(history.get_metric_names())
        for name in history.get_metric_names():
            assert twin.get_metric_values(name) == history.get_metric_values(name)
            assert twin.get_latest_metric(name) == history.get_latest_metric(name)
        twin.update_metric("a", 1.0)
        assert twin.get_latest_metric("p_a") == 1.0


_BREAKS: list[Callable[[dict[str, Any]], object]] = [
    lambda state: state.pop("metrics"),
    lambda state: state.pop("clock"),
    lambda state: state["clock"].pop("seconds"),
    lambda state: state["metrics"]["a"]["value"].append(1.0),
    lambda state: state["metrics"]["a"].update(kept=[[7, "high"]]),
    lambda state: state["metrics"]["a"].update(value=[]),
    lambda state: state["metrics"]["a"].update(epoch=["x"]),
    lambda state: state["metrics"].update(a=None),
]


@pytest.mark.parametrize("break_it", _BREAKS)
def test_a_broken_state_changes_nothing(break_it: Callable[[dict[str, Any]], object]) -> None:
    """What is no whole state is refused, and the values that are there stay."""
    donor, history = InMemoryRunHistory(), InMemoryRunHistory()
    donor.update_metric("a", 2.0)
    state = donor.state_dict()
    break_it(state)
    history.update_metric("b", 1.0)
    history.clock.epoch = 3

    with pytest.raises(CheckpointError, match="not the state of a run history"):
        history.load_state_dict(state)

    assert history.get_metric_values("b") == [1.0]
    assert list(history.get_metric_names()) == ["b"]
    assert history.current_epoch == 3


class DoesNotList(InMemoryRunHistory):
    """Whoever asks for all values of a long run at each epoch makes its epochs longer and longer."""

    @override
    def get_metric_values(self, metric_name: str) -> list[MetricValue]:
        raise AssertionError(f"all values of {metric_name} were asked for")


def test_epochs_go_over_no_recorded_values() -> None:
    """The default callbacks know what is new without reading what is old, except for the table at the end."""
    history = DoesNotList()
    callbacks = [callback for callback in DEFAULT_CALLBACKS if callback is not PrintProgressCallback]
    model = TinyClassifier()
    trainer = Trainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks, history)
    trainer.train(make_classification(8), 3, make_classification(8))
    assert history.count_metric_values("train_loss_epoch") == 3


def test_a_long_run_takes_little_memory() -> None:
    """A value costs some 70 bytes, so that a million of them are no burden."""
    history = InMemoryRunHistory()
    count = 20_000
    loss = torch.tensor(1.0)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for step in range(count):
        history.update_metric("loss", step * 0.5)
        history.update_metric("as_tensor", loss)
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()

    assert used / (2 * count) < 75


def test_the_clock_runs_until_it_is_stopped() -> None:
    """Time passes from the start, stands still between stop and start, and goes on in a resumed run."""
    clock = RunClock()
    time.sleep(0.01)
    clock.stop()
    clock.stop()
    stopped = clock.seconds
    time.sleep(0.01)
    assert clock.seconds == stopped >= 0.01

    resumed = RunClock()
    resumed.load_state_dict(clock.state_dict())
    assert stopped <= resumed.seconds < stopped + 5

    clock.start()
    time.sleep(0.01)
    clock.start()
    assert stopped + 0.01 <= clock.seconds < stopped + 5
    clock.reset()
    assert clock.seconds < stopped + 0.005


def tracked(batches: list[tuple[float, int]]) -> LossTracker:
    """A tracker of these losses, in double precision, and sizes of batches."""
    tracker = LossTracker()
    for loss, batch_size in batches:
        tracker.update(torch.tensor(loss, dtype=torch.float64), batch_size)
    return tracker


_doubles = st.lists(st.tuples(st.floats(-1e3, 1e3), st.integers(1, 100)), min_size=1, max_size=30)


@given(first=_doubles, second=_doubles)
def test_totals_of_processes_add_up(first: list[tuple[float, int]], second: list[tuple[float, int]]) -> None:
    """The sum of the totals of two trackers is the total of one that saw everything; a sum goes on in its order."""
    one, whole = tracked(first), tracked(first + second)
    resumed = LossTracker()
    resumed.load_totals(one.totals())
    for loss, batch_size in second:
        resumed.update(torch.tensor(loss, dtype=torch.float64), batch_size)
    assert resumed.total_loss == whole.total_loss, "to the last bit"

    one.load_totals(one.totals() + tracked(second).totals())

    assert one.running_count == resumed.running_count == whole.running_count
    assert one.total_loss == pytest.approx(whole.total_loss, rel=1e-12, abs=1e-9)
    one.update(1.0, 2)
    assert one.running_count == whole.running_count + 2


_dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64])


@given(batches=st.lists(st.tuples(st.floats(-1e4, 1e4), st.integers(0, 2**20), _dtypes), min_size=1, max_size=30))
def test_losses_add_up_as_in_a_tensor_of_doubles(batches: list[tuple[float, int, torch.dtype]]) -> None:
    """To the last bit, whatever their precision, which may change; numbers do too, and the mean is over samples."""
    tracker, of_numbers, total = LossTracker(), LossTracker(), torch.zeros((), dtype=torch.float64)
    for number, batch_size, dtype in batches:
        loss = torch.tensor(number, dtype=dtype)
        tracker.update(loss, batch_size)
        of_numbers.update(loss.item(), batch_size)
        total.add_(loss, alpha=batch_size)

    assert tracker.total_loss == total.item() == pytest.approx(of_numbers.total_loss, rel=1e-12, abs=1e-3)
    count = sum(batch_size for _, batch_size, _ in batches)
    assert tracker.running_count == of_numbers.running_count == count
    assert tracker.average == pytest.approx(total.item() / count if count else math.nan, rel=1e-12, nan_ok=True)


_Batches = list[tuple[float, int]]
_loss = st.floats() | st.sampled_from([1e308, -1e308, 5e-324, 2.0**-1022, -0.0, 1e16, 0.1])
_dealt = st.lists(st.lists(st.tuples(_loss, st.integers(0, 2**20)), max_size=8), min_size=1, max_size=5)


def exactly_tracked(batches: _Batches) -> ExactLossTracker:
    """A tracker of numbers, tensors of the CPU and tensors elsewhere in turn."""
    tracker = ExactLossTracker()
    for index, (loss, batch_size) in enumerate(batches):
        tensor = torch.tensor(loss, dtype=torch.float64)
        tracker.update((loss, tensor, tensor.as_subclass(_Elsewhere))[index % 3], batch_size)
    return tracker


def expected(batches: Sequence[tuple[float, int]]) -> tuple[str, str]:
    """The sum and the mean, rounded once, as text that tells all bits."""
    products = [loss * count for loss, count in batches if count]
    samples = sum(count for _, count in batches)
    if not all(map(math.isfinite, products)):
        not_finite = repr(sum(one for one in products if not math.isfinite(one)))
        return not_finite, not_finite
    exact = sum(map(Fraction, products), Fraction())
    largest = Fraction(2**1024 - 2**970)  # from here on a number is rounded to infinity
    total = float(exact) if abs(exact) < largest else math.copysign(math.inf, exact)
    return repr(total), repr(float(exact / samples) if samples else math.nan)


@given(dealt=_dealt, data=st.data())
def test_an_exact_mean_does_not_depend_on_the_order_nor_on_who_adds(dealt: list[_Batches], data: st.DataObject) -> None:
    """However batches are dealt to processes, added up and carried over, sum and mean are rounded once."""
    batches: _Batches = data.draw(st.permutations([batch for of_process in dealt for batch in of_process]))
    expect = expected(batches)

    tracker = exactly_tracked(batches)
    assert (repr(tracker.total_loss), repr(tracker.average)) == expect

    parts = list(map(exactly_tracked, dealt))
    tracker = ExactLossTracker()
    tracker.load_totals(torch.stack([one.totals() for one in parts]).sum(0))
    assert (repr(tracker.total_loss), repr(tracker.average)) == expect
    assert tracker.running_count == sum(count for _, count in batches)

    means = StepMeans(exact=True)
    means.load_totals([{"kl": one.numbers()} for one in parts])
    assert repr(means["kl"].average) == expect[1]
    with means.step():
        means.log("kl", 1.0, count=1)
        means.log("other", 2.0, count=1)
    assert repr(means["kl"].average) == expected([*batches, (1.0, 1)])[1]
    assert isinstance(means["other"], ExactLossTracker)


def test_an_exact_tracker_goes_on_from_one_that_rounds_and_back() -> None:
    """A state that was saved without the one is resumed with the other."""
    exact, rounding = ExactLossTracker(), LossTracker()
    for loss, batch_size in ((0.1, 3), (0.7, 2)):
        rounding.update(loss, batch_size)
    exact.load_totals(rounding.totals())
    assert (exact.total_loss, exact.running_count) == (rounding.total_loss, 5)
    exact.update(0.1, 3)
    rounding.load_totals(exact.totals())
    assert (rounding.total_loss, rounding.running_count) == (exact.total_loss, 8)


@pytest.mark.parametrize("tracker", [LossTracker(), ExactLossTracker()])
def test_a_tracker_without_losses_has_no_average(tracker: LossTracker) -> None:
    """No samples is not a loss of zero, which would look like the best one."""
    assert math.isnan(tracker.average)
    tracker.update(1.0, 4)
    tracker.reset()
    assert math.isnan(tracker.average)
    assert (tracker.total_loss, tracker.running_count, bool(tracker.totals().any())) == (0.0, 0, False)


class _Elsewhere(Tensor):
    """A tensor that is treated as one on an accelerator, for machines without one."""

    @property
    @override
    def is_cpu(self) -> bool:  # type: ignore[override]  # pyright: ignore[reportIncompatibleVariableOverride]  # a property in torch too
        return False


_floats = st.lists(st.tuples(st.floats(-1e3, 1e3, width=32), st.integers(1, 100)), min_size=1, max_size=30)


@given(batches=_floats)
def test_losses_on_a_device_are_summed_there(batches: list[tuple[float, int]]) -> None:
    """Losses on a device, of whatever shape, and plain numbers give one sum."""
    tracker, history = LossTracker(), InMemoryRunHistory()
    for loss, batch_size in batches:
        tracker.update(torch.tensor([loss]).as_subclass(_Elsewhere), batch_size)
        tracker.update(loss, batch_size)
        history.update_metric("loss", torch.tensor(loss).as_subclass(_Elsewhere))

    total = 2 * math.fsum(loss * batch_size for loss, batch_size in batches)
    scale = 2 * math.fsum(abs(loss) * batch_size for loss, batch_size in batches)

    assert tracker.total_loss == pytest.approx(total, rel=0, abs=1e-5 * scale)
    tracker.load_totals(tracker.totals() * 2)
    assert tracker.total_loss == pytest.approx(2 * total, rel=0, abs=1e-5 * scale)
    assert tracker.running_count == 4 * sum(batch_size for _, batch_size in batches)
    assert [record.value for record in history.records()] == [loss for loss, _ in batches]


@pytest.mark.parametrize("tracker", [LossTracker(), ExactLossTracker()])
def test_a_device_is_read_now_and_then_in_a_long_run(tracker: LossTracker) -> None:
    """However many values are recorded, only a few tensors are held there; other losses are added to the same sum."""
    history = InMemoryRunHistory()
    held: list[weakref.ref[Tensor]] = []
    for step in range(2000):
        value = torch.tensor(float(step)).as_subclass(_Elsewhere)
        history.update_metric("loss", value)
        tracker.update(value, 2)
        tracker.update(float(step), 1)
        latest = history.get_latest_metric("loss")
        assert isinstance(latest, Tensor)
        held.append(weakref.ref(latest))

    assert sum(reference() is not None for reference in held) < 600
    assert [record.value for record in history.records()] == list(range(2000))
    tracker.load_totals(tracker.totals() * 2)
    assert (tracker.total_loss, tracker.running_count) == (6 * sum(range(2000)), 12000)
