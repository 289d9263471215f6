"""Building the site."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["build_site"]

ROOT = Path(__file__).parents[2]


def build_site(folder: Path) -> None:
    """Build the documentation into a folder; warnings are errors."""
    shutil.rmtree(folder, ignore_errors=True)  # pages that are gone would stay
    options = ["-n", "-W", "--keep-going", "-E", "-q"]
    subprocess.run([sys.executable, "-m", "sphinx", *options, "docs", str(folder)], cwd=ROOT, check=True)
