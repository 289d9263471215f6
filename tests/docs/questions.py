"""What users of a trainer look for, which page answers it, and what they would type into a search box to find it."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

__all__ = ["QUESTIONS", "Question"]


@dataclass(frozen=True)
class Question:
    """The place of an answer (`page#anchor of a heading`, or a whole page), and what people type who look for it."""

    answer: str
    typed: str

    @override
    def __str__(self) -> str:
        return f"{self.typed} -> {self.answer}"

    @property
    def page(self) -> str:
        """The page of the answer, as the site names it."""
        return self.answer.partition("#")[0]

    @property
    def anchor(self) -> str:
        """The anchor of the heading, nothing if the whole page is the answer."""
        return self.answer.partition("#")[2]

    @property
    def searches(self) -> list[str]:
        """Words that people type."""
        return self.typed.split(", ")


QUESTIONS = (
    Question("logging", "wandb, weights and biases, w&b, tensorboard, mlflow, logging"),
    Question("logging#images-text-tables-artifacts", "log images, confusion matrix, artifact"),
    Question("data#hugging-face-datasets", "hugging face dataset, huggingface datasets, load_dataset"),
    Question("data#images-torchvisions-imagefolder", "torchvision, imagefolder, image dataset"),
    Question("speed-and-memory#profiling", "profiling, profiler, torch profiler"),
    Question("troubleshooting#nan-and-invalid-losses", "nan, nan loss, debug nan"),
    Question("speed-and-memory#torchcompile", "torch.compile, compile"),
    Question("speed-and-memory#how-much-memory-a-run-takes", "memory, how much memory, gpu memory"),
    Question("speed-and-memory#cuda-out-of-memory", "out of memory, cuda out of memory, oom"),
    Question("speed-and-memory#activation-checkpointing", "gradient checkpointing, activation checkpointing"),
    Question("finetuning#lora", "lora, peft, adapter"),
    Question("how-do-i#optimizer-and-schedule", "8-bit optimizer, bitsandbytes"),
    Question("launching", "multi gpu, multiple gpus, two gpus, ddp, data parallel"),
    Question("several-machines", "multi node, multiple nodes, torchrun, several machines"),
    Question("several-machines#slurm", "slurm, sbatch"),
    Question("several-machines#kubernetes", "kubernetes, kubeflow, k8s"),
    Question("how-do-i#hardware-and-scale", "sagemaker, ray, vertex"),
    Question("install#docker", "docker, dockerfile"),
    Question("install#colab-and-jupyter-notebooks", "colab, jupyter, notebook"),
    Question("install#supported-versions-and-platforms", "mps, windows, rocm, amd gpu, apple silicon"),
    Question("beyond-ddp#ddp-fsdp2-deepspeed-megatron-tpu-compilation", "deepspeed, megatron, tpu"),
    Question("sharding", "fsdp, fsdp2, shard model, large model"),
    Question("resuming", "resume, resume training, resume after crash"),
    Question("saving-and-loading#keep-the-best-model", "top k checkpoints, best checkpoint, save best model"),
    Question("how-do-i#saving-resuming-exporting", "stop after hours"),
    Question("callbacks#keep-the-best-model-and-stop-early", "early stopping, stop early, patience"),
    Question("schedulers#in-a-training-run", "cosine schedule, warmup, learning rate scheduler, lr scheduler"),
    Question("schedulers#finding-a-learning-rate", "lr finder, find learning rate, learning rate finder"),
    Question(
        "finetuning#a-learning-rate-for-each-layer-group",
        "layer-wise learning rate, discriminative learning rates, freeze layers, freezing",
    ),
    Question("finetuning#weight-decay-groups", "weight decay, weight decay bias, no weight decay"),
    Question(
        "run#effective-batch-size-gradient-accumulation",
        "effective batch size, gradient accumulation, accumulate gradients",
    ),
    Question("data#class-weights", "class weights, weighted loss, imbalanced classes"),
    Question("data#mixup-cutmix-and-other-batch-augmentation", "mixup, cutmix, augmentation"),
    Question("metrics#logging-multiple-losses-multi-task", "log loss, multi-task, several losses, multiple losses"),
    Question("own-loops#several-models-and-optimizers", "gan, two optimizers, multiple optimizers"),
    Question(
        "own-loops#several-updates-out-of-one-batch-bptt-rl-ppo", "reinforcement learning, rl, ppo, replay buffer"
    ),
    Question("own-loops#several-updates-out-of-one-batch-bptt-rl-ppo", "bptt, truncated bptt, rnn hidden state"),
    Question("metrics#metrics-of-torchmetrics", "bleu, rouge, generation metrics"),
    Question("hyperparameters", "hyperparameter search, hyperparameter tuning, optuna"),
    Question("hyperparameters#hydra", "hydra, yaml, yaml config, config file"),
    Question("hyperparameters#cross-validation-k-fold", "cross validation, k-fold"),
    Question("troubleshooting#sanity-check-evaluate-before-training", "sanity check, evaluate before training"),
    Question("saving-and-loading#torchexport-and-onnx", "onnx, export, torch.export, deploy"),
    Question("saving-and-loading#push-to-the-hugging-face-hub", "hugging face hub, push to hub"),
    Question("saving-and-loading#checkpoints-of-other-libraries", "lightning checkpoint, load ckpt"),
    Question("guarantees", "deterministic, reproducibility, seed, random seed"),
    Question("speed-and-memory#tokens-per-second-mfu-gpu-utilization", "tokens per second, mfu, gpu utilization"),
    Question("callbacks#test-your-own", "test callback, unit test, pytest"),
    Question("launching#debugging-several-processes", "pdb, debugger, vs code, debug multiple gpus"),
    Question(
        "install#supported-versions-and-platforms", "supported versions, python version, torch version, cuda version"
    ),
    Question("how-do-i#start-and-data", "report bug, ask question, issues"),
)
