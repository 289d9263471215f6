"""The schedules in runs of the trainer: the rate of each update, what is saved around decays, and their page."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import StepLR
from typing_extensions import override

from pa_core import DEFAULT_CALLBACKS, AnyTrainer, FolderInUseError, SaveTrainingStateCallback, Trainer, TrainerCallback
from pa_core.distributed import num_processes
from pa_core.testing import make_regression
from pa_schedulers import CosineLrScheduler, WSDCheckpointCallback, WSDLrScheduler
from tests.support.callbacks import CallAt, OfThisProcess, RatesUsed

SAMPLES = make_regression(40)
UPDATES_OF_AN_EPOCH = 5
schedule = partial(WSDLrScheduler.create_scheduler_fn, decay_phase_ratio=0.3, lr_min=0.001)
three_checkpoints = schedule(num_warmup_epochs=0.8, num_checkpoints=3)
continuation = schedule(num_warmup_epochs=1, is_continuation_from_checkpoint=True)

NAMES_OF_THREE = [
    "checkpoint_10_wsd_post_decay.pt",
    "checkpoint_17_wsd_pre_decay",
    "checkpoint_20_wsd_post_decay.pt",
    "checkpoint_34_wsd_pre_decay",
    "checkpoint_40_wsd_post_decay.pt",
    "checkpoint_7_wsd_pre_decay",
]


class KeepWeights(OfThisProcess):
    """Keeps weights and momentum as they are at the start and after each update, and the rate of each update."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.weights: list[Tensor] = []
        self.momenta: list[Tensor] = []
        self.rates: list[float] = []
        optimizer.register_step_pre_hook(self._keep_rate)

    def _keep_rate(self, stepped: Optimizer, args: Any, kwargs: Any) -> None:
        self.rates.append(stepped.param_groups[0]["lr"])

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self._keep(trainer)

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        self._keep(trainer)

    def _keep(self, trainer: AnyTrainer) -> None:
        weight = trainer.get_model().get_parameter("weight")
        self.weights.append(weight.detach().clone())
        state: dict[str, Tensor] = trainer.optimizer.state.get(weight, {})
        self.momenta.append(state.get("momentum_buffer", torch.zeros(1)).clone())


class Run:
    """A model that is trained for some epochs, with everything that is to be compared."""

    def __init__(self, callback: WSDCheckpointCallback, rate: float = 0.05) -> None:
        self.model = nn.Linear(4, 1)
        self.optimizer = SGD(self.model.parameters(), lr=rate, momentum=0.9)
        self.kept = KeepWeights(self.optimizer)
        self.trainer: Trainer[nn.Linear, Any, Any, WSDLrScheduler] = Trainer(
            self.model, nn.MSELoss(), self.optimizer, callbacks=[callback, self.kept]
        )

    def train(self, num_epochs: int, create_scheduler_fn: Any = three_checkpoints, **kwargs: Any) -> Run:
        """Train with five updates an epoch, on any number of processes."""
        batch_size = len(SAMPLES) // UPDATES_OF_AN_EPOCH // num_processes()
        self.trainer.train(SAMPLES, num_epochs, None, batch_size, create_scheduler_fn=create_scheduler_fn, **kwargs)
        return self

    @property
    def scheduler(self) -> WSDLrScheduler:
        """The scheduler of the run."""
        assert self.trainer.scheduler is not None
        return self.trainer.scheduler

    def rates_by_the_schedule(self) -> list[float]:
        """What the queries say: the first two updates use the starting rate, each later one the next value."""
        return [
            self.scheduler.get_updated_values(max(0, update - 2))[0]
            for update in range(1, self.trainer.num_updates_completed + 1)
        ]


