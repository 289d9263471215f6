"""The examples that shard a transformer train, go on and save a whole model, however their processes were started."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.examples.shared_launches import SharedLaunches
from tests.examples.ways import EXAMPLES, load_example, numbers_in
from tests.launching import Launch, Launched, as_a_reader, forked_python, free_port, run_command

COUNTED = str(Path(__file__).with_name("counted_forwards.py"))
UPDATES, BLOCKS = 32, 2
MODEL = Path("outputs", "shard_with_checkpointing", "model.safetensors")


def launch_with_fsdp(*command: str, folder: Path, precision: str) -> Launched:
    """What came of a script that accelerate launches on two ranks, each of which then has half of the model."""
    python = forked_python()
    launcher = [
        *(*python, "-m", "accelerate.commands.launch", "--no_python", "--use_fsdp", "--fsdp_version=2"),
        *("--num_processes=2", "--num_machines=1", "--dynamo_backend=no", f"--mixed_precision={precision}"),
        f"--main_process_port={free_port()}",
    ]
    launched = run_command([*launcher, *python, "-u", *command], folder=folder, env=as_a_reader(folder))
    assert launched.status == 0, launched.output
    output = launched.output.replace(",", "")
    (held, *_), (whole, *_) = numbers_in(output, r"(\d+) of \d+ param"), numbers_in(output, r"\d+ of (\d+) param")
    assert whole / 2 <= held < 0.6 * whole
    return launched


def last_loss(launched: Launched) -> float:
    """The loss of the last evaluation, as it was recorded."""
    return numbers_in(launched.output, r"eval_loss_epoch +([\d.]+)")[-1]


@pytest.mark.whole_proof
def test_it_is_launched_by_torchrun_and_goes_on_under_accelerate(launch: Launch, tmp_path: Path) -> None:
    """The loss falls from start to start; the weights are those of a whole model, and have the loss that is told."""
    script = EXAMPLES / "character_transformer.py"
    first = launch(script, "--epochs=1", "--output=here", ranks=2)
    assert first.status == 0
    second = launch_with_fsdp(str(script), "--epochs=2", "--output=here", folder=tmp_path, precision="no")

    assert math.log(96) > last_loss(first) > last_loss(second)
    example = load_example("character_transformer")
    model: torch.nn.Module = example["CharacterTransformer"]().eval()
    model.load_state_dict(load_file(tmp_path / "here" / "weights" / "model.safetensors"))
    inputs, targets = example["load_data"]()[1].tensors
    with torch.no_grad():
        loss = example["loss_of_next_characters"](model(inputs), targets)
    assert float(loss) == pytest.approx(last_loss(second), abs=1e-3)


@pytest.mark.parametrize(("precision", "off"), [("no", 0.01), pytest.param("bf16", 0.1, marks=pytest.mark.whole_proof)])
def test_activations_are_computed_again_under_accelerate(tmp_path: Path, precision: str, off: float) -> None:
    """Each process computes its blocks twice an update; plain torch gets the same loss."""
    script = str(EXAMPLES / "shard_with_checkpointing.py")
    launched = launch_with_fsdp(COUNTED, script, "--epochs=1", folder=tmp_path, precision=precision)

    assert set(numbers_in(launched.output, r"in training: (\d+)")) == {2 * UPDATES * BLOCKS}
    (*_, in_plain_torch) = numbers_in(launched.output, r"evaluation loss of ([\d.]+)")
    assert last_loss(launched) == pytest.approx(in_plain_torch, abs=off)


def test_a_single_process_trains_the_same_model(shared_launch: SharedLaunches) -> None:
    """Two ranks save the weights that one process saves, up to rounding."""
    weights, expected = (
        load_file(shared_launch("shard_with_checkpointing", way).folder / MODEL)
        for way in ("python", "torchrun with two ranks")
    )
    assert weights.keys() == expected.keys()
    for name, weight in weights.items():
        assert float((weight - expected[name]).abs().max()) < 1e-3
