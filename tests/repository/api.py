"""The public names of all distributions with their signatures, as text.

`python tests/repository/api.py` writes it to `api.txt`, for whoever changes the interface on purpose.
"""

from __future__ import annotations

import importlib
import inspect
import re
from enum import Enum
from pathlib import Path
from types import GenericAlias, ModuleType

SNAPSHOT = Path(__file__).with_name("api.txt")
MODULES_WITH_NAMES = (
    "pa_callbacks_extra.experiment_trackers",
    "pa_checkpoint.torch_states",
    "pa_core.callbacks",
    "pa_core.data",
    "pa_core.distributed",
    "pa_core.engine.exchange",
    "pa_core.errors",
    "pa_core.predictions",
    "pa_core.sharding",
    "pa_core.steps.default_step",
    "pa_core.testing",
    "pa_core.torch_names",
    "pa_core.tracking",
    "pa_core.tracking.plot_style",
    "pa_core.types",
    "pa_core.user_warnings",
    "pa_data.batches",
    "pa_data.errors",
    "pa_data.files",
    "pa_data.orders",
    "pa_data.rng",
    "pa_data.script_state",
    "pa_distributed.gradient_tree",
    "pa_distributed.gradients",
    "pa_trial.samplers",
)
"""Modules with public names of their own, besides each package."""
PACKAGES = [path.parent.name for path in Path(__file__).parents[2].glob("packages/*/src/*/__init__.py")]
MODULES = sorted([*PACKAGES, *MODULES_WITH_NAMES])


def describe_api() -> str:
    """Every public name of every module, one line for each function, class and method."""
    lines: list[str] = []
    for name in MODULES:
        module = importlib.import_module(name)
        for public in module.__all__:
            lines.extend(f"{name}.{line}" for line in _describe(module, public))
    return "\n".join(lines) + "\n"


def _describe(module: ModuleType, name: str) -> list[str]:
    value: object = getattr(module, name)
    home = getattr(value, "__module__", module.__name__)
    if _is_described_elsewhere(home, module.__name__):
        return [f"{name} = {home}.{name}"]
    if inspect.isclass(value):
        return [f"{name}{_signature(value)}", *(f"{name}.{line}" for line in _members(value))]
    return [f"{name}{_signature(value)}" if callable(value) else f"{name}: {type(value).__name__}"]


def _is_described_elsewhere(home: str, module: str) -> bool:
    ours = home.partition(".")[0]
    return ours.startswith("pa_") and ours != module.partition(".")[0]


def _members(cls: type) -> list[str]:
    """The public methods and properties that a class defines itself, or that a base without a public name does."""
    members: list[str] = []
    own = {name: value for one in (*_unnamed_bases(cls), cls) for name, value in vars(one).items()}
    for name, value in sorted(own.items()):
        if name.startswith("_") and name != "__call__":
            continue
        if isinstance(value, property):
            members.append(name)
        elif isinstance(value, (staticmethod, classmethod)) or inspect.isfunction(value):
            members.append(f"{name}{_signature(getattr(cls, name))}")
    return members


def _unnamed_bases(cls: type) -> list[type]:
    """Bases of the same distribution that only the classes derived from them make public."""
    top = cls.__module__.partition(".")[0]
    modules = [importlib.import_module(name) for name in MODULES if name.partition(".")[0] == top]
    named = {name for module in modules for name in module.__all__}
    return [one for one in cls.__bases__ if one.__module__.partition(".")[0] == top and one.__name__ not in named]


def _signature(value: object) -> str:
    # Python 3.13 describes the constructors of enums and type aliases differently than 3.11.
    if isinstance(value, GenericAlias) or (inspect.isclass(value) and issubclass(value, Enum)):
        return ""
    try:
        signature = str(inspect.signature(value))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # it says itself what it cannot take
    except (TypeError, ValueError):
        return ""
    by_name = re.sub(r"<class '[\w.]+\.(\w+)'>", r"\1", signature)  # the file of a class is not public
    return re.sub(r" at 0x[0-9a-f]+", "", by_name)


if __name__ == "__main__":
    SNAPSHOT.write_text(describe_api())
