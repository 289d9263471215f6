"""The trainer of the network: what a step does with a batch of digits."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import AdamW
from typing_extensions import override

from pa_core import BatchOutput, Trainer
from pa_core.callbacks import CallbackLike

from .batches import DigitBatch
from .model import DigitNet


class DigitOutput(BatchOutput):
    """What a step returns: also which digits were read rightly, of shape ``(digits,)``."""

    is_right: Tensor


class DigitTrainer(Trainer[DigitNet, DigitBatch, DigitOutput]):
    """Trains a ``DigitNet`` with smoothed labels.

    Args:
        model: The network.
        learning_rate: That of the optimizer.
        label_smoothing: The share of the target that all digits have in common while training.
        callbacks: Callbacks that this trainer suits.
    """

    def __init__(
        self,
        model: DigitNet,
        *,
        learning_rate: float = 0.01,
        label_smoothing: float = 0.1,
        callbacks: list[CallbackLike[DigitTrainer]],
    ) -> None:
        self.label_smoothing: float = label_smoothing
        super().__init__(model, cross_entropy, AdamW(model.parameters(), lr=learning_rate), callbacks)

    @override
    def calculate_train_batch_loss(self, batch: DigitBatch) -> DigitOutput:
        return self._read(batch, self.label_smoothing)

    @override
    def calculate_eval_batch_loss(self, batch: DigitBatch) -> DigitOutput:
        return self._read(batch, label_smoothing=0.0)

    def _read(self, batch: DigitBatch, label_smoothing: float) -> DigitOutput:
        logits: Tensor = self.model(batch.pixels)
        loss = cross_entropy(logits, batch.labels, label_smoothing=label_smoothing)
        is_right = logits.detach().argmax(1) == batch.labels
        return {"loss": loss, "model_outputs": logits, "batch_size": len(batch), "is_right": is_right}
