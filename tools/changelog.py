"""Moves the files of `changelog.d` into the newest entry of the changelog: `python tools/changelog.py`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRAINING_STATES = "training-states"


def fragments(root: Path) -> list[Path]:
    """Return the files that wait for a release."""
    return sorted(path for path in (root / "changelog.d").glob("*") if path.name != "README.md")


def problems(root: Path) -> list[str]:
    """Return their mistakes: a name that does not say where they belong, or content that is not a list."""
    places = {TRAINING_STATES, *(path.parent.name for path in root.glob("packages/*/pyproject.toml"))}
    found: list[str] = []
    for path in fragments(root):
        match = re.fullmatch(r"[\w-]+\.([\w-]+)\.md", path.name)
        if match is None or match[1] not in places:
            found.append(f"changelog.d/{path.name}: expected NAME.PLACE.md, where PLACE is one of {sorted(places)}")
        elif not re.fullmatch(r"- .+\n(?:(?:- |  ).+\n)*", path.read_text()):
            found.append(
                f"changelog.d/{path.name}: expected lines that begin with '- ', or with two spaces to continue a line"
            )
    return found


def collect(root: Path) -> None:
    """Append each file to its part of the newest entry, which may be new, and remove the file."""
    changelog = root / "CHANGELOG.md"
    start, newest, *older = re.split(r"(?=^## )", changelog.read_text(), flags=re.MULTILINE)
    introduction, *texts = re.split(r"(?=^### )", newest, flags=re.MULTILINE)
    parts = {text.partition("\n")[0]: text.rstrip() for text in texts}
    for path in fragments(root):
        place = path.name.split(".")[1]
        heading = f"### {'Training states' if place == TRAINING_STATES else place}"
        parts[heading] = "\n".join([parts.get(heading) or f"{heading}\n", path.read_text().rstrip()])
        path.unlink()
    entry = [introduction.rstrip(), *parts.values()]
    changelog.write_text(start + "\n\n".join([*entry, *(text.rstrip() for text in older)]) + "\n")


if __name__ == "__main__":
    if wrong := problems(ROOT):
        sys.exit("\n".join(wrong))
    collect(ROOT)
