"""The step of a trainer that overrides none: inputs and targets of a batch, or a model that returns its own loss."""

from __future__ import annotations

import textwrap
from collections import OrderedDict, UserDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from typing_extensions import override

from pa_core import ConfigurationError, Trainer
from pa_core.testing import TinyClassifier, make_classification
from tests.support.explained import assert_explained
from tests.support.models import weights_of

DATA = make_classification(20)


class Record(UserDict[str, Tensor]):
    """A batch with keys that is not a dict, as tokenizers return it."""


class Graph:
    """A batch with keys that is not even a mapping."""

    def __init__(self, **values: Tensor) -> None:
        self.values = values

    def keys(self) -> list[str]:
        """Names, as of a mapping."""
        return list(self.values)

    def __getitem__(self, key: str) -> Tensor:
        return self.values[key]


@dataclass
class Fields:
    """A batch with named fields and no indices."""

    x: Tensor
    y: Tensor


def stacked(samples: list[Any]) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a batch."""
    return torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples])


def trainer_of(model: nn.Module, loss_func: Any = None, kind: type[Trainer[Any]] = Trainer) -> Trainer[Any]:
    """A trainer of a model, without anything on the console."""
    return kind(model, loss_func, SGD(model.parameters(), lr=0.1), callbacks=[])


def made_with(make: Callable[[Tensor, Tensor], Any]) -> Callable[[list[Any]], Any]:
    """A function that collates samples into a batch of another kind."""
    return lambda samples: make(*stacked(samples))


REFUSED: dict[str, tuple[Callable[[list[Any]], Any], tuple[str, ...]]] = {
    "a tensor": (made_with(lambda x, _y: x), ("a Tensor of shape (4, 4) and dtype float32",)),
    "a tuple of one": (made_with(lambda x, _y: (x,)), ("a tuple of 1 [Tensor of shape (4, 4)",)),
    "a list of one": (made_with(lambda x, _y: [x]), ("a list of 1",)),
    "a dict": (
        made_with(lambda x, y: {"y": y, "x": x}),
        ("a dict {'y': Tensor of shape (4,) and dtype int64, 'x': Tensor of shape (4, 4) and dtype float32}",),
    ),
    "a mapping": (made_with(lambda x, y: Record(image=x, label=y)), ("a Record {'image'", "'label'")),
    "what has keys": (made_with(lambda x, y: Graph(x=x, y=y)), ("a Graph {'x'",)),
    "a dataclass": (made_with(Fields), ("a Fields(x=Tensor of shape",)),
    "a numpy array": (made_with(lambda x, _y: x.numpy()), ("a ndarray of shape (4, 4) and dtype float32",)),
    "a string": (lambda _samples: "a batch", ("a str",)),
    "nothing": (lambda _samples: None, ("None",)),
}
WITHOUT_TARGETS = {"a tensor", "a tuple of one", "a list of one"}
NO_TENSORS = {"a numpy array", "a string", "nothing"}


@pytest.mark.parametrize("name", REFUSED)
def test_a_batch_that_cannot_be_taken_apart_is_refused(name: str) -> None:
    """The error shows the structure of the batch, and a step to override that then trains on every sample."""
    collate, words = REFUSED[name]
    loss_func = nn.MSELoss() if name in WITHOUT_TARGETS else nn.CrossEntropyLoss()
    model = nn.Linear(4, 4) if name in WITHOUT_TARGETS else TinyClassifier()
    before = weights_of(model)

    with pytest.raises(ConfigurationError) as caught:
        trainer_of(model, loss_func).train(DATA, 1, per_device_batch_size=4, collate_fn=collate)

    assert_explained(caught.value, *words, "def calculate_train_batch_loss(self, batch):", "self.loss_func")
    assert torch.equal(before, weights_of(model))
    if name in NO_TENSORS:
        return
    body = textwrap.dedent(caught.value.do.partition("\n")[2])
    names: dict[str, Any] = {"Trainer": Trainer}
    exec(f"class Advised(Trainer):\n{textwrap.indent(body, '    ')}", names)  # the point is to try it out
    trainer = trainer_of(model, loss_func, names["Advised"])
    trainer.train(DATA, 3, DATA, per_device_batch_size=8, collate_fn=collate)
    losses = list(trainer.run_history.get_metric_values("eval_loss_epoch"))
    assert losses[-1] < losses[0]


def test_a_step_that_only_evaluates_is_named() -> None:
    """Where the training step is overridden, the error is about that of the evaluation."""

    class TrainsOnly(Trainer[nn.Linear]):
        @override
        def calculate_train_batch_loss(self, batch: Tensor) -> dict[str, Any]:
            outputs = self.model(batch)
            return {"loss": self.loss_func(outputs, batch), "model_outputs": outputs, "batch_size": len(batch)}

    trainer = trainer_of(nn.Linear(4, 4), nn.MSELoss(), TrainsOnly)
    with pytest.raises(ConfigurationError, match=r"def calculate_eval_batch_loss\(self, batch\)"):
        trainer.train(DATA, 1, DATA, collate_fn=made_with(lambda x, _y: x))


class Pair(NamedTuple):
    """A batch with names."""

    inputs: Tensor
    targets: Tensor


class Indexed:
    """A batch of a class of its own that has the two indices."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.parts = (x, y)

    def __getitem__(self, index: int) -> Tensor:
        return self.parts[index]


