"""The benchmarks compare like with like, and their driver works."""

from __future__ import annotations

import datetime
import importlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import Subset

from benchmarks.comparisons import COMPARISONS, Comparison
from benchmarks.growth.network import has_networks
from benchmarks.loaders import RESUMABLE, position_at, state_after, tensors
from benchmarks.measures import loop_named
from benchmarks.processes import ROOT, measure
from benchmarks.report import as_page, failed, peers_of, rows
from benchmarks.resumes import UPDATED, by_hand, ours
from benchmarks.tasks import TASKS, AdversarialTask, Sentences, Task
from benchmarks.within_a_step import calls_of_edge, calls_of_step, time_chapters
from tests.launching import run_command

at_night = pytest.mark.more_cases
LOOPS = ("by_hand", "by_accelerate", "ours_bare", "ours")


def notes_of(model: nn.Module, optimizer: Optimizer) -> tuple[list[int], list[int]]:
    """Lists that get the sizes of the batches that a network is called on, and an entry for each of its updates."""
    sizes, updates = list[int](), list[int]()

    def note_size(_model: object, inputs: Any) -> None:
        sizes.append(len(inputs[0]))

    def note_update(*_: object) -> None:
        updates.append(1)

    model.register_forward_pre_hook(note_size)
    optimizer.register_step_post_hook(note_update)
    return sizes, updates


def work_of(loop: str, task: Task) -> tuple[list[int], int]:
    """The sizes of the batches that a loop calls the network on in two epochs, and the number of its updates."""
    sizes, updates = notes_of(task.model, task.optimizer)
    loop_named(loop).train(task, 2)
    return sizes, len(updates)


@pytest.mark.parametrize(
    "name", ["digits", *(pytest.param(one, marks=at_night) for one in ("text", "images", "images_in_workers"))]
)
def test_all_loops_do_the_same_work(name: str) -> None:
    """Each calls the network on as many batches of the same sizes and makes as many updates, in every task."""
    work: list[tuple[list[int], int]] = []
    size = TASKS[name]().batch_size
    for loop in LOOPS:
        task = TASKS[name]()
        work.append(work_of(loop, replace(task, dataset=Subset(task.dataset, range(4 * size + 1)))))
    assert work[0][0][:5] == [size] * 4 + [1]
    assert work == work[:1] * len(LOOPS)


def test_the_tuned_loop_one_within_a_run_and_a_trial_do_the_same_work() -> None:
    """What the trainer adds to the first is not the work of another batch or update."""
    work = [work_of(loop, TASKS["digits"]()) for loop in ("ours_bare", "by_hand_tuned", "own_loop", "trial")]
    assert work == work[:1] * 4


def test_loops_with_two_optimizers_do_the_same_work() -> None:
    """Both networks are called on as many batches of the same sizes, and both are updated for each of them."""
    work: list[tuple[tuple[list[int], int], list[int], int]] = []
    for loop in ("gan_by_hand", "gan_own_loop", "gan_trial"):
        task = TASKS["gan"]()
        assert isinstance(task, AdversarialTask)
        sizes, updates = notes_of(task.discriminator, task.discriminator_optimizer)
        work.append((work_of(loop, task), sizes, len(updates)))
    assert work == work[:1] * 3


def test_loops_with_a_budget_of_tokens_do_the_same_work() -> None:
    """Each sample is in one batch of an epoch, in about as many batches."""
    loops = ("budget_by_hand", "budget_ours")
    work = [work_of(loop, replace(TASKS["sentences"](), dataset=Sentences(200))) for loop in loops]
    assert [sum(sizes) for sizes, _ in work] == [2 * 200] * 2
    by_hand, ours = (updates for _, updates in work)
    assert by_hand <= ours <= 1.25 * by_hand


def test_all_loops_evaluate_the_same_samples() -> None:
    """Each calls the network without gradients, on every sample once."""
    for loop in (*LOOPS, "by_hand_tuned"):
        task = TASKS["digits"]()
        seen: list[int] = []

        def note(_model: object, inputs: Any, seen: list[int] = seen) -> None:
            assert not torch.is_grad_enabled()
            seen.append(len(inputs[0]))

        task.model.register_forward_pre_hook(note)
        importlib.import_module(f"benchmarks.loops.{loop}").evaluate(task, 1)
        assert sum(seen) == 1797


