#!/usr/bin/env bash
# lightning 2.6.6: `EMAWeightAveraging(update_starting_at_epoch=2)` averages from the first step on.
#
# Expected: nothing is averaged before the epoch that is given, to keep the early weights out of the average.
# What happens: the condition for steps, which is true from step 0 on unless `update_starting_at_step` is given, and
# that for epochs are joined by "or". All steps are averaged as before; the argument only adds one more update at the
# end of each epoch from the given one on. The early weights are in the average, and the decay per epoch is another
# one.
# Who is hit: whoever delays the average by epochs.
# The way round: `update_starting_at_step=epoch * steps_per_epoch`, without the other argument.

set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
unset PYTHONPATH
export CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1

python3 -m venv venv
packages=(torch==2.13.0 numpy==2.4.6 lightning==2.6.6)
if command -v uv > uv.txt; then
    uv pip install --quiet --python venv/bin/python "${packages[@]}"
else
    venv/bin/pip install --quiet "${packages[@]}"
fi

venv/bin/python -W ignore - 2> messages.txt << 'EOF'
import lightning
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch.utils.data import DataLoader


class Counting(LightningModule):
    """Its weight grows by 1 in each step."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, batch, index):
        return -self.weight.sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


class Watch(Callback):
    def __init__(self, averaging):
        self.averaging, self.seen = averaging, []

    def on_train_epoch_end(self, trainer, model):
        average = self.averaging._average_model
        self.seen.append((average.n_averaged.item(), round(average.module.weight.item(), 3)))


def averages(**options):
    averaging = EMAWeightAveraging(decay=0.9, **options)
    watch = Watch(averaging)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    Trainer(max_epochs=4, accelerator="cpu", callbacks=[watch, averaging], **quiet).fit(
        Counting(), DataLoader(torch.zeros(4, 1))
    )
    return watch.seen


print("torch", torch.__version__, "lightning", lightning.__version__)
plain = averages()
by_epoch = averages(update_starting_at_epoch=2)
by_step = averages(update_starting_at_step=8)
print("(updates of the average, average) before the end of each of 4 epochs of 4 steps:")
print("default:                   ", plain)
print("update_starting_at_epoch=2:", by_epoch)
print("update_starting_at_step=8: ", by_step)
assert by_epoch[:2] == plain[:2], "the behaviour has changed"
assert [updates for updates, _ in by_epoch] == [4, 8, 12, 17], "the behaviour has changed"
assert by_step[:2] == [(0, 0.0), (0, 0.0)]
EOF
