"""What a training run does to the weights, the history and the objects it was given."""

from __future__ import annotations

import copy
import math
import re
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler
from typing_extensions import override

from pa_core import (
    AnyTrainer,
    BatchOutput,
    ConfigurationError,
    InMemoryRunHistory,
    KeyedDataLoader,
    LimitBatches,
    LimitBatchesCallback,
    Trainer,
    TrainerCallback,
    TrainerPlaceholderValues,
)
from pa_core.data import epoch_order
from pa_core.testing import RecordingCallback, TinyClassifier, make_classification, make_regression
from tests.support.models import weights_of


def linear_trainer(
    *callbacks: TrainerCallback, lr: float = 0.1, dtype: torch.dtype = torch.float32
) -> Trainer[nn.Linear]:
    """A trainer of a linear model with fixed starting weights."""
    model = nn.Linear(4, 1).to(dtype)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.1, -0.2, 0.3, -0.4]]))
        model.bias.zero_()
    return Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=lr, momentum=0.9), callbacks=callbacks)


def mean_output(outputs: Tensor, _targets: Tensor) -> Tensor:
    """A loss whose gradient is the mean input."""
    return outputs.mean()


def regression(num_samples: int, dtype: torch.dtype = torch.float64) -> TensorDataset:
    """A regression dataset in the given precision."""
    return TensorDataset(*(tensor.to(dtype) for tensor in make_regression(num_samples).tensors))


def test_a_run_equals_a_hand_written_loop_to_the_last_bit() -> None:
    """Weights and losses are those of the loop that people write by hand, in the same order of the samples."""
    data = make_classification(50)
    model = TinyClassifier(batch_norm=True)
    by_hand = copy.deepcopy(model)
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[])
    torch.manual_seed(3)
    trainer.train(data, num_epochs=3, per_device_batch_size=8, create_scheduler_fn=partial(LambdaLR, lr_lambda=_halve))

    seed = trainer.run_config.seed
    assert seed is not None
    optimizer = SGD(by_hand.parameters(), lr=0.05, momentum=0.9)
    scheduler = LambdaLR(optimizer, _halve)
    losses: list[float] = []
    for epoch in range(3):
        order = epoch_order(50, seed=seed, epoch=epoch).indices(0, 50)
        total = 0.0
        for indices in torch.split(order, 8):
            inputs, targets = (tensor[indices] for tensor in data.tensors)
            loss = nn.functional.cross_entropy(by_hand(inputs), targets)
            total += loss.item() * len(indices)
            torch.autograd.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(total / 50)

    assert torch.equal(weights_of(model), weights_of(by_hand))
    assert list(trainer.run_history.get_metric_values("train_loss_epoch")) == pytest.approx(losses, rel=1e-6)


