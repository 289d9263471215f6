"""Run ``pa_preflight.check`` on the programs of a corpus, and print which mistakes it names.

    python -m tests.unseen.measure second_mistakes
    python -m tests.unseen.measure second_healthy

Each program is made and checked in a fresh process and an empty folder, and has 120 seconds. A mistake is found if a
finding of level "mistake" or "warning" has one of its keywords in ``saw`` or ``do``. In healthy programs, findings of
level "mistake" are false alarms.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.unseen.corpus import Case

ROOT = Path(__file__).parents[2]
SECONDS = 120
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


def check_here(corpus: str, name: str, output: Path) -> None:
    """Make one program, check it, and write its findings as JSON."""
    import pa_preflight

    program = cases_of(corpus)[name].make()
    report = pa_preflight.check(program.trainer, **program.arguments)
    findings = [(one.name, str(one.level), f"{one.saw}\n{one.do}") for one in report.findings]
    output.write_text(json.dumps(findings))


def check_in_a_process(corpus: str, name: str) -> Checked:
    """Check one program in a fresh process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "findings.json")
        working = Path(folder, "working")
        working.mkdir()
        command = [sys.executable, "-m", "tests.unseen.measure", corpus, "--only", name, "--output", str(output)]
        start = time.monotonic()
        try:
            ended = subprocess.run(
                command, cwd=working, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return Checked([], f"no report after {SECONDS} s", SECONDS)
        seconds = time.monotonic() - start
        if output.exists():
            return Checked([Found(*one) for one in json.loads(output.read_text())], "", seconds)
        return Checked([], ended.stderr.strip().splitlines()[-1] if ended.stderr.strip() else "no report", seconds)


def names_of(findings: list[Found]) -> str:
    """Return the names of findings with their levels, in one line."""
    return ", ".join(f"{one.name} ({one.level})" for one in findings) or "-"


def is_found(case: Case, findings: list[Found]) -> bool:
    """Whether a loud finding has a keyword of the mistake."""
    texts = [one.text.lower() for one in findings if one.level in LOUD]
    return any(keyword in text for keyword in case.keywords for text in texts)


def measure(corpus: str) -> None:
    """Check all programs of a corpus, and print a table and its sums."""
    cases = cases_of(corpus)
    width = max(map(len, cases))
    counts: dict[str, int] = {}
    for name, case in cases.items():
        checked = check_in_a_process(corpus, name)
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
        sys.stdout.flush()
    sums = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    sys.stdout.write(f"{corpus}: {sums}, of {len(cases)}\n")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Check all programs of a corpus.")
    parser.add_argument("corpus", help="the name of its module, such as second_mistakes")
    parser.add_argument("--only", help="check this program in this process, and write its findings to --output")
    parser.add_argument("--output", type=Path, default=Path("findings.json"), help="where --only writes")
    arguments = parser.parse_args()
    if arguments.only:
        check_here(arguments.corpus, arguments.only, arguments.output)
    else:
        measure(arguments.corpus)


if __name__ == "__main__":
    main()
