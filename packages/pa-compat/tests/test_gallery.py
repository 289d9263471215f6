"""Scripts in the style of the usual gallery, which know only the names of pytorch-accelerated, run and learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.launching import Launch
from tests.support.pa_compat.script_runs import SCRIPTS, names_of

everywhere = pytest.mark.runs_on("one_process", "two_ranks", "bf16")


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(shared_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts save where they are started."""
    monkeypatch.chdir(shared_tmp_path)


def run(script: str) -> dict[str, Any]:
    """What the ``main`` of a script returns."""
    result: dict[str, Any] = names_of(script)["main"]()
    return result


@everywhere
def test_a_model_that_takes_a_dict() -> None:
    """Dict batches go to the model as keyword arguments; metrics of the loop and of a callback agree."""
    recorded = run("dict_batches.py")

    assert recorded["accuracy"][-1] > 0.9
    wrong = [round((1 - accuracy) * 149) for accuracy in recorded["accuracy"]]
    assert recorded["mistakes"] == wrong
    assert recorded["train_loss_epoch"][-1] < recorded["train_loss_epoch"][0] / 2


@everywhere
def test_detection_with_lists_of_different_lengths(shared_tmp_path: Path) -> None:
    """Batches are lists; the output of the model differs in evaluation, and its detections are gathered."""
    recorded = run("detection.py")

    assert recorded["train_loss_epoch"][-1] < recorded["train_loss_epoch"][0] / 2
    assert max(recorded["agreement"]) > 0.65
    assert recorded["num_detections"] > 50
    assert (shared_tmp_path / "detector.pt").exists()


RUN_ALL = """
import json, runpy, sys
from pathlib import Path

batch_size = int(sys.argv[1])
results = {}
for script in sys.argv[2:]:
    results[Path(script).name] = runpy.run_path(script, run_name="imported")["main"](per_device_batch_size=batch_size)
from accelerate import PartialState
if PartialState().is_main_process:
    print("RESULTS", json.dumps(results))
"""
EXACT = ["detection.py", "dict_batches.py"]


def test_two_ranks_give_the_values_of_one_process(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same samples in an update, losses and metrics on two ranks are those of one process."""
    paths = [str(SCRIPTS / script) for script in EXACT]
    launched = launch(RUN_ALL, "16", *paths, ranks=2)
    assert launched.status == 0
    (line,) = [line for line in launched.output.splitlines() if line.startswith("RESULTS")]
    on_two_ranks = json.loads(line.removeprefix("RESULTS"))

    alone = launch.folder / "alone"
    alone.mkdir()
    monkeypatch.chdir(alone)
    for script in EXACT:
        on_one_process = names_of(script)["main"](per_device_batch_size=32)
        assert texts(on_two_ranks[script]) == texts(on_one_process), script
        expected = pytest.approx(numbers(on_one_process), rel=1e-3, abs=1e-4)
        assert numbers(on_two_ranks[script]) == expected, script


def leaves(values: Any) -> list[Any]:
    """Everything in nested lists, tuples and dicts, in order."""
    if isinstance(values, dict):
        return leaves(list(values.values()))
    if isinstance(values, list | tuple):
        return [leaf for value in values for leaf in leaves(value)]
    return [values]


def numbers(values: Any) -> list[float]:
    """The numbers among the leaves."""
    return [float(leaf) for leaf in leaves(values) if not isinstance(leaf, str)]


def texts(values: Any) -> list[str]:
    """The texts among the leaves."""
    return [leaf for leaf in leaves(values) if isinstance(leaf, str)]