def _halve(update: int) -> float:
    return 0.5 ** (update // 5)


@pytest.mark.parametrize(
    ("batch_size", "accumulation"), [(1, 12), (2, 6), (3, 4), (4, 3), (5, 3), (6, 2), (11, 2), (7, 2)]
)
def test_accumulating_equals_the_large_batch(batch_size: int, accumulation: int) -> None:
    """An update of several small batches, uneven ones included, moves the weights as one large batch does."""
    large, small = (linear_trainer(dtype=torch.float64) for _ in range(2))
    data = regression(12)
    torch.manual_seed(0)
    large.train(data, num_epochs=4, per_device_batch_size=12)
    torch.manual_seed(0)
    small.train(data, num_epochs=4, per_device_batch_size=batch_size, gradient_accumulation_steps=accumulation)
    assert small.num_updates_completed == 4
    assert torch.allclose(weights_of(small.model), weights_of(large.model), rtol=0, atol=1e-14)


def test_the_last_group_of_an_epoch_weighs_what_it_holds() -> None:
    """Ten equal batches accumulated by four make updates of 4, 4 and 2 batches, each with its own mean gradient."""

    class Slope(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        @override
        def forward(self, inputs: Tensor) -> Tensor:
            return self.weight * inputs

    model = Slope()
    data = TensorDataset(torch.ones(10, 1), torch.zeros(10, 1))
    trainer = Trainer(model, mean_output, SGD(model.parameters(), lr=1.0), callbacks=[])
    trainer.train(data, num_epochs=1, per_device_batch_size=1, gradient_accumulation_steps=4)
    assert model.weight.item() == -3.0


def test_the_seed_of_the_user_decides_everything() -> None:
    """Runs after the same manual_seed are equal, and two runs in a row see different orders."""
    orders: list[list[float]] = []

    class Order(TrainerCallback):
        @override
        def on_train_step_end(
            self, trainer: AnyTrainer, batch: list[Tensor], batch_output: BatchOutput, **kwargs: Any
        ) -> None:
            orders[-1].extend(batch[0].flatten().tolist())

    data = TensorDataset(torch.arange(16.0).unsqueeze(1), torch.zeros(16, 1))
    for seed in (5, 5, None):
        if seed is not None:
            torch.manual_seed(seed)
        orders.append([])
        model = nn.Linear(1, 1)
        Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.0), callbacks=[Order]).train(data, num_epochs=2)
    assert orders[0] == orders[1] != orders[2]
    assert orders[0][:16] != orders[0][16:]
    assert sorted(orders[0][:16]) == list(range(16))


def test_events_fire_in_the_documented_order() -> None:
    """Two batches in one update, and one evaluation batch, fire each event once, in its place."""
    recorder = RecordingCallback()
    trainer = linear_trainer(recorder)
    trainer.train(
        make_regression(4),
        num_epochs=1,
        eval_dataset=make_regression(2),
        per_device_batch_size=2,
        gradient_accumulation_steps=2,
    )
    step = ["on_train_step_start", "on_train_step_end"]
    assert recorder.events == [
        *("on_init_end", "on_prepare_start", "on_training_run_start", "on_train_epoch_start"),
        *step,
        *step,
        *("on_optimizer_step_end", "on_train_epoch_end"),
        *("on_eval_epoch_start", "on_eval_step_start", "on_eval_step_end", "on_eval_epoch_end"),
        *("on_training_run_epoch_end", "on_training_run_end"),
    ]
    assert [kwargs["step"] for kwargs in recorder.arguments if "step" in kwargs] == [1, 2, 1]
    assert recorder.arguments[recorder.events.index("on_optimizer_step_end")] == {"update": 1}


def test_a_hook_runs_before_the_event_of_its_name() -> None:
    """A callback reads what the method of the same name has prepared."""
    calls: list[str] = []

    class Hooked(Trainer):
        @override
        def train_epoch_end(self) -> None:
            calls.append("hook")
            self.run_history.update_metric("prepared", 1.0)

    class Reads(TrainerCallback):
        @override
        def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            calls.append("event")
            assert set(trainer.run_history.get_metric_names()) == {"prepared", "train_loss_epoch"}

    model = nn.Linear(4, 1)
    Hooked(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[Reads]).train(
        make_regression(8), num_epochs=1
    )
    assert calls == ["hook", "event"]


def test_the_model_is_the_users_own_between_runs() -> None:
    """A trainer trains again and again on the same module; nothing stays wrapped, patched or filled with gradients."""
    trainer = linear_trainer()
    model = trainer.model
    attributes = set(vars(model))
    for _ in range(3):
        trainer.train(make_regression(8), num_epochs=1)
        trainer.evaluate(make_regression(8))
    assert trainer.model is model
    assert set(vars(model)) == attributes
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_second_run_goes_on_with_the_history_when_asked_to() -> None:
    """Epochs, updates and samples count on with reset_run_history=False, and start anew without it."""
    trainer = linear_trainer()
    trainer.train(make_regression(8), num_epochs=2, per_device_batch_size=4)
    trainer.train(make_regression(16), num_epochs=1, per_device_batch_size=4, reset_run_history=False)
    history = trainer.run_history
    assert isinstance(history, InMemoryRunHistory)
    rows = history.to_dict()
    assert rows["epoch"] == [1, 2, 3]
    assert rows["update"] == [2, 4, 8]
    assert rows["samples"] == [8, 16, 32]
    assert trainer.run_history.current_epoch == 4
    trainer.train(make_regression(8), num_epochs=1)
    assert len(list(trainer.run_history.get_metric_values("train_loss_epoch"))) == 1


