"""``per_device_batch_size="fit"``: updates stay as they are, and batches are as large as the memory allows.

These tests also try what `docs/speed-and-memory.md` shows of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.data import DataLoader
from typing_extensions import override

from pa_core import (
    ConfigurationError,
    LimitBatchesCallback,
    MoveModulesToDeviceCallback,
    Run,
    SaveTrainingStateCallback,
    SmallerBatchNeeded,
    Trainer,
    UnsupportedConfigurationError,
    distributed,
)
from pa_core.data import KeyedDataLoader
from pa_core.testing import make_regression
from tests.support.callbacks import CallAt
from tests.support.held_state import OTHERS, PLACES, WAYS, make
from tests.support.loops import in_double, network, optimizer_of, train_by_hand, updates_of

DATA = in_double(make_regression(50))
NOTE = "per_device_batch_size_on_cpu.json"
runs_on_all = pytest.mark.runs_on("one_process", "two_ranks")


class Scarce(nn.Module):
    """A model in a memory that holds the activations of so many samples.

    Attributes:
        most: How many.
        seen: How many each call in training had.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.layers = network()
        self.most = most
        self.seen: list[int] = []

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        """Fail as an accelerator does."""
        if len(inputs) > self.most:
            raise torch.OutOfMemoryError(f"{len(inputs)} samples")
        if self.training:
            self.seen.append(len(inputs))
        outputs: Tensor = self.layers(inputs)
        return outputs


def trainer_of(model: nn.Module, *callbacks: Any) -> Trainer[nn.Module]:
    """A trainer in double precision."""
    return Trainer(model, nn.MSELoss(), optimizer_of("sgd", model), callbacks)


def fit(trainer: Trainer[nn.Module], epochs: int = 2, **options: Any) -> None:
    """Train with updates of 20 samples in batches that fit."""
    arguments: dict[str, Any] = {"per_device_batch_size": "fit", "samples_per_update": 20, **options}
    trainer.train(DATA, epochs, **arguments)


def shrink(model: Scarce, most: int) -> CallAt:
    """The memory is smaller from the first update on."""
    return CallAt("on_optimizer_step_end", lambda _: setattr(model, "most", most))


def assert_trained_by_hand(trainer: Trainer[nn.Module], epochs: int = 2) -> None:
    """With updates of 20 samples, up to the order in which sums are made."""
    model = network()
    updates = updates_of(DATA, trainer.run_config.seed, epochs, 20)
    train_by_hand(model, optimizer_of("sgd", model), updates)
    layers = trainer.get_model().get_submodule("layers")
    torch.testing.assert_close(layers.state_dict(), model.state_dict(), rtol=1e-12, atol=1e-13)


