"""The example with settings takes each from where it was set last, and refuses what it does not know."""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from tests.launching import Launch

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_from_config.py"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example as a module; its annotations are looked up by its name."""
    spec = importlib.util.spec_from_file_location(EXAMPLE.stem, EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, EXAMPLE.stem, module)
    spec.loader.exec_module(module)
    return module


def test_the_command_line_wins_over_the_file(example: ModuleType, tmp_path: Path) -> None:
    """Numbers, None and names get the types of their fields; what is set nowhere has its default."""
    file = tmp_path / "settings.yaml"
    file.write_text("epochs: 3\nmax_grad_norm: 1\nactivation: GELU\noptimizer: {lr: 5e-3, weight_decay: 0}\n")

    settings = example.read_settings([str(file), "--optimizer.lr=1e-2", "--max_grad_norm=null", "--output=here"])

    defaults = example.Settings()
    optimizer = replace(defaults.optimizer, lr=0.01, weight_decay=0.0)
    assert settings == replace(defaults, epochs=3, activation="GELU", output="here", optimizer=optimizer)
    assert type(settings.optimizer.weight_decay) is float


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("optimizer:\n  learning_rate: 0.1", "optimizer.learning_rate is no setting: there are optimizer.lr, "),
        ("epochs: 2.5", "epochs must be int, not 2.5"),
        ("epochs: yes", "epochs must be int, not True"),
        ("optimizer: {lr: high}", "optimizer.lr must be float, not 'high'"),
        ("max_grad_norm: [1]", "max_grad_norm must be float | None, not [1]"),
        ("activation: Tanh", "activation must be Literal['ReLU', 'GELU'], not 'Tanh'"),
        ("- 1\n- 2", "settings.yaml must have settings with names, not [1, 2]"),
    ],
)
def test_what_it_does_not_know_is_refused(example: ModuleType, tmp_path: Path, content: str, message: str) -> None:
    """An unknown name or a value of another type ends the script with a message that names it."""
    file = tmp_path / "settings.yaml"
    file.write_text(content)
    with pytest.raises(SystemExit, match=re.escape(message)):
        example.read_settings([str(file)])


@pytest.mark.parametrize("argument", ["--help", "--epochs", "--max_grad_norm"])
def test_an_option_without_a_value_shows_how_to_start_it(example: ModuleType, argument: str) -> None:
    """It does not quietly set it to nothing."""
    with pytest.raises(SystemExit, match="--NAME=VALUE"):
        example.read_settings([argument])


def test_a_run_resumes(launch: Launch) -> None:
    """With accumulation, clipping and a schedule, a longer run goes on from the last state of a shorter one."""
    assert launch(EXAMPLE, str(EXAMPLE.with_suffix(".yaml")), "--epochs=1", "--warmup_epochs=0").status == 0

    resumed = launch(EXAMPLE, str(EXAMPLE.with_suffix(".yaml")), "--epochs=2", "--warmup_epochs=0")

    assert resumed.status == 0
    assert "Resuming from outputs/train_from_config/states/final" in resumed.output
    assert (launch.folder / "outputs" / "train_from_config" / "model" / "model.safetensors").exists()
