"""Reads built pages: where their links lead, and which places in them links can lead to."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from typing_extensions import override

__all__ = ["Page", "broken_links", "pages_of"]

ADDRESSES = {"a": "href", "link": "href", "img": "src", "script": "src", "source": "src"}


@dataclass
class Page:
    """A page: the names of its places, and what it links to."""

    places: set[str] = field(default_factory=set[str])
    links: list[str] = field(default_factory=list[str])


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page()

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        for attribute in ("id", "name"):
            self.page.places.add(given.get(attribute) or "")
        address = given.get(ADDRESSES.get(tag, ""))
        if address is not None:
            self.page.links.append(address)


def pages_of(site: Path) -> dict[Path, Page]:
    """Every page of a site."""
    pages: dict[Path, Page] = {}
    for path in sorted(site.rglob("*.html")):
        reader = _Reader()
        reader.feed(path.read_text(encoding="utf-8"))
        pages[path.resolve()] = reader.page
    return pages


def broken_links(site: Path) -> list[str]:
    """Each link within a site that leads to no file, or to no place in its page."""
    pages = pages_of(site)
    broken: list[str] = []
    for path, page in pages.items():
        for link in page.links:
            address = urlsplit(link)
            if address.scheme or address.netloc:
                continue  # another site, or a picture in the page itself
            target = (path.parent / unquote(address.path)).resolve() if address.path else path
            place = unquote(address.fragment)
            if not target.is_file() or (place and target in pages and place not in pages[target].places):
                broken.append(f"{path.relative_to(site.resolve())}: {link}")
    return broken
