"""What is compared with what, and what we promise: the rows of the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["COMPARISONS", "PEERS", "Comparison"]

LOOPS = ("by_hand", "by_accelerate", "ours_bare", "ours")

PEERS = ("pytorch_accelerated", "lightning", "ignite", "transformers")
"""Other trainers, each in an environment of its own."""


@dataclass(frozen=True)
class Comparison:
    """One measure of several variants.

    Attributes:
        name: What the table calls it.
        module: The module that measures, as a process of its own.
        arguments: Its arguments, before the name of the variant.
        variants: What is compared, in the order in which they take turns; the first one is the reference.
        unit: Of the figures.
        limit: What we promise of the last variant, compared with the reference.
        compared_by: Whether figures are divided by that of the reference, or it is subtracted.
        ranks: Processes that train together.
        in_one_process: Whether a process measures all variants in turn, instead of one.
        with_peers: Whether other trainers can be measured too.
    """

    name: str
    module: str
    arguments: tuple[str, ...]
    variants: tuple[str, ...] = LOOPS
    unit: str = "us"
    limit: float | None = None
    compared_by: Literal["ratio", "difference"] = "ratio"
    ranks: int = 1
    in_one_process: bool = False
    with_peers: bool = False


COMPARISONS = (
    Comparison("a step, data in memory", "measures", ("step", "digits"), limit=1.00, with_peers=True),
    Comparison("a step, augmented images, no workers", "measures", ("step", "images"), limit=1.06, with_peers=True),
    Comparison("a step, augmented images, two workers", "measures", ("step", "images_in_workers"), limit=1.06),
    Comparison("a step, transformer, four batches in an update", "measures", ("step", "text"), limit=1.00),
    Comparison("a step, two processes", "measures", ("step", "digits"), limit=1.03, ranks=2, with_peers=True),
    Comparison("the edge of an epoch", "measures", ("edge", "digits"), limit=1.5, with_peers=True),
    Comparison("a step of an evaluation", "measures", ("evaluation", "digits"), limit=1.00),
    Comparison(
        "peak memory", "measures", ("memory", "digits"), unit="MiB", limit=10, compared_by="difference", with_peers=True
    ),
    Comparison(
        "importing, after torch",
        "starts",
        (),
        ("nothing", "pa_core"),
        unit="ms",
        limit=60,
        compared_by="difference",
    ),
    Comparison(
        "the first trainer, after importing pa_core",
        "starts",
        (),
        ("accelerate", "trainer"),
        unit="ms",
        limit=20,
        compared_by="difference",
    ),
    Comparison(
        "an update of the average of a ResNet-18",
        "averaging",
        ("ResNet-18",),
        ("flat_lerp", "state_dict_loop", "model_ema"),
        limit=1.15,
        in_one_process=True,
    ),
    Comparison(
        "an update of the average of a ResNet-50",
        "averaging",
        ("ResNet-50",),
        ("flat_lerp", "state_dict_loop", "model_ema"),
        limit=1.15,
        in_one_process=True,
    ),
    Comparison(
        "saving 200 MB: training waits",
        "saving",
        ("waits", "200"),
        ("at_once", "in_the_background"),
        unit="ms",
        limit=0.25,
        in_one_process=True,
    ),
    Comparison(
        "saving 200 MB: a step meanwhile, p50",
        "saving",
        ("p50", "200"),
        ("undisturbed", "while_writing"),
        in_one_process=True,
    ),
    Comparison(
        "saving 200 MB: a step meanwhile, p99",
        "saving",
        ("p99", "200"),
        ("undisturbed", "while_writing"),
        in_one_process=True,
    ),
)
