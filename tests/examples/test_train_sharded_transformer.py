"""The example of a sharded model trains, goes on and writes, however its processes were started."""

from __future__ import annotations

import math
import re
import runpy
import sysconfig
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.launching import Launch, free_port, run_command

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_sharded_transformer.py"
ACCELERATE = [
    *(str(Path(sysconfig.get_path("scripts"), "accelerate")), "launch", "--use_fsdp", "--fsdp_version=2"),
    *("--num_processes=2", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no"),
]
ON_CPU = {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}


def losses(output: str) -> list[float]:
    """The losses of the evaluations, as they were printed."""
    return [float(one) for one in re.findall(r"^ +\d+ +[\d.]+ +\*?([\d.]+) ", output, re.MULTILINE)]


def test_it_is_launched_by_torchrun_and_goes_on_under_accelerate(launch: Launch, tmp_path: Path) -> None:
    """The loss falls; each process has half of the model; the weights are those of a whole one, which writes alike."""
    arguments = ["--length=20000", "--output=here"]
    first = launch(EXAMPLE, "--epochs=2", *arguments, ranks=2)
    assert first.status == 0
    port = f"--main_process_port={free_port()}"
    second = run_command([*ACCELERATE, port, str(EXAMPLE), "--epochs=3", *arguments], folder=tmp_path, env=ON_CPU)
    assert second.status == 0

    evaluated = losses(first.output) + losses(second.output)
    assert len(evaluated) == 3
    assert math.log(96) > evaluated[0] > evaluated[1] > evaluated[2]
    example: dict[str, Any] = runpy.run_path(str(EXAMPLE))
    model: torch.nn.Module = example["CharacterTransformer"]()
    model.load_state_dict(load_file(tmp_path / "here" / "weights" / "model.safetensors"))
    whole = sum(one.numel() for one in model.parameters())
    (own,) = re.findall(rf"This process has ([\d,]+) of {whole:,} parameters", second.output)
    assert abs(int(own.replace(",", "")) - whole / 2) < whole / 100
    numbers, expected = example["Excerpts"]("Return the sum of the values in the list, or zero where there is none.")[0]
    assert example["loss_of_next_characters"](model(numbers[None]), expected[None]) < math.log(96)
