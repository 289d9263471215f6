"""FSDP2 on one device: a model that a script has sharded by itself, with all pieces on one process.

What accelerate's plugin shards needs two processes, and NCCL a device for each of them.
"""

from __future__ import annotations

import functools
import os
import statistics
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer
from torch.utils.data import DataLoader

from pa_core import SaveTrainingStateCallback, Trainer
from tools.gpu.crashes import free_port
from tools.gpu.figures import NEEDS_TWO_DEVICES, attempt, not_measured, publish
from tools.gpu.loops import Loop, quietly, train_by_hand, train_with_trainer
from tools.gpu.models import GPT2
from tools.gpu.setting import Setting
from tools.gpu.tasks import TASKS, Samples, Task
from tools.gpu.window import Window, run_turn, synchronize

__all__ = ["measure"]

UPDATES = 6
WITHOUT_OFFLOAD, IN_FP32 = OffloadPolicy(), MixedPrecisionPolicy()
IN_BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def measure(setting: Setting) -> None:
    """Join a process group of one, then train, save, resume and export a sharded GPT-2."""
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    os.environ["MASTER_PORT"] = str(free_port())
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # for runs that are compared bit by bit
    if setting.on_cuda:
        torch.cuda.set_device(0)
    else:
        os.environ["ACCELERATE_USE_CPU"] = "true"
    dist.init_process_group("nccl" if setting.on_cuda else "gloo")
    task = TASKS["gpt2"](setting)
    for check in (check_loss, check_offload, check_resume, check_export, compare_steps):
        with attempt(f"FSDP2 on one device: {check.__name__.replace('_', ' ')}"):
            check(task, setting)
    for what in ("NCCL between processes", "settings of accelerate's plugin", "offloaded activations"):
        not_measured(f"FSDP2, {what}", NEEDS_TWO_DEVICES)
    dist.destroy_process_group()


def sharded(
    task: Task,
    setting: Setting,
    offload: OffloadPolicy = WITHOUT_OFFLOAD,
    precision: MixedPrecisionPolicy = IN_FP32,
) -> nn.Module:
    """A new model, of which each block is gathered by itself."""
    torch.manual_seed(0)
    with setting.device:
        model = task.make_model()
    assert isinstance(model, GPT2)
    mesh = init_device_mesh(setting.device.type, (1,))
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh, offload_policy=offload, mp_policy=precision)
    return model


def whole(task: Task, setting: Setting) -> nn.Module:
    """The same model, not sharded."""
    torch.manual_seed(0)
    with setting.device:
        return task.make_model()


def train(
    task: Task,
    model: nn.Module,
    *callbacks: SaveTrainingStateCallback,
    resume_from: Path | None = None,
) -> Trainer[nn.Module]:
    """Train for a few updates."""
    torch.manual_seed(0)
    optimizer = AdamW(model.parameters(), lr=1e-4)
    trainer = Trainer(model, task.loss_func, optimizer, callbacks=callbacks, mixed_precision="no")
    with quietly():
        trainer.train(
            task.make_data(UPDATES * task.batch_size),
            1,
            per_device_batch_size=task.batch_size,
            train_dataloader_kwargs={"num_workers": 0},
            resume_from=resume_from,
        )
    return trainer


def loss_of(trainer: Trainer[nn.Module]) -> float:
    """The mean loss of the epoch."""
    return float(trainer.run_history.get_latest_metric("train_loss_epoch"))


def check_loss(task: Task, setting: Setting) -> None:
    """Sharded and not, in float32 and in the bf16 of the sharding."""
    plain = loss_of(train(task, whole(task, setting)))
    ours = train(task, sharded(task, setting))
    compare_losses("FSDP2 on one device: loss in fp32", plain, loss_of(ours), 1e-4)
    if not ours.is_sharded:
        publish("FSDP2 on one device: is_sharded", "no", is_wrong=True)
    in_bf16 = train(task, sharded(task, setting, precision=IN_BF16))
    compare_losses("FSDP2 on one device: loss with bf16 of MixedPrecisionPolicy", plain, loss_of(in_bf16), 5e-2)


def compare_losses(what: str, plain: float, found: float, tolerance: float) -> None:
    """Publish both, and whether they are the same up to rounding."""
    differs = not abs(found - plain) <= tolerance * abs(plain)
    publish(what, found, note=f"{plain:.6f} without sharding", is_wrong=differs)


