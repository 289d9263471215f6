"""Starting scripts as a user starts them: in processes of their own, with one rank or several."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_HERE = Path(__file__).parent
_SERVER = "TESTS_FORK_SERVER"
_KNOWN_VARIABLES = {
    "PYTHONPATH",
    "PYTHONUNBUFFERED",
}  # to `fork_server.py`; others act when they are used
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
_OF_ANY_MACHINE = (
    "COV",
    "HF_HUB_OFFLINE",
    "HOME",
    "LANG",
    "LC_",
    "LD_",
    "PATH",
    "PYTHON",
    "TESTS_",
    "TMP",
    "TOKENIZERS_",
)


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
    """Runs Python scripts on the CPU, each in a folder of the test's own. Use the fixture `launch`.

    Attributes:
        folder: where they run.
        env: variables for each of them, as `run_command` takes them.
    """

    folder: Path
    env: Mapping[str, str | None] = field(default_factory=dict[str, str | None])

    def __call__(
        self,
        script: Path | str,
        *arguments: str,
        ranks: int = 1,
        env: Mapping[str, str | None] | None = None,
        timeout: float = 100,
        fresh: bool = False,
    ) -> Launched:
        """Run a script until it ends and return its exit status and output.

        Its processes are forked from one that has imported torch, which saves most of their time, unless `env` may
        change what an import does.

        Args:
            script: the file to run, or the text of one.
            *arguments: what the script finds in `sys.argv[1:]`.
            ranks: more than one starts that many gloo ranks with torchrun.
            env: variables added to those of this process; None takes one away.
            timeout: seconds after which the script and its ranks are killed and the test fails.
            fresh: whether to start new interpreters, because the test looks at what is imported, or at memory.
        """
        if isinstance(script, str):
            text, script = script, self.folder / f"script_{free_port()}.py"
            script.write_text(text)
        known = _KNOWN_VARIABLES | _RANK_VARIABLES
        is_known = all(name in known or name.startswith("ACCELERATE_") for name in env or {})
        python = forked_python() if is_known and not fresh else [sys.executable]
        command = [*python, *torchrun(ranks, python), str(script), *arguments]
        return run_command(command, folder=self.folder, env={**self.env, **(env or {})}, timeout=timeout)


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


def as_a_reader(home: Path) -> dict[str, str | None]:
    """The changes for `run_command` that leave no variable that a reader of the documentation has not set.

    They make a machine without a GPU, on which nobody has called `accelerate config`.

    Args:
        home: a folder without a configuration of accelerate's.
    """
    others = {name for name in os.environ if not name.startswith(_OF_ANY_MACHINE)}
    unset = dict.fromkeys(others | {"ACCELERATE_USE_CPU", "OMP_NUM_THREADS"})
    return {**unset, "CUDA_VISIBLE_DEVICES": "", "HF_HOME": str(home)}


@contextlib.contextmanager
def fork_server() -> Generator[None]:
    """Let `forked_python` fork meanwhile, also in processes that are started from this one.

    The server imports nothing before it is asked for the first time.
    """
    if _SERVER in os.environ or not hasattr(os, "pidfd_open"):
        yield
        return
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        address = str(Path(folder, "socket"))
        listener.bind(address)
        listener.listen(64)
        server = subprocess.Popen(
            [sys.executable, str(_HERE / "fork_server.py"), str(listener.fileno())],
            env=_environment({"PYTHONUNBUFFERED": None}),  # it would be so for all that is forked
            pass_fds=[listener.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        os.environ[_SERVER] = address
        yield
        del os.environ[_SERVER]
        server.communicate()


def forked_python() -> list[str]:
    """A command that does what `python` does, in a process forked from one that has imported torch.

    Without a server, or where processes cannot be forked and watched, the command is `python`.
    """
    if _SERVER not in os.environ:
        return [sys.executable]
    return [sys.executable, "-IS", str(_HERE / "forked_python.py"), os.environ[_SERVER]]


def torchrun(ranks: int, python: list[str]) -> list[str]:
    """What comes between `python` and a script, or `-m` and a module, to start several ranks of it.

    Args:
        ranks: of one, nothing is in between.
        python: the command that runs each rank.
    """
    if ranks == 1:
        return []
    return [
        "-m",
        "torch.distributed.run",
        "--standalone",  # on a port that torch finds itself
        "--local-addr=127.0.0.1",
        f"--nproc-per-node={ranks}",
        "--no-python",
        *python,
        "-u",
    ]


def _environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in _RANK_VARIABLES and not name.startswith("TORCHELASTIC_")
    }
    changed = {**inherited, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", **changes}
    return {name: value for name, value in changed.items() if value is not None}
