"""The directive `{picture}`: a picture that is drawn while the documentation is built, in light and dark.

    ```{picture} history
    The loss of training and evaluation falls over 12 epochs, and the accuracy rises to 0.97.
    ```

The text says what the picture shows to those who cannot see it. `:caption:` adds a line below the picture.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import OptionSpec
from typing_extensions import override

from docs.pictures.drawing import DrawnPicture, draw_picture

__all__ = ["Picture", "setup"]


class Picture(SphinxDirective):
    """Draws a picture once in a build, and shows the one of its two files that fits the page."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar[OptionSpec | None] = {"caption": directives.unchanged}

    @override
    def run(self) -> list[nodes.Node]:
        (name,) = self.arguments
        alt = " ".join(self.content)
        if not alt:
            raise self.error(f"Say in words what the picture {name!r} shows.")
        try:
            drawn = _drawn(name, Path(self.env.doctreedir, "pictures"))
        except ValueError as error:
            raise self.error(str(error)) from error
        self.env.note_dependency(str(Path(__file__).with_name(f"{name}.py")))
        images = nodes.container(classes=["picture-box"])
        for path, page in zip(drawn, ("only-light", "only-dark"), strict=True):
            uri = Path(os.path.relpath(path, self.env.srcdir)).as_posix()
            images += nodes.image(uri=f"/{uri}", alt=alt, classes=[page])
        figure = nodes.figure("", images, classes=["picture"])
        if "caption" in self.options:
            text, messages = self.parse_inline(self.options["caption"])
            figure += nodes.caption(self.options["caption"], "", *text)
            return [figure, *messages]
        return [figure]


@functools.cache
def _drawn(name: str, folder: Path) -> DrawnPicture:
    """Draw a picture for the first page that shows it."""
    return draw_picture(name, folder)


def setup(app: Sphinx) -> dict[str, bool]:
    """Make the directive known to Sphinx."""
    app.add_directive("picture", Picture)
    return {"parallel_read_safe": True}
