"""Puts pictures into the pages of the site, where they have the colours that the reader has chosen for the page.

Pages name files as plain Markdown, `![what it shows](pictures/drawn/NAME.svg)`, and curves, which are drawn when the
site is built, in a comment: `<!-- curve NAME: what it shows -->`.
"""

from __future__ import annotations

import html
import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

from docs.pictures.curves import svg_of_curve

__all__ = ["InlinedPictures", "setup"]

PICTURES = Path(__file__).parent
CURVE = re.compile(r"<!-- curve (\w+): (.+) -->\s*", re.DOTALL)


class InlinedPictures(SphinxTransform):
    """Replaces images and comments by figures with the text of the SVG."""

    default_priority = 200  # before Sphinx collects the images that a page needs

    def apply(self, **kwargs: object) -> None:  # noqa: D102 - Sphinx calls it
        folder = Path(self.env.doc2path(self.env.docname)).parent
        for image in list(self.document.findall(nodes.image)):
            file = (folder / image["uri"]).resolve()
            if file.is_relative_to(PICTURES):
                self.env.note_dependency(str(file))
                image.parent.replace_self(figure(file.read_text(encoding="utf-8"), image["alt"]))
        for comment in list(self.document.findall(nodes.raw)):
            if found := CURVE.fullmatch(comment.astext()):
                comment.replace_self(figure(svg_of_curve(found[1]), found[2]))


def figure(svg: str, description: str) -> nodes.raw:
    """A figure with what it shows in words."""
    described = svg.replace('role="img"', f'role="img" aria-label="{html.escape(description)}"', 1)
    return nodes.raw("", f'<figure class="picture">{described}</figure>', format="html")


def setup(app: Sphinx) -> dict[str, bool]:
    """Make the transform known to Sphinx."""
    app.add_transform(InlinedPictures)
    return {"parallel_read_safe": True}
