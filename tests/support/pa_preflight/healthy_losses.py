"""Scripts without a mistake whose losses are not the usual ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam
from torch.utils.data import Dataset, IterableDataset, TensorDataset
from typing_extensions import override

from pa_core import Trainer
from pa_data.orders import TokenBudget
from tests.support.pa_preflight.data import Named, labels_of_several, lines, masks, pictures, points, texts, walks
from tests.support.pa_preflight.healthy_models import Autoencoder, LanguageModel, TwoTowers, Unet
from tests.support.pa_preflight.scripts import Apply, Healthy, Script, conv_net, perceptron, script

healthy = Healthy()


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class _Same(Trainer):
    """Evaluates as it trains."""

    @override
    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        return self.calculate_train_batch_loss(batch)


class _KnownOnly(_Same):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        inputs, targets, known = batch
        outputs = self.model(inputs)
        losses = functional.mse_loss(outputs, targets, reduction="none") * known
        return {"loss": losses.sum() / known.sum(), "model_outputs": outputs, "batch_size": len(inputs)}


@healthy
def weights_of_targets() -> Script:
    """A mask of zeros and ones says which targets count."""
    inputs, targets = lines(outputs=3).tensors
    known = (torch.rand(targets.shape, generator=_seeded(3)) < 0.7).float()
    return script(perceptron(6, 3), None, TensorDataset(inputs, targets * known, known), kind=_KnownOnly)


@healthy
def padded_targets() -> Script:
    """A tag for each word, of which padding has -100."""
    tokens, _ = texts().tensors
    tags = torch.where(torch.arange(12) < 8 + tokens[:, :1] % 5, tokens % 3, -100)
    model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 3), Apply(lambda logits: logits.transpose(1, 2)))
    return script(model, nn.CrossEntropyLoss(), TensorDataset(tokens, tags))


@healthy
def weighted_cross_entropy() -> Script:
    """The mean is weighted by classes, one of which is rare."""
    inputs, targets = points(900).tensors
    kept = (targets > 0) | (torch.arange(900) % 20 == 0)
    loss = nn.CrossEntropyLoss(weight=torch.tensor([20.0, 1.0, 1.0, 1.0]), label_smoothing=0.1)
    return script(perceptron(8, 4), loss, TensorDataset(inputs[kept], targets[kept]))


@healthy
def weights_of_positive_labels() -> Script:
    """`pos_weight` of thirty for labels that are seldom set."""
    inputs, values = lines(features=8, outputs=5).tensors
    data = TensorDataset(inputs, (values > 1.8).float())
    return script(perceptron(8, 5), nn.BCEWithLogitsLoss(pos_weight=torch.full((5,), 30.0)), data)


@healthy
def focal_loss() -> Script:
    """Samples that are recognised count less."""

    def focal(outputs: Tensor, targets: Tensor) -> Tensor:
        losses = functional.cross_entropy(outputs, targets, reduction="none")
        return ((1 - (-losses).exp()) ** 2 * losses).mean()

    return script(perceptron(8, 4), focal, points())


class _TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU())
        self.heads = nn.ModuleDict({"kind": nn.Linear(32, 4), "size": nn.Linear(32, 1)})
        self.scales = nn.Parameter(torch.zeros(2))

    @override
    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        hidden = self.body(inputs)
        return {name: head(hidden) for name, head in self.heads.items()}


class _TwoTasks(_Same):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        outputs = self.model(batch["inputs"])
        kind = functional.cross_entropy(outputs["kind"], batch["kind"])
        size = functional.l1_loss(outputs["size"].squeeze(1), batch["size"])
        scales = cast("_TwoHeads", self.model).scales
        loss = (torch.stack([kind, size]) * (-scales).exp() + scales).sum()
        return {"loss": loss, "model_outputs": outputs, "batch_size": len(batch["inputs"])}


@healthy
def two_tasks() -> Script:
    """Outputs are a dictionary, and the weights of both losses are learnt, so that their sum falls below zero."""
    inputs, kinds = points().tensors
    data = Named(TensorDataset(inputs, kinds, inputs.square().mean(dim=1)), "inputs", "kind", "size")
    return script(_TwoHeads(), None, data, kind=_TwoTasks)


@healthy
def variance_of_the_outputs() -> Script:
    """The model predicts a mean and its variance, and the loss may be negative."""

    def likelihood(outputs: Tensor, targets: Tensor) -> Tensor:
        mean, variance = outputs[:, :1], functional.softplus(outputs[:, 1:]) + 1e-4
        return functional.gaussian_nll_loss(mean, targets, variance)

    return script(perceptron(6, 2), likelihood, lines())


@healthy
def quantiles() -> Script:
    """Three quantiles of one target: (B, 3) against (B, 1), on purpose."""
    levels = torch.tensor([0.1, 0.5, 0.9])

    def pinball(outputs: Tensor, targets: Tensor) -> Tensor:
        errors = targets - outputs
        return torch.maximum(levels * errors, (levels - 1) * errors).mean()

    return script(perceptron(6, 3), pinball, lines())


@healthy
def grades_as_thresholds() -> Script:
    """A grade is the number of thresholds below it, each a binary label."""
    inputs, values = lines().tensors
    grades = (values > torch.tensor([-1.0, 0.0, 1.0])).float()
    return script(perceptron(6, 3), nn.BCEWithLogitsLoss(), TensorDataset(inputs, grades))


@healthy
def residual_to_be_zero() -> Script:
    """All targets are zero, as the model returns the residual of an equation."""

    def residual(inputs: Tensor) -> Tensor:
        return inputs[:, :1] - inputs[:, 1:].sin()

    positions = torch.rand(400, 1, generator=_seeded(1))
    model = nn.Sequential(
        Apply(lambda x: torch.cat([x, 3 * x], dim=1)), nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2), Apply(residual)
    )
    return script(model, nn.MSELoss(), TensorDataset(positions, torch.zeros(400, 1)))


class _AroundACentre(Trainer):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        inputs, _ = batch
        outputs = self.model(inputs)
        loss = functional.mse_loss(outputs, torch.ones(1, 4, device=outputs.device).expand_as(outputs) * 0.5)
        return {"loss": loss, "model_outputs": outputs, "batch_size": len(inputs)}


@healthy
def one_class_is_normal() -> Script:
    """Anomalies are found by their distance from a centre; all labels are 0, and none is used."""
    inputs = points().tensors[0]
    model = nn.Sequential(nn.Linear(8, 32, bias=False), nn.ReLU(), nn.Linear(32, 4, bias=False))
    return script(model, None, TensorDataset(inputs, inputs.mean(dim=1)), kind=_AroundACentre)


class _Views(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, size: int, seed: int) -> None:
        self.inputs = points(size, seed=seed).tensors[0]

    def __len__(self) -> int:
        return len(self.inputs)

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        one = self.inputs[index]
        return one + 0.2 * torch.randn(8), one + 0.2 * torch.randn(8)


class _ContrastsViews(_Same):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        size = len(batch[0])
        outputs = functional.normalize(self.model(torch.cat(list(batch))), dim=1)
        similarities = (outputs @ outputs.t() / 0.1).fill_diagonal_(-1e9)
        loss = functional.cross_entropy(similarities, (torch.arange(2 * size) + size) % (2 * size))
        return {"loss": loss, "model_outputs": outputs, "batch_size": size}


@healthy
def two_random_views() -> Script:
    """Each sample is to be recognised in a second view among all others; views are random in evaluations too."""
    return script(perceptron(8, 16), None, _Views(480, 1), kind=_ContrastsViews, eval_dataset=_Views(96, 2))


class _Similarities(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.towers, self.scale = TwoTowers(), nn.Parameter(torch.tensor(2.0))

    @override
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        one, other = self.towers(left, right)
        similarities: Tensor = one @ other.t() * self.scale.exp()
        return similarities


class _MatchesBoth(Trainer):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        outputs = self.model(*batch)
        numbers = torch.arange(len(outputs), device=outputs.device)
        loss = (functional.cross_entropy(outputs, numbers) + functional.cross_entropy(outputs.t(), numbers)) / 2
        return {"loss": loss, "model_outputs": outputs, "batch_size": len(outputs)}


@healthy
def model_that_returns_similarities() -> Script:
    """The output of a sample is its similarity with all samples of the batch."""
    views = lines(480, features=4, outputs=16).tensors[1]
    return script(_Similarities(), None, TensorDataset(views[:, :8], views[:, 8:]), kind=_MatchesBoth)


class _Triplets(Trainer):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        inputs, targets = batch
        outputs = functional.normalize(self.model(inputs), dim=1)
        distances = torch.cdist(outputs, outputs)
        is_same = targets[:, None] == targets[None]
        hardest = distances.masked_fill(~is_same, 0).amax(dim=1) - distances.masked_fill(is_same, 9).amin(dim=1)
        return {"loss": (hardest + 0.2).relu().mean(), "model_outputs": outputs, "batch_size": len(inputs)}


@healthy
def hardest_triplets() -> Script:
    """The loss of a sample depends on its worst neighbours in the batch."""
    return script(perceptron(8, 8), None, points(), kind=_Triplets)


class _Margins(nn.Module):
    """A loss with weights of its own: cosines with a margin, times thirty."""

    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.randn(4, 16))

    @override
    def forward(self, features: Tensor, targets: Tensor) -> Tensor:
        cosines = functional.normalize(features, dim=1) @ functional.normalize(self.centres, dim=1).t()
        return functional.cross_entropy(30 * (cosines - 0.5 * functional.one_hot(targets, 4)), targets)


@healthy
def loss_with_margins() -> Script:
    """The first loss is much above the logarithm of the number of classes, by design."""
    torch.manual_seed(2)  # with centres that the first output is far from
    model, loss = perceptron(8, 16), _Margins()
    optimizer = Adam([*model.parameters(), *loss.parameters()], lr=0.01)
    return script(model, loss, points(), optimizer=optimizer)


class _Plays(Trainer):
    """Trains a discriminator in the step of the generator."""

    discriminator: nn.Module
    its_optimizer: Adam

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        real, _ = batch
        made = self.model(torch.randn(len(real), 16, 1, 1, device=real.device))
        self.its_optimizer.zero_grad()
        scores = torch.cat([self.discriminator(real), self.discriminator(made.detach())])
        wanted = torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)])
        torch.autograd.backward(functional.binary_cross_entropy_with_logits(scores, wanted))
        self.its_optimizer.step()
        score = self.discriminator(made)
        loss = functional.binary_cross_entropy_with_logits(score, torch.ones_like(score))
        return {"loss": loss, "model_outputs": made, "batch_size": len(real)}


@healthy
def generator_and_discriminator() -> Script:
    """Convolutions that make pictures from noise, and a discriminator that the same step trains."""
    model = nn.Sequential(
        nn.ConvTranspose2d(16, 32, 4, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 1, 4, 2, 1),
        nn.Tanh(),
    )
    made = script(model, None, pictures(), kind=_Plays, optimizer=Adam(model.parameters(), lr=2e-4, betas=(0.5, 0.999)))
    trainer = cast("_Plays", made.trainer)
    trainer.discriminator = nn.Sequential(nn.Conv2d(1, 16, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(256, 1))
    trainer.its_optimizer = Adam(trainer.discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    return made


class _Teaches(nn.Module):
    """A student, and a teacher that follows its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = perceptron(8, 4), perceptron(8, 4)
        self.teacher.load_state_dict(self.student.state_dict())

    @override
    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            wanted = self.teacher(inputs)
        return self.student(inputs + 0.1 * torch.randn_like(inputs)), wanted


