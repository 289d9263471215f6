"""What waits in `changelog.d` can be moved into the changelog."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.changelog import collect, fragments, problems

ROOT = Path(__file__).parents[2]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A repository with two distributions, and an older entry in its changelog."""
    for name in ("pa-core", "pa-data"):
        (tmp_path / "packages" / name).mkdir(parents=True)
        (tmp_path / "packages" / name / "pyproject.toml").touch()
    (tmp_path / "changelog.d").mkdir()
    (tmp_path / "changelog.d" / "README.md").touch()
    newest = ["## 0.2.0", "### Training states", "- Nothing.", "### pa-core", "- First.", "### pa-data", "- One."]
    older = ["## 0.1.0", "### pa-core", "- Old."]
    (tmp_path / "CHANGELOG.md").write_text("\n\n".join([*newest, *older]) + "\n")
    return tmp_path


def test_what_waits_is_well_formed() -> None:
    """Each file says where it belongs, and is a list."""
    assert problems(ROOT) == []


def test_what_waits_is_moved_to_its_place_in_the_newest_entry(copy: Path) -> None:
    """A line stands behind those of its distribution, which may be new, and older entries stay as they are."""
    (copy / "changelog.d" / "a.pa-core.md").write_text("- Second.\n")
    (copy / "changelog.d" / "b.pa-data.md").write_text("- Two,\n  at length.\n")
    (copy / "packages" / "pa-new").mkdir()
    (copy / "packages" / "pa-new" / "pyproject.toml").touch()
    (copy / "changelog.d" / "d.pa-new.md").write_text("- New.\n")
    (copy / "changelog.d" / "c.training-states.md").write_text("- Version 3.\n")
    assert problems(copy) == []
    collect(copy)
    assert fragments(copy) == []
    assert (copy / "CHANGELOG.md").read_text() == (
        "## 0.2.0\n\n### Training states\n\n- Nothing.\n- Version 3.\n\n### pa-core\n\n- First.\n- Second.\n\n"
        "### pa-data\n\n- One.\n- Two,\n  at length.\n\n### pa-new\n\n- New.\n\n## 0.1.0\n\n### pa-core\n\n- Old.\n"
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.pa-else.md", "- A line.\n"),
        ("pa-core.md", "- A line.\n"),
        ("a.pa-core.md", "A line.\n"),
        ("a.pa-core.md", ""),
    ],
)
def test_what_belongs_nowhere_is_named(copy: Path, name: str, text: str) -> None:
    """An unknown distribution, a name without a place, and content that is not a list are each found."""
    (copy / "changelog.d" / name).write_text(text)
    (problem,) = problems(copy)
    assert problem.startswith(f"changelog.d/{name}: expected ")
