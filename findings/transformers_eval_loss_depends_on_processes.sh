#!/usr/bin/env bash
# transformers 5.24.0: `eval_loss` of the same model and data differs between one process and two.
#
# Expected: the mean loss of the evaluation set, however many processes compute it. Metrics of `compute_metrics` are
# exact: what was added to fill the last batches is cut off before.
# What happens: the loss of each batch is repeated once for each of its samples, gathered, and cut to the length of
# the dataset. With two processes the last batch is filled up with samples of the first one, whose losses are averaged
# into it, and the cut removes whole entries. Here ten samples with losses 0 (eight) and 10 (two) give 2.0 and 1.333.
# Who is hit: whoever compares runs on different numbers of GPUs, or picks the best checkpoint by `eval_loss` on small
# evaluation sets.
# The way round: compute the loss in `compute_metrics` from the gathered logits, or choose a batch size that divides
# the set evenly among the processes.

set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
unset PYTHONPATH
export CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1

python3 -m venv venv
packages=(torch==2.13.0 numpy==2.4.6 transformers==5.24.0 accelerate==1.15.0)
if command -v uv > uv.txt; then
    uv pip install --quiet --python venv/bin/python "${packages[@]}"
else
    venv/bin/pip install --quiet "${packages[@]}"
fi

export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error
cat > program.py << 'EOF'
import torch
import transformers
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments


class Model(PreTrainedModel):
    config_class = PretrainedConfig

    def __init__(self):
        super().__init__(PretrainedConfig())
        self.weight = nn.Parameter(torch.ones(1))
        self.post_init()

    def forward(self, labels):
        return {"loss": labels.mean() + 0 * self.weight.sum(), "logits": labels}


data = [{"labels": torch.tensor(value)} for value in 8 * [0.0] + 2 * [10.0]]
options = {"per_device_eval_batch_size": 3, "use_cpu": True, "report_to": "none", "disable_tqdm": True}
arguments = TrainingArguments("out", **options)
trainer = Trainer(
    Model(),
    arguments,
    eval_dataset=data,
    compute_metrics=lambda prediction: {"exact": float(prediction.label_ids.mean())},
)
metrics = trainer.evaluate()
if arguments.process_index == 0:
    print(round(metrics["eval_loss"], 3), round(metrics["eval_exact"], 3))
EOF
run=(venv/bin/torchrun --standalone --local-addr=127.0.0.1)
one=$("${run[@]}" --nproc-per-node 1 program.py 2> one.txt | tail -n 1) || { cat one.txt; exit 1; }
two=$("${run[@]}" --nproc-per-node 2 program.py 2> two.txt | tail -n 1) || { cat two.txt; exit 1; }
venv/bin/python -W ignore -c "import transformers; print('transformers', transformers.__version__)"
echo "one process:   eval_loss and the mean in compute_metrics: $one"
echo "two processes: eval_loss and the mean in compute_metrics: $two"
[ "$one" = "2.0 2.0" ]
[ "$two" = "1.333 2.0" ] || { echo "the behaviour has changed"; exit 1; }
