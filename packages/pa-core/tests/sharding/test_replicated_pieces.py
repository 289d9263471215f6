"""A model on a mesh of two dimensions, each of whose pieces several processes have."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.launching import Launch

SCRIPT = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import AdamW
from torch.utils.data import TensorDataset

from pa_core import Trainer
from pa_data.orders import epoch_order

def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 1)).double()

dist.init_process_group("gloo")
torch.manual_seed(1)
inputs = torch.randn(4 * 16 + 9, 4, dtype=torch.float64)
targets = inputs.square().sum(dim=1, keepdim=True)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
model = network(seed=dist.get_rank() // 2)  # replicas begin with the same weights all the same
for module in (model[0], model[2], model):
    fully_shard(module, mesh=mesh)
trainer = Trainer(model, nn.MSELoss(), AdamW(model.parameters(), lr=0.01), callbacks=[])
arguments = {"per_device_batch_size": 2, "gradient_accumulation_steps": 2, "gradient_clip_norm": 0.5}
trainer.train(TensorDataset(inputs, targets), 1, **arguments)

alone = network(seed=0)
optimizer = AdamW(alone.parameters(), lr=0.01)
order = epoch_order(len(inputs), seed=trainer.run_config.seed, epoch=0).indices(0, len(inputs))
for indices in torch.split(order, 16):
    nn.functional.mse_loss(alone(inputs[indices]), targets[indices]).backward()
    norm = nn.utils.clip_grad_norm_(alone.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
assert trainer.num_updates_completed == 5
torch.testing.assert_close(trainer.gradient_norm, norm, rtol=1e-12, atol=0)
for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
    torch.testing.assert_close(ours.full_tensor(), theirs, rtol=0, atol=1e-12)
print("equal to one process")
"""


def test_five_updates_on_two_by_two_processes_are_those_of_one(launch: Launch) -> None:
    """Accumulated and clipped, with an uneven end, in float64."""
    done = launch(SCRIPT, ranks=4)
    assert done.status == 0
    assert done.output.count("equal to one process") == 4
