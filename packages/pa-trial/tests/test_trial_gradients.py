"""Two ranks train as one process would on the batches of both."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from typing_extensions import override

from pa_distributed import RanksDifferError, gather_objects
from pa_trial.collectives import rank
from pa_trial.errors import InvalidExperimentException
from tests.support.pa_trial.batches import Batches, OneWeight

pytestmark = pytest.mark.runs_on("two_ranks")

RANKS = 2

Backward = Callable[[Tensor], object]
Step = Callable[[torch.optim.Optimizer], object]


class Trained:
    """What is trained by hand, or by two ranks; each of its models has an optimizer."""

    models: Sequence[nn.Module]
    optimizers: Sequence[torch.optim.Optimizer]

    def train_batch(self, batch_idx: int, ranks: Sequence[int], backward: Backward, step: Step) -> None:
        """Train on what these ranks have in a batch: the loss is the mean of theirs."""
        raise NotImplementedError


def assert_trains_as_one_process(
    make: Callable[[], Trained], count: int, aggregation: int = 1, *, averages: bool = False
) -> None:
    """Two ranks end as a loop by hand on the batches of both."""
    by_hand, on_two, trained = make(), make(), Batches(aggregation)
    for batch_idx in range(count):

        def step(optimizer: torch.optim.Optimizer, *, is_due: bool = (batch_idx + 1) % aggregation == 0) -> None:
            if is_due:
                step_and_zero(optimizer)

        by_hand.train_batch(
            batch_idx, range(RANKS), lambda loss: torch.autograd.backward(loss / (aggregation if averages else 1)), step
        )
    for model in on_two.models:
        trained.parts.wrap_model(model)
    for optimizer in on_two.optimizers:
        trained.parts.wrap_optimizer(optimizer, average_aggregated_gradients=averages)
    trained.train(
        lambda batch_idx: on_two.train_batch(batch_idx, [rank()], trained.parts.backward, trained.parts.step_optimizer),
        count,
    )
    for model, expected in zip(on_two.models, by_hand.models, strict=True):
        torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=1e-5, atol=1e-6)
    assert_same_on_all_ranks(on_two.models)


def step_and_zero(optimizer: torch.optim.Optimizer) -> None:
    """What a loop by hand does."""
    optimizer.step()
    optimizer.zero_grad()


def assert_same_on_all_ranks(models: Sequence[nn.Module]) -> None:
    """All ranks have the same models, bit by bit."""
    of_each = gather_objects([model.state_dict() for model in models])
    torch.testing.assert_close(of_each, of_each[:1] * RANKS, rtol=0, atol=0)


class Pass(NamedTuple):
    """A backward pass: on each rank, which parameters its loss depends on."""

    reached_by: tuple[frozenset[int], frozenset[int]]


class Drawn(Trained):
    """Two models of two parameters each, with passes whose losses depend on some of them.

    Args:
        batches: The passes of each batch.
    """

    def __init__(self, batches: Sequence[Sequence[Pass]]) -> None:
        torch.manual_seed(0)
        self._batches = batches
        self._parameters = [nn.Parameter(torch.randn(shape)) for shape in ((3,), (2, 2)) * 2]
        self.models = [nn.ParameterList(self._parameters[:2]), nn.ParameterList(self._parameters[2:])]
        # Weight decay tells a gradient of zero from none.
        self.optimizers = [SGD(one.parameters(), lr=0.1, momentum=0.5, weight_decay=0.1) for one in self.models]

    @override
    def train_batch(self, batch_idx: int, ranks: Sequence[int], backward: Backward, step: Step) -> None:
        for one in self._batches[batch_idx]:
            backward(
                torch.stack([self._loss(one.reached_by[i], 0.1 + 0.3 * i + 0.05 * batch_idx) for i in ranks]).mean()
            )
        for optimizer in self.optimizers:
            step(optimizer)

    def _loss(self, reached: frozenset[int], scale: float) -> Tensor:
        # Through a leaf of its own, it can be differentiated also where it depends on none.
        start = torch.zeros((), requires_grad=True)
        return start + sum(((scale * self._parameters[index]) ** 2).sum() for index in reached)


subsets = st.frozensets(st.integers(0, 3))
passes = st.builds(Pass, st.tuples(subsets, subsets))


@settings(max_examples=60)
@given(st.lists(st.lists(passes, min_size=1, max_size=3), min_size=1, max_size=6), st.integers(1, 3), st.booleans())
def test_two_ranks_train_as_one_process_whatever_each_pass_reaches(
    batches: list[list[Pass]], aggregation: int, averages: bool
) -> None:
    """Any number of passes over two models, any parameters in each of them, others on each rank; groups of batches."""
    assert_trains_as_one_process(lambda: Drawn(batches), len(batches), aggregation, averages=averages)


DATA = torch.randn(7, RANKS, 4, 4, generator=torch.Generator().manual_seed(0))


class Gan(Trained):
    """A generator and a discriminator in turns; what the former sends through the latter is dropped."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.generator = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
        self.models = [self.generator, self.discriminator]
        self.optimizers = [AdamW(model.parameters(), 0.01) for model in self.models]

    @override
    def train_batch(self, batch_idx: int, ranks: Sequence[int], backward: Backward, step: Step) -> None:
        noise, real = DATA[batch_idx, [*ranks]].flatten(0, 1).chunk(2, dim=1)
        self.shield()
        fake = self.generator(noise)
        backward(self.discriminator(fake).mean())
        step(self.optimizers[0])
        self.expose()
        backward(self.discriminator(real).sigmoid().mean())
        backward(-self.discriminator(fake.detach()).sigmoid().mean())
        step(self.optimizers[1])

    def shield(self) -> None:
        """Keep the discriminator as it is while the generator trains."""

    def expose(self) -> None:
        """Let the discriminator train."""
        self.optimizers[1].zero_grad()


