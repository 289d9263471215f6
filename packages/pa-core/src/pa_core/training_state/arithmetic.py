"""What decides the last bits of a result besides the program."""

from __future__ import annotations

from typing import Any

import torch


def describe_arithmetic(device: torch.device) -> dict[str, str | int]:
    """Return what decides how numbers are rounded, as plain values by name.

    Args:
        device: The device of the run.

    Example:
        >>> describe_arithmetic(torch.device("cpu"))["device"]
        'cpu'
    """
    backends: Any = torch.backends  # not annotated by torch
    name_of_device = getattr(torch.get_device_module(device), "get_device_name", None)
    return {
        "torch": str(torch.__version__),
        "device": device.type if name_of_device is None else name_of_device(device),
        "CPU capability": backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        # Asking for float32_matmul_precision or allow_tf32 is an error where a script has set only one of these.
        "float32 products on CUDA": backends.cuda.matmul.fp32_precision,
        "float32 products on CPU": backends.mkldnn.matmul.fp32_precision,
        "float32 convolutions on CUDA": backends.cudnn.conv.fp32_precision,
        "float32 convolutions on CPU": backends.mkldnn.conv.fp32_precision,
        "cudnn.benchmark": backends.cudnn.benchmark,
        "cudnn.deterministic": backends.cudnn.deterministic,
        "mkldnn": backends.mkldnn.enabled,
    }
