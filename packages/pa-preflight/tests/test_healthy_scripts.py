"""Scripts without a mistake are left alone, no matter how unusual they are."""

from __future__ import annotations

import pytest

from pa_preflight import check
from tests.support.pa_preflight.healthy import HEALTHY, TUTORIALS

ALL = {**HEALTHY, **TUTORIALS}
CASES = [*HEALTHY, *(pytest.param(name, marks=pytest.mark.more_cases) for name in TUTORIALS)]


@pytest.mark.parametrize("name", CASES)
def test_no_mistake_is_reported_of_a_healthy_script(name: str) -> None:
    """A finding is a note at the most."""
    script = ALL[name]()
    report = check(script.trainer, **script.arguments)
    assert [finding for finding in report.findings if finding.level == "mistake"] == []
