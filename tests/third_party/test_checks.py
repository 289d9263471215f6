"""A check finds no mistakes in scripts that train models of transformers."""

from __future__ import annotations

import pytest

from pa_preflight import check
from tests.support.pa_preflight import transformers_models

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers' own, about its own functions


@pytest.mark.parametrize("name", transformers_models.healthy.cases)
def test_no_mistake_is_reported_of_a_model_of_transformers(name: str) -> None:
    """Random weights, tiny sizes: a finding is a note at the most, and everything was checked."""
    script = transformers_models.healthy.cases[name]()
    report = check(script.trainer, **script.arguments)
    assert report.mistakes == []
    assert report.left_out == []