class FreezingGan(Gan):
    """Freezes the discriminator while the generator trains."""

    @override
    def shield(self) -> None:
        self.discriminator.requires_grad_(False)

    @override
    def expose(self) -> None:
        self.discriminator.requires_grad_(True)


class Unfreezing(Trained):
    """A layer is frozen when the model is wrapped, trained from the third batch, frozen again after the fifth."""

    def __init__(self) -> None:
        torch.manual_seed(2)
        self.model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
        self.model[0].requires_grad_(False)
        self.models = [self.model]
        self.optimizers = [SGD(self.model.parameters(), lr=0.1, momentum=0.9)]

    @override
    def train_batch(self, batch_idx: int, ranks: Sequence[int], backward: Backward, step: Step) -> None:
        self.model[0].requires_grad_(batch_idx in (2, 3, 4))
        backward(self.model(DATA[batch_idx, [*ranks]]).pow(2).mean())
        step(self.optimizers[0])


@pytest.mark.parametrize("kind", [Gan, FreezingGan, Unfreezing])
def test_what_is_trained_may_change_in_the_course_of_training(kind: Callable[[], Trained]) -> None:
    """Models in turns, gradients that are dropped, layers that are frozen for a while: as on one process."""
    assert_trains_as_one_process(kind, len(DATA))


