"""Importing a distribution costs nothing and changes nothing: each import runs in a process of its own."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.launching import Launch

PACKAGES = ["pa_callbacks_extra", "pa_core", "pa_finetuning", "pa_schedulers", "pytorch_accelerated"]

IMPORT_ALL_MODULES = """
import importlib, pkgutil

def import_all(package):
    module = importlib.import_module(package)
    for found in pkgutil.walk_packages(module.__path__, package + "."):
        importlib.import_module(found.name)
"""

LOADED_MODULES = """
import json, sys
import torch
before = set(sys.modules)
import_all(sys.argv[1])
print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
"""

PROCESS_STATE = """
import json, logging, os, random, sys, warnings
import numpy, torch

def state():
    return {
        "python generator": repr(random.getstate()),
        "numpy generator": repr(numpy.random.get_state()),
        "torch generator": repr(torch.get_rng_state().tolist()),
        "environment": dict(os.environ),
        "handlers": repr(logging.getLogger().handlers),
        "warning filters": repr(warnings.filters),
        "threads": torch.get_num_threads(),
        "default dtype": str(torch.get_default_dtype()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cuda initialised": torch.cuda.is_initialized(),
        "process group": torch.distributed.is_initialized(),
    }

before = state()
import_all(sys.argv[1])
after = state()
print(json.dumps([name for name in before if before[name] != after[name]]))
"""


def _result(launch: Launch, script: str, package: str) -> Any:
    launched = launch(IMPORT_ALL_MODULES + script, package)
    assert launched.status == 0
    return json.loads(launched.output.splitlines()[-1])


@pytest.mark.parametrize("package", PACKAGES)
def test_an_import_loads_nothing_of_others_that_torch_does_not_load(launch: Launch, package: str) -> None:
    """Every module of a distribution can be imported without loading any third party but torch."""
    loaded: list[str] = _result(launch, LOADED_MODULES, package)
    assert set(loaded) - set(PACKAGES) - sys.stdlib_module_names == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_an_import_changes_nothing_in_the_process(launch: Launch, package: str) -> None:
    """An import seeds no generator, sets no variable, adds no log handler and touches no device."""
    assert _result(launch, PROCESS_STATE, package) == []