class _FollowsStudent(Trainer):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        inputs, targets = batch
        outputs, wanted = self.model(inputs)
        loss = functional.cross_entropy(outputs, targets) + functional.mse_loss(outputs.softmax(1), wanted.softmax(1))
        return {"loss": loss, "model_outputs": outputs, "batch_size": len(inputs)}

    @override
    @torch.no_grad()
    def optimizer_step(self) -> None:
        super().optimizer_step()
        model = cast("_Teaches", self.model)
        for mean, one in zip(model.teacher.parameters(), model.student.parameters(), strict=True):
            mean.lerp_(one, 0.01)


@healthy
def mean_teacher() -> Script:
    """The teacher is in no optimizer, and is not frozen: it is called without gradients."""
    model = _Teaches()
    optimizer = Adam(model.student.parameters(), lr=0.01)
    return script(model, None, points(), optimizer=optimizer, kind=_FollowsStudent)


class _Spells(nn.Module):
    """A recurrent layer over pictures of letters, whose outputs come first by time."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrence, self.head = nn.GRU(4, 32, bidirectional=True, batch_first=True), nn.Linear(64, 6)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        chances: Tensor = self.head(self.recurrence(inputs)[0]).log_softmax(dim=2)
        return chances.transpose(0, 1)


class _Aligns(Trainer):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        inputs, letters = batch
        outputs = self.model(inputs)
        lengths = torch.full((len(inputs),), inputs.shape[1]), (letters > 0).sum(dim=1)
        loss = functional.ctc_loss(outputs, letters, *lengths, zero_infinity=True)
        return {"loss": loss, "model_outputs": outputs, "batch_size": len(inputs)}


@healthy
def letters_without_their_times() -> Script:
    """CTCLoss: targets are shorter than outputs, and padded."""
    letters = torch.randint(1, 6, (320, 4), generator=_seeded(1))
    letters[::3, 3] = 0
    shapes = torch.randn(6, 4, generator=_seeded(2))
    inputs = shapes[letters.repeat_interleave(3, dim=1)] + 0.1 * torch.randn(320, 12, 4, generator=_seeded(3))
    return script(_Spells(), None, TensorDataset(inputs, letters), kind=_Aligns, gradient_clip_norm=5.0)


class _Survives(Trainer):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        inputs, times, has_ended = batch
        risks = self.model(inputs).squeeze(1)
        order = times.argsort(descending=True)
        among = risks[order].logcumsumexp(dim=0)
        loss = -((risks[order] - among) * has_ended[order]).sum() / has_ended.sum().clamp(min=1)
        return {"loss": loss, "model_outputs": risks, "batch_size": len(inputs)}


@healthy
def survival() -> Script:
    """The loss of Cox compares each sample with those of the batch that lived longer."""
    inputs, values = lines().tensors
    data = TensorDataset(inputs, (-values[:, 0]).exp(), (values[:, 0] > -1).float())
    return script(perceptron(6, 1), None, data, kind=_Survives)


@healthy
def similar_or_not() -> Script:
    """A cosine of two halves of the outputs, with targets of 1 and -1."""
    inputs, kinds = points(classes=2).tensors

    def cosine(outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cosine_embedding_loss(outputs[:, :4], outputs[:, 4:], targets)

    return script(perceptron(8, 8), cosine, TensorDataset(inputs, 2 * kinds.float() - 1))


@healthy
def several_losses_of_masks() -> Script:
    """Cross entropy and overlap of pixels are added."""

    def both(outputs: Tensor, targets: Tensor) -> Tensor:
        chances = outputs.softmax(dim=1)[:, 1]
        overlap = 2 * (chances * targets).sum() / (chances.sum() + targets.sum())
        return functional.cross_entropy(outputs, targets, ignore_index=255) + 1 - overlap

    return script(Unet(), both, masks(), per_device_batch_size=16)


def _hidden(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    words = torch.stack([one for one, _ in samples])
    is_hidden = torch.rand(words.shape) < 0.3
    return torch.where(is_hidden, 0, words), torch.where(is_hidden, words, -100)


@healthy
def words_hidden_at_random() -> Script:
    """A `collate_fn` hides words at random, in evaluations too."""
    words = (torch.randint(1, 20, (400, 1), generator=_seeded(1)) + torch.arange(10)) % 19 + 1
    data, evaluation = TensorDataset(words[:320], words[:320]), TensorDataset(words[320:], words[320:] * 0)
    model = nn.Sequential(LanguageModel(), Apply(lambda logits: logits.transpose(1, 2)))
    return script(model, nn.CrossEntropyLoss(), data, collate_fn=_hidden, eval_dataset=evaluation)


@healthy
def long_batch_norm() -> Script:
    """BatchNorm over positions, and a single sample in the last batch, which has ten of them."""
    inputs, targets = walks(321).tensors
    model = nn.Sequential(
        Apply(lambda steps: steps.transpose(1, 2)),
        nn.Conv1d(4, 16, 3),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(16, 1),
    )
    return script(model, nn.MSELoss(), TensorDataset(inputs, targets))


@healthy
def batch_norm_of_each_batch() -> Script:
    """BatchNorm without running statistics, which evaluates by the batch on purpose."""
    model = conv_net()
    model[1] = nn.BatchNorm2d(8, track_running_stats=False)
    return script(model, nn.CrossEntropyLoss(), pictures(), eval_dataset=pictures(80, seed=2))


class _Experts(nn.Module):
    """Each sample is sent to one of four networks."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(8, 4), nn.ModuleList(perceptron(8, 4) for _ in range(4))

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        chances = self.gate(inputs).softmax(dim=1)
        best, chosen = chances.max(dim=1)
        outputs = torch.zeros(len(inputs), 4, device=inputs.device)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().flatten()
            if len(rows):
                outputs = outputs.index_add(0, rows, expert(inputs[rows]) * best[rows, None])
        return outputs


