"""Importing a distribution costs nothing and changes nothing: each is imported in a process of its own."""

from __future__ import annotations

import json
import sys

import pytest

from tests.launching import Launch
from tests.typing.checkers import PACKAGES as DISTRIBUTIONS

PACKAGES = list(DISTRIBUTIONS.values())
TORCH_BRINGS = {"numpy"}
"""A module of it more, such as that of its types, takes a millisecond or two."""

IMPORT_ALL_MODULES = """
import importlib, json, logging, os, pkgutil, random, sys, warnings
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

def import_all(name):
    before = state()
    modules = set(sys.modules)
    package = importlib.import_module(name)
    for found in pkgutil.walk_packages(package.__path__, name + "."):
        importlib.import_module(found.name)
    loaded = set(sys.modules) - modules
    after = state()
    print(json.dumps({
        "package": name,
        "loaded": sorted({name.partition(".")[0] for name in loaded}),
        "changed": [name for name in before if before[name] != after[name]],
    }), flush=True)

for name in sys.argv[1:]:
    if os.fork() == 0:
        import_all(name)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[str]]]:
    """What the import of all modules of each distribution has loaded and changed."""
    launch = Launch(tmp_path_factory.mktemp("imports"))
    launched = launch(IMPORT_ALL_MODULES, *PACKAGES, fresh=True)
    results = [json.loads(line) for line in launched.output.splitlines() if line.startswith("{")]
    return {result["package"]: result for result in results}


@pytest.mark.parametrize("package", PACKAGES)
def test_an_import_loads_nothing_of_others_that_torch_does_not_load(
    package: str, imported: dict[str, dict[str, list[str]]]
) -> None:
    """Every module of a distribution can be imported without loading any third party but torch."""
    assert set(imported[package]["loaded"]) - set(PACKAGES) - TORCH_BRINGS - sys.stdlib_module_names == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_an_import_changes_nothing_in_the_process(package: str, imported: dict[str, dict[str, list[str]]]) -> None:
    """An import seeds no generator, sets no variable, adds no log handler and touches no device."""
    assert imported[package]["changed"] == []
