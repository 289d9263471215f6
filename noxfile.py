"""Everything that is checked, in one file.

On a machine that has nothing but Python 3.11 or newer, `python3 noxfile.py` runs all of it and
`python3 noxfile.py -s quickstart` trains the example; where nox is at hand, `nox` and `nox -s quickstart`
are the same. `nox -l` lists the sessions. What they install and build goes to `.nox/` and nowhere else.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent
NOX = ROOT / ".nox"
NEEDED_NOX = ">=2024.4.15"
SYMLINKS = os.name != "nt"  # as `python -m venv` decides


def python_of(environment: Path) -> Path:
    """The interpreter of a virtual environment."""
    return environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def library_of(environment: Path) -> Path:
    """Where a virtual environment has its packages."""
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(environment)}))


def fits(environment: Path) -> bool:
    """Whether a virtual environment was made here, as its scripts require, and with this version of Python."""
    settings = environment / "pyvenv.cfg"
    made_with = settings.read_text() if settings.exists() and python_of(environment).exists() else ""
    return str(environment) in made_with and f"version = {platform.python_version()}" in made_with


def start_nox() -> NoReturn:
    """Become nox, with the arguments of this command line; where there is none, install one for us alone."""
    python = sys.executable
    if not has_nox(python):
        bootstrap = NOX / "bootstrap"
        python = str(python_of(bootstrap))
        if not (fits(bootstrap) and has_nox(python)):
            print(f"Installing nox into {bootstrap}", flush=True)  # noqa: T201 - there is no session to log to
            venv.create(bootstrap, clear=True, symlinks=SYMLINKS, with_pip=True)
            install = [python, "-m", "pip", "install", "--quiet"]
            subprocess.run([*install, f"nox{NEEDED_NOX}"], check=True)
            # It fills the environments in a tenth of the time; where there is none for this machine, pip does.
            subprocess.run([*install, "uv"], check=False)
    os.execv(python, [python, "-m", "nox", "--noxfile", __file__, *sys.argv[1:]])


def has_nox(python: str) -> bool:
    """Whether an interpreter has a nox that can read this file."""
    command = [python, "-m", "nox", "--noxfile", __file__, "--list"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    start_nox()

import nox  # noqa: E402 - a bare machine has none before start_nox
from nox.command import CommandFailed  # noqa: E402 - as above

nox.needs_version = NEEDED_NOX
nox.options.default_venv_backend = "none"  # sessions share environments: see Environment
nox.options.sessions = [
    "lint",
    "import_rules",
    "build",
    "types",
    "tests",
    "examples",
    "docs",
]

PACKAGES = ROOT / "packages"
WHEELS = NOX / "wheels"
SITE = NOX / "docs"
BUILD_SITE = ["sphinx-build", "-n", "-W", "--keep-going", "-E", "-q", "docs", str(SITE)]
COVERAGE = NOX / "coverage"
CONSTRAINTS = ROOT / "tests" / "constraints.txt"
UV = shutil.which("uv") or shutil.which("uv", path=Path(sys.executable).parent)
AT_A_TIME = ("--numprocesses=auto", "--dist=worksteal")  # as many tests as the machine has cores
BF16 = {"ACCELERATE_MIXED_PRECISION": "bf16"}
CPU = {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}

OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

TEST_TOOLS = ("hypothesis>=6.140", "pytest>=9", "pytest-cov>=7", "pytest-timeout>=2.4", "pytest-xdist>=3.8")
LINT_TOOLS = ("import-linter>=2.13", "ruff")
BUILD_TOOLS = ("build>=1.3", "hatchling>=1.27", "packaging>=25", "pyyaml>=6", "twine>=6.2", *TEST_TOOLS)
DOCS_TOOLS = ("furo>=2025.9", "myst-parser>=4", "sphinx>=8.2")
TRACKERS = ("mlflow", "swanlab", "trackio", "wandb")
NOTEBOOKS = ("ipykernel", "matplotlib", "nbclient")
FOR_METRICS = ("pycocotools", "rouge-score")
THIRD_PARTY = (
    "albumentations",
    "datasets",
    *FOR_METRICS,
    "monai",
    *NOTEBOOKS,
    "optuna",
    "peft",
    "polars",
    "schedulefree",
    "scikit-learn",
    "timm",
    "torch_geometric",
    "torchvision",
    "transformers",
    "wandb",
    "webdataset",
)
PEERS = {
    "pytorch_accelerated": ("torch", "pytorch-accelerated"),
    "lightning": ("torch", "lightning"),
    "ignite": ("torch", "pytorch-ignite"),
    "transformers": ("transformers[torch]",),
}
DEV_TOOLS = ("pre-commit>=4",)
TYPE_TOOLS = ("mypy", "nox", "pyright[nodejs]", "types-tqdm")


@dataclass(frozen=True)
class Distribution:
    """One of ours, with the extras that its tests need and the packages that they need beyond those."""

    name: str
    package: str
    extras: tuple[str, ...] = ()
    test_requirements: tuple[str, ...] = ()

    def requirements(self) -> list[str]:
        """What its pyproject.toml declares, with the extras that its tests need."""
        project = tomllib.loads((PACKAGES / self.name / "pyproject.toml").read_text())["project"]
        optional: dict[str, list[str]] = project.get("optional-dependencies", {})
        return [*project["dependencies"], *(line for extra in self.extras for line in optional[extra])]

    def with_ours(self) -> set[Distribution]:
        """Itself and those of ours that come with it, because it requires them."""
        names = {split_requirement(line)[0] for line in self.requirements()}
        return {self}.union(*(other.with_ours() for other in DISTRIBUTIONS if other.name in names))

    def tests(self) -> str:
        """The folder of its tests."""
        return f"packages/{self.name}/tests"

    def source(self) -> str:
        """Its folder, with the extras that its tests need, if there are any: pip wants no empty brackets here."""
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        return f"{PACKAGES / self.name}{extras}"

    def wheel(self) -> str:
        """The requirement that is met by its built wheel and nothing else."""
        (wheel,) = WHEELS.glob(f"{self.name.replace('-', '_')}-*.whl")
        return f"{self.name}[{','.join(self.extras)}] @ {wheel.as_uri()}"


@dataclass(frozen=True)
class Cell:
    """A way to run tests. `tests/cells.py` says what each name promises, and every run has to prove it."""

    name: str
    ranks: int = 1
    env: dict[str, str] = field(default_factory=dict[str, str])


DISTRIBUTIONS = (
    Distribution("pa-checkpoint", "pa_checkpoint", extras=("fsspec",)),
    Distribution("pa-distributed", "pa_distributed", test_requirements=("accelerate",)),
    Distribution("pa-data", "pa_data", extras=("fsspec", "parquet"), test_requirements=("lightning",)),
    Distribution(
        "pa-core",
        "pa_core",
        extras=("examples", "fsspec", "parquet", "plot", "predict", "stateful"),
        test_requirements=("pandas", "tensorboard"),
    ),
    Distribution("pa-schedulers", "pa_schedulers", extras=("plot",)),
    Distribution("pa-finetuning", "pa_finetuning", test_requirements=("accelerate",)),
    Distribution(
        "pa-callbacks-extra", "pa_callbacks_extra", extras=("torchmetrics",), test_requirements=("tensorboard",)
    ),
    Distribution("pa-preflight", "pa_preflight", extras=("plot",)),
    Distribution("pa-trial", "pa_trial", extras=("tensorboard",), test_requirements=("accelerate",)),
    Distribution("pa-compat", "pytorch_accelerated", extras=("examples",), test_requirements=("pandas",)),
)
ONE_PROCESS = Cell("one_process")
TWO_RANKS = Cell("two_ranks", ranks=2)
CELLS = (
    ONE_PROCESS,
    TWO_RANKS,
    Cell("bf16", env=BF16),
    Cell("two_ranks_bf16", ranks=2, env=BF16),
)
OF_NONE = ["tests/repository", "tests/docs", "tests/crashes"]
"""Tests that belong to no distribution."""
SHORT_MATRIX = [
    *(nox.param((one,), ONE_PROCESS, id=f"{one.name}, {ONE_PROCESS.name}") for one in DISTRIBUTIONS),
    *(nox.param(DISTRIBUTIONS, cell, id=f"together, {cell.name}") for cell in CELLS[:3]),
]
CELLS_ALONE: dict[str, tuple[Cell, ...]] = {
    "pa-checkpoint": (ONE_PROCESS, TWO_RANKS),
    "pa-distributed": (ONE_PROCESS, TWO_RANKS),
    "pa-data": (ONE_PROCESS,),
    "pa-finetuning": (ONE_PROCESS,),
}
"""Precision means nothing to them without pa-core, and the last two do not communicate."""
FULL_MATRIX = [
    nox.param(tested, cell, id=f"{tested[0].name if len(tested) == 1 else 'together'}, {cell.name}")
    for tested in (*((one,) for one in DISTRIBUTIONS), DISTRIBUTIONS)
    for cell in (CELLS if len(tested) > 1 else CELLS_ALONE.get(tested[0].name, CELLS))
]


@nox.session
def quickstart(session: nox.Session) -> None:
    """Train the example: a small network on real scanned digits, in seconds on a CPU."""
    environment = Environment(session, "quickstart")
    environment.install(
        *(
            f"--editable={PACKAGES / name}"
            for name in ("pa-checkpoint", "pa-data", "pa-distributed", "pa-core[examples]")
        )
    )
    environment.run("python", "examples/train_digits.py", *session.posargs)


@nox.session
def dev(session: nox.Session) -> None:
    """Make an environment to work in: all distributions, editable, with every tool; it says how to activate it."""
    environment = Environment(session, "dev")
    editable = [f"--editable={one.source()}" for one in DISTRIBUTIONS]
    needed = itertools.chain.from_iterable(one.test_requirements for one in DISTRIBUTIONS)
    environment.install(*editable, *needed, *BUILD_TOOLS, *LINT_TOOLS, *TYPE_TOOLS, *DOCS_TOOLS, *DEV_TOOLS)
    bin_folder = environment.interpreter.parent
    activate = str(bin_folder / "activate") if os.name == "nt" else f"source {bin_folder / 'activate'}"
    session.log(f"To work in it: {activate}")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format of every Python file (ruff)."""
    environment = Environment(session, "lint")
    environment.install(*LINT_TOOLS)
    environment.run("ruff", "check")
    environment.run("ruff", "format", "--check")


