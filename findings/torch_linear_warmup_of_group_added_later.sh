#!/usr/bin/env bash
# torch 2.13.0: a parameter group that is added during a LinearLR warm-up ends with a rate above the one it was given.
#
# Expected: the warm-up of a group leads to the rate that was given for it. Where a scheduler cannot handle a group
# that it has not seen, an error: `LambdaLR` and `OneCycleLR` raise one.
# What happens: `LinearLR` multiplies each group's present rate by the same factor in each step. A group that is added
# in the middle starts at its full rate and is multiplied by what is left of the warm-up. Added after the first of
# five steps of the default warm-up from 1/3, it ends at 2.14 times its rate, and stays there.
# Who is hit: whoever thaws layers with `optimizer.add_param_group` while the warm-up goes on.
# The way round: make all groups before the scheduler (thaw by `requires_grad`), or set the rate of the new group to
# its share, the rate of an old group divided by that group's `initial_lr`.

set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
unset PYTHONPATH
export CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1

python3 -m venv venv
packages=(torch==2.13.0 numpy==2.4.6)
if command -v uv > uv.txt; then
    uv pip install --quiet --python venv/bin/python "${packages[@]}"
else
    venv/bin/pip install --quiet "${packages[@]}"
fi

venv/bin/python -W ignore - << 'EOF'
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LinearLR


def rates(make_scheduler):
    """Return the final rates of a group that was there, and of one that was added after the first step."""
    head, body = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    scheduler = make_scheduler(optimizer)
    for step in range(8):
        optimizer.step()
        scheduler.step()
        if step == 0:
            optimizer.add_param_group({"params": body.parameters(), "lr": 0.1})
    return [round(group["lr"], 4) for group in optimizer.param_groups]


print("torch", torch.__version__)
found = rates(lambda optimizer: LinearLR(optimizer, total_iters=5))
print("LinearLR, two groups with lr=0.1:", found)
try:
    rates(lambda optimizer: LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5)))
    refused = "nothing"
except ValueError as error:
    refused = f"{type(error).__name__}: {error}"
print("LambdaLR:", refused)
assert found == [0.1, 0.2143], "the behaviour has changed"
assert refused.startswith("ValueError"), "the behaviour has changed"
EOF
