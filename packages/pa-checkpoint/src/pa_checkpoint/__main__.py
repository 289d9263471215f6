"""``python -m pa_checkpoint FIRST SECOND`` compares two checkpoints, and prints the first difference."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pa_checkpoint._compare import ANY_PROCESSES, CLOCK, compare_entries
from pa_checkpoint._errors import CheckpointError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare two checkpoints on the command line, and return the exit status.

    It prints the first entry that differs, or the number of equal entries. The status is 0 if the checkpoints are
    equal, 1 if they differ, and 2 if a checkpoint cannot be read.

    Args:
        arguments: The arguments of the command line. The default, None, takes them from ``sys.argv``.
    """
    parser = argparse.ArgumentParser(
        prog="python -m pa_checkpoint",
        description="Compare two checkpoints bit by bit, and print the first entry that differs.",
        epilog="Exit status: 0 if they hold the same, 1 if they differ, 2 if one of them cannot be read.",
    )
    for name in ("first", "second"):
        parser.add_argument(name, help="a checkpoint, or a folder, which stands for its newest checkpoint")
    parser.add_argument(
        "--ignore", metavar="PATTERN", action="append", default=[], help="an entry that may differ, such as 'run.*'"
    )
    parser.add_argument(
        "--any-processes",
        action="store_true",
        help="in training states of pa-core, also ignore entries that depend on the number of processes",
    )
    parser.add_argument(
        "--clock", action="store_true", help="in training states of pa-core, also compare the times in the history"
    )
    given = parser.parse_args(arguments)
    known = ANY_PROCESSES if given.any_processes else CLOCK
    ignored: list[str] = [*given.ignore, *(name for name in known if name not in CLOCK or not given.clock)]
    count = 0
    try:
        for difference in compare_entries(given.first, given.second, ignored):
            if difference is not None:
                sys.stdout.write(f"{difference}\n".encode(errors="backslashreplace").decode())
                return 1
            count += 1
    except CheckpointError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"The same: {count} entries\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