def test_one_command_prints_the_table() -> None:
    """Figures come from processes of their own; what is promised is marked as kept or missed."""
    launched = run_command([sys.executable, "-m", "benchmarks", "importing, after torch", "--rounds", "1"], folder=ROOT)
    assert launched.status == 0
    (row,) = [line for line in launched.output.splitlines() if "pa core" in line]
    assert row.endswith(("kept", "MISSED"))


@pytest.mark.parametrize(
    ("figure", "ranks"),
    [
        ("load", None),
        *(pytest.param(*one, marks=at_night) for one in [("durable", None), ("unchanged", None), ("load_sharded", 2)]),
    ],
)
def test_checkpoints_are_compared_with_those_of_torch(figure: str, ranks: int | None) -> None:
    """Both save, and load what they have saved, on one process and sharded over two."""
    comparison = Comparison("a checkpoint", f"checkpoints {figure} 1 1", ("dcp", "ours"), ranks=ranks)
    figures = measure(comparison)[""]
    assert set(figures) == {"dcp", "ours"}
    assert min(figures.values()) > 0


@pytest.mark.parametrize(
    ("figure", "variants", "separately"),
    [
        ("clock tensors 320 0", ("torchdata", "torch", "ours", "ours_unkeyed"), False),
        pytest.param("processor rows 320 2", ("torchdata", "torch", "ours", "ours_unkeyed"), False, marks=at_night),
        pytest.param("resume end 320 2", ("torchdata", "ours"), False, marks=at_night),
        pytest.param("state 320 2", ("torchdata", "ours"), False, marks=at_night),
        ("memory 320 2", ("ours",), True),
    ],
)
def test_loaders_are_compared_with_those_of_others(figure: str, variants: tuple[str, ...], separately: bool) -> None:
    """Each figure is measured for each loader, of few samples too."""
    comparison = Comparison("a loader", f"loaders {figure}", variants)
    figures = measure(comparison, "ours" if separately else None)[""]
    assert set(figures) == set(variants)
    assert min(figures.values()) > 0


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 calls it with torch 2.13
@pytest.mark.parametrize("name", RESUMABLE)
@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_that_are_compared_resume_at_the_same_place(name: str, workers: int) -> None:
    """What a loader yields after a state is what it had not yielded before."""
    dataset = tensors(320)
    whole = [batch[0][:, 0].tolist() for batch in RESUMABLE[name](dataset, workers)]
    resumed = RESUMABLE[name](dataset, workers)
    resumed.load_state_dict(state_after(RESUMABLE[name](dataset, workers), position_at("middle", 320)))
    assert [batch[0][:, 0].tolist() for batch in resumed] == whole[5:]


