"""Collectives that a step of the user's own calls, as docs/run.md shows them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_gather
from torch.optim import SGD
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import Trainer, gather_objects
from pa_core.data import epoch_order

pytestmark = pytest.mark.runs_on("two_ranks")


def views(number: int) -> TensorDataset:
    """Pairs of views of the same things, in double precision."""
    things = torch.randn(number, 4, generator=torch.Generator().manual_seed(0)).double()
    return TensorDataset(things, things.flip(1))


def network() -> nn.Module:
    """The same network on each rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def contrast(first: Tensor, second: Tensor) -> Tensor:
    """How well each view finds its other view among all of them."""
    return nn.functional.cross_entropy(first @ second.T, torch.arange(len(first)))


class Contrastive(Trainer[nn.Module]):
    """Contrasts the samples of all processes."""

    @override
    def calculate_train_batch_loss(self, batch: Any) -> Any:
        first, second = self.model(torch.cat(batch)).chunk(2)
        loss = contrast(self.gather_with_gradient(first), self.gather_with_gradient(second))
        return {"loss": loss, "model_outputs": first, "batch_size": len(first)}

    def gather_with_gradient(self, rows: Tensor) -> Tensor:
        """Return the rows of all processes, equally many of each, of which those of this one carry the gradient."""
        processes = self.num_processes
        of_all = list(self.gather(rows).chunk(processes))
        of_all[self.process_index] = processes * rows - ((processes - 1) * rows).detach()
        return torch.cat(of_all)


class WithTorch(Contrastive):
    """Gathers with the function of torch."""

    @override
    def gather_with_gradient(self, rows: Tensor) -> Tensor:
        gather: Any = all_gather
        return torch.cat(list(gather(rows)))


@pytest.mark.filterwarnings("ignore:torch.distributed.nn.functional.all_gather is deprecated:FutureWarning")
@pytest.mark.parametrize("trainer_class", [Contrastive, WithTorch])
def test_a_contrastive_loss_over_all_processes_is_that_of_the_whole_batch(trainer_class: type[Contrastive]) -> None:
    """Each process calculates the loss of the whole batch; updates and the reported loss are those of one process."""
    data, model = views(14), network()
    by_hand = copy.deepcopy(model)
    trainer = trainer_class(model, None, SGD(model.parameters(), lr=0.1), callbacks=[])
    trainer.train(data, 2, per_device_batch_size=3, train_dataloader_kwargs={"drop_last": True})
    assert trainer.num_updates_completed == 4
    assert trainer.run_config.seed is not None
    optimizer = SGD(by_hand.parameters(), lr=0.1)
    losses: list[float] = []
    for epoch in range(2):
        order = epoch_order(14, seed=trainer.run_config.seed, epoch=epoch).indices(0, 12)
        for indices in torch.split(order, 6):
            optimizer.zero_grad()
            loss = contrast(*(by_hand(tensor[indices]) for tensor in data.tensors))
            torch.autograd.backward(loss)
            optimizer.step()
            losses.append(loss.item())
    for one, other in zip(model.parameters(), by_hand.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-12)
    reported = trainer.run_history.get_metric_values("train_loss_epoch")
    assert reported == pytest.approx([sum(losses[:2]) / 2, sum(losses[2:]) / 2])


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
