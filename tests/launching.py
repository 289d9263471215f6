"""Starting scripts as a user starts them: in processes of their own, with one rank or several."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_RANK_VARIABLES = {
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "WORLD_SIZE",
}


@dataclass(frozen=True)
class Launched:
    """What a script left behind: its exit status, and everything that its ranks printed."""

    status: int
    output: str


def free_port() -> int:
    """A TCP port of this machine that nothing listens on."""
    return free_ports(1).pop()


def free_ports(number: int) -> set[int]:
    """Several such ports.

    Below those that systems give out by themselves: one of those could be another program's before it is used.
    """
    ports: set[int] = set()
    while len(ports) < number:
        port = secrets.randbelow(20_000) + 10_000
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            ports.add(port)
    return ports


@dataclass(frozen=True)
class Launch:
    """Runs Python scripts on the CPU, each in a folder of the test's own. Use the fixture `launch`."""

    folder: Path

    def __call__(
        self,
        script: Path | str,
        *arguments: str,
        ranks: int = 1,
        env: Mapping[str, str | None] | None = None,
        timeout: float = 100,
    ) -> Launched:
        """Run a script until it ends and return its exit status and output.

        Args:
            script: the file to run, or the text of one.
            *arguments: what the script finds in `sys.argv[1:]`.
            ranks: more than one starts that many gloo ranks with torchrun.
            env: variables added to those of this process; None takes one away.
            timeout: seconds after which the script and its ranks are killed and the test fails.
        """
        if isinstance(script, str):
            text, script = script, self.folder / f"script_{free_port()}.py"
            script.write_text(text)
        command = [sys.executable, *_torchrun(ranks), str(script), *arguments]
        return run_command(command, folder=self.folder, env=env, timeout=timeout)


def run_command(
    command: Sequence[str], *, folder: Path, env: Mapping[str, str | None] | None = None, timeout: float = 100
) -> Launched:
    """Run any command line in `folder` as on a machine without an accelerator; print its output if it fails.

    Raises:
        AssertionError: it did not end within `timeout` seconds; all its processes were killed.
    """
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=_environment(env or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # one signal reaches all ranks
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as error:
        os.killpg(process.pid, 9)
        output, _ = process.communicate()
        message = f"{' '.join(command)} did not end within {timeout} s. It printed:\n{output}"
        raise AssertionError(message) from error
    if process.returncode != 0:
        print(output)  # noqa: T201 - pytest shows it when the test fails
    return Launched(process.returncode, output)


def _torchrun(ranks: int) -> list[str]:
    if ranks == 1:
        return []
    return [
        "-m",
        "torch.distributed.run",
        "--standalone",  # on a port that torch finds itself
        "--local-addr=127.0.0.1",
        f"--nproc-per-node={ranks}",
    ]


def _environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in _RANK_VARIABLES and not name.startswith("TORCHELASTIC_")
    }
    changed = {**inherited, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", **changes}
    return {name: value for name, value in changed.items() if value is not None}
