"""The import paths of pytorch-accelerated, for scripts that were written for it.

Every name here and in the modules of this package is an object of ``pa_core``, ``pa_schedulers``, ``pa_finetuning`` or
``pa_callbacks_extra``, so both import paths can be mixed. New code imports from those packages.

Importing it warns if the distribution pytorch-accelerated is installed too; see ``docs/migrating.md``.
"""

from __future__ import annotations

from pa_core import Trainer, TrainerPlaceholderValues, TrainerWithTimmScheduler, notebook_launcher
from pytorch_accelerated import _original_distribution

__all__ = ["Trainer", "TrainerPlaceholderValues", "TrainerWithTimmScheduler", "notebook_launcher"]

_original_distribution.warn_if_installed()
