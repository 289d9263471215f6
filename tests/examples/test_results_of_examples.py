"""What examples find out is true, and what one process finds out, two do as well."""

from __future__ import annotations

import re

import pytest

from pa_data.orders import ClassBalanced, Shuffled
from tests.examples.shared_launches import SharedLaunches
from tests.examples.ways import EXAMPLES, WAYS, load_example, numbers_in
from tests.launching import Launch

ONE, TWO = WAYS[:2]
two_ranks_each_time = pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.whole_proof), 2])


def test_a_student_learns_from_its_teacher(shared_launch: SharedLaunches) -> None:
    """On two ranks, of 300 digits: more than from the digits alone, and less than the teacher."""
    _, results = shared_launch("distillation", TWO).output.split("The teacher")
    teacher, student, untaught = numbers_in(results, r"([\d.]+)%")
    assert teacher > student > untaught > 80


def test_a_generator_comes_nearer_to_the_digits(shared_launch: SharedLaunches) -> None:
    """The mean of what it makes; one that has learned nothing is twice as far away."""
    output = shared_launch("gan", TWO).output
    assert output.count("Epoch 30:") == 1
    assert numbers_in(output, r"is ([\d.]+) from")[0] < 0.35


def test_the_pole_stands_for_longer(shared_launch: SharedLaunches) -> None:
    """In the second epoch, after sixteen updates with the first."""
    first, second = numbers_in(shared_launch("ppo", TWO).output, r"stands for ([\d.]+) steps")
    assert second > 1.5 * first


def test_the_buffer_grows_and_the_way_to_the_exit_gets_shorter(shared_launch: SharedLaunches) -> None:
    """From epoch to epoch."""
    output = shared_launch("replay_buffer", TWO).output
    steps = numbers_in(output, r"([\d.]+) steps to the exit")
    sizes = numbers_in(output, r"exit, (\d+) steps in the buffer")
    assert steps[0] > steps[-1]
    assert sizes == pytest.approx([48 * sum(steps[: number + 1]) for number in range(4)], abs=10)


def test_the_state_is_worth_something(shared_launch: SharedLaunches) -> None:
    """A character costs less where the state of the chunk before is known."""
    output = shared_launch("truncated_bptt", TWO).output
    (bits,) = numbers_in(output, r"a character costs ([\d.]+) bits")
    (alone,) = numbers_in(output, r"not carried on: ([\d.]+) bits")
    assert bits < alone


def test_each_stage_trains_more_layers(shared_launch: SharedLaunches) -> None:
    """The first trains the head alone, the last all but the input; with it, more digits are recognised."""
    output = shared_launch("finetune_timm", TWO).output.replace(",", "")
    trained = numbers_in(output, r"Stage \d: (\d+) parameters trained")
    shares = numbers_in(output, r"parameters trained ([\d.]+)%")
    assert trained[0] == 453
    assert trained == sorted(set(trained))
    assert shares[-1] > max(80, shares[0])


@pytest.mark.parametrize("way", [pytest.param(ONE, marks=pytest.mark.whole_proof), TWO])
def test_the_rate_falls_to_its_end_in_the_last_stage(shared_launch: SharedLaunches, way: str) -> None:
    """Epochs are counted on, the cycle ends with the run, and the full size is recognised better with each stage."""
    output = shared_launch("progressive_resizing", way).output
    rows = re.findall(r"^(\d) x \1 +(\d-\d) +([\d.]+) +([\d.]+)%$", output, re.MULTILINE)
    assert [(size, epochs) for size, epochs, _, _ in rows] == [("4", "1-2"), ("6", "3-4"), ("8", "5-6")]
    rates = [float(rate) for _, _, rate, _ in rows]
    assert rates[0] > rates[1] > rates[2] == 0.0
    shares = [float(share) for *_, share in rows]
    assert shares[0] < shares[1] < shares[2]


def test_two_ranks_find_as_many_digits(shared_launch: SharedLaunches) -> None:
    """Two processes end where one does: metrics and losses are those of all images."""
    one, two = (shared_launch("detect_digits", way).output for way in (ONE, TWO))
    for name, off in (("eval_found_epoch", 0.05), ("eval_wrong_boxes_epoch", 0.1), ("eval_loss_epoch", 0.2)):
        single, pair = (numbers_in(output, rf"{name} +([\d.]+)")[-1] for output in (one, two))
        assert pair == pytest.approx(single, abs=off)
    assert numbers_in(one, r"([\d.]+)% of the digits")[-1] > 70


def test_the_lowest_of_the_complete_means_is_chosen(shared_launch: SharedLaunches) -> None:
    """Trials that were stopped after a fold do not count, and settings are those of one process for all."""
    pytest.importorskip("optuna")
    output = shared_launch("cross_validation", TWO).output
    trials = re.findall(r"^Trial \d: ([\d.]+) over (\d) folds$", output, re.MULTILINE)
    assert len(trials) == 3
    best = numbers_in(output, r"\nThe best mean over the folds is ([\d.]+): learning_rate=")
    assert best == [min(float(mean) for mean, folds in trials if folds == "3")]


