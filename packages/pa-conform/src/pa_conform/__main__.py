"""`python -m pa_conform ADAPTER ...`: asks training loops, and prints what was seen."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from pa_conform._kit import Adapter, Kit
from pa_conform._questions import QUESTIONS, Answer, as_json, ask

SIGNS = {"pass": "✓", "fail": "✗", "not offered": "–"}


def line(answer: Answer) -> str:
    """One row of the table."""
    return f"{SIGNS[answer.result]} {answer.question:<24} {answer.seen}"


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns 1 where an answer is no pass though the adapter offers what it needs, and 2 on bad input."""
    parser = argparse.ArgumentParser("python -m pa_conform", description="Asks training loops what they really do.")
    parser.add_argument("adapters", nargs="*", metavar="ADAPTER", help="files with train(job, seen) and OFFERS")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="names of questions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the answers")
    parser.add_argument("--questions", action="store_true", help="print the questions, and ask nothing")
    options = parser.parse_args(arguments)
    out = sys.stdout.write
    if options.questions:
        for asked in QUESTIONS:
            out(f"{asked.name}\n  {asked.asks}\n  {asked.matters}\n  needs: {', '.join(asked.needs) or 'nothing'}\n")
        return 0
    results: list[dict[str, object]] = []
    failed = 0
    try:
        adapters = [Adapter.read(path) for path in options.adapters]
        with Kit() as kit:
            for adapter in adapters:
                out(f"{adapter.path.name}: {adapter.about}\n")
                answers: list[Answer] = []
                for name in options.only or [asked.name for asked in QUESTIONS]:
                    answers += ask(adapter.path, [name], kit)
                    out(line(answers[-1]) + "\n")
                    sys.stdout.flush()
                results.append(as_json(adapter, answers))
                counts = {kind: sum(answer.result == kind for answer in answers) for kind in SIGNS}
                failed += counts["fail"]
                out(", ".join(f"{number} {kind}" for kind, number in counts.items()) + "\n\n")
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
