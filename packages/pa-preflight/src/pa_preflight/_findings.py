"""The findings of a check, and their report."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import fill
from typing import Literal

from typing_extensions import override

from pa_core.errors import ConfigurationError
from pa_preflight._registry import CAUSES, KINDS, LEVELS, Level

FILL_GAPS = "Look for missing values, logarithms of 0 and divisions by 0; leave such samples out, or fill in a value."
"""The advice for numbers that are not finite."""


@dataclass(frozen=True)
class Finding:
    """A problem that a check has found in a training script, with advice.

    ``check`` creates findings, and ``Report.findings`` contains them. ``print(finding)`` shows the observation, the
    advice and, if `see` is not None, the page of the documentation about this problem. You need to create a finding
    yourself only in tests.

    Args:
        name: The name of the problem, for example ``"rate-is-zero"``. The "Before you train" page of the documentation
            lists all names that ``check`` uses. Any other text is accepted; such a finding has no page.
        saw: The observation, with numbers, in a sentence.
        do: The advice, in a sentence.
        level: "mistake" (the default, the level of most problems) if the problem certainly spoils a run, "warning" if
            it very likely does, "note" if the observed setting may well be intended.

    Attributes:
        name: As passed. The same is true for ``saw``, ``do`` and ``level``. None of them can be changed.

    Example:
        >>> from pa_preflight import Finding
        >>> print(Finding("rate-is-zero", "The learning rate is 0 in each update.", "Look at the scheduler."))
        rate-is-zero: The learning rate is 0 in each update.
            Look at the scheduler.
            See the "schedulers" page of the documentation, under "preview-a-schedule".
        >>> print(Finding("loss-too-high", "The loss is 9.", "Lower the rate.", level="warning"))  # a custom name
        loss-too-high (warning): The loss is 9.
            Lower the rate.
    """

    name: str
    saw: str
    do: str
    level: Literal["mistake", "warning", "note"] = "mistake"

    @property
    def see(self) -> str | None:
        """The page of the documentation about the problem, for example ``"schedulers.md#preview-a-schedule"``; or None.

        It is a file in the ``docs`` folder of the source code. After ``#`` follows the heading, in lower case and with
        hyphens. It depends on ``name`` alone, and is None for a name without a page. ``print(finding)`` shows the name
        of the page and the heading.
        """
        kind = KINDS.get(self.name)
        return None if kind is None else kind.page

    @override
    def __str__(self) -> str:
        """Return the observation and, on the next lines, the advice and the page that says more."""
        suffix = "" if self.level == "mistake" else f" ({self.level})"
        saw = fill(f"{self.name}{suffix}: {self.saw}", 110, subsequent_indent="    ")
        do = fill(self.do, 110, initial_indent="    ", subsequent_indent="    ")
        page, _, heading = (self.see or "").partition("#")
        name, under = page.removesuffix(".md"), heading and f', under "{heading}"'
        return f"{saw}\n{do}" + (name and f'\n    See the "{name}" page of the documentation{under}.')


@dataclass(frozen=True)
class Report:
    """The findings of a check, mistakes first, then warnings and notes; print it.

    ``check`` returns it. ``print(report)`` shows each finding with its advice, and the checks that were left out. You
    need to create one yourself only in tests.

    Args:
        findings: The findings, each a ``Finding``; an empty list if nothing was found.
        left_out: The checks that could not be made, each with its reason, in a sentence.
        seconds: The duration of the check in seconds.

    Attributes:
        findings: As passed. The same is true for ``left_out`` and ``seconds``.

    Example:
        >>> import torch
        >>> from pa_core import Trainer
        >>> from pa_core.testing import make_regression
        >>> from pa_preflight import check
        >>> model = torch.nn.Linear(4, 1)
        >>> trainer = Trainer(model, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.0), callbacks=[])
        >>> report = check(trainer, make_regression(64), num_epochs=1)  # then print(report)
        >>> [finding.name for finding in report.mistakes]
        ['rate-is-zero']
    """

    findings: list[Finding]
    left_out: list[str]
    seconds: float

    @property
    def mistakes(self) -> list[Finding]:
        """The findings of level "mistake", which certainly spoil a run: a new list, empty if there are none.

        ``require_none()`` raises an error if this list is not empty.
        """
        return [finding for finding in self.findings if finding.level == "mistake"]

    @property
    def warnings(self) -> list[Finding]:
        """The findings of level "warning", which very likely spoil a run: a new list, empty if there are none.

        ``require_none()`` ignores warnings.
        """
        return [finding for finding in self.findings if finding.level == "warning"]

    def require_none(self) -> None:
        """Raise an error if there are mistakes, which ends the script before it trains.

        Call it between ``check`` and ``train``; ``checked(trainer).train(...)`` does both in one line. Warnings and
        notes cause no error.

        Raises:
            ConfigurationError: There are mistakes; the message is the report. The error is also a ``ValueError``.

        Example:
            >>> from pa_core import ConfigurationError
            >>> from pa_preflight import Finding, Report
            >>> finding = Finding("rate-is-zero", "The learning rate is 0 in each update.", "Look at the scheduler.")
            >>> report = Report([finding], left_out=[], seconds=2.5)  # usually check(trainer, ...)
            >>> try:
            ...     report.require_none()
            ... except ConfigurationError:
            ...     print("not trained")
            not trained
        """
        if self.mistakes:
            raise ConfigurationError(f"The script has mistakes.\n{self}")

    @override
    def __str__(self) -> str:
        """Return all findings, and the checks that were left out."""
        counts = [_counted(len(self.mistakes), "mistake")]
        if self.warnings:
            counts.append(_counted(len(self.warnings), "warning"))
        counted = f"{' and '.join(counts)} found" if self.findings else "Nothing found"
        lines = [f"{counted} in {self.seconds:.1f} seconds.", *map(str, self.findings)]
        lines += (f"Not checked: {reason}" for reason in self.left_out)
        return "\n".join(lines)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def noticed(name: str, saw: str, do: str, level: Level | None = None) -> Finding:
    """Return a finding with the level of its kind.

    Args:
        name: A name of the registry.
        saw: The observation.
        do: The advice.
        level: The level, if it is not the level of the kind.
    """
    return Finding(name, saw, do, level or KINDS[name].level)


def in_order(findings: list[Finding]) -> list[Finding]:
    """Return each finding once, mistakes first and notes last, without findings whose cause was found.

    Args:
        findings: The findings.
    """
    names = {finding.name for finding in findings}
    once: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        if names.isdisjoint(CAUSES.get(finding.name, ())):
            once.setdefault((finding.name, finding.do), finding)
    return sorted(once.values(), key=lambda finding: LEVELS.index(finding.level))


def failure(subject: str, error: Exception, do: str) -> Finding:
    """Return the finding that something raises an error.

    Args:
        subject: The subject of the sentence, such as "The evaluation".
        error: The error.
        do: The advice.
    """
    return noticed("step-fails", f"{subject} raises {first_line(error)}", do)


def first_line(error: Exception) -> str:
    """Return the class of an error, and the first line of its message.

    Args:
        error: The error.
    """
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"
