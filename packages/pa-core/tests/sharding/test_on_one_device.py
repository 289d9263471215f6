"""A model that a script has sharded by itself, with all pieces on one process and one device.

What accelerate's plugin shards needs two processes, and NCCL a device for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy
from torch.optim import AdamW
from torch.utils.data import TensorDataset

from pa_core import SaveTrainingStateCallback, Trainer
from tests.cells import forget_accelerate_state
from tests.launching import free_port
from tests.support.sharded_models import TinyTransformer, sentences, sharded, whole_weights

IN_BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
DATA = TensorDataset(*sentences(48))


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.needs_cuda)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """The device of the test, in which this process is a process group of one."""
    found = torch.device(request.param)
    of_launcher = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    use_cpu = "true" if found.type == "cpu" else "false"
    deterministic = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "ACCELERATE_USE_CPU": use_cpu}
    for name, value in {**of_launcher, **deterministic, "MASTER_PORT": str(free_port())}.items():
        monkeypatch.setenv(name, value)
    forget_accelerate_state()
    dist.init_process_group("gloo" if found.type == "cpu" else "nccl")
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield found
    torch.use_deterministic_algorithms(False)
    dist.destroy_process_group()
    forget_accelerate_state()


def trained(
    device: torch.device, *callbacks: Any, settings: dict[str, Any] | None, **kwargs: Any
) -> Trainer[nn.Module]:
    """Train a model, sharded with some settings of torch, or not at all."""
    torch.manual_seed(0)
    model = TinyTransformer(width=8).to(device)
    model = model if settings is None else sharded(model, **settings)
    trainer = Trainer(model, nn.CrossEntropyLoss(), AdamW(model.parameters(), lr=1e-2), callbacks=callbacks)
    trainer.train(DATA, 1, per_device_batch_size=8, **kwargs)
    return trainer


def loss_of(trainer: Trainer[nn.Module]) -> float:
    """The mean loss of the epoch."""
    return float(trainer.run_history.get_latest_metric("train_loss_epoch"))


@pytest.mark.parametrize(
    ("settings", "tolerance"),
    [
        ({}, 1e-4),
        ({"mp_policy": IN_BF16}, 5e-2),
        ({"offload_policy": CPUOffloadPolicy(pin_memory=torch.cuda.is_available())}, 1e-4),
    ],
    ids=["in fp32", "in bf16", "pieces in host memory"],
)
def test_the_loss_is_that_of_the_whole_model(device: torch.device, settings: dict[str, Any], tolerance: float) -> None:
    """Up to rounding, in the precision of the sharding, and where the optimizer runs in host memory."""
    whole, pieces = trained(device, settings=None), trained(device, settings=settings)
    assert pieces.is_sharded
    assert loss_of(pieces) == pytest.approx(loss_of(whole), rel=tolerance)


def test_a_resumed_run_ends_with_the_same_bits(device: torch.device, tmp_path: Path) -> None:
    """It goes on from a state in its middle, which was saved in the background."""
    save = SaveTrainingStateCallback(tmp_path, save_every_n_steps=3, asynchronous=True)
    undisturbed = whole_weights(trained(device, save, settings={}).get_model())
    resumed = whole_weights(trained(device, settings={}, resume_from=tmp_path / "step_3").get_model())
    assert all(torch.equal(undisturbed[name], one) for name, one in resumed.items())
