#!/usr/bin/env bash
# accelerate 1.15.0: leaving an evaluation loop by `break` changes when the training loop around it makes updates.
#
# Expected: with `gradient_accumulation_steps=4`, `accumulate()` makes an update after each 4 batches and after the
# last batch of the epoch, whatever else reads data in between.
# What happens: a prepared loader registers itself when its iteration begins, and takes itself off when it is read to
# the end. After `break` (or `next(iter(loader))`) it stays registered as the loader in use, so that the end of the
# training loader is no longer seen: the rest of the epoch makes no update, and its gradients go into the first update
# of the next epoch, in which all groups are shifted. There is no warning.
# Who is hit: runs with gradient accumulation that evaluate a few batches only, or draw a batch of examples, within an
# epoch.
# The way round: read the evaluation loader to its end, limit it by a `Subset`, or use a loader that is not prepared.

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

venv/bin/python - << 'EOF'
import accelerate
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def updates(evaluated_batches):
    """Return after which batches of each epoch an update was made, and a weight."""
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    data = TensorDataset(torch.randn(10, 2), torch.randn(10, 1))
    loaders = DataLoader(data, batch_size=1), DataLoader(data, batch_size=1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    model, sgd, training, evaluation = accelerator.prepare(model, sgd, *loaders)
    made = [[], []]
    for epoch in range(2):
        for number, (inputs, targets) in enumerate(training):
            with accelerator.accumulate(model):
                accelerator.backward(((model(inputs) - targets) ** 2).mean())
                sgd.step()
                sgd.zero_grad()
            if accelerator.sync_gradients:
                made[epoch].append(number + 1)
            if number == 2:
                for index, _ in enumerate(evaluation):
                    if index + 1 == evaluated_batches:
                        break
    return made, model.weight[0, 0].item()


print("torch", torch.__version__, "accelerate", accelerate.__version__)
whole, whole_weight = updates(evaluated_batches=None)
broken, broken_weight = updates(evaluated_batches=2)
print("evaluation read to its end: updates after batches", whole, "weight", round(whole_weight, 6))
print("evaluation left by break:   updates after batches", broken, "weight", round(broken_weight, 6))
assert whole == [[4, 8, 10], [4, 8, 10]]
assert broken == [[4, 8], [2, 6, 10]], "the behaviour has changed"
assert whole_weight != broken_weight
EOF
