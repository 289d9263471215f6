#!/usr/bin/env bash
# torchmetrics 1.9.0, torcheval 0.0.7, pytorch-ignite 0.5.5: R2 of 0, 1.6, 4 or -inf where 0.56 is right.
#
# Expected: R2 is at most 1, and the same as scikit-learn's to a few digits. Targets far from zero (years, days,
# prices, pressures) are usual in regression, and float32 is torch's default.
# What happens: the metrics add up squares of the targets, in float32, and subtract the square of the sum. For values
# around 10,000 with a deviation of 3 the variance is what is left of numbers ten million times as large: no digit is
# right. The value depends on the size of the batches, and exceeds 1, so that a useless checkpoint can look like the
# best.
# Who is hit: regression without standardised targets, and the choice of the best checkpoint by such a metric.
# The way round: update with `targets - mean` and `predictions - mean` (any constant near the mean).

set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
unset PYTHONPATH
export CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1

python3 -m venv venv
packages=(torch==2.13.0 numpy==2.4.6 scikit-learn==1.9.1 torchmetrics==1.9.0 torcheval==0.0.7 pytorch-ignite==0.5.5)
if command -v uv > uv.txt; then
    uv pip install --quiet --python venv/bin/python "${packages[@]}"
else
    venv/bin/pip install --quiet "${packages[@]}"
fi

venv/bin/python -W ignore - << 'EOF'
from importlib.metadata import version

import ignite.metrics.regression
import torch
import torcheval.metrics
import torchmetrics
from sklearn.metrics import r2_score

for package in ("torch", "torchmetrics", "torcheval", "pytorch-ignite"):
    print(package, version(package))
generator = torch.Generator().manual_seed(0)
targets = 10000 + 3 * torch.randn(20000, generator=generator)
predictions = targets + 2 * torch.randn(20000, generator=generator)


def value(metric, size, shift=0.0, argument=lambda a, b: (a, b)):
    for a, b in zip(predictions.split(size), targets.split(size), strict=True):
        metric.update(*argument(a - shift, b - shift))
    return round(float(metric.compute()), 4)


right = round(r2_score(targets.double(), predictions.double()), 4)
print("scikit-learn in float64:            ", right)
found = {}
for size in (100, 20000):
    found["torchmetrics", size] = value(torchmetrics.R2Score(), size)
    found["torcheval", size] = value(torcheval.metrics.R2Score(), size)
    found["ignite", size] = value(ignite.metrics.regression.R2Score(), size, argument=lambda a, b: ((a, b),))
for (name, size), score in found.items():
    print(f"{name:12} R2, batches of {size:5}:     ", score)
shifted = value(torchmetrics.R2Score(), 100, shift=10000.0)
print("torchmetrics R2 of values less 10000: ", shifted)
assert abs(shifted - right) < 1e-3
for name in ("torchmetrics", "torcheval", "ignite"):
    errors = [abs(found[name, size] - right) for size in (100, 20000)]
    assert max(errors) > 0.01, f"the behaviour of {name} has changed"
EOF