@nox.session
def import_rules(session: nox.Session) -> None:
    """Check who imports whom: distributions, modules of pa_core, accelerate, tqdm (import-linter)."""
    environment = Environment(session, "lint")
    environment.install(*LINT_TOOLS)
    sources = os.pathsep.join(str(PACKAGES / one.name / "src") for one in DISTRIBUTIONS)
    environment.run("lint-imports", "--no-logo", "--no-cache", env={"PYTHONPATH": sources})


@nox.session
def build(session: nox.Session) -> None:
    """Build wheel and sdist of each distribution and check what is in them (twine, tests)."""
    environment = build_wheels(session)
    environment.run("twine", "check", "--strict", *(str(path) for path in sorted(WHEELS.iterdir())))
    environment.run(
        "python", "-m", "pytest", "tests/repository/test_wheels.py", "tests/release", *AT_A_TIME, *session.posargs
    )


@nox.session
def release(session: nox.Session) -> None:
    """Check what a release needs: `-- --check`; without it, make the files of one (RELEASING.md)."""
    environment = Environment(session, "build")
    environment.install(*BUILD_TOOLS)
    shutil.rmtree(NOX / "release_trial", ignore_errors=True)
    trial = Environment(session, "release_trial")
    uv = [f"--uv={UV}"] if UV else []
    options = [f"--folder={NOX / 'release'}", f"--python={trial.interpreter}", *uv, *session.posargs]
    environment.run("python", "-m", "tools.release", *options, env=_pip_settings_for_uv() if UV else None)


