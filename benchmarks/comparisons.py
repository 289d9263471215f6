"""What is compared with what, and what we promise: the rows of the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["COMPARISONS", "Comparison"]

LOOPS = ("by_hand", "by_accelerate", "ours_bare", "ours")
LOOPS_IN_MEMORY = ("by_hand", "by_hand_tuned", "by_accelerate", "ours_bare", "ours")
TUNED_AND_OURS = ("by_hand_tuned", "ours_bare", "ours")
OWN_LOOP = ("by_hand", "by_hand_tuned", "own_loop")
TWO_OPTIMIZERS = ("gan_by_hand", "gan_own_loop")
TOKEN_BUDGET = ("budget_by_hand", "budget_ours")
TRIAL = ("by_hand", "by_hand_tuned", "trial")
TRIAL_ON_TWO_PROCESSES = ("by_hand", "trial")
SHARDED = ("sharded_by_hand", "sharded_ours")
WEIGHTED = ("ours_bare", "ours_weighted")
BY_ORDER = ("shuffled", "class_balanced", "mixture", "weighted")
REPRODUCIBLE = ("by_hand", "ours_reproducible")
GAN_TRIAL = ("gan_by_hand", "gan_trial")


@dataclass(frozen=True)
class Comparison:
    """One measure of several variants.

    Attributes:
        name: What the table calls it.
        command: The module that measures, as a process of its own, and its arguments before the name of the variant.
        variants: What is compared, in the order in which they take turns; the first one is the reference.
        unit: Of the figures.
        limit: What we promise of the last variant, compared with the reference.
        compared_by: Whether figures are divided by that of the reference, or it is subtracted.
        ranks: Processes that train together.
        in_one_process: Whether a process measures all variants in turn, instead of one.
        with_peers: Whether other trainers can be measured too.
        rounds: How often at most, where once takes minutes.
        env: Environment variables of the processes, for all variants.
    """

    name: str
    command: str
    variants: tuple[str, ...] = LOOPS
    unit: str = "us"
    limit: float | None = None
    compared_by: Literal["ratio", "difference"] = "ratio"
    ranks: int = 1
    in_one_process: bool = False
    with_peers: bool = False
    rounds: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)


def _of_loops(name: str, command: str, limit: float, variants: tuple[str, ...] = LOOPS) -> Comparison:
    return Comparison(name, f"measures {command}", variants, limit=limit, with_peers=True)


def _of_trials(
    name: str, task: str, variants: tuple[str, ...], ranks: int = 1, *, clock: str = "clock", limit: float = 1.10
) -> Comparison:
    return Comparison(
        name,
        f"in_turn {clock} {task} {' '.join(variants)}",
        variants,
        limit=limit,
        ranks=ranks,
        in_one_process=True,
        rounds=None if ranks == 1 else 3,
    )


def _of_reproducible_steps(task: str, ranks: int, limit: float) -> Comparison:
    return Comparison(
        f"an update of a reproducible run, {task}, {'one process' if ranks == 1 else 'two processes'}",
        f"in_turn updates {task} {' '.join(REPRODUCIBLE)}",
        REPRODUCIBLE,
        limit=limit,
        ranks=ranks,
        in_one_process=True,
        rounds=3,
    )


def _of_sharded_steps(name: str, clock: str, limit: float | None, rounds: int) -> Comparison:
    return Comparison(
        name,
        f"in_turn {clock} sharded_text {' '.join(SHARDED)}",
        SHARDED,
        limit=limit,
        ranks=2,
        in_one_process=True,
        rounds=rounds,
    )


def _of_averages(network: str) -> Comparison:
    return Comparison(
        f"an update of the average of a {network}",
        f"averaging {network}",
        ("flat_lerp", "fused_lerp", "state_dict_loop", "model_ema"),
        limit=1.15,
        in_one_process=True,
    )


def _of_fetching(name: str, what: str, limit: float) -> Comparison:
    return Comparison(
        name,
        f"fetching {what}",
        ("plain", "keyed"),
        limit=limit,
        compared_by="difference",
        in_one_process=True,
    )


def _of_starts(name: str, reference: str, variant: str, limit: float) -> Comparison:
    return Comparison(name, "starts", (reference, variant), "ms", limit, compared_by="difference")


def _of_scale(
    name: str, what: str, variants: tuple[str, str], limit: float, unit: str = "us", rounds: int | None = None
) -> Comparison:
    return Comparison(name, f"scale {what}", variants, unit, limit, in_one_process=True, rounds=rounds)


def _of_orders(name: str, what: str) -> Comparison:
    return Comparison(name, f"scale {what}", BY_ORDER, "ms", 10, compared_by="difference", in_one_process=True)


def _of_checkpoints(name: str, figure: str, ranks: int = 1) -> Comparison:
    where = ", two processes" if ranks > 1 else ""
    return Comparison(
        f"a checkpoint, {name}{where}",
        f"checkpoints {figure}",
        ("dcp", "ours"),
        "ms",
        limit=1.00,
        ranks=ranks,
        in_one_process=True,
        rounds=1,
    )


def _of_loaders(
    name: str, what: str, unit: str, variants: tuple[str, ...], *, in_one_process: bool = True
) -> Comparison:
    return Comparison(
        f"a loader, {name}",
        f"resuming_loaders {what}",
        variants,
        unit,
        limit=1.00,
        in_one_process=in_one_process,
        rounds=3,
    )


CHECKPOINTS = (("200 MB", "200 7"), ("2 GB", "2000 2"))
WORKERS = ((0, "no workers"), (2, "two workers"))
FEW_AND_MANY = ("ten_thousand", "a_hundred_million")

COMPARISONS = (
    _of_loops("a step, data in memory", "step digits", 1.00, LOOPS_IN_MEMORY),
    Comparison(
        "a step, over the tuned loop",
        f"in_turn clock digits {' '.join(TUNED_AND_OURS)}",
        TUNED_AND_OURS,
        limit=1.15,
        in_one_process=True,
    ),
    Comparison(
        "a step, samples drawn by weights",
        f"in_turn processor digits {' '.join(WEIGHTED)}",
        WEIGHTED,
        limit=1.02,
        in_one_process=True,
    ),
    _of_loops("a step, augmented images, no workers", "step images", 1.06),
    _of_loops("a step, augmented images, two workers", "step images_in_workers", 1.06),
    _of_loops("a step, transformer, four batches in an update", "step text", 1.00),
    Comparison(
        "a step, two processes",
        f"in_turn clock digits {' '.join(LOOPS)}",
        limit=1.02,
        ranks=2,
        in_one_process=True,
        rounds=3,
    ),
    Comparison(
        "a step, two processes, an epoch of 1,000 steps",
        f"in_turn clock long_epoch {' '.join(LOOPS)}",
        limit=1.05,
        ranks=2,
        in_one_process=True,
        rounds=3,
    ),
    Comparison(
        "a step, a loop of your own",
        f"in_turn clock digits {' '.join(OWN_LOOP)}",
        OWN_LOOP,
        limit=1.05,
        in_one_process=True,
    ),
    Comparison(
        "a step, batches by a budget of tokens",
        f"in_turn clock sentences {' '.join(TOKEN_BUDGET)}",
        TOKEN_BUDGET,
        limit=1.05,
        in_one_process=True,
    ),
    Comparison(
        "a step, two optimizers",
        f"in_turn clock gan {' '.join(TWO_OPTIMIZERS)}",
        TWO_OPTIMIZERS,
        limit=1.05,
        in_one_process=True,
    ),
    Comparison(
        "a step, two optimizers, two processes",
        f"in_turn clock gan {' '.join(TWO_OPTIMIZERS)}",
        TWO_OPTIMIZERS,
        limit=1.05,
        ranks=2,
        in_one_process=True,
        rounds=3,
    ),
    _of_sharded_steps("a sharded step, two processes", "clock", 1.05, rounds=2),
    _of_sharded_steps("processor time of a sharded step, two processes", "processor", None, rounds=1),
    Comparison(
        "peak memory of a process, sharded over two",
        "peak sharded_wide_text",
        SHARDED,
        "MiB",
        limit=10,
        compared_by="difference",
        ranks=2,
        rounds=2,
        # Without a fixed threshold, glibc raises it to the largest block that was freed, and keeps what is below.
        env={"MALLOC_MMAP_THRESHOLD_": "65536"},
    ),
    _of_trials("a step of a trial", "digits", TRIAL),
    _of_trials("a step of a trial, two processes", "digits", TRIAL_ON_TWO_PROCESSES, ranks=2),
    _of_trials(
        "an update of a trial, augmented images, two processes",
        "images",
        TRIAL_ON_TWO_PROCESSES,
        ranks=2,
        clock="updates",
        limit=1.05,
    ),
    _of_trials("a step of a trial with two optimizers", "gan", GAN_TRIAL),
    _of_trials("a step of a trial with two optimizers, two processes", "gan", GAN_TRIAL, ranks=2),
    *(
        _of_reproducible_steps(task, ranks, limit)
        for ranks, limit in ((1, 1.02), (2, 1.10))
        for task in ("digits", "wide", "images")
    ),
    _of_loops("the edge of an epoch", "edge digits", 1.5),
    Comparison("a step of an evaluation", "measures evaluation digits", LOOPS_IN_MEMORY, limit=1.00),
    Comparison("peak memory", "measures memory digits", unit="MiB", limit=10, compared_by="difference"),
    _of_fetching("a sample that is fetched", "a_sample", 9),
    _of_fetching("a batch that is fetched, beside its samples", "a_batch", 90),
    _of_starts("importing, after torch", "nothing", "pa_core", 60),
    _of_starts("the first trainer, after importing pa_core", "accelerate", "trainer", 20),
    _of_averages("ResNet-18"),
    _of_averages("ResNet-50"),
    Comparison(
        "training waits for a state of 200 MB",
        "saving waits 200",
        ("at_once", "in_the_background"),
        "ms",
        0.25,
        in_one_process=True,
    ),
    Comparison(
        "a step while it is written, p50", "saving p50 200", ("undisturbed", "while_writing"), in_one_process=True
    ),
    Comparison(
        "a step while it is written, p99", "saving p99 200", ("undisturbed", "while_writing"), in_one_process=True
    ),
    *(
        _of_checkpoints(f"{what} {name}", f"{figure} {size}", ranks)
        for name, size in CHECKPOINTS
        for ranks in (1, 2)
        for what, figure in (
            ("saving", "save"),
            ("training waits for saving in the background", "held"),
            ("saving in the background, until it is on disk", "durable"),
            ("loading", "load"),
        )
    ),
    *(_of_checkpoints(f"saving {name}, of which 5 % changed", f"unchanged {size}") for name, size in CHECKPOINTS),
    _of_checkpoints("saving 200 MB sharded", "save_sharded 200 7", ranks=2),
    _of_checkpoints("loading 200 MB sharded", "load_sharded 200 7", ranks=2),
    *(
        _of_loaders(
            f"a sample of {name}, {of_workers}",
            f"clock {kind} {samples} {workers}",
            "us",
            ("torchdata", "torch", "ours", "ours_unkeyed"),
        )
        for kind, samples, name in (
            ("tensors", 12_800, "tensors in memory"),
            ("rows", 3_200, "rows that Python parses"),
        )
        for workers, of_workers in WORKERS
    ),
    *(
        _of_loaders(
            f"resuming at the {place} of {samples:,} samples, {of_workers}",
            f"resume {place} {samples} {workers}",
            "ms",
            ("torchdata", "ours"),
        )
        for samples in (100_000, 1_000_000)
        for place in ("middle", "end")
        for workers, of_workers in WORKERS
    ),
    *(
        _of_loaders(f"its state, {of_workers}", f"state 10000 {workers}", "bytes", ("torchdata", "ours"))
        for workers, of_workers in WORKERS
    ),
    _of_loaders(
        "memory of two workers amid a million samples",
        "memory 1000000 2",
        "MiB",
        ("torchdata", "torch", "ours"),
        in_one_process=False,
    ),
    _of_scale("an update, of a million", "updates", ("the_first", "the_last"), 1.05, rounds=1),
    _of_scale("a recorded metric, of a million", "metrics", ("the_first", "the_last"), 1.05),
    _of_scale("an update, with callbacks that implement no event", "callbacks", ("none", "a_thousand"), 1.05),
    _of_scale("the start of an epoch, samples", "start_of_epoch", FEW_AND_MANY, 10, "ms"),
    _of_orders("processor time of the start of an epoch of a hundred million samples", "start_by_order"),
    _of_orders("processor time of going to the middle of such an epoch", "seek_by_order"),
    _of_scale("going to the middle of an epoch, samples", "seek", FEW_AND_MANY, 10, "ms"),
    _of_scale("resuming at the end of an epoch, samples", "resume", ("ten_thousand", "a_million"), 10, "ms"),
    _of_scale("peak memory, samples", "memory", FEW_AND_MANY, 1.05, "MiB"),
)