def test_max_num_train_steps_counts_updates_and_overrides_epochs() -> None:
    """The run ends at exactly that update, in the middle of an epoch, and the schedule spans what really ran."""
    recorder = RecordingCallback()
    trainer = linear_trainer(recorder)
    trainer.train(make_regression(20), num_epochs=9, per_device_batch_size=4, max_num_train_steps=7)
    assert recorder.events.count("on_optimizer_step_end") == 7
    assert recorder.events.count("on_train_epoch_end") == 2
    assert recorder.events[-3:] == ["on_train_epoch_end", "on_training_run_epoch_end", "on_training_run_end"]
    assert (trainer.run_config.num_epochs, trainer.run_config.max_num_train_steps) == (2, 7)


def test_placeholders_span_the_run() -> None:
    """A OneCycleLR of placeholders ends exactly with the last update."""
    trainer = linear_trainer()
    trainer.train(
        make_regression(20),
        num_epochs=3,
        per_device_batch_size=4,
        gradient_accumulation_steps=2,
        create_scheduler_fn=partial(
            OneCycleLR,
            max_lr=0.5,
            total_steps=TrainerPlaceholderValues.NUM_EPOCHS * TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH + 1,
        ),
    )
    assert trainer.num_updates_completed == 9
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.5 / 25 / 1e4)


def test_gradients_are_clipped_once_per_update() -> None:
    """Clipping sees the gradient of the whole update, by value and by norm, and tells the norm it measured."""
    norms: list[float] = []

    class Norms(TrainerCallback):
        @override
        def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
            assert trainer.gradient_norm is not None
            norms.append(trainer.gradient_norm.item())

    data = TensorDataset(torch.ones(4, 4), torch.full((4, 1), 100.0))
    by_norm = linear_trainer(Norms(), lr=1.0)
    before = weights_of(by_norm.model)
    by_norm.train(data, 1, per_device_batch_size=2, gradient_accumulation_steps=2, gradient_clip_norm=0.5)
    assert (weights_of(by_norm.model) - before).norm().item() == pytest.approx(0.5, rel=1e-3)
    assert norms[0] > 100

    by_value = linear_trainer(lr=1.0)
    by_value.train(data, 1, per_device_batch_size=2, gradient_accumulation_steps=2, gradient_clip_value=0.25)
    assert torch.allclose((weights_of(by_value.model) - before).abs(), torch.full((5,), 0.25))


def test_batches_of_another_form_need_the_two_batch_methods_only() -> None:
    """A model that takes a dictionary trains and is evaluated with its own step."""

    class Dictionaries(Dataset[dict[str, Tensor]]):
        def __len__(self) -> int:
            return 12

        @override
        def __getitem__(self, index: int) -> dict[str, Tensor]:
            return {"inputs": torch.ones(4) * index, "labels": torch.zeros(1)}

    class DictTrainer(Trainer[nn.Linear, dict[str, Tensor], BatchOutput]):
        @override
        def calculate_train_batch_loss(self, batch: dict[str, Tensor]) -> BatchOutput:
            outputs = self.model(batch["inputs"])
            loss = nn.functional.mse_loss(outputs, batch["labels"])
            return {"loss": loss, "model_outputs": outputs, "batch_size": len(batch["labels"])}

        @override
        def calculate_eval_batch_loss(self, batch: dict[str, Tensor]) -> BatchOutput:
            return self.calculate_train_batch_loss(batch)

    model = nn.Linear(4, 1)
    trainer = DictTrainer(model, None, SGD(model.parameters(), lr=1e-3), callbacks=[])
    kwargs = {"num_workers": 0}
    trainer.train(Dictionaries(), 2, Dictionaries(), 4, train_dataloader_kwargs=kwargs, eval_dataloader_kwargs=kwargs)
    losses = list(trainer.run_history.get_metric_values("eval_loss_epoch"))
    assert losses[1] < losses[0]


