"""Mistakes in the settings of layers, optimizers, schedules and callbacks."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    StepLR,
)
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

from pa_core import SaveTrainingStateCallback, StepBasedEvaluationCallback, TrainerCallback
from tests.support.pa_preflight.data import lines, pictures, points
from tests.support.pa_preflight.scripts import Planting, Script, conv_net, perceptron, script

planted = Planting()


def _classified(**arguments: Any) -> Script:
    return script(perceptron(8, 4), nn.CrossEntropyLoss(), points(), **arguments)


def with_callback(callback: TrainerCallback, **arguments: Any) -> Script:
    """Return a script of a regression with an evaluation, and a callback."""
    one = script(perceptron(6, 1), nn.MSELoss(), lines(), eval_dataset=lines(96, seed=2), **arguments)
    one.trainer.callback_handler.add_callback(callback)
    return one


@planted("rate-far-below")
def schedule_that_returns_rates() -> Script:
    """The function of ``LambdaLR`` returns the learning rate, which multiplies the one of the optimizer."""
    return _classified(create_scheduler_fn=partial(LambdaLR, lr_lambda=lambda update: 0.01 * 0.99**update))


@planted("schedule-does-not-fit", do="Give the warm-up a tenth")
def warm_up_for_longer_than_the_run() -> Script:
    """A warm-up of 1,000 updates in a run of 45."""
    return _classified(create_scheduler_fn=partial(LinearLR, start_factor=0.01, total_iters=1000))


@planted("schedule-does-not-fit", do="what the scheduler counts")
def epochs_counted_in_updates() -> Script:
    """A step of ``StepLR`` is meant for epochs, and comes after each second update."""
    return _classified(create_scheduler_fn=partial(StepLR, step_size=2))


@planted("schedule-does-not-fit", do="what the scheduler counts")
def decay_of_epochs_after_each_update() -> Script:
    """The rate is halved in each update instead of in each epoch."""
    return _classified(create_scheduler_fn=partial(ExponentialLR, gamma=0.5))


@planted("schedule-does-not-fit", do="Give it the number of steps")
def cosine_of_updates_after_each_epoch() -> Script:
    """The length of the cosine is in updates, and the scheduler is stepped after epochs."""
    return _classified(create_scheduler_fn=partial(CosineAnnealingLR, T_max=450), step_scheduler="epoch", num_epochs=30)


@planted("schedule-does-not-fit", do="Give it the number of steps")
def cycle_of_another_run() -> Script:
    """``OneCycleLR`` was made for a run of 5,000 updates."""
    one_cycle = partial(OneCycleLR, max_lr=0.01, total_steps=5000, pct_start=0.002)
    return _classified(create_scheduler_fn=one_cycle)


@planted("schedule-does-not-fit", do="Give it the number of steps")
def milestones_after_the_run() -> Script:
    """All milestones come after the last epoch."""
    milestones = partial(MultiStepLR, milestones=[30, 60])
    return _classified(create_scheduler_fn=milestones, step_scheduler="epoch", num_epochs=10)


@planted("schedule-does-not-fit", do="number of steps of the whole run")
def cosine_that_rises_again() -> Script:
    """``T_max`` is a number of epochs, and the scheduler is stepped after each update."""
    return _classified(create_scheduler_fn=partial(CosineAnnealingLR, T_max=9), num_epochs=9)


@planted("schedule-does-not-fit", do="Count the milestones")
def milestones_of_epochs_in_updates() -> Script:
    """A milestone is meant for an epoch, and comes in the first one."""
    return _classified(create_scheduler_fn=partial(MultiStepLR, milestones=[2, 4]), num_epochs=10)


@planted("scheduler-not-given")
def scheduler_that_nobody_steps() -> Script:
    """A scheduler is made for the optimizer, and not given to the trainer."""
    model = perceptron(8, 4)
    optimizer = Adam(model.parameters(), lr=0.01)
    CosineAnnealingLR(optimizer, T_max=45)
    return script(model, nn.CrossEntropyLoss(), points(), optimizer=optimizer)


@planted("option-without-effect")
def rate_of_a_group_misspelt() -> Script:
    """A group says ``learning_rate``, as in Keras."""
    body, head = nn.Sequential(nn.Linear(8, 32), nn.ReLU()), nn.Linear(32, 4)
    groups: list[dict[str, Any]] = [{"params": body.parameters()}, {"params": head.parameters(), "learning_rate": 0.05}]
    optimizer = SGD(groups, lr=0.01)
    return script(nn.Sequential(body, head), nn.CrossEntropyLoss(), points(), optimizer=optimizer)


@planted("option-without-effect", do="Call it weight_decay")
def decay_of_a_group_misspelt() -> Script:
    """A group says ``weight_decays``."""
    model = perceptron(8, 4)
    groups: list[dict[str, Any]] = [{"params": model.parameters(), "weight_decays": 0.1}]
    return script(model, nn.CrossEntropyLoss(), points(), optimizer=AdamW(groups, lr=0.01))


@planted("unusual-option")
def betas_swapped() -> Script:
    """The averages of gradients and of squares have each other's decay."""
    model = perceptron(8, 4)
    optimizer = Adam(model.parameters(), lr=0.01, betas=(0.999, 0.9))
    return script(model, nn.CrossEntropyLoss(), points(), optimizer=optimizer)


