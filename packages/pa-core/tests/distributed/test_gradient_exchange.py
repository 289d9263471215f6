"""Steps that do something of their own with the model on several processes: right, or refused by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector
from torch.optim import LBFGS, SGD
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import Trainer, gather_objects
from pa_core.distributed import rank
from pa_core.testing import RecordingCallback, TinyClassifier, make_classification, make_regression
from tests.support.callbacks import CallAt, TellAt

pytestmark = pytest.mark.runs_on("two_ranks")

Step = Callable[[Any, Tensor], Tensor]


def network() -> nn.Module:
    """The same network on each rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))


def weights_of(model: nn.Module) -> list[float]:
    """All parameters as one list."""
    return [float(value) for parameter in model.parameters() for value in parameter.detach().flatten()]


def assert_equal_on_all_ranks(model: nn.Module) -> None:
    """The processes have not drifted apart."""
    of_ranks = gather_objects(weights_of(model))
    assert of_ranks[0] == of_ranks[1]


class CallsItsOwnWay(Trainer[nn.Module]):
    """Calls the model as a test says."""

    call: Step

    @override
    def calculate_train_batch_loss(self, batch: Any) -> Any:
        outputs = self.call(self, batch[0])
        return {"loss": self.loss_func(outputs, batch[1]), "model_outputs": outputs, "batch_size": len(batch[1])}


def trainer_that(call: Step, model: nn.Module | None = None, **kwargs: Any) -> CallsItsOwnWay:
    """A trainer whose step calls the model so."""
    model = model or network()
    trainer = CallsItsOwnWay(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[], **kwargs)
    vars(trainer)["call"] = call
    return trainer


WAYS_THAT_ARE_FINE: dict[str, Step] = {
    "get_model": lambda trainer, inputs: trainer.get_model()(inputs),
    "its parts": lambda trainer, inputs: trainer.get_model()[2](trainer.get_model()[0](inputs)),
    "a part beside the whole": lambda trainer, inputs: trainer.model(inputs) + trainer.get_model()[0](inputs).mean(),
    "its forward": lambda trainer, inputs: trainer.model.forward(inputs),
    "twice": lambda trainer, inputs: trainer.model(inputs) + trainer.model(-inputs),
    "the whole afterwards without gradients": lambda trainer, inputs: (
        trainer.model(inputs) + trainer.get_model()(inputs).detach()
    ),
}


@pytest.mark.parametrize("way", WAYS_THAT_ARE_FINE)
def test_other_ways_to_call_the_model_raise_no_alarm(way: str) -> None:
    """With an uneven tail, and steps in which one process has no sample."""
    trainer = trainer_that(WAYS_THAT_ARE_FINE[way])
    trainer.train(make_regression(13), 2, per_device_batch_size=2, gradient_accumulation_steps=2)
    assert_equal_on_all_ranks(trainer.model)


class Sparse(nn.Module):
    """A model with gradients that are mostly zero, and not stored as such."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 1, sparse=True)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        numbers = (inputs[:, 0].abs() * 3).long().clamp(max=9)
        outputs: Tensor = self.embedding(numbers)
        return outputs


def frozen() -> nn.Module:
    """A part of it is not trained."""
    model = network()
    next(iter(model.parameters())).requires_grad_(False)
    return model


def with_ignored_part() -> nn.Module:
    """A part of it is trained on each process for itself, which torch is told of."""
    model = network()
    parallel: Any = DistributedDataParallel
    parallel._set_params_and_buffers_to_ignore_for_model(model, ["0.bias"])  # as torch documents it
    return model


@pytest.mark.parametrize("make", [Sparse, frozen, with_ignored_part, lambda: network().bfloat16()])
def test_gradients_of_other_kinds_raise_no_alarm(make: Callable[[], nn.Module]) -> None:
    """Sparse ones, those of half precision, and parameters without any."""
    model = make()
    dtype = next(model.parameters()).dtype
    data = TensorDataset(*(tensor.to(dtype) for tensor in make_regression(16).tensors))
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[])
    trainer.train(data, 1, per_device_batch_size=2)
    assert trainer.num_updates_completed == 4


@torch.no_grad()
def move(parameters: list[Tensor], by: list[Tensor], sign: int) -> None:
    """Change the weights without an optimizer."""
    for parameter, offset in zip(parameters, by, strict=True):
        parameter.add_(sign * offset)


def sharpness_aware(optimizer: SGD, loss_again: Callable[[], Tensor]) -> None:
    """An update by the gradients of the weights a little uphill, as SAM makes it."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    uphill = [0.05 * parameter.grad.sign() for parameter in parameters]
    move(parameters, uphill, sign=1)
    optimizer.zero_grad()
    torch.autograd.backward(loss_again())
    move(parameters, uphill, sign=-1)
    optimizer.step()


