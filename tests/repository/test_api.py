"""The public interface changes on purpose only."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

from tests.repository.api import MODULES, SNAPSHOT, describe_api


def test_the_public_interface_is_the_one_written_down() -> None:
    """A name, a parameter or a default that changed shows as a difference to api.txt, which a reader reviews."""
    assert describe_api() == SNAPSHOT.read_text()


@pytest.mark.parametrize("name", MODULES)
def test_public_names_are_sorted_and_documented(name: str) -> None:
    """Every name in ``__all__`` is there, once, in order, and says what it is for."""
    module = importlib.import_module(name)
    names: list[str] = module.__all__
    assert sorted(set(names)) == sorted(names)
    described = {public: getattr(module, public) for public in names}
    undocumented = [
        public
        for public, value in described.items()
        if (inspect.isclass(value) or inspect.isroutine(value)) and not value.__doc__
    ]
    assert undocumented == []


@pytest.mark.parametrize("package", sorted({name.partition(".")[0] for name in MODULES} - {"pytorch_accelerated"}))
def test_a_package_says_which_of_its_modules_are_public(package: str) -> None:
    """The docstring of the package names them all; pa-compat's are those of pytorch-accelerated."""
    docstring = importlib.import_module(package).__doc__ or ""
    _, _, public = docstring.partition("The public names are those in ``__all__`` of")
    assert re.findall(r"``([\w.]+)``", public) == [name for name in MODULES if name.partition(".")[0] == package]


@pytest.mark.parametrize("name", MODULES)
def test_a_public_module_has_a_section_in_the_reference(name: str) -> None:
    """Whoever looks for a public name finds where it belongs, or whose it is."""
    pages = "\n".join(page.read_text() for page in (Path(__file__).parents[2] / "docs" / "api").glob("*.md"))
    assert re.search(rf"(\{{names\}} |^#+ .*){re.escape(name)}\b", pages, re.MULTILINE)
