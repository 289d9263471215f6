"""The example of a checkpointed decay prints the truth about each of its checkpoints, and trains on from one."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from tests.examples.shared_launches import SharedLaunches

EXAMPLE = Path(__file__).parents[2] / "examples" / "schedule_with_decays.py"


def test_each_checkpoint_is_a_finished_model(shared_launch: SharedLaunches) -> None:
    """The shares that are printed are those of the saved weights over the 357 test digits, counted by hand."""
    launched = shared_launch("schedule_with_decays", "python")

    assert launched.status == 0
    example: dict[str, Any] = runpy.run_path(str(EXAMPLE))
    model: torch.nn.Module = example["make_trainer"](example["WSDCheckpointCallback"](launched.folder)).model
    ((pixels, digits),) = DataLoader(example["load_data"]()[1], batch_size=357)

    def share(export: str) -> str:
        content = torch.load(launched.folder / "outputs" / "schedule_with_decays" / export, weights_only=True)
        model.load_state_dict(content["model_state_dict"])
        return f"{(model(pixels).argmax(dim=1) == digits).sum().item() / 357:.1%}"

    printed = re.findall(r"Recognised ([\d.]+%) of the test digits after (\d+) updates", launched.output)
    first = [(share(f"first/checkpoint_{updates}_wsd_post_decay.pt"), str(updates)) for updates in (45, 90, 180)]
    assert printed == [*first, (share("longer/checkpoint_180_wsd_post_decay.pt"), "360")]
    assert (launched.folder / "outputs" / "schedule_with_decays" / "first" / "checkpoint_171_wsd_pre_decay").is_dir()
