"""The fine-tuning example learns the new digits, and its short callback does what the ready-made one does."""

from __future__ import annotations

import re
from pathlib import Path

from tests.launching import Launch

EXAMPLE = Path(__file__).parents[2] / "examples" / "finetune_in_stages.py"


RUN_BOTH_WAYS = """
import runpy, sys

main = runpy.run_path(sys.argv[1])["main"]
main()
main(by_hand=True)
"""


def test_two_ranks_learn_the_new_digits_either_way(launch: Launch) -> None:
    """On two ranks, the ready-made callback and the one written by hand end with the same share of digits."""
    launched = launch(RUN_BOTH_WAYS, str(EXAMPLE), ranks=2)

    assert launched.status == 0
    shares = re.findall(r"Recognised ([\d.]+)% of the new test digits", launched.output)
    assert len(shares) == 2
    assert shares[0] == shares[1]
    assert float(shares[0]) >= 95
