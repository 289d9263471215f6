#!/usr/bin/env bash
# accelerate 1.15.0: the TensorBoard tracker leaves out NumPy numbers that are not float64, silently.
#
# Expected: `accelerator.log({"name": number})` writes each number. Its documentation speaks of "int/float/str"
# values; a `numpy.float32` looks like a float, and the same call with a tensor of one element or a `numpy.float64` is
# written.
# What happens: the tracker writes what is an instance of `int` or `float`. `numpy.float64` is one, `numpy.float32`
# and `numpy.int64` are not: nothing is written for them, and nothing is said.
# Who is hit: whoever logs the mean of a float32 array, a count of `numpy.sum`, or a metric computed from float32
# scores. The curve is missing when the run is over.
# The way round: `float(value)` or `value.item()` before `log`.

set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
unset PYTHONPATH
export CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1

python3 -m venv venv
packages=(torch==2.13.0 numpy==2.4.6 accelerate==1.15.0 tensorboard==2.21.0)
if command -v uv > uv.txt; then
    uv pip install --quiet --python venv/bin/python "${packages[@]}"
else
    venv/bin/pip install --quiet "${packages[@]}"
fi

venv/bin/python - 2> messages.txt << 'EOF'
import accelerate
import numpy as np
import torch
from accelerate import Accelerator
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir="logs")
accelerator.init_trackers("run")
losses = np.array([1.0, 2.0])
accelerator.log(
    {
        "python_float": 1.5,
        "tensor": torch.tensor(1.5),
        "mean_of_float64": losses.mean(),
        "mean_of_float32": losses.astype(np.float32).mean(),
        "count_of_numpy": (losses > 0).sum(),
    },
    step=0,
)
accelerator.end_training()

events = EventAccumulator("logs/run")
events.Reload()
written = sorted(events.Tags()["scalars"])
print("accelerate", accelerate.__version__, "numpy", np.__version__)
print("written:", written)
assert written == ["mean_of_float64", "python_float", "tensor"], "the behaviour has changed"
EOF
echo "warnings that name what is missing: $(grep -c 'mean_of_float32\|count_of_numpy' messages.txt || true)"
! grep -q 'mean_of_float32\|count_of_numpy' messages.txt
