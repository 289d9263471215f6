"""A run that goes on with other settings: what may differ is shown, what changes its meaning is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from torch.utils.data import TensorDataset

from pa_checkpoint import load
from pa_core import (
    CheckpointError,
    ConfigurationError,
    SaveTrainingStateCallback,
    Trainer,
    TrainerCallback,
    TrainerPlaceholderValues,
)
from pa_core.errors import ArgumentTypeError
from pa_core.testing import RecordingCallback, TinyClassifier, make_classification
from pa_core.training_state.run_settings import RESUME_OVERRIDES
from tests.support.callbacks import RatesUsed
from tests.support.pa_core.training_states.small_runs import (
    DrawingDataset,
    InterruptAt,
    Interrupted,
    fingerprint,
    log_of,
    make_trainer,
    train,
)

STEP_END = "on_train_step_end"
REPRODUCIBLE: Literal["any_processes"] = "any_processes"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """States of a run that was interrupted in its second epoch, at the tenth of 21 updates."""
    states = SaveTrainingStateCallback(tmp_path, save_every_n_steps=2)
    with pytest.raises(Interrupted):
        train(make_trainer(states, InterruptAt(STEP_END, 10)))
    return tmp_path


def test_differences_are_shown_as_saved_requested_and_used(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One table, before the first step, and nothing where nothing differs."""
    train(make_trainer(), resume_from=folder)
    assert "saved" not in capsys.readouterr().out
    train(make_trainer(), num_epochs=4, gradient_clip_norm=2.0, resume_from=folder)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[1] == ["setting", "saved", "requested", "used"]
    assert ["num_epochs", "3", "4", "4"] in rows
    assert ["gradient_clip_norm", "None", "2", "2"] in rows


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Operations of torch use another number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    yield
    torch.set_num_threads(before)


def make_reproducible(*callbacks: TrainerCallback, is_so: bool = True) -> Trainer:
    """A trainer whose runs are reproducible, if they are to be."""
    torch.manual_seed(1)
    model, way = TinyClassifier(), REPRODUCIBLE if is_so else None
    return Trainer(model, nn.CrossEntropyLoss(), Adam(model.parameters()), callbacks=callbacks, reproducible=way)


def train_in_updates(trainer: Trainer, **options: Any) -> None:
    """Train with eight samples in an update, of which an epoch has seven."""
    arguments: dict[str, Any] = {"per_device_batch_size": 8, "samples_per_update": 8, **options}
    trainer.train(make_classification(52), 3, **arguments)
    assert trainer.num_epochs_completed == 3


def interrupt(folder: Path, *, is_reproducible: bool = True) -> dict[str, Any]:
    """The settings of a state in the second epoch of a run."""
    states = SaveTrainingStateCallback(folder, save_every_n_steps=2)
    with pytest.raises(Interrupted):
        train_in_updates(make_reproducible(states, InterruptAt(STEP_END, 10), is_so=is_reproducible))
    settings: dict[str, Any] = load(folder / "step_10").parts["run"]["settings"]
    return settings