def test_gradients_of_a_device_are_agreed_on_by_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where gradients are on a device, nothing is read from it: what was reached is agreed on over gloo beforehand."""
    monkeypatch.setattr(dist, "get_backend", lambda: "nccl")  # as with NCCL

    for kind in (Gan, Unfreezing):
        test_what_is_trained_may_change_in_the_course_of_training(kind)
    test_all_ranks_leave_after_the_same_group_when_one_is_asked_to()
    test_ranks_that_go_different_ways_are_told_so(batch_idx=3)


def test_gradients_are_the_means_as_soon_as_backward_returns() -> None:
    """What a trial clips or looks at by hand between ``backward`` and the step is the same on all ranks."""
    trained = OneWeight()
    seen: list[float] = []

    def train_batch(_: int) -> None:
        for _ in range(3):
            trained.backward()
            seen.append(trained.gradient)

    trained.train(train_batch, 1)

    assert seen == [1.5, 3.0, 4.5]


def test_a_rank_without_a_loss_takes_part() -> None:
    """A rank that skips its backward pass counts with a gradient of zero, when it steps."""
    trained = OneWeight()

    def train_batch(batch_idx: int) -> None:
        if rank() != batch_idx % RANKS:
            trained.backward()
        trained.parts.step_optimizer(trained.optimizer)

    trained.train(train_batch, 4)

    assert trained.value == -2 * (0.5 + 1.0)
    assert_same_on_all_ranks([trained.model])


def test_gradients_of_passes_that_the_trial_runs_itself_are_exchanged_before_the_step() -> None:
    """``loss.backward()`` instead of ``context.backward(loss)`` trains the same, also in a second training."""
    trained = OneWeight()

    def train_batch(_: int) -> None:
        torch.autograd.backward(trained.loss())
        trained.parts.step_optimizer(trained.optimizer)

    for _ in range(2):
        trained.train(train_batch, 1)

    assert trained.value == -2 * 1.5


@pytest.mark.parametrize("aggregation", [1, 2])
def test_a_step_by_hand_with_gradients_of_one_rank_is_refused(aggregation: int) -> None:
    """The ranks would train apart: after ``loss.backward()``, and in the midst of a group."""
    trained = OneWeight(aggregation_frequency=aggregation)

    def train_batch(_: int) -> None:
        (torch.autograd.backward if aggregation == 1 else trained.parts.backward)(trained.loss())
        trained.optimizer.step()

    with pytest.raises(InvalidExperimentException, match=r"context\.step_optimizer"):
        trained.train(train_batch, 1)
    assert trained.value == 0.0


def test_a_step_by_hand_with_gradients_that_were_exchanged_is_not_refused() -> None:
    """``optimizer.step()`` after ``context.backward(loss)`` is as good, without aggregation."""
    trained = OneWeight()

    def train_batch(_: int) -> None:
        trained.backward()
        step_and_zero(trained.optimizer)

    trained.train(train_batch, 2)

    assert trained.value == -2 * 1.5


def test_a_parameter_that_two_models_share_is_exchanged_once() -> None:
    """Its gradient is the mean, not the mean of means, and a step applies it once."""
    trained = OneWeight()
    trained.parts.wrap_model(nn.Sequential(trained.model, nn.Identity()))

    trained.train(trained.train_batch, 1)

    assert trained.value == -1.5


def test_gradients_of_several_kinds_of_numbers_are_exchanged() -> None:
    """Half and double precision and complex numbers, side by side in one model."""
    trained = Batches()
    model = nn.ParameterDict(
        {
            "half_one": nn.Parameter(torch.ones(3, dtype=torch.bfloat16)),
            "double_one": nn.Parameter(torch.ones(2, 2, dtype=torch.float64)),
            "complex_one": nn.Parameter(torch.ones(2, dtype=torch.complex64)),
            "strided_one": nn.Parameter(torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)),
        }
    )
    trained.parts.wrap_model(model)
    trained.parts.wrap_optimizer(SGD(model.parameters(), lr=1.0))

    def train_batch(_: int) -> None:
        losses = [((rank() + 1) * parameter).sum().abs().float() for parameter in model.values()]
        trained.parts.backward(torch.stack(losses).sum())

    trained.train(train_batch, 2)  # the second time, they are expected

    for parameter in model.values():
        torch.testing.assert_close(parameter.grad, torch.full_like(parameter, 3.0))


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_what_each_rank_reached_is_told_in_half_precision_too(half: torch.dtype) -> None:
    """Nothing is lost where the only gradients are of few digits."""
    trained = Batches()
    model = trained.parts.wrap_model(nn.ParameterList([torch.ones(2, dtype=half), torch.ones(2, dtype=half)]))
    trained.parts.wrap_optimizer(SGD(model.parameters(), lr=1.0))
    seen: list[list[bool]] = []

    def train_batch(batch_idx: int) -> None:
        model.zero_grad()
        used = [0] if batch_idx < 2 else [rank()]
        trained.parts.backward(torch.stack([model[index].sum() for index in used]).sum())
        seen.append([parameter.grad is not None for parameter in model])

    trained.train(train_batch, 4)

    assert seen == [[True, False], [True, False], [True, True], [True, True]]


def test_sparse_gradients_are_averaged() -> None:
    """Each rank has other rows; where both have one, it is the mean."""
    trained = Batches()
    model = trained.parts.wrap_model(nn.Embedding(4, 1, sparse=True))
    trained.parts.wrap_optimizer(SGD(model.parameters(), lr=1.0))
    before = model.weight.detach().clone()

    def train_batch(_: int) -> None:
        trained.parts.backward(model(torch.tensor([1, 2 + rank()])).sum())
        trained.parts.step_optimizer(trained.parts.optimizers[0])

    trained.train(train_batch, 2)  # the second time, they are expected

    torch.testing.assert_close(before - model.weight, torch.tensor([[0.0], [2.0], [1.0], [1.0]]))


def test_parameters_that_are_unfrozen_for_a_backward_pass_only_are_refused() -> None:
    """Each rank would step them with a gradient of its own."""
    trained = Batches()
    first, second = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1), requires_grad=False)
    trained.parts.wrap_model(nn.ParameterList([first, second]))
    trained.parts.wrap_optimizer(SGD([first, second], lr=1.0))

    def train_batch(batch_idx: int) -> None:
        second.requires_grad_(batch_idx == 1)
        torch.autograd.backward((first * second).sum())
        second.requires_grad_(False)
        trained.parts.step_optimizer(trained.parts.optimizers[0])

    with pytest.raises(InvalidExperimentException, match="were frozen again between a backward pass and the exchange"):
        trained.train(train_batch, 2)


def test_the_weights_are_those_of_the_chief_from_the_wrapping_on() -> None:
    """Ranks that draw other weights start from the same ones, buffers included."""
    trained = Batches()
    torch.manual_seed(rank())
    model = nn.BatchNorm1d(2)
    nn.init.normal_(model.weight)
    model.running_mean = torch.randn(2)

    assert trained.parts.wrap_model(model) is model

    assert_same_on_all_ranks([model])


UNUSABLE: list[tuple[Callable[[], nn.Module], type[Exception], str]] = [
    (lambda: nn.Linear(1, 2 + rank()), RanksDifferError, r"model 0: .*out_features=2.* on rank 0, .*out_features=3"),
    (lambda: nn.LazyLinear(1), InvalidExperimentException, "weight, bias of a lazy module"),
    (lambda: _sharded(nn.Linear(2, 2)), InvalidExperimentException, r"use pa_core\.Trainer"),
]


def _sharded(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    fully_shard(model)
    return model


@pytest.mark.parametrize(("make", "error", "text"), UNUSABLE, ids=["differs", "lazy", "sharded"])
def test_models_that_ranks_cannot_train_together_are_refused(
    make: Callable[[], nn.Module], error: type[Exception], text: str
) -> None:
    """Those of other shapes on each rank, those without weights that the chief could give, those that are sharded."""
    with pytest.raises(error, match=text):
        Batches().parts.wrap_model(make())


def test_buffers_follow_the_chief_at_the_start_of_a_group_and_in_a_validation() -> None:
    """Running statistics are those of the chief, also where a buffer is replaced by another tensor."""
    trained = Batches(aggregation_frequency=2)
    model = trained.parts.wrap_model(nn.BatchNorm1d(1, affine=True, momentum=1.0))
    trained.parts.wrap_optimizer(SGD(model.parameters(), lr=0.1))
    seen: list[float] = []

    def train_batch(batch_idx: int) -> None:
        assert model.running_mean is not None
        seen.append(model.running_mean.item())
        model(torch.full((2, 1), 10.0 * batch_idx + rank() + 1))
        model.running_mean = model.running_mean.clone()

    with trained.training():
        trained.run(train_batch, range(3))
        assert model.running_mean is not None
        assert model.running_mean.item() == 21.0 + rank()
        trained.parts.set_training(False)
        assert model.running_mean.item() == 21.0

    assert seen == [0.0, 1.0 + rank(), 11.0]


@contextmanager
def counted_collectives(monkeypatch: pytest.MonkeyPatch) -> Generator[list[str]]:
    """Yield a list that gets the name of each exchange."""
    calls: list[str] = []

    def counted(name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return function(*args, **kwargs)

    with monkeypatch.context() as patch:
        for name in ("all_reduce", "all_gather", "all_gather_object", "broadcast", "barrier"):
            patch.setattr(dist, name, partial(counted, name, getattr(dist, name)))
        yield calls


def test_buffers_of_all_kinds_follow_the_chief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of any dtype and shape, empty ones and None, in one exchange."""
    trained = Batches()
    model = trained.parts.wrap_model(nn.BatchNorm1d(3))
    trained.parts.wrap_optimizer(SGD(model.parameters(), lr=0.1))
    values = {
        "whole": torch.tensor(3 + rank()),
        "single_byte": torch.tensor([rank() == 0, False, True]),
        "halved": torch.full((3, 1), 0.5 + rank(), dtype=torch.float16),
        "complex_one": torch.full((2,), 1j + rank(), dtype=torch.complex128),
        "strided": torch.full((2, 3), rank(), dtype=torch.float64).T,
        "empty": torch.zeros(0, 4),
        "missing": None,
    }
    for name, value in values.items():
        model.register_buffer(name, value)

    with trained.training(), counted_collectives(monkeypatch) as calls:
        trained.run(lambda _: None, range(1))

    assert calls == ["broadcast"]
    assert_same_on_all_ranks([model])
    assert model.whole == 3