@nox.session
def types(session: nox.Session) -> None:
    """Check the types of packages, tests, examples and this file (mypy --strict, pyright strict)."""
    environment = with_third_party(session)  # which examples import
    environment.install(*LINT_TOOLS, *TYPE_TOOLS, *DOCS_TOOLS)
    sources = [f"packages/{one.name}/{folder}" for one in DISTRIBUTIONS for folder in ("src", "tests")]
    environment.run_side_by_side(
        ["pyright", "--pythonpath", str(environment.interpreter)],
        ["mypy", *sources, "tests", "benchmarks", "examples", "tools", "docs", "noxfile.py"],
    )


@nox.session
@nox.parametrize("tested, cell", SHORT_MATRIX)
def tests(session: nox.Session, tested: tuple[Distribution, ...], cell: Cell) -> None:
    """Test built wheels: each distribution alone on one process, all together in the other cells of the matrix.

    All together on one process, that is what belongs to none of them: crashes, this repository, and the code on the
    pages of the documentation. `full_matrix` has the other combinations, and docs/maintainers/matrix.md the table.
    """
    folders = [one.tests() for one in tested]
    if tested == DISTRIBUTIONS and cell == ONE_PROCESS:
        folders = OF_NONE
    run_tests(session, tested, cell, folders)


