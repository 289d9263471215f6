"""The types of the callbacks of pa-callbacks-extra."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, assert_type

from torch import Tensor, nn
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAccuracy, MulticlassAccuracy

from pa_callbacks_extra import ModelEma, ModelEmaCallback, ModelEmaFactory, TorchMetricsCallback
from pa_core import AnyTrainer, TrainerCallback
from tests.typing.vocabulary import Batch, ForAnyTrainer, Net, NetTrainer, Output, collate, make_data, make_optimizer


def logits(batch: Batch, output: Output) -> Tensor:
    """Predictions."""
    assert_type(batch.pixels, Tensor)
    tensor: Tensor = output["model_outputs"]
    return tensor


def labels(batch: Batch, output: Output) -> Tensor:
    """Targets."""
    assert_type(output["confidence"], Tensor)
    return batch.labels


def test_an_average_is_one_of_its_model() -> None:
    """The averaged model is of the class of the model, and its parts are known."""
    net = Net()
    ema = ModelEma(net, decay=0.5)
    ema.update(net)

    assert_type(ema, ModelEma[Net])
    assert_type(ema.module, Net)
    assert_type(ema.module.head, nn.Linear)
    assert_type(ema.num_updates, int)
    assert_type(ema.state_dict(), dict[str, Any])
    assert isinstance(ema.module, Net)


def test_what_makes_the_average_of_a_run(tmp_path: Path) -> None:
    """The class, a partial of it, a subclass and a function are all accepted."""

    class NetEma(ModelEma[Net]):
        """An average of one class of models."""

    def slowly(model: nn.Module, decay: float) -> ModelEma:
        return ModelEma(model, decay=min(1.0, 1.1 * decay))

    factories: list[ModelEmaFactory] = [ModelEma, partial(ModelEma, warm_up=True), NetEma, slowly]
    for factory in factories:
        net = Net()
        average = ModelEmaCallback(
            0.5, save_path=tmp_path / "average.pt", model_ema=factory, callbacks=[ForAnyTrainer()]
        )
        trainer = NetTrainer(net, None, make_optimizer(net), callbacks=[average])
        trainer.train(make_data(), num_epochs=1, eval_dataset=make_data(), collate_fn=collate)
        assert_type(average.ema, ModelEma)
        assert_type(average.ema.module, nn.Module)
        assert_type(average.best.value, float | None)
        assert_type(average.callbacks, list[TrainerCallback[AnyTrainer, Any, Any]])
        assert isinstance(average.ema.module, Net)


def test_metrics_take_the_functions_of_their_batches() -> None:
    """The two functions decide the types of the callback, or are compared with those that it declares."""
    plain = TorchMetricsCallback(BinaryAccuracy())
    assert_type(plain, TorchMetricsCallback[Any, Any])
    untyped = TorchMetricsCallback(BinaryAccuracy(), predictions=lambda batch, output: output["scores"] - batch[0])
    assert_type(untyped, TorchMetricsCallback[Any, Any])
    inferred = TorchMetricsCallback(MulticlassAccuracy(num_classes=2), predictions=logits, targets=labels)
    assert_type(inferred, TorchMetricsCallback[Batch, Output])
    declared = TorchMetricsCallback[Batch, Output](
        MetricCollection({"accuracy": MulticlassAccuracy(num_classes=2)}),
        predictions=lambda batch, output: output["confidence"] + len(batch.labels),
        targets=None,
    )
    assert_type(declared.eval_metrics, MetricCollection | None)

    trainer = NetTrainer(Net(), None, None, callbacks=[inferred])
    trainer.evaluate(make_data(), collate_fn=collate)
    assert_type(trainer, NetTrainer)
    assert 0 <= trainer.run_history.get_latest_metric("evaluation_MulticlassAccuracy") <= 1
