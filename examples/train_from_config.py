"""Configure a run from YAML and the command line.

Each argument is a YAML file, or a setting `--NAME=VALUE` with a YAML value. Later ones win. Unknown names and wrong
types are errors. Run it again, and it resumes. Delete outputs/train_from_config to start over.

    python examples/train_from_config.py examples/train_from_config.yaml --optimizer.lr=1e-2 --output=here
    torchrun --nproc-per-node 2 examples/train_from_config.py examples/train_from_config.yaml
    accelerate launch --mixed_precision bf16 examples/train_from_config.py --epochs=3 --max_grad_norm=null

The last line that it prints:

    outputs/train_from_config/model has a loss of 0.1123 on the evaluation digits
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_type_hints

import torch
import yaml
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset, random_split

from pa_core import DEFAULT_CALLBACKS, SaveTrainingStateCallback, Trainer
from pa_schedulers import CosineLrScheduler

T = TypeVar("T")


@dataclass(frozen=True)
class OptimizerSettings:
    """Arguments of AdamW."""

    lr: float = 3e-3
    weight_decay: float = 0.01


@dataclass(frozen=True)
class Settings:
    """Everything that a run depends on."""

    optimizer: OptimizerSettings = OptimizerSettings()
    hidden: int = 128
    activation: Literal["ReLU", "GELU"] = "ReLU"
    batch_size: int = 32
    epochs: int = 5
    warmup_epochs: int = 0
    accumulation_steps: int = 1
    save_every_n_epochs: int = 1
    max_grad_norm: float | None = None
    seed: int = 42
    output: str = "outputs/train_from_config"


def updated(settings: T, values: dict[str, Any], prefix: str = "") -> T:
    """Return the settings with these values in them; the names of those in a section are `section.name`."""
    fields, hints = dict(vars(settings)), get_type_hints(type(settings))
    for key, value in values.items():
        name, _, inner = str(key).partition(".")
        if name not in fields:
            raise SystemExit(f"{prefix}{name} is no setting: there are {', '.join(prefix + one for one in fields)}")
        new: Any = {inner: value} if inner else value
        allowed = (dict,) if is_dataclass(hints[name]) else get_args(hints[name]) or (hints[name],)
        if float in allowed and type(new) in {int, str}:
            with suppress(ValueError):
                new = float(new)  # to YAML, 1 is an integer and 1e-3 is text
        if new not in allowed and type(new) not in allowed:
            raise SystemExit(f"{prefix}{name} must be {type(settings).__annotations__[name]}, not {new!r}")
        fields[name] = updated(fields[name], new, f"{prefix}{name}.") if allowed == (dict,) else new
    return type(settings)(**fields)


def read_settings(arguments: list[str]) -> Settings:
    """Return the defaults, changed by one YAML file or option after the other."""
    settings = Settings()
    for argument in arguments:
        name, is_set, text = argument.removeprefix("--").partition("=")
        if name != argument and not is_set:
            raise SystemExit(__doc__)
        values: Any = {name: yaml.safe_load(text)} if is_set else yaml.safe_load(Path(argument).read_text())
        if not isinstance(values, dict):
            raise SystemExit(f"{argument} must have settings with names, not {values!r}")
        settings = updated(settings, values)
    return settings


def main(settings: Settings) -> None:
    """Train as the settings say, save the model, and print its loss."""
    torch.manual_seed(settings.seed)
    data, target = load_digits(return_X_y=True)
    dataset = TensorDataset(torch.tensor(data, dtype=torch.float32) / 16, torch.tensor(target))
    train_dataset, eval_dataset = random_split(dataset, [1497, 300], generator=torch.Generator().manual_seed(0))
    hidden, activation = settings.hidden, getattr(nn, settings.activation)()
    model = nn.Sequential(nn.Linear(64, hidden), activation, nn.Linear(hidden, 10))
    optimizer = torch.optim.AdamW(model.parameters(), **asdict(settings.optimizer))
    save = SaveTrainingStateCallback(Path(settings.output, "states"), settings.save_every_n_epochs, max_checkpoints=2)
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[*DEFAULT_CALLBACKS, save])
    trainer.train(
        train_dataset,
        settings.epochs,
        eval_dataset,
        per_device_batch_size=settings.batch_size,
        gradient_accumulation_steps=settings.accumulation_steps,
        gradient_clip_norm=settings.max_grad_norm,
        create_scheduler_fn=CosineLrScheduler.create_scheduler_fn(num_warmup_epochs=settings.warmup_epochs),
        resume_from=save.save_dir,
        resume_missing="start",
    )
    trainer.save_model(Path(settings.output, "model"))
    loss = trainer.run_history.get_latest_metric("eval_loss_epoch")
    trainer.print(f"{settings.output}/model has a loss of {loss:.4f} on the evaluation digits")


if __name__ == "__main__":
    main(read_settings(sys.argv[1:]))
