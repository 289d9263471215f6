"""Run ``pa_preflight.check`` on the programs of a corpus, and print which mistakes it names.

    python -m tests.unseen.measure second_mistakes
    python -m tests.unseen.measure second_healthy

Each program is made and checked in a new process, forked of one that has only imported the packages, and in an empty
folder. It has 120 seconds of processor time, so that a busy machine changes no result. A mistake is found if a
finding of level "mistake" or "warning" has one of its keywords in ``saw`` or ``do``. In healthy programs, findings of
level "mistake" are false alarms.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import NamedTuple

import pa_preflight
from tests.unseen.corpus import Case

SECONDS = 120
WALL_SECONDS = 900
LOUD = ("mistake", "warning")


class Found(NamedTuple):
    """A finding, as far as it is measured."""

    name: str
    level: str
    text: str


class Checked(NamedTuple):
    """What became of one program: findings, or an error where the check did not end with a report."""

    findings: list[Found]
    error: str
    seconds: float


def cases_of(corpus: str) -> dict[str, Case]:
    """Return the programs of a corpus by their names."""
    programs: dict[str, Case] = importlib.import_module(f"tests.unseen.{corpus}").PROGRAMS
    return programs


def check_here(corpus: str, name: str, folder: Path) -> None:
    """Make one program, check it, and write its findings as JSON; the process is a new one and ends with this."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    working = folder / "working"
    working.mkdir()
    os.chdir(working)
    with (folder / "printed.txt").open("w") as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
    program = cases_of(corpus)[name].make()
    report = pa_preflight.check(program.trainer, **program.arguments)
    findings = [(one.name, str(one.level), f"{one.saw}\n{one.do}") for one in report.findings]
    (folder / "findings.json").write_text(json.dumps(findings))


def result_of(process: ForkProcess, folder: Path, seconds: float) -> Checked:
    """Read what a process that has ended, or is ended here because it hangs, has left in its folder."""
    if process.is_alive():
        process.kill()
        return Checked([], f"hangs: no report after {WALL_SECONDS} s", seconds)
    output, printed = folder / "findings.json", folder / "printed.txt"
    if output.exists():
        return Checked([Found(*one) for one in json.loads(output.read_text())], "", seconds)
    if process.exitcode in {-signal.SIGKILL, -signal.SIGXCPU}:
        return Checked([], f"no report after {SECONDS} s", seconds)
    lines = printed.read_text().strip().splitlines() if printed.exists() else []
    return Checked([], lines[-1] if lines else "no report", seconds)


def check_all(corpus: str, names: Iterable[str], jobs: int) -> dict[str, Checked]:
    """Check programs, each in its own process, and several processes at a time."""
    waiting, running, checked = list(names), dict[str, tuple[ForkProcess, float]](), dict[str, Checked]()
    with tempfile.TemporaryDirectory() as root:
        while waiting or running:
            while waiting and len(running) < jobs:
                name = waiting.pop(0)
                folder = Path(root, name)
                folder.mkdir()
                process = get_context("fork").Process(target=check_here, args=(corpus, name, folder))
                process.start()
                running[name] = process, time.monotonic()
            for name, (process, start) in list(running.items()):
                seconds = time.monotonic() - start
                if not process.is_alive() or seconds > WALL_SECONDS:
                    checked[name] = result_of(process, Path(root, name), seconds)
                    del running[name]
            time.sleep(0.1)
    return checked


def names_of(findings: list[Found]) -> str:
    """Return the names of findings with their levels, in one line."""
    return ", ".join(f"{one.name} ({one.level})" for one in findings) or "-"


def is_found(case: Case, findings: list[Found]) -> bool:
    """Whether a loud finding has a keyword of the mistake."""
    texts = [one.text.lower() for one in findings if one.level in LOUD]
    return any(keyword in text for keyword in case.keywords for text in texts)


def measure(corpus: str, jobs: int) -> None:
    """Check all programs of a corpus, and print a table and its sums."""
    cases = cases_of(corpus)
    width = max(map(len, cases))
    counts: dict[str, int] = {}
    all_checked = check_all(corpus, cases, jobs)
    for name, case in cases.items():
        checked = all_checked[name]
        if checked.error:
            verdict = "error"
        elif case.keywords:
            verdict = "found" if is_found(case, checked.findings) else "missed"
        else:
            levels = {one.level for one in checked.findings}
            verdict = "false alarm" if "mistake" in levels else "warned" if "warning" in levels else "silent"
        counts[verdict] = counts.get(verdict, 0) + 1
        shown = checked.error or names_of(checked.findings)
        sys.stdout.write(f"{name:{width}}  {verdict:11}  {checked.seconds:5.1f} s  {shown}\n")
        for one in checked.findings:
            if one.level in LOUD:
                sys.stdout.write(f"{'':{width}}    {one.name}: {' '.join(one.text.split())}\n")
    sums = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    sys.stdout.write(f"{corpus}: {sums}, of {len(cases)}\n")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Check all programs of a corpus.")
    parser.add_argument("corpus", help="the name of its module, such as second_mistakes")
    parser.add_argument("--jobs", type=int, default=1, help="how many programs to check at a time")
    arguments = parser.parse_args()
    measure(arguments.corpus, arguments.jobs)


if __name__ == "__main__":
    main()
