"""The example with a folder of images writes it once, and keeps the weights of its best epoch."""

from __future__ import annotations

import re
import runpy
from typing import Any

import torch

from tests.examples.shared_launches import SharedLaunches
from tests.examples.ways import EXAMPLES
from tests.support.beside_torchvision import make_torchvision_importable


def test_the_best_weights_recognise_the_printed_share(shared_launch: SharedLaunches) -> None:
    """Trained on mixtures on two ranks, they are counted on the images of the evaluation as these are, each once."""
    launched = shared_launch("image_folder", "torchrun with two ranks")

    assert launched.status == 0
    ((printed, number),) = re.findall(r"recognises ([\d.]+)% of (\d+) other images", launched.output)
    output = launched.folder / "outputs" / "image_folder"
    assert len(list(output.glob("images/*/*/*.png"))) == 1500 + int(number)
    make_torchvision_importable()
    example: dict[str, Any] = runpy.run_path(str(EXAMPLES / "image_folder.py"))
    transforms = example["transforms"]
    as_they_are = [transforms.Grayscale(), transforms.ToTensor(), transforms.Normalize([0.5], [0.5])]
    images = example["datasets"].ImageFolder(str(output / "images" / "eval"), transforms.Compose(as_they_are))
    model = example["timm"].create_model("test_convnext", num_classes=10, in_chans=1, patch_size=1).eval()
    model.load_state_dict(torch.load(output / "best.pt", weights_only=True)["model_state_dict"])
    with torch.no_grad():
        guesses = model(torch.stack([image for image, _ in images])).argmax(dim=1)
    share = (guesses == torch.tensor(images.targets)).float().mean()
    assert f"{share:.1%}" == f"{printed}%"
