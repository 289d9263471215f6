"""What a corpus of programs is made of, and the data that many of them train on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.utils.data import TensorDataset

from pa_core import Trainer


class Program(NamedTuple):
    """A trainer, and the arguments that its user is about to call ``train`` with."""

    trainer: Trainer
    arguments: dict[str, Any]


def program(
    trainer: Trainer,
    train_dataset: Any,
    num_epochs: int,
    eval_dataset: Any = None,
    per_device_batch_size: int | None = 32,
    **options: Any,
) -> Program:
    """A program that trains in this way; what is None is left to ``train``."""
    arguments = {
        "train_dataset": train_dataset,
        "num_epochs": num_epochs,
        "eval_dataset": eval_dataset,
        "per_device_batch_size": per_device_batch_size,
        **options,
    }
    return Program(trainer, {name: value for name, value in arguments.items() if value is not None})


class Case(NamedTuple):
    """A program of a corpus.

    Attributes:
        make: Makes the program; for one with a mistake, ``make(right=True)`` makes its corrected twin.
        sentence: What is wrong; or, in a healthy program, why what looks odd is right.
        keywords: Lower-case texts of which a report of the mistake has at least one; empty for a healthy program.
    """

    make: Callable[..., Program]
    sentence: str
    keywords: tuple[str, ...] = ()


@dataclass(frozen=True)
class Corpus:
    """Collects programs under the names of the functions that make them."""

    cases: dict[str, Case] = field(default_factory=dict[str, Case])

    def __call__(self, *keywords: str) -> Callable[[Callable[..., Program]], Callable[..., Program]]:
        """A decorator of functions that make a program, whose docstrings say what is wrong; see `Case`."""

        def add(make: Callable[..., Program]) -> Callable[..., Program]:
            def seeded(right: bool = False) -> Program:
                torch.manual_seed(0)
                return make(right) if keywords else make()

            self.cases[make.__name__] = Case(seeded, " ".join((make.__doc__ or "").split()), keywords)
            return make

        return add


def digits() -> tuple[Tensor, Tensor]:
    """Return scanned digits, 64 pixels between 0 and 1 each, and which digits they are."""
    data, target = load_digits(return_X_y=True)
    return torch.tensor(data, dtype=torch.float32) / 16, torch.tensor(target)


def parts(*tensors: Tensor, share: float = 0.8) -> tuple[TensorDataset, TensorDataset]:
    """Return the first samples to train on, and the others to evaluate on."""
    count = int(len(tensors[0]) * share)
    return TensorDataset(*(one[:count] for one in tensors)), TensorDataset(*(one[count:] for one in tensors))
