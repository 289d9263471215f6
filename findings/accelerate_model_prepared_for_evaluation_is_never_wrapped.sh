#!/usr/bin/env bash
# accelerate 1.15.0: a model that was prepared for evaluation first is not wrapped for training, and the ranks drift
# apart.
#
# Expected: `prepare_model(model, evaluation_mode=True)` for a first evaluation, then `prepare(model)` for training,
# which makes it a DistributedDataParallel, so that gradients are averaged.
# What happens: the first call marks the model as prepared, and the second one returns it as it is. Each process
# trains a model of its own on its share of the data. There is no error: losses are plausible, and the saved model is
# that of one process, trained on half of the data here.
# Who is hit: scripts that evaluate before they train (a baseline, a sanity check).
# The way round: prepare the model for training once, and evaluate that.

set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
unset PYTHONPATH
export CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1

python3 -m venv venv
packages=(torch==2.13.0 numpy==2.4.6 accelerate==1.15.0)
if command -v uv > uv.txt; then
    uv pip install --quiet --python venv/bin/python "${packages[@]}"
else
    venv/bin/pip install --quiet "${packages[@]}"
fi

cat > program.py << 'EOF'
import accelerate
import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.parallel import DistributedDataParallel

accelerator = Accelerator(cpu=True)


def train(evaluate_first):
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    if evaluate_first:
        model = accelerator.prepare_model(model, evaluation_mode=True)
        with torch.no_grad():
            model(torch.ones(1, 2))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    model, sgd = accelerator.prepare(model, sgd)
    torch.manual_seed(accelerator.process_index)
    accelerator.backward(model(torch.randn(4, 2)).square().mean())
    sgd.step()
    weights = accelerator.gather(accelerator.unwrap_model(model).weight.detach())
    return isinstance(model, DistributedDataParallel), torch.equal(weights[0], weights[1])


plain, evaluated = train(evaluate_first=False), train(evaluate_first=True)
if accelerator.is_main_process:
    print("torch", torch.__version__, "accelerate", accelerate.__version__)
    print("(wrapped, weights of both ranks equal after a step), prepared once:   ", plain)
    print("(wrapped, weights of both ranks equal after a step), evaluated before:", evaluated)
assert plain == (True, True)
assert evaluated == (False, False), "the behaviour has changed"
accelerator.end_training()
EOF
venv/bin/torchrun --standalone --local-addr=127.0.0.1 --nproc-per-node 2 program.py 2> messages.txt || { cat messages.txt; exit 1; }
