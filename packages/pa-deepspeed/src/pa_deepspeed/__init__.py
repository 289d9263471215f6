"""Trains models of pa-core with DeepSpeed's own engine, in the stages 1, 2 and 3 of ZeRO.

The public names are those in ``__all__`` of ``pa_deepspeed``.
"""

from __future__ import annotations

from pa_deepspeed.zero_engine import ZeroEngine

__all__ = ["ZeroEngine"]
