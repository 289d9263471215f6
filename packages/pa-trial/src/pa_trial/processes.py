"""The processes of a training: connected here, if a launcher has started several."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

import torch
import torch.distributed as dist

from pa_distributed import gather_objects, prepare_gloo
from pa_trial.collectives import num_processes, rank
from pa_trial.distributed_context import DistributedContext
from pa_trial.errors import ConfigurationError, UnsupportedConfigurationError


def connect_processes(
    given: DistributedContext | None, max_wait_seconds: float | None = 600.0
) -> tuple[torch.device | None, DistributedContext]:
    """Connect the processes that a launcher has started.

    Args:
        given: The context that the user has passed; None to find out.
        max_wait_seconds: The number of seconds that a process waits for another process.

    Returns:
        The device of this process, None if it follows from the number of the process on its machine; and the context
        of this process.

    Raises:
        ConfigurationError: The user has passed a different number of processes.
    """
    size = max(num_processes(), int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1)
    if given is not None and size > 1 and given.size != size:
        problem = f"distributed must have size={size}, the number of processes, got {given.size}."
        raise ConfigurationError(problem, do="Leave distributed out: init() finds the processes itself.")
    if given is not None and given.size > size:
        return None, given  # everything except training works without connected processes
    device = _connect()
    prepare_gloo()
    return device, _describe_processes(max_wait_seconds) if given is None else given


def _describe_processes(max_wait_seconds: float | None) -> DistributedContext:
    """Return the ranks of this process; without torchrun's variables, host names distinguish the machines."""
    if set(os.environ) >= {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"}:
        return DistributedContext.from_torch_distributed(max_wait_seconds=max_wait_seconds)
    hosts = gather_objects(socket.gethostname())
    machines = list(dict.fromkeys(hosts))
    host = hosts[rank()]
    here = [number for number, other in enumerate(hosts) if other == host]
    return DistributedContext(
        rank=rank(),
        size=len(hosts),
        local_rank=here.index(rank()),
        local_size=len(here),
        cross_rank=machines.index(host),
        cross_size=len(machines),
        chief_ip=os.environ.get("MASTER_ADDR", hosts[0]),
        max_wait_seconds=max_wait_seconds,
    )


# As torchrun and accelerate launch set them, and as MPI does in three of its kinds.
_RANK = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
_SIZE = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
_LOCAL_RANK = ("LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK")


def _told(names: Sequence[str]) -> int | None:
    """Return the number that a launcher has put into one of these variables; None if it has set none of them."""
    return next((int(os.environ[name]) for name in names if name in os.environ), None)


def _connect() -> torch.device:
    """Connect the processes that a launcher has started, and return the device of this process."""
    number, launched = _told(_RANK), _told(_SIZE) or 1
    is_connected = dist.is_available() and dist.is_initialized()
    if launched > 1 and number is None and not is_connected:
        raise UnsupportedConfigurationError(
            "The launcher has not set the rank of this process.",
            given=f"WORLD_SIZE={launched} without RANK",
            do="Start the script with torchrun or accelerate launch, or unset WORLD_SIZE.",
        )
    device = device_of(_told(_LOCAL_RANK) or 0)
    if launched > 1 and number is not None and not is_connected:
        os.environ.setdefault("MASTER_PORT", "29500")  # as accelerate does; MPI sets no port
        dist.init_process_group(dist.get_default_backend_for_device(device), rank=number, world_size=launched)
    return device


def device_of(local_rank: int) -> torch.device:
    """Return the accelerator of a process, which becomes the current device, or the CPU.

    Args:
        local_rank: The number of the process on its machine.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    on_cpu = os.environ.get("ACCELERATE_USE_CPU", "").lower() in {"1", "true", "t", "yes", "y", "on"}
    if accelerator is None or on_cpu or accelerator.type == "mps":  # MPS does not support float64, NumPy's default
        return torch.device("cpu")
    # Some cluster schedulers let each process see only its own GPU.
    device = torch.device(accelerator.type, local_rank % torch.accelerator.device_count())
    if device.index > 0:
        torch.accelerator.set_device_index(device)
    return device
