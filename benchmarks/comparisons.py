"""What is compared with what, and what we promise: the rows of the tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias

__all__ = ["COMPARISONS", "Comparison", "Device"]

Device: TypeAlias = Literal["cpu", "cuda"]

LOOPS = ("by_hand", "by_accelerate", "ours_bare", "ours")
LOOPS_IN_MEMORY = ("by_hand", "by_hand_tuned", "by_accelerate", "ours_bare", "ours")
REPRODUCIBLE = ("by_hand", "ours_reproducible")
TRIAL, GAN_TRIAL = ("by_hand", "trial"), ("gan_by_hand", "gan_trial")
SHARDED = ("sharded_by_hand", "sharded_ours")
BY_ORDER = ("shuffled", "class_balanced", "mixture", "weighted")
CHECKPOINTS = (("200 MB", "200 7"), ("2 GB", "2000 2"))
WORKERS = ((0, "no workers"), (2, "two workers"))
FEW_AND_MANY, TO_A_MILLION = ("ten_thousand", "a_hundred_million"), ("ten_thousand", "a_million")
FIRST_AND_LAST = ("the_first", "the_last")
SAVES, WRITING = ("at_once", "in_the_background"), ("undisturbed", "while_writing")


@dataclass(frozen=True)
class Comparison:
    """One measure of several variants.

    Attributes:
        name: What the table calls it.
        command: The module that measures, as a process of its own, and its arguments.
        variants: What is compared, in the order in which they take turns; the first one is the reference.
        unit: Of the figures.
        limit: What we promise of the last variant, compared with the reference.
        compared_by: Whether figures are divided by that of the reference, or it is subtracted.
        figure: Which one it is, if the command measures several.
        ranks: Processes that torchrun starts, which train together; None for a single process without torchrun.
        separately: Whether each variant has a process of its own, whose last argument is its name.
        with_peers: Whether other trainers can be measured too.
        rounds: How often at most, where once takes minutes.
        device: What computes.
        seconds: When the processes of a round are killed.
        env: Environment variables of the processes, for all variants.
    """

    name: str
    command: str
    variants: tuple[str, ...] = LOOPS
    unit: str = "us"
    limit: float | None = None
    compared_by: Literal["ratio", "difference"] = "ratio"
    figure: str = ""
    ranks: int | None = None
    separately: bool = False
    with_peers: bool = False
    rounds: int | None = None
    device: Device = "cpu"
    seconds: float = 3600.0
    env: Mapping[str, str] = field(default_factory=dict)

    def processes(self) -> tuple[object, ...]:
        """What comparisons have in common that the same processes measure."""
        return self.command, self.ranks, self.separately and self.variants


def _of_loops(
    name: str,
    task: str,
    variants: tuple[str, ...],
    limit: float | None,
    measure: str = "step",
    *,
    separately: bool = False,
    **others: Any,
) -> Comparison:
    command = f"measures {measure} {task}{'' if separately else ' ' + ' '.join(variants)}"
    return Comparison(name, command, variants, limit=limit, figure=measure, separately=separately, **others)


_difference = partial(Comparison, compared_by="difference")
_with_peers = partial(_of_loops, separately=True, with_peers=True)
_on_two = partial(_of_loops, ranks=2, rounds=3)
_of_peaks = partial(_of_loops, measure="memory", unit="MiB", limit=10, compared_by="difference", separately=True)


def _of_averages(network: str) -> Comparison:
    variants = ("flat_lerp", "fused_lerp", "state_dict_loop", "model_ema")
    return Comparison(f"an update of the average of a {network}", f"averaging {network}", variants, limit=1.15)


def _of_checkpoints(name: str, figure: str, ranks: int | None = None, unit: str = "ms") -> Comparison:
    return Comparison(
        f"a checkpoint, {name}{', two processes' if ranks else ''}",
        f"checkpoints {figure}",
        ("dcp", "ours"),
        unit,
        limit=1.00,
        ranks=ranks,
        rounds=1,
    )


def _of_loaders(name: str, what: str, unit: str, variants: tuple[str, ...], *, separately: bool = False) -> Comparison:
    return Comparison(f"a loader, {name}", f"loaders {what}", variants, unit, 1.00, separately=separately, rounds=3)


ON_THE_CPU = (
    _with_peers("a step, data in memory", "digits", LOOPS_IN_MEMORY, 1.00),
    _of_loops("a step, over the tuned loop", "digits", ("by_hand_tuned", "ours_bare", "ours"), 1.15),
    _of_loops("a step, samples drawn by weights", "digits", ("ours_bare", "ours_weighted"), 1.02, "processor"),
    _with_peers("a step, augmented images, no workers", "images", LOOPS, 1.06),
    _with_peers("a step, augmented images, two workers", "images_in_workers", LOOPS, 1.06),
    _with_peers("a step, transformer, four batches in an update", "text", LOOPS, 1.00),
    _on_two("a step, two processes", "digits", LOOPS, 1.02),
    _on_two("a step, two processes, an epoch of 1,000 steps", "long_epoch", LOOPS, 1.05),
    _of_loops("a step, a loop of your own", "digits", ("by_hand", "by_hand_tuned", "own_loop"), 1.05),
    _of_loops("a step, batches by a budget of tokens", "sentences", ("budget_by_hand", "budget_ours"), 1.05),
    _of_loops("a step, two optimizers", "gan", ("gan_by_hand", "gan_own_loop"), 1.05),
    _on_two("a step, two optimizers, two processes", "gan", ("gan_by_hand", "gan_own_loop"), 1.05),
    _on_two("a sharded step, two processes", "sharded_text", SHARDED, 1.05, rounds=2),
    _on_two("processor time of a sharded step, two processes", "sharded_text", SHARDED, None, "processor", rounds=1),
    # Without a fixed threshold, glibc raises it to the largest block that was freed, and keeps what is below.
    _of_peaks(
        "peak memory of a process, sharded over two",
        "sharded_wide_text",
        SHARDED,
        ranks=2,
        rounds=2,
        env={"MALLOC_MMAP_THRESHOLD_": "65536"},
    ),
    _of_loops("a step of a trial", "digits", ("by_hand", "by_hand_tuned", "trial"), 1.10),
    _on_two("a step of a trial, two processes", "digits", TRIAL, 1.10),
    _on_two("an update of a trial, augmented images, two processes", "images", TRIAL, 1.05, "update"),
    _of_loops("a step of a trial with two optimizers", "gan", GAN_TRIAL, 1.10),
    _on_two("a step of a trial with two optimizers, two processes", "gan", GAN_TRIAL, 1.10),
    *(
        compare(f"an update of a reproducible run, {task}, {where}", task, REPRODUCIBLE, limit, "update", rounds=3)
        for compare, where, limit in ((_of_loops, "one process", 1.02), (_on_two, "two processes", 1.10))
        for task in ("digits", "wide", "images")
    ),
    _with_peers("the edge of an epoch", "digits", LOOPS, 1.5, "edge"),
    _of_loops("a step of an evaluation", "digits", LOOPS_IN_MEMORY, 1.00, "evaluation", separately=True),
    _of_peaks("peak memory", "digits", LOOPS),
    _difference("a sample that is fetched", "loaders keys", ("plain", "keyed"), "us", 9, figure="a_sample"),
    _difference(
        "a batch that is fetched, beside its samples", "loaders keys", ("plain", "keyed"), "us", 90, figure="a_batch"
    ),
    _difference("importing, after torch", "starts", ("nothing", "pa_core"), "ms", 60, separately=True),
    _difference(
        "the first trainer, after importing pa_core", "starts", ("accelerate", "trainer"), "ms", 20, separately=True
    ),
    _difference(
        "from a kill to the first new update, after importing torch",
        "resumes",
        ("by_hand", "an_update", "ours"),
        "ms",
        separately=True,
    ),
    _of_averages("ResNet-18"),
    _of_averages("ResNet-50"),
    Comparison("training waits for a state of 200 MB", "saving frozen 200", SAVES, "ms", 0.25, figure="waits"),
    Comparison("a step while it is written, p50", "saving frozen 200", WRITING, "us", None, figure="p50"),
    Comparison("a step while it is written, p99", "saving frozen 200", WRITING, "us", None, figure="p99"),
    *(
        _of_checkpoints(f"{what} {name}", f"{figure} {size}", ranks)
        for name, size in CHECKPOINTS
        for ranks in (None, 2)
        for what, figure in (
            ("saving", "save"),
            ("training waits for saving in the background", "held"),
            ("saving in the background, until it is on disk", "durable"),
            ("loading", "load"),
        )
    ),
    *(_of_checkpoints(f"saving {name}, of which 5 % changed", f"unchanged {size}") for name, size in CHECKPOINTS),
    _of_checkpoints("loading 10,000 small tensors", "load_small 200 5"),
    _of_checkpoints("memory of loading 200 MB beyond the model", "peak 200 3", unit="MiB"),
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
        separately=True,
    ),
    Comparison("an update, of a million", "scale updates", FIRST_AND_LAST, "us", 1.05, rounds=1),
    Comparison("a recorded metric, of a million", "scale metrics", FIRST_AND_LAST, "us", 1.05),
    Comparison(
        "an update, with callbacks that implement no event", "scale callbacks", ("none", "a_thousand"), "us", 1.05
    ),
    _difference(
        "processor time of asking after an update whether the run has to end",
        "notices",
        ("without", "a_notice", "a_deadline", "both"),
        "us",
        1,
    ),
    Comparison("the start of an epoch, samples", "scale start_of_epoch", FEW_AND_MANY, "ms", 10),
    _difference(
        "processor time of the start of an epoch of a hundred million samples",
        "scale start_by_order",
        BY_ORDER,
        "ms",
        10,
    ),
    _difference("processor time of going to the middle of such an epoch", "scale seek_by_order", BY_ORDER, "ms", 10),
    Comparison("going to the middle of an epoch, samples", "scale seek", FEW_AND_MANY, "ms", 10),
    Comparison("resuming at the end of an epoch, samples", "scale resume", TO_A_MILLION, "ms", 10),
    Comparison("peak memory, samples", "scale memory", FEW_AND_MANY, "MiB", 1.05),
)

LIGHTNING = ("lightning",) if find_spec("lightning") else ()
LOOPS_ON_CUDA = ("by_hand", "by_accelerate", *LIGHTNING, "own_loop", "ours_bare", "ours")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
MEASURES_ON_CUDA = (
    ("update", "an update", "us"),
    ("device_memory", "peak memory of the device", "MiB"),
    ("waits", "waits for the device in an update, by the profiler", ""),
    ("warned_waits", "waits for the device in an update, by set_sync_debug_mode", ""),
    ("copies", "copies in an update", ""),
    ("kernels", "kernels in an update", ""),
)
TASKS_ON_CUDA = (
    ("digits_on_device", "digits in bf16", ("by_hand", "by_hand_tuned", *LOOPS_ON_CUDA[1:]), 60),
    ("transformer", "a transformer of the size of GPT-2 small in bf16", LOOPS_ON_CUDA, 100),
    ("resnet", "ResNet-50 in bf16", LOOPS_ON_CUDA, 100),
)


_on_cuda = partial(Comparison, device="cuda", rounds=1)


def _of_task(task: str, name: str, loops: tuple[str, ...], seconds: float) -> list[Comparison]:
    command = f"measures {','.join(measure for measure, *_ in MEASURES_ON_CUDA)} {task} {' '.join(loops)}"
    return [
        _on_cuda(
            f"{what}, {name}",
            command,
            loops,
            unit,
            compared_by="ratio" if unit else "difference",
            figure=measure,
            seconds=seconds,
        )
        for measure, what, unit in MEASURES_ON_CUDA
    ]


ON_CUDA = (
    *(comparison for task in TASKS_ON_CUDA for comparison in _of_task(*task)),
    _on_cuda(
        "an update, a transformer sharded on one device",
        "measures update sharded_transformer by_hand ours_bare",
        ("by_hand", "ours_bare"),
        figure="update",
        ranks=1,
        seconds=60,
    ),
    *(
        _on_cuda(f"{what}, by the trainer", "precision", PRECISIONS, unit, figure=figure, separately=True, seconds=30)
        for figure, what, unit in (
            ("update_transformer", "an update of the transformer", "us"),
            ("device_memory_transformer", "peak memory of the device, the transformer", "MiB"),
            ("update_resnet", "an update of ResNet-50", "us"),
            ("device_memory_resnet", "peak memory of the device, ResNet-50", "MiB"),
        )
    ),
    *(
        _on_cuda(name, "saving transformer", variants, unit, figure=figure, seconds=80)
        for figure, name, variants, unit in (
            ("waits", "training waits for a state of the transformer", (*SAVES, "the_first_in_the_background"), "ms"),
            ("p50", "an update while it is written, p50", WRITING, "us"),
        )
    ),
    _on_cuda(
        "a batch that is copied, and four matrix products",
        "on_device copies",
        ("in_turn", "there_already", "ahead"),
        "ms",
        seconds=30,
    ),
    _on_cuda(
        "memory of the device for an export, sharded on one device",
        "on_device export",
        ("the_largest_tensor", "the_export"),
        "MiB",
        ranks=1,
        seconds=30,
    ),
)

COMPARISONS = (*ON_THE_CPU, *ON_CUDA)
