"""A loop of one's own on two processes is the loop on one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.launching import Launch
from tests.support.pa_core.custom_loops import on_two_ranks

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the loops end with on one process, and on two."""
    folder = tmp_path_factory.mktemp("ranks")
    launch, script, env = Launch(folder), Path(on_two_ranks.__file__), {"PYTHONPATH": str(ROOT)}
    for ranks in (1, 2):
        launched = launch(script, str(folder / f"{ranks}.json"), str(ranks), ranks=ranks, env=env)
        assert launched.status == 0
    return [json.loads((folder / f"{ranks}.json").read_text()) for ranks in (1, 2)]


def _close(one: Any, other: Any) -> None:
    torch.testing.assert_close(
        [torch.tensor(value, dtype=torch.float64) for value in one],
        [torch.tensor(value, dtype=torch.float64) for value in other],
        rtol=1e-12,
        atol=1e-12,
    )


CRITICS = ["critic, sum", "critic, penalty last", "critic, penalty first"]
NAMES = ["uneven", "one_sample", "one_sample_of_many", "passes", "freezes", *CRITICS]


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_are_one(results: list[dict[str, Any]], name: str) -> None:
    """Weights and metrics are equal to 1e-12, with the same samples on the same clock."""
    one, two = (result[name] for result in results)
    _close(one["weights"], two["weights"])
    assert [record[0] for record in one["history"]] == [record[0] for record in two["history"]]
    assert [record[2:] for record in one["history"]] == [record[2:] for record in two["history"]]
    _close([[record[1]] for record in one["history"]], [[record[1]] for record in two["history"]])


def test_all_ranks_end_alike(results: list[dict[str, Any]]) -> None:
    """Weights, metrics and counts are the same on each rank."""
    assert results[1]["same"]


def test_each_sample_is_seen_once(results: list[dict[str, Any]]) -> None:
    """In each epoch, and in the evaluation, also where a rank gets a batch that weighs nothing."""
    for result in results:
        assert result["uneven"]["seen"] == sorted([number / 10 for number in range(21)] * 2)
        assert result["uneven"]["evaluated"] == [number / 10 for number in range(21)]
    assert [result["uneven"]["empty"] for result in results] == [0, 2]


def test_a_batch_that_stands_in_has_no_rows_in_what_is_gathered(results: list[dict[str, Any]]) -> None:
    """In training as in evaluations, each sample is gathered once, also a number such as the loss."""
    for result in results:
        assert result["uneven"]["gathered"] == sorted([number / 10 for number in range(21)] * 2)
        for name in ("one_sample", "one_sample_of_many"):
            assert result[name]["gathered"] == [[0.0], [0.0], [0.0]] * 2


def test_fewer_samples_than_ranks_are_evaluated(results: list[dict[str, Any]]) -> None:
    """The rank without one has a batch that weighs nothing, which the body can tell and callbacks do not see."""
    for name in ("one_sample", "one_sample_of_many"):
        assert [result[name]["empty"] for result in results] == [0, 2]
        assert [result[name]["steps"] for result in results] == [2, 2]


def test_samples_that_accelerate_repeats_are_warned_of(results: list[dict[str, Any]]) -> None:
    """A stream is split by accelerate, which repeats samples at its end: in a run as in train()."""
    assert results[0]["stream"] == {"warnings": [], "samples": {"run": 21, "trainer": 21}}
    assert results[1]["stream"]["samples"] == {"run": 22, "trainer": 22}
    assert len(results[1]["stream"]["warnings"]) == 2
    assert all("repeats samples" in one for one in results[1]["stream"]["warnings"])


def test_the_passes_of_an_update_may_be_in_any_order(results: list[dict[str, Any]]) -> None:
    """A gradient penalty, which leaves out a bias, is added to the other loss, or has a pass of its own."""
    for result in results:
        for name in CRITICS[1:]:
            for one, other in zip(result[name]["weights"], result[CRITICS[0]]["weights"], strict=True):
                torch.testing.assert_close(torch.tensor(one), torch.tensor(other), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("place", on_two_ranks.PLACES)
def test_a_request_to_stop_acts_at_the_same_update(results: list[dict[str, Any]], place: str) -> None:
    """An update is not made if this is asked for before its step, on one process as on two.

    Metrics and events are the same, too.
    """
    one, two = (result[f"asks {place}"] for result in results)
    assert (one["updates"], one["events"]) == (two["updates"], two["events"])
    assert one["updates"] == 2
    _close(one["weights"], two["weights"])
    assert [[record[0], *record[2:]] for record in one["history"]] == [
        [record[0], *record[2:]] for record in two["history"]
    ]
