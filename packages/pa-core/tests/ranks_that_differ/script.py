"""A script of two processes, of which the second one is given something else: `script.py ROW DOOR`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import cast

sys.path.insert(0, str(Path(__file__).parents[4]))

from tests.support.pa_core.ranks_that_differ.cases import Door, seeded_case
from tests.support.pa_core.ranks_that_differ.rows import ROWS


def main() -> None:
    """Start the run of the case."""
    what, door = sys.argv[1:]
    row = next(row for row in ROWS if row.what == what)
    case = seeded_case(cast("Door", door))
    row.both(case)
    if os.environ["RANK"] == "1":
        row.change(case)
    case.run()


if __name__ == "__main__":
    main()