@planted("unusual-option")
def momentum_of_nearly_one() -> Script:
    """A momentum of 0.999 averages over a thousand updates."""
    model = perceptron(6, 1)
    optimizer = SGD(model.parameters(), lr=1e-4, momentum=0.999)
    return script(model, nn.MSELoss(), lines(), optimizer=optimizer)


@planted("unusual-option", do="a usual one: 0.01 to 0.1")
def decay_of_ten() -> Script:
    """AdamW pulls the weights to 0 as strongly as it moves them."""
    model = perceptron(8, 4)
    optimizer = AdamW(model.parameters(), lr=0.01, weight_decay=10.0)
    return script(model, nn.CrossEntropyLoss(), points(), optimizer=optimizer)


@planted("unusual-option", do="the share that is dropped")
def dropout_of_the_share_that_is_kept() -> Script:
    """Dropout is given the share that is kept, as in early TensorFlow."""
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.9), nn.Linear(32, 4))
    return script(model, nn.CrossEntropyLoss(), points())


@planted("unusual-option", do="Momentum is the share of the newest batch")
def momentum_of_another_library() -> Script:
    """Batch norm has the momentum of Keras, which is one minus that of torch."""
    model = conv_net()
    norm = model.get_submodule("1")
    assert isinstance(norm, nn.BatchNorm2d)
    norm.momentum = 0.99
    return script(model, nn.CrossEntropyLoss(), pictures())


@planted("unusual-option", do="Momentum is the share of the newest batch")
def statistics_that_stay() -> Script:
    """Batch norm averages over more batches than the run has."""
    model = nn.Sequential(nn.BatchNorm1d(8, momentum=0.002), *perceptron(8, 4))
    return script(model, nn.CrossEntropyLoss(), points())


@planted("weights-barely-move")
def rate_of_a_millionth() -> Script:
    """Learning takes place, and far too little of it for the length of the run."""
    model = perceptron(6, 1)
    return script(model, nn.MSELoss(), lines(), optimizer=Adam(model.parameters(), lr=1e-6))


@planted("weights-barely-move")
def clipped_to_a_ten_thousandth() -> Script:
    """Plain SGD moves the weights by what clipping leaves of the gradients."""
    model = perceptron(6, 1)
    optimizer = SGD(model.parameters(), lr=0.05)
    return script(model, nn.MSELoss(), lines(), optimizer=optimizer, gradient_clip_norm=1e-2)


