#!/usr/bin/env bash
# webdataset 1.0.2: `shuffle` is either not repeatable, or the same in each epoch.
#
# Expected: `WebDataset(urls, shardshuffle=4, seed=0).shuffle(10)`, with the seeds of Python, NumPy and torch set,
# gives the same order in two runs and another one in each epoch.
# What happens: the sample shuffle without a `seed` of its own seeds itself from the process and the clock, whatever
# was seeded: two runs differ. With `shuffle(10, seed=0)` the two runs agree, and the shuffle begins anew in each
# pass: so does that of the shards, and all epochs have one order.
# Who is hit: whoever wants repeatable runs; those who found the first half and pass a seed train on one order for
# ever.
# The way round: build the pipeline for each epoch, with `seed=epoch` for both shuffles.

set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
unset PYTHONPATH
export CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1

python3 -m venv venv
packages=(torch==2.13.0 numpy==2.4.6 webdataset==1.0.2)
if command -v uv > uv.txt; then
    uv pip install --quiet --python venv/bin/python "${packages[@]}"
else
    venv/bin/pip install --quiet "${packages[@]}"
fi

cat > program.py << 'EOF'
import random
import sys

import numpy as np
import torch
import webdataset as wds

random.seed(0), np.random.seed(0), torch.manual_seed(0)
urls = [f"{shard}.tar" for shard in range(4)]
options = {"seed": 0} if "seed" in sys.argv else {}
stream = wds.WebDataset(urls, shardshuffle=4, seed=0).shuffle(10, **options).decode()
for _ in range(2):
    print(*[sample["cls"] for sample in stream])
EOF
venv/bin/python -W ignore - << 'EOF'
import webdataset as wds

for shard in range(4):
    with wds.TarWriter(f"{shard}.tar") as tar:
        for number in range(5 * shard, 5 * shard + 5):
            tar.write({"__key__": f"{number:02d}", "cls": number})
print("webdataset", wds.__version__)
EOF
for run in 1 2; do
    venv/bin/python -W ignore program.py > "plain_$run.txt"
    venv/bin/python -W ignore program.py seed > "seed_$run.txt"
done
echo "shuffle(10), two runs, first epoch:"
head -qn 1 plain_1.txt plain_2.txt
echo "shuffle(10, seed=0), one run, two epochs:"
cat seed_1.txt
! cmp -s plain_1.txt plain_2.txt || { echo "the behaviour has changed"; exit 1; }
cmp seed_1.txt seed_2.txt
[ "$(sort -u seed_1.txt | wc -l)" = 1 ] || { echo "the behaviour has changed"; exit 1; }
