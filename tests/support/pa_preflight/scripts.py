"""What the corpus is made of: scripts up to the line that trains, each a small change of a base."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from pa_core import Trainer
from tests.support.pa_preflight.data import lines, pictures, points

Method: TypeAlias = Callable[[Any], Any] | Callable[[Any, Any], Any] | Callable[[Any, Any, Any], Any]
"""Of a model or a trainer, which is the first argument."""


_ADAM, _CROSS_ENTROPY, _SQUARES = partial(Adam, lr=0.01), nn.CrossEntropyLoss(), nn.MSELoss()


class Script(NamedTuple):
    """A trainer, and what its user is about to call ``train`` with."""

    trainer: Trainer
    arguments: dict[str, Any]


Make: TypeAlias = Callable[[], Script]


def _seeded(make: Make) -> Make:
    """Let a script have the same weights in each run, whatever was drawn before."""

    def seeded() -> Script:
        torch.manual_seed(0)
        return make()

    return seeded


class Mistake(NamedTuple):
    """A script with one mistake.

    Attributes:
        finding: The name of what must be found.
        make: Makes it.
        advice: A part of what the check advises.
        level: The level of the finding, where it is another one than of other such scripts.
    """

    finding: str
    make: Make
    advice: str
    level: str


class Planting:
    """Collects scripts with a mistake: ``planting[FINDING, NAME, ADVICE, LEVEL] = lambda: classes(...)``.

    The advice is that of the first script with the finding where it is left out, and so is the level where it is usual.
    """

    def __init__(self) -> None:
        self.cases: dict[str, Mistake] = {}
        self._advice: dict[str, str] = {}

    def __setitem__(self, key: tuple[str, ...], make: Make) -> None:
        finding, name, advice, level = (*key, "", "")[:4]
        assert name not in self.cases
        advice = advice or self._advice[finding]
        self._advice.setdefault(finding, advice)
        self.cases[name] = Mistake(finding, _seeded(make), advice, level)


class Healthy:
    """Collects scripts without a mistake: ``healthy[NAME] = lambda: classes(...)``."""

    def __init__(self) -> None:
        self.cases: dict[str, Make] = {}

    def __setitem__(self, name: str, make: Make) -> None:
        assert name not in self.cases
        self.cases[name] = _seeded(make)


class Net(nn.Module):
    """A model of some layers, parameters and buffers, and a function that computes with them."""

    def __init__(self, compute: Method, **parts: nn.Module | Tensor) -> None:
        super().__init__()
        self.compute = cast("Callable[..., Any]", compute)
        for name, part in parts.items():
            if isinstance(part, nn.Module | nn.Parameter):
                setattr(self, name, part)
            else:
                self.register_buffer(name, part)

    @override
    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.compute(self, *inputs, **named)


def layer(function: Callable[[Tensor], Tensor]) -> Net:
    """A layer without parameters: a function of its input."""

    def compute(_layer: Any, inputs: Tensor) -> Tensor:
        return function(inputs)

    return Net(compute)


def _kind(step: Method | None, methods: Mapping[str, Method], *, evaluates: bool) -> type[Trainer]:
    """A kind of trainer with some methods of its own, such as a step that returns a loss and the outputs."""

    def calculate(trainer: Any, batch: Any) -> dict[str, Any]:
        loss, outputs = cast("Any", step)(trainer, batch)
        parts = [*batch.values()] if isinstance(batch, Mapping) else batch
        return {"loss": loss, "model_outputs": outputs, "batch_size": len(parts[0])}

    own: dict[str, Any] = {**methods}
    if step is not None:
        own["calculate_train_batch_loss"] = calculate
    if evaluates:
        own["calculate_eval_batch_loss"] = own["calculate_train_batch_loss"]
    return cast("type[Trainer]", type("OwnTrainer", (Trainer,), own)) if own else Trainer


def script(
    model: nn.Module,
    loss: Callable[[Any, Any], Tensor] | None,
    data: Dataset[Any] | DataLoader[Any],
    *,
    train: Optimizer | Callable[[Iterable[Any]], Optimizer] = _ADAM,
    step: Method | None = None,
    evaluates: bool = False,
    methods: Mapping[str, Method] = {},
    callbacks: Iterable[Any] = (),
    **arguments: Any,
) -> Script:
    """A script that trains for three epochs with Adam and batches of 32, unless it says otherwise.

    Args:
        model: The model.
        loss: The loss function.
        data: What it trains on.
        train: Its optimizer, or what makes one of the parameters.
        step: A step of its own: of the trainer and a batch, it returns the loss and the outputs.
        evaluates: Whether it evaluates by its own step, too.
        methods: Methods that it overrides.
        callbacks: Its callbacks.
        arguments: What it calls ``train`` with besides.
    """
    optimizer = train if isinstance(train, Optimizer) else train(model.parameters())
    if not isinstance(data, DataLoader):
        arguments = {"per_device_batch_size": 32, **arguments}
    kind = _kind(step, methods, evaluates=evaluates)
    trainer = kind(model, loss, optimizer, callbacks=[*callbacks])
    return Script(trainer, {"train_dataset": data, "num_epochs": 3, **arguments})


def classes(
    model: nn.Module | None = None,
    loss: Callable[[Any, Any], Tensor] | None = _CROSS_ENTROPY,
    data: Dataset[Any] | DataLoader[Any] | None = None,
    **others: Any,
) -> Script:
    """The base of most scripts: a small network tells four classes apart."""
    return script(model or perceptron(8, 4), loss, points() if data is None else data, **others)


def numbers(
    model: nn.Module | None = None,
    loss: Callable[[Any, Any], Tensor] | None = _SQUARES,
    data: Dataset[Any] | DataLoader[Any] | None = None,
    **others: Any,
) -> Script:
    """The base of regressions: a small network predicts a number."""
    return script(model or perceptron(6, 1), loss, lines() if data is None else data, **others)


def images(
    model: nn.Module | None = None,
    loss: Callable[[Any, Any], Tensor] | None = _CROSS_ENTROPY,
    data: Dataset[Any] | DataLoader[Any] | None = None,
    **others: Any,
) -> Script:
    """The base of scripts with pictures: convolutions tell four classes apart."""
    return script(model or conv_net(), loss, pictures() if data is None else data, **others)


def perceptron(inputs: int, outputs: int, *, hidden: int = 32) -> nn.Sequential:
    """A network with one hidden layer."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def followed_by(model: nn.Sequential, *layers: nn.Module | Callable[[Tensor], Tensor]) -> nn.Sequential:
    """A network with more layers, or functions, behind it."""
    return nn.Sequential(*model, *(one if isinstance(one, nn.Module) else layer(one) for one in layers))


def with_layer(between: nn.Module, inputs: int = 8, outputs: int = 4) -> nn.Sequential:
    """A network with another layer behind the hidden one."""
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), between, nn.Linear(32, outputs))


def conv_net(outputs: int = 4, *, channels: int = 8) -> nn.Sequential:
    """A network for pictures of 8 x 8 pixels, with BatchNorm."""
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(channels * 4, outputs),
    )


def bag(words: int = 20, width: int = 16, outputs: int = 3, **options: Any) -> nn.Sequential:
    """A network for texts: the mean of the embeddings of tokens."""
    return nn.Sequential(nn.EmbeddingBag(words, width, **options), nn.Linear(width, outputs))