def check_offload(task: Task, setting: Setting) -> None:
    """With pieces in host memory; the optimizer then runs there."""
    policy = CPUOffloadPolicy(pin_memory=setting.on_cuda)
    plain = loss_of(train(task, whole(task, setting)))
    compare_losses(
        "FSDP2 on one device: loss with CPUOffloadPolicy",
        plain,
        loss_of(train(task, sharded(task, setting, offload=policy))),
        1e-4,
    )


def check_resume(task: Task, setting: Setting) -> None:
    """A run that goes on from a state in its middle has the bits of one that was never interrupted."""
    what = "FSDP2 on one device: resumed from a state of an earlier update"
    torch.use_deterministic_algorithms(True, warn_only=True)
    with tempfile.TemporaryDirectory() as folder:
        states = Path(folder)
        save = SaveTrainingStateCallback(states, save_every_n_steps=UPDATES // 2, asynchronous=True)
        first = weights_of(train(task, sharded(task, setting), save).get_model())
        again = weights_of(train(task, sharded(task, setting)).get_model())
        middle = states / f"step_{UPDATES // 2}"
        resumed = weights_of(train(task, sharded(task, setting), resume_from=middle).get_model())
    torch.use_deterministic_algorithms(False)
    if not all(map(torch.equal, first, again)):
        publish(what, "not comparable", note="two undisturbed runs differ")
    else:
        same = all(map(torch.equal, first, resumed))
        publish(what, "the same bits" if same else "DIFFERENT", is_wrong=not same)


def weights_of(model: nn.Module) -> list[Tensor]:
    """All parameters, whole, in host memory."""
    found = [
        parameter.full_tensor() if isinstance(parameter, DTensor) else parameter for parameter in model.parameters()
    ]
    return [tensor.detach().cpu().clone() for tensor in found]


def check_export(task: Task, setting: Setting) -> None:
    """The memory of the device beyond what the model takes, and the file."""
    trainer = train(task, sharded(task, setting))
    synchronize()
    before = torch.cuda.memory_allocated() if setting.on_cuda else 0
    if setting.on_cuda:
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder:
        trainer.save_model(Path(folder) / "exported")
        written = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    largest = max(parameter.numel() * parameter.element_size() for parameter in trainer.get_model().parameters())
    note = f"{written / 2**20:.0f} MiB written; the largest tensor has {largest / 2**20:.0f}"
    if setting.on_cuda:
        extra = torch.cuda.max_memory_allocated() - before
        publish("FSDP2 on one device: memory for an export", extra / 2**20, "MiB", note=note)
    else:
        publish("FSDP2 on one device: export", "written", note=note)


def compare_steps(task: Task, setting: Setting) -> None:
    """An update of a sharded model, by hand and by the trainer, in the precision of the sharding."""
    of_shards = Task(
        task.name, lambda: sharded(task, setting, precision=IN_BF16), task.loss_func, task.make_data, task.batch_size
    )

    def by_hand(model: nn.Module, loss_func: nn.Module, optimizer: Optimizer, data: Samples, batch_size: int) -> None:
        loader = DataLoader(data, batch_size, shuffle=True, pin_memory=setting.on_cuda)
        train_by_hand(model, loss_func, optimizer, loader, is_mixed=False)

    loops: dict[str, Loop] = {
        "by hand": by_hand,
        "Trainer without callbacks": functools.partial(train_with_trainer, precision="no"),
    }
    times: dict[str, list[float]] = {name: [] for name in loops}
    updates = 3 if setting.is_small else 10
    for number in range(setting.rounds + 1):
        for name in list(loops) if number % 2 else reversed(list(loops)):
            window = Window(updates)
            run_turn(of_shards, loops[name], window, setting)
            assert window.seconds is not None
            times[name].append(window.seconds / updates)
    for name, of_loop in times.items():
        ratios = [seconds / by_hand for seconds, by_hand in zip(of_loop, times["by hand"], strict=True)][1:]
        publish(
            f"an update of {task.name}, sharded on one device: {name}",
            statistics.median(of_loop[1:]) * 1e3,
            "ms",
            to_by_hand=statistics.median(ratios),
        )
