"""The parts, in the order in which they run, and the time that each has."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tools.gpu.setting import Setting  # torch, which the process that starts the parts can do without

__all__ = ["PARTS", "Part"]


@dataclass(frozen=True)
class Part:
    """Something to measure.

    Attributes:
        module: The module of ``tools.gpu`` whose ``measure`` does so.
        seconds: When it is cut off: well beyond what it should take, so that the rest is measured all the same.
        arguments: What ``measure`` is called with, after the setting.
    """

    module: str
    seconds: float
    arguments: tuple[str, ...] = ()

    def run(self, setting: Setting) -> None:
        """Measure."""
        importlib.import_module(f"tools.gpu.{self.module}").measure(setting, *self.arguments)


PARTS: dict[str, Part] = {
    "machine": Part("machine", 40),
    "tests": Part("marked_tests", 100),
    "crashes": Part("crashes", 150),
    "mlp": Part("steps", 60, ("mlp",)),
    "gpt2": Part("steps", 100, ("gpt2",)),
    "resnet": Part("steps", 100, ("resnet",)),
    "saving": Part("saving", 80),
    "sharding": Part("sharding", 60),
    "fp32": Part("precision", 30, ("fp32",)),
    "tf32": Part("precision", 30, ("fp32 by TF32",)),
    "bf16": Part("precision", 30, ("bf16",)),
    "fp16": Part("precision", 30, ("fp16",)),
    "copies": Part("copies", 30),
}
