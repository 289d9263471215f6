"""What a training step does beyond the loop by hand: it reads no tensor, and exchanges nothing of its own.

Counts are those of a step in the steady state: of two runs, of which one is longer by some steps, the difference
divided by these steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import DEFAULT_CALLBACKS, AnyTrainer, PrintProgressCallback, Trainer, TrainerCallback
from pa_core.callbacks import CallbackLike
from pa_core.testing import TinyClassifier, make_classification, make_regression
from tests.support.callbacks import AlsoAt, CallAt
from tests.support.pa_core.tensor_reads import Reads

BATCH_SIZE, FEW, MANY = 4, 10, 30


def counts_of_a_step(run: Callable[[int], object], watch: Callable[[], Reads | Collectives]) -> dict[str, float]:
    """How often what is watched happens in a step, in the steady state, of a run of so many steps."""
    few, many = Counter[str](), Counter[str]()
    for counts, steps in ((few, FEW), (many, MANY)):
        watched = watch()
        with watched:
            run(steps)
        counts.update(watched.counts)
    return {name: (many[name] - few[name]) / (MANY - FEW) for name in many if many[name] != few[name]}


def reads_of_a_step(run: Callable[[int], object], *, as_on_accelerator: bool = False) -> dict[str, float]:
    """How often each function that reads a tensor is called in a step of a run of so many steps."""
    return counts_of_a_step(run, partial(Reads, as_on_accelerator=as_on_accelerator))


def trainer_with(callbacks: list[CallbackLike]) -> Trainer:
    """A trainer of a small network."""
    model = TinyClassifier()
    return Trainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1, momentum=0.9), callbacks)


def train(steps: int, *callbacks: CallbackLike, accumulation: int = 1) -> None:
    """Train for one epoch of so many steps."""
    data = make_classification(steps * BATCH_SIZE * (dist.get_world_size() if dist.is_initialized() else 1))
    trainer_with(list(callbacks)).train(
        data, 1, per_device_batch_size=BATCH_SIZE, gradient_accumulation_steps=accumulation
    )


def evaluate(steps: int, *callbacks: CallbackLike) -> None:
    """Evaluate for so many steps."""
    trainer_with(list(callbacks)).evaluate(make_classification(steps * BATCH_SIZE), BATCH_SIZE)


WITH_DEFAULTS: list[Callable[[int], None]] = [
    lambda steps: train(steps, *DEFAULT_CALLBACKS),
    lambda steps: evaluate(steps, *DEFAULT_CALLBACKS),
    lambda steps: train(steps, *DEFAULT_CALLBACKS, accumulation=3),
]


def test_a_step_reads_no_tensor_of_an_accelerator() -> None:
    """The guard against losses that are not finite reads each loss once, when it has arrived: here, at the end."""
    assert reads_of_a_step(train, as_on_accelerator=True) == {}
    assert reads_of_a_step(evaluate, as_on_accelerator=True) == {}
    for run in WITH_DEFAULTS:
        assert reads_of_a_step(run, as_on_accelerator=True) == {"item": 1}


def test_a_step_reads_the_loss_on_a_cpu() -> None:
    """Where nobody waits for it, the mean of the epoch reads it, and so does the guard; nothing else is read."""
    assert reads_of_a_step(train) == {"item": 1}
    assert reads_of_a_step(evaluate) == {"item": 1}
    for run in WITH_DEFAULTS:
        assert reads_of_a_step(run) == {"item": 2}


class Collectives(TorchDispatchMode):
    """Counts the calls of collectives, by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # not annotated by torch
        self.counts = Counter[str]()

    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace == "c10d":
            self.counts[func._schema.name] += 1
        return func(*args, **(kwargs or {}))


def collectives_of_a_step(run: Callable[[int], object]) -> dict[str, float]:
    """How often each collective is called in a step of a run of so many steps."""
    return counts_of_a_step(run, Collectives)


