"""Mistakes in how a run is set up, and in overridden methods of the trainer."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from typing_extensions import override

from pa_core import Trainer
from tests.support.pa_preflight.data import lines, pictures, points
from tests.support.pa_preflight.scripts import Planting, Script, conv_net, perceptron, script

planted = Planting()


def _with_dropout() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))


@planted("batch-not-learnt")
def tiny_rate() -> Script:
    """The learning rate is far too low to learn anything."""
    model = perceptron(8, 4)
    return script(model, nn.CrossEntropyLoss(), points(), optimizer=SGD(model.parameters(), lr=1e-9))


@planted("batch-not-learnt")
def tiny_rate_with_adam() -> Script:
    """The same in a regression, with Adam."""
    model = perceptron(6, 1)
    return script(model, nn.MSELoss(), lines(), optimizer=Adam(model.parameters(), lr=1e-9))


@planted("batch-not-learnt")
def tiny_rate_with_a_loader() -> Script:
    """The same with a DataLoader of the script."""
    model = perceptron(8, 4)
    data = DataLoader(points(), batch_size=32, shuffle=True)
    return script(model, nn.CrossEntropyLoss(), data, optimizer=SGD(model.parameters(), lr=1e-9))


@planted("rate-too-high")
def rate_of_a_hundred() -> Script:
    """SGD leaps over the minimum further and further."""
    model = perceptron(8, 4)
    return script(model, nn.CrossEntropyLoss(), points(), optimizer=SGD(model.parameters(), lr=100.0))


@planted("rate-too-high")
def rate_that_diverges() -> Script:
    """SGD with momentum diverges in a regression."""
    model = perceptron(6, 1)
    return script(model, nn.MSELoss(), lines(), optimizer=SGD(model.parameters(), lr=5.0, momentum=0.9))


@planted("rate-is-zero")
def no_rate() -> Script:
    """The learning rate is 0."""
    model = perceptron(8, 4)
    return script(model, nn.CrossEntropyLoss(), points(), optimizer=Adam(model.parameters(), lr=0.0))


def _rounded_down(optimizer: Optimizer) -> LambdaLR:
    return LambdaLR(optimizer, lambda step: step // 1000)


@planted("rate-is-zero")
def factor_of_zero() -> Script:
    """The warm-up is divided with ``//``, so its factor is 0 in the whole run."""
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), points(), create_scheduler_fn=_rounded_down)


class _NeverSteps(Trainer):
    @override
    def optimizer_step(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)


@planted("weights-do-not-change")
def step_forgotten() -> Script:
    """An overridden ``optimizer_step`` clips, and does not step."""
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), points(), kind=_NeverSteps)


class _StepsWithoutGradients(Trainer):
    @override
    def optimizer_step(self) -> None:
        self.optimizer.zero_grad()
        self.optimizer.step()


@planted("weights-do-not-change")
def gradients_cleared_before_the_step() -> Script:
    """An overridden ``optimizer_step`` clears the gradients before it steps."""
    return script(perceptron(6, 1), nn.MSELoss(), lines(), kind=_StepsWithoutGradients)


class _NeverClears(Trainer):
    @override
    def optimizer_zero_grad(self) -> None:
        pass


@planted("gradients-not-cleared")
def gradients_kept() -> Script:
    """An overridden ``optimizer_zero_grad`` does nothing."""
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), points(), kind=_NeverClears)


class _ClearsTheFirstGroup(Trainer):
    @override
    def optimizer_zero_grad(self) -> None:
        for parameter in self.optimizer.param_groups[0]["params"]:
            parameter.grad = None


@planted("gradients-not-cleared")
def gradients_of_the_second_group_kept() -> Script:
    """An overridden ``optimizer_zero_grad`` knows the first of two parameter groups only."""
    body, head = nn.Sequential(nn.Linear(8, 32), nn.ReLU()), nn.Linear(32, 4)
    groups: list[dict[str, Any]] = [{"params": body.parameters()}, {"params": head.parameters(), "lr": 0.02}]
    optimizer = Adam(groups, lr=0.01)
    model = nn.Sequential(body, head)
    return script(model, nn.CrossEntropyLoss(), points(), optimizer=optimizer, kind=_ClearsTheFirstGroup)


class _TrainsInEvaluationMode(Trainer):
    @override
    def train_epoch_start(self) -> None:
        super().train_epoch_start()
        self.model.eval()


@planted("not-in-training-mode")
def evaluation_mode_in_training() -> Script:
    """An overridden ``train_epoch_start`` leaves the model in evaluation mode."""
    return script(conv_net(), nn.CrossEntropyLoss(), pictures(), kind=_TrainsInEvaluationMode)


class _EvaluatesInTrainingMode(Trainer):
    @override
    def eval_epoch_start(self) -> None:
        super().eval_epoch_start()
        self.model.train()


@planted("trains-in-evaluation")
def training_mode_in_evaluations() -> Script:
    """An overridden ``eval_epoch_start`` puts the model back into training mode."""
    evaluation = pictures(80, seed=2)
    return script(conv_net(), nn.CrossEntropyLoss(), pictures(), eval_dataset=evaluation, kind=_EvaluatesInTrainingMode)


class _StaysInTrainingMode(Trainer):
    @override
    def eval_epoch_start(self) -> None:
        pass


@planted("trains-in-evaluation")
def training_mode_kept_in_evaluations() -> Script:
    """An overridden ``eval_epoch_start`` calls no ``super()``, so dropout stays on."""
    evaluation = points(96, seed=2)
    return script(_with_dropout(), nn.CrossEntropyLoss(), points(), eval_dataset=evaluation, kind=_StaysInTrainingMode)


@planted("clipping-too-low")
def gradients_clipped_to_nothing() -> Script:
    """Gradients are clipped to a norm of a millionth."""
    model = perceptron(8, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    return script(model, nn.CrossEntropyLoss(), points(), optimizer=optimizer, gradient_clip_norm=1e-6)


@planted("clipping-too-low")
def elements_clipped_to_nothing() -> Script:
    """Each element of the gradients is clipped to a hundred-millionth."""
    model = perceptron(6, 1)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    return script(model, nn.MSELoss(), lines(), optimizer=optimizer, gradient_clip_value=1e-8)