@healthy
def mixture_of_experts() -> Script:
    """Which layers a sample goes through depends on it."""
    return script(_Experts(), nn.CrossEntropyLoss(), points())


@healthy
def expert_that_no_batch_needs() -> Script:
    """At first, no sample is sent to one of the experts."""
    model = _Experts()
    model.gate.bias.data[2] = -20.0
    return script(model, nn.CrossEntropyLoss(), points())


class _Measures(Trainer):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        inputs, targets = batch
        self.model.eval()
        with torch.no_grad():
            self.log("accuracy", (self.model(inputs).argmax(dim=1) == targets).float().mean())
        self.model.train()
        return super().calculate_train_batch_loss(batch)


@healthy
def accuracy_without_dropout() -> Script:
    """The step measures in evaluation mode, and trains in training mode."""
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
    return script(model, nn.CrossEntropyLoss(), points(), kind=_Measures)


class _KeepsStatistics(Trainer):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        for module in self.model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return super().calculate_train_batch_loss(batch)


@healthy
def batch_norm_frozen_in_each_step() -> Script:
    """The step leaves the statistics of batch norm as they are."""
    return script(conv_net(), nn.CrossEntropyLoss(), pictures(), kind=_KeepsStatistics)


class _MixesInPlace(Trainer):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        images, targets = batch
        images.mul_(0.8).add_(images.flip(0), alpha=0.2)
        soft = 0.8 * functional.one_hot(targets, 4) + 0.2 * functional.one_hot(targets.flip(0), 4)
        outputs = self.model(images)
        return {"loss": functional.cross_entropy(outputs, soft), "model_outputs": outputs, "batch_size": len(images)}