@nox.session
@nox.parametrize("tested, cell", FULL_MATRIX)
def full_matrix(session: nox.Session, tested: tuple[Distribution, ...], cell: Cell) -> None:
    """Test each distribution alone, and all together, in every cell, with more cases; hours, so each night."""
    folders = [one.tests() for one in tested]
    if tested == DISTRIBUTIONS and cell == ONE_PROCESS:
        folders += OF_NONE
    run_tests(session, tested, cell, folders, "--more-cases")


@nox.session
def coverage(session: nox.Session) -> None:
    """Run all tests on one process and on two ranks, and see what they cover: at least 95 %, branches included.

    What launched scripts run does not count, as it is in processes of their own.
    """
    shutil.rmtree(COVERAGE, ignore_errors=True)
    folders = [one.tests() for one in DISTRIBUTIONS]
    run_tests(session, DISTRIBUTIONS, ONE_PROCESS, [*folders, *OF_NONE], measured=True)
    run_tests(session, DISTRIBUTIONS, TWO_RANKS, folders, measured=True)
    environment = everything(session)
    environment.run("coverage", "combine", "--keep", "--quiet")
    environment.run("coverage", "report")


@nox.session
def examples(session: nox.Session) -> None:
    """Run each example in every way that a user can launch it, and pages, with packages of others that some need."""
    pytest = ["pytest", "tests/examples", "tests/docs_with_others", *AT_A_TIME, *session.posargs]
    with_third_party(session).run("python", "-m", *pytest, env=OFFLINE)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation, warnings are errors, check its links, and run the examples in docstrings."""
    environment = everything(session)
    packages = [one.package for one in DISTRIBUTIONS]
    environment.run_side_by_side(
        ["python", "-m", "pytest", "--doctest-modules", "--pyargs", *packages],
        BUILD_SITE,
        env=CPU,
    )
    environment.run("python", "-m", "pytest", "tests/docs_site", *session.posargs, env={"BUILT_SITE": str(SITE)})


@nox.session
def site(session: nox.Session) -> None:
    """Build the documentation and look at it in Chromium, which has to be installed: `-- [PAGE ...]`."""
    environment = everything(session)
    environment.run(*BUILD_SITE, env=CPU)
    environment.run("python", "-m", "tests.docs_site.look", str(SITE), str(NOX / "screenshots"), *session.posargs)


@nox.session
def floors(session: nox.Session) -> None:
    """Test everything on one process with the oldest versions that the distributions declare of all but torch.

    torch stays at the version of tests/constraints.txt, because builds of its floor are not at hand everywhere; where
    one is, write its version there and run this session.
    """
    required = map(split_requirement, {line for one in DISTRIBUTIONS for line in one.requirements()})
    fixed = {"torch", *(one.name for one in DISTRIBUTIONS)}
    oldest = sorted(f"{name}=={floor}" for name, floor in required if name not in fixed)
    environment = Environment(session, "floors")
    build_wheels(session)
    environment.install_for_tests(DISTRIBUTIONS, *oldest)
    options = [f"--cell={ONE_PROCESS.name}", f"--versions={','.join(oldest)}", "--more-cases", *AT_A_TIME]
    tests = [one.tests() for one in DISTRIBUTIONS]
    run_in_cell(environment, ONE_PROCESS, ["pytest", *tests, *options, *session.posargs])


@nox.session
@nox.parametrize("cell", [nox.param(cell, id=cell.name) for cell in CELLS])
def newest(session: nox.Session, cell: Cell) -> None:
    """Test everything with the newest torch that pip finds, in one cell; hours, so each night, on Python 3.13.

    `python3.13 noxfile.py -s newest` takes the Python that it is run by, as all sessions do. The version of torch in
    tests/constraints.txt does not count.
    """
    folders = [one.tests() for one in DISTRIBUTIONS]
    if cell == ONE_PROCESS:
        folders += OF_NONE
    environment = with_newest_torch(session)
    environment.run("python", "-c", "import sys, torch; print('torch', torch.__version__, 'on Python', sys.version)")
    run_tests(session, DISTRIBUTIONS, cell, folders, "--more-cases", environment=environment)


@nox.session
def trackers(session: nox.Session) -> None:
    """Write to each experiment tracker that the documentation names, with its own package, and read it back."""
    build_wheels(session)
    environment = Environment(session, "trackers")
    environment.install_for_tests(DISTRIBUTIONS, *TRACKERS)
    environment.run("python", "-m", "pytest", "tests/trackers", *session.posargs, env=CPU)


@nox.session
def third_party(session: nox.Session) -> None:
    """Run scripts of users of timm, transformers and others, with the packages themselves, in each cell."""
    environment = with_third_party(session)
    for cell in CELLS:
        env = {**cell.env, **OFFLINE}
        pytest = ["pytest", "tests/third_party", f"--cell={cell.name}", *session.posargs]
        run_in_cell(environment, Cell(cell.name, cell.ranks, env), pytest)


@nox.session
def typed_wheels(session: nox.Session) -> None:
    """Check the types that users see: wheels, both checkers, each version of Python, a project of a user's."""
    environment = everything(session)
    env = {**CPU, "TYPED_WHEELS": str(WHEELS)}
    environment.run("python", "-m", "pytest", "tests/typing", *session.posargs, env=env)


