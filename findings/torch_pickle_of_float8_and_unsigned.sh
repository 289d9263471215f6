#!/usr/bin/env bash
# torch 2.13.0: tensors of float8, complex32 and the wide unsigned integers do not survive a pickle, nor
# `all_gather_object`.
#
# Expected: what `torch.save`, `copy.deepcopy` and `dist.all_gather_object` take as a float32 tensor, they take in
# each dtype.
# What happens: `torch.save` and `deepcopy` work. Reading a pickle of the same tensor raises an AttributeError about
# `UntypedStorage`, which names neither the tensor nor its dtype; with it `all_gather_object` fails, for the whole
# nested object in which one such tensor lies.
# Who is hit: whoever sends the state of quantised weights, uint16 token ids or uint64 hashes from rank to rank, or
# puts them into a cache that pickles.
# The way round: send `tensor.view(torch.uint8)` with the dtype, and view it back; or bytes made by `torch.save`.

set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
unset PYTHONPATH
export CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1

python3 -m venv venv
packages=(torch==2.13.0 numpy==2.4.6)
if command -v uv > uv.txt; then
    uv pip install --quiet --python venv/bin/python "${packages[@]}"
else
    venv/bin/pip install --quiet "${packages[@]}"
fi

cat > program.py << 'EOF'
import copy
import io
import pickle

import torch
import torch.distributed as dist

dist.init_process_group("gloo")


def outcome(call):
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "works"


found = {}
for dtype in (torch.float8_e4m3fn, torch.complex32, torch.uint16, torch.uint32, torch.uint64, torch.bfloat16, torch.int16):
    tensor = torch.ones(8).to(dtype)
    found[str(dtype)] = [
        outcome(lambda: torch.save(tensor, io.BytesIO())),
        outcome(lambda: copy.deepcopy(tensor)),
        outcome(lambda: pickle.loads(pickle.dumps(tensor))),
        outcome(lambda: dist.all_gather_object([None, None], {"weights": tensor})),
    ]
sent = [None, None]
dist.all_gather_object(sent, (torch.full((8,), dist.get_rank()).to(torch.float8_e4m3fn).view(torch.uint8), torch.float8_e4m3fn))
views = [data.view(dtype).float().mean().item() for data, dtype in sent]
if dist.get_rank() == 0:
    print("torch", torch.__version__, "torch.save, deepcopy, pickle, all_gather_object:")
    for name, outcomes in found.items():
        print(f"  {name:20}", *outcomes)
    print("float8 sent as uint8 and viewed back:", views)
for name, outcomes in found.items():
    refused = name not in ("torch.bfloat16", "torch.int16")
    expected = ["works", "works"] + 2 * ["AttributeError" if refused else "works"]
    assert outcomes == expected, f"the behaviour of {name} has changed"
assert views == [0.0, 1.0]
dist.destroy_process_group()
EOF
venv/bin/torchrun --standalone --local-addr=127.0.0.1 --nproc-per-node 2 program.py 2> messages.txt || { cat messages.txt; exit 1; }