@healthy
def batch_mixed_in_place() -> Script:
    """The step changes its batch, as the mix-up of timm does."""
    return script(conv_net(), nn.CrossEntropyLoss(), pictures(), kind=_MixesInPlace)


@healthy
def batches_by_tokens() -> Script:
    """An order makes the batches, and the batch size is the one of evaluations."""
    tokens, targets = texts().tensors
    model = nn.Sequential(nn.EmbeddingBag(20, 16), nn.Linear(16, 3))
    order = TokenBudget([12] * len(tokens), max_tokens=400)
    data, evaluation = TensorDataset(tokens, targets), texts(80, seed=2)
    return script(model, nn.CrossEntropyLoss(), data, order=order, per_device_batch_size=20, eval_dataset=evaluation)


class _Shards(IterableDataset[dict[str, Tensor]]):
    @override
    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for values, label in zip(*points(300).tensors, strict=True):
            yield {"values": values, "label": label}


class _OfNames(_Same):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        outputs = self.model(batch["values"])
        loss = functional.cross_entropy(outputs, batch["label"])
        return {"loss": loss, "model_outputs": {"logits": outputs}, "batch_size": len(outputs)}


@healthy
def stream_of_dictionaries() -> Script:
    """Samples of a stream are dictionaries, and have no positions."""
    return script(perceptron(8, 4), None, _Shards(), kind=_OfNames, eval_dataset=_Shards(), max_num_train_steps=40)


