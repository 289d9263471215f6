"""The table of the figures: medians, their spread, and what they are compared with the reference of the same round."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.comparisons import Comparison

__all__ = ["HEADER", "Row", "rows"]

HEADER = ("measured", "variant", "median", "least to most", "compared", "least to most", "promised")


@dataclass(frozen=True)
class Row:
    """One variant in one comparison.

    Attributes:
        cells: What the table shows, in the order of its header.
        keeps_promise: Whether it is within the limit; None if nothing is promised of it.
    """

    cells: tuple[str, ...]
    keeps_promise: bool | None


def rows(comparison: Comparison, rounds: Sequence[dict[str, float]]) -> list[Row]:
    """Summarise the figures of each round."""
    peers = [variant for variant in rounds[0] if variant not in comparison.variants]
    return [_row(comparison, variant, rounds) for variant in (*comparison.variants, *peers)]


def _row(comparison: Comparison, variant: str, rounds: Sequence[dict[str, float]]) -> Row:
    reference, *_, ours = comparison.variants
    figures = [figures_of_round[variant] for figures_of_round in rounds]
    compared = [_compare(comparison, figures_of_round, variant, reference) for figures_of_round in rounds]
    limit = comparison.limit if variant == ours else None
    sign = "" if comparison.compared_by == "ratio" else "+"
    cells = (
        comparison.name,
        variant.replace("_", " "),
        f"{_short(statistics.median(figures))} {comparison.unit}",
        f"{_short(min(figures))} to {_short(max(figures))}",
        f"{statistics.median(compared):{sign}.2f}",
        f"{min(compared):{sign}.2f} to {max(compared):{sign}.2f}",
        "" if limit is None else f"{limit:{sign}.2f}",
    )
    return Row(cells, None if limit is None else statistics.median(compared) <= limit)


def _compare(comparison: Comparison, figures: dict[str, float], variant: str, reference: str) -> float:
    if comparison.compared_by == "ratio":
        return figures[variant] / figures[reference]
    return figures[variant] - figures[reference]


def _short(figure: float) -> str:
    return f"{figure:,.0f}" if abs(figure) >= 100 else f"{figure:.3g}"