def names(folder: Path) -> list[str]:
    """What is in a folder; the first process may still be about to release it."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith(".in_use"))


@pytest.mark.runs_on("one_process", "two_ranks", "bf16")
def test_a_run_with_three_checkpoints(shared_tmp_path: Path) -> None:
    """Each decay has a training state before it and an export after it, of exactly the named updates."""
    run = Run(WSDCheckpointCallback(shared_tmp_path)).train(8)

    assert run.scheduler.get_checkpoint_steps() == [10, 20, 40]
    assert run.scheduler.num_warmup_steps == 4
    assert names(shared_tmp_path) == NAMES_OF_THREE
    assert run.kept.rates == run.rates_by_the_schedule()
    for info in run.scheduler.get_decay_info():
        before, after = info["pre_decay_step"], info["period_end"]
        export = torch.load(shared_tmp_path / f"checkpoint_{after}_wsd_post_decay.pt", weights_only=True)
        assert torch.equal(export["model_state_dict"]["weight"], run.kept.weights[after])
        assert torch.equal(export["optimizer_state_dict"]["state"][0]["momentum_buffer"], run.kept.momenta[after])
        assert export["scheduler_state_dict"]["_num_updates"] == after
        of_schedule = {"total_steps": 40, "decay_fraction": 0.3}
        assert export.items() >= {"step": after, "checkpoint_type": "wsd_post_decay", **of_schedule}.items()
        fresh = Run(WSDCheckpointCallback(shared_tmp_path))
        extras = fresh.trainer.load_training_state(shared_tmp_path / f"checkpoint_{before}_wsd_pre_decay")
        assert extras.items() >= {"step": before, "checkpoint_type": "wsd_pre_decay", **of_schedule}.items()
        assert torch.equal(fresh.model.weight, run.kept.weights[before])
        momentum: Tensor = fresh.optimizer.state[fresh.model.weight]["momentum_buffer"]
        assert torch.equal(momentum, run.kept.momenta[before])


@pytest.mark.runs_on("one_process", "two_ranks", "bf16")
@pytest.mark.parametrize(
    ("checkpoint", "begun_at"),
    [("checkpoint_17_wsd_pre_decay", 17), ("checkpoint_20_wsd_post_decay.pt", 20), ("", 34)],
    ids=["before a decay", "after a decay", "the newest state of a folder"],
)
def test_a_stable_phase_goes_on_from_a_checkpoint(shared_tmp_path: Path, checkpoint: str, begun_at: int) -> None:
    """A longer run starts with weights and momentum of the checkpoint, at the old stable rate, from update 1."""
    old = Run(WSDCheckpointCallback(shared_tmp_path / "old")).train(8)
    callback = WSDCheckpointCallback(shared_tmp_path / "new", initial_checkpoint=shared_tmp_path / "old" / checkpoint)

    new = Run(callback, rate=0.7).train(4, continuation)

    assert torch.equal(new.kept.weights[0], old.kept.weights[begun_at])
    assert torch.equal(new.kept.momenta[0], old.kept.momenta[begun_at])
    assert old.kept.momenta[begun_at].any()
    assert new.kept.rates == new.rates_by_the_schedule()
    assert new.kept.rates[:16] == [0.05] * 16
    assert new.kept.rates[-1] < 0.02
    assert new.trainer.num_updates_completed == 20
    assert names(shared_tmp_path / "new") == ["checkpoint_14_wsd_pre_decay", "checkpoint_20_wsd_post_decay.pt"]
    assert names(shared_tmp_path / "old") == NAMES_OF_THREE


def test_the_newest_state_of_a_folder_is_the_one_that_was_written_last(tmp_path: Path) -> None:
    """Several runs may save into one folder; its newest state may be one of fewer updates."""
    Run(WSDCheckpointCallback(tmp_path)).train(8)
    from_17 = WSDCheckpointCallback(tmp_path, initial_checkpoint=tmp_path / "checkpoint_17_wsd_pre_decay")
    second = Run(from_17).train(3, continuation)

    third = Run(WSDCheckpointCallback(tmp_path / "third", initial_checkpoint=tmp_path)).train(2, continuation)

    assert torch.equal(third.kept.weights[0], second.kept.weights[11])


@pytest.mark.parametrize(("save_optimizer", "save_scheduler"), [(False, True), (True, False), (False, False)])
def test_an_export_may_have_the_weights_alone(tmp_path: Path, save_optimizer: bool, save_scheduler: bool) -> None:
    """Without optimizer or scheduler in the file a stable phase goes on as well, without warm-up."""
    callback = WSDCheckpointCallback(tmp_path / "old", save_optimizer, save_scheduler)
    old = Run(callback).train(2, schedule())
    file = tmp_path / "old" / "checkpoint_10_wsd_post_decay.pt"
    content = torch.load(file, weights_only=True)
    assert ("optimizer_state_dict" in content) == save_optimizer
    assert ("scheduler_state_dict" in content) == save_scheduler

    new = Run(WSDCheckpointCallback(tmp_path / "new", initial_checkpoint=file)).train(2, continuation)

    assert torch.equal(new.kept.weights[0], old.kept.weights[10])
    assert new.kept.rates == new.rates_by_the_schedule()
    assert new.kept.rates[0] == 0.05


def test_continuations_of_equal_length_can_be_chained(tmp_path: Path) -> None:
    """The third run goes on from before the decay of the second, which was as long and a continuation itself."""
    folders = [tmp_path / name for name in ("first", "second", "third")]
    runs = [Run(WSDCheckpointCallback(folders[0])).train(2, schedule(num_warmup_epochs=0))]
    for earlier, folder in pairwise(folders):
        callback = WSDCheckpointCallback(folder, initial_checkpoint=earlier / "checkpoint_7_wsd_pre_decay")
        runs.append(Run(callback).train(2, continuation))

    for before, after in pairwise(runs):
        assert torch.equal(after.kept.weights[0], before.kept.weights[7])
        assert after.kept.rates == runs[0].kept.rates


@pytest.mark.runs_on("one_process", "two_ranks")
def test_a_continuation_that_was_interrupted_is_resumed(shared_tmp_path: Path) -> None:
    """Resumed before its decay, it ends as it had without interruption, and loads its beginning only once."""
    Run(WSDCheckpointCallback(shared_tmp_path / "old")).train(8)
    initial = shared_tmp_path / "old" / "checkpoint_17_wsd_pre_decay"
    callback = partial(WSDCheckpointCallback, shared_tmp_path / "new", initial_checkpoint=initial)
    uninterrupted = Run(callback()).train(4, continuation)

    resumed = Run(callback()).train(4, continuation, resume_from=shared_tmp_path / "new")

    assert torch.equal(resumed.model.weight, uninterrupted.model.weight)
    assert resumed.kept.rates == uninterrupted.kept.rates[14:]
    assert resumed.trainer.num_updates_completed == 20


def test_a_run_that_ends_early_has_what_it_got_to(tmp_path: Path) -> None:
    """Nothing is saved for checkpoints that the run does not reach."""
    create_scheduler = partial(WSDLrScheduler, total_steps=40, num_checkpoints=3, decay_phase_ratio=0.3)

    Run(WSDCheckpointCallback(tmp_path / "made")).train(4, create_scheduler, max_num_train_steps=18)

    assert names(tmp_path / "made") == [
        "checkpoint_10_wsd_post_decay.pt",
        "checkpoint_17_wsd_pre_decay",
        "checkpoint_7_wsd_pre_decay",
    ]


def test_a_script_may_change_its_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints go to the folder from which the run was started."""
    (tmp_path / "another").mkdir()
    monkeypatch.chdir(tmp_path)
    run = Run(WSDCheckpointCallback("made"))
    change_folder = CallAt("on_train_epoch_end", lambda _: monkeypatch.chdir(tmp_path / "another"))
    run.trainer.callback_handler.add_callbacks([change_folder])
    run.train(8)
    assert names(tmp_path / "made") == NAMES_OF_THREE
    assert list((tmp_path / "another").iterdir()) == []


