"""Wrapped models on two ranks: steps in which one has no sample, and backward passes in an order of one's own."""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.nn.utils import parameters_to_vector
from torch.optim import SGD
from typing_extensions import override

from pa_core import Trainer, UnsupportedConfigurationError, _accelerate, gather_objects
from pa_core.distributed import rank
from pa_core.distributed.agreement import Agreement
from pa_core.distributed.replicated_wrapping import ReplicatedWrapping
from pa_core.distributed.zero_pass import zero_loss
from pa_core.testing import RecordingCallback, TinyClassifier, make_classification

pytestmark = pytest.mark.runs_on("two_ranks")


class TwoViews(Trainer[TinyClassifier]):
    """Calls the model several times in a step, as contrastive learning does."""

    views = 2

    @override
    def calculate_train_batch_loss(self, batch: list[Tensor]) -> dict[str, Any]:
        inputs, targets = batch
        outputs = [self.model(inputs * (1 + view)) for view in range(self.views)]
        loss = self.loss_func(torch.stack(outputs).mean(0), targets)
        return {"loss": loss, "model_outputs": outputs, "batch_size": len(targets)}


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("views", [1, 2, 3])
def test_buffers_are_exchanged_as_often_as_the_other_rank_calls_the_model(views: int, accumulation: int) -> None:
    """A model with BatchNorm trains on a tail of two samples, which only the first rank gets."""
    torch.manual_seed(0)
    model = TinyClassifier(batch_norm=True)
    recorder = RecordingCallback()
    calls: list[int] = []
    model.register_forward_hook(lambda _module, inputs, _output: calls.append(len(inputs[0])))
    trainer = TwoViews(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks=[recorder])
    trainer.views = views

    trainer.train(
        make_classification(3 * 2 * 4 + 2), 2, per_device_batch_size=4, gradient_accumulation_steps=accumulation
    )

    first_rank, second_rank = 2 * (3 + 1), 2 * 3
    mine = first_rank if trainer.run_config.is_world_process_zero else second_rank
    assert recorder.events.count("on_train_step_end") == mine
    assert len(calls) == views * mine
    assert trainer.run_history.clock.samples == 2 * 26
    state = torch.cat([value.detach().double().flatten() for value in model.parameters()])
    assert torch.equal(*trainer.gather(state[None]))


class NotesExchanges(Trainer[nn.Module]):
    """Notes in each step whether its backward pass exchanges gradients."""

    exchanges: tuple[bool, ...] = ()

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        self.exchanges += (cast("Any", self.model).require_backward_grad_sync,)
        return super().calculate_train_batch_loss(batch)


class WrapsItself(NotesExchanges):
    """Prepares the model as scripts do that replace the trainer's own preparation."""

    @override
    def _prepare_model_optimizer_and_dataloaders(self) -> None:
        self.model = self._accelerator.prepare_model(self.model)


def test_a_trainer_may_wrap_its_model_itself() -> None:
    """It trains as one that leaves it to the loop: one exchange an update, also where one rank has no sample."""
    weights: list[Tensor] = []
    exchanges: list[tuple[bool, ...]] = []
    for kind in (NotesExchanges, WrapsItself):
        torch.manual_seed(0)
        model = TinyClassifier()
        trainer = kind(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks=[])
        trainer.train(make_classification(2 * 2 * 4 + 1), 2, per_device_batch_size=4, gradient_accumulation_steps=2)
        weights.append(parameters_to_vector(model.parameters()))
        exchanges.append(trainer.exchanges)
    assert torch.equal(*weights)
    assert exchanges[0] == exchanges[1]
    assert exchanges[0][:2] == (False, True)


def discriminator(*, batch_norm: bool = False) -> nn.Module:
    """The same small network on each rank, in double precision."""
    torch.manual_seed(1)
    middle = nn.BatchNorm1d(6) if batch_norm else nn.Tanh()
    return nn.Sequential(nn.Linear(4, 6), middle, nn.Linear(6, 1)).double()


def generator() -> nn.Module:
    """Another one, which makes inputs of noise."""
    torch.manual_seed(2)
    return nn.Linear(3, 4).double()


def wrapping_of(model: nn.Module, **kwargs: Any) -> ReplicatedWrapping:
    """A wrapping of a model for training, whose gradients carry what processes agree on; torch gets the arguments."""
    from accelerate import DistributedDataParallelKwargs

    wrapping = ReplicatedWrapping(
        _accelerate.create_accelerator(kwargs_handlers=[DistributedDataParallelKwargs(**kwargs)])
    )
    wrapping.wrap(model, for_training=True, num_carried=Agreement.NUM_VALUES)
    return wrapping


def parameters_of(model: nn.Module) -> list[Tensor]:
    """Its trainable parameters."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def drawn(update: int, of_rank: int, size: int) -> Tensor:
    """What a rank has in an update, which each of them can draw."""
    generator = torch.Generator().manual_seed(10 * update + of_rank)
    return torch.randn(5, size, generator=generator, dtype=torch.float64)


def losses_of_discriminator(critic: nn.Module, maker: nn.Module, update: int, of_rank: int) -> list[Tensor]:
    """Two losses from two forward passes, none of which has had its backward pass before the other."""
    real = critic(drawn(update, of_rank, 4))
    made = critic(maker(drawn(update, of_rank, 3)).detach())
    return [(1 - real).square().mean(), made.square().mean()]


def loss_of_generator(critic: nn.Module, maker: nn.Module, update: int, of_rank: int) -> Tensor:
    """A loss whose graph has both models."""
    loss: Tensor = (1 - critic(maker(drawn(update, of_rank, 3)))).square().mean()
    return loss


def train_pair_by_hand(critic: nn.Module, maker: nn.Module, updates: int) -> None:
    """The updates of two ranks on one process: by the mean of what would be their losses."""
    for update in range(updates):
        losses = [sum(losses_of_discriminator(critic, maker, update, of_rank)) for of_rank in range(2)]
        torch.autograd.backward(torch.stack([torch.as_tensor(loss) for loss in losses]).mean())
        apply_gradients(critic)
        of_ranks = [loss_of_generator(critic, maker, update, of_rank) for of_rank in range(2)]
        torch.autograd.backward(torch.stack(of_ranks).mean())
        apply_gradients(maker)
        critic.zero_grad()


@torch.no_grad()
def apply_gradients(model: nn.Module) -> None:
    """A step of gradient descent, after which there are no gradients."""
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.sub_(0.1 * parameter.grad)
        parameter.grad = None


def assert_equal_weights(model: nn.Module, expected: nn.Module) -> None:
    """Up to rounding in double precision, and to the bit on both ranks."""
    for parameter, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(parameter, other, rtol=0, atol=1e-12)
    first, second = gather_objects([parameter.tolist() for parameter in model.parameters()])
    assert first == second


@pytest.mark.parametrize("batch_norm", [False, True])
def test_two_models_train_as_on_one_process(batch_norm: bool) -> None:
    """Two forward passes before two backward passes, and a loss through both models: the updates of both are right."""
    critic, maker = discriminator(batch_norm=batch_norm), generator()
    expected = copy.deepcopy(critic), copy.deepcopy(maker)
    of_critic, of_maker = wrapping_of(critic), wrapping_of(maker)
    agreement = Agreement(torch.device("cpu"), num_processes=2)
    for update in range(3):
        for loss in losses_of_discriminator(critic, maker, update, rank()):
            sent = agreement.add_to(of_critic.carrier, loss, items=0.0)
            of_critic.backward(sent, parameters_of(critic), exchanges_gradients=True)
        agreement.before_update(of_critic.carrier, items=0.0, at_once=True)
        apply_gradients(critic)
        loss = agreement.add_to(of_maker.carrier, loss_of_generator(critic, maker, update, rank()), items=0.0)
        of_maker.backward(loss, parameters_of(maker), exchanges_gradients=True)
        agreement.before_update(of_maker.carrier, items=0.0, at_once=True)
        apply_gradients(maker)
    of_critic.unwrap()
    of_maker.unwrap()
    train_pair_by_hand(*expected, updates=3)
    assert_equal_weights(critic, expected[0])
    assert_equal_weights(maker, expected[1])


def test_a_backward_pass_leaves_the_gradients_of_other_models_alone() -> None:
    """Those that are there stay to the bit, and none appear where there were none."""
    critic, maker = discriminator(), generator()
    of_critic, of_maker = wrapping_of(critic), wrapping_of(maker)
    agreement = Agreement(torch.device("cpu"), num_processes=2)
    loss = agreement.add_to(of_critic.carrier, critic(drawn(0, rank(), 4)).mean(), items=0.0)
    of_critic.backward(loss, parameters_of(critic), exchanges_gradients=True)
    first, *others = parameters_of(critic)
    first.grad = None
    before = [str(parameter.grad) for parameter in others]
    loss = agreement.add_to(of_maker.carrier, loss_of_generator(critic, maker, 0, rank()), items=0.0)
    of_maker.backward(loss, parameters_of(maker), exchanges_gradients=True)
    assert first.grad is None
    assert [str(parameter.grad) for parameter in others] == before
    assert all(parameter.grad is not None for parameter in maker.parameters())


def test_gradients_stay_on_their_rank_until_they_are_exchanged() -> None:
    """The first batch of two is accumulated on each rank alone; the second one brings the mean of both to all."""
    model = discriminator()
    expected = copy.deepcopy(model)
    wrapping, agreement = wrapping_of(model), Agreement(torch.device("cpu"), num_processes=2)
    wrapping.backward(model(drawn(0, rank(), 4)).square().mean(), exchanges_gradients=False)
    first, second = gather_objects([str(parameter.grad) for parameter in model.parameters()])
    assert first != second
    loss = agreement.add_to(wrapping.carrier, model(drawn(1, rank(), 4)).square().mean(), items=0.0)
    wrapping.backward(loss, exchanges_gradients=True)
    for number in range(4):
        torch.autograd.backward(expected(drawn(number // 2, number % 2, 4)).square().mean() / 2)
    apply_gradients(model)
    apply_gradients(expected)
    assert_equal_weights(model, expected)


def test_several_passes_send_each_number_once() -> None:
    """Items that are counted between two passes of an update travel with the second; a request arrives as one."""
    model = discriminator()
    wrapping, agreement = wrapping_of(model), Agreement(torch.device("cpu"), num_processes=2)
    for _ in range(2):  # the second update starts from nothing
        for items in (3.0, 5.0 + rank()):
            agreement.save.is_asked = rank() == 1
            loss = agreement.add_to(wrapping.carrier, model(drawn(0, rank(), 4)).mean(), items)
            wrapping.backward(loss, parameters_of(model), exchanges_gradients=True)
        assert float(agreement.before_update(wrapping.carrier, items=99.0, at_once=True)) == 11.0
        assert agreement.save.take()
        model.zero_grad()


def test_a_rank_without_samples_takes_part_in_a_backward_pass() -> None:
    """It adds nothing to the gradients, whatever it computed."""
    model = discriminator(batch_norm=True)
    expected = copy.deepcopy(model)
    wrapping, agreement = wrapping_of(model), Agreement(torch.device("cpu"), num_processes=2)
    for update in range(2):
        loss = model(drawn(update, 0, 4)).square().mean() * 2  # the mean over the ranks halves it
        loss = agreement.add_to(wrapping.carrier, loss if rank() == 0 else zero_loss(model), items=0.0)
        wrapping.backward(loss, parameters_of(model), exchanges_gradients=True)
        agreement.before_update(wrapping.carrier, items=0.0, at_once=True)
        apply_gradients(model)
        torch.autograd.backward(expected(drawn(update, 0, 4)).square().mean())
        apply_gradients(expected)
    assert_equal_weights(model, expected)


class WithUnusedLayer(nn.Module):
    """A layer of it has no part in the output."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(4, 1).double(), nn.Linear(1, 1).double()

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.used(inputs)
        return outputs


