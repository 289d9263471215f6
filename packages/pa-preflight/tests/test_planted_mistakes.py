"""Each of the usual mistakes is found, in scripts as users write them."""

from __future__ import annotations

import pytest

from pa_preflight import check
from tests.support.pa_preflight.planted import PLANTED


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_found(name: str) -> None:
    """The check reports the mistake by its name, and says what it saw and what to do."""
    script = PLANTED[name].make()
    report = check(script.trainer, **script.arguments)
    found = {finding.name: finding for finding in report.findings}
    assert PLANTED[name].finding in found
    finding = found[PLANTED[name].finding]
    assert finding.saw
    assert finding.do
