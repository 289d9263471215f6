"""Tests the packages and measures the documented figures on a GPU, in ten minutes: `python tools/gpu_check.py`.

Needs torch 2.11 or newer, accelerate and pytest. It needs no network and no installation: it runs from the sources.
First it runs the tests with the marker `needs_cuda`, then `python -m benchmarks --device cuda` with the arguments of
its command line: words that choose comparisons, `--dry-run`, `--write`. The results so far are in
`outputs/gpu_check` at any moment. The status is 1 if a test failed or a measurement could not be made.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [str(ROOT), *map(str, sorted(ROOT.glob("packages/*/src")))]
sys.path[:1] = SOURCES

from benchmarks.__main__ import has_cuda  # noqa: E402  # the line above makes them importable
from benchmarks.__main__ import main as measure  # noqa: E402

OUTPUT = ROOT / "outputs" / "gpu_check"
MARKER = "needs_cuda"
SECONDS, SECONDS_OF_TESTS = 580.0, 240.0


def main(arguments: Sequence[str]) -> int:
    """Test and measure."""
    began = time.monotonic()
    os.environ["PYTHONPATH"] = os.pathsep.join([*SOURCES, *filter(None, [os.environ.get("PYTHONPATH")])])
    if not has_cuda() and "--dry-run" not in arguments:
        print("There is no CUDA device here, so nothing can be checked. With --dry-run, everything runs on the CPU.")
        return 2
    OUTPUT.mkdir(parents=True, exist_ok=True)
    tests_pass = run_tests(OUTPUT / "tests.txt")
    seconds = SECONDS - (time.monotonic() - began) if has_cuda() else 24 * 3600.0
    status = measure(["--device=cuda", f"--output={OUTPUT}", f"--seconds={seconds}", *arguments])
    print(
        f"The figures are in {OUTPUT / 'cuda.md'}, the tests in tests.txt: {'none' if tests_pass else 'SOME'} failed."
    )
    return status if tests_pass else 1


def marked_files() -> list[Path]:
    """Return the files with the marker; no others are imported, as they may need packages that are not installed."""
    files = [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("packages/*/tests/**/test_*.py")]
    return [path for path in sorted(files) if f"mark.{MARKER}" in path.read_text("utf-8")]


def arguments_of_pytest() -> list[str]:
    """Return arguments that select the tests, without the settings of the repository, which need other plugins."""
    settings = ["-c", os.devnull, f"--rootdir={ROOT}", f"--confcutdir={ROOT}", "--import-mode=importlib"]
    return [*map(str, marked_files()), "-m", MARKER, "-q", "-ra", "-p", "no:cacheprovider", *settings]


def run_tests(report: Path) -> bool:
    """Run the tests with pytest's own plugins, and return whether none failed; without a GPU, only collect them."""
    command = [sys.executable, "-m", "pytest", *arguments_of_pytest(), *([] if has_cuda() else ["--collect-only"])]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    with report.open("w+", encoding="utf-8") as output:
        try:
            status = subprocess.run(
                command,
                cwd=ROOT,
                env=env,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=SECONDS_OF_TESTS,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            status = 1
            output.write(f"\nkilled after {SECONDS_OF_TESTS:.0f} s\n")
    said = report.read_text("utf-8").strip().splitlines()
    print("\n".join(said[-20:]), flush=True)
    return status == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
