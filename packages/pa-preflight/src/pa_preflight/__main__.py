"""``python -m pa_preflight script.py [arguments of the script]``: the plan and the check of a training script."""

from __future__ import annotations

import sys

from pa_preflight._script import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
