"""The import paths of pytorch-accelerated: each leads to the object of our own packages."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType

import pytest

import pa_callbacks_extra
import pa_core
import pa_core.data
import pa_core.tracking
import pa_finetuning
import pa_schedulers
import pytorch_accelerated

DOCUMENTED: dict[str, dict[ModuleType, list[str]]] = {
    "pytorch_accelerated": {
        pa_core: ["Trainer", "TrainerPlaceholderValues", "TrainerWithTimmScheduler", "notebook_launcher"]
    },
    "pytorch_accelerated.trainer": {
        pa_core: [
            "DEFAULT_CALLBACKS",
            "Trainer",
            "TrainerPlaceholderValues",
            "TrainerWithTimmScheduler",
            "get_default_callbacks",
        ]
    },
    "pytorch_accelerated.callbacks": {
        pa_core: [
            "DEFAULT_CALLBACKS",
            "CallbackHandler",
            "LimitBatchesCallback",
            "LimitEvalStepsCallback",
            "LogMetricsCallback",
            "MoveModulesToDeviceCallback",
            "PrintProgressCallback",
            "ProgressBarCallback",
            "SaveBestModelCallback",
            "SaveTrainingStateCallback",
            "StepBasedEvaluationCallback",
            "StopTrainingError",
            "TerminateOnNaNCallback",
            "TrainerCallback",
            "get_default_callbacks",
        ],
        pa_callbacks_extra: ["ConvertSyncBatchNormCallback", "EarlyStoppingCallback", "ModelEmaCallback"],
        pa_schedulers: ["WSDCheckpointCallback"],
    },
    "pytorch_accelerated.tracking": {pa_core.tracking: ["InMemoryRunHistory", "LossTracker", "RunHistory"]},
    "pytorch_accelerated.run_config": {pa_core: ["TrainerRunConfig"]},
    "pytorch_accelerated.finetuning": {pa_finetuning: ["Layer", "LayerGroup", "ModelFreezer"]},
    "pytorch_accelerated.schedulers": {
        pa_schedulers: ["CosineLrScheduler", "SchedulerBase", "StatefulSchedulerBase", "WSDLrScheduler"]
    },
    "pytorch_accelerated.schedulers.cosine_scheduler": {pa_schedulers: ["CosineLrScheduler"]},
    "pytorch_accelerated.schedulers.scheduler_base": {pa_schedulers: ["SchedulerBase", "StatefulSchedulerBase"]},
    "pytorch_accelerated.schedulers.wsd_scheduler": {pa_schedulers: ["WSDCheckpointCallback", "WSDLrScheduler"]},
    "pytorch_accelerated.utils": {
        pa_core: [
            "LimitBatches",
            "local_process_zero_first",
            "local_process_zero_only",
            "world_process_zero_only",
        ],
        pa_core.data: ["DataLoaderSlice", "remove_padding", "worker_init_fn"],
        pa_callbacks_extra: ["ModelEma"],
    },
}
OTHER_NAMES = {"pytorch_accelerated.callbacks": {"PrintMetricsCallback": "LogMetricsCallback"}}
"""Names that the reference uses for what it documents under another one."""
PATHS = [
    pytest.param(path, source, name, id=f"{path}.{name}")
    for path, sources in DOCUMENTED.items()
    for source, names in sources.items()
    for name in names
]


@pytest.mark.parametrize(("path", "source", "name"), PATHS)
def test_a_documented_path_leads_to_our_object(path: str, source: ModuleType, name: str) -> None:
    """What is imported under the known path is the object itself: subclassing and isinstance work across both."""
    assert getattr(importlib.import_module(path), name) is getattr(source, name)


@pytest.mark.parametrize("path", DOCUMENTED)
def test_a_module_exports_what_is_documented_and_has_nothing_of_its_own(path: str) -> None:
    """``from ... import *`` gives the documented names; no function or class is defined here."""
    module = importlib.import_module(path)
    documented = {name for names in DOCUMENTED[path].values() for name in names}
    other_names = OTHER_NAMES.get(path, {})

    assert set(module.__all__) == documented | set(other_names)
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