@pytest.mark.runs_on("one_process", "two_ranks")
def test_an_update_walks_no_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it needs of a model of many layers was collected before the first update of the epoch."""
    walks, walk = Counter[int](), nn.Module.named_modules
    updates: list[int] = [0]

    def counted(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        walks[updates[-1]] += 1
        return walk(module, *args, **kwargs)

    monkeypatch.setattr(nn.Module, "named_modules", counted)
    norms = [nn.BatchNorm1d(4) for _ in range(30)]
    model = nn.Sequential(*norms, nn.Linear(4, 1))
    note = CallAt("on_optimizer_step_end", lambda trainer: updates.append(trainer.num_updates_completed))
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[note, *DEFAULT_CALLBACKS])
    trainer.train(make_regression(64), 1, per_device_batch_size=4)
    assert updates[-1] >= 8
    assert walks[0] > 0
    assert {update: walks[update] for update in range(2, updates[-1])} == dict.fromkeys(range(2, updates[-1]), 0)


def train_by_hand(steps: int, model: nn.Module | None = None) -> None:
    """The loop by hand over as many batches."""
    inputs, targets = make_classification(BATCH_SIZE).tensors
    model = model or DistributedDataParallel(TinyClassifier())
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        loss: Tensor = nn.functional.cross_entropy(model(inputs), targets)
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.runs_on("two_ranks")
def test_a_step_of_several_processes_exchanges_nothing_of_its_own() -> None:
    """The agreement about stops, saves and items costs no collective beyond those of DistributedDataParallel."""
    by_hand = collectives_of_a_step(train_by_hand)
    assert by_hand == {"c10d::allreduce_": 1}
    assert collectives_of_a_step(train) == by_hand
    assert collectives_of_a_step(lambda steps: train(steps, *DEFAULT_CALLBACKS)) == by_hand


class EndsEvaluations(Trainer[TinyClassifier]):
    """Overrides a hook of evaluations, which might stop the run."""

    @override
    def eval_epoch_end(self) -> None:
        """Do nothing."""


class PrintsMore(PrintProgressCallback):
    """A subclass might stop the run at any event, because it does not declare otherwise."""


def listening_on_one_rank() -> CallAt:
    """A callback that only the second process calls after each epoch."""
    event = "on_training_run_epoch_end" if dist.get_rank() == 1 else "on_exception"
    return CallAt(event, lambda _: None)


@pytest.mark.runs_on("two_ranks")
@pytest.mark.parametrize(
    ("kind", "make_callbacks", "alone", "evaluated"),
    [
        (Trainer, list, 1, 2),
        (Trainer, lambda: [*DEFAULT_CALLBACKS], 1, 2),
        (Trainer, lambda: [*DEFAULT_CALLBACKS, listening_on_one_rank()], 2, 3),
        (EndsEvaluations, list, 1, 3),
        (Trainer, lambda: [PrintsMore], 3, 6),
    ],
)
def test_an_epoch_has_an_exchange_for_its_means_and_after_what_may_stop_it(
    kind: type[Trainer[TinyClassifier]], make_callbacks: Callable[[], list[CallbackLike]], alone: int, evaluated: int
) -> None:
    """Events and hooks after which nobody can have requested anything are followed by none."""
    for eval_data, exchanges in [(None, alone), (make_classification(2 * BATCH_SIZE), evaluated)]:

        def train(epochs: int, eval_data: TensorDataset | None = eval_data) -> None:
            model = TinyClassifier()
            trainer = kind(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), make_callbacks())
            trainer.train(make_classification(2 * BATCH_SIZE), epochs, eval_data, BATCH_SIZE)

        assert collectives_of_a_step(train) == {"c10d::allreduce_": 1, "c10d::allgather_": exchanges}


def sharded_classifier() -> TinyClassifier:
    """A small network, each layer of which is sharded."""
    from torch.distributed.fsdp import fully_shard

    model = TinyClassifier()
    for layer in (model.layers[0], model.layers[3], model):
        fully_shard(layer)
    return model


def train_sharded_by_hand(steps: int) -> None:
    """The same with a sharded model."""
    train_by_hand(steps, sharded_classifier())


def train_sharded(steps: int, *callbacks: CallbackLike, accumulation: int = 1, clip_norm: float | None = None) -> None:
    """Train a sharded model for so many steps."""
    model = sharded_classifier()
    Trainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks).train(
        make_classification(2 * steps * BATCH_SIZE),
        1,
        per_device_batch_size=BATCH_SIZE,
        gradient_accumulation_steps=accumulation,
        gradient_clip_norm=clip_norm,
        gradient_clip_value=1.0,
    )


@pytest.mark.runs_on("two_ranks")
def test_a_step_of_a_sharded_model_has_one_small_exchange_of_its_own() -> None:
    """The agreement, with the gradients of what is not sharded; clipping by norm has one more, by value none."""
    expected = Counter(collectives_of_a_step(train_sharded_by_hand))
    assert expected["c10d::allreduce_"] == expected["c10d::allgather_"] == 0
    expected["c10d::allreduce_"] = 1
    del expected["c10d::allgather_"]
    assert collectives_of_a_step(lambda steps: train_sharded(steps, *DEFAULT_CALLBACKS)) == expected
    expected["c10d::allgather_"] = 1
    assert collectives_of_a_step(lambda steps: train_sharded(steps, clip_norm=0.1)) == expected


@pytest.mark.runs_on("two_ranks")
def test_gradients_of_a_sharded_model_are_exchanged_once_an_update() -> None:
    """With the last of its batches, as is what the processes agree on."""
    counts = collectives_of_a_step(lambda steps: train_sharded(steps, accumulation=2))
    by_hand = collectives_of_a_step(train_sharded_by_hand)
    assert counts["c10d::allreduce_"] == 0.5
    (scattering,) = (name for name in by_hand if "reduce_scatter" in name)
    assert counts[scattering] == by_hand[scattering] / 2


def collectives_of_a_run(steps: int) -> Counter[str]:
    """How often each collective is called while a run trains for so many steps, but not before its first one."""
    counts = Counter[str]()
    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    begin = CallAt("on_train_epoch_start", lambda _: profile.start())
    train(steps, begin, AlsoAt("on_optimizer_step_end", lambda _: profile.stop(), steps))
    entries: Any = profile.key_averages()
    counts.update({entry.key: entry.count for entry in entries if entry.key.startswith("c10d::")})
    return counts


@pytest.mark.runs_on("two_ranks")
def test_gradients_are_compared_once() -> None:
    """In the first update of a run one small exchange shows whether the gradients were exchanged; no other one does."""
    assert collectives_of_a_run(3) - collectives_of_a_run(2) == Counter({"c10d::allreduce_": 1})
    assert collectives_of_a_run(2)["c10d::allgather_"] == 1


class ForbidsWaiting(TrainerCallback):
    """Makes CUDA raise an error for whatever waits for it, in the steps between the fifth and the last."""

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        torch.cuda.set_sync_debug_mode("error" if FEW // 2 < kwargs["step"] < MANY else "default")

    on_eval_step_end = on_train_step_end


@pytest.mark.needs_cuda
@pytest.mark.parametrize("run", [train, evaluate])
def test_no_step_on_cuda_waits_for_the_device(run: Callable[..., None]) -> None:
    """Batches, losses, the guard against those that are not finite, and the progress never hold up a step."""
    try:
        run(MANY, *DEFAULT_CALLBACKS, ForbidsWaiting)
    finally:
        torch.cuda.set_sync_debug_mode("default")
