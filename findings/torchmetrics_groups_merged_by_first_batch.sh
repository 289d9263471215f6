#!/usr/bin/env bash
# torchmetrics 1.9.0: a MetricCollection merges metrics that agree on the first batch, for good.
#
# Expected: each metric of a collection has the value that it has alone. The documentation of `compute_groups` says
# that metrics are grouped if they share the same state, as accuracy and precision do.
# What happens: the collection compares the numbers in the states after the first update. Two accuracies with
# different thresholds have equal numbers if no prediction of that batch lies between the thresholds. From then on
# only one of them is updated, and both return its value. There is no warning.
# Who is hit: whoever compares thresholds, or values of `ignore_index`, in one collection. Small first batches, and
# models that are sure of themselves, make it likely; the order of the data decides.
# The way round: `MetricCollection(..., compute_groups=False)`, or a list of groups.

set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
unset PYTHONPATH
export CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1

python3 -m venv venv
packages=(torch==2.13.0 numpy==2.4.6 torchmetrics==1.9.0)
if command -v uv > uv.txt; then
    uv pip install --quiet --python venv/bin/python "${packages[@]}"
else
    venv/bin/pip install --quiet "${packages[@]}"
fi

venv/bin/python - << 'EOF'
import torch
import torchmetrics
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAccuracy

BATCHES = [
    (torch.tensor([0.10, 0.90, 0.20, 0.95]), torch.tensor([0, 1, 0, 1])),
    (torch.tensor([0.55, 0.55, 0.20, 0.95]), torch.tensor([0, 0, 0, 1])),
]


def accuracies(batches, **options):
    metrics = {"at_half": BinaryAccuracy(threshold=0.5), "at_0_6": BinaryAccuracy(threshold=0.6)}
    collection = MetricCollection(metrics, **options)
    for predictions, targets in batches:
        collection.update(predictions, targets)
    return {name: value.item() for name, value in collection.compute().items()}


print("torchmetrics", torchmetrics.__version__)
apart = accuracies(BATCHES, compute_groups=False)
merged = accuracies(BATCHES)
other_order = accuracies(BATCHES[::-1])
print("without groups:            ", apart)
print("default:                   ", merged)
print("default, batches exchanged:", other_order)
assert apart == {"at_half": 0.75, "at_0_6": 1.0}
assert merged == {"at_half": 1.0, "at_0_6": 1.0}, "the behaviour has changed"
assert other_order == apart
EOF