@runs_on_all
@pytest.mark.parametrize(("most", "fits"), [(1, 1), (7, 4), (8, 8), (100, 20)])
def test_batches_are_as_large_as_the_memory_allows(most: int, fits: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A power of two, or all of an update; evaluations have such batches too, and updates are those of any size."""
    trainer = trainer_of(Scarce(most))
    fit(trainer, eval_dataset=DATA)
    config = trainer.run_config
    fits = min(fits, 20 // config.num_processes)
    assert config.train_per_device_batch_size in (fits, -(-20 // (config.gradient_accumulation_steps)))
    assert config.eval_per_device_batch_size == fits
    assert config.train_dl_kwargs["batch_size"] == fits
    assert config.gradient_accumulation_steps == -(-20 // (fits * config.num_processes))
    assert_trained_by_hand(trainer)
    if distributed.rank() == 0:
        assert f"Computing {fits} samples at a time" in capsys.readouterr().out


def test_a_cpu_is_not_filled_until_the_system_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is saved for the backward pass takes a quarter of the free memory at most; no test can fill a real one."""
    saved: list[int] = []

    def count(tensor: Tensor) -> Tensor:
        saved.append(tensor.nbytes)
        return tensor

    inputs, targets = DATA[:4]
    with saved_tensors_hooks(count, lambda tensor: tensor):
        nn.functional.mse_loss(network()(inputs), targets)
    of_eight = 2 * sum(saved)
    for free, fits in ((4 * of_eight, 8), (4 * of_eight - 1, 4)):
        monkeypatch.setattr("pa_core.engine.fitting.free_memory", lambda free=free: free)
        trainer = trainer_of(network())
        fit(trainer, 1)
        assert trainer.run_config.train_per_device_batch_size == fits


@pytest.mark.runs_on("two_ranks")
@pytest.mark.parametrize(("most", "shares"), [((100, 4), (17, 3)), ((3, 100), (2, 18))])
def test_unlike_devices_share_a_step_in_proportion(most: tuple[int, int], shares: tuple[int, int]) -> None:
    """So that the larger one does not wait for the other."""
    model = Scarce(most[distributed.rank()])
    trainer = trainer_of(model)
    fit(trainer, eval_dataset=DATA)
    assert model.seen[-3] == shares[distributed.rank()]
    assert trainer.run_config.eval_per_device_batch_size <= min(most)
    assert_trained_by_hand(trainer)


@runs_on_all
def test_trying_leaves_no_trace() -> None:
    """A step that counts, logs, draws and has statistics is as with a number."""

    class Drawing(Trainer[nn.Module]):
        calls = 0

        @override
        def calculate_train_batch_loss(self, batch: Any) -> Any:
            self.calls += 1
            self.log("noise", torch.rand(()))
            return super().calculate_train_batch_loss(batch)

    results: list[dict[str, Any]] = []
    for size in ("fit", 50):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(), nn.Linear(6, 1)).double()
        trainer = Drawing(model, nn.MSELoss(), optimizer_of("sgd", model), [])
        trainer.train(DATA, 2, per_device_batch_size=size, samples_per_update=50)
        history = trainer.run_history
        noise = history.get_metric_values("train_noise_epoch")
        results.append({**model.state_dict(), "noise": torch.tensor([*noise]), "calls": torch.tensor(trainer.calls)})
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


def test_evaluations_may_have_a_size_of_their_own() -> None:
    """By the arguments of their loader, or as a loader that stays as it is."""
    loader = KeyedDataLoader(DATA, 3, split="eval")
    for given, options in ((DATA, {"batch_size": 3}), (loader, None)):
        trainer = trainer_of(network())
        fit(trainer, 1, eval_dataset=given, eval_dataloader_kwargs=options)
        assert trainer.run_config.eval_per_device_batch_size == 3
    assert loader.batch_size == 3


def test_a_step_is_tried_with_what_a_run_begins_with() -> None:
    """``training_run_start`` is called before, and modules are moved, as the step may need them."""

    class Metric(nn.Module):
        is_moved = False

        @override
        def to(self, *args: Any, **kwargs: Any) -> Any:
            self.is_moved = True
            return super().to(*args, **kwargs)

    class Measuring(Trainer[nn.Module]):
        @override
        def training_run_start(self) -> None:
            self.metric = Metric()

        @override
        def calculate_train_batch_loss(self, batch: Any) -> Any:
            assert self.metric.is_moved
            assert self.get_model().training
            return super().calculate_train_batch_loss(batch)

    model = network().eval()
    trainer = Measuring(model, nn.MSELoss(), optimizer_of("sgd", model), [MoveModulesToDeviceCallback])
    fit(trainer, 1)
    assert trainer.num_updates_completed == 3


