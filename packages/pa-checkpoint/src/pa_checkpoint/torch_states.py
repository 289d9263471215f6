"""States of models, optimizers and schedulers: captured, compared with what is to load them, and loaded all or nothing.

``pa_core`` and ``pa_trial`` resume with these, and any other loop may. An object that does not fit its state is told by
a sentence before anything is loaded; what only loading tells is undone.
"""

from __future__ import annotations

from pa_checkpoint._incompatibility import has_own_form, incompatibility
from pa_checkpoint._plain_values import ensure_plain
from pa_checkpoint._saved_model import SavedModel
from pa_checkpoint._torch_file import find_damage
from pa_checkpoint._transactional_load import TransactionalLoad, does_not_fit, refusals_explained

__all__ = [
    "SavedModel",
    "TransactionalLoad",
    "does_not_fit",
    "ensure_plain",
    "find_damage",
    "has_own_form",
    "incompatibility",
    "refusals_explained",
]
