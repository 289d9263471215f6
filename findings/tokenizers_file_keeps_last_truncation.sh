#!/usr/bin/env bash
# transformers 5.24.0 with tokenizers 0.23.3: a saved tokenizer cuts off texts as the last call before saving did.
#
# Expected: `truncation=True, max_length=4` are arguments of one call. `save_pretrained` stores the tokenizer, and
# what reads its tokenizer.json encodes whole texts unless told otherwise.
# What happens: the call sets the truncation and the padding of the tokenizer below, and `save_pretrained` writes both
# into tokenizer.json. `tokenizers.Tokenizer.from_file`, used to prepare data fast and to serve models, then cuts each
# text to the length of that last call and pads it, silently. transformers itself sets both anew in each call and
# shows nothing of it.
# Who is hit: whoever saves the tokenizer after encoding something (each training script does), and reads the file
# with tokenizers.
# The way round: after loading, `no_truncation()` and `no_padding()`; or save a tokenizer that has encoded nothing.

set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
unset PYTHONPATH
export CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1

python3 -m venv venv
packages=(tokenizers==0.23.3 transformers==5.24.0 numpy==2.4.6)
if command -v uv > uv.txt; then
    uv pip install --quiet --python venv/bin/python "${packages[@]}"
else
    venv/bin/pip install --quiet "${packages[@]}"
fi

export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error
venv/bin/python - << 'EOF'
import tokenizers
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

words = Tokenizer(models.WordLevel({"[PAD]": 0, "a": 1, "b": 2}, unk_token="[PAD]"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]")
text = "a b a b a b a b"

tokenizer.save_pretrained("before")
tokenizer(text, truncation=True, max_length=4, padding="max_length")
tokenizer.save_pretrained("after")
before = Tokenizer.from_file("before/tokenizer.json").encode(text).ids
after = Tokenizer.from_file("after/tokenizer.json").encode(text).ids
again = PreTrainedTokenizerFast.from_pretrained("after")(text).input_ids
print("transformers", transformers.__version__, "tokenizers", tokenizers.__version__)
print("saved before the call, read with tokenizers:  ", before)
print("saved after the call, read with tokenizers:   ", after)
print("saved after the call, read with transformers: ", again)
assert before == again == [1, 2, 1, 2, 1, 2, 1, 2]
assert after == [1, 2, 1, 2], "the behaviour has changed"
EOF
