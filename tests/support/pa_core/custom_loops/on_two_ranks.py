"""Loops of one's own on one process or several; each writes what it ended with, on every rank."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import IterableDataset, TensorDataset
from typing_extensions import override

from pa_core import Run, Trainer, gather_objects
from pa_core.testing import RecordingCallback
from tests.support.histories import moments
from tests.support.pa_core.custom_loops import gans


def _line(batch_size: int, number: int = 21, **options: Any) -> Run[nn.Sequential, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    inputs = torch.stack([torch.arange(number).double() / 10, torch.linspace(-1, 1, number).double()], dim=1)
    settings: dict[str, Any] = {"num_epochs": 2, **options}
    return Run(
        model,
        SGD(model.parameters(), lr=0.1, momentum=0.9),
        TensorDataset(inputs, inputs.sum(1, keepdim=True)),
        per_device_batch_size=batch_size,
        **settings,
    )


def _plain(run: Run[Any, Any]) -> dict[str, Any]:
    weights = [value.tolist() for value in run.get_model().state_dict().values()]
    return {"weights": weights, "history": moments(run)}


def uneven(batch: int) -> dict[str, Any]:
    """21 samples in updates of 8: the last one has 5, of which a rank may have none in its last batch."""
    run = _line(batch // 2, gradient_accumulation_steps=2)
    seen: list[float] = []
    gathered: list[float] = []
    evaluated: list[float] = []
    empty = 0
    with run:
        for _ in run.epochs():
            for update in run.updates():
                for inputs, targets in update:
                    outputs = run.model(inputs)
                    loss = (outputs - targets).square().mean()
                    if update.is_empty:
                        empty += 1
                        loss = loss * float("nan")
                    else:
                        seen += inputs[:, 0].tolist()
                    run.log("error", (outputs - targets).abs().mean() * (float("nan") if update.is_empty else 1))
                    gathered += run.gather({"inputs": inputs[:, 0]})["inputs"].tolist()
                    update.backward(loss)
                update.step()
            evaluated = []
            for inputs, targets in run.evaluation_batches(run.train_dataset, per_device_batch_size=batch * 2):
                run.log("loss", (run.model(inputs) - targets).square().mean())
                evaluated += run.gather(inputs[:, 0]).tolist()
    counted = sorted(value for one in gather_objects(seen) for value in one)
    return {
        **_plain(run),
        "seen": counted,
        "gathered": sorted(gathered),
        "evaluated": sorted(evaluated),
        "empty": sum(gather_objects(empty)),
    }


def one_sample(batch: int) -> dict[str, Any]:
    """Fewer samples than processes: a rank that has never had one, in training and in evaluations."""
    recorder = RecordingCallback()
    run = _line(batch, number=1, callbacks=[recorder])
    gathered: list[list[float]] = []
    empty = 0
    with run:
        for _ in run.epochs():
            for inputs, targets in run.batches():
                loss = (run.model(inputs) - targets).square().mean()
                run.backward(loss)
                run.step()
                gathered += [run.gather(inputs[:, 0]).tolist(), run.gather(loss * 0).tolist()]
            for inputs, targets in run.evaluation_batches(run.train_dataset):
                weight = float("nan") if run.is_padding_batch else 1.0
                empty += run.is_padding_batch
                run.log("loss", (run.model(inputs) - targets).square().mean() * weight)
                run.log("error", (run.model(inputs) - targets).abs().mean() * weight, num_items=3)
                gathered += [run.gather(inputs[:, 0]).tolist()]
            assert not run.is_padding_batch
    return {
        **_plain(run),
        "gathered": gathered,
        "empty": sum(gather_objects(empty)),
        "steps": sum(gather_objects(recorder.events.count("on_eval_step_end"))),
    }


def passes(batch: int) -> dict[str, Any]:
    """Two passes over batches that count their items, and an update that a break leaves between its passes and step."""
    run = _line(batch // 2, gradient_accumulation_steps=2)
    with run:
        for epoch in run.epochs():
            for update in run.updates():
                for inputs, targets in update:
                    kept = inputs[:, 1] > -0.3
                    for power in (1, 2):
                        errors = (run.model(inputs) - targets)[:, 0].abs().pow(power) * kept
                        update.backward(errors.sum() / max(int(kept.sum()), 1), num_items=int(kept.sum()))
                if (epoch, update.number) == (0, 2):
                    break
                update.step()
    return _plain(run)


def freezes(batch: int) -> dict[str, Any]:
    """A discriminator is frozen while the generator is trained through it, and one rank asks to stop."""
    run = gans.gan(per_device_batch_size=batch)
    generator, discriminator = run.models["generator"], run.models["discriminator"]
    with run:
        for update in run.updates():
            for real, numbers in update:
                made = generator(gans.noise(numbers))
                discriminator.requires_grad_(True)
                update.backward((discriminator(real) - 1).square().mean(), model="discriminator")
                update.backward(discriminator(made.detach()).square().mean(), model="discriminator")
                discriminator.requires_grad_(False)
                update.backward((discriminator(made) - 1).square().mean(), model="generator")
            update.step("discriminator")
            update.step("generator")
            if update.number == 6 and run.process_index == run.num_processes - 1:
                run.request_stop()
    return _plain(run)


def critic(batch: int, order: str) -> dict[str, Any]:
    """A critic with a gradient penalty, in a loss of its own or not, and a generator in each third update.

    The penalty does not depend on the last bias of the critic.
    """
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4)).double()
    judge = nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 1)).double()
    run = Run(
        {"generator": generator, "critic": judge},
        {"generator": Adam(generator.parameters(), 0.01), "critic": AdamW(judge.parameters(), 0.01)},
        TensorDataset(gans.REAL[:21], torch.arange(21)),
        num_epochs=2,
        per_device_batch_size=batch,
        create_scheduler_fn={"generator": partial(OneCycleLR, max_lr=0.02, total_steps=4)},  # of 12 updates
    )
    with run:
        for update in run.updates():
            for real, numbers in update:
                made = generator(gans.noise(numbers)).detach()
                between = torch.lerp(real, made, torch.sin(numbers.double())[:, None] ** 2).requires_grad_()
                (slopes,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
                losses = [
                    judge(made).mean() - judge(real).square().mean(),
                    10 * (slopes.norm(dim=1) - 1).square().mean(),
                ]
                if order == "sum":
                    losses = [losses[0] + losses[1]]
                elif order == "penalty first":
                    losses.reverse()
                for loss in losses:
                    update.backward(loss, model="critic")
                if update.number % 3 == 0:
                    update.backward(-judge(generator(gans.noise(numbers))).mean(), model="generator")
            update.step("critic")
            if update.number % 3 == 0:
                update.step("generator")
    return _plain(run)


def asks(batch: int, place: str) -> dict[str, Any]:
    """One rank asks to stop, somewhere in the third update or after the first epoch."""
    recorder = RecordingCallback()
    run = _line(batch // 2, 16, gradient_accumulation_steps=2, num_epochs=4, callbacks=[recorder])

    def ask(at: str) -> None:
        is_there = run.num_updates_completed >= 2 and at == place
        if is_there and run.process_index == run.num_processes - 1:
            run.request_stop()

    with run:
        for _ in run.epochs():
            for update in run.updates():
                for number, (inputs, targets) in enumerate(update):
                    ask(f"before backward {number}")
                    update.backward((run.model(inputs) - targets).square().mean())
                    ask(f"after backward {number}")
                for inputs, _ in run.evaluation_batches(run.train_dataset, name="early"):
                    run.log("loss", run.model(inputs).mean())
                ask("before step")
                update.step()
                ask("after step")
                for inputs, _ in run.evaluation_batches(run.train_dataset, name="late"):
                    run.log("loss", run.model(inputs).mean())
                    ask("in evaluation")
            ask("after updates")
            for inputs, _ in run.evaluation_batches(run.train_dataset):
                run.log("loss", run.model(inputs).mean())
                ask("in evaluation after updates")
            ask("after evaluation")
    events = [event for event in recorder.events if "_step_" not in event or event == "on_optimizer_step_end"]
    return {**_plain(run), "events": events, "updates": run.num_updates_completed}


class _Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """Samples that come one after the other."""

    def __len__(self) -> int:
        return 21

    @override
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(21):
            yield torch.tensor([number / 10, 1.0]).double(), torch.zeros(1).double()


def stream() -> dict[str, Any]:
    """How many samples a stream has, and what is said of it."""
    model = nn.Linear(2, 1).double()
    optimizer = SGD(model.parameters(), lr=0.0)
    trainer = Trainer(model, nn.MSELoss(), optimizer, callbacks=[])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # From Python 3.12 on, where workers are forked beside threads.
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        with Run(model, optimizer, _Stream(), num_epochs=1, per_device_batch_size=4) as run:
            for inputs, targets in run.batches():
                run.backward((model(inputs) - targets).square().mean())
                run.step()
        trainer.train(_Stream(), num_epochs=1, per_device_batch_size=4)
    return {
        "warnings": [str(one.message) for one in caught],
        "samples": {"run": run.run_history.clock.samples, "trainer": trainer.run_history.clock.samples},
    }


PLACES = (
    "before backward 0", "after backward 0", "before backward 1", "after backward 1", "before step", "after step",
    "in evaluation", "after updates", "in evaluation after updates", "after evaluation",
)  # fmt: skip


def main() -> None:
    """Run all of them."""
    world = 1 if len(sys.argv) < 3 else int(sys.argv[2])
    results: dict[str, Any] = {
        "uneven": uneven(8 // world),
        "one_sample": one_sample(1),
        "one_sample_of_many": one_sample(4),
        "passes": passes(8 // world),
        "freezes": freezes(4 // world),
        **{f"asks {place}": asks(8 // world, place) for place in PLACES},
        **{f"critic, {order}": critic(4 // world, order) for order in ("sum", "penalty last", "penalty first")},
        "stream": stream(),
    }
    same = gather_objects(results)
    results["same"] = all(one == same[0] for one in same)
    Path(sys.argv[1]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
