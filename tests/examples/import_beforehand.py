"""Imports the packages of others that examples train with, where they are installed.

`tests/fork_server.py` runs it, so that the scripts that are forked do not each take seconds for it.
"""

from __future__ import annotations

import importlib
import importlib.util

BEFOREHAND = [
    "torchmetrics",  # it imports transformers too
    "optuna",
    "peft",
    "timm",
    "transformers.models.bert.modeling_bert",
    "transformers.models.distilbert.modeling_distilbert",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.vit.modeling_vit",
    "transformers.trainer",
]

if __name__ == "__main__":
    if importlib.util.find_spec("torchvision"):
        # The folder of the server is on its path.
        importlib.import_module("support.beside_torchvision").make_torchvision_importable()
    for name in BEFOREHAND:
        if importlib.util.find_spec(name.partition(".")[0]):
            importlib.import_module(name)
