"""Models that were made on the meta device get their weights when they are sharded, a block at a time."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import AdamW
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import ConfigurationError, Trainer
from pa_core.model_tensors import is_sharded
from tests.support.pa_core.sharding.meta_models import MakesItsWeights, on_meta
from tests.support.pa_core.sharding.plugins import sharding
from tests.support.sharded_models import TinyTransformer, sentences, tiny_transformer, whole_weights

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
        (Forgetful, r"scale, of which Forgetful.init_weights\(\) makes nothing"),
        (Unresettable, r"scale, of which Unresettable.reset_parameters\(\) makes nothing"),
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