@pytest.mark.parametrize("where", ["everywhere", "on the chief", "elsewhere"])
def test_buffers_may_grow_alike_and_not_apart(where: str) -> None:
    """Those that grow on all ranks follow the chief's; on one rank only, they are an error instead of an abort."""
    trained = Batches()
    model = nn.Linear(1, 1)
    model.register_buffer("seen", torch.zeros(1))
    trained.parts.wrap_optimizer(SGD(trained.parts.wrap_model(model).parameters(), lr=0.1))
    grows = where == "everywhere" or (rank() == 0) == (where == "on the chief")

    def train_batch(_: int) -> None:
        model.seen = torch.full((90 if grows else 1,), float(rank()))

    with trained.training():
        trained.run(train_batch, range(1))
        if where == "everywhere":
            trained.parts.set_training(False)
            assert model.get_buffer("seen").tolist() == [0.0] * 90
        elif where == "elsewhere" and rank() == 0:  # which learns of the other's end
            trained.parts.set_training(False)
        else:
            with pytest.raises(RanksDifferError, match=r"seen(.|\n)*\(90,\) of torch.float32"):
                trained.parts.set_training(False)


def test_all_ranks_leave_after_the_same_group_when_one_is_asked_to() -> None:
    """The request of one rank travels with the gradients."""
    trained = OneWeight(aggregation_frequency=2)
    agreed: list[bool] = []

    def train_batch(batch_idx: int) -> None:
        if batch_idx == 2 and rank() == 1:
            trained.parts.ask_to_leave()
        trained.train_batch(batch_idx)
        agreed.append(trained.parts.leave_agreed)

    trained.train(train_batch, 4)

    assert agreed == [False, False, False, True]


