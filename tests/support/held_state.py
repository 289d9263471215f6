"""Ways in which a script holds state that its steps or samples move on, and scripts whose weights depend on it."""

from __future__ import annotations

import array
import functools
import io
import itertools
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Sampler
from typing_extensions import override

from pa_core import Trainer

Move = Callable[[], float]
"""Moves the state on, and returns a number that depends on it."""

calls = 0
notes: list[float] = []
table = torch.zeros(2)


class Settings:
    """A class of the script that is never made an object of."""

    step: ClassVar[int] = 0
    history: ClassVar[list[int]] = []


@dataclass
class Nested:
    """An object within another one."""

    total: float = 0.0
    names: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Slotted:
    """An object without a dictionary."""

    step: int = 0
    last: float = field(init=False)


class Held:
    """An object that holds anything."""

    shared = 0

    def __init__(self, value: Any = None) -> None:
        self.value = value


def attribute() -> Move:
    """A number."""
    held = Held(0)

    def move() -> float:
        held.value += 1
        return float(held.value)

    return move


def new_attribute() -> Move:
    """An attribute that the first step makes."""
    held = Held()

    def move() -> float:
        vars(held)["step"] = vars(held).get("step", 0) + 1
        return float(vars(held)["step"])

    return move


def class_attribute() -> Move:
    """A number that all objects of a class share."""
    held = Held()

    def move() -> float:
        type(held).shared += 1
        return float(type(held).shared)

    return move


def class_without_objects() -> Move:
    """A class in the place of globals."""

    def move() -> float:
        Settings.step += 1
        Settings.history.append(Settings.step)
        return float(Settings.step + len(Settings.history))

    return move


def global_number() -> Move:
    """A global that is bound anew."""

    def move() -> float:
        global calls  # noqa: PLW0603  # that is the point
        calls += 1
        return float(calls)

    return move


def new_global() -> Move:
    """A global that the first step makes."""

    def move() -> float:
        globals()["made_late"] = globals().get("made_late", 0) + 1
        return float(made_late)  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore[reportUndefinedVariable]  # that is the point

    return move


def global_list() -> Move:
    """A global that grows."""

    def move() -> float:
        notes.append(1.0)
        return float(len(notes))

    return move


def global_tensor() -> Move:
    """A global tensor that is changed in place."""

    def move() -> float:
        table.add_(1)
        return table.sum().item()

    return move


def closure() -> Move:
    """A variable of the function around."""
    step = 0

    def move() -> float:
        nonlocal step
        step += 1
        return float(step)

    return move


def function_attribute() -> Move:
    """An attribute of the function itself."""

    def move() -> float:
        vars(move)["step"] = vars(move).get("step", 0) + 1
        return float(vars(move)["step"])

    return move


def default_argument() -> Move:
    """A default that is changed in place."""

    def move(seen: list[int] = []) -> float:  # noqa: B006  # that is the point
        seen.append(1)
        return float(len(seen))

    return move


def partial_argument() -> Move:
    """An argument that was bound."""

    def move(seen: dict[str, int]) -> float:
        seen["calls"] = seen.get("calls", 0) + 1
        return float(seen["calls"])

    return functools.partial(move, {})


def method() -> Move:
    """A bound method."""

    class Counter:
        def __init__(self) -> None:
            self.step = 0

        def move(self) -> float:
            self.step += 1
            return float(self.step)

    return Counter().move


def slots() -> Move:
    """Slots, of which one is empty."""
    held = Slotted()

    def move() -> float:
        held.step += 1
        held.last = getattr(held, "last", 0.0) + 2
        return held.step + held.last

    return move


def nested_object() -> Move:
    """An object in a tuple in a dictionary in an object."""
    held = Held({"parts": (Nested(), SimpleNamespace(step=0))})

    def move() -> float:
        first, second = held.value["parts"]
        first.total += 1
        first.names.append("a")
        second.step += 1
        return float(first.total + len(first.names) + second.step)

    return move


def _growing(value: Any, add: Callable[[Any, int], None], size: Callable[[Any], float] = len) -> Move:
    held = Held(value)

    def move() -> float:
        add(held.value, int(size(held.value)))
        return float(size(held.value))

    return move


def list_of_numbers() -> Move:
    """A list that grows."""
    return _growing([], lambda one, size: one.append(size))


def dict_of_lists() -> Move:
    """A list within a dictionary."""
    return _growing({"a": [0]}, lambda one, size: one["a"].append(size), lambda one: len(one["a"]))


def ordered_dict() -> Move:
    """The order of a dictionary, as a cache has it."""
    held = Held(OrderedDict((number, number) for number in range(7)))

    def move() -> float:
        held.value.move_to_end(next(iter(held.value)))
        return float(next(iter(held.value)))

    return move


def deque_of_tensors() -> Move:
    """A queue of negative samples."""
    return _growing(
        deque([torch.zeros(1)], maxlen=4),
        lambda one, _: one.append(one[-1] + 1),
        lambda one: sum(tensor.item() for tensor in one),
    )