def test_a_parameter_without_a_gradient_is_named() -> None:
    """The passes of an update together need to reach each of them, in any order."""
    model = WithUnusedLayer()
    wrapping, agreement = wrapping_of(model), Agreement(torch.device("cpu"), num_processes=2)

    def exchange(outputs: Tensor) -> None:
        loss = agreement.add_to(wrapping.carrier, outputs.mean(), items=0.0)
        wrapping.backward(loss, parameters_of(model), exchanges_gradients=True)

    inputs = drawn(0, rank(), 4)
    for _ in range(2):
        exchange(model(inputs))
        exchange(model.unused(inputs[:, :1]))
        wrapping.check_update()
        model.zero_grad()
    exchange(model(inputs))
    with pytest.raises(UnsupportedConfigurationError, match=r"no gradient for unused.bias, unused.weight\n"):
        wrapping.check_update()
    exchange(model(inputs))
    wrapping.start_epoch()
    wrapping.check_update()


def test_gradients_that_differ_after_the_exchange() -> None:
    """A hook may keep them apart: the names of the parameters are told before the processes train apart."""
    model = discriminator()
    wrapping, agreement = wrapping_of(model), Agreement(torch.device("cpu"), num_processes=2)
    wrapper: Any = wrapping.model
    wrapper.register_comm_hook(None, noop_hook)
    loss = agreement.add_to(wrapping.carrier, model(drawn(0, rank(), 4)).square().mean(), items=0.0)
    with pytest.raises(UnsupportedConfigurationError, match="not the same on all processes") as caught:
        wrapping.backward(loss, parameters_of(model), exchanges_gradients=True)
    assert "calculate_train_batch_loss" not in str(caught.value)


@pytest.mark.parametrize("argument", ["find_unused_parameters", "gradient_as_bucket_view"])
def test_other_settings_of_the_wrapper_are_heeded(argument: str) -> None:
    """Two passes, with a layer that has no part in them where torch was told to look for such."""
    model = WithUnusedLayer()
    model.unused.requires_grad_(argument == "find_unused_parameters")
    expected = copy.deepcopy(model.used)
    wrapping, agreement = wrapping_of(model, **{argument: True}), Agreement(torch.device("cpu"), num_processes=2)
    for update in range(3):
        for factor in (1, 2):
            loss = agreement.add_to(wrapping.carrier, model(factor * drawn(update, rank(), 4)).square().mean(), 1.0)
            wrapping.backward(loss, parameters_of(model), exchanges_gradients=True)
            for of_rank in range(2):
                torch.autograd.backward(expected(factor * drawn(update, of_rank, 4)).square().mean() / 2)
        assert float(agreement.before_update(wrapping.carrier, 1.0, at_once=True)) == 2.0
        apply_gradients(model.used)
        apply_gradients(expected)
    assert_equal_weights(model.used, expected)


def test_a_static_graph_is_refused() -> None:
    """Torch would not exchange anything, and the ranks would drift apart."""
    model = discriminator()
    wrapping = wrapping_of(model, static_graph=True)
    with pytest.raises(UnsupportedConfigurationError, match="static_graph"):
        wrapping.backward(model(drawn(0, rank(), 4)).mean(), parameters_of(model), exchanges_gradients=True)
