"""What users of a trainer look for, which page answers it, and what they would type into a search box to find it."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override

__all__ = ["QUESTIONS", "Question"]


@dataclass(frozen=True)
class Question:
    """The place of an answer (`page#anchor of a heading`, or a whole page), and what people type who look for it."""

    answer: str
    typed: str

    @override
    def __str__(self) -> str:
        return f"{self.typed} -> {self.answer}"

    @property
    def page(self) -> str:
        """The page of the answer, as the site names it."""
        return self.answer.partition("#")[0]

    @property
    def anchor(self) -> str:
        """The anchor of the heading, nothing if the whole page is the answer."""
        return self.answer.partition("#")[2]

    @property
    def searches(self) -> list[str]:
        """Words that people type."""
        return self.typed.split(", ")


with Path(__file__).with_suffix(".toml").open("rb") as _file:
    QUESTIONS = [Question(*one) for one in tomllib.load(_file)["questions"]]
