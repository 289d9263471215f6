"""Runs on two ranks with synchronised batch norm: they train as one process does that has the batches of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import SequentialSampler, TensorDataset
from typing_extensions import override

from pa_callbacks_extra import ConvertSyncBatchNormCallback, ModelEmaCallback
from pa_core import (
    AnyTrainer,
    ConfigurationError,
    Run,
    StepBasedEvaluationCallback,
    StopTrainingError,
    Trainer,
    TrainerCallback,
)
from pa_core._tensors import whole_tensor
from pa_core.testing import TinyClassifier, make_classification
from tests.launching import Launch
from tests.support.pa_callbacks_extra.synchronised_runs import (
    BATCH_SIZE,
    GLOBAL_BATCH,
    make_data,
    make_model,
    make_trainer,
    require_trained_as,
    sgd,
    train,
    train_on_one_process,
)


@pytest.mark.runs_on("two_ranks")
@pytest.mark.parametrize("accumulation", [1, 2, 3])
@pytest.mark.parametrize("last_batch", range(GLOBAL_BATCH))
def test_two_ranks_train_as_one_process(last_batch: int, accumulation: int) -> None:
    """Whatever the size of the last batch, weights and statistics are those of one process with the whole batches."""
    data = make_data(2 * GLOBAL_BATCH + last_batch)
    trainer = make_trainer()

    train(trainer, data, gradient_accumulation_steps=accumulation)

    require_trained_as(trainer, train_on_one_process(data, accumulation))


@pytest.mark.runs_on("two_ranks")
def test_an_epoch_may_have_fewer_samples_than_a_batch() -> None:
    """Where the first step of a run is one without a sample for the second rank, no rank waits."""
    data = make_data(2)
    trainer = make_trainer()

    train(trainer, data)

    require_trained_as(trainer, train_on_one_process(data, accumulation=1))


@pytest.mark.runs_on("two_ranks")
@pytest.mark.parametrize("samples", [2, 2 * GLOBAL_BATCH + 2, 2 * GLOBAL_BATCH + 5])
def test_a_loop_of_ones_own_trains_as_one_process(samples: int) -> None:
    """A rank without a sample calls the model all the same, with a batch that leaves no trace in the statistics."""
    data, model = make_data(samples), make_model()
    run = Run(
        model,
        sgd(model),
        data,
        num_epochs=2,
        per_device_batch_size=BATCH_SIZE,
        gradient_accumulation_steps=2,
        train_dataloader_kwargs={"shuffle": False},
        callbacks=[ConvertSyncBatchNormCallback],
    )
    with run:
        for inputs, expected in run.batches():
            run.backward(mse_loss(model(inputs), expected))
            run.step()

    require_trained_as(run, train_on_one_process(data, accumulation=2))


@pytest.mark.runs_on("two_ranks")
@pytest.mark.parametrize("last_batch", [0, 2, 5])
def test_a_sharded_model_trains_as_one_process(last_batch: int) -> None:
    """Also where the second rank calls the model with a batch of the first one, having no sample of its own."""
    from torch.distributed.fsdp import fully_shard

    data, model = make_data(2 * GLOBAL_BATCH + last_batch), make_model()
    for module in (model[0], model[3], model):
        fully_shard(module)
    trainer = make_trainer(model=model)

    train(trainer, data, gradient_accumulation_steps=2)

    expected = train_on_one_process(data, accumulation=2)
    trained = {name: whole_tensor(value) for name, value in trainer.get_model().state_dict().items()}
    of_others = () if trainer.is_main_process else ("num_batches_tracked", "running_mean", "running_var")
    for name, value in expected.state_dict().items():
        if not name.endswith(of_others):
            torch.testing.assert_close(trained[name], value, rtol=0, atol=1e-12)
    assert [type(module).__name__.removeprefix("FSDP") for module in model.modules()] == [
        type(module).__name__ for module in expected.modules()
    ]


@pytest.mark.runs_on("two_ranks")
def test_evaluation_in_the_middle_of_an_epoch_changes_nothing() -> None:
    """Evaluations use the common statistics, each rank by itself, and the training goes on as before."""
    data = make_data(3 * GLOBAL_BATCH + 2)
    trainer = make_trainer(StepBasedEvaluationCallback(1))

    train(trainer, data, eval_dataset=make_data(7))

    expected = train_on_one_process(data, accumulation=1)
    require_trained_as(trainer, expected)
    assert len(list(trainer.run_history.get_metric_values("intermediate_eval_loss_epoch"))) == 6
    images, targets = make_data(7).tensors
    loss = mse_loss(expected.eval()(images), targets).item()
    assert trainer.run_history.get_latest_metric("eval_loss_epoch") == pytest.approx(loss, abs=1e-12)
    trainer.evaluate()
    assert trainer.run_history.get_latest_metric("evaluation_loss") == pytest.approx(loss, abs=1e-12)
    require_trained_as(trainer, expected.train())


@pytest.mark.runs_on("two_ranks")
@pytest.mark.parametrize("average_first", [True, False])
def test_averages_of_synchronised_models_have_the_users_own_layers(shared_tmp_path: Path, average_first: bool) -> None:
    """An average beside synchronised batch norm, in either order, is one of plain layers, equal on both ranks."""
    data = make_data(3 * GLOBAL_BATCH + 2)
    average = ModelEmaCallback(0.0, save_path=shared_tmp_path / "ema.pt")
    callbacks: list[TrainerCallback] = [average, ConvertSyncBatchNormCallback()]
    model = make_model()
    trainer = Trainer(model, nn.MSELoss(), sgd(model), callbacks=callbacks if average_first else callbacks[::-1])

    train(trainer, data, eval_dataset=make_data(7))

    expected = train_on_one_process(data, accumulation=1)
    require_trained_as(trainer, expected)
    torch.testing.assert_close(dict(average.ema.module.state_dict()), dict(expected.state_dict()), rtol=0, atol=1e-12)
    assert [type(module) for module in average.ema.module.modules()] == [type(module) for module in expected.modules()]
    losses = [trainer.run_history.get_latest_metric(f"{prefix}eval_loss_epoch") for prefix in ("", "ema_model_")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-12)


@pytest.mark.runs_on("two_ranks")
def test_a_compiled_model_is_synchronised() -> None:
    """A model that is compiled trains as one that is not."""
    data = make_data(2 * GLOBAL_BATCH + 3)
    compiled = cast("nn.Module", torch.compile(make_model(), backend="aot_eager"))
    trainer = make_trainer(model=compiled)

    train(trainer, data)

    expected = train_on_one_process(data, accumulation=1)
    torch.testing.assert_close(list(compiled.parameters()), list(expected.parameters()), rtol=0, atol=1e-12)


@pytest.mark.runs_on("two_ranks")
@pytest.mark.filterwarnings("ignore:.*is split over the processes by accelerate")
def test_with_a_sampler_of_the_users_own_all_ranks_take_part() -> None:
    """Where accelerate splits the batches, each step reaches both ranks, and they agree."""
    data = make_data(2 * GLOBAL_BATCH)
    trainer = make_trainer()

    train(trainer, data, train_dataloader_kwargs={"sampler": SequentialSampler(data)})

    state = torch.cat([value.double().flatten() for value in trainer.model.state_dict().values()])
    assert torch.equal(*trainer.gather(state[None]))


class NormaliseAfterEpochs(TrainerCallback):
    """Calls the model in training mode after each epoch, with a part of a batch on each rank."""

    def __init__(self) -> None:
        self.differences: list[float] = []

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        images = make_data(GLOBAL_BATCH).tensors[0]
        part = 0 if trainer.run_config.is_world_process_zero else 1
        plain = make_model()
        plain.load_state_dict(trainer.get_model().state_dict())
        with torch.no_grad():
            difference = trainer.get_model()(images.chunk(2)[part]) - plain(images).chunk(2)[part]
        self.differences.append(difference.abs().max().item())


@pytest.mark.runs_on("two_ranks")
def test_all_ranks_take_part_again_after_an_epoch_that_ended_on_one() -> None:
    """What is computed in training mode between epochs is normalised over all ranks, whatever the last step was."""
    compare = NormaliseAfterEpochs()

    train(make_trainer(compare), make_data(GLOBAL_BATCH + 2))

    assert compare.differences == pytest.approx([0, 0], abs=1e-12)


class Fail(TrainerCallback):
    """Raises an error in the second epoch."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        layers = [type(module).__name__ for module in trainer.get_model().modules()]
        assert layers.count("SynchronisedBatchNorm2d") == 2 * (trainer.run_config.num_processes - 1)
        if trainer.run_history.current_epoch == 2:
            raise self.error


