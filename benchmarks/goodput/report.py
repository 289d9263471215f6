"""The tables of what is left of a run that is killed again and again."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.goodput.runs import Disturbed, Recovery, Undisturbed
from benchmarks.processes import ROOT, percentile
from benchmarks.report import machine, table

__all__ = ["FIGURES", "VARIANTS", "Measured", "Variant", "as_page"]

FIGURES = ROOT / "docs" / "maintainers" / "goodput-figures.md"


@dataclass(frozen=True)
class Variant:
    """A way to start a script.

    Attributes:
        name: What the tables call it.
        task: What it trains.
        arguments: Further arguments of the script.
        starter: A program that starts it, and starts it again; None for the system.
    """

    name: str
    task: str
    arguments: tuple[str, ...] = ()
    starter: str | None = None


VARIANTS = (
    Variant("digits, as most scripts begin", "digits", ("--collecting",)),
    Variant("digits, no garbage collected while importing", "digits"),
    Variant("digits, by `keep_running.py`", "digits", starter="tools/keep_running.py"),
    Variant("images, no garbage collected while importing", "images"),
)


@dataclass(frozen=True)
class Measured:
    """A run that was killed, beside one that nothing disturbed.

    Attributes:
        variant: How the script was started.
        reference: The run that nothing disturbed.
        run: The run that was killed.
        in_use: The share of the cores that other programs used, before these runs began.
    """

    variant: Variant
    reference: Undisturbed
    run: Disturbed
    in_use: float

    @property
    def goodput(self) -> float:
        """The share of the undisturbed throughput that is left."""
        updates: int = self.run.outcome["updates"]
        return updates / self.run.seconds / self.reference.rate

    @property
    def is_identical(self) -> bool:
        """Whether it ended with the same bits."""
        return self.run.outcome == self.reference.outcome

    def cells(self) -> list[str]:
        """Its row in the table."""
        recoveries = self.run.recoveries
        again = statistics.mean(one.lost for one in recoveries) / self.reference.rate
        return [
            self.variant.name,
            f"{self.reference.rate:,.0f}",
            f"{self.run.kills}",
            f"{self.goodput:.3f}",
            *(f"{percentile([one.first for one in recoveries], p):.2f}" for p in (50, 99)),
            *(f"{percentile([one.regained for one in recoveries], p):.2f}" for p in (50, 99)),
            f"{again:.2f}",
            "yes" if self.is_identical else "NO",
        ]

    def describe(self) -> str:
        """Its row on one line."""
        return "  ".join(self.cells())


HEADER = (
    "script",
    "updates a second, undisturbed",
    "kills",
    "goodput",
    "to the first update, p50",
    "p99",
    "to the first new update, p50",
    "p99",
    "made again",
    "bit for bit the same end",
)


def as_page(measured: Sequence[Measured], every: float) -> str:
    """Both tables in Markdown: what is left, and where the time of a start goes.

    Args:
        measured: One for each row.
        every: Seconds from one kill to the next.
    """
    today = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
    in_use = max(one.in_use for one in measured)
    heading = (
        f"Measured on {machine('cpu')}, of which other programs used at most {in_use:.0%}, with a SIGKILL every "
        f"{every:g} seconds, on {today}; times in seconds. These tables are written by `nox -s goodput -- --write`."
    )
    parts = list(measured[0].run.recoveries[0].parts)
    rows = [[part, *(f"{_median(one.run.recoveries, part):.2f}" for one in measured)] for part in parts]
    totals = [f"{sum(_median(one.run.recoveries, part) for part in parts):.2f}" for one in measured]
    return "\n".join(
        [
            *(heading, "", *table(HEADER, [one.cells() for one in measured])),
            *("", "Where the processor time of a start goes, the medians of all starts:", ""),
            *table(("part", *(one.variant.name for one in measured)), [*rows, ["**together**", *totals]]),
            "",
        ]
    )


def _median(recoveries: Sequence[Recovery], part: str) -> float:
    return statistics.median(one.parts[part] for one in recoveries)
