"""Runs one part: `python -m tools.gpu.part NAME [--quick]`, which prints a line for each figure."""

from __future__ import annotations

import argparse

from tools.gpu.parts import PARTS
from tools.gpu.setting import Setting

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=sorted(PARTS))
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    PARTS[arguments.name].run(Setting(is_quick=arguments.quick))