@pytest.mark.runs_on("one_process", "two_ranks", "bf16")
@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt(), StopTrainingError("enough")])
def test_the_model_has_its_own_layers_again_however_a_run_ends(error: BaseException) -> None:
    """After an exception, the layers are of their own class, and the next run converts them again."""
    model = make_model().float()
    trainer = make_trainer(Fail(error), model=model)
    data = TensorDataset(*(tensor.float() for tensor in make_data(2 * GLOBAL_BATCH).tensors))
    before = [(module, type(module), set(vars(module))) for module in model.modules()]

    for _ in range(2):
        try:
            train(trainer, data)
        except type(error) as raised:
            assert raised is error  # noqa: PT017 - not every error leaves the run
        assert [(module, type(module), set(vars(module))) for module in model.modules()] == before


@pytest.mark.runs_on("one_process", "two_ranks")
def test_the_model_has_its_own_layers_again_after_predictions_and_evaluations() -> None:
    """What is exported after a prediction is a model of torch's layers."""
    model = make_model().float()
    trainer = make_trainer(model=model)
    data = TensorDataset(*(tensor.float() for tensor in make_data(2 * GLOBAL_BATCH).tensors))
    before = [type(module) for module in model.modules()]
    list(trainer.predict(data))
    assert [type(module) for module in model.modules()] == before
    trainer.evaluate(data)
    assert [type(module) for module in model.modules()] == before