@dataclass
class Outputs:
    """What a model may return."""

    predictions: Tensor


class Wrapped(nn.Module):
    """A model that returns its predictions in a container."""

    def __init__(self, container: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.network = network()
        self.container = container

    @override
    def forward(self, inputs: Tensor) -> Any:
        return self.container(self.network(inputs))


CONTAINERS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "tensor": (lambda tensor: tensor, lambda outputs: outputs),
    "pair": (lambda tensor: (tensor, 1), lambda outputs: outputs[0]),
    "mapping": (lambda tensor: {"logits": [tensor]}, lambda outputs: outputs["logits"][0]),
    "dataclass": (Outputs, lambda outputs: outputs.predictions),
}


class SharpnessAware(Trainer[nn.Module]):
    """Runs a second forward and backward pass in the update, or in the step."""

    in_step: bool = False
    read: Callable[[Any], Tensor]

    @override
    def calculate_train_batch_loss(self, batch: Any) -> Any:
        self.batch = batch
        if self.in_step:
            torch.autograd.backward(self.loss_of_batch() * 0.5)
        return {"loss": self.loss_of_batch(), "model_outputs": batch[0], "batch_size": len(batch[1])}

    def loss_of_batch(self) -> Tensor:
        """The loss of the present weights."""
        loss: Tensor = self.loss_func(self.read(self.model(self.batch[0])), self.batch[1])
        return loss

    @override
    def optimizer_step(self) -> None:
        assert isinstance(self.optimizer, SGD)
        sharpness_aware(self.optimizer, self.loss_of_batch)


def train_by_hand(model: nn.Module, read: Callable[[Any], Tensor], data: TensorDataset, in_step: bool) -> None:
    """The same updates with plain DistributedDataParallel."""
    optimizer = SGD(model.parameters(), lr=0.1)
    parallel = DistributedDataParallel(model)
    for first in range(0, len(data), 4):
        inputs, targets = (tensor[first + 2 * rank() : first + 2 * rank() + 2] for tensor in data.tensors)

        def loss_of_batch(inputs: Tensor = inputs, targets: Tensor = targets) -> Tensor:
            return nn.functional.mse_loss(read(parallel(inputs)), targets)

        if in_step:
            torch.autograd.backward(loss_of_batch() * 0.5)
        torch.autograd.backward(loss_of_batch())
        sharpness_aware(optimizer, loss_of_batch)
        optimizer.zero_grad()


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("in_step", [False, True])
def test_a_second_pass_within_an_update_works_as_with_torch_alone(container: str, in_step: bool) -> None:
    """In the step or in the update, whatever container the model returns: the weights are those of the loop by hand."""
    put, read = CONTAINERS[container]
    model = Wrapped(put)
    by_hand = copy.deepcopy(model)
    data = make_regression(16)
    trainer = SharpnessAware(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[])
    vars(trainer).update(in_step=in_step, read=read)
    trainer.train(data, 1, per_device_batch_size=2, train_dataloader_kwargs={"shuffle": False})
    train_by_hand(by_hand, read, data, in_step)
    assert weights_of(model) == pytest.approx(weights_of(by_hand), rel=1e-6)
    assert_equal_on_all_ranks(model)


