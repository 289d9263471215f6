"""Every `Any` and `object` in a public signature, found in the sources of installed packages.

`python -m tests.typing.open_types` prints them, with the reasons that `open_types.txt` gives. A name is public if
neither it nor a part of its path begins with an underscore and its module lists it in `__all__`, or if a module does
that imports it from one without such a list, or from a private one. What overrides a method of ours is not counted
again: the method that it overrides has decided.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

from tests.plugin import DISTRIBUTIONS

REASONS = Path(__file__).with_name("open_types.txt")
PACKAGES = frozenset(DISTRIBUTIONS.values())
_OPEN = {"Any", "object"}

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """A module of ours: its path in dots, and its syntax tree."""

    name: str
    tree: ast.Module

    @cached_property
    def public(self) -> set[str]:
        """The names in its `__all__`."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                names: list[str] = ast.literal_eval(node.value)
                return set(names)
        return set()

    @cached_property
    def imported_from_others(self) -> set[str]:
        """The names that it imports from packages which are not ours, such as torch's `DataLoader`."""
        return {
            alias.asname or alias.name
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] not in PACKAGES
            for alias in node.names
        }


def find_open_types(folders: Iterable[Path]) -> list[str]:
    """Return where a public signature is open, such as `pa_core.TrainerCallback.on_init_end.kwargs`, sorted.

    Args:
        folders: Packages, as they are installed.
    """
    modules = [module for folder in folders for module in _modules(folder)]
    classes = {node.name: node for module in modules for node in module.tree.body if isinstance(node, ast.ClassDef)}
    found: set[str] = set()
    for module in modules:
        known = {name: node for name, node in classes.items() if name not in module.imported_from_others}
        for node in _definitions(module.tree.body):
            names = _names_defined(node)
            for name in names & _public_names(module, modules):
                found.update(_in_definition(node, _shortest_path(name, module, modules), known))
    return sorted(found)


def installed_packages() -> list[Path]:
    """Where our packages are, without importing them."""
    specs = [importlib.util.find_spec(package) for package in PACKAGES]
    return [Path(spec.origin).parent for spec in specs if spec is not None and spec.origin is not None]


def read_reasons() -> dict[str, str]:
    """The reasons of `open_types.txt` by what they are for."""
    lines = [line for line in REASONS.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split(": ", maxsplit=1) for line in lines)


def line_for(place: str, lines: Iterable[str]) -> str | None:
    """The line of `open_types.txt` that speaks of a place."""
    return next((line for line in lines if fnmatchcase(place, line)), None)


def _modules(folder: Path) -> Iterator[Module]:
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        yield Module(".".join(parts), ast.parse(path.read_text()))


def _public_names(module: Module, modules: list[Module]) -> set[str]:
    if "._" not in module.name and module.public:
        return module.public
    return {
        alias.name
        for one in modules
        if "._" not in one.name
        for node in one.tree.body
        if isinstance(node, ast.ImportFrom) and node.module == module.name
        for alias in node.names
        if alias.name in one.public
    }


def _shortest_path(name: str, module: Module, modules: list[Module]) -> str:
    """The shortest way to import a name: from its module, or from a package around that."""
    named = [one.name for one in modules if name in one.public and "._" not in one.name]
    around = [one for one in named if f"{module.name}.".startswith(f"{one}.")]
    return f"{min(around or named, key=len)}.{name}"


def _definitions(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body, those under conditions such as `if TYPE_CHECKING` included."""
    for node in body:
        if isinstance(node, ast.If):
            yield from _definitions(node.body)
            yield from _definitions(node.orelse)
        else:
            yield node


def _names_defined(node: ast.stmt) -> set[str]:
    if isinstance(node, FunctionNode | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {ast.unparse(target).removeprefix("self.") for target in targets}


def _in_definition(node: ast.stmt, path: str, classes: dict[str, ast.ClassDef]) -> Iterator[str]:
    if isinstance(node, FunctionNode):
        yield from _in_function(node, path)
    elif isinstance(node, ast.ClassDef):
        yield from _in_class(node, path, classes)
    elif isinstance(node, ast.AnnAssign):
        is_alias = ast.unparse(node.annotation) == "TypeAlias"
        if _is_open(node.value if is_alias else node.annotation):
            yield path
    elif isinstance(node, ast.Assign) and "TypeVar" in ast.unparse(node.value) and _is_open(node.value):
        yield path


def _in_class(node: ast.ClassDef, path: str, classes: dict[str, ast.ClassDef]) -> Iterator[str]:
    members = list(_definitions(node.body))
    overloaded = {one.name for one in members if isinstance(one, FunctionNode) and _is_decorated(one, "overload")}
    for member in members:
        if isinstance(member, FunctionNode):
            is_hidden = member.name in overloaded and not _is_decorated(member, "overload")
            if not is_hidden and not _is_decided_by_a_base(member.name, node, classes):
                yield from _in_function(member, path if member.name == "__init__" else f"{path}.{member.name}")
                if member.name == "__init__":
                    yield from _in_attributes(member, path)
        else:
            for name in _names_defined(member):
                if not name.startswith("_"):
                    yield from _in_definition(member, f"{path}.{name}", classes)


def _in_function(node: FunctionNode, path: str) -> Iterator[str]:
    if any(part.startswith("_") and not part.endswith("__") for part in path.split(".")):
        return
    arguments = node.args
    for argument in (*arguments.posonlyargs, *arguments.args, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg):
        if argument is not None and _is_open(argument.annotation):
            yield f"{path}.{argument.arg}"
    if _is_open(node.returns):
        yield f"{path}.return"


def _in_attributes(constructor: FunctionNode, path: str) -> Iterator[str]:
    """The attributes that a constructor annotates, where the class has not done so already."""
    for node in ast.walk(constructor):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
            name = node.target.attr
            if _is_open(node.annotation) and not name.startswith("_"):
                yield f"{path}.{name}"


def _is_decided_by_a_base(method: str, node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> bool:
    if method == "__init__":
        return False
    for base in node.bases:
        name = ast.unparse(base).partition("[")[0]
        if name in classes:
            of_base = {one.name for one in _definitions(classes[name].body) if isinstance(one, FunctionNode)}
            if method in of_base or _is_decided_by_a_base(method, classes[name], classes):
                return True
    return False


def _is_decorated(node: FunctionNode, decorator: str) -> bool:
    return any(ast.unparse(one) == decorator for one in node.decorator_list)


def _is_open(annotation: ast.expr | None) -> bool:
    """Whether an annotation has `Any` or `object` in it, or a function of whatever arguments."""
    if annotation is None:
        return False
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name) and node.id in _OPEN:
            return True
        if isinstance(node, ast.Subscript) and ast.unparse(node).startswith("Callable[..."):
            return True
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and "[" in node.value
        if is_text and _is_open(ast.parse(ast.literal_eval(node), mode="eval").body):
            return True
    return False


if __name__ == "__main__":
    reasons = read_reasons()
    places = find_open_types(installed_packages())
    for place in places:
        print(f"{place}: {reasons.get(line_for(place, reasons) or '', 'NOT LISTED')}")  # noqa: T201 - it is a tool
    print(len(places), "places are open")  # noqa: T201 - as above