@nox.session
def benchmark(session: nox.Session) -> None:
    """Measure what training costs: `-- [WORD ...] [--rounds N] [--write] [--peers]`, for other trainers beside ours."""
    arguments = [argument for argument in session.posargs if argument != "--peers"]
    for name, requirements in PEERS.items() if "--peers" in session.posargs else ():
        environment = Environment(session, f"peer_{name}")
        environment.install(*requirements)
        arguments.append(f"--peer={name}={environment.interpreter}")
    everything(session).run("python", "-m", "benchmarks", *arguments)


@nox.session
def peers(session: nox.Session) -> None:
    """Measure what other libraries do where the documentation compares them, and train scripts of Lightning with it."""
    peer = Environment(session, "peers")
    peer.install("torch", "accelerate", "lightning", "pytorch-accelerated", "scikit-learn", "transformers[torch]")
    env = {**CPU, "PEERS_PYTHON": str(peer.interpreter)}
    everything(session).run("python", "-m", "pytest", "tests/peers", *session.posargs, env=env)


@nox.session
def goodput(session: nox.Session) -> None:
    """Measure what is left of a run that is killed every 15 seconds: `-- [--kills N] [--every SECONDS] [--write]`."""
    everything(session).run("python", "-m", "benchmarks.goodput", *session.posargs)


@nox.session
def crashes(session: nox.Session) -> None:
    """Kill hundreds of runs anywhere; each, started again, ends bit for bit as one that was never killed."""
    everything(session).run("python", "-m", "pytest", "tests/crashes", "--whole-proof", *session.posargs, env=CPU)


@nox.session
def any_processes(session: nox.Session) -> None:
    """Train 200 random configurations, and 60 that are killed, on 1 to 7 processes: each ends with the same bits."""
    pytest = ["pytest", "tests/any_processes", "--verbose", *session.posargs]
    everything(session).run("python", "-m", *pytest, env=CPU)


@nox.session
def damage(session: nox.Session) -> None:
    """Damage each file of states and checkpoints in hundreds of ways; none is loaded, and none in part."""
    pytest = ["pytest", "packages/pa-core/tests/damage", "--whole-proof", *session.posargs]
    everything(session).run("python", "-m", *pytest, env=CPU)


