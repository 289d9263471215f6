"""A process that has imported torch, and becomes the scripts that tests start by forking itself.

Importing takes most of the time of a small script. What is ours is not imported here: each script does it itself.
`tests/forked_python.py` asks, over the listening socket whose number is the only argument. The server ends when its
input does.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import io
import json
import os
import random
import runpy
import select
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import cast

BEFOREHAND = [
    "torch",
    "torch._dynamo",  # each optimizer imports it
    "torch.distributed.launcher.api",  # torchrun imports it, and the next one
    "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend",
    "accelerate",
    "sklearn.datasets",  # examples import it
]
MORE_BEFOREHAND = "TESTS_IMPORT_BEFOREHAND"  # the variable with the path of a script that imports more


@dataclass(frozen=True)
class Request:
    """What to run: the command line after `python`, where, and with which variables."""

    arguments: list[str]
    folder: str
    environment: dict[str, str]


class BecomeScript(BaseException):  # it is no error
    """Leaves the loop of the server in a forked process, which goes on as the script and ends as scripts do."""

    def __init__(self, request: Request) -> None:
        self.request = request


def serve(listener: socket.socket) -> None:
    """Answer until the input ends."""
    if not is_asked(listener):
        return
    # scikit-learn imports pandas, and pandas pyarrow, whose allocator would start a thread.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    # On a CPU nothing needs triton, which complains at the end of leaks: of what is frozen below.
    sys.modules["triton"] = cast("ModuleType", None)
    for name in BEFOREHAND:
        if importlib.util.find_spec(name.partition(".")[0]):
            importlib.import_module(name)
    if script := os.environ.get(MORE_BEFOREHAND):
        runpy.run_path(script, run_name="__main__")
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        raise RuntimeError("There is a second thread, which a fork would not take along: set OMP_NUM_THREADS=1.")
    gc.freeze()  # or each process would copy all of this memory when it ends, to look for garbage in it
    answering: list[int] = []
    while is_asked(listener):
        connection, _ = listener.accept()
        pid = os.fork()
        if pid == 0:
            listener.close()
            answer(connection)
        connection.close()
        answering = [one for one in (*answering, pid) if os.waitpid(one, os.WNOHANG)[0] == 0]


def is_asked(listener: socket.socket) -> bool:
    """Wait for somebody to ask, or for the end of the input."""
    return sys.stdin.fileno() not in select.select([listener.fileno(), sys.stdin.fileno()], [], [])[0]


def answer(connection: socket.socket) -> None:
    """Run a script in a process of its own; pass signals on to it, and its exit status back."""
    length, files, _, _ = socket.recv_fds(connection, 4, 3)
    with connection.makefile("rb") as stream:
        request = Request(**json.loads(stream.read(int.from_bytes(length, "big"))))
    pid = os.fork()
    if pid == 0:
        connection.close()
        os.setsid()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        raise BecomeScript(request)
    for file in (0, 1, 2, *files):
        os.close(file)  # who reads what the script prints waits for the script to end, not for this process
    script = os.pidfd_open(pid)
    while connection.fileno() in select.select([connection.fileno(), script], [], [])[0]:
        numbers = connection.recv(16)
        if not numbers:  # `forked_python.py` was killed
            os.killpg(pid, signal.SIGKILL)
            break
        for number in numbers:
            os.kill(pid, number)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        connection.sendall(status.to_bytes(4, "big", signed=True))
    finally:
        os._exit(0)


def become(request: Request) -> None:
    """Do what `python` does with such a command line."""
    option, *arguments = request.arguments
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.path[1:1] = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one and one not in sys.path]
    draw_anew()
    if option == "-u" or os.environ.get("PYTHONUNBUFFERED"):
        raw = (io.FileIO(one, "w", closefd=False) for one in (1, 2))
        sys.stdout, sys.stderr = (io.TextIOWrapper(one, write_through=True) for one in raw)
    if option == "-u":
        option, *arguments = arguments
    if option == "-m":
        sys.argv, sys.path[0] = arguments, request.folder
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        script = Path(option).absolute()
        sys.argv, sys.path[0] = [option, *arguments], str(script.resolve().parent)
        main = ModuleType("__main__")
        main.__file__ = str(script)
        sys.modules["__main__"] = main
        exec(compile(script.read_bytes(), script, "exec"), main.__dict__)


def draw_anew() -> None:
    """Seed what a new process seeds from the system, or all scripts would draw the same."""
    random.seed()
    importlib.import_module("torch").default_generator.seed()
    if importlib.util.find_spec("numpy"):
        importlib.import_module("numpy.random").seed()


if __name__ == "__main__":
    this_module = sys.modules["__main__"]  # is kept alive when the script takes its place
    requests: list[Request] = []
    try:
        serve(socket.socket(fileno=int(sys.argv[1])))
    except BecomeScript as start:
        requests.append(start.request)
    for one in requests:
        become(one)