TAKEN: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "a list": lambda x, y: [x, y],
    "a named tuple": Pair,
    "three items": lambda x, y: (x, y, "names"),
    "a class with indices": Indexed,
    "a dict with these keys": lambda x, y: {0: x, 1: y},
}


@pytest.mark.parametrize("name", TAKEN)
def test_whatever_has_inputs_and_targets_at_0_and_1_trains_alike(name: str) -> None:
    """The kind of the batch changes nothing."""

    def weights(collate: Callable[[list[Any]], Any]) -> Tensor:
        torch.manual_seed(0)
        trainer = trainer_of(TinyClassifier(), nn.CrossEntropyLoss())
        trainer.train(DATA, 2, per_device_batch_size=8, collate_fn=collate)
        return weights_of(trainer.model)

    assert torch.equal(weights(made_with(TAKEN[name])), weights(stacked))


def first_feature(_outputs: Tensor, targets: Any) -> Tensor:
    """A loss that is the mean of the first of several targets."""
    mean: Tensor = targets["first"].mean() if isinstance(targets, dict) else targets[0].mean()
    return mean.requires_grad_()


SEVERAL: list[Callable[[Tensor], Any]] = [lambda x: (x[:, 0], x[:, 1]), lambda x: {"first": x[:, 0]}]


@pytest.mark.parametrize("targets", SEVERAL)
def test_several_targets_are_not_counted_as_samples(targets: Callable[[Tensor], Any]) -> None:
    """The mean loss of an epoch weighs each batch by its samples, also where the targets are several tensors."""
    trainer = trainer_of(TinyClassifier(), first_feature)
    trainer.train(DATA, 1, per_device_batch_size=16, collate_fn=made_with(lambda x, _y: (x, targets(x))))
    expected = DATA.tensors[0][:, 0].mean().item()
    assert trainer.run_history.get_latest_metric("train_loss_epoch") == pytest.approx(expected)


@dataclass
class ModelOutput(OrderedDict[str, Any]):
    """Outputs as Hugging Face's models return them: with attributes, and with keys for those that are not None."""

    logits: Any
    loss: Tensor | None = None

    def __post_init__(self) -> None:
        if isinstance(self.logits, dict):  # mixed precision makes a new one of converted items, as of any mapping
            vars(self).update(self.logits)
        super().__init__({name: value for name, value in vars(self).items() if value is not None})


@dataclass
class Attributes:
    """Outputs with attributes only."""

    logits: Tensor
    loss: Tensor | None = None


def in_dict(logits: Tensor, loss: Tensor | None = None) -> dict[str, Any]:
    """Outputs with keys only."""
    return {"logits": logits, "loss": loss}


class WithLoss(nn.Module):
    """A classifier that computes its own loss when it is given labels."""

    def __init__(self, make_output: Callable[..., Any] = ModelOutput) -> None:
        super().__init__()
        self.classifier = TinyClassifier()
        self.make_output = make_output

    @override
    def forward(self, pixels: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.classifier(pixels)
        if labels is None:
            return self.make_output(logits=logits)
        return self.make_output(logits=logits, loss=nn.functional.cross_entropy(logits, labels))


def named(samples: list[Any]) -> dict[str, Tensor]:
    """A batch for such a model."""
    x, y = stacked(samples)
    return {"pixels": x, "labels": y}


def losses_and_weights(model: nn.Module, loss_func: Any, collate: Any) -> list[float | Tensor]:
    """What a run with accumulation, and with a shorter last batch, leaves behind."""
    trainer = trainer_of(model, loss_func)
    trainer.train(DATA, 2, DATA, per_device_batch_size=3, gradient_accumulation_steps=2, collate_fn=collate)
    history = trainer.run_history
    losses = [*history.get_metric_values("train_loss_epoch"), *history.get_metric_values("eval_loss_epoch")]
    return [*(float(loss) for loss in losses), *model.parameters()]


@pytest.mark.runs_on("one_process", "two_ranks", "bf16")
@pytest.mark.parametrize("make_output", [ModelOutput, Attributes, in_dict])
def test_a_model_that_computes_its_own_loss_trains_without_an_override(make_output: Callable[..., Any]) -> None:
    """With `loss_func=None` its run is, to the bit, that of the same model and its loss as a loss function."""
    torch.manual_seed(0)
    mine = losses_and_weights(WithLoss(make_output), None, named)
    torch.manual_seed(0)
    expected = losses_and_weights(TinyClassifier(), nn.CrossEntropyLoss(), stacked)
    assert len(mine) == len(expected)
    for one, other in zip(mine, expected, strict=True):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))


def test_the_outputs_of_such_a_model_are_handed_on() -> None:
    """Callbacks get what the model returned, and the number of samples."""
    trainer = trainer_of(WithLoss())
    batch = named([DATA[index] for index in range(5)])
    output = trainer.calculate_eval_batch_loss(batch)
    assert isinstance(output["model_outputs"], ModelOutput)
    assert output["model_outputs"].logits.shape == (5, 3)
    assert output["batch_size"] == 5


@pytest.mark.parametrize("kind", [Record, Graph])
def test_such_a_model_takes_whatever_has_keys(kind: Callable[..., Any]) -> None:
    """A batch need not be a dict."""
    trainer = trainer_of(WithLoss())
    trainer.train(DATA, 1, per_device_batch_size=4, collate_fn=made_with(lambda x, y: kind(pixels=x, labels=y)))
    assert trainer.num_updates_completed == 5


def renamed(*names: str) -> Callable[[list[Any]], dict[str, Tensor]]:
    """Batches with inputs and targets under other names, or without targets."""
    return lambda samples: dict(zip(names, stacked(samples), strict=False))


NO_LOSS: dict[str, tuple[nn.Module, Callable[[list[Any]], Any], tuple[str, ...]]] = {
    "no labels": (
        WithLoss(),
        renamed("pixels"),
        ("'pixels': Tensor of shape", "ModelOutput", "in WithLoss.forward(self, pixels: ", "labels: "),
    ),
    "no labels, in a dict": (WithLoss(in_dict), renamed("pixels"), ("labels: ",)),
    "a model without a loss": (
        TinyClassifier(),
        renamed("inputs"),
        ("TinyClassifier.forward", "return the loss"),
    ),
    "not a mapping": (WithLoss(), stacked, ("loss_func=None", "a tuple of 2", "calculate_train_batch_loss")),
}


