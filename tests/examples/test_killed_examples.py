"""Examples that were killed or stopped end, when they are started again, as if nothing had happened."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.examples.shared_launches import LAUNCHES, SharedLaunches
from tests.examples.ways import BESIDE_TORCHVISION, EXAMPLES, WAYS
from tests.launching import Launch

KILLED_AFTER = Path(__file__).with_name("killed_after.py")


def checksum(output: str) -> str:
    """The number of updates and the checksum of the weights that a complete run has printed."""
    (found,) = re.findall(r"After (.*) updates the checksum of the weights is (\d+)$", output, re.MULTILINE)
    return ": ".join(found)


@pytest.mark.parametrize(
    ("ranks", "updates"), [(1, "33"), pytest.param(2, "33", marks=pytest.mark.whole_proof), (1, "50 SIGTERM")]
)
def test_a_run_that_was_stopped_ends_with_the_same_checksum(
    launch: Launch, shared_launch: SharedLaunches, ranks: int, updates: str
) -> None:
    """The same command goes on from the newest state; after SIGTERM, whose status is 75, from the very update."""
    example, arguments = EXAMPLES / "stop_and_resume.py", ("--epochs=3", "--output=killed")
    stopped = launch(KILLED_AFTER, updates, str(example), *arguments, ranks=ranks)
    assert stopped.status == 75 if "SIGTERM" in updates else stopped.status != 0

    resumed = launch(example, *arguments, ranks=ranks)

    assert resumed.status == 0
    assert ("after update 50" if "SIGTERM" in updates else "Resuming from killed/step_20") in resumed.output
    assert checksum(resumed.output) == checksum(shared_launch("stop_and_resume", WAYS[ranks - 1]).output)


def read_lines(path: Path) -> list[dict[str, float]]:
    """The objects of a JSON-lines file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.whole_proof)])
def test_a_killed_run_has_each_line_of_its_log_once(launch: Launch, shared_launch: SharedLaunches, ranks: int) -> None:
    """Killed in an epoch and started again, the file is that of a run that was not interrupted."""
    updates = -(-1200 // (32 * ranks))
    example = EXAMPLES / "custom_logger.py"
    written = launch.folder / "killed" / "metrics.jsonl"
    whole = shared_launch("custom_logger", WAYS[ranks - 1])
    killed = launch(KILLED_AFTER, str(2 * updates + 5), str(example), "--epochs=3", "--output=killed", ranks=ranks)
    assert killed.status != 0
    assert len(read_lines(written)) == 4

    assert launch(example, "--epochs=3", "--output=killed", ranks=ranks).status == 0

    lines = read_lines(written)
    assert lines == read_lines(whole.folder / "outputs" / "custom_logger" / "metrics.jsonl")
    expected = [
        (epoch, epoch * updates, name) for epoch in (1, 2, 3) for name in ("train_loss_epoch", "eval_loss_epoch")
    ]
    assert [(line["epoch"], line["update"], [*line][2]) for line in lines] == expected


@pytest.mark.whole_proof
def test_a_killed_lora_ends_with_the_bits_of_one_that_was_not(launch: Launch, shared_launch: SharedLaunches) -> None:
    """After SIGKILL, two ranks go on with the same adapters, dropout and samples; states share one file of the base."""
    way = "torchrun with two ranks"
    whole = shared_launch("lora", way)
    arguments = [str(EXAMPLES / "lora.py"), *LAUNCHES["lora"].of(way), "--output=killed"]

    killed = launch(BESIDE_TORCHVISION, str(KILLED_AFTER), "33", *arguments, ranks=2)
    assert killed.status != 0
    resumed = launch(BESIDE_TORCHVISION, *arguments, ranks=2)

    assert resumed.status == 0
    assert "Resuming from killed/states/step_20" in resumed.output
    assert resumed.output.splitlines()[-2:] == whole.output.splitlines()[-2:]
    written = whole.folder / "outputs" / "lora"
    bases = [path.stat() for path in written.glob("states/*/models.constant.safetensors")]
    assert [base.st_nlink for base in bases] == [2, 2]
    for small in (*written.glob("states/*/models.safetensors"), written / "adapters" / "adapter_model.safetensors"):
        assert small.stat().st_size < bases[0].st_size / 5


@pytest.mark.whole_proof
@pytest.mark.parametrize(
    ("name", "epochs", "after"), [("ppo", 2, 77), ("replay_buffer", 4, 250), ("truncated_bptt", 1, 60)]
)
def test_it_ends_with_the_same_bits_when_it_was_killed(launch: Launch, name: str, epochs: int, after: int) -> None:
    """In the middle of a rollout's updates, of those that follow some episodes, or of an excerpt, which begins again.

    All that is saved at the end is compared, but not the RNG state of NumPy, which the examples do not seed.
    """
    example, arguments = EXAMPLES / f"{name}.py", [f"--epochs={epochs}"]
    whole = launch(example, *arguments, "--output=whole")
    killed = launch(KILLED_AFTER, str(after), str(example), *arguments, "--output=killed")
    resumed = launch(example, *arguments, "--output=killed")
    assert (whole.status, resumed.status) == (0, 0)
    assert killed.status != 0
    assert "Resuming from killed/states/" in resumed.output
    expected, found = (_tensors_in(launch.folder / folder / "states" / "final") for folder in ("whole", "killed"))
    assert expected.keys() == found.keys()
    assert all(torch.equal(tensor, found[key]) for key, tensor in expected.items())


def _tensors_in(state: Path) -> dict[str, Tensor]:
    files = sorted(state.glob("*.safetensors"))
    return {
        f"{file.name} {key}": tensor
        for file in files
        for key, tensor in load_file(file).items()
        if "/numpy/" not in key
    }
