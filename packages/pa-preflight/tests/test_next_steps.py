"""What a finding says, and where it sends its reader."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pa_preflight import Finding, Report
from tests.docs.test_plain_markdown import places_in

DOCS = Path(__file__).parents[3] / "docs"
NAMES = sorted(
    name
    for row in re.findall(r"^\| (`[^|]+) \|", (DOCS / "before-you-train.md").read_text(), flags=re.MULTILINE)
    for name in re.findall(r"`([a-z0-9-]+)`", row)
)


@pytest.mark.parametrize("name", NAMES)
def test_the_page_of_a_finding_is_there(name: str) -> None:
    """Where a finding names a page, the page has the heading, and it is the last line of what is printed."""
    finding = Finding(name, "saw", "do")
    if finding.see is None:
        assert str(finding) == f"{name}: saw\n    do"
        return
    page, _, place = finding.see.partition("#")
    assert not place or place in places_in((DOCS / page).read_text())
    name, under = page.removesuffix(".md"), place and f', under "{place}"'
    assert str(finding).splitlines()[2:] == [f'    See the "{name}" page of the documentation{under}.']


def test_most_findings_that_need_more_words_have_a_page() -> None:
    """The finder of learning rates, the profiler and the states are among the pages."""
    assert len(NAMES) >= 40
    pages = {str(Finding(name, "", "").see) for name in NAMES}
    assert {"schedulers.md#finding-a-learning-rate", "speed-and-memory.md#is-loading-data-the-bottleneck"} <= pages


def test_a_report_counts_warnings_and_lets_them_pass() -> None:
    """They are said in its first line, and end no script."""
    report = Report([Finding("one-class", "saw", "do", "warning"), Finding("rate-too-high", "", "", "note")], [], 1.0)
    assert str(report).startswith("0 mistakes and 1 warning found in 1.0 seconds.\none-class (warning): saw")
    assert report.warnings == report.findings[:1]
    report.require_none()
