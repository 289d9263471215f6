"""Write training states where they cannot be written, each in a process of its own, and see what is left.

Prints what was tried: a limit on the size of files at every size, a full disk, a folder that may not be written to,
states that may not be read.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import torch

from pa_checkpoint import CheckpointError, Folder, load
from pa_checkpoint._checkpoint import write_checkpoint
from pa_checkpoint._encoding import JsonScalar

NOBODY = 65534


def summary(update: int) -> dict[str, JsonScalar]:
    """The summary of a small state."""
    return {"run": "failing", "sequence": update, "update": update, "epoch": 1, "complete": False}


def in_child(action: Callable[[], None]) -> None:
    """Run something in a copy of this process."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            action()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    _, status = os.waitpid(process, 0)
    assert status == 0, f"the process ended with status {status}"


def expect_failure(path: Path, size: int, advice: str) -> None:
    """Write a state that does not fit, and be told what to do."""
    with pytest.raises(CheckpointError) as caught:
        write_checkpoint(path, {"model": {"weight": torch.ones(size)}}, summary(2))
    assert str(path) in caught.value.given, caught.value
    assert advice in caught.value.do, caught.value


def check_untouched(path: Path) -> None:
    """The old state is whole, and nothing else is there."""
    assert load(path).summary["update"] == 1
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def limited_files(folder: Path) -> None:
    """Writing that breaks off at any byte costs nothing."""
    path = folder / "state"
    write_checkpoint(path, {"model": {"weight": torch.ones(1000)}}, summary(1))
    sizes = [file.stat().st_size for file in path.iterdir()]
    limits = [*range(0, 200, 20), *range(200, max(sizes), 400)]
    for limit in limits:

        def attempt(limit: int = limit) -> None:
            with small_files(limit):
                expect_failure(path, 1000, "Free some space")

        in_child(attempt)
        check_untouched(path)
    sys.stdout.write(f"limited files: {len(limits)}\n")


def full_disk(folder: Path) -> None:
    """A disk without room for the new state keeps the old one, and takes a smaller one after that."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        sys.stdout.write("full disk: not allowed to mount one\n")
        return
    try:
        path = folder / "state"
        write_checkpoint(path, {"model": {"weight": torch.ones(50_000)}}, summary(1))
        expect_failure(path, 60_000, "Free some space")
        check_untouched(path)
        write_checkpoint(path, {"model": {"weight": torch.ones(10_000)}}, summary(3))
        assert load(path).summary["update"] == 3
    finally:
        subprocess.run(["umount", folder], check=True)
    sys.stdout.write("full disk: 1\n")


def forbidden_folder(folder: Path) -> None:
    """A folder that may not be written to keeps what it has."""
    path = folder / "state"
    write_checkpoint(path, {"model": {"weight": torch.ones(10)}}, summary(1))
    folder.chmod(0o555)

    def attempt() -> None:
        with obeyed_permissions():
            expect_failure(path, 10, "choose another folder")
            expect_failure(folder / "other" / "state", 10, "choose another folder")

    in_child(attempt)
    folder.chmod(0o755)
    check_untouched(path)
    sys.stdout.write("forbidden folder: 2\n")


def unreadable_state(folder: Path) -> None:
    """A state that may not be read is passed over with its reason, and keeps its place in the order."""
    for sequence in (1, 2, 3):
        write_checkpoint(folder / f"state_{sequence}_update_1", {"model": torch.ones(1)}, summary(sequence))
    (folder / "state_2_update_1" / "model.safetensors").chmod(0)
    (folder / "state_3_update_1").chmod(0)

    def attempt() -> None:
        with obeyed_permissions():
            state, skipped = Folder(folder).newest_readable(load)
            assert state is not None
            assert state.summary["update"] == 1
            assert [entry.path.name for entry in skipped] == ["state_3_update_1", "state_2_update_1"]
            assert all("Permission denied" in entry.reason for entry in skipped), skipped
            assert Folder(folder).next_sequence() == 4

    in_child(attempt)
    (folder / "state_3_update_1").chmod(0o755)
    sys.stdout.write("unreadable state: 2\n")


@contextlib.contextmanager
def small_files(limit: int) -> Generator[None]:
    """Let writing fail beyond this many bytes of a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def obeyed_permissions() -> Generator[None]:
    """Be somebody whom permissions stop."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    yield
    os.seteuid(before)


def main() -> None:
    """Try everything."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", DeprecationWarning)  # of fork: no thread is doing anything here
    for attempt in (limited_files, full_disk, forbidden_folder, unreadable_state):
        with tempfile.TemporaryDirectory() as temporary:
            Path(temporary).chmod(0o755)
            folder = Path(temporary, "states")
            folder.mkdir()
            attempt(folder)


if __name__ == "__main__":
    main()