def refuse(run: Run, create_scheduler_fn: Any, message: str) -> None:
    """The run ends before its first update, with a message."""
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        run.train(2, create_scheduler_fn)
    assert run.trainer.num_updates_completed == 0


def test_a_run_without_decays_is_refused(tmp_path: Path) -> None:
    """The callback needs the schedule that it is made for."""
    run = partial(Run, WSDCheckpointCallback(tmp_path))

    refuse(run(), None, r"A NoneType has no decays.*WSDLrScheduler.create_scheduler_fn")
    refuse(run(), partial(StepLR, step_size=1), "A StepLR has no decays")


def test_an_initial_checkpoint_needs_a_continuation(tmp_path: Path) -> None:
    """A schedule that would take over the end of the old one is refused, and so is a checkpoint that is not there."""
    Run(WSDCheckpointCallback(tmp_path / "old")).train(2, schedule())
    state = tmp_path / "old" / "checkpoint_7_wsd_pre_decay"

    refuse(Run(WSDCheckpointCallback(tmp_path, initial_checkpoint=state)), schedule(), "not continue")
    missing = WSDCheckpointCallback(tmp_path, initial_checkpoint=tmp_path / "missing.pt")
    refuse(Run(missing), continuation, r"missing\.pt")


@pytest.mark.parametrize("initial", ["checkpoint_7_wsd_pre_decay", "checkpoint_10_wsd_post_decay.pt", ""])
def test_a_run_does_not_replace_what_it_goes_on_from(tmp_path: Path, initial: str) -> None:
    """A continuation that would write the same names into the same folder is refused, and nothing is lost."""
    old = Run(WSDCheckpointCallback(tmp_path)).train(2, schedule())
    callback = WSDCheckpointCallback(tmp_path, initial_checkpoint=tmp_path / initial)

    refuse(Run(callback), continuation, "would replace the checkpoint checkpoint_")

    exported = torch.load(tmp_path / "checkpoint_10_wsd_post_decay.pt", weights_only=True)
    assert torch.equal(exported["model_state_dict"]["weight"], old.model.weight)
    longer = Run(callback).train(4, continuation)
    assert longer.trainer.num_updates_completed == 20
    assert len(names(tmp_path)) == 4


