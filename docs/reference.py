"""Makes the reference: a table of names, a page for each class, and the functions below the table.

A page of `docs/api` names what it describes in blocks. The first word is a module, the lines are names of it, and a
block without lines describes those public names of the module that its package does not have as well::

    ```{names} pa_data.orders
    Order Shuffled
    ```

Every class but an exception has a page of its own, unless ` together` follows the module. Its file is written for each
build and is no part of the repository.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_origin

from sphinx.application import Sphinx
from sphinx.ext.autodoc import Options
from sphinx.pycode import ModuleAnalyzer

__all__ = ["Block", "blocks_of", "setup"]

_BLOCK = re.compile(r"^```\{names\} ([\w.]+)( together)?\n((?:[\w ]+\n)*)```$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A table of names, and what follows it.

    Attributes:
        module: The module that has the names.
        names: Names that are described.
        together: Whether the classes are described below the table, on the same page.
    """

    module: str
    names: tuple[str, ...]
    together: bool

    @classmethod
    def read(cls, found: re.Match[str]) -> Block:
        """The block that a page contains."""
        module, together, names = found.groups()
        return cls(module, tuple(names.split()) or tuple(_own_names(module)), bool(together))

    def classes_with_a_page(self) -> dict[str, type]:
        """Each class that has a page, by its full name."""
        values = {self.full_name(name): self.value(name) for name in self.names if self.is_described(name)}
        return {
            name: value
            for name, value in values.items()
            if inspect.isclass(value) and not issubclass(value, BaseException) and not self.together
        }

    def value(self, name: str) -> object:
        """What a name stands for."""
        return getattr(importlib.import_module(self.module), name)

    def full_name(self, name: str) -> str:
        """A name as it is imported."""
        return f"{self.module}.{name}"

    def is_described(self, name: str) -> bool:
        """False for a name of another distribution, whose page describes it."""
        home = _home(self.value(name))
        return not home.startswith("pa_") or _package(home) == _package(self.module)

    def as_rst(self) -> str:
        """The table, and the descriptions of all that has no page."""
        with_page = self.classes_with_a_page()
        rows = [(self.target(name), name, self.summary(name)) for name in self.names]
        pages = [_place(name) for name in with_page]
        below = [name for name in self.names if self.is_described(name) and self.full_name(name) not in with_page]
        parts = [*table(rows), "", ".. toctree::", "   :hidden:", "", *(f"   {page}" for page in pages), ""]
        for name in below:
            parts += [*self.description(name), ""]
        return "\n".join(parts)

    def target(self, name: str) -> str:
        """The name under which the reference describes it."""
        value = self.value(name)
        return self.full_name(name) if self.is_described(name) else f"{_home(value)}.{name}"

    def summary(self, name: str) -> str:
        """The first line of the description."""
        value = self.value(name)
        return _first_line(_comment(self.module, name) if _is_data(value) else inspect.getdoc(value) or "")

    def description(self, name: str) -> list[str]:
        """The directive that describes it."""
        value, full_name = self.value(name), self.full_name(name)
        if _is_data(value):
            comment = _comment(self.module, name).splitlines()
            return [f".. py:data:: {name}", f"   :module: {self.module}", "", *(f"   {line}" for line in comment)]
        if inspect.isclass(value):
            return _class_directive(value, full_name)
        return [f".. autofunction:: {full_name}"]


def blocks_of(page: str) -> list[Block]:
    """All blocks of a page."""
    return [Block.read(found) for found in _BLOCK.finditer(page)]


def table(rows: list[tuple[str, str, str]]) -> list[str]:
    """A table of targets with their names and first lines."""
    lines = [".. list-table::", "   :class: names", "   :widths: auto", ""]
    for target, name, summary in rows:
        lines += [f"   * - :py:obj:`{name} <{target}>`", f"     - {summary}"]
    return lines


def _own_names(module: str) -> Iterator[str]:
    package = importlib.import_module(_package(module))
    of_package = {} if package.__name__ == module else {name: getattr(package, name) for name in package.__all__}
    value = importlib.import_module(module)
    for name in value.__all__:
        if of_package.get(name) is not getattr(value, name) and not inspect.ismodule(getattr(value, name)):
            yield name


def _package(module: str) -> str:
    return module.partition(".")[0]


def _home(value: object) -> str:
    return getattr(value, "__module__", None) or ""


def _is_data(value: object) -> bool:
    return not inspect.isclass(value) and not inspect.isroutine(value)


def _place(full_name: str) -> str:
    """The page of a class, from the folder of the page of its package."""
    return full_name.replace(".", "/")


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _comment(module: str, name: str) -> str:
    """The description below an assignment, in whichever module of the package it is."""
    for other in sorted(sys.modules):
        if _package(other) == _package(module):
            lines = ModuleAnalyzer.for_module(other).find_attr_docs().get(("", name))
            if lines:
                return "\n".join(lines).strip()
    raise ValueError(f"{module}.{name} is not described where it is assigned.")


