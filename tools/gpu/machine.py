"""What everything else was measured on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import Any

import torch

from tools.gpu.figures import NEEDS_CUDA, not_measured, publish
from tools.gpu.setting import Setting

__all__ = ["measure"]

PACKAGES = ("torch", "triton", "accelerate", "lightning", "numpy")


def measure(_setting: Setting) -> None:
    """Name the device and the versions."""
    versions = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    publish("versions", ", ".join(versions))
    publish("processor", f"{platform.machine()}, {os.cpu_count()} cores", note=f"{torch.get_num_threads()} threads")
    if not torch.cuda.is_available():
        not_measured("device", NEEDS_CUDA)
        return
    cudnn: Any = torch.backends.cudnn  # its functions have no types
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        note = f"{found.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}, cuDNN {cudnn.version()}"
        publish(f"device {index}", found.name, note=note)
