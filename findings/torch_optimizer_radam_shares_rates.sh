#!/usr/bin/env bash
# torch-optimizer 0.3.0: RAdam moves all parameter groups with the learning rate of the first one.
#
# Expected: each group has its own `lr`, as in every optimizer of PyTorch: smaller for the layers of a backbone, 0 for
# frozen ones.
# What happens: the step size is kept in a small table for each step, to be computed once, and the groups share the
# table. The first group of a step writes its learning rate into it, and the others read it. torch's own RAdam is
# right.
# Who is hit: discriminative rates, layer-wise decay, and groups switched off by `lr=0`: these parameters are trained
# at the full rate. Schedules that change all groups alike show nothing of it.
# The way round: `torch.optim.RAdam`.

set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
unset PYTHONPATH
export CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1

python3 -m venv venv
packages=(torch==2.13.0 numpy==2.4.6 torch-optimizer==0.3.0)
if command -v uv > uv.txt; then
    uv pip install --quiet --python venv/bin/python "${packages[@]}"
else
    venv/bin/pip install --quiet "${packages[@]}"
fi

venv/bin/python -W ignore - << 'EOF'
from importlib.metadata import version

import torch
import torch_optimizer


def moved(optimizer_class):
    """Return how far two parameters with equal gradients go: their groups have the rates 0.1 and 0."""
    parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    optimizer = optimizer_class([{"params": parameters[:1]}, {"params": parameters[1:], "lr": 0.0}], lr=0.1)
    for _ in range(10):
        for parameter in parameters:
            parameter.grad = torch.ones(1)
        optimizer.step()
    return [round(1 - parameter.item(), 4) for parameter in parameters]


print("torch", torch.__version__, "torch-optimizer", version("torch-optimizer"))
found, right = moved(torch_optimizer.RAdam), moved(torch.optim.RAdam)
print("torch_optimizer.RAdam: group with lr=0.1 moved by", found[0], "and group with lr=0 by", found[1])
print("torch.optim.RAdam:     group with lr=0.1 moved by", right[0], "and group with lr=0 by", right[1])
assert right[1] == 0.0 and right[0] > 0.0
assert found[1] == found[0] > 0.0, "the behaviour has changed"
EOF
