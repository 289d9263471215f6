"""Scripts with and without mistakes in their losses: what they are called with, and what they make of outputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam
from torch.utils.data import TensorDataset

from tests.support.pa_preflight.data import (
    Fetched,
    Named,
    column,
    labels_of_several,
    lines,
    masks,
    of,
    one_hot,
    pictures,
    points,
    seeded,
    sequences,
    texts,
)
from tests.support.pa_preflight.models import autoencoder, two_towers, unet
from tests.support.pa_preflight.scripts import (
    Healthy,
    Net,
    Planting,
    Script,
    classes,
    conv_net,
    followed_by,
    images,
    layer,
    numbers,
    perceptron,
    script,
)

planted, healthy = Planting(), Healthy()

# -- outputs, targets and losses that fit together ---------------------------------------------------------------------

# The network ends in a softmax, which the loss applies again.
planted["softmax-before-cross-entropy", "softmax_as_last_layer", "Leave the softmax out of the model"] = lambda: (
    classes(followed_by(perceptron(8, 4), nn.Softmax(dim=1)))
)
# The same within ``forward``, of a convolutional network with the function for the loss.
planted["softmax-before-cross-entropy", "softmax_in_forward"] = lambda: images(
    Net(lambda net, x: net.layers(x).softmax(dim=-1), layers=conv_net()),
    functional.cross_entropy,
    eval_dataset=pictures(seed=2),
)
# The network ends in a sigmoid, which the loss applies again.
planted["sigmoid-before-bce-with-logits", "sigmoid_as_last_layer", "Leave the sigmoid out of the model"] = lambda: (
    script(followed_by(perceptron(8, 1), nn.Sigmoid()), nn.BCEWithLogitsLoss(), two_classes())
)
# The same with the function, for several labels a sample.
planted["sigmoid-before-bce-with-logits", "sigmoid_of_several_labels"] = lambda: script(
    followed_by(perceptron(8, 5), torch.sigmoid), functional.binary_cross_entropy_with_logits, labels_of_several()
)
# NLLLoss is given logits, without a log_softmax.
planted["log-probabilities-missing", "negative_log_likelihood_of_logits", "Use CrossEntropyLoss"] = lambda: classes(
    loss=nn.NLLLoss()
)
# NLLLoss is given probabilities, whose logarithm was not taken.
planted["log-probabilities-missing", "negative_log_likelihood_of_probabilities"] = lambda: classes(
    followed_by(perceptron(8, 4), nn.Softmax(dim=1)), nn.NLLLoss()
)
# Labels are counted from 1, as in many files.
planted["targets-out-of-range", "labels_from_one", "Number the classes from 0"] = lambda: classes(
    data=of(points(), lambda x, y: (x, y + 1))
)
# Some samples have no label, which the file marks by -1.
planted["targets-out-of-range", "unknown_as_minus_one"] = lambda: classes(
    data=of(points(), lambda x, y: (x, y.where(torch.arange(len(y)) % 20 > 0, -1)))
)
# Pixels without a class are marked by 255, and the loss was not told to ignore them.
planted["targets-out-of-range", "void_pixels"] = lambda: images(
    nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1)), data=of(masks(), _without_first_row)
)
# Class labels are floats, as a table has them.
planted["targets-of-another-type", "labels_as_floats", "targets.long()"] = lambda: classes(
    data=of(points(), lambda x, y: (x, y.float()))
)
# BCEWithLogitsLoss is given integers.
planted["targets-of-another-type", "labels_of_two_classes_as_integers", "targets.to(torch.float32)"] = lambda: classes(
    perceptron(8, 1), nn.BCEWithLogitsLoss(), of(points(classes=2), lambda x, y: (x, y.unsqueeze(1)))
)
# MSELoss is given integers.
planted["targets-of-another-type", "whole_numbers_in_a_regression", "targets.to(torch.float32)"] = lambda: numbers(
    data=of(lines(), lambda x, y: (x, (3 * y).round().long()))
)
# Targets of shape (B,) are compared with outputs of shape (B, 1): all with all.
planted["targets-broadcast", "flat_targets_in_a_regression", "targets.unsqueeze(1)"] = lambda: numbers(
    data=of(lines(), lambda x, y: (x, y.squeeze(1)))
)
# Outputs of shape (B,) are compared with targets of shape (B, 1), by a loss of the script.
planted["targets-broadcast", "flat_outputs_in_a_regression", "targets.squeeze(1)"] = lambda: numbers(
    followed_by(perceptron(6, 1), nn.Flatten(0)), lambda outputs, targets: (outputs - targets).abs().mean()
)
# The step takes the predictions for the targets.
planted["targets-do-not-matter", "compared_with_its_own_predictions", "calculate_train_batch_loss compares"] = lambda: (
    classes(loss=None, step=_compared_with(lambda outputs, targets: outputs.argmax(1), functional.cross_entropy))
)
# The step compares with the buffer that was to be filled with the targets.
planted["targets-do-not-matter", "compared_with_zeros"] = lambda: numbers(
    loss=None, step=_compared_with(lambda outputs, targets: torch.zeros_like(targets), functional.mse_loss)
)
# The loss is the sum over the batch, of which the last one of an epoch is smaller.
planted["loss-follows-batch-size", "sum_of_losses", 'Use reduction="mean"'] = lambda: classes(
    loss=nn.CrossEntropyLoss(reduction="sum"), data=points(470)
)
# The same, by a loss of the script.
planted["loss-follows-batch-size", "sum_of_squares"] = lambda: numbers(
    loss=lambda outputs, targets: (outputs - targets).square().sum(), data=lines(470)
)
# The logarithm of a probability that may be exactly 0.
planted["loss-not-finite", "logarithm_of_zero", "Look for log(0)"] = lambda: classes(
    loss=lambda outputs, targets: -outputs.relu().gather(1, targets.unsqueeze(1)).log().mean()
)
# The root of an output, which may be negative.
planted["loss-not-finite", "root_of_a_negative_number"] = lambda: numbers(
    loss=lambda outputs, targets: (outputs.sqrt() - targets).square().mean()
)
# The head has the thousand outputs of ImageNet, for ten classes.
planted["outputs-more-than-classes", "head_of_a_thousand", "with 10 outputs"] = lambda: classes(
    perceptron(16, 1000), data=points(800, features=16, classes=10)
)
# A layer takes another number of features than the one before returns.
planted["step-fails", "layers_that_do_not_fit", "look at the traceback"] = lambda: classes(
    nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(64, 4))
)
# The head was written for pictures of another size.
planted["step-fails", "flattened_with_another_size"] = lambda: images(
    nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 4))
)


def _compared_with(wanted: Callable[[Tensor, Tensor], Tensor], loss: Callable[..., Tensor]) -> Any:
    """A step that compares outputs with something else than the targets."""

    def step(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
        outputs = trainer.model(batch[0])
        return loss(outputs, wanted(outputs, batch[1])), outputs

    return step


def two_classes(seed: int = 1) -> TensorDataset:
    """Points of two classes, with targets of shape (N, 1)."""
    return of(points(classes=2, seed=seed), lambda x, y: (x, column(y)))


def _without_first_row(pictures: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    targets[:, 0] = 255
    return pictures, targets


# -- what losses of torch are called with ------------------------------------------------------------------------------


def _soft_points() -> TensorDataset:
    """Points with the probabilities of their classes."""
    return of(points(), lambda x, y: (x, (3 * one_hot(y)).softmax(dim=1)))


def _rare_points() -> TensorDataset:
    """Points of two classes, of which the second is rare."""
    return of(points(2000, classes=12), lambda x, y: (x, (y == 0).long()))


def _aligned(outputs: Tensor, targets: Tensor) -> Tensor:
    lengths = torch.full((len(outputs),), outputs.shape[1])
    return functional.ctc_loss(outputs.transpose(0, 1), targets, lengths, torch.full((len(outputs),), 3))


def _padded_tags() -> TensorDataset:
    """Sequences of 6 to 12 tokens, and their tags from 1 to 3, both padded with 0."""
    draws = seeded()
    tokens = torch.randint(1, 20, (320, 12), generator=draws)
    is_padding = torch.arange(12) >= torch.randint(6, 13, (320, 1), generator=draws)
    return TensorDataset(tokens.masked_fill(is_padding, 0), (1 + tokens % 3).masked_fill(is_padding, 0))


def _tagger(tags: int) -> nn.Sequential:
    return nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, tags), layer(lambda logits: logits.transpose(1, 2)))


def _three_views(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    first, second = trainer.model(batch[0]), trainer.model(batch[0])
    return functional.triplet_margin_loss(first, second, first.roll(1, 0)), first


def _of_one_output(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    outputs = trainer.model(batch[0])
    return functional.cross_entropy(outputs, batch[1][:, None].float()), outputs


_divergence = nn.KLDivLoss(reduction="batchmean")

# KLDivLoss is given probabilities.
planted["log-probabilities-missing", "divergence_of_probabilities", "Apply log_softmax"] = lambda: classes(
    followed_by(perceptron(8, 4), nn.Softmax(1)), _divergence, _soft_points()
)
# KLDivLoss is given logarithms of probabilities, and probabilities.
healthy["divergence_of_logarithms"] = lambda: classes(
    followed_by(perceptron(8, 4), nn.LogSoftmax(1)), _divergence, _soft_points()
)
# The targets of KLDivLoss are logarithms, and it was not told.
planted["targets-out-of-range", "logarithms_as_targets", "log_target=True"] = lambda: classes(
    followed_by(perceptron(8, 4), nn.LogSoftmax(1)), _divergence, of(_soft_points(), lambda x, y: (x, y.log()))
)
# The divergence is taken of the targets from the outputs.
planted["loss-arguments-swapped", "targets_first", "their goal as the target"] = lambda: classes(
    loss=lambda outputs, targets: functional.kl_div(targets.log(), outputs.softmax(dim=1), reduction="batchmean"),
    data=_soft_points(),
)
# CTCLoss is given logits.
planted["log-probabilities-missing", "alignment_of_logits", "Apply log_softmax"] = lambda: script(
    nn.Linear(6, 5), _aligned, sequences(labels_from=1)
)
# Labels begin at 0, which is the blank of CTCLoss.
planted["targets-out-of-range", "labels_from_the_blank_on", "Number the labels from 1"] = lambda: script(
    nn.Sequential(nn.Linear(6, 5), nn.LogSoftmax(2)), _aligned, sequences(labels_from=0)
)
# The model leaves two steps of ten, and each sample has three labels.
planted["inputs-shorter-than-targets", "shortened_too_much", "Check that input_lengths"] = lambda: script(
    nn.Sequential(layer(lambda steps: steps[:, ::5]), nn.Linear(6, 5), nn.LogSoftmax(2)),
    _aligned,
    sequences(labels_from=1),
)
# CTCLoss has logarithms, enough steps, and labels other than the blank.
healthy["sequences_aligned"] = lambda: script(
    nn.Sequential(nn.Linear(6, 5), nn.LogSoftmax(2)), _aligned, sequences(labels_from=1)
)
# SoftMarginLoss is given labels 0 and 1, where it needs -1 and 1.
planted["targets-out-of-range", "zeros_for_a_margin", "2 * targets - 1"] = lambda: script(
    perceptron(8, 5), nn.SoftMarginLoss(), labels_of_several()
)
# SoftMarginLoss has labels -1 and 1.
healthy["margin_of_signs"] = lambda: script(
    perceptron(8, 5), nn.SoftMarginLoss(), of(labels_of_several(), lambda x, y: (x, 2 * y - 1))
)
# MultiLabelSoftMarginLoss is given labels -1 and 1, where it needs 0 and 1.
planted["targets-out-of-range", "minus_ones_for_several_labels", "(targets + 1) / 2"] = lambda: script(
    perceptron(8, 5), nn.MultiLabelSoftMarginLoss(), of(labels_of_several(), lambda x, y: (x, 2 * y - 1))
)
# A loss of torch that is neither a distance nor a cross entropy.
healthy["margins_of_several_labels"] = lambda: script(
    perceptron(8, 5), nn.MultiLabelSoftMarginLoss(), labels_of_several()
)
# The targets of PoissonNLLLoss are standardised, and half of them negative.
planted["targets-out-of-range", "standardised_counts", "counts that are not standardised"] = lambda: numbers(
    loss=nn.PoissonNLLLoss()
)
# PoissonNLLLoss has counts, and outputs that are their logarithms.
healthy["counts_of_events"] = lambda: numbers(
    loss=nn.PoissonNLLLoss(), data=of(lines(), lambda x, y: (x, (2 * y.exp()).round()))
)
# PoissonNLLLoss of counts that are drawn at random.
healthy["counts_by_poisson"] = lambda: numbers(
    loss=nn.PoissonNLLLoss(),
    data=of(lines(), lambda x, y: (x, torch.poisson((0.5 + 0.5 * y).exp(), generator=seeded(3)))),
)
# The anchor is compared with itself, as the second view is the same picture.
planted["triplets-of-equals", "anchors_that_are_positives", "how triplets are made"] = lambda: classes(
    loss=None, step=_three_views
)
# Two classes are predicted by one number, of which a softmax is taken.
planted["one-output-for-classes", "cross_entropy_of_one_output", "Use BCEWithLogitsLoss"] = lambda: classes(
    perceptron(8, 1), None, points(classes=2), step=_of_one_output
)
# Samples have several labels, which a softmax cannot predict together.
planted["targets-not-probabilities", "several_labels_in_cross_entropy", "multi-label"] = lambda: classes(
    perceptron(8, 5), data=labels_of_several()
)
# Label smoothing is 0.9, which was to be the share of the right class.
planted["label-smoothing-too-high", "smoothed_by_nine_tenths", "Pass about 0.1"] = lambda: classes(
    loss=nn.CrossEntropyLoss(label_smoothing=0.9)
)
# Cross entropy has probabilities as targets, and smooths them a little.
healthy["soft_labels_smoothed"] = lambda: classes(loss=nn.CrossEntropyLoss(label_smoothing=0.1), data=_soft_points())
# The lowest loss is far from zero.
healthy["label_smoothing"] = lambda: classes(loss=nn.CrossEntropyLoss(label_smoothing=0.1))
# Sequences of tags are padded with 0, which is trained as if it were a tag.
planted["padding-in-the-loss", "padded_targets_that_count", "Pass ignore_index="] = lambda: classes(
    _tagger(4), data=_padded_tags()
)
# Sequences are padded with 0, which the loss ignores.
healthy["padding_ignored"] = lambda: classes(_tagger(4), nn.CrossEntropyLoss(ignore_index=0), _padded_tags())
# A tag for each word, of which padding has -100.
healthy["padded_targets"] = lambda: classes(
    _tagger(3),
    data=of(texts(), lambda x, _: (x, torch.where(torch.arange(12) < 8 + x[:, :1] % 5, x % 3, -100))),
)
# The last layer has an activation like all others.
planted["activation-before-loss", "relu_before_cross_entropy", "the last activation"] = lambda: classes(
    followed_by(perceptron(8, 4), nn.ReLU())
)
# Outputs are between -1 and 1, and the loss applies a sigmoid.
planted["activation-before-loss", "tanh_before_the_loss"] = lambda: script(
    followed_by(perceptron(8, 5), nn.Tanh()), nn.BCEWithLogitsLoss(), labels_of_several()
)
# The model predicts counts, and the loss takes them for logarithms.
planted["activation-before-loss", "exponential_for_the_logarithm_of_counts", "log_input=False"] = lambda: numbers(
    followed_by(perceptron(6, 1), nn.Softplus()),
    nn.PoissonNLLLoss(),
    of(lines(), lambda x, y: (x, (2 * y.exp()).round())),
)
# Targets are positions in pixels, and the model ends in a sigmoid.
planted["targets-out-of-reach", "sigmoid_for_positions_in_pixels", "Scale the targets", "mistake"] = lambda: numbers(
    followed_by(perceptron(6, 2), nn.Sigmoid()),
    nn.SmoothL1Loss(),
    of(lines(outputs=2), lambda x, y: (x, 32 + 8 * y)),
)
# Targets are of both signs, and the model ends in a ReLU.
planted["targets-out-of-reach", "relu_for_signed_numbers"] = lambda: numbers(followed_by(perceptron(6, 1), nn.ReLU()))
# Targets are between 0 and 1, and the model ends in a sigmoid.
healthy["sigmoid_for_shares"] = lambda: numbers(
    followed_by(perceptron(6, 2), nn.Sigmoid()), data=of(lines(outputs=2), lambda x, y: (x, y.sigmoid()))
)
# The weight of each class is its frequency, not the inverse.
planted["class-weights-inverted", "frequent_ones_weighted", "Invert the weights"] = lambda: classes(
    perceptron(8, 2), nn.CrossEntropyLoss(weight=_rare_points().tensors[1].bincount() / 2000), _rare_points()
)
# pos_weight is positives by negatives.
planted["class-weights-inverted", "positives_weighted_by_their_share"] = lambda: classes(
    perceptron(8, 1),
    nn.BCEWithLogitsLoss(pos_weight=torch.tensor(0.09)),
    of(_rare_points(), lambda x, y: (x, column(y))),
)
# The weight of each class is the inverse of its frequency.
healthy["rare_ones_weighted"] = lambda: classes(
    perceptron(8, 2), nn.CrossEntropyLoss(weight=2000 / _rare_points().tensors[1].bincount()), _rare_points()
)

# -- the usual losses, without a mistake -------------------------------------------------------------------------------

# NLLLoss of log-probabilities.
healthy["log_softmax_with_its_loss"] = lambda: classes(
    followed_by(perceptron(8, 4), nn.LogSoftmax(dim=1)), nn.NLLLoss(), eval_dataset=points(96, seed=2)
)
# Three targets a sample, with SmoothL1Loss and a network with LayerNorm and dropout.
healthy["regression_of_many_outputs"] = lambda: numbers(
    nn.Sequential(nn.Linear(6, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 3)),
    nn.SmoothL1Loss(),
    lines(outputs=3),
    eval_dataset=lines(96, seed=2, outputs=3),
)
# Two hundred samples with grades from 1 to 5 as float targets.
healthy["small_ordinal_regression"] = lambda: numbers(
    data=of(lines(200), lambda x, y: (x, (3 + y).round().clamp(1, 5))), per_device_batch_size=16
)
# Outputs and targets both have the shape (B,).
healthy["flat_outputs_and_targets"] = lambda: numbers(
    followed_by(perceptron(6, 1), nn.Flatten(0)), nn.L1Loss(), of(lines(), lambda x, y: (x, y.squeeze(1)))
)
# BCEWithLogitsLoss of one logit.
healthy["two_classes_with_one_output"] = lambda: classes(perceptron(8, 1), nn.BCEWithLogitsLoss(), two_classes())
# A sigmoid at the end, and the loss that takes probabilities.
healthy["probabilities_with_bce"] = lambda: classes(
    followed_by(perceptron(8, 1), nn.Sigmoid()), nn.BCELoss(), two_classes()
)
# BCEWithLogitsLoss of several labels a sample.
healthy["several_labels"] = lambda: classes(
    perceptron(8, 5), nn.BCEWithLogitsLoss(), labels_of_several(), eval_dataset=labels_of_several(96, seed=2)
)
# The losses of samples are weighted by class, and divided by the number of samples.
healthy["weighted_classes"] = lambda: classes(
    loss=lambda outputs, targets: functional.cross_entropy(
        outputs, targets, weight=torch.tensor([1.0, 1.0, 2.0, 3.0]), reduction="none"
    ).mean()
)
# Cross entropy of targets that are distributions over the classes.
healthy["targets_as_probabilities"] = lambda: classes(data=of(points(), lambda x, y: (x, 0.9 * one_hot(y) + 0.1 / 4)))
# A loss with margins, for two hundred samples in batches of the default size.
healthy["few_samples"] = lambda: classes(
    perceptron(8, 3), nn.MultiMarginLoss(), points(200, classes=3), per_device_batch_size=8
)
# Targets of 2 with a deviation of a half, whose mean the network has to learn first.
healthy["targets_far_from_zero"] = lambda: numbers(data=of(lines(), lambda x, y: (x, 2 + 0.5 * y)))
# A class for each pixel, with targets of shape (B, H, W).
healthy["segmentation"] = lambda: images(unet(), data=masks(), eval_dataset=masks(48, seed=2), per_device_batch_size=16)
# Pixels without a class are marked by 255, which the loss ignores.
healthy["segmentation_with_ignored_pixels"] = lambda: images(
    unet(), nn.CrossEntropyLoss(ignore_index=255), of(masks(), _without_first_row), per_device_batch_size=16
)
# The loss is summed, and all batches have the same number of samples.
healthy["summed_over_whole_batches"] = lambda: classes(loss=nn.CrossEntropyLoss(reduction="sum"), data=points(320))

# -- unusual losses, without a mistake ---------------------------------------------------------------------------------


def _of_known(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    inputs, targets, known = batch
    outputs = trainer.model(inputs)
    return (functional.mse_loss(outputs, targets, reduction="none") * known).sum() / known.sum(), outputs


def _two_tasks(trainer: Any, batch: Any) -> tuple[Tensor, Any]:
    outputs, scales = trainer.model(batch["inputs"]), trainer.model.scales
    kind = functional.cross_entropy(outputs["kind"], batch["kind"])
    size = functional.l1_loss(outputs["size"].squeeze(1), batch["size"])
    return (torch.stack([kind, size]) * (-scales).exp() + scales).sum(), outputs


def _two_heads() -> Net:
    return Net(
        lambda net, x: {name: head(net.body(x)) for name, head in net.heads.items()},
        body=nn.Sequential(nn.Linear(8, 32), nn.ReLU()),
        heads=nn.ModuleDict({"kind": nn.Linear(32, 4), "size": nn.Linear(32, 1)}),
        scales=nn.Parameter(torch.zeros(2)),
    )


def _focal(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = functional.cross_entropy(outputs, targets, reduction="none")
    return ((1 - (-losses).exp()) ** 2 * losses).mean()


def _likelihood(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.gaussian_nll_loss(outputs[:, :1], targets, functional.softplus(outputs[:, 1:]) + 1e-4)


def _pinball(outputs: Tensor, targets: Tensor) -> Tensor:
    levels, errors = torch.tensor([0.1, 0.5, 0.9]), targets - outputs
    return torch.maximum(levels * errors, (levels - 1) * errors).mean()


def _around_a_centre(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    outputs = trainer.model(batch[0])
    return functional.mse_loss(outputs, torch.ones(1, 4, device=outputs.device).expand_as(outputs) * 0.5), outputs


def _noisy_views(size: int, seed: int) -> Fetched:
    def fetch(inputs: Tensor, index: int) -> tuple[Tensor, Tensor]:
        return inputs[index] + 0.2 * torch.randn(8), inputs[index] + 0.2 * torch.randn(8)

    return Fetched(points(size, seed=seed).tensors[0], fetch)


def _contrasts_views(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    size = len(batch[0])
    outputs = functional.normalize(trainer.model(torch.cat(list(batch))), dim=1)
    similarities = (outputs @ outputs.t() / 0.1).fill_diagonal_(-1e9)
    return functional.cross_entropy(similarities, (torch.arange(2 * size) + size) % (2 * size)), outputs


def _matches_both(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    outputs = trainer.model(*batch)
    rows = torch.arange(len(outputs), device=outputs.device)
    return (functional.cross_entropy(outputs, rows) + functional.cross_entropy(outputs.t(), rows)) / 2, outputs


def _similarities(net: Any, left: Tensor, right: Tensor) -> Tensor:
    one, other = net.towers(left, right)
    similarities: Tensor = one @ other.t() * net.scale.exp()
    return similarities


def _contrasts(trainer: Any, batch: Any) -> tuple[Tensor, Any]:
    outputs = trainer.model(*batch)
    similarities = outputs[0] @ outputs[1].t() / 0.2
    return functional.cross_entropy(similarities, torch.arange(len(batch[0]), device=batch[0].device)), outputs


def _halves(features: int = 4) -> TensorDataset:
    return of(lines(480, features=features, outputs=16), lambda _, y: (y[:, :8], y[:, 8:]))


def _hardest_triplets(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    outputs = functional.normalize(trainer.model(batch[0]), dim=1)
    distances, is_same = torch.cdist(outputs, outputs), batch[1][:, None] == batch[1][None]
    hardest = distances.masked_fill(~is_same, 0).amax(dim=1) - distances.masked_fill(is_same, 9).amin(dim=1)
    return (hardest + 0.2).relu().mean(), outputs


def _margins(net: Any, features: Tensor, targets: Tensor) -> Tensor:
    cosines = functional.normalize(features, dim=1) @ functional.normalize(net.centres, dim=1).t()
    return functional.cross_entropy(30 * (cosines - 0.5 * functional.one_hot(targets, 4)), targets)


def _loss_with_margins() -> Script:
    torch.manual_seed(2)  # with centres that the first output is far from
    model, loss = perceptron(8, 16), Net(_margins, centres=nn.Parameter(torch.randn(4, 16)))
    return classes(model, loss, train=Adam([*model.parameters(), *loss.parameters()], lr=0.01))


def _plays(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    """Trains a discriminator in the step of the generator."""
    real = batch[0]
    made = trainer.model(torch.randn(len(real), 16, 1, 1, device=real.device))
    trainer.its_optimizer.zero_grad()
    scores = torch.cat([trainer.discriminator(real), trainer.discriminator(made.detach())])
    wanted = torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)])
    torch.autograd.backward(functional.binary_cross_entropy_with_logits(scores, wanted))
    trainer.its_optimizer.step()
    score = trainer.discriminator(made)
    return functional.binary_cross_entropy_with_logits(score, torch.ones_like(score)), made


def _generator_and_discriminator() -> Script:
    up = [nn.ConvTranspose2d(16, 32, 4, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.ConvTranspose2d(32, 1, 4, 2, 1)]
    slowly = partial(Adam, lr=2e-4, betas=(0.5, 0.999))
    made = images(nn.Sequential(*up, nn.Tanh()), None, step=_plays, train=slowly)
    trainer: Any = made.trainer
    down = [nn.Conv2d(1, 16, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(256, 1)]
    trainer.discriminator = nn.Sequential(*down)
    trainer.its_optimizer = slowly(trainer.discriminator.parameters())
    return made


def _taught(net: Any, inputs: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        wanted = net.teacher(inputs)
    return net.student(inputs + 0.1 * torch.randn_like(inputs)), wanted


def _learns_from_both(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    outputs, wanted = trainer.model(batch[0])
    loss = functional.cross_entropy(outputs, batch[1]) + functional.mse_loss(outputs.softmax(1), wanted.softmax(1))
    return loss, outputs


@torch.no_grad()
def _teacher_follows(trainer: Any) -> None:
    trainer.optimizer.step()
    for mean, one in zip(trainer.model.teacher.parameters(), trainer.model.student.parameters(), strict=True):
        mean.lerp_(one, 0.01)


def _mean_teacher() -> Script:
    model = Net(_taught, student=perceptron(8, 4), teacher=perceptron(8, 4))
    model.get_submodule("teacher").load_state_dict(model.get_submodule("student").state_dict())
    of_student = Adam(model.get_submodule("student").parameters(), lr=0.01)
    return classes(model, None, train=of_student, step=_learns_from_both, methods={"optimizer_step": _teacher_follows})


def _aligns_letters(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    inputs, letters = batch
    outputs = trainer.model(inputs)
    lengths = torch.full((len(inputs),), inputs.shape[1]), (letters > 0).sum(dim=1)
    return functional.ctc_loss(outputs, letters, *lengths, zero_infinity=True), outputs


def _letters_without_their_times() -> Script:
    letters = torch.randint(1, 6, (320, 4), generator=seeded(1))
    letters[::3, 3] = 0
    shapes = torch.randn(6, 4, generator=seeded(2))
    inputs = shapes[letters.repeat_interleave(3, dim=1)] + 0.1 * torch.randn(320, 12, 4, generator=seeded(3))
    model = Net(
        lambda net, x: net.head(net.recurrence(x)[0]).log_softmax(dim=2).transpose(0, 1),
        recurrence=nn.GRU(4, 32, bidirectional=True, batch_first=True),
        head=nn.Linear(64, 6),
    )
    return script(model, None, TensorDataset(inputs, letters), step=_aligns_letters, gradient_clip_norm=5.0)


def _survives(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    inputs, times, has_ended = batch
    risks = trainer.model(inputs).squeeze(1)
    order = times.argsort(descending=True)
    among = risks[order].logcumsumexp(dim=0)
    return -((risks[order] - among) * has_ended[order]).sum() / has_ended.sum().clamp(min=1), risks


def _overlap(outputs: Tensor, targets: Tensor) -> Tensor:
    chances = outputs.softmax(dim=1)[:, 1]
    return 2 * (chances * targets).sum() / (chances.sum() + targets.sum())


def _energies(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    outputs = trainer.model(torch.cat([batch[0], torch.randn_like(batch[0])]))
    real, noise = outputs.chunk(2)
    return real.mean() - noise.mean() + 0.1 * outputs.square().mean(), outputs


def _labels_of_some(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    outputs = trainer.model(batch[0])
    classified = functional.cross_entropy(outputs[:, :4], batch[1], ignore_index=-1, reduction="sum") / 32
    return functional.mse_loss(outputs[:, 4:], batch[0]) + classified, outputs


def _sparse(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    codes = trainer.model.encoder(batch[0])
    outputs = trainer.model.decoder(codes)
    return functional.mse_loss(outputs, batch[0]) + 1e-3 * codes.abs().sum(dim=1).mean(), outputs


def _of_few_numbers(num_samples: int = 480, seed: int = 1) -> TensorDataset:
    return of(lines(num_samples, seed=seed, features=4, outputs=12), lambda _, y: (y,))


def reconstructs(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    """A step without targets."""
    outputs = trainer.model(batch[0])
    return functional.mse_loss(outputs, batch[0]), outputs


def _masked_error(outputs: Tensor, wanted: Tensor) -> Tensor:
    known = ~wanted.isnan()
    return functional.mse_loss(outputs[known], wanted[known])


def _known(shape: torch.Size, share: float) -> Tensor:
    return torch.rand(shape, generator=seeded(3)) < share


# A mask of zeros and ones says which targets count.
healthy["weights_of_targets"] = lambda: numbers(
    perceptron(6, 3),
    None,
    of(lines(outputs=3), lambda x, y: (x, y * _known(y.shape, 0.7), _known(y.shape, 0.7).float())),
    step=_of_known,
    evaluates=True,
)
# Some targets are NaN, which the loss leaves out.
healthy["missing_targets_masked"] = lambda: numbers(
    perceptron(6, 3),
    _masked_error,
    of(lines(outputs=3), lambda x, y: (x, y.masked_fill(_known(y.shape, 0.2), float("nan")))),
)
# The mean is weighted by classes, one of which is rare.
healthy["weighted_cross_entropy"] = lambda: classes(
    loss=nn.CrossEntropyLoss(weight=torch.tensor([20.0, 1.0, 1.0, 1.0]), label_smoothing=0.1),
    data=of(points(900), lambda x, y: [one[(y > 0) | (torch.arange(900) % 20 == 0)] for one in (x, y)]),
)
# `pos_weight` of thirty for labels that are seldom set.
healthy["weights_of_positive_labels"] = lambda: classes(
    perceptron(8, 5),
    nn.BCEWithLogitsLoss(pos_weight=torch.full((5,), 30.0)),
    of(lines(features=8, outputs=5), lambda x, y: (x, (y > 1.8).float())),
)
# Samples that are recognised count less.
healthy["focal_loss"] = lambda: classes(loss=_focal)
# Outputs are a dictionary, and the weights of both losses are learnt, so that their sum falls below zero.
healthy["two_tasks"] = lambda: script(
    _two_heads(),
    None,
    Named(of(points(), lambda x, y: (x, y, x.square().mean(dim=1))), "inputs", "kind", "size"),
    step=_two_tasks,
    evaluates=True,
)
# The model predicts a mean and its variance, and the loss may be negative.
healthy["variance_of_the_outputs"] = lambda: numbers(perceptron(6, 2), _likelihood)
# Three quantiles of one target: (B, 3) against (B, 1), on purpose.
healthy["quantiles"] = lambda: numbers(perceptron(6, 3), _pinball)
# A grade is the number of thresholds below it, each a binary label.
healthy["grades_as_thresholds"] = lambda: numbers(
    perceptron(6, 3),
    nn.BCEWithLogitsLoss(),
    of(lines(), lambda x, y: (x, (y > torch.tensor([-1.0, 0.0, 1.0])).float())),
)
# All targets are zero, as the model returns the residual of an equation.
healthy["residual_to_be_zero"] = lambda: numbers(
    nn.Sequential(
        *(layer(lambda x: torch.cat([x, 3 * x], dim=1)), nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2)),
        layer(lambda x: x[:, :1] - x[:, 1:].sin()),
    ),
    data=TensorDataset(torch.rand(400, 1, generator=seeded(1)), torch.zeros(400, 1)),
)
# Anomalies are found by their distance from a centre; all labels are 0, and none is used.
healthy["one_class_is_normal"] = lambda: classes(
    nn.Sequential(nn.Linear(8, 32, bias=False), nn.ReLU(), nn.Linear(32, 4, bias=False)),
    None,
    of(points(), lambda x, _: (x, x.mean(dim=1))),
    step=_around_a_centre,
)
# Each sample is to be recognised in a second view among all others; views are random in evaluations too.
healthy["two_random_views"] = lambda: classes(
    perceptron(8, 16),
    None,
    _noisy_views(480, 1),
    step=_contrasts_views,
    evaluates=True,
    eval_dataset=_noisy_views(96, 2),
)
# The output of a sample is its similarity with all samples of the batch.
healthy["model_that_returns_similarities"] = lambda: script(
    Net(_similarities, towers=two_towers(), scale=nn.Parameter(torch.tensor(2.0))), None, _halves(), step=_matches_both
)
# Each sample is to be more like its second view than like those of the other samples of the batch.
healthy["contrastive_loss"] = lambda: script(
    two_towers(), None, _halves(), step=_contrasts, train_dataloader_kwargs={"drop_last": True}
)
# The loss of a sample depends on its worst neighbours in the batch.
healthy["hardest_triplets"] = lambda: classes(perceptron(8, 8), None, step=_hardest_triplets)
# The first loss is much above the logarithm of the number of classes, by design.
healthy["loss_with_margins"] = _loss_with_margins
# Convolutions that make pictures from noise, and a discriminator that the same step trains.
healthy["generator_and_discriminator"] = _generator_and_discriminator
# The teacher is in no optimizer, and is not frozen: it is called without gradients.
healthy["mean_teacher"] = _mean_teacher
# CTCLoss: targets are shorter than outputs, and padded.
healthy["letters_without_their_times"] = _letters_without_their_times
# The loss of Cox compares each sample with those of the batch that lived longer.
healthy["survival"] = lambda: numbers(
    loss=None, data=of(lines(), lambda x, y: (x, (-y[:, 0]).exp(), (y[:, 0] > -1).float())), step=_survives
)
# A cosine of two halves of the outputs, with targets of 1 and -1.
healthy["similar_or_not"] = lambda: classes(
    perceptron(8, 8),
    lambda outputs, targets: functional.cosine_embedding_loss(outputs[:, :4], outputs[:, 4:], targets),
    of(points(classes=2), lambda x, y: (x, 2 * y.float() - 1)),
)
# A loss of the whole batch that torch does not have.
healthy["dice_loss"] = lambda: images(
    unet(), lambda outputs, targets: 1 - _overlap(outputs, targets), masks(), per_device_batch_size=16
)
# Cross entropy and overlap of pixels are added.
healthy["several_losses_of_masks"] = lambda: images(
    unet(),
    lambda outputs, targets: (
        functional.cross_entropy(outputs, targets, ignore_index=255) + 1 - _overlap(outputs, targets)
    ),
    masks(),
    per_device_batch_size=16,
)
# The energy of samples is compared with the one of noise, and begins at 0.
healthy["energy_of_samples"] = lambda: classes(perceptron(8, 1), None, step=_energies)
# Two heads, of which one reconstructs: few samples have labels, and the others -1.
healthy["labels_of_some_samples"] = lambda: classes(
    perceptron(8, 12),
    None,
    of(points(), lambda x, y: (x, y.masked_fill(torch.arange(480) % 10 > 0, -1))),
    step=_labels_of_some,
)
# An autoencoder with a penalty of its codes, and SGD.
healthy["sparse_codes"] = lambda: script(
    autoencoder(), None, _of_few_numbers(), step=_sparse, train=partial(SGD, lr=0.1, momentum=0.9)
)
# The targets are the inputs, which have fewer degrees of freedom than features.
healthy["autoencoder"] = lambda: script(autoencoder(), nn.MSELoss(), of(_of_few_numbers(), lambda x: (x, x)))
# Batches have no targets, and the model adds noise in training only.
healthy["denoising_autoencoder"] = lambda: script(
    autoencoder(noise=0.2),
    None,
    _of_few_numbers(),
    step=reconstructs,
    evaluates=True,
    eval_dataset=_of_few_numbers(96, seed=2),
)

# -- what a loss makes of outputs --------------------------------------------------------------------------------------


def _hinge(outputs: Tensor, targets: Tensor) -> Tensor:
    return (1 - targets * outputs).clamp(min=0).mean()


def _soft_overlap(outputs: Tensor, targets: Tensor) -> Tensor:
    filled, wanted = outputs.sigmoid(), targets.float()[:, None]
    return (2 * filled * wanted).sum() / (filled.sum() + wanted.sum())


def _matching(factor: float) -> Any:
    """A step that finds the second half of each sample by the first."""

    def step(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
        first, second = (functional.normalize(trainer.model(one), dim=1) for one in batch)
        logits = first @ second.T * factor
        return functional.cross_entropy(logits, torch.arange(len(logits))), logits

    return step


def _noisy_halves() -> TensorDataset:
    return of(lines(features=12), lambda x, _: (x[:, :6], x[:, :6] + 0.1 * x[:, 6:]))


def _counting(predicted: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """Logs the accuracy of two classes, which one output tells apart."""

    def evaluate(trainer: Any, batch: Any) -> Any:
        output = trainer.calculate_train_batch_loss(batch)
        trainer.log("accuracy", (predicted(output["model_outputs"]) == batch[1].flatten()).float().mean())
        return output

    return {"calculate_eval_batch_loss": evaluate}


def _distance(net: Any, pairs: Tensor) -> Tensor:
    squares: Tensor = (net.layers(pairs[:, :4]) - net.layers(pairs[:, 4:])).square().sum(dim=1)
    return squares.add(1e-6).sqrt()


def _loss_of_pairs(distances: Tensor, are_same: Tensor) -> Tensor:
    near, far = distances.square(), (1 - distances).clamp(min=0).square()
    return (are_same * near + (1 - are_same) * far).mean()


# The overlap of masks is minimised.
planted["loss-prefers-wrong-outputs", "overlap_as_a_loss", "Change the sign of the loss"] = lambda: images(
    nn.Conv2d(1, 1, 3, padding=1), _soft_overlap, of(masks(), lambda x, y: (x, y.float()))
)
# The likelihood of the right class is minimised.
planted["loss-prefers-wrong-outputs", "likelihood_without_its_sign"] = lambda: classes(
    loss=lambda outputs, targets: outputs.log_softmax(dim=1).gather(1, targets[:, None]).mean()
)
# The error has a sign that was meant for a score.
planted["loss-prefers-wrong-outputs", "negated_error"] = lambda: numbers(
    loss=lambda outputs, targets: -(outputs - targets).abs().clamp(max=3).mean()
)
# An error that has the same value for all outputs that are far away.
healthy["error_that_ends"] = lambda: numbers(
    loss=lambda outputs, targets: 1 - (-(outputs - targets).square()).exp().mean()
)
# The output is a distance, which is to be small where the target is 1.
healthy["distances_of_pairs"] = lambda: classes(
    Net(_distance, layers=perceptron(4, 4)), _loss_of_pairs, of(points(classes=2), lambda x, y: (x, y.float()))
)
# A hinge loss of the script is given 0 for -1.
planted["samples-cost-nothing", "zeros_in_a_hinge", "which targets the loss needs"] = lambda: classes(
    perceptron(8, 1), _hinge, two_classes()
)
# A hinge loss is given -1 and 1.
healthy["hinge_of_signs"] = lambda: classes(perceptron(8, 1), _hinge, of(two_classes(), lambda x, y: (x, 2 * y - 1)))
# Similarities are multiplied by a temperature of 0.1.
planted["logits-too-flat", "multiplied_by_the_temperature", "Divide the similarities"] = lambda: numbers(
    perceptron(6, 8), None, _noisy_halves(), step=_matching(0.1)
)
# Similarities are divided by a temperature of 0.1.
healthy["divided_by_the_temperature"] = lambda: numbers(perceptron(6, 8), None, _noisy_halves(), step=_matching(10.0))
# The accuracy takes the largest of one number, which is always the first.
planted["metric-does-not-depend-on-outputs", "argmax_of_one_output", "argmax of a single column"] = lambda: classes(
    perceptron(8, 1),
    nn.BCEWithLogitsLoss(),
    two_classes(),
    eval_dataset=two_classes(seed=2),
    methods=_counting(lambda outputs: outputs.argmax(dim=1)),
)
# The accuracy takes the sign of one number.
healthy["sign_of_one_output"] = lambda: classes(
    perceptron(8, 1),
    nn.BCEWithLogitsLoss(),
    two_classes(),
    eval_dataset=two_classes(seed=2),
    methods=_counting(lambda outputs: (outputs[:, 0] > 0).long()),
)
