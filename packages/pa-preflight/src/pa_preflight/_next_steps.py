"""Where to read on after a finding."""

from __future__ import annotations

from collections.abc import Mapping

PAGES: Mapping[str, str] = {
    "augmentation-in-evaluation": "data.md#augmentation",
    "augmentation-repeats": "data.md#augmentation",
    "batch-not-learnt": "schedulers.md#finding-a-learning-rate",
    "batch-of-one-with-batch-norm": "data.md#loaders",
    "disk-too-small": "training-states.md#cost",
    "evaluation-not-repeatable": "troubleshooting.md#wrong-results",
    "frozen-in-optimizer": "finetuning.md",
    "half-precision-weights": "mixed-precision.md#what-stays-in-float32",
    "inputs-not-finite": "troubleshooting.md#nan-and-invalid-losses",
    "loss-at-start": "troubleshooting.md#wrong-results",
    "loss-follows-batch-size": "guarantees.md#across-processes-accumulation-and-batch-size",
    "loss-not-finite": "troubleshooting.md#nan-and-invalid-losses",
    "rate-is-zero": "schedulers.md#preview-a-schedule",
    "rate-too-high": "schedulers.md#finding-a-learning-rate",
    "sorted-by-class": "data.md#batches-and-shuffling",
    "state-not-loaded": "training-states.md#what-belongs-to-a-state",
    "state-not-saved": "training-states.md#what-belongs-to-a-state",
    "statistics-move-twice": "speed-and-memory.md#activation-checkpointing",
    "step-fails": "troubleshooting.md#the-most-common-errors",
    "targets-broadcast": "run.md#from-a-batch-to-a-loss",
    "targets-not-finite": "troubleshooting.md#nan-and-invalid-losses",
    "weight-decay-on-norms": "finetuning.md#weight-decay-groups",
    "weights-do-not-change": "troubleshooting.md#wrong-results",
    "workers-are-the-bottleneck": "speed-and-memory.md#profiling",
}
"""Pages of ``docs`` by the names of findings, for those that a page says more about than the finding."""