@pytest.mark.runs_on("one_process", "bf16")
def test_on_one_process_nothing_is_converted() -> None:
    """A run on one process is, to the last bit, the run without the callback."""

    def state_after(*callbacks: TrainerCallback) -> dict[str, Tensor]:
        torch.default_generator.manual_seed(0)
        model = TinyClassifier(batch_norm=True)
        trainer = Trainer(model, nn.CrossEntropyLoss(), sgd(model), callbacks=callbacks)
        trainer.train(make_classification(20), 2)
        return dict(model.state_dict())

    torch.testing.assert_close(state_after(ConvertSyncBatchNormCallback()), state_after(), rtol=0, atol=0)


@pytest.mark.runs_on("one_process", "two_ranks")
def test_a_reproducible_run_refuses_statistics_of_all_processes() -> None:
    """Also on one process, where nothing would be converted: the same script is to run on several."""
    model = TinyClassifier(batch_norm=True)
    callbacks = [ConvertSyncBatchNormCallback()]
    trainer = Trainer(model, nn.CrossEntropyLoss(), sgd(model), callbacks, reproducible="any_processes")
    with pytest.raises(ConfigurationError, match=r"ConvertSyncBatchNormCallback.* reproducible"):
        trainer.train(make_classification(20), 1, samples_per_update=12)


class Squared(nn.BatchNorm2d):
    """A layer with a forward of its own."""

    @override
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).square()


@pytest.mark.runs_on("two_ranks")
def test_layers_with_a_forward_of_their_own_are_refused() -> None:
    """What such a layer does beside normalising would be lost: it is named, and no layer is converted."""
    model = make_model()
    model[4] = Squared(4).double()
    types = [type(module) for module in model.modules()]

    with pytest.raises(RuntimeError, match=r"a layer of class Squared.*leave ConvertSyncBatchNormCallback out"):
        train(make_trainer(model=model), make_data(GLOBAL_BATCH))

    assert [type(module) for module in model.modules()] == types


THREE_RANKS = """
from tests.support.pa_callbacks_extra import synchronised_runs as tests
import torch

tests.GLOBAL_BATCH = 3 * tests.BATCH_SIZE
for last_batch in range(tests.GLOBAL_BATCH):
    data = tests.make_data(tests.GLOBAL_BATCH + last_batch)
    trainer = tests.make_trainer()
    tests.train(trainer, data)
    tests.require_trained_as(trainer, tests.train_on_one_process(data, accumulation=1))
trainer.print("all sizes of the last batch on", trainer.run_config.num_processes, "ranks")
"""


def test_three_ranks_train_as_one_process(launch: Launch) -> None:
    """A last batch that reaches one, two or all of three ranks is normalised over these."""
    root = str(Path(__file__).parents[3])
    launched = launch(f"import sys; sys.path.insert(0, {root!r})\n{THREE_RANKS}", ranks=3)
    assert launched.status == 0
    assert "all sizes of the last batch on 3 ranks" in launched.output
