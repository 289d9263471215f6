#!/usr/bin/env bash
# huggingface_hub 2.4.0: a model with PyTorchModelHubMixin is loaded with the defaults of arguments that JSON cannot
# hold.
#
# Expected: `Net.from_pretrained(folder)` gives the network that `net.save_pretrained(folder)` saved. The mixin stores
# the arguments of `__init__` in config.json; for one that it cannot store, an error.
# What happens: an argument that is no JSON value (a module, a dtype) is left out of config.json without a message,
# and the constructor's default takes its place when the model is loaded. The weights fit, so that nothing fails: the
# activation is another one, and so are the outputs.
# Who is hit: whoever publishes or resumes models whose constructor takes an activation, a dtype, or a function, with
# a default.
# The way round: give the class `coders={type: (encode, decode)}` in its head, or take names (strings) as arguments.
# Compare the outputs once after loading.

set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
unset PYTHONPATH
export CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1

python3 -m venv venv
packages=(torch==2.13.0 numpy==2.4.6 safetensors==0.8.0 huggingface_hub==2.4.0)
if command -v uv > uv.txt; then
    uv pip install --quiet --python venv/bin/python "${packages[@]}"
else
    venv/bin/pip install --quiet "${packages[@]}"
fi

venv/bin/python - << 'EOF'
import json
from pathlib import Path

import huggingface_hub
import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import nn


class Net(nn.Module, PyTorchModelHubMixin):
    def __init__(self, size=4, activation=nn.ReLU(), dtype=torch.float32):
        super().__init__()
        self.linear = nn.Linear(size, size, dtype=dtype)
        self.activation = activation

    def forward(self, inputs):
        return self.activation(self.linear(inputs))


print("torch", torch.__version__, "huggingface_hub", huggingface_hub.__version__)
torch.manual_seed(0)
saved = Net(8, activation=nn.Tanh(), dtype=torch.float64)
saved.save_pretrained("folder")
loaded = Net.from_pretrained("folder")
config = json.loads(Path("folder/config.json").read_text())
print("config.json:", config)
print("saved: ", saved.activation, saved.linear.weight.dtype)
print("loaded:", loaded.activation, loaded.linear.weight.dtype)
inputs = torch.randn(2, 8)
difference = (saved(inputs.double()) - loaded(inputs)).abs().max().item()
print("largest difference of the outputs:", round(difference, 4))
assert config == {"size": 8}, "the behaviour has changed"
assert isinstance(loaded.activation, nn.ReLU), "the behaviour has changed"
assert loaded.linear.weight.dtype == torch.float32, "the behaviour has changed"
assert difference > 0.01
EOF
