"""What docs/migrating.md and the page with the other differences say is held to the tests beside this file."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

HERE = Path(__file__).parent
PACKAGES = HERE.parents[2]
DOCS = PACKAGES.parent / "docs"
PAGE = DOCS / "migrating.md"
OTHER_DIFFERENCES = DOCS / "maintainers" / "differences-from-pytorch-accelerated.md"

ELSEWHERE = {
    "direction": "pa-callbacks-extra/tests/test_early_stopping.py::"
    "test_a_default_that_contradicts_the_name_is_warned_of",
    "ema_moves": "pa-callbacks-extra/tests/test_model_ema_callback.py::test_the_average_follows_the_updates_of_a_run",
    "ema_end": "pa-callbacks-extra/tests/test_model_ema_callback.py::test_the_training_is_the_same_as_without",
    "sync_on_cpu": "pa-callbacks-extra/tests/test_sync_batch_norm_callback.py::test_two_ranks_train_as_one_process",
    "sync_end": "pa-callbacks-extra/tests/test_sync_batch_norm_callback.py::"
    "test_the_model_has_its_own_layers_again_however_a_run_ends",
    "counts_of_processes": "pa-schedulers/tests/test_schedule_plot.py::test_the_rows_are_what_the_optimizer_gets",
    "create_without_factory": "pa-core/tests/test_scheduler_stepping.py::"
    "test_an_override_that_needs_no_factory_makes_the_scheduler_of_each_run",
    "dropped": "pa-data/tests/test_split.py::test_training_takes_every_sample_once_and_in_order",
    "instance": "pa-core/tests/test_input_checks.py::test_a_run_that_cannot_start_says_why_and_costs_nothing",
    "order": "pa-core/tests/test_split_properties.py::test_any_split_makes_the_updates_of_the_large_batch",
    "second_module": "pa-core/tests/test_extra_models.py::"
    "test_what_would_drift_apart_is_named_before_anything_is_trained",
    "unknown_metric": "pa-callbacks-extra/tests/test_early_stopping.py::"
    "test_a_metric_that_was_never_recorded_is_an_error_that_lists_those_that_were",
    "best_entries": "pa-core/tests/callbacks/test_model_callbacks.py::test_the_best_model_is_saved_and_loaded",
    "replaced": "pa-core/tests/callbacks/test_model_callbacks.py::test_a_file_that_another_run_replaced_is_not_loaded",
    "intermediate": "pa-core/tests/callbacks/test_limit_batches.py::"
    "test_metrics_have_one_value_an_epoch_also_with_evaluations_within_it",
    "limit_within": "pa-core/tests/callbacks/test_limit_batches.py::"
    "test_a_trainer_that_was_made_outside_is_limited_within_the_context_with_a_warning",
    "train_in_name": "pa-core/tests/callbacks/test_epoch_rows.py::"
    "test_metrics_are_logged_when_they_belong_to_the_phase",
    "late_metrics": "pa-core/tests/callbacks/test_epoch_rows.py::test_a_metric_is_logged_once_and_none_is_forgotten",
    "console": "pa-core/tests/callbacks/test_epoch_rows.py::test_the_closing_table_names_the_best_epoch",
    "not_finite": "pa-core/tests/callbacks/test_terminate_on_nan.py::"
    "test_a_training_loss_that_is_not_finite_ends_the_run",
    "lengths": "pa-core/tests/data/test_batch_count.py::test_an_epoch_ends_with_the_length_of_its_loader",
    "dataloader": "pa-core/tests/data/test_data_arguments.py::test_the_batches_are_those_of_the_loader",
    "arrays": "pa-core/tests/data/test_data_arguments.py::test_what_is_not_a_dataset_is_refused_where_it_is_passed",
    "augmentation": "pa-core/tests/data/test_loader_workers.py::test_batches_and_draws_do_not_depend_on_the_workers",
    "workers": "pa-core/tests/data/test_loader_workers.py::test_a_script_without_a_main_guard_trains",
    "accelerator_settings": "pa-core/tests/test_compatibility.py::test_what_is_refused",
    "mismatch": "pa-core/tests/test_trainer_checkpoints.py::test_a_checkpoint_that_cannot_be_loaded_changes_nothing",
    "step_number": "pa-core/tests/test_events.py::test_a_run_is_recorded_event_by_event_with_its_arguments",
    "unpickling": "pa-core/tests/test_trainer_checkpoints.py::test_a_checkpoint_that_cannot_be_loaded_changes_nothing",
    "extra_entries": "pa-core/tests/test_trainer_checkpoints.py::"
    "test_entries_that_could_not_be_loaded_are_refused_when_they_are_saved",
    "sharded": "pa-core/tests/test_compatibility.py::test_sharding_that_a_launcher_asked_for",
    "batch": "pa-core/tests/test_default_step.py::test_a_batch_that_cannot_be_taken_apart_is_refused",
    "typo": "pa-core/tests/test_events.py::test_a_misspelt_event_gets_a_warning_with_the_nearest_one",
    "refused": "pa-core/tests/test_input_checks.py::test_a_run_that_cannot_start_says_why_and_costs_nothing",
    "step_output": "pa-core/tests/test_input_checks.py::test_a_step_that_returns_something_else_is_named",
    "placeholder": "pa-core/tests/test_placeholders.py::test_placeholders_are_replaced_wherever_a_partial_holds_them",
    "fp16_on_cpu": "pa-core/tests/test_precision_per_run.py::test_fp16_that_would_be_fp32",
    "to_dict": "pa-core/tests/test_run_config.py::test_to_dict_is_json_whatever_the_loader_arguments_hold",
    "nested_runs": "pa-core/tests/test_input_checks.py::test_a_run_in_a_callback_is_refused_by_name",
    "other_schedule": "pa-core/tests/test_scheduler_stepping.py::test_a_scheduler_of_another_optimizer_is_refused",
    "stepping": "pa-core/tests/test_scheduler_stepping.py::test_a_scheduler_that_follows_a_metric",
    "evaluation": "pa-core/tests/test_split_properties.py::test_evaluations_of_all_sizes_are_those_of_one_process",
    "private_names": "pa-core/tests/test_subclasses.py::test_a_name_of_a_part_is_refused_in_the_body_of_a_class",
    "timm_counting": "pa-core/tests/test_scheduler_stepping.py::"
    "test_the_scheduler_is_told_of_each_update_and_each_epoch",
    "entries": "pa-core/tests/test_tracking.py::test_the_numbers_of_a_mapping_have_names_of_their_own",
    "not_plain": "pa-core/tests/test_tracking.py::test_what_is_not_plain_is_refused",
    "share": "pa-core/tests/test_split_properties.py::test_any_split_makes_the_updates_of_the_large_batch",
    "own_model": "pa-core/tests/test_stopping.py::test_a_stop_ends_a_run_through_its_last_event",
    "loader": "pa-core/tests/data/test_loaders.py::test_the_run_config_has_the_arguments_of_the_loaders_of_its_run",
    "reported": "pa-core/tests/test_split_properties.py::test_reported_losses_are_means_over_tokens",
    "clipping": "pa-core/tests/test_split_properties.py::test_any_split_makes_the_updates_of_the_large_batch",
    "limit": "pa-core/tests/test_events_of_endings.py::test_a_run_ends_through_the_events_of_the_table",
    "other_optimizer": "pa-core/tests/test_input_checks.py::test_a_run_that_cannot_start_says_why_and_costs_nothing",
    "few_samples": "pa-core/tests/test_two_ranks.py::test_fewer_samples_than_ranks_cannot_be_evaluated",
    "foreign_states": "pa-core/tests/training_states/test_run_state.py::"
    "test_the_code_in_the_message_loads_the_weights_and_the_optimizer",
    "left_out_of_groups": "pa-finetuning/tests/test_layer_groups.py::"
    "test_an_override_that_leaves_parameters_out_is_an_error",
    "kept_eval": "pa-core/tests/test_modes.py::test_a_part_that_the_script_keeps_in_eval_mode_stays_there",
    "lasting_eval": "pa-finetuning/tests/test_model_freezer.py::test_eval_mode_of_frozen_modules_survives_train",
    "freezer_range": "pa-finetuning/tests/test_model_freezer.py::test_an_index_without_a_group_is_an_error",
    "on_the_model": "pa-finetuning/tests/test_parameter_groups.py::test_each_parameter_is_in_one_group",
    "impossible_schedule": "pa-schedulers/tests/test_cosine_scheduler.py::test_impossible_arguments_are_refused",
    "cosine_end": "pa-schedulers/tests/test_cosine_scheduler.py::"
    "test_the_cosine_falls_to_exactly_the_minimum_where_the_cooldown_begins",
    "same_start": "pa-schedulers/tests/test_scheduler_base.py::"
    "test_a_second_scheduler_starts_where_the_first_one_started",
    "wrong_number": "pa-schedulers/tests/test_scheduler_base.py::"
    "test_a_wrong_number_of_values_is_an_error_that_changes_nothing",
    "continuation_plan": "pa-schedulers/tests/test_wsd_scheduler.py::test_a_continuation_begins_with_a_stable_phase",
}
"""The tests of rows that need none under the paths of pytorch-accelerated: what is imported is the same object."""


def test_each_row_has_a_test_of_its_name_and_each_test_a_row() -> None:
    """A difference cannot be written down without a test, nor a test be removed from under it."""
    text = PAGE.read_text() + OTHER_DIFFERENCES.read_text()
    rows = re.findall(r"^\| <!-- (\w+) -->", text, re.MULTILINE)
    others = sorted(set(HERE.glob("test_*.py")) - {Path(__file__)})
    tests = [name for path in others for name in re.findall(r"^def test_(\w+)", path.read_text(), re.MULTILINE)]
    assert sorted(rows) == sorted([*tests, *ELSEWHERE])


def test_the_tests_elsewhere_are_there() -> None:
    """Whoever moves the test of a row moves its entry, too."""
    named = [test.split("::") for test in ELSEWHERE.values()]
    assert [name for path, name in named if f"\ndef {name}(" not in (PACKAGES / path).read_text()] == []


def test_both_sides_of_the_shown_diff_import_the_same_objects() -> None:
    """The lines that are gone and those that are new give a script the same names, for the same objects."""
    lines = PAGE.read_text().partition("```diff\n")[2].partition("```")[0].splitlines()
    gone, new = (
        {name: thing for line in lines if line[0] == sign for name, thing in _imported(line[1:])} for sign in "-+"
    )
    assert len(gone) == 5
    assert gone == new


def _imported(line: str) -> list[tuple[str, object]]:
    (statement,) = ast.parse(line).body
    assert isinstance(statement, ast.ImportFrom)
    module = importlib.import_module(str(statement.module))
    return [(alias.name, getattr(module, alias.name)) for alias in statement.names]
