"""What a check has found."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import fill
from typing import Literal

from typing_extensions import override

from pa_core.errors import ConfigurationError
from pa_preflight._registry import CAUSES, KINDS, LEVELS, Level

FILL_GAPS = "Look for missing values, logarithms of 0 and divisions by 0; leave such samples out, or give them a value."
"""What to do about numbers that are not finite."""


@dataclass(frozen=True)
class Finding:
    """Something that was seen in a script.

    Attributes:
        name: What it is called in ``docs/before-you-train.md``.
        saw: What was seen, with numbers.
        do: What to change.
        level: "mistake" for what certainly spoils a run, "warning" for what very likely does, "note" for what may
            well be meant so.

    Example:
        >>> print(Finding("rate-is-zero", "The learning rate is 0 in each update.", "Look at the scheduler."))
        rate-is-zero: The learning rate is 0 in each update.
            Look at the scheduler.
            See docs/schedulers.md#preview-a-schedule.
    """

    name: str
    saw: str
    do: str
    level: Literal["mistake", "warning", "note"] = "mistake"

    @property
    def see(self) -> str | None:
        """The page of ``docs`` that says more, with the anchor of a heading; None where there is none."""
        kind = KINDS.get(self.name)
        return None if kind is None else kind.page

    @override
    def __str__(self) -> str:
        """Return what was seen, and on the next lines what to do, and where to read on."""
        suffix = "" if self.level == "mistake" else f" ({self.level})"
        saw = fill(f"{self.name}{suffix}: {self.saw}", 110, subsequent_indent="    ")
        do = fill(self.do, 110, initial_indent="    ", subsequent_indent="    ")
        return f"{saw}\n{do}" + ("" if self.see is None else f"\n    See docs/{self.see}.")


@dataclass(frozen=True)
class Report:
    """What a check has found, mistakes first, then warnings and notes; print it.

    Attributes:
        findings: What was found.
        left_out: What could not be checked, and why.
        seconds: How long the check took.

    Example:
        >>> print(Report([], [], 2.5))
        Nothing found in 2.5 seconds.
    """

    findings: list[Finding]
    left_out: list[str]
    seconds: float

    @property
    def mistakes(self) -> list[Finding]:
        """The findings that certainly spoil a run."""
        return [finding for finding in self.findings if finding.level == "mistake"]

    @property
    def warnings(self) -> list[Finding]:
        """The findings that very likely spoil a run; ``require_none()`` lets them pass."""
        return [finding for finding in self.findings if finding.level == "warning"]

    def require_none(self) -> None:
        """Raise an error if there are mistakes.

        Raises:
            ConfigurationError: There are.
        """
        if self.mistakes:
            raise ConfigurationError(f"The script has mistakes.\n{self}")

    @override
    def __str__(self) -> str:
        """Return all findings, and what was left out."""
        counts = [_counted(len(self.mistakes), "mistake")]
        if self.warnings:
            counts.append(_counted(len(self.warnings), "warning"))
        counted = f"{' and '.join(counts)} found" if self.findings else "Nothing found"
        lines = [f"{counted} in {self.seconds:.1f} seconds.", *map(str, self.findings)]
        lines += (f"Not checked: {reason}" for reason in self.left_out)
        return "\n".join(lines)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def noticed(name: str, saw: str, do: str, level: Level | None = None) -> Finding:
    """Return a finding of the level that its kind has.

    Args:
        name: A name of the registry.
        saw: What was seen.
        do: What to change.
        level: The level, where what was seen says another one.
    """
    return Finding(name, saw, do, level or KINDS[name].level)


def in_order(findings: list[Finding]) -> list[Finding]:
    """Return each finding once, mistakes first and notes last, without those whose cause was found.

    Args:
        findings: What was found.
    """
    names = {finding.name for finding in findings}
    once: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        if names.isdisjoint(CAUSES.get(finding.name, ())):
            once.setdefault((finding.name, finding.do), finding)
    return sorted(once.values(), key=lambda finding: LEVELS.index(finding.level))


def failure(what: str, error: Exception, do: str) -> Finding:
    """Return the finding that something raises an error.

    Args:
        what: What raises it.
        error: The error.
        do: What to change.
    """
    return noticed("step-fails", f"{what} raises {first_line(error)}", do)


def first_line(error: Exception) -> str:
    """Return the kind of an error, and the first line of what it says.

    Args:
        error: The error.
    """
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"