def test_a_reproducible_run_refuses_another_arithmetic_by_what_differs(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """What is the same is not in the message; once allowed, the run goes on."""
    saved = torch.get_num_threads()
    assert interrupt(tmp_path)["arithmetic"]["torch"] == torch.__version__
    train_in_updates(make_reproducible(), resume_from=tmp_path)
    request.getfixturevalue("two_threads")
    with pytest.raises(CheckpointError, match=r'resume_allow=\("arithmetic",\)') as refused:
        train_in_updates(make_reproducible(), resume_from=tmp_path)
    assert refused.value.given == f"arithmetic=threads: {saved + 1}"
    assert refused.value.expected == f"arithmetic=threads: {saved} (arithmetic: {RESUME_OVERRIDES['arithmetic']})"
    train_in_updates(make_reproducible(), resume_from=tmp_path, resume_allow=("arithmetic",))


def test_a_reproducible_run_refuses_micro_batches_of_another_size(tmp_path: Path) -> None:
    """An update of as many samples as before would be added up in another order."""
    assert interrupt(tmp_path)["reproducible"] == "in micro-batches of 8"
    smaller: dict[str, Any] = {"per_device_batch_size": 4, "resume_from": tmp_path}
    with pytest.raises(CheckpointError, match=r'resume_allow=\("reproducible",\)') as refused:
        train_in_updates(make_reproducible(), **smaller)
    assert refused.value.given == "reproducible=in micro-batches of 4"
    train_in_updates(make_reproducible(), **smaller, resume_allow=("reproducible",))


@pytest.mark.parametrize("is_saved_so", [True, False])
def test_a_run_becomes_reproducible_or_ceases_to_be_only_where_that_is_allowed(
    tmp_path: Path, request: pytest.FixtureRequest, is_saved_so: bool
) -> None:
    """Of another run, threads do not matter, and its states say nothing of all this; means go on."""
    settings = interrupt(tmp_path, is_reproducible=is_saved_so)
    assert ("reproducible" in settings) is ("arithmetic" in settings) is is_saved_so
    request.getfixturevalue("two_threads")
    with pytest.raises(CheckpointError, match=r'resume_allow=\("reproducible",\)') as refused:
        train_in_updates(make_reproducible(is_so=not is_saved_so), resume_from=tmp_path)
    assert "arithmetic" not in refused.value.given
    other = make_reproducible(is_so=not is_saved_so)
    train_in_updates(other, resume_from=tmp_path, resume_allow=("reproducible",))


REFUSED: dict[str, dict[str, Any]] = {
    "dataset_length": {"dataset": DrawingDataset(60)},
    "samples_per_update": {"per_device_batch_size": 4},
    "shuffle": {"train_dataloader_kwargs": {"shuffle": False}},
    "drop_last": {"train_dataloader_kwargs": {"drop_last": True}},
    "loader": {"train_dataloader_kwargs": {"sampler": range(52)}},
    "scheduler": {"create_scheduler_fn": partial(StepLR, step_size=3)},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_changes_the_meaning_of_a_run_is_refused_unless_it_is_allowed_by_name(folder: Path, name: str) -> None:
    """The message names both values, why it matters, and how to allow it; nothing has been trained then."""
    trainer = make_trainer(RecordingCallback())
    before = fingerprint(trainer)["weights"]
    with pytest.raises(CheckpointError, match=rf'resume_allow=\(.*"{name}"') as refused:
        train(trainer, resume_from=folder, **REFUSED[name])
    assert f"{name}=" in refused.value.given
    assert f"{name}=" in refused.value.expected
    assert fingerprint(trainer)["weights"] == before

    names = [part for part in ("samples_per_update", *REFUSED) if f'"{part}"' in refused.value.do]
    resumed = make_trainer()
    train(resumed, resume_from=folder, resume_allow=names, **REFUSED[name])
    assert resumed.num_epochs_completed == 3


def test_the_message_says_how_the_samples_of_an_update_stay_as_many(folder: Path) -> None:
    """With half of the batch, two of them make an update as before, and the run goes on bit for bit as elsewhere."""
    with pytest.raises(CheckpointError, match="gradient_accumulation_steps=2"):
        train(make_trainer(), resume_from=folder, per_device_batch_size=4)
    with pytest.raises(CheckpointError, match="per_device_batch_size=4 or gradient_accumulation_steps=1"):
        train(make_trainer(), resume_from=folder, gradient_accumulation_steps=2)
    with pytest.raises(CheckpointError, match=r"do: +Pass samples_per_update=8\."):
        train(make_trainer(), resume_from=folder, gradient_accumulation_steps=3, per_device_batch_size=3)

    whole, split = make_trainer(), make_trainer()
    train(whole)
    train(split, resume_from=folder, per_device_batch_size=4, gradient_accumulation_steps=2)
    assert log_of(split).indices == log_of(whole).indices
    assert split.num_updates_completed == whole.num_updates_completed


def test_the_documentation_lists_each_name_with_its_reason() -> None:
    """The page on resuming and the messages say the same, apart from links."""
    page = (Path(__file__).parents[4] / "docs" / "resuming.md").read_text()
    page = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", page)
    _, _, table = page.partition("| name | consequence of the change |")
    rows, _, _ = table.partition("\n\n")
    assert dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", rows, flags=re.MULTILINE)) == RESUME_OVERRIDES


def test_names_that_allow_nothing_are_refused(folder: Path) -> None:
    """A typo must not pass for a permission."""
    for allowed in (("dataset_lenght",), "dataset_length"):
        with pytest.raises(ConfigurationError, match="dataset_length"):
            train(make_trainer(), resume_from=folder, resume_allow=allowed)


def test_other_settings_of_the_optimizer_are_used_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the script asks for them now; the table shows each."""
    trainer = make_trainer()
    for group in trainer.optimizer.param_groups:
        group["weight_decay"] = 0.25
    train(trainer, resume_from=folder)
    assert trainer.optimizer.param_groups[0]["weight_decay"] == 0.25
    assert ["group", "0:", "weight_decay", "0", "0.25", "0.25"] in [
        line.split() for line in capsys.readouterr().out.splitlines()
    ]


def make_other(model: nn.Module, optimizer: type[Adam | SGD] = Adam) -> Trainer:
    """A trainer of another model than that of the saved run."""
    return Trainer(model, nn.CrossEntropyLoss(), optimizer(model.parameters(), lr=0.01), callbacks=[])


def test_another_model_or_optimizer_is_refused_before_anything_is_changed(tmp_path: Path) -> None:
    """The message names the first differences; by name, what fits is taken over."""
    data = make_classification(32)
    first = make_other(TinyClassifier())
    first.train(data, 1)
    first.save_training_state(tmp_path)

    wider = make_other(TinyClassifier(hidden=9))
    before = {name: value.clone() for name, value in wider.model.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"layers.0.weight: \(8, 4\) in the state, \(9, 4\) in the model"):
        wider.train(data, 2, resume_from=tmp_path)
    assert all(torch.equal(value, before[name]) for name, value in wider.model.state_dict().items())
    with pytest.raises(CheckpointError, match="optimizer=SGD"):
        make_other(TinyClassifier(), SGD).train(data, 2, resume_from=tmp_path)

    deeper = make_other(nn.Sequential(TinyClassifier(), nn.Linear(3, 3)))
    with pytest.raises(CheckpointError, match="model"):
        deeper.train(data, 2, resume_from=tmp_path)
    same_body = make_other(TinyClassifier(num_classes=4))
    same_body.train(data, 1, resume_from=tmp_path, resume_allow=("model",))
    assert torch.equal(same_body.model.state_dict()["layers.0.weight"], first.model.state_dict()["layers.0.weight"])
    other = make_other(TinyClassifier(), SGD)
    other.train(data, 1, resume_from=tmp_path, resume_allow=("optimizer",))
    assert torch.equal(other.model.state_dict()["layers.3.weight"], first.model.state_dict()["layers.3.weight"])


def test_registered_objects_must_be_the_same_kinds(tmp_path: Path) -> None:
    """The state of one object is never given to another."""
    first = make_trainer()
    first.register_for_checkpointing(torch.nn.Linear(1, 1))
    train(first, num_epochs=1)
    first.save_training_state(tmp_path)
    with pytest.raises(CheckpointError, match="register_for_checkpointing"):
        train(make_trainer(), num_epochs=2, resume_from=tmp_path)
    with pytest.raises(ArgumentTypeError, match="of type int, without state_dict and load_state_dict"):
        first.register_for_checkpointing(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # that is the test


UPDATES = TrainerPlaceholderValues.NUM_EPOCHS * TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH


def half_a_cosine(step: int, total: int) -> float:
    """From 1 to 0 in so many steps, and 0 after them."""
    return 0.5 * (1 + math.cos(math.pi * min(1, step / total)))


class HalfACosine:
    """The same as an object, whose attributes are part of a state."""

    def __init__(self, total: int) -> None:
        self.total = total

    def __call__(self, step: int) -> float:
        """The part of the base rate after so many steps."""
        return half_a_cosine(step, self.total)


def by_function(optimizer: Optimizer, total: int) -> LambdaLR:
    """A schedule that is a function of the script, as transformers makes them."""
    return LambdaLR(optimizer, partial(half_a_cosine, total=total))


def by_object(optimizer: Optimizer, total: int) -> LambdaLR:
    """A schedule that is an object with attributes."""
    return LambdaLR(optimizer, HalfACosine(total))


def after_a_warmup(optimizer: Optimizer, total: int) -> SequentialLR:
    """A cosine after two updates of warm-up."""
    return SequentialLR(
        optimizer, [LinearLR(optimizer, 0.5, total_iters=2), CosineAnnealingLR(optimizer, total - 2)], [2]
    )


def warmup_by_function(optimizer: Optimizer, total: int) -> SequentialLR:
    """A function of the script after two updates of warm-up."""
    return SequentialLR(optimizer, [LinearLR(optimizer, 0.5, total_iters=2), by_function(optimizer, total)], [2])


def train_schedule(lr: float, *callbacks: TrainerCallback, num_epochs: int, **options: Any) -> Trainer:
    """Train one weight with four updates in an epoch."""
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    trainer: Trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=lr), callbacks=callbacks)
    inputs = torch.linspace(-1, 1, 4)[:, None]
    trainer.train(TensorDataset(inputs, inputs), num_epochs, per_device_batch_size=1, **options)
    return trainer


def said(output: str, setting: str = "length of the schedule") -> list[str]:
    """The row of a setting in the table of differences."""
    row = next(line for line in output.splitlines() if line.startswith(setting))
    return re.split(r"  +", row)[1:]


KEPT = "8; then the behaviour of its scheduler after its end"
OF_SCRIPT = "16, if the function of the script depends on it"
SCHEDULES: dict[str, tuple[Any, str]] = {
    "cosine after a warm-up": (partial(after_a_warmup, total=UPDATES), KEPT),
    "function": (partial(by_function, total=UPDATES), OF_SCRIPT),
    "function after a warm-up": (partial(warmup_by_function, total=UPDATES), OF_SCRIPT),
    "object": (partial(by_object, total=UPDATES), KEPT),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_table_says_what_the_schedule_does(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run of two epochs that goes on for two more: the column of what is used is what is used."""
    create, expected = SCHEDULES[name]
    train_schedule(0.1, num_epochs=2, create_scheduler_fn=create).save_training_state(tmp_path / "state")
    longer, rates = RatesUsed(), RatesUsed()
    train_schedule(0.1, longer, num_epochs=4, create_scheduler_fn=create)
    capsys.readouterr()

    train_schedule(0.1, rates, num_epochs=4, create_scheduler_fn=create, resume_from=tmp_path / "state")

    assert said(capsys.readouterr().out) == ["8", "16", expected]
    follows_new_length = rates.rates[1:] == pytest.approx(longer.rates[9:])
    assert follows_new_length == (expected == OF_SCRIPT)


def test_a_schedule_of_epochs_has_its_length_in_epochs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Stepped after epochs, two of them have become four; with a metric there is no length ahead."""
    cosine: dict[str, Any] = {
        "create_scheduler_fn": partial(CosineAnnealingLR, T_max=TrainerPlaceholderValues.NUM_EPOCHS),
        "step_scheduler": "epoch",
    }
    plateau: dict[str, Any] = {"create_scheduler_fn": ReduceLROnPlateau, "watch_metric": "train_loss_epoch"}
    for name, options in (("cosine", cosine), ("plateau", plateau)):
        train_schedule(0.1, num_epochs=2, **options).save_training_state(tmp_path / name)
        train_schedule(0.1, num_epochs=4, **options, resume_from=tmp_path / name)
        assert said(capsys.readouterr().out) == ["2", "4", "2; then the behaviour of its scheduler after its end"]


def test_stepping_it_at_another_time_is_a_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A schedule of updates that is resumed as one of epochs is shown as such."""
    create = partial(StepLR, step_size=3)
    train_schedule(0.1, num_epochs=1, create_scheduler_fn=create).save_training_state(tmp_path / "state")
    train_schedule(
        0.1, num_epochs=2, create_scheduler_fn=create, step_scheduler="epoch", resume_from=tmp_path / "state"
    )
    row = ["after each update", "after each epoch", "after each epoch"]
    assert said(capsys.readouterr().out, "scheduler is stepped") == row


def test_a_one_cycle_schedule_is_refused_or_begun_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It would end with an error; with the permission that the error names, one of the new length begins."""
    create = partial(OneCycleLR, max_lr=0.1, total_steps=UPDATES)
    train_schedule(0.1, num_epochs=2, create_scheduler_fn=create).save_training_state(tmp_path / "state")
    with pytest.raises(ConfigurationError, match=r'resume_allow=\("scheduler",\)'):
        train_schedule(0.1, num_epochs=4, create_scheduler_fn=create, resume_from=tmp_path / "state")

    allowed = {"resume_from": tmp_path / "state", "resume_allow": ("scheduler",)}
    capsys.readouterr()
    trainer = train_schedule(0.1, num_epochs=4, create_scheduler_fn=create, **allowed)
    assert said(capsys.readouterr().out) == ["8", "16", "16"]
    assert trainer.num_updates_completed == 16


def test_another_rate_reaches_nested_schedulers(tmp_path: Path) -> None:
    """The rates of a cosine within a sequence are in proportion to the new rate of the optimizer."""
    create = partial(after_a_warmup, total=UPDATES)
    train_schedule(0.1, num_epochs=2, create_scheduler_fn=create).save_training_state(tmp_path / "state")
    rates: list[RatesUsed] = []
    for lr in (0.1, 0.2):
        rates.append(RatesUsed())
        train_schedule(lr, rates[-1], num_epochs=4, create_scheduler_fn=create, resume_from=tmp_path / "state")
    assert rates[1].rates == pytest.approx([2 * rate for rate in rates[0].rates], abs=1e-12)
