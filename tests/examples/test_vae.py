"""The example with a variational autoencoder sends the images that it promises to TensorBoard."""

from __future__ import annotations

from tests.event_files import read_curves, read_images
from tests.examples.shared_launches import SharedLaunches


def test_the_images_stand_beside_the_metrics(shared_launch: SharedLaunches) -> None:
    """Of two ranks one writes; there is an image of each kind after each evaluation, and the losses go down."""
    launched = shared_launch("vae", "torchrun with two ranks")

    assert launched.status == 0
    folder = launched.folder / "outputs" / "vae" / "digits"
    images, curves = read_images(folder), read_curves(folder)
    steps = [step for step, _ in curves["eval_loss_epoch"]]
    assert {name: [step for step, _ in shown] for name, shown in images.items()} == {
        "reconstructions": steps,
        "samples": steps,
    }
    assert [images[name][-1][1].shape for name in ("reconstructions", "samples")] == [(3, 16, 80), (3, 40, 80)]
    assert curves["eval_loss_epoch"][0][1] > curves["eval_loss_epoch"][-1][1]
    assert len(list(folder.glob("events*"))) == 1
