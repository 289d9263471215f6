"""Measures on a GPU what the documentation says of one: `python tools/gpu_check.py`, in less than nine minutes.

Needs torch 2.11 or newer, accelerate and pytest, and nothing installed of ours: it runs from the sources. Lightning is
measured too where it is installed. `--quick` takes the smallest sizes, `--parts` some of the parts. On a machine
without CUDA it measures what can be measured on a CPU, and says of the rest that it was not. What is known so far is in
`gpu_check.json` and `gpu_check.md` at any moment.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(ROOT), *map(str, sorted(ROOT.glob("packages/*/src")))]

from tools.gpu.command import main  # noqa: E402  # it is found by the line above

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
