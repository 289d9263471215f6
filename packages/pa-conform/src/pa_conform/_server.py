"""Starts the processes of trainings: `python -m pa_conform._server MODULE ...`, which imports the modules only once.

Every line of standard input asks for one training, and every line of standard output answers. A process is a fork of this
one: it has torch already, which takes seconds to import, and nothing else of any training before.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import TypedDict

from pa_conform._job import Job, Seen, use


class Request(TypedDict):
    """One training: the adapter, its job, what is planned to go wrong, and seconds after which all are killed."""

    adapter: str
    job: dict[str, object]
    plan: dict[str, int]
    log: str
    limit: float


class Ended(TypedDict):
    """How a process ended: its exit code, negative for a signal, the seconds it lived, and whether it was ended by us."""

    code: int
    seconds: float
    ended_by_kit: bool


GRACE = 3.0
"""Seconds that processes have to end by themselves once one has failed, before they are terminated as torchrun does."""


def train(request: Request, rank: int, port: int) -> None:
    """Runs the adapter as one rank, in this process."""
    world = str(request["job"]["processes"])
    names = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    alone = world == "1"
    os.environ.update({} if alone else names | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    log = Path(request["log"])
    seen = Seen(log / f"{rank}.jsonl", rank, request["plan"])
    use(seen)
    path = Path(request["adapter"])
    os.chdir(log)
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    module.train(Job(**(request["job"] | {"rank": rank})), seen)  # type: ignore[arg-type]  # from the kit's own Job


def fork(request: Request, rank: int, port: int) -> int:
    """Starts one rank, in a process group of its own, and returns its process id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.setpgid(0, 0)
        output = os.open(Path(request["log"]) / f"{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, to in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, to)
        train(request, rank, port)
        code = 0
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def launch(request: Request) -> list[Ended]:
    """Trains once, and waits until all ranks have ended."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start = time.monotonic()
    children = {fork(request, rank, port): rank for rank in range(int(str(request["job"]["processes"])))}
    ended: dict[int, Ended] = {}
    signals, ended_by_kit = [signal.SIGTERM, signal.SIGKILL], False
    deadline = start + request["limit"]
    while len(ended) < len(children):
        for child, rank in children.items():
            if rank in ended:
                continue
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                code = os.waitstatus_to_exitcode(status)
                ended[rank] = Ended(code=code, seconds=time.monotonic() - start, ended_by_kit=ended_by_kit)
                if code:
                    deadline = min(deadline, time.monotonic() + GRACE)
        if time.monotonic() > deadline and signals:
            ended_by_kit, sent = True, signals.pop(0)
            for child, rank in children.items():
                if rank not in ended:
                    os.killpg(child, sent)
            deadline = time.monotonic() + 1
        time.sleep(0.005)
    return [ended[rank] for rank in sorted(ended)]


def main() -> None:
    """Serves until standard input ends."""
    for name in ("torch.distributed", *sys.argv[1:]):
        importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(launch(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
