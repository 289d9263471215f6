"""The commands of every day, in the environment of `python3 do.py dev`, which need not be active.

python3 do.py dev               make the environment, .nox/dev
python3 do.py fix               correct style and format
python3 do.py check             style, imports, spelling, and the types of files changed since main
python3 do.py test [PATH ...]   the tests of modules, files or folders; by default, of files changed since main
python3 do.py docs              build and check the documentation
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
DEV = ROOT / ".nox" / "dev" / ("Scripts" if os.name == "nt" else "bin")
FEW = 4
"""Up to this number of test files, a single process is faster than several."""


def main(verb: str = "", *arguments: str) -> int:
    """Run the command of the command line; return the exit status."""
    verbs = {"dev": dev, "fix": fix, "check": check, "test": test, "docs": docs}
    if verb not in verbs or (arguments and verb != "test"):
        if verb:
            print(f"{verb} takes no arguments." if verb in verbs else f"There is no command {verb}.", end="\n\n")
        print(__doc__)
        return 2
    if verb != "dev" and not DEV.exists():
        print("There is no environment yet: python3 do.py dev")
        return 2
    return verbs[verb](*arguments)


def dev() -> int:
    """Make the environment."""
    return run(sys.executable, "noxfile.py", "-s", "dev")


def fix() -> int:
    """Correct style and format."""
    return run("ruff", "check", "--fix") | run("ruff", "format")


def check() -> int:
    """Check style, imports, spelling, and the types of changed files."""
    status = run("ruff", "check") | run("ruff", "format", "--check") | run("lint-imports", "--no-logo") | run("typos")
    if files := [str(path) for path in changed() if path.suffix == ".py"]:
        status |= run("dmypy", "run", "--", *files) | run("pyright", *files)
    return status


def test(*paths: str) -> int:
    """Run the tests of modules, files or folders, or of all changed files."""
    command = [str(DEV / "python"), "tools/modules.py", *(paths or map(str, changed()))]
    found = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True) if command[2:] else None
    files = found.stdout.split() if found else []
    if not files:
        print("Nothing with tests has changed.")
        return 0
    side_by_side = ["--numprocesses=auto", "--dist=worksteal"] if len(files) > FEW else []
    return run("pytest", "-q", *side_by_side, *files)


def docs() -> int:
    """Build and check the documentation."""
    return run(sys.executable, "noxfile.py", "-s", "docs")


def changed() -> list[Path]:
    """Return the files that differ from main, and new files that git does not track yet."""
    main_branch = next(
        (name for name in ("main", "origin/main") if git("rev-parse", "--verify", "--quiet", name)), "HEAD"
    )
    names = [
        *git("diff", "--name-only", "--diff-filter=d", "--merge-base", main_branch),
        *git("ls-files", "--others", "--exclude-standard"),
    ]
    return [ROOT / name for name in names]


def git(*arguments: str) -> list[str]:
    """Return the lines that git prints."""
    return subprocess.run(["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False).stdout.split(
        "\n"
    )[:-1]


def run(program: str, *arguments: str) -> int:
    """Run a program of the environment in the root of the repository; return its exit status."""
    print("$", Path(program).name, *arguments, flush=True)
    env = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", **os.environ}
    env["PATH"] = os.pathsep.join([str(DEV), os.environ.get("PATH", "")])
    path = program if Path(program).is_absolute() else str(DEV / program)
    return subprocess.run([path, *arguments], cwd=ROOT, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
