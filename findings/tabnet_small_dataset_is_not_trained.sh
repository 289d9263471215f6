#!/usr/bin/env bash
# pytorch-tabnet 4.1.0: with its default arguments, `fit` does not train at all on fewer than 1,024 rows.
#
# Expected: `fit(X, y)` trains on each row, or says that the batch size is too large. 500 rows are usual for tables.
# What happens: the defaults are `batch_size=1024` and `drop_last=True`, so that fewer rows make no batch. Each epoch
# ends with the loss 0.0, which looks like a perfect fit, and `predict` answers with the random initial weights. No
# warning, no error.
# Who is hit: whoever fits small tables, or folds of a cross-validation. Between 1,025 and 2,047 rows, up to half of
# them are left out of each epoch.
# The way round: `fit(..., batch_size=256, virtual_batch_size=128)` with a size below the number of rows, or
# `drop_last=False`.

set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
unset PYTHONPATH
export CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1

python3 -m venv venv
packages=(torch==2.13.0 numpy==2.4.6 pytorch-tabnet==4.1.0 pandas==3.1.1)
if command -v uv > uv.txt; then
    uv pip install --quiet --python venv/bin/python "${packages[@]}"
else
    venv/bin/pip install --quiet "${packages[@]}"
fi

venv/bin/python -W ignore - << 'EOF'
from importlib.metadata import version

import numpy as np
from pytorch_tabnet.tab_model import TabNetClassifier

random = np.random.default_rng(0)
table = random.standard_normal((500, 5)).astype(np.float32)
classes = (table[:, 0] > 0).astype(int)


def fit(**options):
    classifier = TabNetClassifier(seed=0, verbose=0)
    classifier.fit(table, classes, max_epochs=30, **options)
    return classifier.history["loss"], float((classifier.predict(table) == classes).mean())


print("pytorch-tabnet", version("pytorch-tabnet"), "torch", version("torch"))
default_losses, default_accuracy = fit()
losses, accuracy = fit(batch_size=128)
print("default:        losses", default_losses[:3], "... accuracy on its own data", default_accuracy)
print("batch_size=128: losses", [round(float(loss), 3) for loss in losses[:3]], "... accuracy on its own data", accuracy)
assert set(default_losses) == {0.0}, "the behaviour has changed"
assert default_accuracy < 0.7, "the behaviour has changed"
assert accuracy > 0.9
EOF
