"""The example of a character-level transformer trains, goes on and writes, however its processes were started."""

from __future__ import annotations

import math
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.launching import Launch, as_a_reader, forked_python, free_port, run_command

EXAMPLE = Path(__file__).parents[2] / "examples" / "character_transformer.py"
ACCELERATE = [
    *("-m", "accelerate.commands.launch", "--no_python", "--use_fsdp", "--fsdp_version=2"),
    *("--num_processes=2", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no"),
]


def test_it_is_launched_by_torchrun_and_goes_on_under_accelerate(launch: Launch, tmp_path: Path) -> None:
    """The loss falls from start to start; each process has half of the model; the weights are those of a whole one."""
    first = launch(EXAMPLE, "--epochs=1", "--output=here", ranks=2)
    assert first.status == 0
    port = f"--main_process_port={free_port()}"
    python = forked_python()
    command = [*python, *ACCELERATE, port, *python, "-u", str(EXAMPLE), "--epochs=2", "--output=here"]
    second = run_command(command, folder=tmp_path, env=as_a_reader(tmp_path))
    assert second.status == 0

    before, after = (
        float(re.findall(r"eval_loss_epoch +([\d.]+)", launched.output)[-1]) for launched in (first, second)
    )
    assert math.log(96) > before > after
    example: dict[str, Any] = runpy.run_path(str(EXAMPLE))
    model: torch.nn.Module = example["CharacterTransformer"]().eval()
    model.load_state_dict(load_file(tmp_path / "here" / "weights" / "model.safetensors"))
    whole = sum(one.numel() for one in model.parameters())
    (own,) = re.findall(rf"This process has ([\d,]+) of {whole:,} parameters", second.output)
    assert whole / 2 <= int(own.replace(",", "")) < 0.6 * whole
    inputs, targets = example["load_data"]()[1].tensors
    with torch.no_grad():
        loss = example["loss_of_next_characters"](model(inputs), targets)
    assert float(loss) == pytest.approx(after, abs=1e-3)
