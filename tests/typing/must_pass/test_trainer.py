"""The types of a trainer, its callbacks, what it records, and the settings of its run: inferred or checked."""

from __future__ import annotations

from collections.abc import Generator, Iterable, KeysView
from pathlib import Path
from typing import Any, assert_type

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from pa_core import (
    DEFAULT_CALLBACKS,
    AnyTrainer,
    BatchOutput,
    InMemoryRunHistory,
    RunHistory,
    Trainer,
    TrainerCallback,
    get_default_callbacks,
)
from pa_core.callbacks import CallbackHandler, CallbackLike
from pa_core.testing import RecordingCallback
from pa_core.tracking import MetricRecord
from pa_core.types import SchedulerLike, SizedIterable
from tests.typing.vocabulary import (
    Batch,
    CheckPixels,
    ForAnyTrainer,
    ForNetTrainer,
    Net,
    NetTrainer,
    Output,
    PlateauTrainer,
    collate,
    make_data,
    make_optimizer,
)


def test_a_trainer_is_one_of_its_model() -> None:
    """Without an annotation, the class of the model is known wherever the model comes back."""
    model = Net()
    trainer = Trainer(model, nn.CrossEntropyLoss(), make_optimizer(model), callbacks=[])

    assert_type(trainer, Trainer[Net])
    assert_type(trainer.model, Net)
    assert_type(trainer.get_model(), Net)
    assert_type(trainer.get_model().head, nn.Linear)
    assert isinstance(trainer.get_model(), Net)


def test_callbacks_leave_the_model_known() -> None:
    """Classes, instances, none, and the default ones: the trainer stays one of its model."""
    model = Net()
    optimizer = make_optimizer(model)

    assert_type(Trainer(model, nn.CrossEntropyLoss(), optimizer), Trainer[Net])
    assert_type(Trainer(model, None, None, callbacks=[ForAnyTrainer]), Trainer[Net])
    assert_type(Trainer(model, None, None, callbacks=(ForAnyTrainer(), CheckPixels)), Trainer[Net])
    assert_type(NetTrainer(model, None, optimizer, callbacks=[ForAnyTrainer, ForNetTrainer()]), NetTrainer)


def test_the_four_parameters_have_defaults() -> None:
    """A trainer that is written without parameters is one of any module, any batch and plain dictionaries."""

    def defaults(trainer: Trainer) -> None:
        assert_type(trainer, Trainer[nn.Module, Any, dict[str, Any], SchedulerLike])

    def of_model(trainer: Trainer[Net]) -> None:
        assert_type(trainer, Trainer[Net, Any, dict[str, Any], SchedulerLike])
        defaults(trainer)

    of_model(Trainer(Net(), None, None, callbacks=[]))


def test_every_trainer_is_any_trainer() -> None:
    """What is annotated with ``AnyTrainer`` takes a trainer of any model, batch, output and scheduler."""

    def describe(trainer: AnyTrainer) -> str:
        assert_type(trainer.model, nn.Module)
        return type(trainer).__name__

    net = Net()
    assert describe(Trainer(net, None, None, callbacks=[])) == "Trainer"
    assert describe(NetTrainer(net, None, None, callbacks=[])) == "NetTrainer"
    assert describe(PlateauTrainer(net, None, None, callbacks=[])) == "PlateauTrainer"


def test_a_function_for_one_process_keeps_its_signature() -> None:
    """A decorator of a trainer takes whatever function there is; what it returns may be None on other processes."""

    def run(trainer: AnyTrainer) -> None:
        @trainer.on_main_process
        def describe(epoch: int, *, loss: float) -> str:
            return f"{epoch}: {loss}"

        @trainer.on_process(process_index=trainer.num_processes - 1)
        def count(names: list[str]) -> int:
            return len(names)

        @trainer.main_process_first()
        def load(path: Path) -> str:
            return path.name

        assert_type(describe(1, loss=0.5), str | None)
        assert_type(trainer.on_local_main_process(load)(Path("data")), str | None)
        assert_type(count(["one"]), int | None)
        assert_type(load(Path("data")), str)
        with trainer.local_main_process_first(), trainer.autocast():
            assert load(Path("data")) == "data"

    run(Trainer(Net(), None, None, callbacks=[], mixed_precision="no", cpu=True))


