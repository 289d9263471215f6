"""What the forge runs, and the page about the matrix, name what there is: sessions, tools, cells and tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from tests.cells import CELLS
from tests.support.noxfile import sessions

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def load(path: Path) -> dict[str, Any]:
    """The content of a YAML file."""
    return cast("dict[str, Any]", yaml.safe_load(path.read_text()))


def named_sessions(workflow: Path) -> set[str]:
    """The sessions that the jobs of a workflow name, in a command or in a matrix."""
    commands: list[str] = re.findall(r"noxfile\.py -s ([^\n]+)", workflow.read_text())
    words = {
        word for command in commands for word in command.partition(" -- ")[0].split() if re.fullmatch(r"\w+", word)
    }
    for job in load(workflow)["jobs"].values():
        listed: list[str] = job.get("strategy", {}).get("matrix", {}).get("sessions", [])
        words |= {word for line in listed for word in line.partition(" -- ")[0].split()}
    return words - {"matrix", "sessions"}


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_each_session_that_a_workflow_names_exists(workflow: Path) -> None:
    """A session that was renamed does not stay behind in a workflow."""
    assert named_sessions(workflow)
    assert named_sessions(workflow) - sessions() == set()


def test_pull_requests_run_what_a_plain_nox_runs() -> None:
    """What is green on a developer's machine is what the forge asks for."""
    (plain,) = re.findall(r"nox\.options\.sessions = \[(.*?)\]", (ROOT / "noxfile.py").read_text(), re.DOTALL)
    assert set(re.findall(r'"(\w+)"', plain)) - named_sessions(ROOT / ".github" / "workflows" / "ci.yml") == set()


def test_the_site_that_is_published_is_the_one_that_was_built() -> None:
    """The workflow uploads the folder that the session `docs` builds, and only its last job may publish."""
    pages = load(ROOT / ".github" / "workflows" / "pages.yml")
    (upload,) = [step for step in pages["jobs"]["build"]["steps"] if "upload-pages" in step.get("uses", "")]
    (folder,) = re.findall(r'"BUILT_SITE": str\(ROOT / OUT / "(\w+)"\)', (ROOT / "noxfile.py").read_text())
    assert upload["with"]["path"] == f".nox/out/{folder}"
    assert pages["permissions"] == {"contents": "read"}
    assert pages["jobs"]["publish"]["permissions"] == {"pages": "write", "id-token": "write"}


def test_hooks_need_nothing_but_the_tools_of_the_environment() -> None:
    """A commit downloads nothing: each hook is local, and runs a program that `nox -s dev` installs."""
    repositories = load(ROOT / ".pre-commit-config.yaml")["repos"]
    assert {one["repo"] for one in repositories} == {"local"}
    hooks = [hook for one in repositories for hook in one["hooks"]]
    assert {hook["language"] for hook in hooks} == {"system"}
    assert {hook["entry"].split()[0] for hook in hooks} == {"ruff", "lint-imports", "dmypy", "typos", "check-toml"}


def test_forms_ask_for_what_an_answer_needs() -> None:
    """A report of a bug has a script, the line that says what runs, and the versions."""
    form = load(ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml")
    required = {part["id"] for part in form["body"] if part.get("validations", {}).get("required")}
    assert required == {"script", "outcome", "run", "versions"}
    assert "describe_run()" in (ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text()
    assert "describe_run()" in (ROOT / ".github" / "pull_request_template.md").read_text()


def test_the_changelog_names_the_versions_of_the_training_state_format() -> None:
    """A change of the format cannot be released without its line."""
    manifest = ROOT / "packages" / "pa-checkpoint" / "src" / "pa_checkpoint" / "_manifest.py"
    first, last = re.findall(r"^FIRST_VERSION, LAST_VERSION = (\d+), (\d+)$", manifest.read_text(), re.MULTILINE)[0]
    newest = (ROOT / "CHANGELOG.md").read_text().partition("### Training states")[2].partition("\n### ")[0]
    assert f"reads versions {first} and {last}" in newest or f"reads versions {first} to {last}" in newest


PAGE = (ROOT / "docs" / "maintainers" / "matrix.md").read_text()


def test_each_cell_has_a_row() -> None:
    """Its first table lists the cells, in order, and says what each proves."""
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]+ \|$", PAGE.partition("## What runs when")[0], re.MULTILINE)
    assert rows == list(CELLS)


def test_each_session_is_named() -> None:
    """Whoever adds a session says on the page when it runs and what it shows."""
    assert sessions() - set(re.findall(r"`(\w+)`", PAGE)) == set()
