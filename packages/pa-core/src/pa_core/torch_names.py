"""Parts of torch that have no public name, for distributions that depend on this package.

If a version of torch lacks a name, the function that needs it raises an error with versions to install.
"""

from __future__ import annotations

from pa_core._torch import BUFFERS, CHILDREN, INPUT_CHECK, PARAMETERS, foreach, non_persistent_buffers

__all__ = ["BUFFERS", "CHILDREN", "INPUT_CHECK", "PARAMETERS", "foreach", "non_persistent_buffers"]
