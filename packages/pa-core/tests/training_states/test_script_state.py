"""What a script keeps beside the parts of its run is resumed too, or named before the first state is relied on."""

from __future__ import annotations

import random
import time
import warnings
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import Subset
from typing_extensions import override

from pa_checkpoint import load
from pa_core import (
    AnyTrainer,
    ConfigurationError,
    Run,
    SaveBestModelCallback,
    SaveTrainingStateCallback,
    TrainerCallback,
)
from pa_core.distributed import num_processes
from tests.support.callbacks import CallAt, CountUpdates
from tests.support.pa_core.training_states import script_states as scripts
from tests.support.pa_core.training_states.small_runs import InterruptAt, Interrupted

IN_EACH_MATRIX = {"teacher", "annealing", "nested", "callback"}
KINDS = [
    pytest.param(kind, marks=() if kind in IN_EACH_MATRIX else pytest.mark.more_cases) for kind in scripts.TRAINERS
]


def some_updates(kind: str, number: int) -> list[int]:
    """Return updates of a run, others for each kind, the same in each test run."""
    return sorted(random.Random(kind).sample(range(2, scripts.NUM_UPDATES), number))


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_script_keeps_is_resumed(kind: str, shared_tmp_path: Path) -> None:
    """Interrupted at any update, a run ends with the weights of an undisturbed one, and nothing is warned of."""
    expected = scripts.train(kind, shared_tmp_path / "whole")
    for update in some_updates(kind, 3 if num_processes() == 1 else 2):
        folder = shared_tmp_path / str(update)
        with pytest.raises(Interrupted):
            scripts.train(kind, folder, InterruptAt("on_train_step_end", update))
        assert scripts.train(kind, folder) == expected, update


def test_what_a_module_counts_is_resumed_in_a_loop_of_ones_own(tmp_path: Path) -> None:
    """A GAN whose discriminator counts its calls ends as an undisturbed one."""
    expected = scripts.train_gan(tmp_path / "whole")
    for update in some_updates("gan", 3):
        folder = tmp_path / str(update)
        with pytest.raises(Interrupted):
            scripts.train_gan(folder, InterruptAt("on_optimizer_step_end", update))
        assert scripts.train_gan(folder) == expected, update


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"train_dataset": scripts.OwnNoise()}, "dataset.generator"),
        ({"train_dataset": scripts.OwnNoise(random.Random(0))}, "dataset.generator"),
        ({"train_dataset": scripts.Transformed()}, "dataset.transform.chance"),
        ({"train_dataset": scripts.Counted()}, "dataset.fetched"),
        ({"train_dataset": scripts.OwnNoise(), "train_dataloader_kwargs": {"num_workers": 1}}, "dataset.generator"),
        ({"train_dataset": scripts.data(), "collate_fn": scripts.DrawsInCollation()}, "collate_fn.generator"),
        ({"train_dataset": scripts.data(), "collate_fn": scripts.SeedsLate()}, "collate_fn.generator"),
        ({"train_dataset": scripts.data(), "collate_fn": scripts.OfMethod().collate}, "collate_fn.__self__.chance"),
        ({"train_dataset": scripts.data(), "collate_fn": scripts.bound_collation()}, "collate_fn.chance"),
        ({"train_dataset": Subset(scripts.OwnNoise(), range(32))}, "dataset.dataset.generator"),
        ({"train_dataset": scripts.MakesLate(), "train_dataloader_kwargs": {"num_workers": 0}}, "dataset.generator"),
        ({"train_dataset": scripts.MakesLate(), "train_dataloader_kwargs": {"num_workers": 1}}, "dataset.generator"),
    ],
)
def test_what_samples_depend_on_is_named(options: dict[str, Any], place: str, tmp_path: Path) -> None:
    """A generator of the dataset's own, a counter or one in a worker is not resumed, which is said once, at a save."""
    trainer = scripts.Scripted(SaveTrainingStateCallback(tmp_path, save_every_n_steps=2))
    with pytest.warns(UserWarning, match="Samples depend on") as warned:
        trainer.train(num_epochs=2, per_device_batch_size=4, **options)
    (said,) = [str(one.message) for one in warned]
    assert f"Samples depend on {place}, which" in said


