"""Two machines to try things on: network namespaces with a cable between them, or two launchers on this machine."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.launching import as_a_reader

ROOT = Path(__file__).parents[2]
_IN_NAMESPACE = ("ip", "netns", "exec")
_INTERFACE = "eth0"
"""The end of the cable in each machine."""


@dataclass
class Machine:
    """A machine, real enough for launchers.

    Attributes:
        name: Its name, and that of its host where it is a namespace.
        address: The address that the other machine knows it by.
        namespace: The network namespace that it is; None for this machine, beside another launcher.
    """

    name: str
    address: str
    namespace: str | None
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]])

    def start(self, command: Sequence[str], log: Path, before: str = ":") -> subprocess.Popen[bytes]:
        """Start a command on this machine, as a reader does; all that it prints goes to a file.

        Args:
            command: The words of the command.
            log: The file.
            before: A line to type before it.
        """
        reader = {**os.environ, **as_a_reader(log.parent)}
        own = {**reader, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*self._entered(), "sh", "-c", f'{before}; exec "$@"', "sh", *command],
                cwd=ROOT,
                env={name: value for name, value in own.items() if value is not None},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def _entered(self) -> list[str]:
        if self.namespace is None:
            return ["env", "GLOO_SOCKET_IFNAME=lo"]
        return [*_IN_NAMESPACE, self.namespace, "unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', self.name]

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
        _ip("-n", str(self.namespace), "link", "set", _INTERFACE, "down")

    def _processes(self) -> list[int]:
        if self.namespace is not None:
            return [int(number) for number in _ip("netns", "pids", self.namespace).split()]
        found = [process.pid for process in self._started if process.poll() is None]
        for number in found:  # grows meanwhile: children of children
            children = Path(f"/proc/{number}/task/{number}/children").read_text().split()
            found += map(int, children)
        return found


def has_namespaces() -> bool:
    """Whether network namespaces may be made here, and each given a name of its own."""
    name = f"pa-probe-{secrets.token_hex(4)}"
    try:
        _ip("netns", "add", name)
        subprocess.run([*_IN_NAMESPACE, name, "unshare", "--uts", "hostname", "probe"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    finally:
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            _ip("netns", "del", name)
    return True


@contextlib.contextmanager
def two_machines(own_address: str | None = None) -> Generator[tuple[Machine, Machine]]:
    """Make two machines; whatever still runs on them at the end is killed.

    Args:
        own_address: What the name of each machine leads to on itself, if it is not its address; namespaces only.
    """
    with contextlib.ExitStack() as stack:
        names = ("node1", "node2")
        yield _namespaces(stack, names, own_address) if has_namespaces() else _launchers_side_by_side(stack)


@contextlib.contextmanager
def two_pods(name: str, service: str) -> Generator[tuple[Machine, Machine]]:
    """Make two machines that find each other as the pods of a Job do, by `NAME-INDEX.SERVICE`; namespaces only."""
    with contextlib.ExitStack() as stack:
        pods = _namespaces(stack, (f"{name}-0", f"{name}-1"), None)
        names = "".join(f"{pod.address} {pod.name}.{service}\n" for pod in pods)
        for pod in pods:
            with _hosts(pod).open("a") as hosts:
                hosts.write(names)
        yield pods


def _namespaces(
    stack: contextlib.ExitStack, names: tuple[str, str], own_address: str | None
) -> tuple[Machine, Machine]:
    token = secrets.token_hex(3)
    first, second = (
        Machine(name, f"10.77.0.{number}", f"pa-{token}-{number}") for number, name in enumerate(names, start=1)
    )
    for machine in (first, second):
        _ip("netns", "add", str(machine.namespace))
        stack.callback(_ip, "netns", "del", str(machine.namespace))
        stack.callback(machine.kill)
        _write_hosts(stack, machine, {one.name: one.address for one in (first, second)}, own_address)
    _ip("link", "add", _INTERFACE, "netns", str(first.namespace), "type", "veth", "peer",
        "name", _INTERFACE, "netns", str(second.namespace))  # fmt: skip
    for machine in (first, second):
        _ip("-n", str(machine.namespace), "addr", "add", f"{machine.address}/24", "dev", _INTERFACE)
        for interface in ("lo", _INTERFACE):
            _ip("-n", str(machine.namespace), "link", "set", interface, "up")
    return first, second


def _write_hosts(
    stack: contextlib.ExitStack, machine: Machine, addresses: Mapping[str, str], own_address: str | None
) -> None:
    """Write what takes the place of /etc/hosts in a namespace."""
    hosts = _hosts(machine)
    hosts.parent.mkdir(parents=True)
    stack.callback(shutil.rmtree, hosts.parent)
    here = {machine.name: own_address or machine.address}
    lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in {**addresses, **here}.items()), ""]
    hosts.write_text("\n".join(lines))


def _hosts(machine: Machine) -> Path:
    return Path("/etc/netns", str(machine.namespace), "hosts")


def _launchers_side_by_side(stack: contextlib.ExitStack) -> tuple[Machine, Machine]:
    machines = Machine("node1", "127.0.0.1", None), Machine("node2", "127.0.0.1", None)
    for machine in machines:
        stack.callback(machine.kill)
    return machines


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout
