"""Collectives that a step of the user's own calls, as docs/run.md shows them."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import SGD
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import AnyTrainer, Run, Trainer, gather_objects
from pa_data.orders import epoch_order
from tests.support.sharded_models import whole_weights

pytestmark = pytest.mark.runs_on("two_ranks")


def views(number: int) -> TensorDataset:
    """Pairs of views of the same things, in double precision."""
    things = torch.randn(number, 4, generator=torch.Generator().manual_seed(0)).double()
    return TensorDataset(things, things.flip(1))


def network() -> nn.Module:
    """The same network on each rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def contrast(first: Tensor, second: Tensor, row: int = 0) -> Tensor:
    """How well each view finds its other view among all of them, of which those of the first one begin at a row."""
    return nn.functional.cross_entropy(first @ second.T, torch.arange(row, row + len(first)))


def contrast_over_all(run: AnyTrainer, first: Tensor, second: Tensor, *, each_its_own: bool) -> Tensor:
    """Contrast the views of all processes: each process all of them, or its own ones with all of them."""
    if not each_its_own:
        return contrast(*run.gather((first, second), with_gradient=True))
    rows = gather_objects(len(first))
    row = 0 if isinstance(run, Run) and run.is_padding_batch else sum(rows[: run.process_index])
    return contrast(first, run.gather(second, with_gradient=True), row)


def train_by_hand(model: nn.Module, data: TensorDataset, seed: int | None, batches: Sequence[int]) -> list[float]:
    """Train on whole batches of some sizes, as one process would, and return their losses."""
    optimizer = SGD(model.parameters(), lr=0.1)
    losses: list[float] = []
    assert seed is not None
    for epoch in range(2):
        order = epoch_order(len(data), seed=seed, epoch=epoch).indices(0, sum(batches))
        for indices in torch.split(order, list(batches)):
            optimizer.zero_grad()
            loss = contrast(*(model(tensor[indices]) for tensor in data.tensors))
            torch.autograd.backward(loss)
            optimizer.step()
            losses.append(loss.item())
    return losses


class Contrastive(Trainer[nn.Module]):
    """Contrasts the samples of all processes."""

    each_its_own = False

    @override
    def calculate_train_batch_loss(self, batch: Any) -> Any:
        first, second = self.model(torch.cat(batch)).chunk(2)
        loss = contrast_over_all(self, first, second, each_its_own=self.each_its_own)
        return {"loss": loss, "model_outputs": first, "batch_size": len(first)}


@pytest.mark.parametrize("each_its_own", [False, True])
@pytest.mark.parametrize("shards", [False, True])
def test_a_contrastive_loss_over_all_processes_is_that_of_the_whole_batch(shards: bool, each_its_own: bool) -> None:
    """Updates and the reported loss are those of one process, also with fewer rows on one rank, sharded or not."""
    data, model = views(11), network()
    by_hand = copy.deepcopy(model)
    if shards:
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    trainer = Contrastive(model, None, SGD(model.parameters(), lr=0.1), callbacks=[])
    trainer.each_its_own = each_its_own
    trainer.train(data, 2, per_device_batch_size=3)
    losses = train_by_hand(by_hand, data, trainer.run_config.seed, [6, 5])
    torch.testing.assert_close(whole_weights(model), whole_weights(by_hand), rtol=0, atol=1e-12)
    means = [(6 * losses[epoch] + 5 * losses[epoch + 1]) / 11 for epoch in (0, 2)]
    assert trainer.run_history.get_metric_values("train_loss_epoch") == pytest.approx(means, rel=1e-12)


@pytest.mark.parametrize("each_its_own", [False, True])
@pytest.mark.parametrize("shards", [False, True])
def test_a_process_without_samples_takes_part_in_a_contrastive_loss(shards: bool, each_its_own: bool) -> None:
    """In a loop of one's own its rows and its loss count for nothing, even one that is not finite."""
    data, model = views(13), network()
    by_hand = copy.deepcopy(model)
    if shards:
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    empty = 0
    with Run(model, SGD(model.parameters(), lr=0.1), data, num_epochs=2, per_device_batch_size=3) as run:
        for _ in run.epochs():
            for update in run.updates():
                for batch in update:
                    first, second = run.model(torch.cat(batch)).chunk(2)
                    run.gather(first, with_gradient=True)  # which the loss has nothing to do with
                    loss = contrast_over_all(run, first, second, each_its_own=each_its_own)
                    if update.is_empty:
                        empty += 1
                        loss = loss + math.nan
                    update.backward(loss)
                update.step()
    assert sum(gather_objects(empty)) == 2
    train_by_hand(by_hand, data, run.run_config.seed, [6, 6, 1])
    torch.testing.assert_close(whole_weights(model), whole_weights(by_hand), rtol=0, atol=1e-12)


class Gathers(Trainer[nn.Module]):
    """Gathers without gradients."""

    @override
    def calculate_train_batch_loss(self, batch: Any) -> Any:
        of_all = self.gather(self.model(batch[0]))
        assert not of_all.requires_grad
        return {"loss": self.model(batch[0]).mean(), "model_outputs": of_all, "batch_size": len(batch[0])}


def test_gather_carries_no_gradient() -> None:
    """On several processes, and with drop_last=True no process waits in it for another."""
    model = network()
    trainer = Gathers(model, None, SGD(model.parameters(), lr=0.1), callbacks=[])
    trainer.train(views(13), 1, per_device_batch_size=2, train_dataloader_kwargs={"drop_last": True})
    assert gather_objects(trainer.num_updates_completed) == [3] * dist.get_world_size()
