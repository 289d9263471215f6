"""Warnings point at the line of whoever caused them."""

from __future__ import annotations

import warnings
from types import ModuleType

from pa_core.user_warnings import warn_user


def a_package_that_warns() -> ModuleType:
    """Another distribution, in which a function calls one that warns."""
    module = ModuleType("another_distribution.room")
    vars(module)["warn_user"] = warn_user
    exec("def inner():\n    warn_user('no effect')\n\ndef outer():\n    inner()\n", vars(module))
    return module


def test_a_warning_of_another_distribution_points_at_the_line_of_its_user() -> None:
    """Whoever reads the warning finds the file that caused it, not one of the library."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        a_package_that_warns().outer()
    assert [(str(one.message), one.filename) for one in caught] == [("no effect", __file__)]
