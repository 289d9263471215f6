"""Runs a script, and checks each run of its trainers first: ``python checked.py REPORT SCRIPT [ARGUMENT ...]``.

The mistakes that are found go to the file REPORT, which is there if any run was checked.
"""

from __future__ import annotations

import functools
import importlib.util
import runpy
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[2]))

from pa_core import Trainer
from pa_preflight import check
from tests.support.beside_torchvision import make_torchvision_importable

_train = Trainer[Any, Any, Any, Any].train
_report, _script = map(Path, sys.argv[1:3])


@functools.wraps(_train)
def _check_and_train(trainer: Trainer, *args: Any, **kwargs: Any) -> None:
    with patch.object(Trainer, "train", _train), _report.open("a") as file:
        file.writelines(f"{finding}\n" for finding in check(trainer, *args, **kwargs).mistakes)
        _train(trainer, *args, **kwargs)


if __name__ == "__main__":
    if importlib.util.find_spec("torchvision"):
        make_torchvision_importable()
    sys.argv = sys.argv[2:]
    sys.path[0] = str(_script.parent)
    with patch.object(Trainer, "train", _check_and_train):
        runpy.run_path(str(_script), run_name="__main__")
