"""Captures, compares and loads the states of models, optimizers and schedulers: all of them or none.

PyTorch accepts the state of a different optimizer, and then fails at the next step. A model loads the matching weights
before it raises an error about the others. The functions of this module detect such a mismatch before loading, describe
it in a sentence, and undo a partial load.
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