def test_scripts_that_are_killed_go_on_after_the_first_epoch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both make the updates of one more epoch, with what they have saved."""
    for script in (by_hand, ours):
        folder = tmp_path / script.__name__
        folder.mkdir()
        for epochs in (1, 2):
            UPDATED.clear()
            script(folder)
            assert len(UPDATED) == 57, epochs
    assert torch.load(tmp_path / "by_hand" / "state.pt")["epoch"] == 2
    assert "at the start of epoch 2, after update 57" in capsys.readouterr().out


def test_figures_are_compared_within_their_round() -> None:
    """A machine that is twice as slow in one round changes no ratio."""
    comparison = COMPARISONS[0]
    rounds = [{"by_hand": 100.0, "by_hand_tuned": 80.0, "by_accelerate": 150.0, "ours_bare": 90.0, "ours": 95.0}]
    rounds += [{name: 2 * figure for name, figure in rounds[0].items()}]
    measured = rows(comparison, rounds)
    assert [row.cells[4:6] for row in measured] == [
        ("1.00", "1.00 to 1.00"),
        ("0.80", "0.80 to 0.80"),
        ("1.50", "1.50 to 1.50"),
        ("0.90", "0.90 to 0.90"),
        ("0.95", "0.95 to 0.95"),
    ]
    assert [row.keeps_promise for row in measured] == [None, None, None, None, True]
    assert "| a step, data in memory | ours | 142 us | 95 to 190 | 0.95 | 0.95 to 0.95 | 1.00 | 2, " in as_page(
        "cpu", {comparison.name: (2, measured)}
    )


def test_what_could_not_be_measured_is_a_row() -> None:
    """With the reason; a pipe in it does not break the table."""
    comparison = COMPARISONS[0]
    measured = failed(comparison, RuntimeError("it ended with status 1:\n...\nOSError: a | b"))
    assert [row.verdict for row in measured] == ["FAILED"]
    page = as_page("cpu", {comparison.name: (1, measured)})
    assert "| **failed**: it ended with status 1: ... OSError: a \\| b |" in page
    figures = dict.fromkeys(comparison.variants, 1.0) | {"ours": float("nan")}
    assert [row.verdict for row in rows(comparison, [figures])] == ["", "", "", "", "FAILED"]


def test_a_part_of_the_table_is_written_into_the_rest() -> None:
    """What was measured again takes the place of its comparison; figures, days and order of the others stay."""
    table = {one.name: (5, rows(one, [dict.fromkeys(one.variants, 2.0)])[-1:]) for one in COMPARISONS[:3]}
    before = re.sub(r"5, \d+-\d+-\d+", "5, 2001-02-03", as_page("cpu", table))
    again = {COMPARISONS[1].name: (3, rows(COMPARISONS[1], [dict.fromkeys(COMPARISONS[1].variants, 3.0)]))}
    written = as_page("cpu", again, before)
    assert written.replace("2001-02-03", f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}") == as_page(
        "cpu", table | again
    )
    assert written.count("5, 2001-02-03") == 2
    assert written.count("| 3 us |") == len(COMPARISONS[1].variants)


def test_a_page_states_the_versions_of_other_trainers() -> None:
    """Once they were measured, and they can be read again when a part of the page is written."""
    measured = {COMPARISONS[0].name: (1, rows(COMPARISONS[0], [dict.fromkeys(COMPARISONS[0].variants, 1.0)]))}
    page = as_page("cpu", measured, peers="lightning 2.6.6, torchtnt 0.2.4")
    assert page.splitlines()[1] == "Other trainers: lightning 2.6.6, torchtnt 0.2.4."
    assert peers_of(as_page("cpu", measured, page, peers_of(page))) == "lightning 2.6.6, torchtnt 0.2.4"
    assert not peers_of(as_page("cpu", measured))


@pytest.mark.parametrize("loop", LOOPS)
def test_a_step_is_told_apart_into_the_same_chapters_in_all_loops(loop: str) -> None:
    """Where its time goes can be compared, also where several batches make an update."""
    task = TASKS["digits"]()
    task = replace(task, dataset=Subset(task.dataset, range(6 * task.batch_size)), num_epochs=1, accumulation=2)
    chapters = time_chapters(task, loop_named(loop).train)
    lengths = [len(times) for times in chapters.values()]
    assert list(chapters)[::2] == ["forward pass", "loss", "backward pass", "update", "clearing gradients"]
    assert lengths == [6, 6, 6, 6, 6, 6, 3, 2, 2, 2]


@pytest.mark.parametrize(
    ("loop", "most", "most_at_edge"),
    [
        ("by_hand_tuned", 0, 0),
        ("ours_bare", 44, 194),
        ("ours", 51, 361),  # the default callbacks lay out and print a row
        ("own_loop", 63, 183),
        ("trial", 32, 13),
    ],
)
def test_a_step_calls_few_functions_of_the_trainer(loop: str, most: int, most_at_edge: int) -> None:
    """Its own share of a step does not grow unnoticed: counted, as times scatter by more than a function takes."""
    train = loop_named(loop).train
    of_step = calls_of_step(TASKS["digits"], train)
    assert of_step.of_trainer <= most
    assert of_step.of_trainer == calls_of_step(TASKS["digits"], train).of_trainer
    assert 0 <= calls_of_edge(TASKS["digits"], train).of_trainer <= most_at_edge


@pytest.mark.parametrize("what", ["samples", pytest.param("processes", marks=at_night)])
def test_growth_is_measured_point_by_point(what: str, tmp_path: Path) -> None:
    """The driver writes a point of each curve for each size, and keeps what it did not measure again."""
    if what == "processes" and not has_networks():
        pytest.skip("needs network namespaces with devices of their own")
    path = tmp_path / "growth.json"
    path.write_text(json.dumps({"steps": {"rounds": 7}}))
    launched = run_command(
        [sys.executable, "-m", "benchmarks.growth", what, "--dry-run", "--output", str(path)], folder=ROOT
    )
    assert launched.status == 0, launched.output
    written = json.loads(path.read_text())
    assert list(written) == [what, "steps"]
    sizes = {"samples": [10_000, 100_000], "processes": [1, 2]}[what]
    names = {"samples": ["middle", "start"], "processes": ["0 ms", "1 ms"]}[what]
    curves = written[what]["curves"]
    assert {name: [point["size"] for point in curve] for name, curve in curves.items()} == dict.fromkeys(names, sizes)
    assert all(0 < point["least"] <= point["median"] <= point["most"] for curve in curves.values() for point in curve)
