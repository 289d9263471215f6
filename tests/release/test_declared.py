"""What the files of the repository say is ready for a release, and each check notices when it is not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tests.release.conftest import Copy
from tools.release import declared
from tools.release.__main__ import DECLARED
from tools.release.repository import Repository
from tools.release.write_urls import write_urls

ROOT = Path(__file__).parents[2]
ON_THE_DAY = {"everything is committed", "no line waits for the changelog"}
"""What holds on the day of a release, and not at every commit."""
VERSION = Repository(ROOT).version
ADDRESS = "https://example.com/project"


@pytest.mark.parametrize("title", [title for title in DECLARED if title not in ON_THE_DAY])
def test_this_repository_could_be_released(title: str) -> None:
    """The checks of what is declared pass at every commit, not only on the day of a release."""
    assert DECLARED[title](Repository(ROOT)) == []


@pytest.mark.parametrize("title", DECLARED)
def test_the_copy_passes_before_it_is_broken(copy: Copy, title: str) -> None:
    """What the tests below see comes from what they break."""
    assert DECLARED[title](copy.repository) == []


def test_what_is_not_committed_is_refused(copy: Copy) -> None:
    """A file that would not be in the build is named."""
    (copy.root / "packages" / "pa-core" / "src" / "pa_core" / "forgotten.py").touch()
    assert declared.clean_tree(copy.repository) == ["not committed: packages/pa-core/src/pa_core/forgotten.py"]


def test_a_distribution_with_another_version_is_refused(copy: Copy) -> None:
    """A version that was not raised in one of six files is named."""
    copy.replace(copy.pyproject("pa-trial"), r'^version = ".*"', 'version = "0.0.9"')
    assert declared.versions(copy.repository) == [
        f"pa-trial has version 0.0.9, pa-data has {VERSION}: all are released together"
    ]


@pytest.mark.parametrize("wrong", [">=0.1,<0.3", ">=0.1", "==0.1.*"])
def test_a_sibling_in_another_range_is_refused(copy: Copy, wrong: str) -> None:
    """Siblings are required within one minor version: nobody installs parts that were never tested together."""
    copy.replace(copy.pyproject("pa-compat"), r'"pa-schedulers[^"]*"', f'"pa-schedulers{wrong}"')
    (problem,) = declared.versions(copy.repository)
    assert problem.startswith("pa-compat requires pa-schedulers")
    assert declared.sibling_range(VERSION) == SpecifierSet(problem.partition("; write pa-schedulers")[2])


def test_a_version_without_its_heading_in_the_changelog_is_refused(copy: Copy) -> None:
    """Users can read what is new in every version that they can install."""
    copy.replace("CHANGELOG.md", rf"^## {VERSION} \(unreleased\)", "## 0.0.9 (unreleased)")
    (problem,) = declared.changelog(copy.repository)
    assert f"no heading '## {VERSION} (unreleased)'" in problem


@pytest.mark.parametrize("part", ["pa-finetuning", "Training states"])
@pytest.mark.parametrize("pattern", [r"^### {0}\n(?:(?!#).*\n)*", r"(?<=^### {0}\n)(?:(?!#).*\n)*"])
def test_a_changelog_that_leaves_something_out_is_refused(copy: Copy, part: str, pattern: str) -> None:
    """No distribution, and no change of the training-state format, is forgotten: neither heading nor text."""
    copy.replace("CHANGELOG.md", pattern.format(part), "")
    (problem,) = declared.changelog(copy.repository)
    assert f"nothing under '### {part}'" in problem


@pytest.mark.parametrize("key", ["authors", "description", "keywords", "license", "license-files", "readme"])
def test_metadata_that_are_missing_are_refused(copy: Copy, key: str) -> None:
    """A page on a package index is never bare."""
    copy.replace(copy.pyproject("pa-schedulers"), rf"^{key} = .*\n", "")
    assert declared.metadata(copy.repository) == [f"pa-schedulers: pyproject.toml has no {key}"]


def test_a_licence_that_differs_is_refused(copy: Copy) -> None:
    """Each distribution carries the licence of the repository."""
    (copy.root / "packages" / "pa-core" / "LICENSE").write_text("All rights reserved.\n")
    assert declared.metadata(copy.repository) == ["pa-core: LICENSE differs from the LICENSE of the repository"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("\n", "README.md has no text"),
        (
            "See [the guide](../../docs/run.md).",
            "README.md: the link to ../../docs/run.md leads nowhere on a package index",
        ),
    ],
)
def test_a_readme_that_does_not_help_on_a_package_index_is_refused(copy: Copy, text: str, problem: str) -> None:
    """The page on a package index shows this file, and nothing beside it."""
    (copy.root / "packages" / "pa-core" / "README.md").write_text(text)
    assert declared.metadata(copy.repository) == [f"pa-core: {problem}"]


def _claim_another_python(copy: Copy) -> None:
    copy.replace(copy.pyproject("pa-core"), r'^(  "Programming Language :: Python :: )3.11",', r'\g<0>\n\g<1>3.99",')


def _test_another_python(copy: Copy) -> None:
    copy.replace(".github/workflows/ci.yml", r'^( +python: \["3.11")', r'\g<1>, "3.99"')


def _support_an_older_python(copy: Copy) -> None:
    copy.replace(copy.pyproject("pa-core"), r'^requires-python = ".*"', 'requires-python = ">=3.10"')


def _lose_the_marker_of_typed_packages(copy: Copy) -> None:
    (copy.root / "packages" / "pa-core" / "src" / "pa_core" / "py.typed").unlink()


@pytest.mark.parametrize(
    ("break_it", "problem"),
    [
        (_claim_another_python, "pa-core claims Python 3.99, which CI does not test"),
        (_test_another_python, "pa-core does not claim Python 3.99, which CI tests"),
        (_support_an_older_python, "pa-core: requires-python is not >=3.11, the oldest version that CI tests"),
        (_lose_the_marker_of_typed_packages, "pa-core: 'Typing :: Typed' and py.typed go together, and one of them"),
    ],
)
def test_a_classifier_that_is_not_true_is_refused(copy: Copy, break_it: Callable[[Copy], None], problem: str) -> None:
    """Versions of Python that are claimed are tested, and typed packages are typed."""
    break_it(copy)
    assert any(found.startswith(problem) for found in declared.classifiers(copy.repository))


def test_addresses_are_written_into_each_distribution_and_compared(copy: Copy) -> None:
    """One table has the addresses; a distribution that has others, or none, is named until they are written there."""
    before = {one.name: (one.folder / "pyproject.toml").read_text() for one in copy.repository.distributions}
    copy.replace("pyproject.toml", '^Source = ""', f'Source = "{ADDRESS}"')
    assert len(declared.urls(copy.repository)) == len(before)

    write_urls(copy.repository)
    assert declared.urls(copy.repository) == []
    assert [one.urls for one in copy.repository.distributions] == [{"Source": ADDRESS}] * len(before)
    write_urls(copy.repository)  # again: nothing is there twice
    assert declared.urls(copy.repository) == []

    copy.replace("pyproject.toml", "^Source = .*", 'Source = ""')
    write_urls(copy.repository)
    after = {one.name: (one.folder / "pyproject.toml").read_text() for one in copy.repository.distributions}
    assert after == before


def test_an_address_that_is_none_is_refused(copy: Copy) -> None:
    """A placeholder does not become a link."""
    copy.replace("pyproject.toml", '^Source = ""', 'Source = "to be written"')
    assert "pyproject.toml, [tool.release.urls]: Source is not an https address: to be written" in declared.urls(
        copy.repository
    )


def test_a_workflow_that_uploads_in_another_order_is_refused(copy: Copy) -> None:
    """At no moment a distribution is on the package index without those that it requires."""
    copy.replace(".github/workflows/release.yml", "upload/pa-core/", "upload/pa-compat/")
    (problem,) = declared.upload_order(copy.repository)
    names = "['pa-data', 'pa-distributed', 'pa-finetuning', 'pa-checkpoint', 'pa-compat'"
    assert problem.startswith(f".github/workflows/release.yml uploads {names}")


def test_a_new_distribution_is_missed_in_the_workflow_and_the_changelog(copy: Copy) -> None:
    """Whoever adds a distribution is told where it has to be named."""
    shutil.copytree(copy.root / "packages" / "pa-trial", copy.root / "packages" / "pa-new")
    assert len(declared.upload_order(copy.repository)) == 1
    assert "nothing under '### pa-new'" in declared.changelog(copy.repository)[0]


def test_what_only_a_release_needs_is_listed_until_it_is_there(copy: Copy) -> None:
    """Addresses, a date and a tag: each line says what to write, and goes once it is done."""
    missing = declared.missing_for_release(copy.repository)
    assert [line.partition(":")[0] for line in missing] == ["no address"] * 4 + ["no date", "no tag"]
    assert 'fill in Source = "https://..." in pyproject.toml, [tool.release.urls]' in missing[0]

    copy.replace("pyproject.toml", '^(Source|Documentation|Changelog|Issues) = ""', rf'\1 = "{ADDRESS}"')
    copy.replace("CHANGELOG.md", rf"^## {VERSION} \(unreleased\)", f"## {VERSION} (2027-01-31)")
    write_urls(copy.repository)
    copy.commit()
    copy.git("tag", f"v{VERSION}")
    assert declared.missing_for_release(copy.repository) == []
    assert [check(copy.repository) for check in DECLARED.values()] == [[]] * len(DECLARED)