def _class_directive(cls: type, full_name: str) -> list[str]:
    fields: tuple[str, ...] = getattr(cls, "_fields", ())
    kind = "autoexception" if issubclass(cls, BaseException) else "autoclass"
    lines = [f".. {kind}:: {full_name}"]
    others = [base.__name__ for base in cls.__mro__[1:] if not _is_part_of_others(base)]
    if len(others) < len(cls.__mro__) - 1:
        lines += [f"   :inherited-members: {', '.join(others)}"]
    if fields and "Attributes:" in (cls.__doc__ or ""):  # which describes the fields of a named tuple
        lines += [f"   :exclude-members: {', '.join(fields)}"]
    return lines


def _is_part_of_others(base: object) -> bool:
    """Whether it is a class of ours without a description, whose members the classes derived from it describe."""
    return isinstance(base, type) and _home(base).startswith("pa_") and base not in _DESCRIBED


_DESCRIBED: dict[type, str] = {}
"""Every class that the reference describes, with its full name there."""

_OWN_PAGES: dict[str, type] = {}


def _write_pages(app: Sphinx) -> None:
    """Write the file of each class that has a page."""
    folder = Path(app.srcdir) / "api"
    blocks = [block for page in sorted(folder.glob("*.md")) for block in blocks_of(page.read_text(encoding="utf-8"))]
    for block in blocks:
        for name in block.names:
            value = block.value(name)
            if inspect.isclass(value) and block.is_described(name):
                _DESCRIBED[value] = block.full_name(name)
        _OWN_PAGES.update(block.classes_with_a_page())
    for old in folder.rglob("*.rst"):
        if f"{old.relative_to(folder).with_suffix('').as_posix()}".replace("/", ".") not in _OWN_PAGES:
            old.unlink()
    for full_name, cls in _OWN_PAGES.items():
        title = full_name.rpartition(".")[2]
        file = (folder / _place(full_name)).with_suffix(".rst")
        text = "\n".join([title, "=" * len(title), "", *_class_directive(cls, full_name), ""])
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")


def _fill_page(app: Sphinx, name: str, source: list[str]) -> None:
    """Replace the blocks of a page by what they stand for."""
    seen: set[str] = set()

    def filled(found: re.Match[str]) -> str:
        block = Block.read(found)
        start = "" if block.module in seen else _module_description(block.module)
        seen.add(block.module)
        return f"```{{eval-rst}}\n{start}{block.as_rst()}\n```"

    if name.startswith("api/"):
        source[0] = _BLOCK.sub(filled, source[0])


def _module_description(module: str) -> str:
    """What a module is for, without the list of modules at the end of a package's description."""
    text = inspect.getdoc(importlib.import_module(module)) or ""
    return f".. py:module:: {module}\n\n{text.partition('The public names are')[0].strip()}\n\n"


def _add_members(app: Sphinx, kind: str, name: str, value: object, options: Options, lines: list[str]) -> None:
    """Put a table of all members below the description of a class that has a page."""
    if kind == "class" and name in _OWN_PAGES and inspect.isclass(value):
        described: dict[str, list[tuple[str, str, str]]] = {}
        seen: set[str] = set()
        where = name
        for base in value.__mro__:
            if not _home(base).startswith("pa_"):
                continue
            where = _DESCRIBED.get(base, where)
            for member, found in vars(base).items():
                text = inspect.getdoc(getattr(base, member)) if _is_listed(member, found) else None
                if text and member not in seen:
                    seen.add(member)
                    described.setdefault(where, []).append((f"{where}.{member}", member, _first_line(text)))
        for where, rows in described.items():
            if where != name:
                lines += ["", f"From :py:obj:`{where}`:"]
            lines += ["", *table(rows), ""]


def _show_described_bases(app: Sphinx, name: str, value: type, options: Options, bases: list[object]) -> None:
    """Replace each base without a description by its own bases."""
    shown: list[object] = []
    left = list(bases)
    while left:
        base = left.pop(0)
        if _is_part_of_others(origin := get_origin(base) or base):
            left = [*getattr(origin, "__orig_bases__", getattr(origin, "__bases__", ())), *left]
        elif origin not in [get_origin(other) or other for other in shown]:
            shown.append(base)
    bases[:] = shown


def _is_listed(name: str, member: object) -> bool:
    return not name.startswith("_") and (
        isinstance(member, (property, staticmethod, classmethod)) or inspect.isfunction(member)
    )


def _module_with_source(app: Sphinx, module: str, name: str) -> str:
    """The module of ours whose source defines what is described as a name of a module."""
    home = _home(getattr(importlib.import_module(module), name.partition(".")[0], None))
    return home if home.startswith("pa_") else module


def _without_links_back(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Leave out links from the source to descriptions: a module whose names are public in several has wrong ones."""
    if page.startswith("_modules/"):
        context["body"] = re.sub(r'<a class="viewcode-back".*?</a>', "", context["body"])


def setup(app: Sphinx) -> dict[str, bool]:
    """Make the blocks known to Sphinx."""
    app.connect("builder-inited", _write_pages)
    app.connect("source-read", _fill_page)
    app.connect("viewcode-follow-imported", _module_with_source)
    app.connect("html-page-context", _without_links_back)
    app.connect("autodoc-process-bases", _show_described_bases)
    app.connect("autodoc-process-docstring", _add_members, priority=900)  # after the sections have become RST
    return {"parallel_read_safe": True}
