"""A training state that an earlier version of the code has written is resumed by today's, to the last bit.

``earlier_states`` holds states by the commit whose code wrote them, each packed into a file of a few kilobytes: in the
tree of that commit, ``python test_earlier_states.py FILE`` writes one. A change of what a state contains adds one of
the commit before it.
"""

from __future__ import annotations

import random
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import Dataset
from typing_extensions import override

from pa_core import SaveTrainingStateCallback, Trainer

STATES = sorted((Path(__file__).parent / "earlier_states").glob("*.zip"))
SAVED_AT = 6


class Draws(Dataset[tuple[Tensor, Tensor]]):
    """Small numbers, to which each sample adds what it draws from the three global streams."""

    def __len__(self) -> int:
        return 16

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        drawn = int(torch.randint(2, ())) + random.randrange(2) + int(np.random.randint(2))
        return torch.tensor([index % 4, drawn]).double(), torch.tensor([drawn]).double()


def run(folder: Path, resume_from: Path | None = None) -> dict[str, Any]:
    """Train two epochs of four updates, and return all that tells two runs apart, seconds left out.

    All numbers are sums of a few powers of two, so that every processor computes the same ones.
    """
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    model = nn.Sequential(nn.Linear(2, 1), nn.Dropout(0.5)).double()
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.5)
    saving = SaveTrainingStateCallback(folder, save_every_n_steps=SAVED_AT, save_at_end=False)
    optimizer = SGD(model.parameters(), lr=2**-4, momentum=0.5)
    trainer = Trainer(model, nn.MSELoss(), optimizer, callbacks=[saving])
    trainer.train(
        Draws(),
        num_epochs=2,
        eval_dataset=Draws(),
        per_device_batch_size=2,
        gradient_accumulation_steps=2,
        create_scheduler_fn=lambda optimizer: StepLR(optimizer, 3, gamma=0.5),
        resume_from=resume_from,
    )
    history: Any = trainer.run_history
    records = {name: column for name, column in history.to_dict().items() if name != "seconds"}
    return {
        "weights": [parameter.tolist() for parameter in model.parameters()],
        "momentum": [trainer.optimizer.state[one]["momentum_buffer"].tolist() for one in model.parameters()],
        "rate": optimizer.param_groups[0]["lr"],
        "history": records,
        "streams": (torch.rand(1).item(), random.random(), float(np.random.rand())),
    }


@pytest.mark.parametrize("packed", STATES, ids=lambda path: path.stem)
def test_a_state_of_an_earlier_version_is_resumed_to_the_last_bit(packed: Path, tmp_path: Path) -> None:
    """In mid-epoch, with momentum, a schedule and drawn samples: it ends as a run that was never interrupted."""
    whole = run(tmp_path / "whole")
    with zipfile.ZipFile(packed) as state:
        state.extractall(tmp_path / "earlier")
    assert run(tmp_path / "resumed", resume_from=tmp_path / "earlier") == whole


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary, zipfile.ZipFile(sys.argv[1], "w", zipfile.ZIP_DEFLATED) as archive:
        run(Path(temporary))
        for file in sorted(Path(temporary).glob(f"*_{SAVED_AT}/*")):
            archive.write(file, file.name)
