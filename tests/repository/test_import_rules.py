"""The import rules catch what they forbid: each one is broken on purpose in a copy of the packages."""

from __future__ import annotations

import shutil
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.launching import Launched, run_command

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS_RULE = "Distributions: arrows point down"
MODULES_RULE = "Modules of pa_core: arrows point down"
TRIAL_MODULES_RULE = "Modules of pa_trial: arrows point down"
CIRCLES_RULE = "No modules import each other in a circle"


@dataclass(frozen=True)
class Packages:
    """A copy of the packages, to be spoilt."""

    folder: Path

    def plant(self, module: str, line: str) -> None:
        """Append a line to a module such as `pa_core/errors.py`; make the module if it is not there."""
        with (self.folder / module).open("a") as file:
            file.write(f"\n{line}\n")

    def check(self) -> Launched:
        """Check the import rules of the repository on this copy."""
        command = [
            str(Path(sysconfig.get_path("scripts"), "lint-imports")),
            f"--config={ROOT / 'pyproject.toml'}",
            "--no-cache",
            "--no-logo",
        ]
        return run_command(command, folder=self.folder, env={"PYTHONPATH": str(self.folder)})


@pytest.fixture
def packages(tmp_path: Path) -> Packages:
    """A copy of the packages as they are."""
    for source in ROOT.glob("packages/*/src"):
        shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    return Packages(tmp_path)


def test_the_packages_keep_all_rules(packages: Packages) -> None:
    """Nobody imports what they must not; without this, a violation below would prove nothing."""
    assert packages.check().status == 0


@pytest.mark.parametrize(
    ("rule", "module", "line"),
    [
        (DISTRIBUTIONS_RULE, "pa_core/errors.py", "import pa_schedulers"),
        (DISTRIBUTIONS_RULE, "pa_trial/__init__.py", "import pa_schedulers"),
        (MODULES_RULE, "pa_core/callbacks/defaults.py", "from pa_core.trainer import Trainer"),
        (MODULES_RULE, "pa_core/unheard_of.py", "import torch"),
        (TRIAL_MODULES_RULE, "pa_trial/context.py", "from pa_trial.loop import TrainingLoop"),
        (TRIAL_MODULES_RULE, "pa_trial/unheard_of.py", "import torch"),
        ("accelerate is imported in two modules", "pa_core/trainer.py", "import accelerate"),
        ("tqdm is imported in one module", "pa_core/trainer.py", "from tqdm import tqdm"),
        ("pa_distributed and pa_finetuning know only torch", "pa_finetuning/__init__.py", "import pa_core.errors"),
        ("Private modules of pa_core stay inside", "pa_schedulers/__init__.py", "import pa_core._accelerate"),
    ],
)
def test_a_planted_violation_is_caught(packages: Packages, rule: str, module: str, line: str) -> None:
    """One forbidden import, wherever it stands, breaks the rule that forbids it."""
    packages.plant(module, line)
    checked = packages.check()
    assert checked.status == 1
    assert any(shown.startswith(rule) and "BROKEN" in shown for shown in checked.output.splitlines())


def test_an_import_for_type_checkers_alone_counts(packages: Packages) -> None:
    """Modules that name each other's types are a circle, even if only type checkers ever import one of them."""
    packages.plant("pa_core/tracking/metric_values.py", "from typing import TYPE_CHECKING")
    packages.plant("pa_core/tracking/metric_values.py", "if TYPE_CHECKING:\n    import pa_core.tracking.run_history")
    checked = packages.check()
    assert checked.status == 1
    assert f"{CIRCLES_RULE} BROKEN" in checked.output.splitlines()


def test_every_private_module_of_pa_core_is_protected(packages: Packages) -> None:
    """A new private module of pa_core is closed to the other distributions from its first day."""
    names = [
        ".".join(path.relative_to(packages.folder).with_suffix("").parts)
        for path in packages.folder.glob("pa_core/**/_*.py")
        if path.name != "__init__.py"
    ]
    assert names != []
    rules = (ROOT / "pyproject.toml").read_text()
    assert [name for name in names if f'"{name}"' not in rules] == []