@nox.session
def ranks_that_differ(session: nox.Session) -> None:
    """Give one process something else than the other, in each way of the table; both end soon, and are told."""
    pytest = ["pytest", "packages/pa-core/tests/ranks_that_differ", "--whole-proof", *session.posargs]
    everything(session).run("python", "-m", *pytest, env=CPU)


@nox.session
def store_kills(session: nox.Session) -> None:
    """Kill 500 processes that save training states; after each, no completed save is lost."""
    script = "packages/pa-checkpoint/tests/kills_during_saving.py"
    everything(session).run("python", script, *(session.posargs or ["500"]), env=CPU)


@nox.session
def several_machines(session: nox.Session) -> None:
    """Type the lines of the page on two network namespaces, kill one, pull its cable: five minutes."""
    pytest = ["pytest", "tests/several_machines", "--whole-proof", *session.posargs]
    everything(session).run("python", "-m", *pytest)


@nox.session
def slurm(session: nox.Session) -> None:
    """Run the Slurm job of the examples on this machine, as root, if it has slurm-wlm and munge: ten minutes."""
    pytest = ["pytest", "tests/slurm", "--whole-proof", *session.posargs]
    everything(session).run("python", "-m", *pytest)


@nox.session
def elastic(session: nox.Session) -> None:
    """Kill a sharded run five times; each time it goes on on another number of processes, and it ends the same."""
    pytest = ["pytest", "packages/pa-core/tests/training_states/test_elastic_sharded_states.py", "--whole-proof"]
    everything(session).run("python", "-m", *pytest, *session.posargs, env=CPU)


@nox.session
def killed_files(session: nox.Session) -> None:
    """Kill runs on sharded files forty times, and divide 1 to 7 files over 1 to 4 processes with 0 to 3 workers."""
    pytest = ["pytest", "packages/pa-core/tests/files", "--whole-proof", "-m", "whole_proof", *session.posargs]
    everything(session).run("python", "-m", *pytest, env=CPU)


@nox.session
def limited_memory(session: nox.Session) -> None:
    """Train a model on two processes, each of which has less memory than its training takes on one: a minute."""
    pytest = ["pytest", "packages/pa-core/tests/sharding/test_limited_memory.py", "--whole-proof", *session.posargs]
    everything(session).run("python", "-m", *pytest, env=CPU)


@nox.session
def upload_kills(session: nox.Session) -> None:
    """Kill 200 runs that send their states to an unreliable object store; each ends as one that nothing hit."""
    script = ["-m", "tests.support.pa_core.training_states.kills_during_uploads"]
    everything(session).run("python", *script, *(session.posargs or ["200"]), env=CPU)


@nox.session
def shared_folders(session: nox.Session) -> None:
    """Start two to four runs in one folder of states, 200 times, and kill some; none takes or loses a state."""
    script = "packages/pa-core/tests/training_states/runs_in_one_folder.py"
    everything(session).run("python", script, *(session.posargs or ["200"]), env=CPU)


READY: set[str] = set()
"""The environments that this run of nox has filled already."""

USED: list[Path] = []
"""The packages of those in which it has run tests."""


def build_wheels(session: nox.Session) -> Environment:
    """The environment that builds, after it has built wheels and sdists, once in a run of nox."""
    environment = Environment(session, "build")
    if "build" not in READY:
        environment.install(*BUILD_TOOLS)
        shutil.rmtree(WHEELS, ignore_errors=True)
        for one in DISTRIBUTIONS:
            folder = str(PACKAGES / one.name)
            environment.run("python", "-m", "build", "--no-isolation", "--outdir", str(WHEELS), folder)
        READY.add("build")
    return environment


def alone(session: nox.Session, one: Distribution) -> Environment:
    """An environment with the wheel of one distribution, what it declares and what its tests need."""
    environment = Environment(session, one.name)
    if one.name not in READY:
        build_wheels(session)
        environment.install_for_tests((one,))
        READY.add(one.name)
    return environment


def everything(session: nox.Session) -> Environment:
    """The environment with all wheels, and with the tools that need them installed."""
    environment = Environment(session, "everything")
    if "everything" not in READY:
        build_wheels(session)
        environment.install_for_tests(DISTRIBUTIONS, *LINT_TOOLS, *TYPE_TOOLS, *DOCS_TOOLS)
        READY.add("everything")
    return environment


