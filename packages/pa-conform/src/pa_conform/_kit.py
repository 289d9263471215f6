"""Adapters, and trainings with them: started through the server, and read from what their processes noted."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

LIMIT = 60.0
"""Seconds that a training may take, unless a question says otherwise."""


class Failed(Exception):
    """What a question saw that it should not have seen, as a sentence."""


@dataclass
class Update:
    """One update of one process: the samples of its batches, their random draws, what dropout kept, rates, and memory."""

    samples: list[list[int]] = field(default_factory=list)
    draws: list[list[float]] = field(default_factory=list)
    kept: list[list[float]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    time: float = 0.0
    memory: int = 0


@dataclass
class Rank:
    """One process: how it ended, what it said last, and what was noted."""

    code: int
    seconds: float
    ended_by_kit: bool
    text: str
    updates: list[Update] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    metrics: list[float | None] = field(default_factory=list)
    weights_evaluated: list[dict[str, list[float]]] = field(default_factory=list)
    evaluated: list[int] = field(default_factory=list)
    finished: list[dict[str, list[float]]] | None = None

    @property
    def last_line(self) -> str:
        """The last line of its output, or how it ended."""
        lines = [line.strip() for line in self.text.splitlines() if line.strip()]
        return lines[-1][:200] if lines else f"it ended with {self.code} and said nothing"


def read_rank(log: Path, rank: int, ended: Mapping[str, Any]) -> Rank:
    """Reads what one process noted and said."""
    result = Rank(text=(log / f"{rank}.txt").read_text(errors="replace"), **ended)
    notes = log / f"{rank}.jsonl"
    stepped = True
    for line in notes.read_text().splitlines() if notes.exists() else ():
        match cast(list[Any], json.loads(line)):
            case ["batch", True, samples, draws, kept]:
                if stepped:
                    result.updates.append(Update())
                stepped = False
                result.updates[-1].samples.append(samples)
                result.updates[-1].draws += draws
                result.updates[-1].kept.append(kept)
            case ["batch", False, samples, *_]:
                result.evaluated += samples
            case ["step", rate, time, memory] if result.updates:
                stepped = True
                update = result.updates[-1]
                update.rates.append(rate)
                update.time, update.memory = time, memory
            case ["evaluated", loss, metric, weights]:
                result.losses.append(loss)
                result.metrics.append(metric)
                result.weights_evaluated.append(weights)
            case ["finished", *parts]:
                result.finished = parts
            case _:
                pass
    if not stepped:
        result.updates.pop()  # its batches were seen, and no optimizer stepped
    return result


@dataclass
class Launch:
    """A training: its ranks, and its folder."""

    ranks: list[Rank]
    folder: Path

    @property
    def updates(self) -> list[list[int]]:
        """The samples of each update, of all ranks together, sorted."""
        together = zip(*(rank.updates for rank in self.ranks), strict=False)
        return [sorted(i for part in parts for batch in part.samples for i in batch) for parts in together]

    @property
    def failed(self) -> list[int]:
        """The ranks that did not end with 0."""
        return [number for number, rank in enumerate(self.ranks) if rank.code]

    @property
    def losses(self) -> list[float]:
        """The losses of the evaluations, as the first process knows them."""
        return self.ranks[0].losses

    def rates(self, rank: int = 0) -> list[float]:
        """The rate of each update, of the first optimizer."""
        return [update.rates[0] for update in self.ranks[rank].updates]

    def weights(self, part: int = 0) -> list[float]:
        """The four weights at the end: 0 for the last ones, 1 for the averaged, 2 for the best ones."""
        for rank in self.ranks:
            if rank.finished is not None and rank.finished[part]:
                return four(rank.finished[part])
        raise Failed(f"no process handed over {('its weights', 'averaged weights', 'the best weights')[part]}")


def four(named: Mapping[str, list[float]]) -> list[float]:
    """The weights that predictions are made of."""
    return [*named["first.weight"], *named["second.weight"]]


@dataclass(frozen=True)
class Adapter:
    """A file with `train(job, seen)`: what it says of itself, read without importing it.

    Attributes:
        path: the file.
        offers: what the loop can do, each with the setting or function that does it.
        about: the library, its version and its documentation.
        preload: modules that are imported once, before processes are started; importing them starts no threads.
    """

    path: Path
    offers: Mapping[str, str]
    about: str
    preload: tuple[str, ...]

    @classmethod
    def read(cls, path: str | Path) -> Adapter:
        """Reads a file.

        Raises:
            ValueError: it has no function `train`, or no table `OFFERS` of words.
        """
        path = Path(path).resolve()
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        found: dict[str, Any] = {}
        for node in tree.body:
            names = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
            for name in names:
                if isinstance(name, ast.Name) and name.id in {"OFFERS", "ABOUT", "PRELOAD"} and node.value is not None:  # type: ignore[union-attr]
                    found[name.id] = ast.literal_eval(node.value)  # type: ignore[union-attr]
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        if "train" not in functions or not isinstance(found.get("OFFERS"), dict):
            raise ValueError(f"{path} is no adapter: it needs a function train(job, seen) and a table OFFERS of literals")
        return cls(path, found["OFFERS"], str(found.get("ABOUT", path.stem)), tuple(found.get("PRELOAD", ())))


class Server:
    """A process that starts trainings."""

    def __init__(self, preload: tuple[str, ...]) -> None:
        """Starts it.

        Raises:
            OSError: the system cannot fork processes.
        """
        if not hasattr(os, "fork"):
            raise OSError("pa-conform starts processes by fork(), which this system has not: use Linux, macOS or WSL")
        source = str(Path(__file__).parents[1])
        env = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo")}
        env["PYTHONPATH"] = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "pa_conform._server", *preload]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def train(self, request: Mapping[str, object]) -> list[dict[str, Any]]:
        """Trains once, and returns how every process ended."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise ChildProcessError(f"the server of the kit ended with {self.process.wait()}; its output says why")
        return cast(list[dict[str, Any]], json.loads(line))

    def close(self) -> None:
        """Ends it."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


class Kit:
    """Trains with adapters, and keeps what was seen: equal trainings of one adapter run once."""

    def __init__(self) -> None:
        """Creates the folder of all trainings."""
        self.root = Path(tempfile.mkdtemp(prefix="pa_conform_"))
        self._servers: dict[tuple[str, ...], Server] = {}
        self._known: dict[tuple[Path, str], Launch] = {}

    def __enter__(self) -> Kit:
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends servers and removes all files."""
        for server in self._servers.values():
            server.close()
        shutil.rmtree(self.root, ignore_errors=True)

    def folder(self) -> Path:
        """A new folder."""
        return Path(tempfile.mkdtemp(dir=self.root))

    def launch(
        self, adapter: Adapter, job: Mapping[str, object], plan: Mapping[str, int], folder: Path | None, limit: float
    ) -> Launch:
        """Trains, or returns what an equal training in a folder of its own has shown."""
        key = (adapter.path, json.dumps([sorted(job.items()), sorted(plan.items())]))
        if folder is None and key in self._known:
            return self._known[key]
        into, log = folder or self.folder(), self.folder()
        if adapter.preload not in self._servers:
            self._servers[adapter.preload] = Server(adapter.preload)
        settings = {"processes": 1, **job, "folder": str(into)}
        request = {"adapter": str(adapter.path), "job": settings, "plan": plan, "log": str(log), "limit": limit}
        ended = self._servers[adapter.preload].train(request)
        result = Launch([read_rank(log, rank, how) for rank, how in enumerate(ended)], into)
        if folder is None:
            self._known[key] = result
        return result
