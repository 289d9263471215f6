"""The tables of the figures: medians, their spread, and what they are compared with the reference of the same round.

A table can be written as a whole or in parts, also on several days.
"""

from __future__ import annotations

import datetime
import math
import platform
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.comparisons import COMPARISONS, Comparison, Device
from benchmarks.processes import ROOT

__all__ = ["HEADER", "TABLES", "Row", "as_page", "failed", "heading", "machine", "peers_of", "rows", "table"]

HEADER = ("measured", "variant", "median", "least to most", "compared", "least to most", "promised")
COLUMNS = (*HEADER, "rounds, day")
OTHER_TRAINERS = "Other trainers: "
PAGES = ROOT / "docs" / "maintainers"
TABLES: dict[Device, Path] = {"cpu": PAGES / "cost-figures.md", "cuda": PAGES / "gpu-figures.md"}
COMMANDS: dict[Device, str] = {
    "cpu": "nox -s benchmark -- --write",
    "cuda": "python tools/gpu_check.py --write",
}


@dataclass(frozen=True)
class Row:
    """One variant in one comparison.

    Attributes:
        cells: What the table shows, in the order of its header.
        keeps_promise: Whether it is within the limit; None if nothing is promised of it.
        has_failed: Whether it could not be measured.
    """

    cells: tuple[str, ...]
    keeps_promise: bool | None = None
    has_failed: bool = False

    @property
    def verdict(self) -> str:
        """Whether somebody should look."""
        return "FAILED" if self.has_failed else {None: "", True: "kept", False: "MISSED"}[self.keeps_promise]


def rows(comparison: Comparison, rounds: Sequence[dict[str, float]]) -> list[Row]:
    """Summarise the figures of each round."""
    peers = [variant for variant in rounds[0] if variant not in comparison.variants]
    return [_row(comparison, variant, rounds) for variant in (*comparison.variants, *peers)]


def failed(comparison: Comparison, error: Exception) -> list[Row]:
    """Let an error take the place of the figures."""
    said = str(error).strip().splitlines()
    reason = " ... ".join(dict.fromkeys([said[0], said[-1]])).replace("|", "\\|")
    return [Row((comparison.name, f"**failed**: {reason[:300]}", *[""] * (len(HEADER) - 2)), has_failed=True)]


def _row(comparison: Comparison, variant: str, rounds: Sequence[dict[str, float]]) -> Row:
    reference, *_, ours = comparison.variants
    figures = [figures_of_round[variant] for figures_of_round in rounds]
    compared = [_compare(comparison, figures_of_round, variant, reference) for figures_of_round in rounds]
    limit = comparison.limit if variant == ours else None
    sign = "" if comparison.compared_by == "ratio" else "+"
    cells = (
        comparison.name,
        variant.replace("_", " "),
        f"{_short(statistics.median(figures))} {comparison.unit}".strip(),
        f"{_short(min(figures))} to {_short(max(figures))}",
        f"{statistics.median(compared):{sign}.2f}",
        f"{min(compared):{sign}.2f} to {max(compared):{sign}.2f}",
        "" if limit is None else f"{limit:{sign}.2f}",
    )
    keeps_promise = None if limit is None else statistics.median(compared) <= limit
    return Row(cells, keeps_promise, has_failed=any(map(math.isnan, figures)))


def _compare(comparison: Comparison, figures: dict[str, float], variant: str, reference: str) -> float:
    if comparison.compared_by == "difference":
        return figures[variant] - figures[reference]
    return figures[variant] / figures[reference] if figures[reference] else math.nan


def _short(figure: float) -> str:
    return f"{figure:,.0f}" if abs(figure) >= 100 else f"{figure:.3g}"


def heading(device: Device) -> str:
    """Where and with what the figures of a table were measured: those of another machine do not belong into it."""
    return f"Measured on {machine(device)}; medians. This table is written by `{COMMANDS[device]}`."


def machine(device: Device) -> str:
    """What computes, and with which versions."""
    found = {distribution.metadata["Name"]: distribution.version for distribution in metadata.distributions()}
    packages = ("torch", "accelerate") if device == "cpu" else ("torch", "triton", "accelerate", "lightning", "numpy")
    versions = ", ".join(f"{name} {found[name]}" for name in packages if name in found)
    computes = f"{_processor()}, one thread a process" if device == "cpu" else f"{_devices()}, {_processor()}"
    return f"{computes}, Python {platform.python_version()}, {versions}"


def _processor() -> str:
    """What computes, as Linux names it, and how many cores of it there are."""
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} cores of {names[0]}" if names else platform.machine()


def _devices() -> str:
    """The CUDA devices, with what runs on them."""
    import torch  # for which the table of the CPU does not wait

    if not torch.cuda.is_available():
        return "no CUDA device"
    cudnn: Any = torch.backends.cudnn  # its functions have no types
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    names = ", ".join(f"{device.name} with {device.total_memory / 2**30:.0f} GiB" for device in found)
    return f"{names}, CUDA {torch.version.cuda}, cuDNN {cudnn.version()}"


def peers_of(page: str) -> str:
    """The versions of other trainers that a page states, if any."""
    found = re.search(rf"^{OTHER_TRAINERS}(.*)\.$", page, re.MULTILINE)
    return found[1] if found else ""


def as_page(
    device: Device, measured: Mapping[str, tuple[int, Sequence[Row]]], before: str = "", peers: str = ""
) -> str:
    """The table in Markdown.

    Args:
        device: What has computed.
        measured: By the name of the comparison, how often each variant had its turn, and the rows.
        before: The page with the rows of other comparisons, which are kept.
        peers: The versions of other trainers that were measured too.
    """
    lines = [line for line in before.splitlines() if line.startswith("| ")][1:]
    of_comparison = {name: list(rows) for name, rows in groupby(lines, lambda line: line.split(" | ")[0][2:])}
    today = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
    for name, (rounds, rows_of_comparison) in measured.items():
        cells = [(*row.cells, f"{rounds}, {today}") for row in rows_of_comparison]
        of_comparison[name] = table(COLUMNS, cells)[2:]
    ordered = [line for comparison in COMPARISONS for line in of_comparison.get(comparison.name, ())]
    others = [f"{OTHER_TRAINERS}{peers}."] if peers else []
    return "\n".join([heading(device), *others, "", *table(COLUMNS, []), *ordered]) + "\n"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown."""
    return [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}", *(f"| {' | '.join(row)} |" for row in rows)]
