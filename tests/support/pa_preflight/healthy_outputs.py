"""Scripts without a mistake whose losses look at outputs in unusual ways."""

from __future__ import annotations

from torch import Tensor, nn
from torch.utils.data import TensorDataset
from typing_extensions import override

from tests.support.pa_preflight.data import lines, points
from tests.support.pa_preflight.planted_in_outputs import Counting, Matching, halves, two_classes
from tests.support.pa_preflight.scripts import Healthy, Script, perceptron, script

healthy = Healthy()


@healthy
def divided_by_the_temperature() -> Script:
    """Similarities are divided by a temperature of 0.1."""

    class Divided(Matching):
        factor = 10.0

    return script(perceptron(6, 8), None, halves(), kind=Divided)


@healthy
def distances_of_pairs() -> Script:
    """The output is a distance, which is to be small where the target is 1."""

    class Distance(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = perceptron(4, 4)

        @override
        def forward(self, pairs: Tensor) -> Tensor:
            one, other = self.layers(pairs[:, :4]), self.layers(pairs[:, 4:])
            distances: Tensor = (one - other).square().sum(dim=1).add(1e-6).sqrt()
            return distances

    def loss_of_pairs(distances: Tensor, are_same: Tensor) -> Tensor:
        near, far = distances.square(), (1 - distances).clamp(min=0).square()
        return (are_same * near + (1 - are_same) * far).mean()

    inputs, targets = points(classes=2).tensors
    return script(Distance(), loss_of_pairs, TensorDataset(inputs, targets.float()))


@healthy
def error_that_ends() -> Script:
    """An error that has the same value for all outputs that are far away."""

    def bounded_error(outputs: Tensor, targets: Tensor) -> Tensor:
        return 1 - (-(outputs - targets).square()).exp().mean()

    return script(perceptron(6, 1), bounded_error, lines())


@healthy
def hinge_of_signs() -> Script:
    """A hinge loss is given -1 and 1."""

    def hinge(outputs: Tensor, targets: Tensor) -> Tensor:
        return (1 - targets * outputs).clamp(min=0).mean()

    inputs, targets = points(classes=2).tensors
    return script(perceptron(8, 1), hinge, TensorDataset(inputs, 2.0 * targets[:, None] - 1))


@healthy
def sign_of_one_output() -> Script:
    """The accuracy takes the sign of one number."""

    class OfSigns(Counting):
        @override
        def predicted(self, outputs: Tensor) -> Tensor:
            return (outputs[:, 0] > 0).long()

    loss_func, data = nn.BCEWithLogitsLoss(), two_classes()
    return script(perceptron(8, 1), loss_func, data, eval_dataset=two_classes(seed=2), kind=OfSigns)