def set_of_numbers() -> Move:
    """A set that grows."""
    return _growing(set(), lambda one, size: one.add(size))


def bytes_in_place() -> Move:
    """A bytearray."""
    return _growing(bytearray(1), lambda one, size: one.__setitem__(0, (size + 1) % 256), lambda one: one[0])


def typed_array() -> Move:
    """An array of Python's own."""
    return _growing(array.array("l", [0]), lambda one, size: one.__setitem__(0, size + 1), lambda one: one[0])


def numpy_array() -> Move:
    """An array that is changed in place."""
    return _growing(np.zeros(3), lambda one, _: one.__iadd__(1), lambda one: float(one.sum()))


def plain_tensor() -> Move:
    """A tensor that is no buffer, changed in place."""
    return _growing(torch.zeros(3), lambda one, _: one.add_(1), lambda one: one.sum().item())


def view_of_tensor() -> Move:
    """A row of a tensor."""
    return _growing(torch.zeros(3, 3)[1], lambda one, _: one.add_(1), lambda one: one.sum().item())


def rebound_tensor() -> Move:
    """A running mean."""
    held = Held(torch.zeros(3))

    def move() -> float:
        held.value = 0.9 * held.value + 1
        return float(held.value.sum())

    return move


def data_of_tensor() -> Move:
    """A tensor whose memory is replaced."""
    held = Held(nn.Parameter(torch.zeros(3), requires_grad=False))

    def move() -> float:
        held.value.data = held.value.data + 1
        return float(held.value.sum())

    return move


def thawed_parameter() -> Move:
    """A flag of a tensor."""
    held = Held(nn.Parameter(torch.zeros(3), requires_grad=False))

    def move() -> float:
        held.value.requires_grad_(not held.value.requires_grad)
        return float(held.value.requires_grad)

    return move


def generator_of_torch() -> Move:
    """A generator of one's own."""
    generator = torch.Generator().manual_seed(3)
    return lambda: torch.rand((), generator=generator).item()


def generator_of_numpy() -> Move:
    """As libraries for augmentation have."""
    held = Held(np.random.default_rng(3))
    return lambda: float(held.value.random())


def old_generator_of_numpy() -> Move:
    """As older ones have."""
    held = Held(np.random.RandomState(3))
    return lambda: float(held.value.rand())


def generator_of_python() -> Move:
    """A generator of Python."""
    return random.Random(3).random


def count() -> Move:
    """A counter of itertools."""
    held = Held(itertools.count(2))
    return lambda: float(next(held.value))


def position_in_list() -> Move:
    """An iterator over a list."""
    held = Held(iter([*range(100_000)]))
    return lambda: float(next(held.value))


def position_in_file() -> Move:
    """What is read like a file."""
    held = Held(io.BytesIO(bytes(range(256)) * 1000))
    return lambda: float(held.value.read(1)[0])


WAYS: dict[str, Callable[[], Move]] = {
    one.__name__: one
    for one in (
        *(attribute, new_attribute, class_attribute, class_without_objects, global_number, new_global, global_list),
        *(global_tensor, closure, function_attribute, default_argument, partial_argument, method, slots),
        *(nested_object, list_of_numbers, dict_of_lists, ordered_dict, deque_of_tensors, set_of_numbers),
        *(bytes_in_place, typed_array, numpy_array, plain_tensor, view_of_tensor, rebound_tensor, data_of_tensor),
        *(thawed_parameter, generator_of_torch, generator_of_numpy, old_generator_of_numpy, generator_of_python),
        *(count, position_in_list, position_in_file),
    )
}


class _Samples(Dataset[tuple[Tensor, Tensor]]):
    """Samples that depend on the state, if it is theirs."""

    def __init__(self, move: Move | None = None) -> None:
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.rand(32, 4, generator=generator)
        self.move = move

    def __len__(self) -> int:
        return len(self.inputs)

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs = self.inputs[index]
        return inputs, inputs.sum()[None] + (0.01 * self.move() if self.move else 0)


class _ChangedInPlace(_Samples):
    """Samples that are changed when they are fetched."""

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.inputs[index] += 0.1
        return super().__getitem__(index)


