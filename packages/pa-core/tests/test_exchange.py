"""Another way to exchange gradients is one class, which a trainer and a custom loop use in place of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import AnyTrainer, ArgumentTypeError, Run, Trainer, UnsupportedConfigurationError
from pa_core.engine.exchange import Alone, BatchPlace, Exchange, Part
from tests.small_runs import make_trainer
from tests.support.pa_core.entries import Entry, StepTrainer, on_both_entries, train

torch.manual_seed(0)
DATA = TensorDataset(torch.randn(45, 4), torch.randn(45, 1))


class InOnePiece(Alone):
    """Averages gradients and flags after the backward passes, all in one tensor, and counts what it is asked to do."""

    def __init__(self) -> None:
        self.num_averaged = dist.get_world_size() if dist.is_initialized() else 1
        self.calls: list[str] = []
        self.num_samples = 0

    @override
    def add(self, part: Part, called: Mapping[str, nn.Module], *, overlaps: bool) -> None:
        self.calls.append("add")

    @override
    def start_batch(self, place: BatchPlace) -> None:
        self.num_samples += place.samples or 0

    @override
    def finish(self, part: Part, flags: Callable[[], Sequence[float]]) -> Tensor | None:
        self.calls.append("finish")
        if self.num_averaged == 1:
            return None
        parameters = [one for module in part.modules.values() for one in module.parameters()]
        gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
        own_flags = torch.tensor(flags())
        flat = torch.cat([*(one.flatten() for one in gradients), own_flags])
        dist.all_reduce(flat)
        *averaged, sums = torch.split(flat, [*(one.numel() for one in parameters), len(own_flags)])
        for one, gradient in zip(parameters, averaged, strict=True):
            one.grad = gradient.view_as(one) / self.num_averaged
        return sums

    @override
    def close(self) -> None:
        self.calls.append("close")


class HasOwn:
    """With this exchange."""

    def create_exchange(self) -> Exchange:
        """Keep it, to be looked at."""
        vars(self)["own"] = own = InOnePiece()
        return own


class OwnTrainer(HasOwn, StepTrainer):
    """A trainer."""


class OwnRun(HasOwn, Run[Any, Any]):
    """A custom loop."""


def trained(entry: Entry, **classes: Any) -> tuple[nn.Linear, AnyTrainer]:
    """Train a small model, whose last updates have shares of different sizes."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    options: dict[str, Any] = {"per_device_batch_size": 4, "gradient_accumulation_steps": 2, "gradient_clip_norm": 0.5}
    return model, train(entry, model, SGD(model.parameters(), lr=0.1), DATA, 2, **options, **classes)


@on_both_entries
@pytest.mark.runs_on("one_process", "two_ranks")
def test_another_exchange_trains_as_the_own_one(entry: Entry) -> None:
    """It is opened and closed with the run."""
    expected, _ = trained("Trainer")
    model, trainer = trained(entry, trainer_class=OwnTrainer, run_class=OwnRun)
    torch.testing.assert_close(model.state_dict(), expected.state_dict())
    exchange = vars(trainer)["own"]
    assert exchange.calls == ["add", *["finish"] * trainer.num_updates_completed, "close"]
    assert trainer.gather(torch.tensor([exchange.num_samples])).sum() == 2 * len(DATA)


def test_a_reproducible_run_needs_an_exchange_that_is_exact() -> None:
    """Another one is refused when the trainer is constructed."""
    model = nn.Linear(4, 1)
    with pytest.raises(UnsupportedConfigurationError, match="does not support reproducible runs"):
        OwnTrainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), [], reproducible="any_processes")


@pytest.mark.parametrize(
    ("returned", "given"),
    [(None, "NoneType"), (Alone, "the class Alone"), (object(), "object, without num_averaged, is_exact")],
)
def test_what_is_no_exchange_is_refused_when_the_trainer_is_made(returned: Any, given: str) -> None:
    """None, a class, or an object without the methods: not only once a run calls what is missing."""

    class Wrong(Trainer):
        @override
        def create_exchange(self) -> Exchange:
            exchange: Exchange = returned
            return exchange

    with pytest.raises(ArgumentTypeError, match=f"(?s)create_exchange did not return an exchange.*{given}"):
        make_trainer(Wrong)


@pytest.mark.parametrize(("returned", "given"), [(None, "NoneType"), ("cpu", "str")])
def test_what_is_no_accelerator_is_refused_when_the_trainer_is_made(returned: Any, given: str) -> None:
    """A missing return statement is named, instead of an attribute that None does not have."""

    class Wrong(Trainer):
        @override
        def create_accelerator(self) -> Any:
            return returned

    with pytest.raises(ArgumentTypeError, match=f"(?s)create_accelerator did not return an Accelerator.*{given}"):
        make_trainer(Wrong)
