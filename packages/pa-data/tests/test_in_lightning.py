"""What a training with Lightning, as in `docs/data-alone.md`, relies on when its data come from a keyed loader."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

from pa_data import KeyedDataLoader
from tests.launching import Launch

SCRIPT = """
import os
import lightning
import torch
from torch.utils.data import TensorDataset

from pa_data import KeyedDataLoader


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, number):
        samples = [int(index) for index in batch[0].flatten()]
        os.write(1, f"rank {self.global_rank} epoch {self.current_epoch}: {samples}\\n".encode())
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)

    def train_dataloader(self):
        dataset = TensorDataset(torch.arange(22.0).unsqueeze(1))
        processes = {"rank": self.global_rank, "num_processes": self.trainer.world_size}
        return KeyedDataLoader(dataset, 4, shuffle=True, seed=3, num_workers=2, **processes)


class SaveAtStep(lightning.Callback):
    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 4:
            trainer.save_checkpoint("middle.ckpt")


if __name__ == "__main__":
    options = {
        "max_epochs": 2, "accelerator": "cpu", "devices": 2, "strategy": "ddp_fork", "use_distributed_sampler": False,
        "logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
    }
    lightning.Trainer(max_steps=4, callbacks=[SaveAtStep()], **options).fit(Module())
    os.write(1, b"resumed\\n")
    lightning.Trainer(**options).fit(Module(), ckpt_path="middle.ckpt")
"""


@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="needs lightning")
@pytest.mark.timeout(400)
def test_lightning_chooses_the_epochs_and_resumes_in_the_middle_of_one(tmp_path: Path) -> None:
    """On two processes with workers, each epoch has its own order, and its checkpoint continues at the next batch."""
    env = {name: None for name in os.environ if name.startswith("COV")}
    ended = Launch(tmp_path)(SCRIPT, env=env, timeout=300, fresh=True)
    assert ended.status == 0
    before, after = (_batches(part) for part in ended.output.split("resumed\n"))
    assert (len(before), len(after)) == (8, 4)
    dataset = TensorDataset(torch.arange(22))
    for rank in range(2):
        loader = KeyedDataLoader(dataset, 4, shuffle=True, seed=3, rank=rank, num_processes=2)
        for epoch in range(2):
            loader.set_epoch(epoch)
            seen = [samples for number, at, samples in before + after if (number, at) == (rank, epoch)]
            assert seen == [tuple(batch[0].tolist()) for batch in loader]


def _batches(output: str) -> list[tuple[int, int, tuple[int, ...]]]:
    found = re.findall(r"rank (\d) epoch (\d): \[([^\]]*)\]", output)
    return [(int(rank), int(epoch), tuple(map(int, samples.split(", ")))) for rank, epoch, samples in found]
