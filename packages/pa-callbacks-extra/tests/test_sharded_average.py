"""The average of a sharded model is that of the whole one, piece by piece."""

from __future__ import annotations

import contextlib
import copy
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import AdamW
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_callbacks_extra import ModelEma, ModelEmaCallback
from pa_checkpoint import StoredTensor
from pa_core import ConfigurationError, Trainer, TrainerCallback
from pa_core._tensors import local_pieces, whole_tensor
from tests.support.sharded_models import TinyTransformer, sentences, sharded, tiny_transformer, whole_weights

pytestmark = pytest.mark.runs_on("two_ranks")

WORDS, CLASSES = sentences(23)


class Peculiar(TinyTransformer):
    """Has what averages treat in ways of their own."""

    running: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("counter", torch.tensor(3))
        self.register_buffer("running", torch.rand(2), persistent=False)
        mask = torch.zeros(5, 2)
        mask[0, 1] = -math.inf  # which is in the piece of the first process
        self.mask = nn.Parameter(mask, requires_grad=False)
        self.coarse = nn.Parameter(torch.rand(3, 2).bfloat16(), requires_grad=False)
        self.tied = self.coarse


def peculiar(seed: int, *, shard: bool) -> Peculiar:
    """A model that is the same on each process, sharded or whole."""
    torch.manual_seed(seed)
    model = Peculiar()
    if shard:
        sharded(model)
    return model


def take_values(model: nn.Module, seed: int) -> None:
    """Give a model the values of another one."""
    other = peculiar(seed, shard=False)
    with torch.no_grad():
        for one, value in zip(model.parameters(), other.parameters(), strict=True):
            StoredTensor.of(value).read_into(one)
        for buffer, values in zip(model.buffers(), other.buffers(), strict=True):
            buffer.copy_(values)


def whole_values(module: nn.Module) -> dict[str, Tensor]:
    """Everything in the state dict, put together; every process must call this."""
    return {name: whole_tensor(one).clone() for name, one in module.state_dict().items() if isinstance(one, Tensor)}


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """Equal to the last bit, in the same precision."""
    assert one.keys() == other.keys()
    assert [
        name for name in one if not torch.equal(one[name], other[name]) or one[name].dtype != other[name].dtype
    ] == []


def test_an_average_of_pieces_is_that_of_the_whole() -> None:
    """To the last bit, under the same names: tied, frozen, infinite, in bfloat16; nothing but pieces is kept."""
    model, whole = peculiar(0, shard=True), peculiar(0, shard=False)
    average, expected = ModelEma(model, decay=0.9), ModelEma(whole, decay=0.9)
    assert_same(whole_values(average), whole_values(expected))
    for seed in (1, 2):
        take_values(model, seed)
        take_values(whole, seed)
        average.update(model)
        expected.update(whole)
    assert_same(whole_values(average), whole_values(expected))
    assert average.get_extra_state()["copied"] == ["counter", "mask"]
    assert torch.equal(average.get_extra_state()["other_buffers"]["running"], expected.module.running)
    pieces = [one.numel() for one in local_pieces(average.module.parameters())]
    assert pieces == [one.numel() for one in local_pieces(model.parameters())]
    with pytest.raises(ConfigurationError, match="Call the model within"):
        average(WORDS)


def test_an_update_exchanges_nothing() -> None:
    """One process may update its pieces alone."""
    model = peculiar(0, shard=True)
    average = ModelEma(model, decay=0.5)
    if dist.get_rank() == 0:
        average.update(model)
    dist.barrier()