@pytest.mark.parametrize("dataset", [scripts.SeededEach, scripts.SeededInPlace, scripts.CountsAlone])
@pytest.mark.parametrize("workers", [0, 1])
def test_what_samples_do_not_depend_on_is_not_named(dataset: Any, workers: int, tmp_path: Path) -> None:
    """A generator that is seeded for each sample, what is counted and what is kept are nobody's loss."""
    trainer = scripts.Scripted(SaveTrainingStateCallback(tmp_path, save_every_n_steps=2))
    kwargs = {"num_workers": workers}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.train(dataset(), 2, per_device_batch_size=4, train_dataloader_kwargs=kwargs)


class ReadsClock(TrainerCallback):
    """Keeps times, and whether it has made something: nothing of it means anything in another process."""

    def __init__(self) -> None:
        self.started = 0.0
        self.first: tuple[int, float] | None = None
        self.is_open = False
        self.file: Any = None

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        """Note the time, and open something."""
        self.started = time.perf_counter()
        self.first = self.first or (update, self.started)
        if not self.is_open:
            self.file, self.is_open = object(), True
        assert self.file is not None


def test_what_means_nothing_in_another_process_is_left_as_it_is(tmp_path: Path) -> None:
    """Readings of clocks and notes that something was made are not restored: it is to be made again."""
    scripts.Scripted(ReadsClock(), SaveTrainingStateCallback(tmp_path, save_every_n_steps=4)).train(
        scripts.data(), 1, per_device_batch_size=4
    )
    stored = load(tmp_path / "final").parts["ranks"][0]["script"]
    assert stored == {}
    scripts.Scripted(ReadsClock()).train(scripts.data(), 2, per_device_batch_size=4, resume_from=tmp_path)


COUNTS = [0]
BY_NAME: dict[str, Any] = {"batches": 0, "kind": "easy"}
NESTED = {"loss": [0.5, 1]}
CACHE = {1: 1}
LOG = [0.0]
FLAGS = [False]
TIMES = [0.0]
CONSTANTS = [1, 2, 3]
LAST: Any = [0, 1]


def count_in_list(trainer: AnyTrainer) -> None:
    """Count in a list that is global."""
    COUNTS[0] += 1


def count_by_name(trainer: AnyTrainer) -> None:
    """Count in a dictionary that is global."""
    BY_NAME["batches"] += 1


def average_in_list(trainer: AnyTrainer) -> None:
    """Keep a mean within a container in another one."""
    NESTED["loss"][0] *= 0.9


def keep_what_is_no_state(trainer: AnyTrainer) -> None:
    """Keep results by their arguments, the last one instead of the others; a log, a flag and a moment."""
    CACHE.clear()
    CACHE[len(LOG)] = CONSTANTS[len(LOG) % 3]
    LOG.append(0.5)
    globals()["LAST"] = {"batch": len(LOG) + len(LAST)}
    FLAGS[0] = True
    TIMES[0] = time.perf_counter()


@pytest.mark.parametrize(
    ("keep", "name"), [(count_in_list, "COUNTS"), (count_by_name, "BY_NAME"), (average_in_list, "NESTED")]
)
def test_numbers_in_a_global_container_are_named(keep: Any, name: str, tmp_path: Path) -> None:
    """As a global number is: all runs of a process share them."""
    trainer = scripts.Scripted(CallAt("on_train_step_end", keep), SaveTrainingStateCallback(tmp_path))
    with pytest.warns(UserWarning, match=rf"have left state in [\w.-]*test_script_state\.{name}, which"):
        trainer.train(scripts.data(), 1, per_device_batch_size=4)


