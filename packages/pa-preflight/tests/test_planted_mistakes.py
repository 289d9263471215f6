"""Each of the usual mistakes is found, in scripts as users write them."""

from __future__ import annotations

import pytest

from pa_preflight import check
from pa_preflight._registry import KINDS
from tests.support.pa_preflight.corpus import NOT_FOUND, PLANTED

FOUND = sorted(PLANTED.keys() - NOT_FOUND)
FIRST = {(PLANTED[name].finding, PLANTED[name].advice, PLANTED[name].level): name for name in reversed(FOUND)}.values()
"""A mistake for each finding, its level and its remedy; further ones are tried each night."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FIRST else [pytest.mark.more_cases]) for name in FOUND]
)
def test_a_planted_mistake_is_found(name: str) -> None:
    """Within a minute, the check reports the mistake by its name and level, and says the remedy."""
    planted, script = PLANTED[name], PLANTED[name].make()
    report = check(script.trainer, **script.arguments)
    found = [finding for finding in report.findings if finding.name == planted.finding]
    assert [finding.level for finding in found] == [planted.level or KINDS[planted.finding].level]
    assert planted.advice in found[0].do
    assert found[0].saw
    assert report.seconds < 60


@pytest.mark.parametrize("name", sorted(NOT_FOUND))
def test_what_is_not_found_is_known(name: str) -> None:
    """A mistake that the check overlooks is listed, until it is found."""
    script = PLANTED[name].make()
    report = check(script.trainer, **script.arguments)
    assert PLANTED[name].finding not in {finding.name for finding in report.findings}


def test_an_argument_that_train_refuses_is_reported() -> None:
    """As a step that fails, in the words of ``train``."""
    script = PLANTED["tiny_rate"].make()
    script.arguments["per_device_batch_size"] = 0
    report = check(script.trainer, **script.arguments)
    (finding,) = report.findings
    assert finding.name == "step-fails"
    assert "per_device_batch_size" in finding.saw
