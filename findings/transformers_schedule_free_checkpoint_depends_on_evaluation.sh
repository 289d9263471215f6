#!/usr/bin/env bash
# transformers 5.24.0 with schedulefree 1.4.1: a checkpoint has the averaged weights only if an evaluation came just
# before it.
#
# Expected: `optim="schedule_free_adamw"` saves the weights that the optimizer is made for, its average (those of
# `optimizer.eval()`), or always the others. To evaluate should change nothing.
# What happens: the Trainer calls `optimizer.train()` before each training step and `optimizer.eval()` before an
# evaluation, and before saving nothing. With an evaluation at the same step the file has the averaged weights;
# without one it has those at which the next gradient is taken, which are not meant for use.
# Who is hit: whoever loads `model.safetensors` of a run without evaluations, or with other steps for saving than for
# evaluating: a worse model than the training curve showed.
# The way round: the same `eval_steps` and `save_steps`.

set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
unset PYTHONPATH
export CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1

python3 -m venv venv
packages=(torch==2.13.0 numpy==2.4.6 transformers==5.24.0 accelerate==1.15.0 schedulefree==1.4.1 safetensors==0.8.0)
if command -v uv > uv.txt; then
    uv pip install --quiet --python venv/bin/python "${packages[@]}"
else
    venv/bin/pip install --quiet "${packages[@]}"
fi

export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error
venv/bin/python -W ignore - << 'EOF'
from importlib.metadata import version

import torch
from safetensors.torch import load_file
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments, set_seed


class Model(PreTrainedModel):
    config_class = PretrainedConfig

    def __init__(self):
        super().__init__(PretrainedConfig())
        self.linear = nn.Linear(4, 1)
        self.post_init()

    def forward(self, x, labels):
        outputs = self.linear(x)
        return {"loss": nn.functional.mse_loss(outputs[:, 0], labels), "logits": outputs}


torch.manual_seed(0)
data = [{"x": torch.randn(4), "labels": torch.randn(())} for _ in range(40)]


def which(folder, **options):
    set_seed(0)
    arguments = TrainingArguments(
        folder,
        optim="schedule_free_adamw",
        lr_scheduler_type="constant",
        learning_rate=0.1,
        max_steps=5,
        save_strategy="steps",
        save_steps=5,
        per_device_train_batch_size=8,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        **options,
    )
    trainer = Trainer(Model(), arguments, train_dataset=data, eval_dataset=data)
    trainer.train()
    saved = load_file(f"{folder}/checkpoint-5/model.safetensors")["linear.weight"]
    optimizer = trainer.optimizer.optimizer if hasattr(trainer.optimizer, "optimizer") else trainer.optimizer
    weight = trainer.accelerator.unwrap_model(trainer.model).linear.weight
    optimizer.train()
    training = weight.detach().clone()
    optimizer.eval()
    averaged = weight.detach().clone()
    distances = {"training": (saved - training).abs().max().item(), "averaged": (saved - averaged).abs().max().item()}
    print({name: round(distance, 6) for name, distance in distances.items()})
    return min(distances, key=distances.get), max(distances.values())


print(*[f"{name} {version(name)}" for name in ("torch", "transformers", "schedulefree")])
print("largest difference of the saved weights from those of each mode, without and with an evaluation:")
alone, distance = which("alone", eval_strategy="no")
evaluated, _ = which("evaluated", eval_strategy="steps", eval_steps=5)
print("saved without an evaluation:", alone)
print("saved after an evaluation:  ", evaluated)
assert distance > 1e-3
assert (alone, evaluated) == ("training", "averaged"), "the behaviour has changed"
EOF
