#!/usr/bin/env bash
# transformers 5.24.0: `label_smoothing_factor` also smooths the loss of the evaluation.
#
# Expected: label smoothing regularises training, and `eval_loss` is the cross entropy, comparable with that of a run
# without it.
# What happens: `evaluate()` computes its loss with the same smoother. For a model that is sure and right it is three
# times as large here. Runs with another factor cannot be compared, exp(eval_loss) is no perplexity, and
# `load_best_model_at_end`, which looks at `eval_loss` by default, may choose another checkpoint.
# Who is hit: searches over the factor, and whoever reports `eval_loss` or perplexity of such runs.
# The way round: compute the cross entropy in `compute_metrics`, and name it in `metric_for_best_model`.

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
venv/bin/python -W ignore - << 'EOF'
import torch
import transformers
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments

class Model(PreTrainedModel):
    config_class = PretrainedConfig

    def __init__(self):
        super().__init__(PretrainedConfig())
        self.scale = nn.Parameter(torch.ones(1))
        self.post_init()

    def forward(self, x, labels=None):
        logits = self.scale * x
        return {"logits": logits} if labels is None else {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


logits = [[3.0, 0.0, 0.0], [0.0, 3.0, 0.0]]
data = [{"x": torch.tensor(logits[i % 2]), "labels": torch.tensor(i % 2)} for i in range(8)]


def eval_loss(**options):
    arguments = TrainingArguments("out", use_cpu=True, report_to="none", disable_tqdm=True, **options)
    trainer = Trainer(Model(), arguments, eval_dataset=data)
    with torch.no_grad():
        trainer.model.scale.fill_(1.0)
    return trainer.evaluate()["eval_loss"]


plain, smoothed = eval_loss(), eval_loss(label_smoothing_factor=0.1)
expected = nn.functional.cross_entropy(torch.tensor(logits), torch.tensor([0, 1])).item()
print("torch", torch.__version__, "transformers", transformers.__version__)
print("cross entropy by torch:                 ", round(expected, 4))
print("eval_loss:                              ", round(plain, 4))
print("eval_loss, label_smoothing_factor=0.1:  ", round(smoothed, 4))
assert abs(plain - expected) < 1e-5
assert smoothed > 2 * plain, "the behaviour has changed"
EOF
