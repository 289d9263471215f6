#!/usr/bin/env bash
# keras 3.15.1 on torch: `model.train()` does not switch on Dropout and BatchNormalization of a Keras model.
#
# Expected: with the torch backend a Keras model is a `torch.nn.Module`, and can be trained in a PyTorch loop. There,
# `train()` and `eval()` choose the mode of layers.
# What happens: Keras layers look at the argument `training` of the call only, and without it they take False. After
# `model.train()`, `model(batch)` drops nothing, normalises with the initial moving statistics and does not update
# them. The model trains without regularisation, and its statistics stay at 0 and 1 for ever.
# Who is hit: whoever trains Keras models in a loop or trainer of PyTorch, or puts Keras layers into a
# `torch.nn.Module`.
# The way round: `model(batch, training=True)` in training.

set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
unset PYTHONPATH
export CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1

python3 -m venv venv
packages=(torch==2.13.0 numpy==2.4.6 keras==3.15.1)
if command -v uv > uv.txt; then
    uv pip install --quiet --python venv/bin/python "${packages[@]}"
else
    venv/bin/pip install --quiet "${packages[@]}"
fi

export KERAS_BACKEND=torch
venv/bin/python -W ignore - << 'EOF'
import keras
import torch


def outputs(**arguments):
    torch.manual_seed(0)
    dropout = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dropout(0.5, seed=0)])
    norm = keras.Sequential([keras.layers.Input((4,)), keras.layers.BatchNormalization()])
    inputs = torch.randn(64, 4) + 5
    dropout.train(), norm.train()
    dropped = int((dropout(inputs, **arguments) == 0).sum())
    norm(inputs, **arguments)
    return dropped, norm.layers[0].moving_mean.value.mean().item()


print("torch", torch.__version__, "keras", keras.__version__, "backend", keras.backend.backend())
print("a Keras model is a torch.nn.Module:", issubclass(keras.Sequential, torch.nn.Module))
plain, told = outputs(), outputs(training=True)
print("after train():                dropped", plain[0], "of 256, moving mean", plain[1])
print("after train(), training=True: dropped", told[0], "of 256, moving mean", round(told[1], 3))
assert issubclass(keras.Sequential, torch.nn.Module)
assert plain == (0, 0.0), "the behaviour has changed"
assert told[0] > 64 and told[1] > 0.01
EOF
