"""The built site: links lead somewhere, pictures are there for light and dark pages."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs_site.pages import broken_links, pages_of


def test_each_link_within_the_site_leads_to_a_place_that_exists(site: Path) -> None:
    """Also those that Sphinx makes itself, or that stand in raw HTML."""
    assert len(pages_of(site)) > 50
    assert broken_links(site) == []


def test_a_link_to_nothing_is_found(tmp_path: Path) -> None:
    """A missing page, a missing place and a missing picture, but not a link to another site."""
    (tmp_path / "there.html").write_text('<h1 id="top">There</h1><a href="https://pytorch.org/nowhere">elsewhere</a>')
    links = ("there.html#top", "there.html#bottom", "nowhere.html", "#here", "_images/none.svg?v=1")
    body = "".join(f'<a href="{link}"></a>' for link in links) + '<p id="here"><img src="none.png">'
    (tmp_path / "index.html").write_text(body)
    assert broken_links(tmp_path) == [
        f"index.html: {link}" for link in ("there.html#bottom", "nowhere.html", "_images/none.svg?v=1", "none.png")
    ]


def test_each_picture_is_in_its_page_with_colours_for_light_and_dark(site: Path) -> None:
    """It follows the theme that the reader chooses, and words say the same to those who cannot see it."""
    pages = [page.read_text(encoding="utf-8") for page in site.rglob("*.html")]
    figures = re.findall(r'<figure class="picture">(.*?)</figure>', "".join(pages), re.DOTALL)
    assert len(figures) > 15
    for figure in figures:
        assert re.match(r'<svg [^>]*aria-label="[^"]{40,}"', figure)
        assert "light-dark(" in figure
