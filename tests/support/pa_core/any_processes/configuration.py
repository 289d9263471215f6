"""Random configurations of runs, as small as they can be: each follows from its seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Self

__all__ = ["Configuration"]

_LAYERS = ("linear", "convolution", "attention", "layer norm", "batch norm", "group norm", "dropout")
_ORDERS = ("shuffled", "weighted", "class balanced", "mixture", "curriculum", "length grouped")
_CALLBACKS = ("average", "best model", "early stopping")


@dataclass(frozen=True)
class Configuration:
    """What a run is made of, but for the number of processes.

    Attributes:
        seed: What it was drawn from; the run has the same seed.
        loop: "trainer", "run", or "two models" for a run that trains two.
        layers: The layers between the first and the last one.
        has_embedding: Whether the samples are tokens, otherwise they are vectors.
        has_frozen_layer: Whether the first layer is not trained.
        micro_batch: The samples that are computed at a time.
        samples_per_update: The samples of an update.
        num_samples: The samples of the dataset.
        drop_last: Whether samples that make no whole update are left out.
        order: One of the orders that come with pa_data.
        clips_value: Whether the elements of gradients are clipped.
        clips_norm: Whether the norm of gradients is clipped.
        optimizer: The name of its class in ``torch.optim``.
        scheduler: When the scheduler is stepped; None without one.
        precision: The mixed precision.
        eval_sizes: By the names of the evaluation sets, how many samples they have.
        callbacks: Names of callbacks.
        is_reproducible: Whether the run has the option.
        has_streams: Whether the samples come from streams with a length, which have an order of their own.
    """

    seed: int
    loop: str
    layers: tuple[str, ...]
    has_embedding: bool
    has_frozen_layer: bool
    micro_batch: int
    samples_per_update: int
    num_samples: int
    drop_last: bool
    order: str
    clips_value: bool
    clips_norm: bool
    optimizer: str
    scheduler: str | None
    precision: str
    eval_sizes: dict[str, int]
    callbacks: tuple[str, ...]
    is_reproducible: bool = True
    has_streams: bool = False

    @classmethod
    def random(cls, seed: int) -> Self:
        """Return the configuration of a seed."""
        draw = random.Random(seed)
        layers = tuple(draw.choices(_LAYERS, k=draw.randint(1, 5)))
        # Of a single value, BatchNorm knows no variance.
        micro_batch = draw.randint(2 if "batch norm" in layers else 1, 16)
        samples_per_update = draw.choice((micro_batch * draw.randint(1, 8), draw.randint(micro_batch, 40)))
        names = draw.choice((("eval",), ("eval_near", "eval_far")))
        return cls(
            seed=seed,
            loop=draw.choice(("trainer", "trainer", "run", "two models")),
            layers=layers,
            has_embedding=draw.random() < 0.5,
            has_frozen_layer=draw.random() < 0.3,
            micro_batch=micro_batch,
            samples_per_update=samples_per_update,
            num_samples=draw.randint(2, 3) * samples_per_update + draw.randrange(samples_per_update),
            drop_last=draw.random() < 0.3,
            order=draw.choice(_ORDERS),
            clips_value=draw.random() < 0.3,
            clips_norm=draw.random() < 0.5,
            optimizer=draw.choice(("SGD", "AdamW", "Adam", "RMSprop")),
            scheduler=draw.choice((None, "update", "epoch")),
            precision=draw.choice(("no", "bf16")),
            eval_sizes={name: draw.randint(7, 40) for name in names},
            callbacks=tuple(one for one in _CALLBACKS if draw.random() < 0.4),
        )

    @property
    def epochs(self) -> int:
        """The number of epochs, of which early stopping leaves out the last one."""
        return 3 if "early stopping" in self.callbacks else 2