def test_an_update_takes_one_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the ranks know what to expect; for a model without buffers, whatever the number of its parameters."""
    trained = Batches(aggregation_frequency=2)
    model = trained.parts.wrap_model(nn.Sequential(*[nn.Linear(2, 2) for _ in range(10)]))
    optimizer = trained.parts.wrap_optimizer(SGD(model.parameters(), lr=0.1))

    def train_batch(_: int) -> None:
        trained.parts.backward(model(torch.ones(1, 2)).sum())
        trained.parts.step_optimizer(optimizer, lambda parameters: nn.utils.clip_grad_norm_(parameters, 1.0))

    with trained.training():
        trained.run(train_batch, range(2))
        with counted_collectives(monkeypatch) as calls:
            trained.run(train_batch, range(2, 8))

    assert calls == ["all_reduce"] * 3


@pytest.mark.parametrize("batch_idx", [0, 3])
def test_ranks_that_go_different_ways_are_told_so(batch_idx: int) -> None:
    """A pass that one rank makes and the other does not is an error on both, not a wait; also in the first batch."""
    trained = OneWeight()

    def train_batch(index: int) -> None:
        if index == batch_idx and rank() == 0:
            trained.backward()
        trained.train_batch(index)

    with pytest.raises(RanksDifferError, match="diverged within a batch"):
        trained.train(train_batch, 5)


def test_backward_passes_outside_of_train_batch_stay_with_their_rank() -> None:
    """An attack in a validation, say: ranks may run different numbers of them."""
    trained = OneWeight()

    with trained.training():
        trained.run(trained.train_batch, range(1))
        trained.parts.set_training(False)
        for _ in range(rank() + 1):
            trained.backward()
        trained.model.zero_grad()
        trained.run(trained.train_batch, range(1, 2))

    assert trained.value == -2 * 1.5


def test_models_can_be_copied_and_saved_in_the_course_of_training_and_are_what_they_were_after_it() -> None:
    """Deep copies and pickles hold nothing of ours; no hook is left when the training ends, also by an exception."""
    trained = OneWeight()

    def train_batch(batch_idx: int) -> None:
        trained.backward()
        saved = io.BytesIO()
        torch.save(trained.model, saved)
        saved.seek(0)
        for clone in (copy.deepcopy(trained.model), torch.load(saved, weights_only=False)):
            clone(torch.ones(1, 1)).sum().backward()  # exchanges nothing
        trained.parts.step_optimizer(trained.optimizer)
        if batch_idx == 1:
            raise KeyError("interrupted")

    with pytest.raises(KeyError):
        trained.train(train_batch, 2)

    assert not any(
        hooks
        for part in (trained.model, trained.optimizer)
        for name, hooks in vars(part).items()
        if name.endswith("_hooks")
    )
    # A step of the user's own is no affair of ours any more.
    torch.autograd.backward(trained.loss())
    trained.optimizer.step()


def test_compressed_gradients_are_warned_of_as_they_are_not() -> None:
    """Whoever asks for less to travel is told that nothing changes."""
    trained = OneWeight()

    with pytest.warns(UserWarning, match="fp16_compression=True has no effect"):
        trained.parts.wrap_optimizer(trained.optimizer, fp16_compression=True)


@pytest.mark.parametrize("begun", [False, True])
def test_an_optimizer_with_parameters_of_no_model_is_refused(begun: bool) -> None:
    """Nothing would exchange their gradients; a group that is added in the course of training is looked at, too."""
    trained = OneWeight()
    stray = {"params": [nn.Parameter(torch.zeros(5))]}
    if not begun:
        trained.optimizer.add_param_group(stray)

    def train_batch(batch_idx: int) -> None:
        assert begun
        trained.optimizer.add_param_group(stray)
        trained.train_batch(batch_idx)

    with pytest.raises(InvalidExperimentException, match=r"shape \(5,\)"):
        trained.train(train_batch, 1)
