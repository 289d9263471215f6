"""Machines that a program connects: network namespaces, between which each packet takes as long as we say.

Each namespace has a TUN device, and this process passes the packets on, since many kernels come without `netem`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Generator, Sequence
from pathlib import Path

from benchmarks.comparisons import Comparison
from benchmarks.processes import ROOT, Figures, environment_of, figures_in

__all__ = ["delayed_network", "has_networks", "run_on"]

INTERFACE = "tun0"
LARGEST_PACKET = 65_000
_IP = shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin:/bin") or "ip"
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_DESTINATION = slice(16, 20)
"""Of a packet of IPv4, the address that it goes to."""


def run_on(namespaces: Sequence[str], comparison: Comparison, *, is_dry: bool, seconds: float) -> Figures:
    """Start one process in each namespace, which train together, and return what the first one published.

    Raises:
        RuntimeError: A process failed, or took too long.
    """
    module, *arguments = comparison.command.split()
    environment = environment_of(comparison, sys.executable, is_dry=is_dry)
    environment |= {"MASTER_ADDR": address_of(0), "MASTER_PORT": "29500", "WORLD_SIZE": str(len(namespaces))}
    environment |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GLOO_SOCKET_IFNAME": INTERFACE}
    started: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder, f"{rank}.log") for rank in range(len(namespaces))]
        try:
            for rank, (namespace, log) in enumerate(zip(namespaces, logs, strict=True)):
                command = [_IP, "netns", "exec", namespace, sys.executable, "-m", f"benchmarks.{module}", *arguments]
                with log.open("w") as output:
                    started.append(
                        subprocess.Popen(
                            command,
                            cwd=ROOT,
                            env={**environment, "RANK": str(rank)},
                            stdout=output,
                            stderr=subprocess.STDOUT,
                        )
                    )
            end = time.monotonic() + seconds
            statuses = [process.wait(max(0.0, end - time.monotonic())) for process in started]
        except subprocess.TimeoutExpired as error:
            message = f"{comparison.command} took more than {seconds:.0f} s"
            raise RuntimeError(message) from error
        finally:
            for process in started:
                process.kill()
        if any(statuses):
            message = f"{comparison.command} ended with {statuses}:\n" + "\n".join(log.read_text() for log in logs)
            raise RuntimeError(message)
        return figures_in(logs[0].read_text())


def address_of(machine: int) -> str:
    """The address of a machine, counted from 0."""
    return f"10.78.0.{machine + 1}"


def has_networks() -> bool:
    """Whether namespaces with devices of their own may be made here."""
    try:
        with delayed_network(1, 0.0):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


@contextlib.contextmanager
def delayed_network(machines: int, seconds: float) -> Generator[list[str]]:
    """Make machines that reach each other, and yield the names of their network namespaces.

    Args:
        machines: How many.
        seconds: How long each packet takes from one machine to another, beside the time in this process.
    """
    names = [f"pa-growth-{secrets.token_hex(3)}-{machine}" for machine in range(machines)]
    with contextlib.ExitStack() as stack:
        devices = [_machine(stack, name, address_of(machine)) for machine, name in enumerate(names)]
        has_ended = threading.Event()
        passing_on = threading.Thread(target=_pass_on, args=(devices, seconds, has_ended))
        passing_on.start()
        stack.callback(passing_on.join)
        stack.callback(has_ended.set)
        yield names


def _machine(stack: contextlib.ExitStack, name: str, address: str) -> int:
    """Make a namespace, and return the file of its device: what is sent is read from it."""
    _ip("netns", "add", name)
    stack.callback(_ip, "netns", "del", name)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    stack.callback(os.close, device)
    made_as = f"pa{secrets.token_hex(4)}"
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", made_as.encode(), _IFF_TUN | _IFF_NO_PI))
    _ip("link", "set", made_as, "netns", name, "name", INTERFACE)
    _ip("-n", name, "addr", "add", f"{address}/24", "dev", INTERFACE)
    _ip("-n", name, "link", "set", INTERFACE, "mtu", str(LARGEST_PACKET), "up")
    _ip("-n", name, "link", "set", "lo", "up")
    return device


def _pass_on(devices: Sequence[int], seconds: float, has_ended: threading.Event) -> None:
    """Read the packets of all machines, and write each to the machine that it goes to, when its time has come."""
    addresses = {bytes(map(int, address_of(machine).split("."))): device for machine, device in enumerate(devices)}
    on_the_way = deque[tuple[float, int, bytes]]()
    while not has_ended.is_set():
        left = max(0.0, on_the_way[0][0] - time.monotonic()) if on_the_way else 0.1
        for device in select.select(devices, [], [], left)[0]:
            with contextlib.suppress(BlockingIOError):
                while True:
                    packet = os.read(device, LARGEST_PACKET)
                    target = addresses.get(packet[_DESTINATION])
                    if target is not None:
                        on_the_way.append((time.monotonic() + seconds, target, packet))
        while on_the_way and on_the_way[0][0] <= time.monotonic():
            _, target, packet = on_the_way.popleft()
            with contextlib.suppress(BlockingIOError):  # a full queue drops a packet, which is sent again
                os.write(target, packet)


def _ip(*arguments: str) -> None:
    subprocess.run([_IP, *arguments], check=True, capture_output=True)