def test_a_subclass_declares_batch_and_output() -> None:
    """The hooks of a trainer with parameters speak of its own batch and its own output."""
    net = Net()
    trainer = NetTrainer(net, None, make_optimizer(net), callbacks=[])
    batch = Batch(torch.zeros(2, 4), torch.tensor([0, 1]))

    output = trainer.calculate_eval_batch_loss(batch)

    assert_type(output, Output)
    assert_type(output["loss"], Tensor)
    assert_type(output["confidence"], Tensor)
    assert_type(output["batch_size"], int)
    assert_type(trainer.model, Net)
    assert_type(trainer.callback_handler, CallbackHandler[NetTrainer])
    assert output["confidence"].shape == (2,)


def test_a_plain_subclass_needs_no_types() -> None:
    """Overrides in the untyped style add keys to what ``super()`` returned."""

    class PlainTrainer(Trainer):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            output = super().calculate_train_batch_loss(batch)
            output["accuracy"] = 0.5
            return output

    model = nn.Linear(4, 2)
    trainer = PlainTrainer(model, nn.CrossEntropyLoss(), make_optimizer(model), callbacks=[])
    assert_type(trainer.model, nn.Module)
    trainer.train(make_data(), num_epochs=1)


def test_a_literal_is_an_output() -> None:
    """A step may return a dictionary that was written down on the spot; it need not name ``BatchOutput``."""

    class LiteralTrainer(Trainer[Net, Batch, BatchOutput]):
        @override
        def calculate_train_batch_loss(self, batch: Batch) -> BatchOutput:
            loss = self.model(batch.pixels).square().mean()
            assert_type(loss, Any)
            return {"loss": loss, "model_outputs": None, "batch_size": len(batch.labels)}

    net = Net()
    trainer = LiteralTrainer(net, None, make_optimizer(net), callbacks=[])
    trainer.train(make_data(), num_epochs=1, collate_fn=collate)


def test_a_dataloader_is_data() -> None:
    """Where a dataset is taken, a ``DataLoader`` is too; what is known of the trainer is its dataset."""
    net = Net()
    trainer = NetTrainer(net, None, make_optimizer(net), callbacks=[])
    loader = DataLoader(make_data(), batch_size=2, collate_fn=collate)
    trainer.train(loader, num_epochs=1, eval_dataset=loader)
    trainer.evaluate(loader)
    assert_type(trainer.train_dataset, Dataset[Any])


def test_loaders_yield_the_batches_of_the_trainer() -> None:
    """A loader may be any iterable with a length that yields what the steps take."""

    class ListTrainer(NetTrainer):
        @override
        def create_train_dataloader(
            self, batch_size: int, train_dl_kwargs: dict[str, Any] | None = None
        ) -> SizedIterable[Batch]:
            data = make_data()
            batches = [Batch(data[index][0][None], data[index][1][None]) for index in range(len(data))]
            assert_type(batches, list[Batch])
            return batches

    net = Net()
    trainer = ListTrainer(net, None, make_optimizer(net), callbacks=[])
    trainer.train(make_data(), num_epochs=1)
    for batch in trainer.create_train_dataloader(1):
        assert_type(batch, Batch)


def test_what_is_gathered_keeps_its_type() -> None:
    """A tensor comes back as a tensor, and containers of tensors as such containers."""
    trainer = Trainer(Net(), None, None, callbacks=[])
    ones = torch.ones(2)

    assert_type(trainer.gather(ones), Tensor)
    assert_type(trainer.gather({"logits": ones}), dict[str, Tensor])
    assert_type(trainer.gather((ones, [ones]), with_gradient=True), tuple[Tensor, list[Tensor]])
    gathered = trainer.gather({"logits": (ones, ones)}, padding_value=-1)
    assert_type(gathered, dict[str, tuple[Tensor, Tensor]])
    assert isinstance(gathered["logits"], tuple)


def test_the_scheduler_is_that_of_the_trainer() -> None:
    """A trainer has the scheduler that it declares; one that declares none can only rely on ``step()``."""
    net = Net()
    plain = Trainer(net, None, None, callbacks=[])
    plateau = PlateauTrainer(net, nn.CrossEntropyLoss(), make_optimizer(net), callbacks=[])

    assert_type(plain.scheduler, SchedulerLike | None)
    assert_type(plateau.scheduler, ReduceLROnPlateau | None)
    plateau.train(make_data(), num_epochs=1, create_scheduler_fn=ReduceLROnPlateau)
    assert isinstance(plateau.scheduler, ReduceLROnPlateau)


class Predictor(NetTrainer):
    """A trainer that says what it predicts."""

    @override
    def predict_batch(self, batch: Batch) -> dict[str, Tensor]:
        return {"label": self.model(batch.pixels).argmax(1)}


def test_predictions_are_what_predict_batch_returns() -> None:
    """The iterator yields the type that the method declares; without one, anything."""
    net = Net()
    with_names = Predictor(net, None, None, callbacks=[]).predict(make_data(), collate_fn=collate)
    assert_type(with_names, Generator[dict[str, Tensor], None, None])
    assert [list(one) for one in with_names] == [["label"]]
    assert_type(Trainer(net, None, None, callbacks=[]).predict(make_data()), Generator[Any, None, None])


def test_what_a_prediction_returns_follows_from_what_it_writes(tmp_path: Path) -> None:
    """A path for a file, nothing for a function; the function takes what `predict_batch` returns."""
    trainer = Predictor(Net(), None, None, callbacks=[])
    labels: list[Tensor] = []

    def write(predictions: dict[str, Tensor], positions: range) -> None:
        labels.append(predictions["label"])

    assert_type(trainer.predict(make_data(), collate_fn=collate, write=str(tmp_path / "p.csv")), Path)
    assert_type(trainer.predict(make_data(), collate_fn=collate, write=write), None)


def test_metrics_are_what_was_recorded() -> None:
    """Any plain value is recorded and given back; the history in memory is more exact about its containers."""

    def read(history: RunHistory) -> None:
        assert_type(history.get_metric_names(), Iterable[str])
        assert_type(history.get_metric_values("loss"), Iterable[Any])
        assert_type(history.get_latest_metric("loss"), Any)

    history = InMemoryRunHistory()
    history.update_metric("loss", torch.tensor(0.5))
    history.update_metric("test", {"f1": 0.5, "worst": "cat"})
    read(history)
    assert_type(history.get_metric_names(), KeysView[str])
    assert_type(history.get_metric_values("loss"), list[Any])
    assert_type(history.records("loss"), list[MetricRecord])
    assert history.records("loss")[0].value == 0.5


def test_a_callback_may_demand_its_trainer() -> None:
    """A callback with parameters is given its own trainer, batch and output in each event."""

    class Typed(TrainerCallback[NetTrainer, Batch, Output]):
        @override
        def on_train_step_end(
            self, trainer: NetTrainer, batch: Batch, batch_output: Output, *, step: int = 0, **kwargs: Any
        ) -> None:
            assert_type(trainer.model, Net)
            assert_type(trainer.smoothing, float)
            assert_type(batch.labels, Tensor)
            assert_type(batch_output["confidence"], Tensor)
            assert step > 0

    net = Net()
    callback = ForNetTrainer()
    trainer = NetTrainer(net, None, make_optimizer(net), callbacks=[callback, Typed, ForAnyTrainer])
    trainer.train(make_data(), num_epochs=2, collate_fn=collate)
    assert trainer.smoothing == 0.025
    assert callback.confidence > 0


def test_a_callback_may_read_what_every_step_returns() -> None:
    """Annotated with ``BatchOutput``, a callback for any trainer knows the types of the three keys."""

    class MeanLoss(TrainerCallback):
        total = 0.0

        @override
        def on_eval_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: BatchOutput, **kwargs: Any) -> None:
            assert_type(batch_output["loss"], Tensor)
            assert_type(batch_output["batch_size"], int)
            self.total += batch_output["loss"].item() * batch_output["batch_size"]

    net = Net()
    mean_loss = MeanLoss()
    NetTrainer(net, None, None, callbacks=[mean_loss]).evaluate(make_data(), collate_fn=collate)
    assert mean_loss.total > 0


def test_a_callback_for_a_base_class_suits_its_subclasses() -> None:
    """A trainer takes every callback that asks for a base class of it."""

    class Smoother(NetTrainer):
        smoothing = 0.3

    handler = Smoother(Net(), None, None, callbacks=[ForAnyTrainer(), ForNetTrainer]).callback_handler

    assert_type(handler, CallbackHandler[Smoother])
    assert_type(handler.callbacks, list[TrainerCallback[Smoother, Any, Any]])
    handler.add_callback(CheckPixels)
    assert len(handler.callbacks) == 3


def test_an_event_that_is_named_by_its_method_is_checked() -> None:
    """Calling an event of one's own by its method has the arguments compared with those of the method."""

    class FindingTrainer(NetTrainer):
        @override
        def calculate_train_batch_loss(self, batch: Batch) -> Output:
            self.callback_handler.call_event(CheckPixels.on_pixels, self, batch.pixels, labels=batch.labels)
            self.callback_handler.call_event("on_pixels", self, pixels=batch.pixels, labels=batch.labels)
            return super().calculate_train_batch_loss(batch)

    net = Net()
    check = CheckPixels()
    trainer = FindingTrainer(net, None, make_optimizer(net), callbacks=[check])
    trainer.train(make_data(), num_epochs=1, collate_fn=collate)
    assert check.brightest == torch.tensor(3.1).item()


def test_an_event_of_ones_own_may_take_whatever_comes() -> None:
    """An event with ``**kwargs`` is checked too, where ``self`` cannot be one of them."""

    class Listener(TrainerCallback):
        brightest = 0

        def on_pixels(self, /, trainer: AnyTrainer, pixels: int, **kwargs: Any) -> None:
            self.brightest = max(pixels, *kwargs.values())

    listener = Listener()
    trainer = NetTrainer(Net(), None, None, callbacks=[listener])
    trainer.callback_handler.call_event(Listener.on_pixels, trainer, pixels=3, more=4)
    assert listener.brightest == 4


def test_classes_and_instances_in_a_variable() -> None:
    """A list of both is one of callbacks, for any trainer or for one class of them, where it is annotated."""
    for_any: list[CallbackLike] = [ForAnyTrainer, RecordingCallback(), *DEFAULT_CALLBACKS]
    for_one: list[CallbackLike[NetTrainer]] = [*for_any, ForNetTrainer()]
    assert len(Trainer(Net(), None, None, callbacks=for_any).callback_handler.callbacks) == len(for_any)
    assert len(NetTrainer(Net(), None, None, callbacks=for_one).callback_handler.callbacks) == len(for_one)


def test_default_callbacks_are_for_any_trainer() -> None:
    """They can be added to callbacks for a trainer of one's own."""
    assert_type(DEFAULT_CALLBACKS, tuple[type[TrainerCallback[AnyTrainer, Any, Any]], ...])
    assert_type(get_default_callbacks(progress_bar=False), tuple[type[TrainerCallback[AnyTrainer, Any, Any]], ...])
    trainer = NetTrainer(Net(), None, None, callbacks=[ForNetTrainer, *DEFAULT_CALLBACKS, *()])
    assert_type(trainer, NetTrainer)
    assert len(trainer.callback_handler.callbacks) == 1 + len(DEFAULT_CALLBACKS)
