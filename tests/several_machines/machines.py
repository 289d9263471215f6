"""Two machines to try things on: network namespaces with a cable between them, or two launchers on this machine."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.launching import as_a_reader

ROOT = Path(__file__).parents[2]


@dataclass
class Machine:
    """A machine, real enough for launchers.

    Attributes:
        address: The address that the other machine knows it by.
        namespace: The network namespace that it is; None for this machine, beside another launcher.
        interface: The end of the cable in this machine.
    """

    address: str
    namespace: str | None
    interface: str
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]])

    def start(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Start a command on this machine, as a reader does; all that it prints goes to a file."""
        prefix = [] if self.namespace is None else ["ip", "netns", "exec", self.namespace]
        reader = {**os.environ, **as_a_reader(log.parent)}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        own = {**reader, "GLOO_SOCKET_IFNAME": self.interface, "PATH": path}
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*prefix, *command],
                cwd=ROOT,
                env={name: value for name, value in own.items() if value is not None},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def kill(self) -> None:
        """End everything on this machine at once."""
        for number in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        for process in self._started:
            process.wait()
        self._started.clear()

    def pull_cable(self) -> None:
        """Let nothing reach this machine any more, without a word to anyone; namespaces only."""
        _ip("-n", str(self.namespace), "link", "set", self.interface, "down")

    def _processes(self) -> list[int]:
        if self.namespace is not None:
            return [int(number) for number in _ip("netns", "pids", self.namespace).split()]
        found = [process.pid for process in self._started if process.poll() is None]
        for number in found:  # grows meanwhile: children of children
            children = Path(f"/proc/{number}/task/{number}/children").read_text().split()
            found += map(int, children)
        return found


def has_namespaces() -> bool:
    """Whether network namespaces may be made here."""
    name = f"pa-probe-{secrets.token_hex(4)}"
    try:
        _ip("netns", "add", name)
        _ip("netns", "del", name)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


@contextlib.contextmanager
def two_machines() -> Generator[tuple[Machine, Machine]]:
    """Make two machines; whatever still runs on them at the end is killed."""
    machines = _connected_namespaces() if has_namespaces() else _launchers_side_by_side()
    try:
        yield machines
    finally:
        for machine in machines:
            machine.kill()
            if machine.namespace is not None:
                _ip("netns", "del", machine.namespace)


def _connected_namespaces() -> tuple[Machine, Machine]:
    token = secrets.token_hex(3)
    first, second = (Machine(f"10.77.0.{number}", f"pa-{token}-{number}", f"eth{number}-{token}") for number in (1, 2))
    for machine in (first, second):
        _ip("netns", "add", str(machine.namespace))
    _ip("link", "add", first.interface, "netns", str(first.namespace), "type", "veth", "peer",
        "name", second.interface, "netns", str(second.namespace))  # fmt: skip
    for machine in (first, second):
        _ip("-n", str(machine.namespace), "addr", "add", f"{machine.address}/24", "dev", machine.interface)
        for interface in ("lo", machine.interface):
            _ip("-n", str(machine.namespace), "link", "set", interface, "up")
    return first, second


def _launchers_side_by_side() -> tuple[Machine, Machine]:
    return Machine("127.0.0.1", None, "lo"), Machine("127.0.0.1", None, "lo")


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout
