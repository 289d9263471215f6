"""Optimizers that functions make of sharded models, and the weights of models made on the meta device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import (
    ArgumentTypeError,
    CheckpointError,
    ConfigurationError,
    Run,
    SaveTrainingStateCallback,
    Trainer,
)
from pa_core._tensors import is_sharded
from tests.support.callbacks import CallAt
from tests.support.pa_core.sharding.meta_models import MakesItsWeights, on_meta
from tests.support.pa_core.sharding.plugins import accelerator_with, sharding
from tests.support.sharded_models import TinyTransformer, sentences, tiny_transformer, whole_weights

DATA = TensorDataset(*sentences(20))


class Sharding(Run[Any, Any]):
    """A loop of one's own that shards its models on several processes."""

    @override
    def create_accelerator(self) -> Any:
        return accelerator_with()


def adamw(model: nn.Module) -> Optimizer:
    """An optimizer of what is placed and, on several processes, sharded."""
    assert all(is_sharded(parameter) == dist.is_initialized() for parameter in model.parameters())
    return AdamW(model.parameters(), lr=0.01)


def trained(models: Mapping[str, nn.Module], run: Run[Any, Any]) -> dict[str, dict[str, Tensor]]:
    """The weights after an epoch in which each model learns to classify, alone."""
    torch.manual_seed(1)
    with run:
        for update in run.updates():
            for words, classes in update:
                if set(run.optimizers) == {"optimizer"}:
                    losses = [nn.functional.cross_entropy(model(words), classes) for model in models.values()]
                    update.backward(torch.stack(losses).sum())
                else:
                    for name, model in models.items():
                        update.backward(nn.functional.cross_entropy(model(words), classes), model=name)
            for name in run.optimizers:
                update.step(name)
    return {name: whole_weights(model) for name, model in models.items()}


def two_models() -> dict[str, nn.Module]:
    """Two classifiers."""
    return {"small": tiny_transformer(seed=1), "other": tiny_transformer(seed=2)}


def of_both(models: nn.Module) -> Optimizer:
    """One optimizer of all models."""
    return AdamW(models.parameters(), lr=0.01)


ARGUMENTS: dict[str, Any] = {"num_epochs": 1, "per_device_batch_size": 2}


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("is_named", [True, False])
def test_functions_in_a_loop_of_ones_own(is_named: bool) -> None:
    """One for all models, or one for each by name, with schedulers: as with optimizers that were made before."""
    models, expected = two_models(), two_models()
    given: Any = {"small": adamw, "other": adamw} if is_named else of_both
    before: Any = {name: of_both(one) for name, one in expected.items()} if is_named else None
    schedule = partial(ExponentialLR, gamma=0.9)
    arguments: dict[str, Any] = {**ARGUMENTS, "create_scheduler_fn": {"small": schedule} if is_named else schedule}
    run = Sharding(models, None, DATA, create_optimizer_fn=given, **arguments)
    assert not run.optimizers
    made = trained(models, run)
    assert run.optimizer is next(iter(run.optimizers.values()))
    by_hand = trained(expected, Sharding(expected, before or of_both(nn.ModuleDict(expected)), DATA, **arguments))
    torch.testing.assert_close(made, by_hand, rtol=0, atol=1e-12)
    assert not torch.equal(made["small"]["head.weight"], whole_weights(two_models()["small"])["head.weight"])


@pytest.mark.runs_on("one_process", "two_ranks")
def test_a_model_on_the_meta_device_in_a_loop_of_ones_own() -> None:
    """The function is called when the weights are there."""
    model = on_meta(MakesItsWeights)
    run = Sharding(model, None, DATA, create_optimizer_fn=adamw, **ARGUMENTS)
    trained({"model": model}, run)
    assert not any(parameter.is_meta for parameter in model.parameters())
    assert {*map(id, run.optimizer.param_groups[0]["params"])} == {*map(id, model.parameters())}
    assert len(run.optimizer.state) == len(list(model.parameters()))


@pytest.mark.runs_on("one_process", "two_ranks")
def test_a_run_resumes_with_an_optimizer_that_is_made(shared_tmp_path: Path) -> None:
    """The state of the optimizer is restored, and nothing differs."""

    def run(num_steps: int, **options: Any) -> dict[str, Tensor]:
        model = tiny_transformer()
        arguments: dict[str, Any] = {**ARGUMENTS, "max_num_train_steps": num_steps, **options}
        return trained({"model": model}, Sharding(model, None, DATA, create_optimizer_fn=adamw, **arguments))["model"]

    whole = run(4)
    states = SaveTrainingStateCallback(shared_tmp_path / "run")
    run(2, callbacks=[states])
    resumed = run(4, resume_from=shared_tmp_path / "run")
    torch.testing.assert_close(resumed, whole, rtol=0, atol=0)


@pytest.mark.runs_on("one_process", "two_ranks")
def test_a_checkpoint_before_the_first_run(shared_tmp_path: Path) -> None:
    """The optimizer in it has nobody to take it over yet: the error tells where there is, and the weights load."""
    path = shared_tmp_path / "checkpoint.pt"
    first = sharding(tiny_transformer(seed=4), None, adamw)
    first.train(DATA, 1, per_device_batch_size=2, max_num_train_steps=3)
    first.save_checkpoint(path, save_per_node=False)
    model = tiny_transformer()
    makers: list[Callable[[nn.Module], Trainer[Any] | Run[Any, Any]]] = [
        lambda model: sharding(model, None, adamw),
        lambda model: Sharding(model, None, DATA, create_optimizer_fn=adamw, **ARGUMENTS),
    ]
    for make in makers:
        maker = make(model)
        before = whole_weights(model)
        with pytest.raises(CheckpointError, match="on_training_run_start"):
            maker.load_checkpoint(path)
        torch.testing.assert_close(whole_weights(model), before, rtol=0, atol=0)
    trainer = sharding(model, None, adamw)
    trainer.load_checkpoint(path, load_optimizer=False)
    torch.testing.assert_close(whole_weights(model), whole_weights(first.get_model()), rtol=0, atol=0)

    def load(trainer: Any) -> None:
        trainer.load_checkpoint(path)
        assert next(iter(trainer.optimizer.state.values()))["step"].item() == 3

    trainer = sharding(tiny_transformer(), None, adamw)
    trainer.callback_handler.add_callback(CallAt("on_training_run_start", load))
    trainer.train(DATA, 1, per_device_batch_size=2, max_num_train_steps=1)
    assert trainer.num_updates_completed == 1
    with Sharding(model, None, DATA, create_optimizer_fn=adamw, **ARGUMENTS) as run:
        run.load_checkpoint(path)
        assert next(iter(run.optimizer.state.values()))["step"].item() == 3


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize(
    ("optimizer", "function", "message"),
    [
        (SGD([nn.Parameter(torch.ones(1))], lr=0.1), adamw, "optimizer=None, or leave create_optimizer_fn out"),
        (None, AdamW, r"lambda model: torch.optim.AdamW\(model.parameters\(\)"),
        (None, {"nobody": adamw}, "'nobody'"),
        (None, None, "no optimizer to train with"),
    ],
)
def test_what_cannot_be_meant(optimizer: Any, function: Any, message: str) -> None:
    """Both, a class, a name that no model has, and nothing at all are refused when the run is made."""
    with pytest.raises((ConfigurationError, ArgumentTypeError), match=message):
        Sharding(tiny_transformer(), optimizer, DATA, create_optimizer_fn=function, **ARGUMENTS)


def of_another_model(_model: nn.Module) -> Optimizer:
    """What trains nothing of the model."""
    return SGD([nn.Parameter(torch.ones(1))], lr=0.1)


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize(("function", "message"), [(nn.Sequential, "optimizer"), (of_another_model, "parameters")])
def test_what_a_function_must_not_return(function: Any, message: str) -> None:
    """No optimizer, or one of another model, ends the block when it is entered."""
    run = Sharding(tiny_transformer(), None, DATA, create_optimizer_fn=function, **ARGUMENTS)
    with pytest.raises((ConfigurationError, ArgumentTypeError), match=message), run:
        pass


WHEREVER = pytest.mark.runs_on("one_process", "two_ranks")


def started(model: nn.Module) -> Trainer[nn.Module]:
    """A trainer that has evaluated a model, which shards it, with an optimizer that was made before."""
    trainer = sharding(model, AdamW(model.parameters(), lr=0.01))
    torch.manual_seed(3 + (dist.get_rank() if dist.is_initialized() else 0))
    trainer.evaluate(TensorDataset(*sentences(4)))
    return trainer


FIRST_WEIGHT = {MakesItsWeights: 0.051459, TinyTransformer: -0.276245}
"""One of the weights as one process has made it, for several processes to have the same."""


@WHEREVER
@pytest.mark.parametrize("kind", FIRST_WEIGHT)
def test_weights_are_made(kind: type[TinyTransformer]) -> None:
    """By `init_weights()`, or else by `reset_parameters()`; alike on any number of processes; and they are trained."""
    model = on_meta(kind)
    trainer = started(model)
    weights = whole_weights(model)
    assert not any(parameter.is_meta for parameter in model.parameters())
    assert all(is_sharded(parameter) == dist.is_initialized() for parameter in model.parameters())
    assert not torch.equal(weights["blocks.0.attend.weight"], weights["blocks.1.attend.weight"])
    if isinstance(model, MakesItsWeights):
        assert torch.equal(model.table, torch.arange(7.0))
        attend = weights["blocks.0.attend.weight"]
        torch.testing.assert_close(attend.T @ attend, torch.eye(7))
        assert not weights["embed.weight"][0].any()
    assert weights["blocks.1.feed.0.weight"][0, 0].item() == pytest.approx(FIRST_WEIGHT[kind], abs=1e-4)
    trainer.train(TensorDataset(*sentences(8)), 1)
    assert not torch.equal(whole_weights(model)["head.weight"], weights["head.weight"])


class Scaled(MakesItsWeights):
    """A transformer with a parameter that cannot be split."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    @override
    def init_weights(self) -> None:
        super().init_weights()
        nn.init.ones_(self.scale)


@pytest.mark.runs_on("two_ranks")
def test_what_stays_whole() -> None:
    """Scalars and ignored modules do, although the parameters that the plugin was asked about had no memory."""
    model = on_meta(Scaled)
    trainer = sharding(model, AdamW(model.parameters(), lr=0.01), ignored_modules="embed")
    trainer.train(TensorDataset(*sentences(8)), 1)
    assert {name for name, one in model.named_parameters() if not is_sharded(one)} == {"scale", "embed.weight"}


class Forgetful(MakesItsWeights):
    """A transformer that makes all of its weights but one."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))


class Unresettable(TinyTransformer):
    """A transformer with a parameter that no method makes."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))


@WHEREVER
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Forgetful, r"scale, which Forgetful.init_weights\(\) does not set"),
        (Unresettable, r"scale, which Unresettable.reset_parameters\(\) does not set"),
    ],
)
def test_weights_that_nobody_makes(kind: type[TinyTransformer], message: str) -> None:
    """An error names the parameter, and what should make it."""
    with pytest.raises(ConfigurationError, match=message):
        started(on_meta(kind))


@pytest.mark.runs_on("two_ranks")
def test_weights_that_the_first_process_has_alone() -> None:
    """The others may leave a large model on the meta device, and get the weights of the first process."""
    expected = tiny_transformer()
    model = copy.deepcopy(expected)
    if dist.get_rank() > 0:
        model.to(device="meta")
    started(model)
    torch.testing.assert_close(whole_weights(model), whole_weights(expected), rtol=0, atol=0)
