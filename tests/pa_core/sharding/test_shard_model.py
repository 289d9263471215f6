"""What a plugin of accelerate asks for is sharded when the first run begins, with the weights of rank zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import Run, Trainer
from pa_core.data import epoch_order
from pa_core.sharded_tensors import is_sharded
from tests.support.sharded_models import TinyTransformer, sentences, tiny_transformer, whole_weights

TWO_RANKS = pytest.mark.runs_on("two_ranks")


def plugin(**settings: Any) -> Any:
    """A plugin as a script makes it."""
    from accelerate.utils import FullyShardedDataParallelPlugin

    return FullyShardedDataParallelPlugin(fsdp_version=2, **settings)


def sharding(model: nn.Module, optimizer: Optimizer | None, **settings: Any) -> Trainer[nn.Module]:
    """A trainer whose Accelerator has a plugin."""

    class Sharding(Trainer[nn.Module]):
        @override
        def _create_accelerator(self) -> Any:
            from accelerate import Accelerator

            return Accelerator(cpu=True, fsdp_plugin=plugin(**settings))

    return Sharding(model, nn.CrossEntropyLoss(), optimizer, callbacks=[])


def updated_by_hand(model: TinyTransformer, data: TensorDataset, seed: int | None) -> Mapping[str, Tensor]:
    """The weights after an epoch of updates by eight samples."""
    optimizer = AdamW(model.parameters(), lr=0.01)
    assert seed is not None
    for indices in torch.split(epoch_order(len(data), seed=seed, epoch=0).indices(0, len(data)), 8):
        words, classes = (tensor[indices] for tensor in data.tensors)
        torch.autograd.backward(nn.functional.cross_entropy(model(words), classes))
        optimizer.step()
        optimizer.zero_grad()
    return whole_weights(model)


@TWO_RANKS
def test_a_plugin_shards_what_the_trainer_was_given() -> None:
    """The first run splits the model in place, with an optimizer made before, and trains as one process does."""
    data = TensorDataset(*sentences(20))
    model = tiny_transformer(seed=dist.get_rank())
    expected = tiny_transformer(seed=0)
    optimizer = AdamW(model.parameters(), lr=0.01)
    trainer = sharding(
        model, optimizer, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Block"]
    )
    trainer.train(data, 1, per_device_batch_size=4)
    assert trainer.get_model() is model
    assert trainer.optimizer is optimizer
    assert all(is_sharded(parameter) for parameter in model.parameters())
    assert set(map(id, optimizer.param_groups[0]["params"])) == set(map(id, model.parameters()))
    by_hand = updated_by_hand(expected, data, trainer.run_config.seed)
    torch.testing.assert_close(whole_weights(model), by_hand, rtol=0, atol=1e-12)


@TWO_RANKS
def test_a_plugin_shards_what_a_run_was_given() -> None:
    """The same in a loop of one's own; its blocks are found where nobody names them."""
    data = TensorDataset(*sentences(20))
    model = tiny_transformer(seed=dist.get_rank())
    expected = tiny_transformer(seed=0)
    optimizer = AdamW(model.parameters(), lr=0.01)

    class Sharding(Run[nn.Module, Any]):
        @override
        def _create_accelerator(self) -> Any:
            from accelerate import Accelerator

            return Accelerator(cpu=True, fsdp_plugin=plugin())

    with Sharding(model, optimizer, data, num_epochs=1, per_device_batch_size=4) as run:
        for update in run.updates():
            for words, classes in update:
                update.backward(nn.functional.cross_entropy(model(words), classes))
            update.step()
    assert all(is_sharded(parameter) for parameter in model.parameters())
    by_hand = updated_by_hand(expected, data, run.run_config.seed)
    torch.testing.assert_close(whole_weights(model), by_hand, rtol=0, atol=1e-12)
