"""The example with settings takes each from where it was set last, and refuses what it does not know."""

from __future__ import annotations

import importlib.util
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
    """Numbers, booleans, None and names get the types of their fields; what is set nowhere has its default."""
    file = tmp_path / "settings.yaml"
    file.write_text(
        "num_epochs: 3\nmax_grad_norm: 1\ndata: {drop_last: yes}\noptimizer: {learning_rate: 3e-3, adam_beta1: 0.8}\n"
    )

    config = example.read_settings(
        example.TrainingConfig, [str(file), "--optimizer.learning_rate=1e-2", "--max_grad_norm=none"]
    )

    default = example.TrainingConfig()
    assert config == replace(
        default,
        num_epochs=3,
        data=replace(default.data, drop_last=True),
        optimizer=replace(default.optimizer, learning_rate=0.01, adam_beta1=0.8),
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("optimizer:\n  lr: 0.1", "unrecognized arguments: --optimizer.lr=0.1"),
        ("num_epochs: 2.5", "argument --num_epochs: invalid int value: '2.5'"),
        ("num_epochs: null", "argument --num_epochs: invalid int value: 'None'"),
        ("data: 16", "unrecognized arguments: --data=16"),
        ("data:\n  drop_last: 1", "argument --data.drop_last: invalid bool value: '1'"),
        ("scheduler:\n  name: cos", "argument --scheduler.name: invalid choice: 'cos'"),
        ("- 1\n- 2", "unrecognized arguments"),
    ],
)
def test_what_it_does_not_know_is_refused(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: str, message: str
) -> None:
    """An unknown name or a value of another type ends the script with a message that names it."""
    file = tmp_path / "settings.yaml"
    file.write_text(settings)
    with pytest.raises(SystemExit) as error:
        example.read_settings(example.TrainingConfig, [str(file)])
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_a_run_with_everything_resumes(launch: Launch) -> None:
    """With accumulation, clipping, evaluations within epochs and a tracker, a longer run goes on with a shorter one."""
    arguments = [
        str(EXAMPLE.with_suffix(".yaml")),
        "--report_to=tensorboard",
        "--eval_steps=10",
        "--checkpoint_steps=7",
        "--exp_name=here",
    ]
    assert launch(EXAMPLE, *arguments, "--num_epochs=1").status == 0

    resumed = launch(EXAMPLE, *arguments, "--num_epochs=2")

    assert resumed.status == 0
    assert "Resuming from outputs/here/states/final" in resumed.output
    assert (launch.folder / "outputs" / "here" / "model" / "model.safetensors").exists()
    assert [*(launch.folder / "runs").rglob("events*")]
