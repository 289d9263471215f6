"""Detecting Hugging Face streams that draw random numbers before they shuffle, because a thread does so too early."""

from __future__ import annotations

import dis
import random
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, cast

from pa_core.data.code_search import reached_from, words_of
from pa_core.user_warnings import warn_user

_OF_PYTHON: Final = frozenset(
    {"betavariate", "choice", "choices", "gauss", "getrandbits", "normalvariate", "randint", "random", "randrange"}
    | {"sample", "shuffle", "triangular", "uniform"}
)
_OF_TORCH: Final = frozenset(
    {"bernoulli", "multinomial", "normal", "normal_", "rand", "rand_like", "randint", "randint_like", "randn"}
    | {"randn_like", "random_", "randperm", "uniform_"}
)
_OWN_GENERATORS: Final = frozenset({"Generator", "Random", "RandomState", "default_rng", "generator"})
_LIBRARIES: Final = frozenset({"datasets", "fsspec", "huggingface_hub"})


def warn_of_early_draws(dataset: object) -> None:
    """Warn about a function before a shuffle buffer that draws from the global generators, judging by its code.

    Args:
        dataset: The dataset of a data loader; only a Hugging Face streaming dataset has such a buffer.
    """
    if type(dataset).__module__.partition(".")[0] != "datasets":
        return
    name = next(filter(None, map(_drawing, _before_shuffles(getattr(dataset, "_ex_iterable", None)))), None)
    if name is not None:
        warn_user(
            f"{name} draws random numbers before the stream is shuffled. datasets runs it in a thread, ahead of the "
            "training, so that two runs with the same seed differ. Draw in a map() after shuffle(), or from a new "
            "generator that is seeded by the example."
        )


def is_shuffled_in_buffer(dataset: object) -> bool:
    """Return whether a Hugging Face streaming dataset, or a part of it, shuffles its samples in a buffer.

    Args:
        dataset: The dataset.
    """
    return any(True for _ in _before_shuffles(getattr(dataset, "_ex_iterable", None)))


def _before_shuffles(part: object, is_before: bool = False) -> Iterator[object]:
    """Iterate over the functions of a stream before a shuffle buffer, from its end to its beginning."""
    while part is not None:
        is_before = is_before or "BufferShuffled" in type(part).__name__
        if is_before:
            yield getattr(part, "mask_function", None) or getattr(part, "function", None)
            builder: Any = getattr(getattr(part, "generate_examples_fn", None), "__self__", None)
            yield getattr(getattr(builder, "config", None), "generator", None)
        inner: list[object] = getattr(part, "ex_iterables", None) or []
        for loader in inner:
            yield from _before_shuffles(loader, is_before)
        part = getattr(part, "ex_iterable", None)


def _drawing(part: object) -> str | None:
    """Return the name of a function that draws, among the functions that an object calls."""
    for reached in reached_from(part):
        if (
            isinstance(reached, FunctionType)
            and reached.__module__.partition(".")[0] not in _LIBRARIES
            and _draws(reached)
        ):
            return reached.__qualname__
    return None


def _draws(function: FunctionType) -> bool:
    words = words_of(function.__code__)
    if words & _OWN_GENERATORS or "generator" in _keywords(function.__code__):
        return False
    imported = {
        instruction.argval for instruction in dis.get_instructions(function) if instruction.opname == "IMPORT_NAME"
    }
    values: list[object] = [function.__globals__.get(word) for word in words]
    return any(_draws_from(value, words) for value in [*values, *map(sys.modules.get, imported)])


def _draws_from(value: object, words: set[str]) -> bool:
    """Whether a function draws from a global generator if it uses a value and these of its names."""
    if not isinstance(value, ModuleType):
        return getattr(value, "__self__", None) is getattr(random.random, "__self__", random)
    if value.__name__ == "random":
        return not words.isdisjoint(_OF_PYTHON)
    if value.__name__ == "torch":
        return not words.isdisjoint(_OF_TORCH)
    return value.__name__ == "numpy.random" or (value.__name__ == "numpy" and "random" in words)


def _keywords(code: CodeType) -> set[str]:
    """Return the names of the keywords in the calls to a function."""
    tuples = [cast("tuple[object, ...]", constant) for constant in code.co_consts if isinstance(constant, tuple)]
    return {name for names in tuples for name in names if isinstance(name, str)}
