"""Take the settings of a run from a YAML file and the command line, as typed dataclasses.

Each field is an option of the command line, and a YAML file is a list of such options. So an unknown setting or a value
of another type is refused wherever it comes from, and `--help` shows them all. The rest are arguments of the trainer:
it accumulates, clips, evaluates, saves, resumes, and reports to trackers. Copy `read_settings` and what it calls.

    python examples/train_from_config.py examples/train_from_config.yaml --optimizer.learning_rate=1e-3
    torchrun --nproc-per-node 2 examples/train_from_config.py examples/train_from_config.yaml
    accelerate launch --mixed_precision bf16 examples/train_from_config.py --model.hidden=64 --max_grad_norm=none

Started again with the same `exp_name`, it resumes. The last line that it prints:

    outputs/.../model has a loss of 0.4223 on the test digits
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import torch
import yaml
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Subset, TensorDataset, random_split

from pa_callbacks_extra import TrackerCallback
from pa_core import (
    DEFAULT_CALLBACKS,
    SaveTrainingStateCallback,
    StepBasedEvaluationCallback,
    Trainer,
    TrainerCallback,
)
from pa_core import TrainerPlaceholderValues as Placeholder

T = TypeVar("T")


@dataclass(frozen=True)
class ModelConfig:
    """The network."""

    hidden: int = 128


@dataclass(frozen=True)
class DataConfig:
    """How the samples are loaded."""

    batch_size: int = 32
    drop_last: bool = False


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW."""

    learning_rate: float = 1e-3
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_weight_decay: float = 0.01
    adam_epsilon: float = 1e-8


@dataclass(frozen=True)
class SchedulerConfig:
    """What becomes of the learning rate, after a linear warm-up."""

    name: Literal["constant", "linear", "cosine"] = "constant"
    num_warmup_steps: int = 0


