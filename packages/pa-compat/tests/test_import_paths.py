"""The import paths of pytorch-accelerated: each leads to the object of our own packages."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

import pa_callbacks_extra
import pa_core
import pa_core.data
import pa_core.tracking
import pa_data
import pa_finetuning
import pa_schedulers
import pytorch_accelerated

DOCUMENTED = {
    "pytorch_accelerated": "Trainer TrainerPlaceholderValues TrainerWithTimmScheduler notebook_launcher",
    "pytorch_accelerated.trainer": """
        DEFAULT_CALLBACKS Trainer TrainerPlaceholderValues TrainerWithTimmScheduler get_default_callbacks
    """,
    "pytorch_accelerated.callbacks": """
        DEFAULT_CALLBACKS CallbackHandler LimitBatchesCallback LimitEvalStepsCallback LogMetricsCallback
        MoveModulesToDeviceCallback PrintProgressCallback ProgressBarCallback SaveBestModelCallback
        SaveTrainingStateCallback StepBasedEvaluationCallback StopTrainingError TerminateOnNaNCallback TrainerCallback
        get_default_callbacks ConvertSyncBatchNormCallback EarlyStoppingCallback ModelEmaCallback WSDCheckpointCallback
    """,
    "pytorch_accelerated.tracking": "InMemoryRunHistory LossTracker RunHistory",
    "pytorch_accelerated.run_config": "TrainerRunConfig",
    "pytorch_accelerated.finetuning": "Layer LayerGroup ModelFreezer",
    "pytorch_accelerated.schedulers": "CosineLrScheduler SchedulerBase StatefulSchedulerBase WSDLrScheduler",
    "pytorch_accelerated.schedulers.cosine_scheduler": "CosineLrScheduler",
    "pytorch_accelerated.schedulers.scheduler_base": "SchedulerBase StatefulSchedulerBase",
    "pytorch_accelerated.schedulers.wsd_scheduler": "WSDCheckpointCallback WSDLrScheduler",
    "pytorch_accelerated.utils": """
        LimitBatches local_process_zero_first local_process_zero_only world_process_zero_only DataLoaderSlice
        remove_padding worker_init_fn ModelEma
    """,
}
"""Names by module."""
SOURCES = [pa_core, pa_core.data, pa_core.tracking, pa_data, pa_callbacks_extra, pa_finetuning, pa_schedulers]
OTHER_NAMES = {"pytorch_accelerated.callbacks": {"PrintMetricsCallback": "LogMetricsCallback"}}
"""Names that the reference uses for what it documents under another one."""


@pytest.mark.parametrize("path", DOCUMENTED)
def test_a_documented_path_leads_to_our_object(path: str) -> None:
    """What is imported under the known path is the object itself: subclassing and isinstance work across both."""
    for name in DOCUMENTED[path].split():
        source = next(one for one in SOURCES if name in one.__all__)
        assert getattr(importlib.import_module(path), name) is getattr(source, name), name


@pytest.mark.parametrize("path", DOCUMENTED)
def test_a_module_exports_what_is_documented_and_has_nothing_of_its_own(path: str) -> None:
    """``from ... import *`` gives the documented names; no function or class is defined here."""
    module = importlib.import_module(path)
    other_names = OTHER_NAMES.get(path, {})

    assert set(module.__all__) == {*DOCUMENTED[path].split(), *other_names}
    assert all(getattr(module, other) is getattr(module, name) for other, name in other_names.items())
    own = [
        name
        for name, value in vars(module).items()
        if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__.startswith("pytorch_accelerated")
    ]
    assert own == []


def test_no_module_is_missing_here() -> None:
    """Every public module of the package is one of the documented paths."""
    modules = [found.name for found in pkgutil.walk_packages(pytorch_accelerated.__path__, "pytorch_accelerated.")]

    assert {"pytorch_accelerated", *(name for name in modules if "._" not in name)} == set(DOCUMENTED)
