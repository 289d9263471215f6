"""Runs with several evaluation sets that are interrupted in one of them, and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from typing_extensions import override

from pa_core import (
    AnyTrainer,
    EvaluationSet,
    StepBasedEvaluationCallback,
    TrainerCallback,
    TrainingPreempted,
    distributed,
)
from pa_core.storage import read_state
from tests.support.pa_core.training_states.preempted_runs import SignalAt, preemptible
from tests.support.pa_core.training_states.small_runs import (
    DrawingDataset,
    InterruptAt,
    Interrupted,
    make_trainer,
    train,
)

VAL, OOD, RARE = DrawingDataset(20), DrawingDataset(12), DrawingDataset(9)
SETS: dict[str, Any] = {"val": VAL, "ood": OOD, "rare": EvaluationSet(RARE, every_n_epochs=2)}
WITHIN_EPOCHS = ["val", "rare"]


class DrawInEvaluations(TrainerCallback):
    """Draws from torch's stream in each batch of an evaluation, and records what it has drawn."""

    def __init__(self) -> None:
        self.drawn = 0.0

    @override
    def on_eval_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.drawn = 0.0

    @override
    def on_eval_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        self.drawn += float(torch.rand(()))

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        trainer.run_history.update_metric("drawn", self.drawn)


def trainer_with(*more: TrainerCallback) -> Any:
    """Evaluates two of the sets within the epochs, and all of them after some."""
    return make_trainer(StepBasedEvaluationCallback(4, eval_names=WITHIN_EPOCHS), DrawInEvaluations(), *more)


def train_with_sets(trainer: Any, **options: Any) -> dict[str, Any]:
    """As ``train``, with the sets."""
    return train(trainer, eval_dataset=SETS, **options)


@pytest.mark.runs_on("one_process", "two_ranks")
def test_sets_that_were_evaluated_before_an_interruption_are_not_evaluated_again(shared_tmp_path: Path) -> None:
    """The resumed run goes on with the set that was interrupted: every value, draw and weight is as without."""
    expected = train_with_sets(trainer_with())
    last_rank = distributed.num_processes() - 1
    for step in (2, 4, 7, 9) if last_rank == 0 else (2, 5, 6):  # in each set, within an epoch and after it
        folder = shared_tmp_path / str(step)
        with pytest.raises(TrainingPreempted):
            train_with_sets(trainer_with(preemptible(folder), SignalAt("on_eval_step_end", step, rank=last_rank)))
        assert train_with_sets(trainer_with(preemptible(folder)), resume_from=folder) == expected, step


def test_the_state_names_the_sets_that_are_left(tmp_path: Path) -> None:
    """Those of the interrupted evaluation, whichever these were; states of other moments have no such entry."""
    left: dict[int, Any] = {}
    for step in (2, 4, 6, 9, 11):  # in val and in rare within the first epoch; in val and in ood after it; in training
        folder = tmp_path / str(step)
        event = "on_eval_step_end" if step < 11 else "on_train_step_end"
        with pytest.raises(TrainingPreempted):
            train_with_sets(trainer_with(preemptible(folder), SignalAt(event, step)))
        (state,) = folder.glob("step_*")
        position = read_state(state).parts["run"]["position"]
        left[step] = position["phase"], position.get("eval_sets")
    assert left == {
        2: ("intermediate_evaluation", ["val", "rare"]),
        4: ("intermediate_evaluation", ["rare"]),
        6: ("evaluation", ["val", "ood"]),
        9: ("evaluation", ["ood"]),
        11: ("step", None),
    }


def test_a_killed_run_evaluates_the_sets_of_its_epoch_again_as_before(tmp_path: Path) -> None:
    """Resumed from the state of a whole epoch, each set is evaluated in the epochs in which it was."""
    expected = train_with_sets(trainer_with())
    with pytest.raises(Interrupted):
        train_with_sets(
            trainer_with(preemptible(tmp_path, save_every_n_epochs=1), InterruptAt("on_train_step_end", 10))
        )
    assert train_with_sets(trainer_with(preemptible(tmp_path)), resume_from=tmp_path) == expected


def test_other_sets_may_be_evaluated_from_an_interruption_on(tmp_path: Path) -> None:
    """A set that is no longer there is left out; without any of those that were left, all that are due run."""
    with pytest.raises(TrainingPreempted):
        train_with_sets(make_trainer(preemptible(tmp_path), SignalAt("on_eval_step_end", 4)))  # in ood, epoch 1
    for sets, recorded in (
        ({"val": VAL, "ood": OOD}, {"val": 3, "ood": 3}),
        ({"val": VAL, "new": RARE}, {"val": 4, "new": 3}),
        ({"ood": OOD, "new": RARE}, {"ood": 3, "new": 2}),
    ):
        trainer = make_trainer()
        train(trainer, eval_dataset=sets, resume_from=tmp_path)
        for name, number in recorded.items():
            assert trainer.run_history.count_metric_values(f"eval_{name}_loss_epoch") == number, (sets, name)


def test_loaders_of_ones_own_go_on_where_they_were(tmp_path: Path) -> None:
    """The generator of each set's own DataLoader is part of the state, under the name of the set."""

    def sets() -> dict[str, Any]:
        return {
            name: DataLoader(data, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(seed))
            for seed, (name, data) in enumerate({"val": VAL, "ood": OOD}.items())
        }

    def run(*callbacks: TrainerCallback, **options: Any) -> dict[str, Any]:
        return train(
            make_trainer(*callbacks),
            eval_dataset=sets(),
            eval_dataloader_kwargs=None,
            resume_missing="start",
            **options,
        )

    expected = run()
    with pytest.raises(TrainingPreempted):
        run(preemptible(tmp_path), SignalAt("on_train_step_end", 10))
    assert run(preemptible(tmp_path), resume_from=tmp_path) == expected