@planted("flag-without-effect")
def frozen_by_an_attribute() -> Script:
    """``requires_grad`` is set on a module, where nobody reads it."""
    body = nn.Sequential(nn.Linear(8, 32), nn.ReLU())
    vars(body)["requires_grad"] = False
    return script(nn.Sequential(body, nn.Linear(32, 4)), nn.CrossEntropyLoss(), points())


@planted("flag-without-effect", do="Set requires_grad", level="warning")
def frozen_by_a_misspelt_attribute() -> Script:
    """``require_grad`` is set on parameters."""
    model = perceptron(8, 4)
    for parameter in model.parameters():
        vars(parameter)["require_grad"] = False
    return script(model, nn.CrossEntropyLoss(), points())


@planted("layer-repeated")
def layers_multiplied_as_a_list() -> Script:
    """Four hidden layers are the same layer four times."""
    block = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    model = nn.Sequential(*[block] * 4, nn.Linear(8, 4))
    return script(model, nn.CrossEntropyLoss(), points())


@planted("layers-not-registered")
def layers_in_a_list() -> Script:
    """The hidden layers are in a list of Python."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = [nn.Linear(8, 8) for _ in range(3)]
            self.head = nn.Linear(8, 4)

        @override
        def forward(self, inputs: Tensor) -> Tensor:
            for layer in self.layers:
                inputs = layer(inputs).relu()
            logits: Tensor = self.head(inputs)
            return logits

    return script(Network(), nn.CrossEntropyLoss(), points())


@planted("frozen-norm-moves")
def frozen_backbone_with_batch_norm() -> Script:
    """A frozen part is in training mode, so that its running statistics change."""
    model = conv_net()
    model.get_submodule("0").requires_grad_(False)
    model.get_submodule("1").requires_grad_(False)
    trained = [one for one in model.parameters() if one.requires_grad]
    return script(model, nn.CrossEntropyLoss(), pictures(), optimizer=Adam(trained, lr=0.01))


class _Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(8, 32), nn.Linear(32, 4)
        self.block = nn.Sequential(nn.BatchNorm1d(32), nn.ReLU())

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(checkpoint(self.block, self.first(inputs), use_reentrant=False))
        return logits


@planted("statistics-move-twice")
def recomputed_batch_norm() -> Script:
    """A block with BatchNorm is checkpointed, so that the backward pass computes it again."""
    return script(_Recomputed(), nn.CrossEntropyLoss(), points())


@planted("weights-not-initialised")
def weights_from_memory() -> Script:
    """A parameter has what was in memory when it was made."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.full((8,), 3e19))
            self.head = perceptron(8, 4)

        @override
        def forward(self, inputs: Tensor) -> Tensor:
            logits: Tensor = self.head((inputs * self.scale).tanh())
            return logits

    return script(Scaled(), nn.CrossEntropyLoss(), points())


@planted("units-are-identical")
def weights_of_a_constant() -> Script:
    """All weights begin with the same number."""
    model = nn.Sequential(*perceptron(8, 32), nn.ReLU(), nn.Linear(32, 4))
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.05)
    return script(model, nn.CrossEntropyLoss(), points())


@planted("callback-settings", do="smaller eval_every_n_steps")
def evaluation_after_the_run() -> Script:
    """Evaluations are due after 1,000 updates."""
    return with_callback(StepBasedEvaluationCallback(1000))


@planted("callback-settings", do="smaller save_every_n_epochs")
def state_after_the_run() -> Script:
    """States are due after ten epochs of three, and not at the end."""
    return with_callback(SaveTrainingStateCallback("states", save_every_n_epochs=10, save_at_end=False))


class _Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    @override
    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs * self.scale, targets)


@planted("parameters-outside-optimizer", do="model and loss function", level="warning")
def weights_of_the_loss_left_out() -> Script:
    """The loss function has a temperature to be learnt, and the optimizer has the model only."""
    return script(perceptron(8, 4), _Scaled(), points())