def with_newest_torch(session: nox.Session) -> Environment:
    """The environment with all wheels and the newest torch, which the other constraints allow."""
    constraints = NOX / "constraints_but_torch.txt"
    constraints.write_text(re.sub(r"^torch==.*", "", CONSTRAINTS.read_text(), flags=re.MULTILINE))
    environment = Environment(session, "newest", constraints)
    if "newest" not in READY:
        build_wheels(session)
        environment.install_for_tests(DISTRIBUTIONS, "--upgrade", *LINT_TOOLS, *TYPE_TOOLS, *DOCS_TOOLS)
        READY.add("newest")
    return environment


def with_third_party(session: nox.Session) -> Environment:
    """The environment with all wheels, and with the packages of others that examples and users' scripts train with."""
    environment = Environment(session, "third_party")
    if "third_party" not in READY:
        build_wheels(session)
        environment.install_for_tests(DISTRIBUTIONS, *THIRD_PARTY)
        READY.add("third_party")
    return environment


def run_tests(
    session: nox.Session,
    tested: tuple[Distribution, ...],
    cell: Cell,
    folders: list[str],
    *more_options: str,
    measured: bool = False,
    environment: Environment | None = None,
) -> None:
    """Run the tests of some folders in a cell, against the wheels of some distributions and what these require."""
    if environment is None:
        environment = everything(session) if tested == DISTRIBUTIONS else alone(session, *tested)
    installed = set[Distribution]().union(*(one.with_ours() for one in tested))
    options = [
        f"--cell={cell.name}",
        f"--installed={','.join(sorted(one.name for one in installed))}",
        *(AT_A_TIME if cell.ranks == 1 else ()),
        *more_options,
        *session.posargs,
    ]
    if cell.ranks == 1 and measured:
        cell = Cell(cell.name, env={**cell.env, "COVERAGE_FILE": str(COVERAGE / f"data.{cell.name}")})
        options += ["--cov", "--cov-report=", "--cov-fail-under=0"]
    pytest = ["coverage", "run", "-m", "pytest"] if cell.ranks > 1 and measured else ["pytest"]
    shares = halves(folders) if cell.ranks > 1 else [folders]
    run_in_cell(environment, cell, *([*pytest, *share, *options] for share in shares))


def halves(folders: list[str]) -> list[list[str]]:
    """Divide the tests of several ranks, which wait for each other half of the time, so that two can run at once."""
    core, half_of_core = "packages/pa-core/tests", "packages/pa-core/tests/training_states"
    if core not in folders:
        return [folders]
    return [[core, f"--ignore={half_of_core}"], [half_of_core, *(folder for folder in folders if folder != core)]]


def run_in_cell(environment: Environment, cell: Cell, *modules: list[str]) -> None:
    """Run Python modules in a cell, each as one process, or as several ranks of which the first one is seen."""
    env = {**CPU, **cell.env}
    environment.share_bytecode()
    if cell.ranks == 1:
        environment.run_side_by_side(*(["python", "-m", *module] for module in modules), env=env)
        return
    logs = NOX / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    redirects = ",".join(f"{rank}:3" for rank in range(1, cell.ranks))
    launcher = ["torchrun", "--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={cell.ranks}"]
    launcher += [f"--log-dir={logs}", f"--redirects={redirects}", "-m"]
    try:
        # One rank that goes on after a failure would wait for the other in a collective.
        environment.run_side_by_side(*([*launcher, *module, "--exitfirst"] for module in modules), env=env)
    except CommandFailed:
        for log in sorted(logs.rglob("*.log")):
            environment.session.warn(f"{log.relative_to(logs)}:\n{log.read_text()}")
        raise


