"""All checks, as sessions of nox.

On a machine that has nothing but Python 3.11 or newer, `python3 noxfile.py` runs all of them and
`python3 noxfile.py -s quickstart` trains the example; if nox is installed, `nox` and `nox -s quickstart`
do the same. `nox -l` lists the sessions. They only write to `.nox/`.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parent
NEEDED_NOX = ">=2025.2.9"


def start_nox() -> NoReturn:
    """Replace this process by nox, with the same arguments, in an environment that is made for it the first time."""
    folder = ROOT / ".nox" / f"bootstrap-{platform.python_version()}"
    python = str(folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
    command = [python, "-m", "nox", "--noxfile", __file__]
    if not Path(python).exists() or subprocess.run([*command, "--list"], capture_output=True, check=False).returncode:
        print(f"Installing nox into {folder}", flush=True)  # noqa: T201 - there is no session to log to
        venv.create(folder, clear=True, symlinks=os.name != "nt", with_pip=True)
        pip_install = [python, "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip_install, f"nox{NEEDED_NOX}"], check=True)
        # uv fills the environments in a tenth of the time; pip does it where uv is not available.
        subprocess.run([*pip_install, "uv"], check=False)
    os.execv(python, [*command, *sys.argv[1:]])


if __name__ == "__main__":
    start_nox()

import nox  # noqa: E402 - a bare machine has none before start_nox
from nox.command import CommandFailed  # noqa: E402 - as above
from nox.project import dependency_groups, load_toml  # noqa: E402 - as above


def pip_settings_for_uv() -> dict[str, str]:
    """Return the settings of pip on this machine as settings of uv, which does not read them."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found: list[tuple[str, str]] = re.findall(r"^(?:global|:env:)\.([a-z-]+)='(.*)'", listed, flags=re.MULTILINE)
    settings = {name: re.sub(r"\\n|\s", "," if name == "find-links" else " ", value) for name, value in reversed(found)}
    names = {"cert": "SSL_CERT_FILE", "index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX"}
    names["find-links"] = "UV_FIND_LINKS"
    in_words_of_uv = {names[name]: value for name, value in settings.items() if name in names}
    return {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        **in_words_of_uv,
        **os.environ,
    }  # pip takes the best version of all indexes


nox.needs_version = NEEDED_NOX
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "import_rules", "build", "types", "tests", "examples", "docs"]
# Another Python needs new environments. Most of torch is never imported; the rest starts slowly without bytecode.
os.environ |= {"NOX_ENABLE_STALENESS_CHECK": "1", "PIP_NO_COMPILE": "1", "PYTHONDONTWRITEBYTECODE": ""}
os.environ |= pip_settings_for_uv()

