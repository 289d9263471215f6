#!/usr/bin/env bash
# transformers 5.24.0: a seeded DataCollatorForLanguageModeling masks the same tokens in each epoch if a worker loads
# the data.
#
# Expected: dynamic masking, as the collator is used for: each epoch hides other tokens. `seed` makes the run
# repeatable, with any number of workers.
# What happens: the collator makes its generator in its first batch. A DataLoader with workers starts them anew for
# each epoch, each with a fresh copy of the collator: the masks begin with the seed again, and each epoch has those of
# the first. Without workers, or with `persistent_workers=True`, they change.
# Who is hit: pre-training of masked language models with `seed` and `dataloader_num_workers=1` or more: static
# masking, which learns less, and nothing says so.
# The way round: `persistent_workers=True` (`dataloader_persistent_workers` of TrainingArguments), or no `seed` but
# `transformers.set_seed`.

set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
unset PYTHONPATH
export CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1

python3 -m venv venv
packages=(torch==2.13.0 numpy==2.4.6 tokenizers==0.23.3 transformers==5.24.0)
if command -v uv > uv.txt; then
    uv pip install --quiet --python venv/bin/python "${packages[@]}"
else
    venv/bin/pip install --quiet "${packages[@]}"
fi

export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error
venv/bin/python -W ignore - << 'EOF'
import torch
import transformers
from tokenizers import Tokenizer, models
from torch.utils.data import DataLoader
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

vocabulary = {word: number for number, word in enumerate(["[PAD]", "[MASK]", *"abcdefgh"])}
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="[PAD]")), pad_token="[PAD]", mask_token="[MASK]"
)
data = [{"input_ids": torch.randint(2, 10, (64,)).tolist()} for _ in range(16)]


def masks_change(seed=42, **options):
    torch.manual_seed(0)
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15, seed=seed)
    loader = DataLoader(data, batch_size=8, collate_fn=collator, **options)
    first, second = ([batch["labels"] != -100 for batch in loader] for _ in range(2))
    return not all(map(torch.equal, first, second))


if __name__ == "__main__":
    print("torch", torch.__version__, "transformers", transformers.__version__)
    cases = {
        "no workers": masks_change(),
        "one worker": masks_change(num_workers=1),
        "one persistent worker": masks_change(num_workers=1, persistent_workers=True),
        "one worker, without seed": masks_change(seed=None, num_workers=1),
    }
    for name, changed in cases.items():
        print(f"{name}: the masks of epoch 2 are", "others" if changed else "those of epoch 1")
    assert not cases.pop("one worker"), "the behaviour has changed"
    assert all(cases.values())
EOF
