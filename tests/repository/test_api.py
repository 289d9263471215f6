"""The public interface changes on purpose only."""

from __future__ import annotations

import importlib
import inspect

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