@pytest.mark.parametrize("name", NO_LOSS)
def test_without_a_loss_the_error_says_what_the_batch_lacks(name: str) -> None:
    """It shows what was in the batch and what the model returned."""
    model, collate, words = NO_LOSS[name]
    trainer = trainer_of(model)
    with pytest.raises(ConfigurationError) as caught:
        trainer.train(DATA, 1, collate_fn=collate)
    assert_explained(caught.value, *words)


def test_a_loss_function_in_the_way_of_such_a_model_is_named() -> None:
    """Where the model takes all that is in the batch, labels too, the advice is not to override the step."""
    with pytest.raises(ConfigurationError, match="Pass loss_func=None to the trainer: the model takes the labels"):
        trainer_of(WithLoss(), nn.CrossEntropyLoss()).train(DATA, 1, collate_fn=named)


def test_items_that_such_a_model_does_not_take_are_named() -> None:
    """Python's own error names the argument, and a note shows the batch."""
    trainer = trainer_of(WithLoss())
    with pytest.raises(TypeError, match=r"WithLoss.forward\(\) got an unexpected keyword argument 'text'") as caught:
        trainer.evaluate(DATA, collate_fn=renamed("pixels", "text"))
    assert "whose batch is a dict {'pixels': Tensor of shape" in caught.value.__notes__[0]


def test_an_error_of_the_model_itself_is_not_taken_for_one_of_the_batch() -> None:
    """A TypeError from within `forward` arrives as it is."""

    class Faulty(WithLoss):
        @override
        def forward(self, pixels: Tensor, labels: Tensor | None = None) -> Any:
            raise TypeError("a fault of the model")

    with pytest.raises(TypeError, match="a fault of the model"):
        trainer_of(Faulty()).train(DATA, 1, collate_fn=named)


class Scaled(TinyClassifier):
    """Has a tensor that is neither a parameter nor a buffer."""

    def __init__(self, scale: Tensor) -> None:
        super().__init__()
        self.scale = scale

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs * self.scale)


def test_a_tensor_that_does_not_move_with_the_model_is_explained() -> None:
    """Where torch fails because of it, a note says how to make it a buffer."""
    with pytest.raises(RuntimeError) as caught:
        trainer_of(Scaled(torch.ones(4, device="meta")), nn.CrossEntropyLoss()).train(DATA, 1)
    (note,) = [note for note in caught.value.__notes__ if "register_buffer" in note]
    assert "do not move with the model" in note


class NamedSteps(Trainer[WithLoss]):
    """Calls the model with the items of a batch."""

    @override
    def calculate_train_batch_loss(self, batch: dict[str, Any]) -> dict[str, Any]:
        output = self.model(**batch)
        return {"loss": output.loss, "model_outputs": output, "batch_size": len(batch["labels"])}


ROWS: Any = [{"pixels": pixels.tolist(), "labels": int(label)} for pixels, label in zip(*DATA.tensors, strict=True)]
"""Samples as `datasets` returns them when it was asked for no format."""


@pytest.mark.parametrize("kind", [Trainer, NamedSteps])
def test_lists_that_were_taken_apart_are_named(kind: type[Trainer[Any]]) -> None:
    """Collation makes a list of tensors of the lists in samples, with which no model can do anything."""
    with pytest.raises(TypeError) as caught:
        trainer_of(WithLoss(), None, kind).train(ROWS, 1, train_dataloader_kwargs={"num_workers": 0})
    notes = caught.value.__notes__
    assert any("'pixels' were collated by position" in note and 'with_format("torch")' in note for note in notes)


def test_lists_that_the_default_step_cannot_use_are_named() -> None:
    """A loss function beside a mapping would need a step of its own, which could not use them either."""
    trainer = trainer_of(TinyClassifier(), nn.CrossEntropyLoss())
    with pytest.raises(ConfigurationError, match=r'after with_format\("torch"\)'):
        trainer.train(ROWS, 1, train_dataloader_kwargs={"num_workers": 0})
