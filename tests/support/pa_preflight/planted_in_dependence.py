"""Mistakes in what outputs and losses depend on, and in what a step leaves behind."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import Trainer
from tests.support.pa_preflight.data import pictures, points, texts, walks
from tests.support.pa_preflight.scripts import Apply, Planting, Script, conv_net, perceptron, script

planted = Planting()


def _chains(*, length: int = 17) -> Tensor:
    """Texts in which each token mostly follows from the one before."""
    draws = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 8, (320, length), generator=draws)
    for step in range(1, length):
        follows = torch.rand(320, generator=draws) < 0.8
        tokens[:, step] = torch.where(follows, (3 * tokens[:, step - 1] + 1) % 8, tokens[:, step])
    return tokens


class _Language(nn.Module):
    def __init__(self, *, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.tokens = nn.Embedding(8, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 8)

    @override
    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1]) if self.is_causal else None
        logits: Tensor = self.head(self.layer(self.tokens(tokens), src_mask=mask))
        return logits.transpose(1, 2)


@planted("future-is-seen")
def attention_to_the_answer() -> Script:
    """A language model has no causal mask."""
    tokens = _chains()
    return script(_Language(is_causal=False), nn.CrossEntropyLoss(), TensorDataset(tokens[:, :-1], tokens[:, 1:]))


@planted("future-is-seen")
def convolution_padded_on_both_sides() -> Script:
    """A convolution that is to predict the next step sees it."""
    steps = walks().tensors[0]
    turned = Apply(lambda one: one.transpose(1, 2))
    model = nn.Sequential(turned, nn.Conv1d(4, 16, 3, padding=1), nn.ReLU(), nn.Conv1d(16, 4, 1), turned)
    return script(model, nn.MSELoss(), TensorDataset(steps[:, :-1], steps[:, 1:]))


@planted("targets-not-shifted")
def the_same_token_as_target() -> Script:
    """A causal language model is to predict the token that it is given."""
    tokens = _chains()
    return script(_Language(is_causal=True), nn.CrossEntropyLoss(), TensorDataset(tokens, tokens))


class _Recurrent(nn.Module):
    def __init__(self, take: int) -> None:
        super().__init__()
        self.take = take
        self.recurrence = nn.GRU(4, 16, batch_first=True)
        self.head = nn.Linear(16, 1)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        states, _ = self.recurrence(inputs)
        outputs: Tensor = self.head(states[:, self.take])
        return outputs


@planted("inputs-ignored")
def first_step_of_a_recurrence() -> Script:
    """The output is taken at the first step, which has seen nothing else."""
    return script(_Recurrent(0), nn.MSELoss(), walks())


@planted("inputs-ignored")
def features_cut_off() -> Script:
    """A slice leaves the last features out."""
    first = Apply(lambda inputs: inputs[:, :4])
    return script(nn.Sequential(first, perceptron(4, 4)), nn.CrossEntropyLoss(), points())


def _padded() -> TensorDataset:
    tokens, targets = texts().tensors
    lengths = torch.randint(4, 13, (len(tokens), 1), generator=torch.Generator().manual_seed(1))
    return TensorDataset(torch.where(torch.arange(12) < lengths, tokens, 0), targets)


class _Bag(nn.Module):
    def __init__(self, padding_idx: int | None, *, is_masked: bool) -> None:
        super().__init__()
        self.is_masked = is_masked
        self.words = nn.Embedding(20, 16, padding_idx=padding_idx)
        self.head = nn.Linear(16, 3)

    @override
    def forward(self, tokens: Tensor) -> Tensor:
        words = self.words(tokens)
        number = (tokens != 0).sum(1, keepdim=True) if self.is_masked else tokens.shape[1]
        logits: Tensor = self.head(words.sum(1) / number)
        return logits


@planted("padding-matters", level="note")
def mean_over_padding() -> Script:
    """The mean of the words counts the padding."""
    return script(_Bag(0, is_masked=False), nn.CrossEntropyLoss(), _padded())


@planted("padding-matters")
def padding_index_of_a_word() -> Script:
    """The embedding of a word stays zero, and the one of the padding is learnt."""
    return script(_Bag(1, is_masked=True), nn.CrossEntropyLoss(), _padded())


@planted("padding-matters", do="pack sequences")
def last_step_of_padded_sequences() -> Script:
    """The output of a recurrence is taken at the last step, which is padding in most samples."""
    model = nn.Sequential(nn.Embedding(20, 4, padding_idx=0), _Recurrent(-1), nn.Linear(1, 3))
    return script(model, nn.CrossEntropyLoss(), _padded())


@planted("order-ignored")
def attention_without_positions() -> Script:
    """Whether a token comes before another is asked of attention without positions."""
    model = nn.Sequential(
        nn.Embedding(20, 16),
        nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True),
        Apply(lambda hidden: hidden.mean(1)),
        nn.Linear(16, 3),
    )
    return script(model, nn.CrossEntropyLoss(), texts())


class _Stateful(_Recurrent):
    def __init__(self) -> None:
        super().__init__(-1)
        self.state: Tensor | None = None

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        if self.state is not None and self.state.shape[1] != len(inputs):
            self.state = None
        states, state = self.recurrence(inputs, self.state)
        self.state = state.detach()
        outputs: Tensor = self.head(states[:, -1])
        return outputs


@planted("state-between-batches")
def state_of_the_batch_before() -> Script:
    """A recurrence begins with the state of the samples before."""
    return script(_Stateful(), nn.MSELoss(), walks())


@planted("samples-mix", do="position encodings", level="warning")
def positions_of_the_batch() -> Script:
    """A positional encoding is added along the batch."""
    table = torch.sin(torch.arange(512.0)[:, None, None] * torch.linspace(0.1, 1, 4))
    placed = Apply(lambda inputs: inputs + table[: len(inputs)])
    return script(nn.Sequential(placed, _Recurrent(-1)), nn.MSELoss(), walks())


class _KeepsLosses(Trainer):
    total: Any = 0.0

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        self.total = self.total + output["loss"]
        return output


@planted("graphs-kept")
def losses_added_up() -> Script:
    """A sum of losses has the graphs of all steps."""
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), points(), kind=_KeepsLosses)


class _KeepsOutputs(Trainer):
    kept: tuple[Tensor, ...] = ()

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        self.kept = (*self.kept, self.model(batch[0]).mean())
        return super().calculate_train_batch_loss(batch)


@planted("graphs-kept")
def outputs_in_a_list() -> Script:
    """A mean of each batch is kept with what its backward pass needs."""
    return script(conv_net(), nn.CrossEntropyLoss(), pictures(), kind=_KeepsOutputs)


class _Divides(Trainer):
    by = 4

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        return {**output, "loss": output["loss"] / self.by}


@planted("loss-divided-twice")
def divided_by_the_accumulation_steps() -> Script:
    """The step divides the loss, as the trainer does."""
    model = perceptron(8, 4)
    return script(model, nn.CrossEntropyLoss(), points(), kind=_Divides, gradient_accumulation_steps=4)


class _DividesBySamples(_Divides):
    by = 32


@planted("loss-divided-twice")
def mean_divided_by_the_samples() -> Script:
    """The mean is divided by the number of samples."""
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), points(), kind=_DividesBySamples)


class _Misaligned(Trainer):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        tokens, targets = batch
        logits = self.model(tokens).transpose(1, 2)
        loss = functional.cross_entropy(logits.transpose(0, 1).reshape(-1, 8), targets.reshape(-1))
        return {"loss": loss, "model_outputs": logits, "batch_size": len(tokens)}


@planted("order-of-samples-matters")
def steps_before_samples() -> Script:
    """Outputs are flattened step by step, and targets sample by sample."""
    tokens = _chains()
    data = TensorDataset(tokens[:, :-1], tokens[:, 1:])
    return script(_Language(is_causal=True), nn.CrossEntropyLoss(), data, kind=_Misaligned)


class _Seeds(Trainer):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        torch.manual_seed(0)
        return super().calculate_train_batch_loss(batch)


@planted("draws-repeat")
def seed_in_each_step() -> Script:
    """The seed is set in each step, so that dropout leaves out the same units."""
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
    return script(model, nn.CrossEntropyLoss(), points(), kind=_Seeds)


class _EvaluatesItself(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = conv_net(16), nn.Linear(16, 4)

    @override
    def forward(self, images: Tensor) -> Tensor:
        self.body.eval()
        logits: Tensor = self.head(self.body(images).relu())
        return logits


@planted("mode-changes-in-step")
def evaluation_mode_in_forward() -> Script:
    """A part of the model is put into evaluation mode in each forward pass."""
    return script(_EvaluatesItself(), nn.CrossEntropyLoss(), pictures())


class _TurnsTheSign(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = perceptron(8, 4)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.layers(inputs)
        return logits if self.training else -logits


@planted("evaluation-unlike-training")
def other_outputs_in_evaluation() -> Script:
    """Outputs in evaluation mode have another sign."""
    return script(_TurnsTheSign(), nn.CrossEntropyLoss(), points())
