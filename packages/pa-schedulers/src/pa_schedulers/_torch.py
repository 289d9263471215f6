"""Private names of torch, each with the public way that is not enough."""

from __future__ import annotations

from typing import Final

PARAMETERS: Final = "_parameters"
BUFFERS: Final = "_buffers"
"""Where a module has these in its ``vars``; ``named_parameters`` and its like leave out second names and None."""