def test_global_containers_of_something_else_are_not_named(tmp_path: Path) -> None:
    """Caches, logs, flags and moments are nobody's loss."""
    keep = CallAt("on_train_step_end", keep_what_is_no_state)
    trainer = scripts.Scripted(keep, SaveTrainingStateCallback(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.train(scripts.data(), 1, per_device_batch_size=4)


class RaisesRate(TrainerCallback):
    """Makes the last epoch a worse one."""

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        if trainer.num_epochs_completed == 2:
            for group in trainer.optimizer.param_groups:
                group["lr"] = 5.0


@pytest.mark.parametrize("kind", [scripts.TaskWeights, scripts.Centred, scripts.CentredInPlace, scripts.Projected])
def test_the_best_model_has_its_loss_function(kind: type[nn.Module], tmp_path: Path) -> None:
    """Weights of a loss function, and buffers that it changes, are in checkpoints and come with the best model."""
    best = SaveBestModelCallback(tmp_path / "best.pt")
    loss_func = kind()
    trainer = scripts.Scripted(best, RaisesRate(), loss_func=loss_func)
    trainer.train(scripts.data(), 3, scripts.data(), per_device_batch_size=4)
    found = torch.load(tmp_path / "best.pt", weights_only=True)["modules"]["loss_func"]["model_state_dict"]
    torch.testing.assert_close(found, dict(loss_func.state_dict()), rtol=0, atol=0)
    losses = list(trainer.run_history.get_metric_values("eval_loss_epoch"))
    assert trainer.evaluate()["evaluation_loss"] == pytest.approx(min(losses))
    assert not losses[-1] <= min(losses)


def test_all_trained_parameters_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of the loss function among them."""
    from pa_core.callbacks import PrintProgressCallback

    trainer = scripts.Scripted(PrintProgressCallback(), loss_func=scripts.TaskWeights())
    trainer.train(scripts.data(), 1)
    assert "Trains all 7 parameters" in capsys.readouterr().out


def test_checkpoints_without_a_loss_function_stay_loadable(tmp_path: Path) -> None:
    """A file of an earlier version lacks its weights, which is said; class weights are not in a file."""
    trainer = scripts.Scripted()
    trainer.save_checkpoint(tmp_path / "model.pt")
    weighted = scripts.Scripted(loss_func=scripts.TaskWeights())
    with pytest.warns(UserWarning, match="no weights of the loss function TaskWeights"):
        weighted.load_checkpoint(tmp_path / "model.pt", load_optimizer=False)
    balanced = scripts.Scripted(loss_func=nn.CrossEntropyLoss(weight=torch.ones(1)))
    balanced.save_checkpoint(tmp_path / "balanced.pt")
    assert "modules" not in torch.load(tmp_path / "balanced.pt", weights_only=True)


def counting(start: int) -> CountUpdates:
    """Count from a number on, by a class that has the same name as all others of this function."""

    class Counts(CountUpdates):
        """Counts updates."""

    return Counts(start)


@pytest.mark.parametrize("starts", [(0, 100), (100, 0), (0, 100, 200)])
def test_callbacks_of_classes_with_one_name_keep_their_own_states(starts: tuple[int, ...], tmp_path: Path) -> None:
    """Each of them gets back what it had, in their order."""
    callbacks = [counting(start) for start in starts]
    scripts.Scripted(*callbacks, SaveTrainingStateCallback(tmp_path)).train(scripts.data(), 1)
    resumed = [counting(0) for _ in starts]
    scripts.Scripted(*resumed).train(scripts.data(), 1, resume_from=tmp_path)
    assert [one.count for one in resumed] == [4 + start for start in starts]


def test_the_first_of_two_callbacks_of_one_name_keeps_its_state_without_the_second(tmp_path: Path) -> None:
    """That of the second one is named as left out."""
    callbacks = [counting(0), counting(100), SaveTrainingStateCallback(tmp_path)]
    scripts.Scripted(*callbacks).train(scripts.data(), 1)
    alone = counting(50)
    with pytest.warns(UserWarning, match=r"Counts #2 .* is ignored"):
        scripts.Scripted(alone).train(scripts.data(), 1, resume_from=tmp_path)
    assert alone.count == 4


def test_callbacks_of_one_name_whose_numbers_are_kept_for_them_have_their_own(tmp_path: Path) -> None:
    """Also where they have no state of their own, in a custom loop."""

    def made(start: int) -> Any:
        class Totals(TrainerCallback):
            def __init__(self) -> None:
                self.total = start

            @override
            def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
                self.total += 1

        return Totals()

    totals: list[list[int]] = []
    for callbacks in ([made(0), made(100)], [made(0), made(0)]):
        model = nn.Linear(4, 1)
        saving = SaveTrainingStateCallback(tmp_path, save_every_n_steps=1)
        options: dict[str, Any] = {"resume_from": tmp_path, "resume_missing": "start", "num_epochs": len(totals) + 1}
        run = Run(model, SGD(model.parameters(), lr=0.1), scripts.data(), callbacks=[*callbacks, saving], **options)
        with run:
            for inputs, targets in run.batches():
                run.backward((run.model(inputs) - targets).square().mean())
                run.step()
        totals.append([one.total for one in callbacks])
    assert totals == [[4, 104], [8, 108]]


class ReplacesHead(TrainerCallback):
    """Replaces a layer after the first epoch, as in transfer learning."""

    def __init__(self, *, adds: bool) -> None:
        self.adds = adds

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Replace it."""
        if trainer.num_epochs_completed == 1:
            model = cast("nn.Sequential", trainer.model)
            model[2] = nn.Linear(3, 1)
            if self.adds:
                trainer.optimizer.add_param_group({"params": [*model[2].parameters()]})


def test_a_layer_that_no_optimizer_trains_any_more_is_an_error() -> None:
    """It is found at the end of the epoch, or at the next save, with the way out."""
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
    with pytest.raises(ConfigurationError, match=r"Layers were replaced within the run") as raised:
        scripts.Scripted(ReplacesHead(adds=False), model=model).train(scripts.data(), 3)
    assert "model.2.weight, model.2.bias" in str(raised.value)
    assert "add_param_group" in str(raised.value)


def replace_part(model: nn.Sequential, part: str) -> None:
    """Put a new parameter or layer into a place of a model."""
    if part == "0.0":
        model[0] = nn.Sequential(nn.Linear(4, 3))
    else:
        setattr(
            model[2], part.removeprefix("2."), nn.Parameter(torch.zeros(1, 3) if part == "2.weight" else torch.zeros(1))
        )


def train_by_loop(model: nn.Sequential, part: str) -> None:
    """Replace it in the second epoch of a custom loop."""
    with Run(model, SGD(model.parameters(), lr=0.1), scripts.data(), num_epochs=3, callbacks=[]) as run:
        for epoch in run.epochs():
            if epoch == 2:
                replace_part(model, part)
            for inputs, targets in run.batches():
                run.backward((model(inputs) - targets).square().mean())
                run.step()


@pytest.mark.parametrize("part", ["2.weight", "2.bias", "0.0"])
def test_so_is_a_parameter_or_a_part_that_is_replaced(part: str) -> None:
    """In a custom loop too."""
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))

    def replace(trainer: AnyTrainer) -> None:
        if trainer.num_epochs_completed == 1:
            replace_part(model, part)

    with pytest.raises(ConfigurationError, match=f"no optimizer of the present model.{part}"):
        scripts.Scripted(CallAt("on_train_epoch_start", replace), model=model).train(scripts.data(), 3)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
    with pytest.raises(ConfigurationError, match=f"no optimizer of the present model.{part}"):
        train_by_loop(model, part)


