#!/usr/bin/env bash
# datasets 5.2.0: after `load_state_dict`, each later pass over a stream begins at the loaded position too.
#
# Expected: the state resumes the pass in which it was taken. The next epoch reads the whole dataset.
# What happens: the position stays with the stream. Each `for` loop over it starts from there again, so that a run
# resumed at sample 8 of 10 trains all further epochs on two samples, and one resumed at the end of an epoch gets no
# data at all. `set_epoch` with another number ends it; no message says so.
# Who is hit: loops without `set_epoch` over an IterableDataset (it is thought of as needed for shuffling only),
# resumed by its state.
# The way round: `stream.set_epoch(epoch)` before each pass.

set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
unset PYTHONPATH
export CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1

python3 -m venv venv
packages=(numpy==2.4.6 datasets==5.2.0)
if command -v uv > uv.txt; then
    uv pip install --quiet --python venv/bin/python "${packages[@]}"
else
    venv/bin/pip install --quiet "${packages[@]}"
fi

export HF_HUB_OFFLINE=1 HF_HOME="$folder/home"
venv/bin/python -W ignore - << 'EOF'
import datasets
from datasets import IterableDataset


def numbers():
    for value in range(10):
        yield {"x": value}


def new():
    return IterableDataset.from_generator(numbers)


def read(stream):
    return [example["x"] for example in stream]


def state_after(count):
    stream = new()
    for seen, _ in enumerate(stream, start=1):
        if seen == count:
            return stream.state_dict()


print("datasets", datasets.__version__)
middle, end, counted = new(), new(), new()
for stream, count in ((middle, 8), (end, 10), (counted, 8)):
    stream.load_state_dict(state_after(count))
passes = [read(middle) for _ in range(3)]
passes_at_end = [read(end) for _ in range(3)]
with_epochs = []
for epoch in range(3):
    counted.set_epoch(epoch)
    with_epochs.append(read(counted))
print("state after 8 of 10, three passes: ", passes)
print("state after 10 of 10, three passes:", passes_at_end)
print("after 8 of 10, with set_epoch:     ", with_epochs)
assert passes == 3 * [[8, 9]], "the behaviour has changed"
assert passes_at_end == 3 * [[]], "the behaviour has changed"
assert with_epochs == [[8, 9], list(range(10)), list(range(10))]
EOF