def test_the_reported_loss_is_the_mean_over_samples() -> None:
    """Batches of different sizes weigh by their samples, and accumulation does not shrink what is reported."""
    trainer = linear_trainer(lr=0.0)
    data = make_regression(10)
    expected = nn.functional.mse_loss(trainer.model(data.tensors[0]), data.tensors[1]).item()
    trainer.train(data, 1, data, per_device_batch_size=4, gradient_accumulation_steps=3)
    assert trainer.run_history.get_latest_metric("train_loss_epoch") == pytest.approx(expected, rel=1e-5)
    assert trainer.run_history.get_latest_metric("eval_loss_epoch") == pytest.approx(expected, rel=1e-5)


def test_evaluating_alone_records_its_loss_and_changes_nothing() -> None:
    """evaluate() needs no optimizer, records evaluation_loss, and leaves weights and modes as they were."""
    model = TinyClassifier(batch_norm=True)
    before = copy.deepcopy(model.state_dict())
    trainer = Trainer(model, nn.CrossEntropyLoss(), None, callbacks=[])
    trainer.evaluate(make_classification(20), per_device_batch_size=8)
    assert list(trainer.run_history.get_metric_names()) == ["evaluation_loss"]
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.runs_on("one_process", "two_ranks")
def test_an_evaluation_returns_its_metrics() -> None:
    """The loss, what steps logged and what callbacks recorded meanwhile; nothing of the training before."""

    class Logging(Trainer[nn.Linear]):
        @override
        def calculate_eval_batch_loss(self, batch: Any) -> Any:
            self.log("half", 0.5)
            return super().calculate_eval_batch_loss(batch)

    class Record(TrainerCallback):
        @override
        def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            trainer.run_history.update_metric("evaluation_name", "not a number")
            trainer.run_history.update_metric("evaluation_steps", len(trainer.eval_dataloader or ()))

    model = nn.Linear(4, 1)
    trainer = Logging(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), [Record])
    trainer.train(make_regression(8), 1)
    for reset_run_history in (False, True):
        metrics = trainer.evaluate(make_regression(20), per_device_batch_size=2, reset_run_history=reset_run_history)
        steps = 20 / 2 / trainer.num_processes
        loss = trainer.run_history.get_latest_metric("evaluation_loss")
        assert metrics == {"evaluation_half": 0.5, "evaluation_loss": loss, "evaluation_steps": steps}


def test_an_evaluation_has_the_batch_size_of_the_run_before() -> None:
    """What is not said again stays: also one that was passed to the loader; in the first run it is 8."""
    trainer, data = linear_trainer(), make_regression(64)

    def batch_size(**kwargs: Any) -> int:
        trainer.evaluate(data, **kwargs)
        return trainer.run_config.eval_per_device_batch_size

    assert batch_size() == 8
    trainer.train(data, 1, per_device_batch_size=16)
    assert batch_size() == 16
    assert batch_size(per_device_batch_size=8) == 8
    trainer.train(data, 1, data, eval_dataloader_kwargs={"batch_size": 32})
    assert batch_size() == 32
    assert batch_size() == 32


def test_a_trainer_and_its_history_say_what_they_are() -> None:
    """Where they are printed, as in a notebook or a debugger."""
    trainer = linear_trainer()
    assert repr(trainer) == "<Trainer of Linear with SGD: 0 epochs and 0 updates completed>"
    assert repr(trainer.run_history) == "<InMemoryRunHistory in epoch 1: nothing recorded>"
    trainer.train(make_regression(16), 2)
    assert repr(trainer) == "<Trainer of Linear with SGD: 2 epochs and 4 updates completed>"
    assert re.fullmatch(r"<InMemoryRunHistory in epoch 3: train_loss_epoch=[\d.e-]+>", repr(trainer.run_history))
    assert repr(Trainer(nn.Identity(), None, None, [])).startswith("<Trainer of Identity with no optimizer: ")