def test_a_layer_that_is_added_to_the_optimizer_too_is_trained() -> None:
    """As the message says."""
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
    scripts.Scripted(ReplacesHead(adds=True), model=model).train(scripts.data(), 3)


class Grows(nn.Module):
    """A model to which layers are added within a run."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 1))
        self.teacher: nn.Module | None = None

    @override
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layers(inputs)
        if self.teacher is not None:
            with torch.no_grad():
                target: torch.Tensor = self.teacher(inputs)
            outputs = outputs + 0.1 * target
        return outputs


def append_layer(trainer: AnyTrainer) -> None:
    """Add one in the second epoch."""
    if trainer.num_epochs_completed == 1:
        cast("Any", trainer.model).layers.append(nn.Linear(1, 1))


def append_to_optimizer(trainer: AnyTrainer) -> None:
    """Add one, as the message says."""
    append_layer(trainer)
    if trainer.num_epochs_completed == 1:
        added = cast("Any", trainer.model).layers[-1]
        trainer.optimizer.add_param_group({"params": added.parameters()})


def append_frozen(trainer: AnyTrainer) -> None:
    """Add one that is not to be trained."""
    append_layer(trainer)
    if trainer.num_epochs_completed == 1:
        cast("Any", trainer.model).layers[-1].requires_grad_(False)


def add_teacher(trainer: AnyTrainer) -> None:
    """Add one whose outputs have no gradients."""
    if trainer.num_epochs_completed == 1:
        cast("Any", trainer.model).teacher = nn.Linear(4, 1)


@pytest.mark.runs_on("one_process", "two_ranks")
def test_an_added_layer_that_nobody_trains_is_named() -> None:
    """Once, at the end of its first epoch."""
    trainer = scripts.Scripted(CallAt("on_train_epoch_start", append_layer), model=Grows())
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        trainer.train(scripts.data(), 4)
    said = "".join(str(one.message) for one in warned)
    if trainer.process_index > 0:
        assert not said
        return
    assert said.count("Layers were added") == 1
    assert "model.layers.1.weight, model.layers.1.bias" in said
    assert "add_param_group" in said


@pytest.mark.parametrize("add", [append_to_optimizer, append_frozen, add_teacher])
def test_an_added_layer_that_is_trained_or_not_to_be_is_not_named(add: Any) -> None:
    """An optimizer has it, it is frozen, or no loss depends on it."""
    trainer = scripts.Scripted(CallAt("on_train_epoch_start", add), model=Grows())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.train(scripts.data(), 3)