class Environment:
    """A virtual environment under `.nox/`, shared by the sessions that name it and kept for the next run.

    nox would make one for each session; with torch in nearly all of them, that is a gigabyte each.
    """

    def __init__(self, session: nox.Session, name: str, constraints: Path = CONSTRAINTS) -> None:
        """Make the environment, if it is not there or does not fit."""
        self.session = session
        self.constraints = constraints
        self.folder = NOX / name
        self.interpreter = python_of(self.folder)
        if not fits(self.folder):
            session.log(f"Making {self.folder}")
            venv.create(self.folder, clear=True, symlinks=SYMLINKS, with_pip=UV is None)

    def install(self, *requirements: str) -> None:
        """Install within the constraints: with uv where it is present, else with pip."""
        python = str(self.interpreter)
        # Compiling everything takes longer than installing it, and most of it is never imported.
        pip = [python, "-m", "pip", "install", "--no-compile"]
        installer = [UV, "pip", "install", "--python", python] if UV else pip
        constraints = ["--constraint", str(self.constraints)]
        env = _pip_settings_for_uv() if UV else {}
        self.session.run_install(*installer, *constraints, *requirements, env=env, silent=True, external=True)

    def install_for_tests(self, distributions: tuple[Distribution, ...], *requirements: str) -> None:
        """Install the built wheels with what they declare, what their tests need, and `requirements`."""
        ours = set[Distribution]().union(*(one.with_ours() for one in distributions))
        # A wheel that was built again has the same version as before: nothing would be installed.
        self.install("--force-reinstall", "--no-deps", *sorted(one.wheel() for one in ours))
        needed = itertools.chain(TEST_TOOLS, *(one.test_requirements for one in distributions))
        self.install(*(one.wheel() for one in distributions), *needed, *requirements)

    def share_bytecode(self) -> None:
        """Link what environments that were used before have compiled of the very same files, which uv links too.

        The first import of torch in an environment takes 14 seconds longer than the second one.
        """
        mine = library_of(self.folder)
        for theirs in USED:
            for compiled in theirs.glob(f"**/__pycache__/*.{sys.implementation.cache_tag}.pyc"):
                link = mine / compiled.relative_to(theirs)
                if not link.exists():
                    source = Path(importlib.util.source_from_cache(str(compiled)))
                    same = mine / source.relative_to(theirs)
                    if source.exists() and same.exists() and source.samefile(same):
                        link.parent.mkdir(exist_ok=True)
                        link.hardlink_to(compiled)
        if mine not in USED:
            USED.append(mine)

    def run(self, program: str, *arguments: str, env: dict[str, str] | None = None, silent: bool = False) -> None:
        """Run a program of this environment in the root of the repository; a silent one is shown when it has ended."""
        path = shutil.which(program, path=self.interpreter.parent)
        # Without bytecode, which some machines switch off, each start of torch takes three times as long.
        env = {"PYTHONDONTWRITEBYTECODE": "", **(env or {})}
        self.session.run(path or program, *arguments, env=env, external=True, silent=silent)

    def run_side_by_side(self, first: list[str], *others: list[str], env: dict[str, str] | None = None) -> None:
        """Run programs at the same time, as each leaves a core idle; what `others` print is shown when they end."""
        with ThreadPoolExecutor() as pool:
            started = [pool.submit(self.run, *other, env=env, silent=True) for other in others]
            self.run(*first, env=env)
        for one in started:
            one.result()


@functools.cache
def _pip_settings_for_uv() -> dict[str, str]:
    """Where pip finds packages on this machine, in the words of uv, which reads none of pip's settings."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    in_files: dict[str, str] = dict(re.findall(r"^global\.([a-z-]+)='(.*)'", listed, flags=re.MULTILINE))

    def setting(option: str) -> list[str]:
        variable = f"PIP_{option.replace('-', '_').upper()}"
        return os.environ.get(variable, in_files.get(option, "")).replace(r"\n", " ").split()

    in_words_of_uv = {
        "SSL_CERT_FILE": " ".join(setting("cert")),
        "UV_DEFAULT_INDEX": " ".join(setting("index-url")),
        "UV_FIND_LINKS": ",".join(setting("find-links")),
        "UV_INDEX": " ".join(setting("extra-index-url")),
        "UV_INDEX_STRATEGY": "unsafe-best-match",  # as pip: the best version of all indexes
    }
    return {name: value for name, value in in_words_of_uv.items() if value and name not in os.environ}


def split_requirement(line: str) -> tuple[str, str]:
    """The name and the floor of a requirement such as `tqdm>=4.66,<5`."""
    match = re.match(r"([\w.-]+)>=([\w.]+)", line)
    if match is None:
        message = f"A requirement needs a floor, as in 'tqdm>=4.66': {line!r}"
        raise ValueError(message)
    return match[1], match[2]
