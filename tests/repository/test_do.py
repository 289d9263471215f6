"""The five verbs of `do.py`: what has changed, and what is not a verb."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import do


def test_what_has_changed_is_what_differs_from_main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits of the branch, changes that are not committed and new files count; what main has since does not."""
    monkeypatch.setattr(do, "ROOT", tmp_path)

    def git(*arguments: str) -> None:
        author = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.com", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *author, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def commit(name: str) -> None:
        (tmp_path / name).write_text(name)
        git("add", "--all")
        git("commit", "--message", name)

    git("init", "--initial-branch=main")
    commit("of_both.py")
    git("checkout", "-b", "branch")
    commit("of_branch.py")
    git("checkout", "main")
    commit("of_main.py")
    git("checkout", "branch")
    (tmp_path / "of_both.py").write_text("changed")
    (tmp_path / "new.py").touch()
    assert {path.name for path in do.changed()} == {"of_both.py", "of_branch.py", "new.py"}


@pytest.mark.parametrize("arguments", [[], ["tests"], ["fix", "this"]])
def test_what_is_not_a_verb_shows_the_verbs(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Without a verb, with another one, and with arguments that a verb does not take, each verb is explained."""
    assert do.main(*arguments) != 0
    shown = capsys.readouterr().out
    assert all(f"python3 do.py {verb}" in shown for verb in ("dev", "fix", "check", "test", "docs"))
