"""Processes that fail, wait and decide together, on ``torch.distributed`` alone.

Public are the names in ``__all__`` of ``pa_distributed``, ``pa_distributed.gradient_tree`` and
``pa_distributed.gradients``.
"""

from __future__ import annotations

from pa_distributed._comparison import require_same
from pa_distributed._errors import OtherProcessError, RanksDifferError
from pa_distributed._failures import fail_fast, showing_errors_once
from pa_distributed._gloo import prepare_gloo
from pa_distributed._hang_detector import HangDetector
from pa_distributed._processes import gather_objects
from pa_distributed._rank_messages import RankMessages, do_while_others_wait
from pa_distributed._rank_zero import apart, is_apart, rank_zero_first, rank_zero_only
from pa_distributed._signals import SignalWatch

__all__ = [
    "HangDetector",
    "OtherProcessError",
    "RankMessages",
    "RanksDifferError",
    "SignalWatch",
    "apart",
    "do_while_others_wait",
    "fail_fast",
    "gather_objects",
    "is_apart",
    "prepare_gloo",
    "rank_zero_first",
    "rank_zero_only",
    "require_same",
    "showing_errors_once",
]