def test_memory_that_runs_out_is_noted_for_the_next_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run ends with status 75, and the next start continues with half as many, and says so."""
    model = Scarce(20)

    def trainer_that_saves() -> Trainer[nn.Module]:
        return trainer_of(model, SaveTrainingStateCallback(tmp_path, save_every_n_steps=1), shrink(model, 15))

    options: dict[str, Any] = {"resume_from": tmp_path, "resume_missing": "start"}
    with pytest.raises(SmallerBatchNeeded) as ended:
        fit(trainer_that_saves(), **options)
    assert ended.value.code == 75
    assert isinstance(ended.value.__cause__, torch.OutOfMemoryError)
    assert "20 samples at a time do not fit into the memory of cpu; 10 may" in capsys.readouterr().err
    assert json.loads((tmp_path / NOTE).read_text()) == {"fits": 10, "does_not_fit": 20}

    model.layers = network()
    again = trainer_that_saves()
    fit(again, **options)
    said = f"Computing 10 samples at a time, because more did not fit before, according to {tmp_path / NOTE}"
    assert said in capsys.readouterr().out
    assert again.num_updates_completed == 6
    assert_trained_by_hand(again)


def test_an_evaluation_that_does_not_fit_makes_batches_smaller_at_the_next_start(tmp_path: Path) -> None:
    """It is not tried before: the run ends as if a batch of the training had not fitted."""

    class MoreInEvaluation(Scarce):
        @override
        def forward(self, inputs: Tensor) -> Tensor:
            self.most = 20 if self.training else 15
            return super().forward(inputs)

    options: dict[str, Any] = {"resume_from": tmp_path, "resume_missing": "start", "eval_dataset": DATA}
    states = SaveTrainingStateCallback(tmp_path, save_every_n_steps=1)
    with pytest.raises(SmallerBatchNeeded):
        fit(trainer_of(MoreInEvaluation(20), states), **options)
    again = trainer_of(MoreInEvaluation(20), states)
    fit(again, **options)
    assert (again.run_config.eval_per_device_batch_size, again.num_updates_completed) == (10, 6)


@pytest.mark.parametrize("content", ['{"fits": ', '{"fits": 0}', "{}", "8"])
def test_a_note_that_says_nothing_is_an_error(content: str, tmp_path: Path) -> None:
    """It names the file, and that it can be removed."""
    (tmp_path / NOTE).write_text(content)
    trainer = trainer_of(network(), SaveTrainingStateCallback(tmp_path))
    with pytest.raises(ConfigurationError, match=rf"{NOTE} does not contain a number of samples(.|\n)*Remove the file"):
        fit(trainer, 1)


def test_a_loop_of_the_users_begins_with_the_largest(tmp_path: Path) -> None:
    """As its steps are in the script, nothing is tried: it ends until it fits."""
    starts = 0
    run, model, sizes = None, Scarce(6), [0]
    while run is None or run.num_updates_completed < 6:
        starts += 1
        model = Scarce(6)
        states = SaveTrainingStateCallback(tmp_path)
        try:
            with Run(
                model,
                optimizer_of("sgd", model),
                DATA,
                num_epochs=2,
                per_device_batch_size="fit",
                samples_per_update=20,
                callbacks=[states],
            ) as run:
                for inputs, targets in run.batches():
                    run.backward(nn.functional.mse_loss(model(inputs), targets))
                    run.step()
                sizes = [len(inputs) for inputs, _ in run.evaluation_batches(DATA) if run.log("n", 1.0) is None]
        except SmallerBatchNeeded:
            assert starts < 4
    assert starts == 3
    assert (max(model.seen), max(sizes)) == (5, 5)


@pytest.mark.parametrize(
    ("before", "after", "saves", "said"),
    [
        (20, 15, False, "Pass per_device_batch_size=10; or resume from the states"),
        (1, 0, True, "Not even a single sample at a time fits. Make the sample or the model smaller"),
    ],
)
def test_where_no_smaller_batch_can_be_noted_the_error_is_that_of_the_device(
    before: int, after: int, saves: bool, said: str, tmp_path: Path
) -> None:
    """There is no place for a note, or one sample is the least: it is not turned into a status to try again with."""
    model = Scarce(before)
    states = [SaveTrainingStateCallback(tmp_path)] if saves else []
    with pytest.raises(torch.OutOfMemoryError) as ended:
        fit(trainer_of(model, shrink(model, after), *states))
    assert said in "\n".join(ended.value.__notes__)
    assert not (tmp_path / NOTE).exists()


def test_one_sample_that_does_not_fit_is_an_error() -> None:
    """Before the run, with ways out, and with the error of the device as its cause."""
    with pytest.raises(ConfigurationError, match=r"Not even a single sample fits(.|\n)*bf16(.|\n)*sharding") as ended:
        fit(trainer_of(Scarce(0)))
    assert isinstance(ended.value.__cause__, torch.OutOfMemoryError)
    assert str(ended.value.__cause__) == "1 samples"


def test_other_errors_of_a_step_are_its_own() -> None:
    """They are not taken for a lack of memory, even if larger batches alone raise them."""

    class Strict(nn.Module):
        @override
        def forward(self, inputs: Tensor) -> Tensor:
            if len(inputs) > 4:
                raise RuntimeError("more than four samples")
            return inputs

    model = nn.Sequential(network(), Strict())
    with pytest.raises(RuntimeError, match="more than four samples"):
        fit(trainer_of(model))


@pytest.mark.runs_on("two_ranks")
def test_a_step_that_communicates_cannot_be_tried() -> None:
    """As one process may have run out of memory before, and the other would wait for it."""

    class Gathering(Trainer[nn.Module]):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> Any:
            output = super().calculate_train_batch_loss(batch)
            self.gather(output["loss"].detach())
            return output

    model = network()
    trainer = Gathering(model, nn.MSELoss(), optimizer_of("sgd", model), [])
    with pytest.raises(UnsupportedConfigurationError, match="and this step communicates"):
        fit(trainer)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({}, "pass samples_per_update"),
        ({"per_device_batch_size": "fits"}, "must be \"fit\" or a whole number, got 'fits'"),
        (
            {"samples_per_update": 20, "train_dataloader_kwargs": {"batch_size": 5}},
            "train_dataloader_kwargs has a batch_size",
        ),
        ({"samples_per_update": 20, "train_dataset": DataLoader(DATA, 5)}, "per_device_batch_size=fit has no effect"),
        ({"samples_per_update": 20, "train_dataset": DataLoader(DATA, 5), "eval_dataset": DATA}, "the memory decides"),
        (
            {"train_dataset": KeyedDataLoader(DATA, 5, samples_per_update=20), "samples_per_update": 20},
            "per_device_batch_size=fit has no effect",
        ),
        ({"samples_per_update": 20, "gradient_accumulation_steps": 3}, "Leave gradient_accumulation_steps out"),
        ({"samples_per_update": 20, "callbacks": [LimitBatchesCallback(2)]}, "a limit on batches"),
        ({"samples_per_update": 20, "reproducible": "any_processes"}, "the same batches on all processes"),
    ],
)
def test_what_contradicts_it_is_refused(arguments: dict[str, Any], match: str) -> None:
    """With the way out; a limit counts batches, whose size is not known, and reproducible runs follow from them."""
    model, reproducible = network(), arguments.pop("reproducible", None)
    given: list[Any] = arguments.pop("callbacks", [])
    made = Trainer(model, nn.MSELoss(), optimizer_of("sgd", model), given, reproducible=reproducible)
    train: Any = made.train
    with pytest.raises(UnsupportedConfigurationError if reproducible else ConfigurationError, match=match):
        train(**{"train_dataset": DATA, "num_epochs": 1, "per_device_batch_size": "fit", **arguments})


FITTED = [(way, place) for number, way in enumerate(WAYS) if (place := PLACES[number % len(PLACES)]) != "sampler"]


@pytest.mark.parametrize(
    ("way", "place"),
    [
        *FITTED[::5],
        *((other, "") for other in OTHERS),
        *(pytest.param(*one, marks=pytest.mark.more_cases) for number, one in enumerate(FITTED) if number % 5),
    ],
)
def test_trying_sizes_leaves_whatever_holds_state_as_it_was(way: str, place: str) -> None:
    """The run is the one that is given the size that was found."""
    fitted = make(way, place)
    fitted.arguments |= {"samples_per_update": 8, "per_device_batch_size": "fit"}
    after_trials = fitted.weights_after()
    given = make(way, place)
    given.arguments |= {"samples_per_update": 8, "per_device_batch_size": 8}
    assert given.weights_after() == after_trials
