"""The built site: pictures are there for light and dark pages. `sphinx-build -n -W` checks its links."""

from __future__ import annotations

import re
from pathlib import Path


def test_each_picture_is_there_for_light_and_for_dark_pages(site: Path) -> None:
    """Whichever a reader has, they see one of the two, and words say the same to those who cannot see it."""
    shown = 0
    for page in site.rglob("*.html"):
        for figure in re.findall(r'<figure class="picture.*?</figure>', page.read_text(encoding="utf-8"), re.DOTALL):
            images = re.findall(r'<img alt="(.{40,})" class="(only-\w+)" src="([\w./-]+)"', figure)
            assert [kind for _, kind, _ in images] == ["only-light", "only-dark"], page
            assert all((page.parent / source).is_file() for _, _, source in images), page
            shown += 1
    assert shown >= 6