class _ListOfRecords(_Samples):
    """Records in a list, changed when they are fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[dict[str, Any]] = [{"factor": 1.0, "seen": [0]} for _ in self.inputs]

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.records[index]["factor"] *= 1.1
        inputs, targets = super().__getitem__(index)
        return inputs * self.records[index]["factor"], targets


class _Model(nn.Module):
    def __init__(self, move: Move | None) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.move = move

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs)
        return outputs + (0.01 * self.move() if self.move else 0)


def _scaled(_module: nn.Module, _args: Any, outputs: Any) -> Any:
    return outputs * 0.999


class _RegistersHooks(_Model):
    """Registers a hook in each forward pass, on a layer and on a parameter."""

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        self.layer.register_forward_hook(_scaled)
        weight: Any = self.layer.weight  # torch annotates the method only in part
        weight.register_hook(functools.partial(torch.mul, other=0.999))
        return super().forward(inputs)


class _WithBuffers(_Model):
    """Changes a buffer, a frozen parameter and the mode of a part in its forward pass."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__(None)
        self.register_buffer("steps", torch.zeros(()))
        self.teacher = nn.Linear(4, 1).requires_grad_(False)
        self.dropout = nn.Dropout(0.1)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        self.steps = self.steps + 1
        self.teacher.weight.data.lerp_(self.layer.weight.data, 0.1)
        outputs: Tensor = super().forward(self.dropout(inputs)) + 0.01 * self.steps + 0.1 * self.teacher(inputs)
        self.dropout.eval()
        return outputs


class _GrowsLate(_Model):
    """Makes a layer in its first forward pass, in a list that it may have."""

    def __init__(self) -> None:
        super().__init__(None)
        self.extra = nn.ModuleList()

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        self.extra.append(nn.Linear(1, 1).requires_grad_(False))
        return super().forward(inputs) + 0.01 * len(self.extra)


class _Loss(nn.Module):
    def __init__(self, move: Move) -> None:
        super().__init__()
        self.move = move

    @override
    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().mean() * (1 + 0.01 * self.move())


class _Steps(Trainer[Any]):
    move: Move

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        output["loss"] = output["loss"] * (1 + 0.01 * self.move())
        return output


class _Sampler(Sampler[int]):
    """Draws from a state of its own."""

    def __init__(self, move: Move) -> None:
        self.move = move

    def __len__(self) -> int:
        return 32

    @override
    def __iter__(self) -> Iterator[int]:
        return iter([int(self.move() * 1000) % 32 for _ in range(32)])


@dataclass
class StateScript:
    """A script up to the line that trains.

    Attributes:
        trainer: The trainer.
        arguments: The arguments of ``train``.
        move: What moves its state on; None where it is something else.
    """

    trainer: Trainer[Any]
    arguments: dict[str, Any]
    move: Move | None = None

    def weights_after(self) -> tuple[Any, ...]:
        """Train, and return the weights, and what the state is after it."""
        self.trainer.train(**self.arguments)
        weights = tuple(self.trainer.model.layer.weight.flatten().tolist())
        return *weights, None if self.move is None else self.move()


PLACES = ("dataset", "model", "loss_func", "step", "collate_fn", "sampler", "hook")
OTHERS: dict[str, Callable[[], tuple[_Model, _Samples]]] = {
    "samples_in_place": lambda: (_Model(None), _ChangedInPlace()),
    "records_in_place": lambda: (_Model(None), _ListOfRecords()),
    "hooks_in_forward": lambda: (_RegistersHooks(None), _Samples()),
    "buffers_and_frozen": lambda: (_WithBuffers(), _Samples()),
    "layers_in_forward": lambda: (_GrowsLate(), _Samples()),
}


def make(way: str, place: str = "") -> StateScript:
    """Return a script; two calls make the same one.

    Args:
        way: A name of `WAYS` or of `OTHERS`.
        place: A name of `PLACES`, for a way.
    """
    global calls
    calls, Settings.step, Held.shared = 0, 0, 0
    table.zero_()
    notes.clear()
    Settings.history.clear()
    globals().pop("made_late", None)
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    move = WAYS[way]() if way in WAYS else None
    # In a worker, a copy of the dataset would hold the state.
    arguments: dict[str, Any] = {"num_epochs": 2, "train_dataloader_kwargs": {"num_workers": 0}}
    model, data = (_Model(move if place == "model" else None), _Samples(move if place == "dataset" else None))
    loss_func: Any = nn.MSELoss()
    if move is None:
        model, data = OTHERS[way]()
    elif place == "loss_func":
        loss_func = _Loss(move)
    elif place == "collate_fn":
        arguments["collate_fn"] = functools.partial(_collate, move)
    elif place == "sampler":
        arguments["train_dataloader_kwargs"]["sampler"] = _Sampler(move)
    elif place == "hook":
        model.layer.register_forward_hook(functools.partial(_moving, move))
    arguments["train_dataset"] = data
    trainer_class = _Steps if place == "step" else Trainer
    optimizer = torch.optim.Adam(model.layer.parameters(), lr=0.01)
    trainer: Trainer[Any] = trainer_class(model, loss_func, optimizer, callbacks=[])
    if isinstance(trainer, _Steps) and move is not None:
        trainer.move = move
    return StateScript(trainer, arguments, move)


def _moving(move: Move, _module: nn.Module, _args: Any, outputs: Any) -> Any:
    return outputs * (1 + 0.01 * move())


def _collate(move: Move, samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    inputs, targets = zip(*samples, strict=True)
    return torch.stack(inputs) * (1 + 0.01 * move()), torch.stack(targets)
