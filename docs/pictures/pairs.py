"""Shows `NAME-dark.svg` on dark pages where a page has the picture `NAME-light.svg`.

Pages name the light one, as plain Markdown: `![what it shows](pictures/drawn/NAME-light.svg)`.
"""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

__all__ = ["PicturesInPairs", "setup"]

_LIGHT, _DARK = "-light.svg", "-dark.svg"


class PicturesInPairs(SphinxTransform):
    """Makes a figure of each paragraph that is a picture with a light and a dark file."""

    default_priority = 200  # before Sphinx collects the images that a page needs

    def apply(self, **kwargs: object) -> None:  # noqa: D102 - Sphinx calls it
        for light in list(self.document.findall(nodes.image)):
            if light["uri"].endswith(_LIGHT) and isinstance(light.parent, nodes.paragraph):
                dark = light.copy()
                dark["uri"] = light["uri"].removesuffix(_LIGHT) + _DARK
                light["classes"], dark["classes"] = ["only-light"], ["only-dark"]
                images = nodes.container("", light.deepcopy(), dark, classes=["picture-box"])
                light.parent.replace_self(nodes.figure("", images, classes=["picture"]))


def setup(app: Sphinx) -> dict[str, bool]:
    """Make the transform known to Sphinx."""
    app.add_transform(PicturesInPairs)
    return {"parallel_read_safe": True}