@dataclass(frozen=True)
class TrainingConfig:
    """Everything that a run depends on."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    project_name: str = "digits"
    exp_name: str = "first"
    num_epochs: int = 5
    seed: int = 42
    gradient_accumulation_steps: int = 1
    mixed_precision: Literal["no", "bf16", "fp16", "as launched"] = "as launched"
    checkpoint_steps: int | None = None
    max_grad_norm: float | None = None
    clip_value: float | None = None
    report_to: str | None = None
    eval_steps: int | None = None


def read_settings(kind: type[T], arguments: Sequence[str] | None = None) -> T:
    """Return the settings of the command line, else those of the YAML file that it names, else the defaults."""
    parser = argparse.ArgumentParser(allow_abbrev=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, help="settings as YAML")
    for name, hint, default in settings_of(kind):
        choices = get_args(hint) if get_origin(hint) is Literal else None
        convert = str if choices else converter(hint)
        parser.add_argument(f"--{name}", type=convert, choices=choices, default=default, help=" ")
    given = sys.argv[1:] if arguments is None else arguments
    file: Path | None = parser.parse_args(given).file
    options = as_options({} if file is None else yaml.safe_load(file.read_text()) or {})
    return build(kind, vars(parser.parse_args([*options, *given])))


def settings_of(kind: Any, prefix: str = "") -> Iterator[tuple[str, Any, object]]:
    """Yield name, type and default of each field; those of a field that is a dataclass are called `field.name`."""
    for one in fields(kind):
        name, hint = prefix + one.name, get_type_hints(kind)[one.name]
        yield from settings_of(hint, f"{name}.") if is_section(hint) else [(name, hint, one.default)]


def is_section(hint: object) -> bool:
    """Return whether the type of a field is a dataclass."""
    return is_dataclass(hint)


def converter(hint: Any) -> Callable[[str], object]:
    """Return what makes a value of the type of a field, such as `int | None`, from text."""
    kinds: tuple[Any, ...] = get_args(hint) or (hint,)

    def convert(text: str) -> object:
        if NoneType in kinds and text.lower() in {"none", "null"}:
            return None
        return ("false", "true").index(text.lower()) == 1 if kinds[0] is bool else kinds[0](text)

    convert.__name__ = kinds[0].__name__  # in messages of argparse: "invalid int value"
    return convert


def as_options(content: object, name: str = "") -> Iterator[str]:
    """Yield the content of a YAML file as options of the command line."""
    if not isinstance(content, Mapping):
        yield f"--{name}={content}"
        return
    for key, value in cast("Mapping[str, object]", content).items():
        yield from as_options(value, f"{name}.{key}" if name else key)


def build(kind: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """Return a dataclass with the values of its fields and of the dataclasses in it."""
    return kind(
        **{
            name: build(hint, values, f"{prefix}{name}.") if is_section(hint) else values[prefix + name]
            for name, hint in get_type_hints(kind).items()
        }
    )


def load_data() -> list[Subset[tuple[Tensor, ...]]]:
    """Return the training, evaluation and test parts of the digits that come with scikit-learn."""
    digits: Any = load_digits()  # pyright: ignore[reportUnknownVariableType]  # it has no types
    dataset = TensorDataset(torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target))
    return random_split(dataset, [1200, 297, 300], generator=torch.Generator().manual_seed(0))


def create_scheduler(optimizer: torch.optim.Optimizer, config: SchedulerConfig, num_updates: int) -> LambdaLR:
    """Return the scheduler that the settings describe."""

    def factor(update: int) -> float:
        if update < config.num_warmup_steps:
            return (update + 1) / (config.num_warmup_steps + 1)
        progress = (update - config.num_warmup_steps) / (num_updates - config.num_warmup_steps)
        return {"constant": 1.0, "linear": 1 - progress, "cosine": (1 + math.cos(math.pi * progress)) / 2}[config.name]

    return LambdaLR(optimizer, factor)


def main(config: TrainingConfig) -> None:
    """Train as the settings say, save the model, and print its loss on the test digits."""
    torch.manual_seed(config.seed)  # pyright: ignore[reportUnknownMemberType]  # torch leaves it untyped
    train_dataset, eval_dataset, test_dataset = load_data()
    hidden = config.model.hidden
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    adam = config.optimizer
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=adam.learning_rate,
        betas=(adam.adam_beta1, adam.adam_beta2),
        eps=adam.adam_epsilon,
        weight_decay=adam.adam_weight_decay,
    )
    folder = Path("outputs", config.exp_name)
    callbacks: list[TrainerCallback] = []
    if config.eval_steps is not None:
        callbacks.append(StepBasedEvaluationCallback(config.eval_steps))
    if config.report_to is not None:
        callbacks.append(TrackerCallback(config.report_to, config.project_name, config=asdict(config)))
    save_states = SaveTrainingStateCallback(folder / "states", 1, config.checkpoint_steps, max_checkpoints=3)
    trainer = Trainer(
        model,
        nn.CrossEntropyLoss(),
        optimizer,
        callbacks=[*callbacks, *DEFAULT_CALLBACKS, save_states],
        mixed_precision=None if config.mixed_precision == "as launched" else config.mixed_precision,
    )
    trainer.train(
        train_dataset,
        num_epochs=config.num_epochs,
        eval_dataset=eval_dataset,
        per_device_batch_size=config.data.batch_size,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        gradient_clip_norm=config.max_grad_norm,
        gradient_clip_value=config.clip_value,
        create_scheduler_fn=partial(
            create_scheduler,
            config=config.scheduler,
            num_updates=Placeholder.NUM_EPOCHS * Placeholder.NUM_UPDATE_STEPS_PER_EPOCH,
        ),
        train_dataloader_kwargs={"drop_last": config.data.drop_last},
        resume_from=folder / "states",
        resume_missing="start",
    )
    trainer.evaluate(test_dataset, per_device_batch_size=64)
    loss = float(trainer.run_history.get_latest_metric("evaluation_loss"))
    trainer.save_model(folder / "model")
    trainer.print(f"{folder / 'model'} has a loss of {loss:.4f} on the test digits")


if __name__ == "__main__":
    main(read_settings(TrainingConfig))
