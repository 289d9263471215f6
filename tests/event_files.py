"""What TensorBoard would show: the curves and the settings in its event files, read with its own code."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

Curve = list[tuple[int, float]]
"""The points of a curve: step and value."""


def read_curves(folder: Path) -> dict[str, Curve]:
    """The curves in the event files of one folder, by their names, without points that were purged."""
    events = accumulated(folder)
    names: list[str] = events.Tags()["scalars"]
    return {name: sorted((point.step, point.value) for point in events.Scalars(name)) for name in names}


def wait_for_the_next_file() -> None:
    """Wait until a new event file is read behind those that are there: they are named by the second."""
    time.sleep(1 - time.time() % 1)


def read_configs(folder: Path) -> list[dict[str, Any]]:
    """The settings that were stored below a folder: one dictionary for each time that some were."""
    import yaml

    return [yaml.safe_load(file.read_text()) for file in sorted(folder.rglob("hparams.yml"))]


def read_images(folder: Path) -> dict[str, list[tuple[int, Tensor]]]:
    """The images in the event files of one folder, by their names: step and bytes, channels first."""
    events = accumulated(folder)
    names: list[str] = events.Tags()["images"]
    return {
        name: [(event.step, _decoded(event.encoded_image_string)) for event in events.Images(name)] for name in names
    }


def _decoded(content: bytes) -> Tensor:
    with Image.open(io.BytesIO(content)) as image:
        return torch.tensor(np.asarray(image)).permute(2, 0, 1)


def accumulated(folder: Path) -> Any:
    """All that is in the event files of one folder."""
    from tensorboard.backend.event_processing import event_accumulator  # type: ignore[import-untyped]  # it has none

    untyped: Any = event_accumulator
    events = untyped.EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0})
    events.Reload()
    return events
