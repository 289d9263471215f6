"""Freezes, unfreezes and sets learning rates of the parts of a model, for transfer learning in any PyTorch loop.

The public names are those in ``__all__`` of ``pa_finetuning``.
"""

from __future__ import annotations

from pa_finetuning.given_groups import LayerGroupLike
from pa_finetuning.gradual_unfreezing import GradualUnfreezing, TrainerLike
from pa_finetuning.layer_groups import Layer, LayerGroup
from pa_finetuning.learning_rates import LearningRates
from pa_finetuning.model_freezer import ModelFreezer

__all__ = ["GradualUnfreezing", "Layer", "LayerGroup", "LayerGroupLike", "LearningRates", "ModelFreezer", "TrainerLike"]
