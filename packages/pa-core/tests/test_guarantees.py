"""The page of guarantees: each of its rows names its tests, and those that are not exact by nature really are not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from pa_core import Trainer
from pa_core.testing import TinyClassifier, make_classification
from tests.support.loops import in_double
from tests.support.models import weights_of

TESTED_IN = {
    "mean": "test_split_properties.py::test_any_split_makes_the_updates_of_the_large_batch",
    "items": "test_split_properties.py::test_an_update_is_that_of_the_mean_over_all_its_tokens",
    "clipping": "test_split_properties.py::test_any_split_makes_the_updates_of_the_large_batch",
    "updates": "test_split_properties.py::test_any_split_makes_the_updates_of_the_large_batch",
    "reports": "test_split_properties.py::test_reported_losses_are_means_over_tokens",
    "evaluation": "test_split_properties.py::test_evaluations_of_all_sizes_are_those_of_one_process",
    "augmentation": "test_two_ranks.py::test_augmentation_does_not_depend_on_the_number_of_ranks",
    "reproducible": "test_any_processes.py::test_a_run_ends_the_same_on_one_two_and_three_processes",
    "sharded": "sharding/test_sharded_training.py::test_five_updates_are_those_of_one_process",
    "replicated": "sharding/test_replicated_pieces.py::test_five_updates_on_two_by_two_processes_are_those_of_one",
    "batchnorm": "test_guarantees.py::test_what_is_not_exact_differs_between_splits",
    "dropout": "test_guarantees.py::test_what_is_not_exact_differs_between_splits",
    "weighted": "test_guarantees.py::test_what_is_not_exact_differs_between_splits",
    "sampler": "test_training.py::test_a_plain_loader_with_an_uneven_last_batch_weighs_what_it_holds",
    "padded": "test_two_ranks.py::test_a_loader_of_the_users_own_says_that_it_is_padded",
    "orders": "orders/test_every_order.py::test_updates_are_the_same_on_any_number_of_processes_and_resumed_anywhere",
    "tokens": "orders/test_token_budget_of_runs.py::test_an_update_is_the_mean_over_the_tokens_of_its_batches",
    "files": "../../pa-data/tests/test_sharded_files.py::test_each_sample_comes_once_on_any_number_of_processes",
    "sets": "data/test_evaluation_sets.py::test_each_set_is_evaluated_in_turn_and_recorded_under_its_name",
    "predictions": "predictions/test_predicting.py::"
    "test_each_sample_comes_once_in_order_whatever_the_number_of_samples",
    "tails": "sharding/test_sharded_loops.py::test_last_step_with_a_sample_on_one_process_only",
    "accumulated": "sharding/test_sharded_training.py::test_five_updates_are_those_of_one_process",
    "by_norm": "sharding/test_sharded_training.py::test_five_updates_are_those_of_one_process",
    "by_value": "sharding/test_sharded_training.py::test_five_updates_are_those_of_one_process",
    "weights": "sharding/test_sharded_training.py::test_updates_are_means_over_items",
    "own_loop": "sharding/test_sharded_loops.py::test_updates_are_those_of_one_process",
    "guard": "sharding/test_sharded_training.py::test_a_step_that_goes_round_the_model_is_told_what_to_do",
    "stop": "sharding/test_sharded_training.py::test_a_request_of_one_process_stops_all_at_the_same_update",
    "not_finite": "sharding/test_sharded_training.py::"
    "test_a_loss_that_is_not_finite_on_one_process_ends_the_run_on_all",
    "evaluated": "sharding/test_sharded_loops.py::test_every_sample_counts_once",
    "averages": "../../pa-callbacks-extra/tests/test_sharded_average.py::"
    "test_an_average_of_pieces_is_that_of_the_whole",
    "best": "sharding/test_sharded_checkpoints.py::test_the_best_model_is_loaded_at_the_end",
    "checkpoint": "sharding/test_sharded_checkpoints.py::test_a_checkpoint_is_that_of_the_whole_model",
    "exported": "sharding/test_sharded_checkpoints.py::test_an_export_is_that_of_the_whole_model",
    "resumed": "training_states/test_sharded_states.py::test_a_run_goes_on_from_a_plain_or_a_sharded_one",
    "elastic": "training_states/test_elastic_sharded_states.py::"
    "test_a_run_ends_the_same_on_whatever_number_of_processes_it_goes_on",
    "alone": "ranks_that_differ/test_ranks_that_differ.py::test_processes_end_soon",
}
HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "guarantees.md"


def test_each_row_of_the_page_names_a_test_that_is_there() -> None:
    """A guarantee cannot be written down without a test, nor a test be removed from under it."""
    rows: list[str] = re.findall(r"^\| <!-- ([\w ]+) -->", PAGE.read_text(), re.MULTILINE)
    assert sorted(" ".join(rows).split()) == sorted(TESTED_IN)
    for test in TESTED_IN.values():
        file, name = test.split("::")
        assert f"def {name}(" in (HERE / file).read_text(), test


def weights_after(kind: str, batch_size: int, accumulation: int) -> Tensor:
    """The weights after a run with a model or loss of the given kind."""
    torch.manual_seed(0)
    model: nn.Module = TinyClassifier(batch_norm=kind == "batchnorm").double()
    if kind == "dropout":
        model = nn.Sequential(nn.Dropout(0.5), model, nn.Dropout(0.5))  # two, so that their draws take turns
    weight = torch.tensor([1.0, 2.0, 5.0]).double() if kind == "weighted" else None
    trainer = Trainer(model, nn.CrossEntropyLoss(weight), SGD(model.parameters(), lr=0.1), callbacks=[])
    data = in_double(make_classification(12))
    trainer.train(data, 2, per_device_batch_size=batch_size, gradient_accumulation_steps=accumulation)
    return weights_of(model)


@pytest.mark.parametrize("kind", ["batchnorm", "dropout", "weighted"])
def test_what_is_not_exact_differs_between_splits(kind: str) -> None:
    """What the page calls inexact by nature is not exact: nobody should rely on it by accident."""
    assert torch.allclose(weights_after("mean", 12, 1), weights_after("mean", 4, 3), rtol=0, atol=1e-14)
    assert not torch.allclose(weights_after(kind, 12, 1), weights_after(kind, 4, 3), rtol=0, atol=1e-6)
