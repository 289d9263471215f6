"""Pages of documentation as scripts: their code blocks, and what comments beside the blocks say about them.

A page is run from top to bottom in a fresh folder. In these comments, each on a line of its own before a block:

- ``<!-- file: NAME -->``: the block is the content of a file, whatever its language.
- ``<!-- same results -->``: losses and the like in the output, those with three decimals, are nearly those shown.
- ``<!-- new script -->``: the blocks from here on are a program of their own, in the same folder.
- ``<!-- raises: ERROR -->``: the python block ends with this error; a text block after it shows the message.
- ``<!-- exits: STATUS -->``: the last command of the console block ends with this status instead of 0.
- ``<!-- needs: PACKAGE -->``: the script needs a package that only the environment for other libraries has.
- ``<!-- not run: REASON -->``: the block is not executed; `REASONS` are all there are.
- ``<!-- tested by: tests/FOLDER/test_NAME.py -->``: another test, which names the page, does more with the block.
- ``<!-- diff: NAME -->``: what changes in a script of `examples/porting`, which the tests of the examples compare.

``<!-- page tested by: tests/FOLDER/test_NAME.py -->`` leaves a whole page to another test, and what stands between
``<!-- NAME, written by COMMAND -->`` and ``<!-- end -->`` is generated. The site draws
``<!-- curve NAME: WORDS -->``.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from typing_extensions import override

ROOT = Path(__file__).parents[2]

REASONS = {
    "a diagram",
    "an excerpt of a file",
    "another library's code",
    "installs",
    "needs a GPU",
    "needs a server",
    "needs this repository",
    "takes minutes",
}
"""Why a block need not be executed."""

DATA = {"bash", "csv", "diff", "dockerfile", "ini", "json", "md", "text", "toml", "yaml"}
RUN = {"console", "pycon", "python"}

_DRAWN = {"eval-rst", "include", "names", "toctree"}
_FENCE = re.compile(r"(?P<indent> *)(?P<fence>`{3,}|~{3,}|:{3,})(?P<info>.*)")
_COMMENT = re.compile(r" *<!-- (.*) -->")
_DIRECTIVE = re.compile(r"(diff|exits|file|needs|not run|raises|tested by): (\S.*)|(new script|same results)")
_OF_THE_PAGE = re.compile(r"curve \w+: .*|page tested by: .*|.*, written by .*|end")


@dataclass(frozen=True)
class Block:
    """A block of code, with the number of its first line of code and what the comments before it say."""

    language: str
    code: str
    line: int
    comments: dict[str, str]

    def says(self, what: str) -> str:
        """What the comment of this kind says, nothing if there is none."""
        return self.comments.get(what, "")


@dataclass
class Script:
    """The blocks of a page that run in one process, and the packages that they need beyond the usual ones."""

    blocks: list[Block] = field(default_factory=list[Block])

    @property
    def needs(self) -> set[str]:
        """Packages that only the environment for other libraries has."""
        return {package for block in self.blocks if (package := block.says("needs"))}


@dataclass(frozen=True)
class Page:
    """A Markdown file."""

    path: Path
    text: str

    @override
    def __str__(self) -> str:
        return str(self.path.relative_to(ROOT)) if self.path.is_relative_to(ROOT) else self.path.name

    @property
    def tested_by(self) -> str:
        """The test that the whole page is left to, if there is one."""
        found = re.search(r"^<!-- page tested by: (.*) -->$", self.text, flags=re.MULTILINE)
        return found[1] if found else ""

    def scripts(self) -> list[Script]:
        """The blocks of the page, divided where it says so."""
        scripts = [Script()]
        for block in self.blocks():
            if "new script" in block.comments and scripts[-1].blocks:
                scripts.append(Script())
            scripts[-1].blocks.append(block)
        return [script for script in scripts if script.blocks]

    def blocks(self) -> list[Block]:
        """All blocks of code.

        Raises:
            ValueError: the page cannot be read as the module says.
        """
        blocks: list[Block] = []
        comments: dict[str, str] = {}
        lines = iter(enumerate(self.text.splitlines(), start=1))
        for number, line in lines:
            if comment := _COMMENT.fullmatch(line):
                comments.update(self._directive(comment[1], number))
            elif fence := _FENCE.fullmatch(line):
                language = fence["info"].strip()
                if name := re.match(r"\{([\w-]+)\}", language):
                    self._skip(name[1], fence, lines, number)
                elif language or fence["fence"][0] != ":":
                    code = "\n".join(self._until_end(fence, lines, number))
                    blocks.append(Block(language, textwrap.dedent(code) + "\n", number + 1, comments))
                    comments = {}
            elif line.strip() and comments:
                raise ValueError(f"{self}:{number}: a comment about a block, {comments}, stands before none")
        return blocks

    def problems(self) -> list[str]:
        """Blocks that nothing executes or compares, with no reason why not."""
        if self.tested_by:
            return [] if self._is_named_in(self.tested_by) else [f"{self}: {self.tested_by} does not name this page"]
        blocks = self.blocks()
        found: list[str] = []
        for before, block in zip([None, *blocks], blocks, strict=False):
            if problem := self._problem(block, before):
                found.append(f"{self}:{block.line}: {problem}")
        return found

    def _problem(self, block: Block, before: Block | None) -> str:
        reason, test = block.says("not run"), block.says("tested by")
        is_output = block.language == "text" and before is not None and before.language == "python" and is_run(before)
        if block.language not in DATA | RUN:
            return f"{block.language or 'no language'!r} is not one of {', '.join(sorted(DATA | RUN))}"
        if reason and reason not in REASONS:
            return f"{reason!r} is none of the reasons {', '.join(sorted(REASONS))}"
        if test and not self._is_named_in(test):
            return f"{test} does not name this page"
        for what, language in (("raises", "python"), ("exits", "console"), ("diff", "diff")):
            if block.says(what) and block.language != language:
                return f"this is {block.language}, but {what!r} is said of {language}"
        if not (is_run(block) or is_output or block.says("file") or is_excused(block)):
            return "this is neither a file nor the output of a python block right before it"
        return ""

    def _is_named_in(self, test: str) -> bool:
        return (ROOT / test).exists() and self.path.name in (ROOT / test).read_text()

    def _directive(self, comment: str, number: int) -> dict[str, str]:
        directive = _DIRECTIVE.fullmatch(comment)
        if _OF_THE_PAGE.fullmatch(comment):
            return {}
        if directive is None:
            raise ValueError(f"{self}:{number}: unknown comment <!-- {comment} -->")
        return {directive[1] or directive[3]: directive[2] or ""}

    def _skip(self, name: str, fence: re.Match[str], lines: Iterator[tuple[int, str]], number: int) -> None:
        """Pass over a directive of Sphinx."""
        if name not in _DRAWN:
            raise ValueError(f"{self}:{number}: {name!r} is not one of {', '.join(sorted(_DRAWN))}")
        self._until_end(fence, lines, number)

    def _until_end(self, fence: re.Match[str], lines: Iterator[tuple[int, str]], number: int) -> list[str]:
        content: list[str] = []
        for _, line in lines:
            if line.strip() and set(line.strip()) == {fence["fence"][0]} and len(line.strip()) >= len(fence["fence"]):
                return content
            content.append(line)
        raise ValueError(f"{self}:{number}: this block has no end")


def is_excused(block: Block) -> bool:
    """Whether the block is not executed here, for a reason or because another test does."""
    return any(block.says(what) for what in ("not run", "tested by", "diff"))


def is_run(block: Block) -> bool:
    """Whether the block is executed here."""
    return block.language in RUN and not block.says("file") and not is_excused(block)


def printed_commands(page: str, part: str) -> list[str]:
    """The commands of the console blocks of a page that contain some text, each as one line.

    Args:
        page: its path in the repository.
        part: the text.
    """
    blocks = [block for block in Page(ROOT / page, (ROOT / page).read_text()).blocks() if block.language == "console"]
    lines = [line for block in blocks for line in block.code.replace("\\\n", " ").splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ") and part in line]


def all_pages() -> list[Page]:
    """Those of the documentation, and those that a repository or an index of packages shows."""
    paths = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("packages/*/*.md"),
        *ROOT.glob("examples/**/*.md"),
    ]
    return [Page(path, path.read_text()) for path in sorted(paths)]
