"""Orders: which samples each epoch visits, and when, as a pure function of the seed and the epoch."""

from __future__ import annotations

from pa_data.orders import *  # noqa: F403  # the same names, under the name that they had before
from pa_data.orders import __all__  # noqa: F401  # what is public here, too
