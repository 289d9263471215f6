"""Make torchvision importable, which timm and transformers import, also where its compiled part does not load.

Tests call `make_torchvision_importable`; a script is launched by `python tests/support/beside_torchvision.py SCRIPT
ARGUMENT...`.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path
from typing import Any, cast

__all__ = ["make_torchvision_importable"]

KEPT: list[Any] = []
"""Libraries, which have to live as long as the operators that are declared in them."""


def make_torchvision_importable() -> None:
    """Import torchvision, without its compiled part where that was built for another torch.

    Its Python part loads once the operators that it registers itself for are declared; none of them is called here.
    """
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        torch_library = cast("Any", importlib.import_module("torch.library"))
        library = torch_library.Library("torchvision", "FRAGMENT")
        KEPT.append(library)
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        importlib.import_module("torchvision")


if __name__ == "__main__":
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    make_torchvision_importable()
    runpy.run_path(sys.argv[0], run_name="__main__")
