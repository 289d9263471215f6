"""The scores in CONTRIBUTING.md are what the checkers say, not what somebody typed."""

from __future__ import annotations

import pytest

from tests.typing.checkers import Completeness, TypedEnvironment
from tests.typing.scores import describe_scores, without_counts, written_scores

LAG = 0.1
"""By how much of itself a count may be behind: each new function would change the page otherwise."""


@pytest.fixture(scope="module")
def scores(completeness: dict[str, Completeness], environment: TypedEnvironment) -> str:
    """What `python -m tests.typing.scores` would write."""
    return describe_scores(completeness, environment)


@pytest.mark.timeout(400)
def test_the_scores_are_those_of_the_wheels(scores: str) -> None:
    """Scores and versions are exact; counts are not far behind. Run `nox -s typing_score` to write them anew."""
    (shown, shown_counts), (found, found_counts) = without_counts(written_scores()), without_counts(scores)
    assert shown == found
    assert shown_counts == pytest.approx(found_counts, rel=LAG)
