"""The private attributes of a trainer: a subclass that sets one of them is told, before the run would miss it."""

from __future__ import annotations

import inspect
from collections.abc import Collection

from pa_core.errors import OverrideError

__all__ = ["PrivateParts", "declared_parts", "own_attributes"]


def declared_parts(*classes: type) -> frozenset[str]:
    """Return the names of the private attributes that classes declare in their bodies.

    Args:
        *classes: The classes that make up a trainer, without users' classes.
    """
    names = {name for cls in classes for name in inspect.get_annotations(cls)}
    return frozenset(name for name in names if name.startswith("_"))


def own_attributes(owner: object) -> dict[str, object]:
    """Return the attributes of a trainer that are a script's own: those that no class of this package declares.

    Args:
        owner: The trainer.
    """
    classes = [one for one in type(owner).__mro__ if one.__module__.partition(".")[0] == __name__.partition(".")[0]]
    declared = {name for one in classes for name in inspect.get_annotations(one)}
    return {name: value for name, value in vars(owner).items() if name not in declared}


class PrivateParts:
    """Notices that somebody else has set a private attribute of a trainer.

    It looks when a trainer is created, and when runs and epochs begin, so that a step pays nothing. A part may be
    replaced by another one of its class, such as an Accelerator by an Accelerator.

    Args:
        owner: The trainer, before it has set any of them.
        names: The names of its private attributes.

    Raises:
        OverrideError: It has an attribute of such a name, which the trainer would replace.
    """

    def __init__(self, owner: object, names: Collection[str]) -> None:
        self._names = names
        self._kinds: dict[str, type] = {}
        self._settings: dict[str, object] = {}
        for name in sorted(vars(owner).keys() & names):
            raise _taken(owner, name)

    def note(self, owner: object) -> None:
        """Note what the trainer has set, at the end of its constructor and of each run.

        Args:
            owner: The trainer.
        """
        parts: dict[str, object] = {name: value for name, value in vars(owner).items() if name in self._names}
        if not self._kinds:
            self._kinds = {name: type(value) for name, value in parts.items() if type(value).__module__ != "builtins"}
        self._settings = {name: value for name, value in parts.items() if name not in self._kinds}

    def put(self, owner: object, name: str, part: object) -> None:
        """Let the trainer itself replace a part, even by one of another class.

        Args:
            owner: The trainer.
            name: The name of the attribute.
            part: Its new value.
        """
        setattr(owner, name, part)
        if self._kinds:
            self._kinds[name] = type(part)

    def renew(self, owner: object) -> None:
        """Note all parts again, after the trainer has restored the ones of an earlier moment.

        Args:
            owner: The trainer.
        """
        self._kinds.clear()
        self.note(owner)

    def start_run(self) -> None:
        """Let the trainer change its settings, such as which run is in progress."""
        self._settings.clear()

    def check(self, owner: object) -> None:
        """Raise an error if the parts are missing.

        Args:
            owner: The trainer.

        Raises:
            OverrideError: One of them was replaced.
        """
        attributes = vars(owner)
        for name, kind in self._kinds.items():
            if type(attributes.get(name)) is not kind:
                raise _taken(owner, name)
        for name, value in self._settings.items():
            if attributes.get(name) is not value:
                raise _taken(owner, name)


def _taken(owner: object, name: str) -> OverrideError:
    return OverrideError(
        "An attribute has the name of a private part of the trainer.",
        given=f"{type(owner).__name__}.{name}, of type {type(vars(owner).get(name)).__qualname__}",
        do=f"Rename {name} where your code sets it.",
    )
