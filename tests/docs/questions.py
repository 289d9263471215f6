"""What users of a trainer look for, which page answers it, and what they would type into a search box to find it."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

__all__ = ["QUESTIONS", "Question"]


@dataclass(frozen=True)
class Question:
    """A question, the place of its answer (`page#anchor of a heading`, or a whole page), and searches for it."""

    text: str
    answer: str
    typed: str

    @override
    def __str__(self) -> str:
        return self.text

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
    Question("How do I log to W&B?", "logging", "wandb, weights and biases, w&b, tensorboard, mlflow, logging"),
    Question(
        "How do I log images, text, a confusion matrix, an artifact?",
        "logging#images-text-tables-artifacts",
        "log images, confusion matrix, artifact",
    ),
    Question(
        "How do I use a Hugging Face dataset?",
        "data#hugging-face-datasets",
        "hugging face dataset, huggingface datasets, load_dataset",
    ),
    Question(
        "How do I use torchvision's ImageFolder?",
        "data#images-torchvisions-imagefolder",
        "torchvision, imagefolder, image dataset",
    ),
    Question("How do I profile?", "speed-and-memory#profiling", "profiling, profiler, torch profiler"),
    Question("How do I debug NaN?", "troubleshooting#nan-and-invalid-losses", "nan, nan loss, debug nan"),
    Question("How do I use torch.compile?", "speed-and-memory#torchcompile", "torch.compile, compile"),
    Question(
        "How much memory will it take?",
        "speed-and-memory#how-much-memory-a-run-takes",
        "memory, how much memory, gpu memory",
    ),
    Question(
        "CUDA out of memory, what now?", "speed-and-memory#cuda-out-of-memory", "out of memory, cuda out of memory, oom"
    ),
    Question(
        "How do I use gradient (activation) checkpointing?",
        "speed-and-memory#activation-checkpointing",
        "gradient checkpointing, activation checkpointing",
    ),
    Question("How do I use LoRA?", "finetuning#lora", "lora, peft, adapter"),
    Question(
        "How do I use 8-bit or fused optimizers?", "how-do-i#optimizer-and-schedule", "8-bit optimizer, bitsandbytes"
    ),
    Question("How do I train on two GPUs?", "launching", "multi gpu, multiple gpus, two gpus, ddp, data parallel"),
    Question(
        "How do I train on several nodes?", "several-machines", "multi node, multiple nodes, torchrun, several machines"
    ),
    Question("How do I use Slurm?", "several-machines#slurm", "slurm, sbatch"),
    Question("How do I use Kubernetes or spot instances?", "several-machines#kubernetes", "kubernetes, kubeflow, k8s"),
    Question("How do I use Ray, SageMaker, Modal or Vertex?", "how-do-i#hardware-and-scale", "sagemaker, ray, vertex"),
    Question("Is there a Docker image?", "install#docker", "docker, dockerfile"),
    Question("How do I train in Colab or Jupyter?", "install#colab-and-jupyter-notebooks", "colab, jupyter, notebook"),
    Question(
        "Does it run on Apple MPS, Windows or ROCm?",
        "install#supported-versions-and-platforms",
        "mps, windows, rocm, amd gpu, apple silicon",
    ),
    Question(
        "Does it run on TPUs, with DeepSpeed or Megatron?",
        "beyond-ddp#ddp-fsdp2-deepspeed-megatron-tpu-compilation",
        "deepspeed, megatron, tpu",
    ),
    Question("How do I train a model larger than a GPU?", "sharding", "fsdp, fsdp2, shard model, large model"),
    Question("How do I resume after a crash?", "resuming", "resume, resume training, resume after crash"),
    Question(
        "How do I keep the top-k checkpoints?",
        "saving-and-loading#keep-the-best-model",
        "top k checkpoints, best checkpoint, save best model",
    ),
    Question("How do I stop after N hours?", "how-do-i#saving-resuming-exporting", "stop after hours"),
    Question(
        "How do I stop early?", "callbacks#keep-the-best-model-and-stop-early", "early stopping, stop early, patience"
    ),
    Question(
        "How do I warm up, then decay by a cosine?",
        "schedulers#in-a-training-run",
        "cosine schedule, warmup, learning rate scheduler, lr scheduler",
    ),
    Question(
        "Is there an LR finder?",
        "schedulers#finding-a-learning-rate",
        "lr finder, find learning rate, learning rate finder",
    ),
    Question(
        "How do I use layer-wise learning rates, or freeze layers?",
        "finetuning#a-learning-rate-for-each-layer-group",
        "layer-wise learning rate, discriminative learning rates, freeze layers, freezing",
    ),
    Question(
        "How do I exclude biases and norms from weight decay?",
        "finetuning#weight-decay-groups",
        "weight decay, weight decay bias, no weight decay",
    ),
    Question(
        "How do I set the effective batch size?",
        "run#effective-batch-size-gradient-accumulation",
        "effective batch size, gradient accumulation, accumulate gradients",
    ),
    Question("How do I use class weights?", "data#class-weights", "class weights, weighted loss, imbalanced classes"),
    Question(
        "How do I use MixUp or CutMix?", "data#mixup-cutmix-and-other-batch-augmentation", "mixup, cutmix, augmentation"
    ),
    Question(
        "How do I log several losses?",
        "metrics#logging-multiple-losses-multi-task",
        "log loss, multi-task, several losses, multiple losses",
    ),
    Question(
        "How do I train a GAN with two optimizers?",
        "own-loops#several-models-and-optimizers",
        "gan, two optimizers, multiple optimizers",
    ),
    Question(
        "How do I train by reinforcement learning?",
        "own-loops#several-updates-out-of-one-batch-bptt-rl-ppo",
        "reinforcement learning, rl, ppo, replay buffer",
    ),
    Question(
        "How do I train an RNN with truncated BPTT?",
        "own-loops#several-updates-out-of-one-batch-bptt-rl-ppo",
        "bptt, truncated bptt, rnn hidden state",
    ),
    Question(
        "How do I compute BLEU or ROUGE while evaluating?",
        "metrics#metrics-of-torchmetrics",
        "bleu, rouge, generation metrics",
    ),
    Question(
        "How do I search hyperparameters?", "hyperparameters", "hyperparameter search, hyperparameter tuning, optuna"
    ),
    Question("How do I use YAML or Hydra?", "hyperparameters#hydra", "hydra, yaml, yaml config, config file"),
    Question("How do I cross-validate?", "hyperparameters#cross-validation-k-fold", "cross validation, k-fold"),
    Question(
        "How do I evaluate before training?",
        "troubleshooting#sanity-check-evaluate-before-training",
        "sanity check, evaluate before training",
    ),
    Question(
        "How do I export to ONNX, and serve?",
        "saving-and-loading#torchexport-and-onnx",
        "onnx, export, torch.export, deploy",
    ),
    Question(
        "How do I push to the Hugging Face Hub?",
        "saving-and-loading#push-to-the-hugging-face-hub",
        "hugging face hub, push to hub",
    ),
    Question(
        "How do I load a Lightning .ckpt or a Trainer checkpoint?",
        "saving-and-loading#checkpoints-of-other-libraries",
        "lightning checkpoint, load ckpt",
    ),
    Question("How do I get deterministic runs?", "guarantees", "deterministic, reproducibility, seed, random seed"),
    Question(
        "How do I see tokens per second, MFU, GPU utilisation?",
        "speed-and-memory#tokens-per-second-mfu-gpu-utilization",
        "tokens per second, mfu, gpu utilization",
    ),
    Question("How do I test my callback or trainer?", "callbacks#test-your-own", "test callback, unit test, pytest"),
    Question(
        "How do I debug across ranks?",
        "launching#debugging-several-processes",
        "pdb, debugger, vs code, debug multiple gpus",
    ),
    Question(
        "Which versions are tested?",
        "install#supported-versions-and-platforms",
        "supported versions, python version, torch version, cuda version",
    ),
    Question("Where do I ask, or report a bug?", "how-do-i#start-and-data", "report bug, ask question, issues"),
)
