"""The tests that need a CUDA device: those with the marker `needs_cuda`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from tools.gpu.figures import NEEDS_CUDA, not_measured, publish
from tools.gpu.setting import Setting

__all__ = ["arguments_of_pytest", "marked_files", "measure"]

ROOT = Path(__file__).parents[2]
MARKER = "needs_cuda"
MAX_SECONDS = 95.0


def marked_files() -> list[Path]:
    """The files in which the marker is; no others are imported, as they may need what is not installed."""
    files = [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("packages/*/tests/**/test_*.py")]
    return [path for path in sorted(files) if f"mark.{MARKER}" in path.read_text("utf-8")]


def arguments_of_pytest() -> list[str]:
    """What selects the tests, without the settings of the repository: they ask for plugins that are not needed here."""
    settings = ["-c", os.devnull, f"--rootdir={ROOT}", f"--confcutdir={ROOT}", "--import-mode=importlib"]
    return [*map(str, marked_files()), "-m", MARKER, "-q", "-ra", "-p", "no:cacheprovider", *settings]


def measure(setting: Setting) -> None:
    """Run them, with no plugin but pytest's own."""
    what, number = f"tests with the marker {MARKER}", len(marked_files())
    if not setting.on_cuda:
        not_measured(f"{what}, in {number} files", NEEDS_CUDA)
        return
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", *arguments_of_pytest(), f"--junit-xml={report}"]
        env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        subprocess.run(command, cwd=ROOT, env=env, check=False, timeout=MAX_SECONDS)
        cases = list(ElementTree.parse(report).iter("testcase"))
    problems = {case: problem for case in cases if (problem := problem_of(case)) is not None}
    skipped = sum(case.find("skipped") is not None for case in cases)
    passed = len(cases) - len(problems) - skipped
    note = f"{skipped} skipped, {len(problems)} failed, in {number} files"
    publish(what, passed, "passed", note=note, is_wrong=bool(problems) or not passed)
    for case, problem in problems.items():
        said = problem.get("message", "").strip().replace("\n", " ")[:300]
        publish(f"{case.get('classname')}.{case.get('name')}", "FAILED", note=said, is_wrong=True)


def problem_of(case: ElementTree.Element) -> ElementTree.Element | None:
    """What went wrong in a test, if anything did."""
    failure = case.find("failure")
    return case.find("error") if failure is None else failure
