"""Names that the package had before are still there, with a warning that says where they are."""

from __future__ import annotations

import importlib

import pytest

import pa_core


def test_a_name_that_moved_is_found_with_a_warning() -> None:
    """Scripts keep working, and learn what to write."""
    with pytest.warns(DeprecationWarning, match=r"Import LossTracker from pa_core\.tracking\."):
        tracker = vars(pa_core)["__getattr__"]("LossTracker")
    assert tracker is importlib.import_module("pa_core.tracking").LossTracker
    with pytest.warns(DeprecationWarning, match=r"Import KeyedDataLoader from pa_core\.data\."):
        exec("from pa_core import KeyedDataLoader", {})
    with pytest.raises(AttributeError, match="has no attribute 'Traner'"):
        vars(pa_core)["__getattr__"]("Traner")
