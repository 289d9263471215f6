"""The example of text in batches of a budget learns, and goes on with another number of processes."""

from __future__ import annotations

import re
from pathlib import Path

from tests.launching import Launch

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_text_by_tokens.py"


def test_it_learns_and_goes_on_with_another_number_of_processes(launch: Launch) -> None:
    """The loss falls in the epoch on two processes and in the next one on one, with as many updates each."""
    arguments = ["--max-characters=8192", "--output=here"]
    first = launch(EXAMPLE, "--epochs=1", *arguments, ranks=2)
    second = launch(EXAMPLE, "--epochs=2", *arguments)
    assert first.status == second.status == 0
    assert "18 batches" in first.output
    assert [re.findall(r"ended: .* epochs?, (\d+) updates", one.output) for one in (first, second)] == [["5"], ["10"]]
    reported = re.findall(r"^ +\d+ +[\d.]+ +\*?([\d.]+) ", first.output + second.output, re.MULTILINE)
    before, after = map(float, reported)
    assert 4.56 > before > after  # the logarithm of the number of characters, by which a guess is judged
