"""The example of a sharded transformer computes activations again, and saves a whole model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.examples.shared_launches import SharedLaunches
from tests.launching import Launched, as_a_reader, forked_python, free_port, run_command

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "shard_with_checkpointing.py")
COUNTED = str(Path(__file__).with_name("counted_forwards.py"))
ACCELERATE = [
    *("-m", "accelerate.commands.launch", "--no_python", "--use_fsdp", "--fsdp_version=2"),
    *("--num_processes=2", "--num_machines=1", "--dynamo_backend=no"),
]
UPDATES, BLOCKS = 32, 2


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_activations_are_computed_again_under_accelerate(tmp_path: Path, precision: str) -> None:
    """Each process has half of the model and computes its blocks twice an update; plain torch gets the same loss."""
    python = forked_python()
    launcher = [*python, *ACCELERATE, f"--mixed_precision={precision}", f"--main_process_port={free_port()}"]
    command = [*launcher, *python, "-u", COUNTED, EXAMPLE, "--epochs=1"]
    launched = run_command(command, folder=tmp_path, env=as_a_reader(tmp_path))

    assert launched.status == 0, launched.output
    held, whole = (
        int(count.replace(",", "")) for count in re.findall(r"([\d,]+) of ([\d,]+) param", launched.output)[0]
    )
    assert whole / 2 <= held < 0.6 * whole
    assert {int(count) for count in re.findall(r"in training: (\d+)", launched.output)} == {2 * UPDATES * BLOCKS}
    assert _recorded_loss(launched) == pytest.approx(
        _loss_in_plain_torch(launched), abs=0.01 if precision == "no" else 0.1
    )


def test_a_single_process_trains_the_same_model(shared_launch: SharedLaunches) -> None:
    """Two ranks save the weights that one process saves, up to rounding."""
    single, pair = (shared_launch("shard_with_checkpointing", way) for way in ("python", "torchrun with two ranks"))

    assert [single.status, pair.status] == [0, 0]
    weights, expected = (
        load_file(one.folder / "outputs" / "shard_with_checkpointing" / "model.safetensors") for one in (pair, single)
    )
    assert weights.keys() == expected.keys()
    for name, weight in weights.items():
        assert float((weight - expected[name]).abs().max()) < 1e-3


def _recorded_loss(launched: Launched) -> float:
    return float(re.findall(r"eval_loss_epoch +([\d.]+)", launched.output)[-1])


def _loss_in_plain_torch(launched: Launched) -> float:
    return float(re.findall(r"evaluation loss of ([\d.]+)", launched.output)[-1])
