"""What a run does on CUDA that it does nowhere else: precision of layers, skipped updates, no waiting."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import Run, Trainer
from pa_core.testing import TinyClassifier, make_classification
from pa_core.tracking import ExactLossTracker, InMemoryRunHistory, LossTracker
from tests.support.callbacks import CallAt, TellAt

STEPS = 30


def make_trainer(*callbacks: Any, precision: Literal["no", "bf16", "fp16"] = "no") -> Trainer[TinyClassifier]:
    """A trainer of a small network, on the device."""
    model = TinyClassifier()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks, mixed_precision=precision)
    assert trainer.device.type == "cuda"
    return trainer


@pytest.mark.needs_cuda
@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_layers_compute_in_the_precision_that_was_asked_for(
    precision: Literal["bf16", "fp16"], dtype: torch.dtype
) -> None:
    """Matrix products in 16 bits; weights, outputs and losses in float32."""
    seen: list[Tensor] = []

    def note(_trainer: Any, told: Any) -> None:
        seen.extend([told["batch_output"]["model_outputs"], told["batch_output"]["loss"], told["batch"][0]])

    trainer = make_trainer(TellAt("on_train_step_end", note), precision=precision)
    dtypes: set[torch.dtype] = set()
    first: nn.Module = trainer.get_model().layers[0]
    first.register_forward_hook(lambda _module, _inputs, output: dtypes.add(output.dtype))
    trainer.train(make_classification(64), 1)
    assert dtypes == {dtype}
    assert {one.dtype for one in seen} == {torch.float32}
    assert all(one.is_cuda for one in seen)
    assert {one.dtype for one in trainer.get_model().parameters()} == {torch.float32}
    assert trainer.run_history.get_latest_metric("train_loss_epoch") < 2


class Overflowing(Trainer[TinyClassifier]):
    """Begins with a scale at which gradients of fp16 are infinite."""

    @override
    def create_accelerator(self) -> Any:
        from accelerate import Accelerator
        from accelerate.utils import GradScalerKwargs

        return Accelerator(kwargs_handlers=[GradScalerKwargs(init_scale=2.0**22)])


@pytest.mark.needs_cuda
def test_updates_whose_gradients_overflow_are_skipped() -> None:
    """They change no weight, are not counted, and the loss of the epoch is finite."""
    model = TinyClassifier()
    before = [one.detach().clone() for one in model.parameters()]
    optimizer = SGD(model.parameters(), lr=0.1)
    trainer = Overflowing(model, nn.CrossEntropyLoss(), optimizer, callbacks=[], mixed_precision="fp16")
    trainer.train(make_classification(4 * STEPS), 1, per_device_batch_size=4)
    assert 0 < trainer.num_updates_completed < STEPS
    assert all(bool(one.isfinite().all()) for one in model.parameters())
    assert not all(torch.equal(one.cpu(), was) for one, was in zip(model.parameters(), before, strict=True))
    assert trainer.run_history.get_latest_metric("train_loss_epoch") < 2


@pytest.mark.needs_cuda
def test_no_update_of_a_run_waits_for_the_device() -> None:
    """A loop of one's own reads nothing from the device either."""
    model = TinyClassifier()
    optimizer, loss_func = SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss()
    try:
        with Run(model, optimizer, make_classification(4 * STEPS), num_epochs=1, per_device_batch_size=4) as run:
            for number, update in enumerate(run.updates()):
                torch.cuda.set_sync_debug_mode("error" if 5 < number < STEPS - 2 else "default")
                for inputs, targets in update:
                    update.backward(loss_func(model(inputs), targets))
                update.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.needs_cuda
def test_predictions_are_those_of_the_model() -> None:
    """In the order of the samples, up to the rounding of another device."""
    model = TinyClassifier()
    data = make_classification(50)
    inputs: Tensor = data.tensors[0]
    expected = copy.deepcopy(model).eval()(inputs)
    trainer = Trainer(model, nn.CrossEntropyLoss(), None, callbacks=[])
    found = torch.cat([one.cpu() for one in trainer.predict(data, per_device_batch_size=8)])
    assert torch.allclose(found, expected, atol=1e-3)


@pytest.mark.needs_cuda
def test_what_is_saved_on_cuda_loads_without_it(tmp_path: Path) -> None:
    """Weights for safetensors, and a checkpoint that torch maps to the CPU, have the bits of the model."""
    trainer = make_trainer()
    trainer.train(make_classification(64), 1)
    weights = {name: one.cpu() for name, one in trainer.get_model().state_dict().items()}
    trainer.save_checkpoint(tmp_path / "checkpoint.pt")
    loaded = torch.load(tmp_path / "checkpoint.pt", map_location="cpu", weights_only=True)["model_state_dict"]
    assert all(torch.equal(loaded[name], one) for name, one in weights.items())
    other = make_trainer()
    other.load_checkpoint(tmp_path / "checkpoint.pt")
    assert all(torch.equal(one.cpu(), weights[name]) for name, one in other.get_model().state_dict().items())


@pytest.mark.needs_cuda
def test_a_state_in_the_background_is_that_of_its_update(tmp_path: Path) -> None:
    """Though the weights have changed by the time that it is written: the copy is complete when training goes on."""
    state = tmp_path / "state"
    save = CallAt("on_optimizer_step_end", lambda trainer: trainer.save_training_state(state, asynchronous=True), 3)

    def train(*callbacks: Any, resume_from: Path | None = None) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Dropout(0.1), nn.Linear(4096, 10))
        trainer = Trainer(model, nn.CrossEntropyLoss(), AdamW(model.parameters(), lr=1e-2), callbacks)
        data = TensorDataset(torch.rand(80, 64), torch.randint(10, (80,)))
        trainer.train(data, 1, per_device_batch_size=8, resume_from=resume_from)
        return [one.detach().cpu() for one in model.parameters()]

    undisturbed, resumed = train(save), train(resume_from=state)
    assert all(torch.equal(one, other) for one, other in zip(undisturbed, resumed, strict=True))


@pytest.mark.needs_cuda
def test_losses_and_metrics_are_not_waited_for() -> None:
    """Recording never synchronises; reading gives the exact sum."""
    loss = torch.tensor(0.1, device="cuda", requires_grad=True) * 1.0
    tracker, exact, history = LossTracker(), ExactLossTracker(), InMemoryRunHistory()
    tracker.update(loss, 1)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(100):
            tracker.update(loss, 3)
            exact.update(loss, 3)
            history.update_metric("loss", loss)
        tracker.update(2.0, 1)
    finally:
        torch.cuda.set_sync_debug_mode("default")

    value = loss.item()
    assert tracker.running_count == 302
    assert tracker.total_loss == pytest.approx(301 * value + 2.0, rel=1e-12)
    assert tracker.totals().device.type == "cuda"
    assert exact.total_loss == 300 * value
    assert [float(metric) for metric in history.get_metric_values("loss")] == [value] * 100
