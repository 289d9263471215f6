"""What all errors of ours have in common."""

from __future__ import annotations

import re


def assert_explained(error: BaseException, *words: str) -> None:
    """The text says what to do after what is wrong, or what would have been right, and names what matters."""
    text = str(error)
    if "do:" in text:
        assert len(text.partition("do:")[-1].strip()) > 10
    else:
        assert re.search("must be .* got ", text) or len(text.partition(". ")[-1]) > 10
    for word in words:
        assert word in text