def test_an_evaluation_in_mid_epoch_leaves_training_as_it_was() -> None:
    """Modes, including those of parts that the user keeps in evaluation mode, and the training loss come back."""

    class FrozenNorm(Trainer[TinyClassifier]):
        @override
        def train_epoch_start(self) -> None:
            super().train_epoch_start()
            self.model.layers[1].eval()

    class EvaluatesAtTwo(TrainerCallback):
        @override
        def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
            if update == 2:
                modes = [module.training for module in trainer.model.modules()]
                trainer.run_evaluation_epoch(is_intermediate=True)
                assert [module.training for module in trainer.model.modules()] == modes
                assert modes.count(False) == 1

    losses: list[Any] = []
    for callbacks in ([], [EvaluatesAtTwo]):
        torch.manual_seed(1)
        model = TinyClassifier(batch_norm=True)
        trainer = FrozenNorm(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks=callbacks)
        trainer.train(make_classification(32), 1, make_classification(8), per_device_batch_size=8)
        losses.append(trainer.run_history.get_latest_metric("train_loss_epoch"))
    assert losses[0] == losses[1]


def test_limiting_batches_limits_what_schedules_count() -> None:
    """The callback, the context manager and the environment variable run the first batches of each epoch only."""
    recorder = RecordingCallback()
    limited = linear_trainer(LimitBatchesCallback(2), recorder)
    limited.train(make_regression(20), 2, make_regression(20), per_device_batch_size=4)
    assert recorder.events.count("on_train_step_end") == 4
    assert recorder.events.count("on_eval_step_end") == 4
    assert limited.run_config.num_update_steps_per_epoch == 2

    trainer = linear_trainer()
    with LimitBatches(3), pytest.warns(UserWarning, match="limited to 3 batches"):
        trainer.train(make_regression(20), 1, per_device_batch_size=4)
    assert trainer.num_updates_completed == 3
    trainer.train(make_regression(20), 1, per_device_batch_size=4)
    assert trainer.num_updates_completed == 5


def test_a_limited_epoch_that_ends_within_a_group_still_updates() -> None:
    """Two batches of a group of four make an update with the gradient of their own mean."""
    limited = linear_trainer(LimitBatchesCallback(2), dtype=torch.float64)
    large = linear_trainer(LimitBatchesCallback(1), dtype=torch.float64)
    for trainer, batch_size in ((limited, 2), (large, 4)):
        torch.manual_seed(0)
        trainer.train(regression(12), 2, per_device_batch_size=batch_size, gradient_accumulation_steps=4)
    assert limited.num_updates_completed == 2
    assert torch.allclose(weights_of(limited.model), weights_of(large.model), rtol=0, atol=1e-14)


def test_the_default_loaders_are_what_users_read() -> None:
    """The loaders are DataLoaders with the dataset, batch size, device and length that were asked for."""
    trainer = linear_trainer()
    data = make_regression(10)
    trainer.train(data, 1, data, per_device_batch_size=4, eval_dataloader_kwargs={"batch_size": 5})
    train_loader, eval_loader = trainer.train_dataloader, trainer.eval_dataloader
    assert isinstance(train_loader, KeyedDataLoader)
    assert isinstance(eval_loader, DataLoader)
    assert (train_loader.dataset, train_loader.batch_size, len(train_loader)) == (data, 4, 3)
    assert (eval_loader.dataset, eval_loader.batch_size, len(eval_loader)) == (data, 5, 2)
    assert train_loader.device == trainer.device
    assert trainer.run_config.eval_per_device_batch_size == 5