@healthy
def learnt_already() -> Script:
    """The model has learnt all samples by heart, and is trained further."""
    made = script(perceptron(8, 4, hidden=64), nn.CrossEntropyLoss(), points(64))
    longer: dict[str, Any] = {**made.arguments, "num_epochs": 150}
    made.trainer.train(**longer)
    return made


@healthy
def energy_of_samples() -> Script:
    """The energy of samples is compared with the one of noise, and begins at 0."""

    class Contrasts(Trainer):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            inputs, _ = batch
            outputs = self.model(torch.cat([inputs, torch.randn_like(inputs)]))
            real, noise = outputs.chunk(2)
            loss = real.mean() - noise.mean() + 0.1 * outputs.square().mean()
            return {"loss": loss, "model_outputs": outputs, "batch_size": len(inputs)}

    return script(perceptron(8, 1), None, points(), kind=Contrasts)


@healthy
def labels_of_some_samples() -> Script:
    """Two heads, of which one reconstructs: few samples have labels, and the others -1."""

    class Reconstructs(Trainer):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            inputs, targets = batch
            outputs = self.model(inputs)
            loss = functional.mse_loss(outputs[:, 4:], inputs)
            loss = loss + functional.cross_entropy(outputs[:, :4], targets, ignore_index=-1, reduction="sum") / 32
            return {"loss": loss, "model_outputs": outputs, "batch_size": len(inputs)}

    inputs, targets = points().tensors
    targets[torch.arange(480) % 10 > 0] = -1
    return script(perceptron(8, 12), None, TensorDataset(inputs, targets), kind=Reconstructs)


@healthy
def sparse_codes() -> Script:
    """An autoencoder with a penalty of its codes, and SGD."""

    class Penalised(Trainer):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            (inputs,) = batch
            codes = cast("Autoencoder", self.model).encoder(inputs)
            outputs = cast("Autoencoder", self.model).decoder(codes)
            loss = functional.mse_loss(outputs, inputs) + 1e-3 * codes.abs().sum(dim=1).mean()
            return {"loss": loss, "model_outputs": outputs, "batch_size": len(inputs)}

    model = Autoencoder()
    data = TensorDataset(lines(480, features=4, outputs=12).tensors[1])
    return script(model, None, data, kind=Penalised, optimizer=SGD(model.parameters(), lr=0.1, momentum=0.9))


@healthy
def margins_of_several_labels() -> Script:
    """A loss of torch that is neither a distance nor a cross entropy."""
    return script(perceptron(8, 5), nn.MultiLabelSoftMarginLoss(), labels_of_several())
