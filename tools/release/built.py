"""Builds wheels and sdists twice from the last commit, and checks their contents."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path

from tools.release.repository import Distribution, Repository

__all__ = ["build_twice", "contents", "differences"]


@dataclass(frozen=True)
class Surroundings:
    """Properties of the environment that must not leave a trace in a built file."""

    folder: str
    umask: int
    time_zone: str


SURROUNDINGS = (
    Surroundings("first", 0o022, "UTC"),
    Surroundings("another folder, with a longer name", 0o077, "Asia/Tokyo"),
)


def build_twice(repository: Repository, folder: Path) -> list[Path]:
    """Build all distributions from two copies of the last commit; return the two folders of wheels and sdists."""
    with ThreadPoolExecutor() as pool:
        started = [
            pool.submit(_build, repository, folder / surroundings.folder, surroundings) for surroundings in SURROUNDINGS
        ]
    return [build.result() for build in started]


def differences(first: Path, second: Path) -> list[str]:
    """Return the files of two builds that do not have the same bytes, with the differences in them."""
    names = sorted({path.name for path in (*first.iterdir(), *second.iterdir())})
    return [problem for name in names if (problem := _difference(first / name, second / name)) is not None]


def contents(repository: Repository, built: Path) -> list[str]:
    """Check that the built files have complete metadata, the licence, and the marker of typed packages."""
    problems: list[str] = []
    for distribution in repository.distributions:
        wheel = _members(built / distribution.wheel)
        sdist = _members(built / distribution.sdist)
        in_wheel = {
            f"{distribution.stem}.dist-info/licenses/LICENSE": (repository.root / "LICENSE").read_bytes(),
            f"{distribution.package}/py.typed": b"",
        }
        in_sdist = {
            f"{distribution.stem}/LICENSE": (repository.root / "LICENSE").read_bytes(),
            f"{distribution.stem}/README.md": None,
        }
        for name, members, expected in ((distribution.wheel, wheel, in_wheel), (distribution.sdist, sdist, in_sdist)):
            for member, content in expected.items():
                if member not in members or content not in (None, members[member]):
                    problems.append(f"{name}: {member} is missing, or differs from the repository")
        for name, metadata in (
            (distribution.wheel, wheel.get(f"{distribution.stem}.dist-info/METADATA", b"")),
            (distribution.sdist, sdist.get(f"{distribution.stem}/PKG-INFO", b"")),
        ):
            problems += [
                f"{name}: {problem}" for problem in _wrong_metadata(repository, distribution, metadata.decode())
            ]
    return problems


def _build(repository: Repository, folder: Path, surroundings: Surroundings) -> Path:
    sources, built = folder / "sources", folder / "built"
    archive = subprocess.run(
        ["git", "-C", str(repository.root), "archive", "--format=tar", "HEAD"], check=True, capture_output=True
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        if hasattr(tarfile, "data_filter"):  # from Python 3.11.4 on
            tar.extractall(sources, filter="data")
        else:
            tar.extractall(sources)
    commit_time = ["git", "-C", str(repository.root), "log", "-1", "--format=%ct"]
    epoch = subprocess.run(commit_time, check=True, capture_output=True, text=True).stdout.strip()
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch, "TZ": surroundings.time_zone}
    for distribution in repository.distributions:
        command = [
            sys.executable,
            "-m",
            "build",
            "--no-isolation",
            "--outdir",
            str(built),
            str(sources / "packages" / distribution.name),
        ]
        ran = subprocess.run(
            command, env=environment, umask=surroundings.umask, capture_output=True, text=True, check=False
        )
        if ran.returncode:
            raise RuntimeError(f"{distribution.name} could not be built:\n{ran.stdout}\n{ran.stderr}")
    return built


def _difference(first: Path, second: Path) -> str | None:
    if not (first.exists() and second.exists()):
        return f"{first.name} was built in only one of two builds"
    if first.read_bytes() == second.read_bytes():
        return None
    members_of_first, members_of_second = _members(first), _members(second)
    members = sorted(
        name
        for name in {*members_of_first, *members_of_second}
        if members_of_first.get(name) != members_of_second.get(name)
    )
    where = f"in {', '.join(members)}" if members else "in times, modes or order of its members"
    return f"{first.name}: two builds of the same commit differ {where}"


def _members(archive: Path) -> dict[str, bytes]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}
    with tarfile.open(archive) as sdist:
        return {member.name: file.read() for member in sdist if (file := sdist.extractfile(member)) is not None}


def _wrong_metadata(repository: Repository, distribution: Distribution, text: str) -> list[str]:
    found = Parser().parsestr(text)
    expected: dict[str, Callable[[Message], bool]] = {
        "Name": lambda message: message["Name"] == distribution.name,
        "Version": lambda message: message["Version"] == distribution.version,
        "Summary": lambda message: message["Summary"] == distribution.project["description"],
        "Author": lambda message: bool(message["Author"] or message["Author-email"]),
        "License-Expression": lambda message: message["License-Expression"] == distribution.project["license"],
        "License-File": lambda message: "LICENSE" in message.get_all("License-File", []),
        "Requires-Python": lambda message: message["Requires-Python"] == distribution.project["requires-python"],
        "Classifier": lambda message: sorted(message.get_all("Classifier", [])) == sorted(distribution.classifiers),
        "Project-URL": lambda message: _urls(message) == {name: url for name, url in repository.urls.items() if url},
        "Description": lambda message: (
            str(message.get_payload()).strip() == (distribution.folder / "README.md").read_text().strip()
        ),
    }
    return [f"{field} is missing, or not as declared" for field, is_right in expected.items() if not is_right(found)]


def _urls(message: Message) -> dict[str, str]:
    lines: list[str] = message.get_all("Project-URL", [])
    named = (line.partition(", ") for line in lines)
    return {name: address for name, _, address in named}