def test_a_folder_is_that_of_one_run_at_a_time(tmp_path: Path) -> None:
    """Another run would replace what this one saves; callbacks of a run may share it, and it is free afterwards."""

    def train_another(_trainer: AnyTrainer) -> None:
        with pytest.raises(FolderInUseError):
            Run(WSDCheckpointCallback(tmp_path)).train(1, schedule())

    run = Run(WSDCheckpointCallback(tmp_path))
    run.trainer.callback_handler.add_callbacks(
        [CallAt("on_train_epoch_start", train_another), SaveTrainingStateCallback(tmp_path)]
    )
    run.train(1, schedule())
    Run(WSDCheckpointCallback(tmp_path)).train(1, schedule())


def add_bias(trainer: AnyTrainer) -> None:
    """Hand the bias to the optimizer, as gradual unfreezing does."""
    bias = trainer.get_model().get_parameter("bias")
    trainer.optimizer.add_param_group({"params": [bias.requires_grad_()], "lr": 0.8})


def rates_while_unfreezing(*callbacks: TrainerCallback, resume_from: Path | None = None) -> list[list[float]]:
    """Train four epochs of one update, with the bias joining after the first; return the rates of each update."""
    model = nn.Linear(4, 1)
    model.bias.requires_grad_(False)
    optimizer = SGD([model.weight], lr=0.4)
    used: list[list[float]] = []

    def note(stepped: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        used.append([group["lr"] for group in stepped.param_groups])

    optimizer.register_step_pre_hook(note)
    joining = CallAt("on_training_run_epoch_end", add_bias, update=1)
    trainer: Trainer[nn.Linear] = Trainer(model, nn.MSELoss(), optimizer, callbacks=[joining, *callbacks])
    trainer.train(
        make_regression(8),
        num_epochs=4,
        per_device_batch_size=8 // num_processes(),
        create_scheduler_fn=CosineLrScheduler.create_scheduler_fn(lr_min=0.0),
        resume_from=resume_from,
    )
    return used


@pytest.mark.runs_on("one_process", "two_ranks")
def test_a_group_that_joins_a_run_follows_the_schedule_from_its_own_rate() -> None:
    """Gradual unfreezing needs nothing else: the new group has its share of the schedule from the next update on."""
    first, second, third, fourth = rates_while_unfreezing()

    assert (first, second) == ([0.4], [0.4, 0.8])
    assert third == pytest.approx([0.4 * (2 + 2**0.5) / 4, 0.8 * (2 + 2**0.5) / 4])
    assert fourth == pytest.approx([0.2, 0.4])


@pytest.mark.runs_on("one_process", "two_ranks")
def test_a_run_that_a_group_has_joined_is_resumed(shared_tmp_path: Path) -> None:
    """A training state has more groups than the resumed run is started with, and each goes on with its rates."""
    save = SaveTrainingStateCallback(shared_tmp_path, save_every_n_steps=3, save_at_end=False)
    uninterrupted = rates_while_unfreezing(save)

    resumed = rates_while_unfreezing(resume_from=shared_tmp_path)

    assert resumed == uninterrupted[3:]


COSINE = CosineLrScheduler.create_scheduler_fn(num_warmup_epochs=1, num_cooldown_epochs=1, lr_min=0.001)
WSD = WSDLrScheduler.create_scheduler_fn(num_warmup_epochs=1, decay_phase_ratio=0.5, lr_min=0.001)


@pytest.mark.parametrize("create_scheduler", [COSINE, WSD], ids=["cosine", "wsd"])
def test_a_run_that_is_resumed_in_the_same_trainer_follows_the_same_rates(
    tmp_path: Path, create_scheduler: Callable[[Optimizer], Any]
) -> None:
    """The rate at which an interruption left the optimizer is not taken for the one that the schedule begins with."""

    class Interrupt(TrainerCallback):
        update = 0

        @override
        def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
            if trainer.num_updates_completed == self.update:
                raise OSError(f"at {self.update}")

    def make_trainer(*callbacks: TrainerCallback) -> tuple[Trainer[nn.Linear], RatesUsed]:
        torch.manual_seed(0)
        model, keep = nn.Linear(4, 1), RatesUsed()
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        return Trainer(model, nn.MSELoss(), optimizer, callbacks=[keep, *callbacks]), keep

    def train(trainer: Trainer[nn.Linear], **options: Any) -> None:
        trainer.train(make_regression(40), 5, create_scheduler_fn=create_scheduler, **options)

    whole, of_whole = make_trainer()
    train(whole)
    interrupt = Interrupt()
    trainer, keep = make_trainer(SaveTrainingStateCallback(tmp_path, save_every_n_steps=2), interrupt)
    for interrupt.update in (9, 15, 22):
        with pytest.raises(OSError, match="at"):
            train(trainer, resume_from=tmp_path, resume_missing="start")
    interrupt.update = -1
    num_before = len(keep.rates)
    train(trainer, resume_from=tmp_path)

    assert keep.rates[num_before:] == of_whole.rates[22:]
    assert torch.equal(trainer.model.weight, whole.model.weight)


def test_a_run_that_is_made_longer_keeps_the_cosine_at_its_end_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table of differences says it, and no later update has another rate."""

    def train(num_epochs: int, **options: Any) -> RatesUsed:
        model, keep = nn.Linear(4, 1), RatesUsed()
        save = SaveTrainingStateCallback(tmp_path)
        trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[keep, save])
        trainer.train(
            make_regression(16), num_epochs, create_scheduler_fn=CosineLrScheduler.create_scheduler_fn(), **options
        )
        return keep

    train(2)
    rates = train(4, resume_from=tmp_path / "final").rates

    assert "4; then the behaviour of its scheduler after its end" in capsys.readouterr().out
    assert set(rates[1:]) == {1e-6}


PAGE = (Path(__file__).parents[3] / "docs" / "schedulers.md").read_text()


def test_the_recipes_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pasted into a script with a model, an optimizer and ten batches, they train, save, and train on."""
    monkeypatch.chdir(tmp_path)
    model = nn.Linear(4, 1)
    optimizer, loss_func = SGD(model.parameters(), lr=0.01), nn.MSELoss()
    names: dict[str, Any] = {
        "DEFAULT_CALLBACKS": DEFAULT_CALLBACKS,
        "Trainer": Trainer,
        "loss_func": loss_func,
        "model": model,
        "optimizer": optimizer,
        "eval_dataset": make_regression(20),
        "train_dataset": make_regression(80),
        "trainer": Trainer(model, loss_func, optimizer),
    }

    for recipe in re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE):
        exec(recipe, names)

    saved = sorted(path.name for path in Path("checkpoints").iterdir())
    assert len(saved) == 6
    assert saved == sorted(set(re.findall(r"`(checkpoint_\d+_\w+(?:\.pt)?)`", PAGE)))
    assert names["trainer"].num_updates_completed == 200
    assert {path.name for path in Path("longer").iterdir()} == {
        "checkpoint_180_wsd_pre_decay",
        "checkpoint_200_wsd_post_decay.pt",
    }
