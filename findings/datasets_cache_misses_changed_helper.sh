#!/usr/bin/env bash
# datasets 5.2.0: `map` takes its result from the cache after a function was changed that the mapped function calls.
#
# Expected: by its documentation, the cache is keyed by a hash of the dataset and of the function, so that a changed
# function is computed anew.
# What happens: functions of imported modules are hashed by their names. If the body of a helper in another file of
# the project changes (a tokenisation, a normalisation), the hash is the same, and the data of the old version comes
# back, silently. A change of the mapped function itself, in the script, is seen.
# Who is hit: projects whose scripts import their preprocessing from a module. One trains on data of code that is no
# longer there.
# The way round: `load_from_cache_file=False` or `dataset.cleanup_cache_files()` after such a change, or a version
# number of the helper among `fn_kwargs`, which are part of the hash.

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
cat > script.py << 'EOF'
import sys

import datasets
import helpers

datasets.disable_progress_bars()


def scale(example, version=0):
    return {"y": helpers.scaled(example["x"])}


arguments = {"fn_kwargs": {"version": int(sys.argv[1])}} if len(sys.argv) > 1 else {}
print(datasets.load_from_disk("data").map(scale, **arguments)["y"][:])
EOF
venv/bin/python -c "import datasets; print('datasets', datasets.__version__)"
venv/bin/python -c "import datasets; datasets.Dataset.from_dict({'x': [1, 2, 3]}).save_to_disk('data')" > saving.txt 2>&1
printf 'def scaled(value):\n    return value\n' > helpers.py
first=$(venv/bin/python -B script.py)
printf 'def scaled(value):\n    return value * 100\n' > helpers.py
second=$(venv/bin/python -B script.py)
keyed=$(venv/bin/python -B script.py 1)
sed -i 's/return {"y"/return {"z": 0, "y"/' script.py
edited=$(venv/bin/python -B script.py)
echo "helper returns value:                            $first"
echo "helper returns value * 100:                      $second"
echo "the same helper, a version in fn_kwargs:         $keyed"
echo "the same helper, the mapped function is changed: $edited"
[ "$first" = "[1, 2, 3]" ]
[ "$second" = "[1, 2, 3]" ] || { echo "the behaviour has changed"; exit 1; }
[ "$keyed" = "[100, 200, 300]" ]
[ "$edited" = "[100, 200, 300]" ]
