"""Tests that train with the trainer need it: pa-finetuning is also tested where it is installed by itself."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [] if find_spec("pa_core") and find_spec("pa_schedulers") else ["in_trainer"]
