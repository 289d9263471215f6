"""The scripts in findings/, which no test runs."""

import re
from pathlib import Path

FINDINGS = Path(__file__).parents[2] / "findings"


def test_the_table_lists_each_script() -> None:
    """The table in findings/README.md names each script once."""
    listed = re.findall(r"\]\((\w+\.sh)\)", (FINDINGS / "README.md").read_text())
    assert listed == sorted(script.name for script in FINDINGS.glob("*.sh"))


def test_each_script_pins_what_it_installs() -> None:
    """A script installs exact versions, so that it shows what its head describes."""
    for script in FINDINGS.glob("*.sh"):
        (packages,) = re.findall(r"^packages=\((.*)\)$", script.read_text(), flags=re.MULTILINE)
        assert all("==" in package for package in packages.split()), script.name
