"""Checks a release, or makes its files: `python -m tools.release --check`, as the nox session `release` calls it."""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

from tools.release import declared
from tools.release.built import build_twice, contents, differences
from tools.release.repository import Repository
from tools.release.trial import Installer, install_in_order
from tools.release.write_urls import write_urls

DECLARED: dict[str, Callable[[Repository], list[str]]] = {
    "everything is committed": declared.clean_tree,
    "one version, siblings required within it": declared.versions,
    "no line waits for the changelog": declared.waiting_lines,
    "changelog": declared.changelog,
    "metadata": declared.metadata,
    "classifiers": declared.classifiers,
    "addresses": declared.urls,
    "order of upload": declared.upload_order,
}


def main() -> int:
    """Run the checks in turn, end after the first part with a problem, and print the order of upload."""
    options = _options()
    repository = Repository(options.root.resolve())
    if options.write_urls:
        write_urls(repository)
        return 0

    missing = declared.missing_for_release(repository)
    wrong = [_report(title, check(repository)) for title, check in DECLARED.items()]
    if not options.check:
        wrong.append(_report("ready for a release", missing))
    if any(wrong):
        return 1

    shutil.rmtree(options.folder, ignore_errors=True)
    first, second = build_twice(repository, options.folder)
    environment = options.folder / "environment"
    venv.create(environment, symlinks=os.name != "nt", with_pip=True)
    python = Path(sysconfig.get_path("scripts", "venv", {"base": str(environment)}), "python")
    installer = Installer(python, repository.root / "tests" / "constraints.txt")
    wrong = [
        _report("two builds are the same bytes", differences(first, second)),
        _report("contents of the files", contents(repository, first) + _twine(first)),
        _report(
            "installed one after the other",
            install_in_order(repository, first, options.folder / "installed", installer),
        ),
    ]
    if any(wrong):
        return 1
    _print_upload(repository, first)
    for line in missing:
        print(f"open   {line}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="nox -s release --", description=__doc__)
    parser.add_argument("--check", action="store_true", help="do not require the parts that only a real release needs")
    parser.add_argument("--write-urls", action="store_true", help="copy the addresses into each distribution, and end")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the repository")
    parser.add_argument(
        "--folder", type=Path, required=True, help="the folder to build files in; its content is removed"
    )
    return parser.parse_args()


def _report(title: str, problems: list[str]) -> bool:
    """Print the outcome of a check; return whether something is wrong."""
    print(f"{'WRONG ' if problems else 'ok    '} {title}", flush=True)
    for problem in problems:
        print(f"       {problem}", flush=True)
    return bool(problems)


def _twine(built: Path) -> list[str]:
    command = [sys.executable, "-m", "twine", "check", "--strict", *(str(path) for path in sorted(built.iterdir()))]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return [ran.stdout + ran.stderr] if ran.returncode else []


def _print_upload(repository: Repository, built: Path) -> None:
    print(f"\nUpload in this order, from {built}:")
    for number, distribution in enumerate(repository.distributions, 1):
        print(f"{number}. {distribution.name}")
        for name in (distribution.wheel, distribution.sdist):
            print(f"   {name}  sha256 {hashlib.sha256((built / name).read_bytes()).hexdigest()}")
    print()


if __name__ == "__main__":
    sys.exit(main())
