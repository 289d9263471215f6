"""Tools for training on several processes: errors that end all ranks, hang reports, checks, messages and gradient sums.

They work in any loop that uses ``torch.distributed``, and need no other library.

The public names are those in ``__all__`` of ``pa_distributed``, ``pa_distributed.gradient_tree`` and
``pa_distributed.gradients``.
"""

from __future__ import annotations

from pa_distributed._comparison import require_same
from pa_distributed._errors import OtherProcessError, RanksDifferError, without_secrets
from pa_distributed._failures import fail_fast, print_errors_once
from pa_distributed._gloo import prepare_gloo
from pa_distributed._hang_detector import HangDetector
from pa_distributed._processes import gather_objects
from pa_distributed._rank_messages import RankMessages, run_while_others_wait
from pa_distributed._rank_zero import in_rank_local_block, rank_local, rank_zero_first, rank_zero_only
from pa_distributed._signals import SignalWatch
from pa_distributed._torch import store_of_processes

__all__ = [
    "HangDetector",
    "OtherProcessError",
    "RankMessages",
    "RanksDifferError",
    "SignalWatch",
    "fail_fast",
    "gather_objects",
    "in_rank_local_block",
    "prepare_gloo",
    "print_errors_once",
    "rank_local",
    "rank_zero_first",
    "rank_zero_only",
    "require_same",
    "run_while_others_wait",
    "store_of_processes",
    "without_secrets",
]
