"""What all tests share: the cell of the matrix they run in, launching of scripts, a clean accelerate."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import cells, launching

DISTRIBUTIONS = {
    path.parents[2].name: path.parent.name
    for path in sorted(Path(__file__).parents[1].glob("packages/*/src/*/__init__.py"))
}
"""The package of each distribution in the workspace."""

_ON_DEMAND = {"more_cases": "--more-cases", "whole_proof": "--whole-proof"}
"""Markers of tests that take time: further cases of a promise that others have shown, and what takes minutes."""

if importlib.util.find_spec("hypothesis"):  # tests on a GPU do without
    import hypothesis

    # The same examples in every run and on every rank; a busy machine is no failure.
    hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
    hypothesis.settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options by which the matrix says what it runs, so that it can be held to it."""
    parser.addoption("--cell", choices=sorted(cells.CELLS), help="the cell of the matrix that must run")
    parser.addoption("--installed", help="those of our distributions that must be installed, no others: A,B")
    parser.addoption("--versions", help="versions of others that must be installed: A==1.0,B==2.0")
    parser.addoption("--more-cases", action="store_true", help="run what is marked more_cases too")
    parser.addoption("--crash-seed", type=int, default=0, help="draw other cases of runs that are told to leave")
    parser.addoption("--whole-proof", action="store_true", help="run what is marked whole_proof too, for some minutes")


def _leave_to_the_system(_descriptor: int) -> None:
    """Write to the disk when the system does: only where a machine fails is that too late."""


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C reach the tests, and scripts that they launch start soon.

    A shell that starts a command in the background has Ctrl-C ignored.
    """
    for marker, option in _ON_DEMAND.items():
        config.addinivalue_line("markers", f"{marker}: runs with {option} only")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    resources = contextlib.ExitStack()
    resources.enter_context(launching.fork_server())
    # Small runs that save would wait for the disk half of their time.
    resources.enter_context(pytest.MonkeyPatch.context()).setattr(os, "fsync", _leave_to_the_system)
    config.add_cleanup(resources.close)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse to run where what is installed, or the cell, is not what was claimed."""
    installed: str | None = session.config.getoption("--installed")
    versions: str | None = session.config.getoption("--versions")
    cell: str | None = session.config.getoption("--cell")
    problems = [
        _wrong_installation(set(installed.split(","))) if installed else None,
        _wrong_versions(versions.split(",")) if versions else None,
        cells.mismatch(cell) if cell and _runs_tests(session.config) else None,
    ]
    if found := "; ".join(problem for problem in problems if problem):
        pytest.exit(found, returncode=pytest.ExitCode.USAGE_ERROR)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests made for this cell; a test that names none runs on one_process only.

    Those that run on demand are left out, unless they were asked for.
    """
    cell: str = config.getoption("--cell") or "one_process"
    not_asked_for = [marker for marker, option in _ON_DEMAND.items() if not config.getoption(option)]
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        marker = item.get_closest_marker("runs_on")
        wanted: tuple[str, ...] = marker.args if marker else ("one_process",)
        if unknown := set(wanted) - set(cells.CELLS):
            message = f"{item.nodeid}: runs_on takes {sorted(cells.CELLS)}, got {sorted(unknown)}"
            raise pytest.UsageError(message)
        is_due = not any(item.get_closest_marker(marker) for marker in not_asked_for)
        (kept if cells.runs_in(cell, wanted) and is_due else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def pytest_sessionfinish() -> None:
    """Leave the process group that the cell joined, so that no rank outlives the others silently."""
    if "torch" in sys.modules:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()


@pytest.fixture(autouse=True)
def fresh_start(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test computes on one thread, draws the same numbers, and meets accelerate as a new process does."""
    if importlib.util.find_spec("torch"):
        import torch

        if request.node.get_closest_marker("needs_cuda") and not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
        torch.set_num_threads(1)
        torch.manual_seed(0)
        # How long torch waits for a worker of a loader that is collected with the trainer that it is held by.
        pytest.MonkeyPatch().setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 1.0)
    yield
    cells.forget_accelerate_state()


@pytest.fixture
def launch(tmp_path: Path) -> launching.Launch:
    """`launch(script, *arguments, ranks=1)` runs a script in processes of its own, in `tmp_path`."""
    return launching.Launch(tmp_path)


@pytest.fixture
def free_port() -> int:
    """A TCP port that nothing listens on."""
    return launching.free_port()


@pytest.fixture
def shared_tmp_path(tmp_path: Path) -> Path:
    """A new folder, the same one on every rank."""
    if "torch" in sys.modules:
        import torch.distributed as dist

        if dist.is_initialized():
            folder = [tmp_path]
            dist.broadcast_object_list(folder)
            return folder[0]
    return tmp_path


@pytest.fixture
def processes() -> None:
    """The processes have found each other, by the means of torch alone."""
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo")


def _runs_tests(config: pytest.Config) -> bool:
    """Not where this process only hands tests to others: it would import torch before they may start."""
    return not config.pluginmanager.hasplugin("dsession")


def _wrong_installation(expected: set[str]) -> str | None:
    """What is wrong with the installed distributions: unknown, missing, undeclared, or not from a wheel."""
    if unknown := sorted(expected - DISTRIBUTIONS.keys()):
        return f"no distribution of the workspace is called {', '.join(unknown)}"
    for distribution, package in DISTRIBUTIONS.items():
        spec = importlib.util.find_spec(package)
        if distribution not in expected:
            if spec is not None or _is_installed(distribution):
                return f"{distribution} is here, but only {sorted(expected)} should be: {spec and spec.origin}"
        elif spec is None or spec.origin is None or not _is_installed(distribution):
            return f"{distribution} should be installed and is not"
        elif not Path(spec.origin).is_relative_to(sys.prefix):
            return f"{package} is imported from {spec.origin}, not from the installed wheel of {distribution}"
    return None


def _wrong_versions(expected: list[str]) -> str | None:
    installed = {f"{one.name.replace('_', '-')}=={one.version}" for one in importlib.metadata.distributions()}
    missing = set(expected) - installed
    return f"these versions should be installed and are not: {sorted(missing)}" if missing else None


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
