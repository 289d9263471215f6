"""What all errors of ours have in common."""

from __future__ import annotations


def assert_explained(error: BaseException, *words: str) -> None:
    """The text has all three parts, and names what matters."""
    text = str(error)
    for part in ("given", "expected"):
        assert part in text.lower()
    _, _, instruction = text.partition("do:") if "do:" in text else text.partition("Expected")[-1].partition(". ")
    assert len(instruction.strip()) > 10
    for word in words:
        assert word in text
