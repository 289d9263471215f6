"""Mistakes in how outputs, targets and loss fit together."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import Trainer
from tests.support.pa_preflight.data import labels_of_several, lines, masks, pictures, points
from tests.support.pa_preflight.scripts import Apply, Planting, Script, conv_net, perceptron, script

planted = Planting()


@planted("softmax-before-cross-entropy")
def softmax_as_last_layer() -> Script:
    """The network ends in a softmax, which the loss applies again."""
    return script(nn.Sequential(*perceptron(8, 4), nn.Softmax(dim=1)), nn.CrossEntropyLoss(), points())


@planted("softmax-before-cross-entropy")
def softmax_in_forward() -> Script:
    """The same within ``forward``, of a convolutional network with the function for the loss."""

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = conv_net()

        @override
        def forward(self, images: Tensor) -> Tensor:
            return functional.softmax(self.layers(images), dim=-1)

    return script(Classifier(), functional.cross_entropy, pictures(), eval_dataset=pictures(seed=2))


@planted("sigmoid-before-bce-with-logits")
def sigmoid_as_last_layer() -> Script:
    """The network ends in a sigmoid, which the loss applies again."""
    inputs, targets = points(classes=2).tensors
    data = TensorDataset(inputs, targets.float().unsqueeze(1))
    return script(nn.Sequential(*perceptron(8, 1), nn.Sigmoid()), nn.BCEWithLogitsLoss(), data)


@planted("sigmoid-before-bce-with-logits")
def sigmoid_of_several_labels() -> Script:
    """The same with the function, for several labels a sample."""
    model = nn.Sequential(*perceptron(8, 5), Apply(torch.sigmoid))
    return script(model, functional.binary_cross_entropy_with_logits, labels_of_several())


@planted("log-probabilities-missing")
def negative_log_likelihood_of_logits() -> Script:
    """NLLLoss is given logits, without a log_softmax."""
    return script(perceptron(8, 4), nn.NLLLoss(), points())


@planted("log-probabilities-missing")
def negative_log_likelihood_of_probabilities() -> Script:
    """NLLLoss is given probabilities, whose logarithm was not taken."""
    return script(nn.Sequential(*perceptron(8, 4), nn.Softmax(dim=1)), nn.NLLLoss(), points())


@planted("targets-out-of-range")
def labels_from_one() -> Script:
    """Labels are counted from 1, as in many files."""
    inputs, targets = points().tensors
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), TensorDataset(inputs, targets + 1))


@planted("targets-out-of-range")
def unknown_as_minus_one() -> Script:
    """Some samples have no label, which the file marks by -1."""
    inputs, targets = points().tensors
    targets[::20] = -1
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), TensorDataset(inputs, targets))


@planted("targets-out-of-range")
def void_pixels() -> Script:
    """Pixels without a class are marked by 255, and the loss was not told to ignore them."""
    images, targets = masks().tensors
    targets[:, 0] = 255
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1))
    return script(model, nn.CrossEntropyLoss(), TensorDataset(images, targets))


@planted("targets-of-another-type", do="targets.long()")
def labels_as_floats() -> Script:
    """Class labels are floats, as a table has them."""
    inputs, targets = points().tensors
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), TensorDataset(inputs, targets.float()))


@planted("targets-of-another-type", do="targets.to(torch.float32)")
def labels_of_two_classes_as_integers() -> Script:
    """BCEWithLogitsLoss is given integers."""
    inputs, targets = points(classes=2).tensors
    return script(perceptron(8, 1), nn.BCEWithLogitsLoss(), TensorDataset(inputs, targets.unsqueeze(1)))


@planted("targets-of-another-type", do="targets.to(torch.float32)")
def whole_numbers_in_a_regression() -> Script:
    """MSELoss is given integers."""
    inputs, targets = lines().tensors
    return script(perceptron(6, 1), nn.MSELoss(), TensorDataset(inputs, (3 * targets).round().long()))


@planted("targets-broadcast", do="targets.unsqueeze(1)")
def flat_targets_in_a_regression() -> Script:
    """Targets of shape (B,) are compared with outputs of shape (B, 1): all with all."""
    inputs, targets = lines().tensors
    return script(perceptron(6, 1), nn.MSELoss(), TensorDataset(inputs, targets.squeeze(1)))


@planted("targets-broadcast", do="targets.squeeze(1)")
def flat_outputs_in_a_regression() -> Script:
    """Outputs of shape (B,) are compared with targets of shape (B, 1), by a loss that was written by hand."""

    def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).abs().mean()

    return script(nn.Sequential(*perceptron(6, 1), nn.Flatten(0)), absolute_error, lines())


class _ComparesWithItself(Trainer):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        inputs, _ = batch
        outputs = self.model(inputs)
        loss = functional.cross_entropy(outputs, outputs.argmax(dim=1))
        return {"loss": loss, "model_outputs": outputs, "batch_size": len(inputs)}


@planted("targets-do-not-matter")
def compared_with_its_own_predictions() -> Script:
    """The step takes the predictions for the targets."""
    return script(perceptron(8, 4), None, points(), kind=_ComparesWithItself)


class _ComparesWithZeros(Trainer):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        inputs, targets = batch
        outputs = self.model(inputs)
        loss = functional.mse_loss(outputs, torch.zeros_like(targets))
        return {"loss": loss, "model_outputs": outputs, "batch_size": len(inputs)}


@planted("targets-do-not-matter")
def compared_with_zeros() -> Script:
    """The step compares with the buffer that was to be filled with the targets."""
    return script(perceptron(6, 1), None, lines(), kind=_ComparesWithZeros)


@planted("loss-follows-batch-size")
def sum_of_losses() -> Script:
    """The loss is the sum over the batch, of which the last one of an epoch is smaller."""
    return script(perceptron(8, 4), nn.CrossEntropyLoss(reduction="sum"), points(470))


@planted("loss-follows-batch-size")
def sum_of_squares() -> Script:
    """The same, by a loss that was written by hand."""

    def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().sum()

    return script(perceptron(6, 1), squared_error, lines(470))


@planted("loss-not-finite")
def logarithm_of_zero() -> Script:
    """The logarithm of a probability that may be exactly 0."""

    def likelihood(outputs: Tensor, targets: Tensor) -> Tensor:
        return -outputs.relu().gather(1, targets.unsqueeze(1)).log().mean()

    return script(perceptron(8, 4), likelihood, points())


@planted("loss-not-finite")
def root_of_a_negative_number() -> Script:
    """The root of an output, which may be negative."""

    def error_of_roots(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.sqrt() - targets).square().mean()

    return script(perceptron(6, 1), error_of_roots, lines())


@planted("outputs-more-than-classes", do="with 10 outputs")
def head_of_a_thousand() -> Script:
    """The head has the thousand outputs of ImageNet, for ten classes."""
    return script(perceptron(16, 1000), nn.CrossEntropyLoss(), points(800, features=16, classes=10))


@planted("step-fails")
def layers_that_do_not_fit() -> Script:
    """A layer takes another number of features than the one before returns."""
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(64, 4))
    return script(model, nn.CrossEntropyLoss(), points())


@planted("step-fails")
def flattened_with_another_size() -> Script:
    """The head was written for pictures of another size."""
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 4))
    return script(model, nn.CrossEntropyLoss(), pictures())