OUT = Path(".nox", "out")
WHEELS, COVERAGE, LOGS = OUT / "wheels", OUT / "coverage", OUT / "logs"
CONSTRAINTS = ROOT / "tests" / "constraints.txt"
TOOLS = load_toml(ROOT / "pyproject.toml")
TESTS = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("packages/*/tests")]
PROJECTS = {path.parent.name: load_toml(path) for path in sorted(ROOT.glob("packages/*/pyproject.toml"))}
OURS = {**{name: [name] for name in PROJECTS}, "together": list(PROJECTS)}
"""The tested distributions of each row of the matrix."""
OF_NONE = ["tests/repository", "tests/docs", "tests/crashes"]
"""Tests that belong to no distribution."""
AT_A_TIME = "--numprocesses=auto --dist=worksteal"  # as many tests as the machine has cores
BF16 = {"ACCELERATE_MIXED_PRECISION": "bf16"}
CPU = {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
SOURCES = {"PYTHONPATH": os.pathsep.join(str(folder) for folder in ROOT.glob("packages/*/src"))}
BUILT, SITE = {"TYPED_WHEELS": str(ROOT / WHEELS)}, {"BUILT_SITE": str(ROOT / OUT / "site")}

CELLS = {"one_process": (1, CPU), "two_ranks": (2, CPU), "bf16": (1, CPU | BF16), "two_ranks_bf16": (2, CPU | BF16)}
"""Ways to run tests: the number of ranks, and variables. `tests/cells.py` makes every run prove its cell."""
SHORT_MATRIX = [*((name, "one_process") for name in PROJECTS), *(("together", cell) for cell in list(CELLS)[:3])]
CELLS_ALONE = {"pa-checkpoint": 2, "pa-distributed": 2, "pa-data": 1, "pa-finetuning": 1, "pa-ray": 1}
"""The number of cells: precision has no effect on the first four without pa-core, pa-data and pa-finetuning do not
communicate, and Ray starts the processes of pa-ray itself, in the session `ray`."""
FULL_MATRIX = [(name, cell) for name in OURS for cell in list(CELLS)[: CELLS_ALONE.get(name)]]


class Check(NamedTuple):
    """A session that runs commands at the same time; the arguments after `--` go to the last command."""

    summary: str
    commands: str
    groups: str = ""
    needs: str = "wheels"
    ours: Collection[str] = PROJECTS
    env: dict[str, str] = CPU


CORE, STATES = "packages/pa-core/tests", "packages/pa-core/tests/training_states"
PYTEST, SUPPORT = "python -m pytest", "tests.support.pa_core.training_states"
PEERS = {"PEERS_PYTHON": str(ROOT / ".nox" / "peer_libraries" / "bin" / "python")}
BUILD = f"twine check --strict {WHEELS}/* & {PYTEST} tests/repository/test_wheels.py tests/release {AT_A_TIME}"
PACKAGES = " ".join(path.parent.name for path in ROOT.glob("packages/*/src/*/__init__.py"))
DOCS = f"{PYTEST} --doctest-modules --pyargs {PACKAGES} & {PYTEST} tests/docs_site"
EXAMPLES = f"{PYTEST} tests/examples tests/docs_with_others {AT_A_TIME}"
ELASTIC = f"{PYTEST} {STATES}/test_elastic_sharded_states.py --whole-proof"
CHECKS = {
    "lint": Check("Style, format, spelling.", "ruff check & ruff format --check & typos", "lint", "", ()),
    "import_rules": Check("Imports between packages.", "lint-imports --no-logo --no-cache", "lint", "", (), SOURCES),
    "build": Check("Contents of wheels and sdists, and checks of a release.", BUILD, "build test", ours=()),
    "release": Check("A release, or `-- --check`.", f"python -m tools.release --folder={OUT}/release", "build", "", ()),
    "types": Check("mypy --strict and pyright strict.", "pyright & mypy", "third-party"),
    "examples": Check("Examples, launched in every way of users.", EXAMPLES, "third-party", env=OFFLINE),
    "docs": Check("The site, with its links, and docstrings.", DOCS, env=CPU | SITE),
    "site": Check("The site, in Chromium.", f"python -m tests.docs_site.look {OUT}", env=CPU | SITE),
    "trackers": Check("Each experiment tracker of the pages.", f"{PYTEST} tests/trackers", "trackers"),
    "typed_wheels": Check("Types that users see.", f"{PYTEST} tests/typing", env=CPU | BUILT),
    "peer_libraries": Check("Libraries to compare with ours: installs them.", "python -c pass", "peers", "", ()),
    "benchmark": Check("The cost of training.", "python -m benchmarks", env=PEERS),
    "growth": Check("How the cost grows with the size of a run, as root.", "python -m benchmarks.growth", env={}),
    "regressions": Check("No slower than HEAD~1, or `-- COMMIT`.", "python -m benchmarks.regressions"),
    "peers": Check(
        "Comparisons with other libraries.", f"{PYTEST} tests/peers", needs="wheels peer_libraries", env=CPU | PEERS
    ),
    "goodput": Check("The progress of a run that is killed often.", "python -m benchmarks.goodput", env={}),
    "crashes": Check("Hundreds of kills anywhere.", f"{PYTEST} tests/crashes --whole-proof"),
    "any_processes": Check(
        "Bit-for-bit identical weights on 1 to 7 processes.", f"{PYTEST} tests/any_processes --verbose"
    ),
    "damage": Check("No damaged file is loaded, and none in part.", f"{PYTEST} {CORE}/damage --whole-proof"),
    "ranks_that_differ": Check(
        "Differences between ranks are named.", f"{PYTEST} {CORE}/ranks_that_differ --whole-proof"
    ),
    "store_kills": Check("500 killed saves.", "python packages/pa-checkpoint/tests/kills_during_saving.py"),
    "several_machines": Check("Two network namespaces.", f"{PYTEST} tests/several_machines --whole-proof", env={}),
    "slurm": Check("A job on Slurm, as root.", f"{PYTEST} tests/slurm --whole-proof", env={}),
    "ray": Check("Runs on Ray, with killed workers.", f"{PYTEST} tests/on_ray --whole-proof", ours=["pa-ray"]),
    "elastic": Check("A killed sharded run, on changing numbers of processes.", ELASTIC),
    "killed_files": Check("Killed runs on sharded files.", f"{PYTEST} {CORE}/files --whole-proof -m whole_proof"),
    "limited_memory": Check("Sharding saves memory.", f"{PYTEST} {CORE}/sharding/test_limited_memory.py --whole-proof"),
    "upload_kills": Check("An unreliable store.", f"python -m {SUPPORT}.kills_during_uploads"),
    "shared_folders": Check("Several runs in one folder.", f"python -m {SUPPORT}.runs_in_one_folder"),
}


def add_session(name: str, check: Check) -> None:
    """Make a session of a row of the table."""

    def run(session: nox.Session) -> None:
        install(session, *of_groups(check.groups), ours=check.ours)
        *others, last = (command.split() for command in check.commands.split(" & "))
        run_side_by_side(session, *others, [*last, *session.posargs], env=check.env)

    run.__doc__ = check.summary
    nox.session(name=name, requires=check.needs.split())(run)


for row in CHECKS.items():
    add_session(*row)


@nox.session
def quickstart(session: nox.Session) -> None:
    """Train the example: a small network on real scanned digits, in seconds on a CPU."""
    folders = {name: f"packages/{name}" for name in with_ours(["pa-core"])} | {"pa-core": "packages/pa-core[examples]"}
    install(session, *(f"--editable={folder}" for folder in folders.values()))
    session.run("python", "examples/train_digits.py", *session.posargs)


@nox.session
def dev(session: nox.Session) -> None:
    """Make an environment to work in: all distributions, editable, with every tool; it says how to activate it."""
    editable = [f"--editable=packages/{with_extras(name)}" for name in PROJECTS]
    install(session, *editable, *of_tests(PROJECTS), *of_groups("build dev docs lint types"))
    session.log(f"To work in it: {'' if os.name == 'nt' else 'source '}{Path(session.bin) / 'activate'}")


@nox.session
def wheels(session: nox.Session) -> None:
    """Build the wheel and the sdist of each distribution, once, for the sessions that need them."""
    install(session, *of_groups("build"))
    shutil.rmtree(WHEELS, ignore_errors=True)
    for name in PROJECTS:
        session.run("python", "-m", "build", "--no-isolation", f"--outdir={WHEELS}", f"packages/{name}", silent=True)


@nox.session(requires=["wheels"])
@nox.parametrize("tested, cell", [nox.param(*pair, id=", ".join(pair)) for pair in SHORT_MATRIX])
def tests(session: nox.Session, tested: str, cell: str) -> None:
    """Test built wheels: each distribution alone on one process, all together in other cells, and the other tests."""
    install(session, ours=OURS[tested])
    run_tests(session, tested, cell, folders=OF_NONE if (tested, cell) == ("together", "one_process") else ())


@nox.session(requires=["wheels"])
@nox.parametrize("tested, cell", [nox.param(*pair, id=", ".join(pair)) for pair in FULL_MATRIX])
def full_matrix(session: nox.Session, tested: str, cell: str) -> None:
    """Test each distribution alone, and all together, in every cell, with more cases; hours, so it runs nightly."""
    install(session, ours=OURS[tested])
    run_tests(session, tested, cell, "--more-cases")


@nox.session(requires=["wheels"])
@nox.parametrize("cell", list(CELLS), ids=list(CELLS))
def newest(session: nox.Session, cell: str) -> None:
    """Test everything with the newest torch, in one cell, on Python 3.13. It takes hours, so it runs nightly."""
    constraints = OUT / "constraints_but_torch.txt"
    constraints.write_text(re.sub(r"^torch==.*", "", CONSTRAINTS.read_text(), flags=re.MULTILINE))
    install(session, "--upgrade", ours=PROJECTS, constraints=constraints)
    session.run("python", "-c", "import sys, torch; print('torch', torch.__version__, 'on Python', sys.version)")
    run_tests(session, "together", cell, "--more-cases")


@nox.session(requires=["wheels"])
def floors(session: nox.Session) -> None:
    """Test everything on one process with the oldest declared versions of all dependencies except torch."""
    lines = "\n".join(itertools.chain(*map(declared, PROJECTS)))
    declared_floors: list[tuple[str, str]] = re.findall(r"^([\w.-]+)>=([\w.]+)", lines, re.MULTILINE)
    # An extra may need a newer version than a distribution.
    floor = dict(sorted(declared_floors, key=lambda line: [int(part) for part in line[1].split(".")]))
    oldest = sorted(f"{name}=={version}" for name, version in floor.items() if name not in {"torch", *PROJECTS})
    install(session, *oldest, ours=PROJECTS)
    run_tests(session, "together", "one_process", f"--versions={','.join(oldest)}", "--more-cases", folders=TESTS)


@nox.session(requires=["wheels"])
def coverage(session: nox.Session) -> None:
    """Measure the coverage of all tests on one process and on two ranks, without the scripts that they launch."""
    install(session, ours=PROJECTS)
    shutil.rmtree(COVERAGE, ignore_errors=True)
    run_tests(session, "together", "one_process", "--cov", "--cov-report=", "--cov-fail-under=0")
    run_tests(session, "together", "two_ranks", program="coverage run -m pytest")
    session.run("coverage", "combine", "--keep", "--quiet")
    session.run("coverage", "report")


@nox.session(requires=["wheels"])
def third_party(session: nox.Session) -> None:
    """Run scripts of users of timm, transformers and others, with the packages themselves, in each cell."""
    install(session, *of_groups("third-party"), ours=PROJECTS)
    session.env.update(OFFLINE)
    for cell in CELLS:
        run_in_cell(session, cell, ["pytest", "tests/third_party", f"--cell={cell}", *session.posargs])


def declared(name: str) -> list[str]:
    """Return the requirements of a distribution, with all extras, as its tests do."""
    project = PROJECTS[name]["project"]
    return [*project["dependencies"], *itertools.chain(*project.get("optional-dependencies", {}).values())]


def with_ours(names: Iterable[str]) -> list[str]:
    """Return some distributions, and the distributions that they require."""
    found = set(names)
    while missing := {line.partition(">=")[0] for name in found for line in declared(name)} & set(PROJECTS) - found:
        found |= missing
    return sorted(found)


def with_extras(name: str) -> str:
    """Return the name of a distribution, with all extras in brackets."""
    extras = ",".join(PROJECTS[name]["project"].get("optional-dependencies", {}))
    return f"{name}[{extras}]" if extras else name


def of_groups(names: str) -> tuple[str, ...]:
    """Return the requirements of some dependency groups of pyproject.toml."""
    return dependency_groups(TOOLS, *names.split())


def of_tests(names: Iterable[str]) -> list[str]:
    """Return the requirements of the tests of some distributions in addition to all extras."""
    groups = (PROJECTS[name].get("dependency-groups", {}) for name in names)
    return [*of_groups("test"), *itertools.chain(*(group.get("test", ()) for group in groups))]


def install(
    session: nox.Session, *requirements: str, ours: Collection[str] = (), constraints: Path = CONSTRAINTS
) -> None:
    """Install requirements, built wheels of some distributions with all extras, and the needs of their tests."""
    if ours:
        built = {name: next(WHEELS.glob(f"{name.replace('-', '_')}-*.whl")) for name in with_ours(ours)}
        # A wheel that was built again has the same version as before, so pip would not install it.
        session.install("--force-reinstall", "--no-deps", *map(str, built.values()))
        wanted = {name: with_extras(name) if name in ours else name for name in built}
        wheels = (f"{wanted[name]} @ {wheel.resolve().as_uri()}" for name, wheel in built.items())
        tools = of_groups("docs lint types") if len(ours) == len(PROJECTS) else ()
        requirements = (*wheels, *of_tests(ours), *tools, *requirements)
    session.install("--constraint", str(constraints), *requirements)
    share_bytecode(session)


def run_tests(
    session: nox.Session, tested: str, cell: str, *options: str, folders: Sequence[str] = (), program: str = "pytest"
) -> None:
    """Run the tests of a row of the matrix in a cell, or the tests of `folders`."""
    of_none = OF_NONE if (tested, cell) == ("together", "one_process") else ()
    folders = folders or [*(f"packages/{name}/tests" for name in OURS[tested]), *of_none]
    options = (f"--cell={cell}", f"--installed={','.join(with_ours(OURS[tested]))}", *options, *session.posargs)
    shares = [[*folders]]
    if CORE in folders and CELLS[cell][0] > 1:
        # Ranks wait for each other half of the time, so two runs fit next to each other.
        shares = [[CORE, f"--ignore={STATES}"], [STATES, *(folder for folder in folders if folder != CORE)]]
    run_in_cell(session, cell, *([*program.split(), *share, *options] for share in shares))


def run_in_cell(session: nox.Session, cell: str, *modules: Sequence[str]) -> None:
    """Run Python modules in a cell, each as one process, or as several ranks; only the first rank's output is shown."""
    ranks, env = CELLS[cell]
    if ranks == 1:
        run_side_by_side(session, *(["python", "-m", *module, *AT_A_TIME.split()] for module in modules), env=env)
        return
    shutil.rmtree(LOGS, ignore_errors=True)
    launcher = f"torchrun --standalone --local-addr=127.0.0.1 --nproc-per-node={ranks} --log-dir={LOGS} --redirects=1:3"
    try:
        # A rank that continues after a failure would wait for the other in a collective.
        run_side_by_side(session, *([*launcher.split(), "-m", *module, "--exitfirst"] for module in modules), env=env)
    except CommandFailed:
        for log in sorted(LOGS.rglob("*.log")):
            session.warn(f"{log.relative_to(LOGS)}:\n{log.read_text()}")
        raise


def run_side_by_side(session: nox.Session, *commands: Sequence[str], env: dict[str, str]) -> None:
    """Run commands at the same time, as each leaves a core idle; all but the last print only if they fail."""
    *others, last = commands
    with ThreadPoolExecutor() as pool:
        started = [pool.submit(session.run, *command, env=env, silent=True) for command in others]
        session.run(*last, env=env)
    for command in started:
        command.result()


def share_bytecode(session: nox.Session) -> None:
    """Link the bytecode that earlier environments have compiled from the same files, which uv links too.

    The first import of torch in an environment takes 14 seconds longer than the second import.
    """
    mine = Path(sysconfig.get_path("purelib", "venv", {"base": session.virtualenv.location}))
    for theirs in FILLED:
        for compiled in theirs.glob(f"torch/**/__pycache__/*.{sys.implementation.cache_tag}.pyc"):
            source, link = Path(importlib.util.source_from_cache(str(compiled))), mine / compiled.relative_to(theirs)
            same = mine / source.relative_to(theirs)
            if not link.exists() and same.exists() and source.samefile(same):
                link.parent.mkdir(exist_ok=True)
                link.hardlink_to(compiled)
    FILLED.append(mine)


FILLED: list[Path] = []