def test_a_sharded_model_has_the_average_for_a_while() -> None:
    """It is called with the average, also after an evaluation, and has its own weights again, also after an error."""
    model, whole = peculiar(0, shard=True), peculiar(0, shard=False)
    average, expected = ModelEma(model, decay=0.9), ModelEma(whole, decay=0.9)
    take_values(model, 1)
    before = whole_weights(model)
    average.reset(model)
    take_values(model, 2)
    take_values(whole, 1)
    with torch.no_grad():
        own = model(WORDS)  # what is gathered now has the model's own weights
        with contextlib.suppress(KeyError), average.applied_to(model):
            torch.testing.assert_close(model(WORDS), whole(WORDS))
            assert_same(whole_weights(model), before)
            raise KeyError
        assert torch.equal(model(WORDS), own)
    assert expected.num_updates == average.num_updates == 0


def test_states_of_sharded_and_whole_averages_fit_each_other() -> None:
    """Either loads what the other one had, and goes on."""
    model, whole = peculiar(0, shard=True), peculiar(0, shard=False)
    average, other = ModelEma(model, decay=0.9), ModelEma(whole, decay=0.9)
    take_values(whole, 1)
    other.update(whole)
    average.load_state_dict(copy.deepcopy(other.state_dict()))
    assert average.num_updates == 1
    assert_same(whole_values(average), whole_values(other))
    again = ModelEma(peculiar(5, shard=True))
    again.load_state_dict(average.state_dict())
    assert_same(whole_values(again), whole_values(other))


def test_an_average_of_the_whole_model_is_refused_once_it_is_sharded() -> None:
    """The error says when to make it; nothing has changed."""
    model = peculiar(0, shard=False)
    average = ModelEma(model)
    sharded(model)
    with pytest.raises(ConfigurationError, match="Make the ModelEma of the model as it is trained"):
        average.update(model)
    assert average.num_updates == 0


@pytest.mark.parametrize("is_sharded_by", ["script", "trainer"])
def test_a_run_averages_evaluates_and_saves_as_one_without_sharding(is_sharded_by: str, shared_tmp_path: Path) -> None:
    """Metrics of the average, the file and the model at the end are those of a run of a whole model."""
    data = TensorDataset(WORDS, CLASSES)

    class Sharding(Trainer[nn.Module]):
        @override
        def create_accelerator(self) -> Any:
            from accelerate import Accelerator
            from accelerate.utils import FullyShardedDataParallelPlugin

            plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="no_wrap")
            return Accelerator(cpu=True, fsdp_plugin=plugin)

    def trained(kind: type[Trainer[nn.Module]], model: nn.Module, *callbacks: TrainerCallback) -> Trainer[nn.Module]:
        optimizer = AdamW(model.parameters(), lr=0.05)
        trainer = kind(model, nn.CrossEntropyLoss(), optimizer, callbacks=callbacks)
        trainer.train(data, 2, per_device_batch_size=4, eval_dataset=data)
        return trainer

    def averaging(name: str) -> ModelEmaCallback:
        return ModelEmaCallback(decay=0.8, save_path=shared_tmp_path / name)

    by_script = is_sharded_by == "script"
    model = sharded(tiny_transformer()) if by_script else tiny_transformer()
    average, expected = averaging("sharded.pt"), averaging("whole.pt")
    run = trained(Trainer if by_script else Sharding, model, average)
    whole = trained(Trainer, tiny_transformer(), expected)

    assert run.is_sharded
    assert not whole.is_sharded
    assert_close = partial(torch.testing.assert_close, rtol=0, atol=1e-9)
    for name in ("ema_model_eval_loss_epoch", "eval_loss_epoch"):
        one, other = (list(trainer.run_history.get_metric_values(name)) for trainer in (run, whole))
        assert_close(one, other)
    assert_close(whole_values(average.ema.module), whole_values(expected.ema.module))
    assert_close(whole_weights(run.get_model()), whole_weights(whole.get_model()))
    saved = [torch.load(shared_tmp_path / name, weights_only=True) for name in ("sharded.pt", "whole.pt")]
    assert_close(saved[0]["model_state_dict"], saved[1]["model_state_dict"])
    run.load_checkpoint(shared_tmp_path / "sharded.pt")
    assert_same(whole_weights(run.get_model()), saved[0]["model_state_dict"])
