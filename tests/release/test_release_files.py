"""The files of a release are built, compared, looked into and installed, and each check notices what is wrong."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.release.conftest import Copy
from tools.release.built import build_twice, contents, differences
from tools.release.trial import Installer, install_in_order

ROOT = Path(__file__).parents[2]
LEFT_OUT = ("pa-callbacks-extra", "pa-compat", "pa-preflight", "pa-ray", "pa-schedulers", "pa-trial")


@pytest.fixture
def installer(tmp_path: Path) -> Installer:
    """An empty environment."""
    venv.create(tmp_path / "empty", with_pip=True)
    return Installer(tmp_path / "empty" / "bin" / "python")


@pytest.fixture
def small(copy: Copy) -> Copy:
    """A copy with half of the distributions, which is built in half of the time."""
    for name in LEFT_OUT:
        copy.git("rm", "-r", "--quiet", f"packages/{name}")
    copy.commit()
    return copy


def _run(copy: Copy, folder: Path, *options: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "tools.release", f"--root={copy.root}", f"--folder={folder}"]
    ran = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout + ran.stderr


@pytest.mark.more_cases
def test_a_check_builds_installs_and_prints_the_order_of_upload(copy: Copy, tmp_path: Path) -> None:
    """Without addresses the check is green, lists them as open, and shows what would be uploaded in which order."""
    (copy.root / "tests").mkdir()
    (copy.root / "tests" / "constraints.txt").touch()
    copy.commit()
    status, output = _run(copy, tmp_path / "files", "--check")
    assert status == 0, output
    places = {one.name: output.index(f". {one.name}\n") for one in copy.repository.distributions}
    required = [(line.name, one.name) for one in copy.repository.distributions for line in one.required]
    assert [pair for pair in required if pair[0] in places and places[pair[0]] > places[pair[1]]] == []
    assert output.count("sha256") == 2 * len(places)
    assert "open   no address: fill in Source" in output


def test_a_release_without_addresses_is_refused_before_anything_is_built(copy: Copy, tmp_path: Path) -> None:
    """What can be uploaded is made only when everything is there that a release needs."""
    status, output = _run(copy, tmp_path / "files")
    assert status == 1
    assert "WRONG  ready for a release" in output
    assert 'fill in Source = "https://..." in pyproject.toml, [tool.release.urls]' in output
    assert not (tmp_path / "files").exists()


def test_a_check_of_a_dirty_tree_is_refused(copy: Copy, tmp_path: Path) -> None:
    """A check says nothing about files that are not committed, and so does not begin."""
    (copy.root / "new.py").touch()
    status, output = _run(copy, tmp_path / "files", "--check")
    assert status == 1
    assert "not committed: new.py" in output
    assert not (tmp_path / "files").exists()


def test_two_builds_of_one_commit_are_the_same_bytes(small: Copy, tmp_path: Path) -> None:
    """Neither the folder nor the umask nor the time zone is in a file."""
    first, second = build_twice(small.repository, tmp_path)
    assert len(list(first.iterdir())) == 10
    assert differences(first, second) == []
    assert contents(small.repository, first) == []


@pytest.mark.more_cases
def test_a_build_that_leaves_a_trace_of_its_surroundings_is_refused(small: Copy, tmp_path: Path) -> None:
    """A file that differs from build to build is named, with what differs in it."""
    small.replace(small.pyproject("pa-finetuning"), r"\A", "[tool.hatch.build.targets.wheel.hooks.custom]\n")
    hook = """
import os, pathlib
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
class Hook(BuildHookInterface):
    def initialize(self, version, build_data):
        folder = pathlib.Path(self.root, "src", "pa_finetuning", "built.py")
        folder.write_text(f"zone = {os.environ['TZ']!r}")
"""
    (small.root / "packages" / "pa-finetuning" / "hatch_build.py").write_text(hook)
    small.replace(
        small.pyproject("pa-finetuning"), r'^only-include = \["src"\]', 'only-include = ["src", "hatch_build.py"]'
    )
    small.commit()
    problems = differences(*build_twice(small.repository, tmp_path))
    assert len(problems) == 1
    assert "pa_finetuning/built.py" in problems[0]


def test_what_differs_beside_the_content_is_found_too(tmp_path: Path) -> None:
    """Times and modes of members are part of the bytes."""
    for folder, year in ((tmp_path / "a", 2020), (tmp_path / "b", 2021)):
        folder.mkdir()
        with zipfile.ZipFile(folder / "x-1-py3-none-any.whl", "w") as wheel:
            wheel.writestr(zipfile.ZipInfo("x.py", (year, 1, 1, 0, 0, 0)), "")
    (tmp_path / "a" / "only.whl").touch()
    assert differences(tmp_path / "a", tmp_path / "b") == [
        "only.whl was built in only one of two builds",
        "x-1-py3-none-any.whl: two builds of the same commit differ in times, modes or order of its members",
    ]


@pytest.mark.more_cases
def test_files_without_licence_or_marker_and_with_other_metadata_are_refused(small: Copy, tmp_path: Path) -> None:
    """What is declared has to be in the files that users get."""
    small.replace(small.pyproject("pa-finetuning"), r"^packages = .*", r'\g<0>\nexclude = ["py.typed"]\n')
    small.replace(small.pyproject("pa-core"), r"^license-files = .*", "license-files = []")
    small.commit()
    built, _ = build_twice(small.repository, tmp_path)
    small.replace(small.pyproject("pa-core"), r'^description = ".*"', 'description = "Something else."')
    small.replace("pyproject.toml", '^Issues = ""', 'Issues = "https://example.com/issues"')
    problems = contents(small.repository, built)
    version = small.repository.version
    core, finetuning = f"pa_core-{version}", f"pa_finetuning-{version}-py3-none-any.whl"
    licence = f"{core}.dist-info/licenses/LICENSE"
    for problem in (
        f"{finetuning}: pa_finetuning/py.typed is missing, or differs from the repository",
        f"{core}-py3-none-any.whl: {licence} is missing, or differs from the repository",
        f"{core}-py3-none-any.whl: License-File is missing, or not as declared",
        f"{core}-py3-none-any.whl: Summary is missing, or not as declared",
        f"{core}.tar.gz: Project-URL is missing, or not as declared",
    ):
        assert problem in problems


@pytest.mark.more_cases
def test_a_wheel_that_needs_what_is_not_uploaded_is_refused(small: Copy, tmp_path: Path, installer: Installer) -> None:
    """Installation goes by the files uploaded so far: a version of a sibling that is not among them is missed."""
    small.replace(small.pyproject("pa-finetuning"), r"^dependencies = \[", 'dependencies = ["pa-core>=9"')
    small.commit()
    built, _ = build_twice(small.repository, tmp_path)
    (problem,) = install_in_order(small.repository, built, tmp_path, installer)
    assert problem.startswith("pa-finetuning cannot be installed from its wheel and the wheels uploaded before:")
    assert "pa-core>=9" in problem


@pytest.mark.more_cases
def test_a_wheel_that_cannot_be_imported_is_refused(small: Copy, tmp_path: Path, installer: Installer) -> None:
    """A package whose import fails for every user is not released."""
    (small.root / "packages" / "pa-core" / "src" / "pa_core" / "__init__.py").write_text("import pa_schedulers\n")
    small.commit()
    built, _ = build_twice(small.repository, tmp_path)
    (problem,) = install_in_order(small.repository, built, tmp_path, installer)
    assert problem.startswith("pa-core is installed and cannot be imported:")
    assert "No module named 'pa_schedulers'" in problem
