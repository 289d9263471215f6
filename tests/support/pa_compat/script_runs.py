"""Calling the scripts that stand beside the tests of pa-compat."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parents[3] / "packages" / "pa-compat" / "tests" / "scripts"


def names_of(script: str, folder: Path = SCRIPTS) -> dict[str, Any]:
    """What a script defines, without running its ``main``."""
    return runpy.run_path(str(folder / script), run_name=script)
