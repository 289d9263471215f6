"""Run ``pa_preflight.check`` on the programs of a corpus, and print which mistakes it names.

    python -m tests.unseen.measure second_mistakes
    python -m tests.unseen.measure second_healthy

Each program is made and checked in a new process, and in an empty folder. It has 120 seconds of processor time, so
that a busy machine changes no result. A mistake is found if a finding of level "mistake" or "warning" has one of its
keywords in ``saw`` or ``do``. In healthy programs, findings of level "mistake" are false alarms.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pa_preflight
from tests.unseen.corpus import Case

SECONDS = 120
WALL_SECONDS = 900
LOUD = ("mistake", "warning")
ROOT = Path(__file__).parents[2]


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


def check_here(corpus: str, name: str, output: Path) -> None:
    """Make one program, check it, and write its findings as JSON."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    program = cases_of(corpus)[name].make()
    report = pa_preflight.check(program.trainer, **program.arguments)
    findings = [(one.name, str(one.level), f"{one.saw}\n{one.do}") for one in report.findings]
    output.write_text(json.dumps(findings))


def check(corpus: str, name: str) -> Checked:
    """Check one program in a new process."""
    start = time.monotonic()
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile(suffix=".json") as output:
        command = [sys.executable, "-m", "tests.unseen.measure", corpus, "--program", name, "--output", output.name]
        try:
            ended = subprocess.run(
                command,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": path},
                timeout=WALL_SECONDS,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Checked([], f"hangs: no report after {WALL_SECONDS} s", time.monotonic() - start)
        seconds, written = time.monotonic() - start, Path(output.name).read_text()
    if written:
        return Checked([Found(*one) for one in json.loads(written)], "", seconds)
    lines = ended.stdout.strip().splitlines() or ["no report"]
    return Checked([], f"no report after {SECONDS} s" if ended.returncode < 0 else lines[-1], seconds)


def verdict_on(case: Case, checked: Checked) -> str:
    """Return in a word what became of a program."""
    if checked.error:
        return "error"
    levels = {one.level for one in checked.findings}
    if case.keywords:
        texts = [one.text.lower() for one in checked.findings if one.level in LOUD]
        return "found" if any(keyword in text for keyword in case.keywords for text in texts) else "missed"
    return "false alarm" if "mistake" in levels else "warned" if "warning" in levels else "silent"


def measure(corpus: str, jobs: int) -> None:
    """Check all programs of a corpus, and print a table and its sums."""
    cases = cases_of(corpus)
    width, counts = max(map(len, cases)), Counter[str]()
    with ThreadPoolExecutor(jobs) as pool:
        for (name, case), checked in zip(cases.items(), pool.map(partial(check, corpus), cases), strict=True):
            verdict = verdict_on(case, checked)
            counts[verdict] += 1
            shown = checked.error or ", ".join(f"{one.name} ({one.level})" for one in checked.findings) or "-"
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
    parser.add_argument("--program", help="check this program alone, and write its findings")
    parser.add_argument("--output", type=Path, help="where to")
    given = parser.parse_args()
    if given.program:
        check_here(given.corpus, given.program, given.output)
    else:
        measure(given.corpus, given.jobs)


if __name__ == "__main__":
    main()