@two_ranks_each_time
def test_pruned_trials_end_early(launch: Launch, ranks: int) -> None:
    """As many runs are stopped early as trials are pruned, and the lowest of the losses of the others is printed."""
    pytest.importorskip("optuna")
    launched = launch(EXAMPLES / "tune_with_optuna.py", "--trials=6", "--epochs=3", ranks=ranks)
    assert launched.status == 0

    (pruned,) = numbers_in(launched.output, r"\nOf 6 trials, (\d) were pruned\.\n")
    (lowest,) = numbers_in(launched.output, r"\nThe lowest loss is ([\d.]+): learning_rate=")
    runs = launched.output.split("Training starts:")[1:]
    stopped = ["Stopping early: the trial is pruned" in run for run in runs]
    assert len(runs) == 6
    assert 0 < sum(stopped) == pruned < 6
    ended = [numbers_in(run, r"\nTraining ended: (\d) epochs?") for run in runs]
    assert [epochs == [3] for epochs in ended] == [not is_stopped for is_stopped in stopped]
    assert 0 < lowest < 2.3


@two_ranks_each_time
def test_a_listener_ends_the_training_and_another_one_reports(launch: Launch, ranks: int) -> None:
    """The run ends after the evaluation that found few mistakes, as many as were asked for, and says which."""
    launched = launch(EXAMPLES / "custom_event.py", "--mistakes=40", "--epochs=12", ranks=ranks)
    assert launched.status == 0
    assert "Stopping early: at most 40 digits are mistaken" in launched.output
    last = launched.output.splitlines()[-1]
    found = re.fullmatch(r"(\d+) of 297 digits are mistaken, most often (\d) for (\d), (\d+) times", last)
    assert found
    mistakes, digit, taken_for, times = map(int, found.groups())
    assert times <= mistakes <= 40
    assert digit != taken_for


def test_class_balance_finds_rare_digits() -> None:
    """With equally many samples of each digit, many more of the rare ones are recognised after equally many updates."""
    example = load_example("imbalanced_digits")
    data, tests = example["load_data"]()
    assert (len(data), len(tests["rare"]) + len(tests["common"])) == (867, 597)
    rare: dict[str, float] = {}
    for order in (Shuffled(), ClassBalanced(data.digits, num_samples=len(data))):
        trainer = example["train"](order, data, tests, epochs=4)
        rare[type(order).__name__] = trainer.run_history.get_latest_metric("evaluation_rare_accuracy")
    assert rare["ClassBalanced"] > rare["Shuffled"] + 0.1


@pytest.mark.parametrize(
    ("arguments", "ranks"), [([], 1), pytest.param(["--shard"], 2, marks=pytest.mark.whole_proof)], ids=str
)
def test_two_processes_contrast_the_pairs_of_both(
    launch: Launch, shared_launch: SharedLaunches, arguments: list[str], ranks: int
) -> None:
    """Metrics are those of one process, which has all pairs of a batch, and those of pieces of the model with FSDP2."""
    other = launch(EXAMPLES / "match_captions.py", "--epochs=2", *arguments, ranks=ranks)
    assert other.status == 0
    two, expected = (
        numbers_in(output, r"\n  (?:train|eval)_\w+ +(\S+)")
        for output in (shared_launch("match_captions", TWO).output, other.output)
    )
    assert len(expected) == 3
    assert two == pytest.approx(expected, rel=1e-3)


COUNT_BY_HAND = """
import runpy, sys
import torch
from torch import nn
from torch.utils.data import DataLoader

example = runpy.run_path(sys.argv[1])
train, _, test = example["load_data"]()
torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
trainer = example["DigitsTrainer"](model, torch.optim.AdamW(model.parameters(), lr=0.01))
trainer.train(train, 1, per_device_batch_size=32)
trainer.evaluate(test, per_device_batch_size=64)

((pixels, digits),) = DataLoader(test, batch_size=300)
logits = model(pixels)
right = logits.argmax(1) == digits
expected = {
    "recognised": right.float().mean(),
    "recognised_per_digit": torch.stack([right[digits == digit].float().mean() for digit in range(10)]).mean(),
    "evaluation_certainty": logits.softmax(1).amax(1).mean(),
}
for name, value in expected.items():
    assert abs(float(trainer.run_history.get_latest_metric(name)) - float(value.detach())) < 1e-5, name
trainer.print("as by hand")
"""


@two_ranks_each_time
def test_metrics_are_those_that_are_counted_by_hand(launch: Launch, ranks: int) -> None:
    """Accuracies and the logged mean are over the 300 test digits, on any number of processes."""
    launched = launch(COUNT_BY_HAND, str(EXAMPLES / "metrics_in_a_subclass.py"), ranks=ranks)
    assert launched.status == 0
    assert "as by hand" in launched.output