def test_a_process_without_samples_takes_part_in_a_second_pass() -> None:
    """The pass of the optimizer runs on each process by itself, and is not made up for; buffers stay the same."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))
    trainer = SharpnessAware(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[])
    vars(trainer).update(read=CONTAINERS["tensor"][1])
    trainer.train(make_regression(14), 2, per_device_batch_size=2)
    assert trainer.num_updates_completed == 8
    assert_equal_on_all_ranks(model)


def test_what_travels_with_the_gradients_arrives_beside_a_second_pass() -> None:
    """A wish of one process is known to all after the update, as without the second pass."""
    asked: list[int] = []
    note = TellAt("on_training_state_request", lambda _, told: asked.append(told["update"]))
    ask = CallAt("on_train_step_end", lambda one: one.request_training_state() if rank() else None, 2)
    model = network()
    trainer = SharpnessAware(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[ask, note])
    vars(trainer).update(read=CONTAINERS["tensor"][1])
    trainer.train(make_regression(16), 1, per_device_batch_size=2)
    assert gather_objects(asked) == [[3], [3]]


def of_inputs(_model: nn.Module, inputs: Tensor) -> list[Tensor]:
    """What the gradient penalty of a critic looks at."""
    return [inputs]


def of_weights(model: nn.Module, _inputs: Tensor) -> list[Tensor]:
    """What a penalty on the sharpness of a minimum looks at."""
    return list(model.parameters())


Wanted = Callable[[nn.Module, Tensor], list[Tensor]]


def penalised_loss(call: nn.Module, model: nn.Module, wanted: Wanted, batch: Any) -> Tensor:
    """The loss of a batch, and the squares of some of its gradients."""
    inputs = batch[0].clone().requires_grad_()
    loss = nn.functional.mse_loss(call(inputs), batch[1])
    gradients = torch.autograd.grad(loss, wanted(model, inputs), create_graph=True)
    return loss + torch.stack([gradient.square().sum() for gradient in gradients]).sum()


@pytest.mark.filterwarnings("ignore:Grad strides do not match:UserWarning")  # of torch, about its own speed
@pytest.mark.parametrize("wanted", [of_inputs, of_weights])
def test_a_penalty_on_gradients_trains_as_with_torch_alone(wanted: Wanted) -> None:
    """Gradients that a step asks for with `torch.autograd.grad`, and differentiates again."""

    class Penalised(Trainer[nn.Module]):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> Any:
            loss = penalised_loss(self.model, self.get_model(), wanted, batch)
            return {"loss": loss, "model_outputs": None, "batch_size": len(batch[1])}

    model, expected = network(), network()
    data = make_regression(8)
    trainer = Penalised(model, None, SGD(model.parameters(), lr=0.1), callbacks=[])
    trainer.train(data, 1, per_device_batch_size=2, train_dataloader_kwargs={"shuffle": False})

    optimizer = SGD(expected.parameters(), lr=0.1)
    for start in range(0, 8, 4):
        optimizer.zero_grad()
        for of_rank in (slice(start, start + 2), slice(start + 2, start + 4)):
            batch = [tensor[of_rank] for tensor in data.tensors]
            torch.autograd.backward(penalised_loss(expected, expected, wanted, batch) / 2)
        optimizer.step()
    assert_equal_on_all_ranks(model)
    assert weights_of(model) == pytest.approx(weights_of(expected), abs=1e-6)


class WithClosure(SharpnessAware):
    """An optimizer that evaluates the loss several times in an update."""

    @override
    def optimizer_step(self) -> None:
        def closure() -> float:
            self.optimizer.zero_grad()
            loss = self.loss_of_batch()
            torch.autograd.backward(loss)
            return 0.0  # torch would compare losses, which are not the same on each process

        self.optimizer.step(closure)


def test_an_optimizer_with_a_closure_trains_equally() -> None:
    """LBFGS calls it four times in each update."""
    model = network()
    optimizer = LBFGS(model.parameters(), lr=0.1, max_iter=4, tolerance_change=-1, tolerance_grad=0)
    trainer = WithClosure(model, nn.MSELoss(), optimizer, callbacks=[])
    vars(trainer).update(read=CONTAINERS["tensor"][1])
    before = weights_of(model)
    trainer.train(make_regression(16), 1, per_device_batch_size=2)
    assert weights_of(model) != before
    assert_equal_on_all_ranks(model)


class Skips(nn.Module):
    """A model that leaves its second layer out, in some of its calls."""

    def __init__(self, *, from_call: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 1), nn.Linear(1, 1)
        self.from_call, self.calls = from_call, 0

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        outputs: Tensor = self.first(inputs)
        return self.second(outputs) if self.calls < self.from_call else outputs


@pytest.mark.parametrize("from_call", [1, 3, 4])
def test_parameters_that_a_step_does_not_use_are_left_alone(from_call: int) -> None:
    """As on one process: they have no gradient, so that not even weight decay changes them."""
    model = Skips(from_call=from_call)
    optimizer = SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    trainer = Trainer(model, nn.MSELoss(), optimizer, callbacks=[])
    before = weights_of(model.second) if from_call == 1 else []
    note = CallAt("on_optimizer_step_end", lambda _: before.extend(weights_of(model.second)), from_call - 1)
    trainer.callback_handler.add_callback(note)
    trainer.train(make_regression(16), 1, per_device_batch_size=2)
    assert trainer.num_updates_completed == 4
    assert weights_of(model.second) == before
    assert_equal_on_all_ranks(model)


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


class WrapsItself(Trainer[nn.Module]):
    """Prepares the model as scripts do that replace the trainer's own preparation."""

    @override
    def _prepare_model_optimizer_and_dataloaders(self) -> None:
        self.model = self._accelerator.prepare_model(self.model)


def test_a_trainer_may_wrap_its_model_itself() -> None:
    """It trains as one that leaves it to the loop, also where one rank has no sample."""
    weights: list[Tensor] = []
    for kind in (Trainer[nn.Module], WrapsItself):
        torch.manual_seed(0)
        model = TinyClassifier()
        trainer = kind(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks=[])
        trainer.train(make_classification(2 * 2 * 4 + 1), 2, per_device_batch_size=4, gradient_accumulation_steps=2)
        weights.append(parameters_to_vector(model.parameters()))
    assert torch.equal(*weights)
