"""The events of callbacks that the reference documents."""

from __future__ import annotations

EVENTS = [
    "on_eval_epoch_end",
    "on_eval_epoch_start",
    "on_eval_step_end",
    "on_eval_step_start",
    "on_evaluation_run_end",
    "on_evaluation_run_start",
    "on_init_end",
    "on_stop_training_error",
    "on_train_epoch_end",
    "on_train_epoch_start",
    "on_train_step_end",
    "on_train_step_start",
    "on_training_run_end",
    "on_training_run_epoch_end",
    "on_training_run_start",
]