def test_a_sampler_of_the_users_own_is_honoured() -> None:
    """A sampler in the loader's arguments switches the trainer's order off."""
    seen: list[float] = []

    class Seen(TrainerCallback):
        @override
        def on_train_step_end(
            self, trainer: AnyTrainer, batch: list[Tensor], batch_output: BatchOutput, **kwargs: Any
        ) -> None:
            seen.extend(batch[0][:, 0].tolist())

    data = TensorDataset(torch.arange(6.0).unsqueeze(1).expand(6, 4), torch.zeros(6, 1))
    sampler = WeightedRandomSampler([0.0, 0.0, 1.0, 0.0, 0.0, 0.0], num_samples=9)
    trainer = linear_trainer(Seen(), lr=0.0)
    trainer.train(data, 1, per_device_batch_size=3, train_dataloader_kwargs={"sampler": sampler, "num_workers": 0})
    assert seen == [2.0] * 9


def test_any_iterable_with_a_length_is_a_loader() -> None:
    """create_train_dataloader may return a list of batches; each of them is trained on."""

    class FromList(Trainer):
        @override
        def create_train_dataloader(self, batch_size: int, train_dl_kwargs: dict[str, Any] | None = None) -> Any:
            return [(torch.ones(batch_size, 4), torch.zeros(batch_size, 1))] * 5

    model = nn.Linear(4, 1)
    trainer = FromList(model, nn.MSELoss(), SGD(model.parameters(), lr=0.01), callbacks=[])
    trainer.train(make_regression(1), 2, per_device_batch_size=3, gradient_accumulation_steps=2)
    assert trainer.num_updates_completed == 6
    assert trainer.run_history.clock.samples == 30


def test_an_iterable_dataset_with_a_length_trains() -> None:
    """A dataset that can only be iterated goes through a plain DataLoader."""

    class Stream(IterableDataset[tuple[Tensor, Tensor]]):
        def __len__(self) -> int:
            return 10

        @override
        def __iter__(self) -> Any:
            return iter([(torch.ones(4), torch.zeros(1))] * 10)

    trainer = linear_trainer(lr=0.01)
    trainer.train(Stream(), 2, per_device_batch_size=4, train_dataloader_kwargs={"num_workers": 0})
    assert trainer.num_updates_completed == 6


def test_an_optimizer_of_other_parameters_is_refused() -> None:
    """An optimizer that was made before the model was replaced would train nothing."""
    trainer = Trainer(nn.Linear(4, 1), nn.MSELoss(), SGD(nn.Linear(4, 1).parameters(), lr=0.1), callbacks=[])
    with pytest.raises(ConfigurationError, match="none of the model's parameters"):
        trainer.train(make_regression(8), 1)


def test_training_learns() -> None:
    """A classifier on separable clusters reaches a low loss with the default settings of the loop."""
    torch.manual_seed(0)
    model = TinyClassifier()
    trainer = Trainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks=[])
    trainer.train(make_classification(120), 15, make_classification(60, seed=0))
    assert float(trainer.run_history.get_latest_metric("eval_loss_epoch")) < 0.2
    assert math.isfinite(float(trainer.run_history.get_latest_metric("train_loss_epoch")))


def test_a_plain_loader_with_an_uneven_last_batch_weighs_what_it_holds() -> None:
    """A DataLoader of the user's own tells its sizes by its sampler: accumulated batches of 4 and 2 are one of 6."""

    class Plain(Trainer[nn.Linear]):
        @override
        def create_train_dataloader(self, batch_size: int, train_dl_kwargs: dict[str, Any] | None = None) -> Any:
            return DataLoader(self.train_dataset, batch_size=batch_size)

    weights: list[Tensor] = []
    for batch_size, accumulation in ((6, 1), (4, 2)):
        model = linear_trainer(dtype=torch.float64).model
        trainer = Plain(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[])
        trainer.train(regression(6), 3, per_device_batch_size=batch_size, gradient_accumulation_steps=accumulation)
        assert trainer.num_updates_completed == 3
        weights.append(weights_of(model))
    assert torch.allclose(weights[0], weights[1], rtol=0, atol=1e-14)
