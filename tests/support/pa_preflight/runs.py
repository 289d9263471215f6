"""Scripts with and without mistakes in their runs: optimizers, schedules, callbacks, and overridden methods."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    StepLR,
)
from torch.utils.data import DataLoader
from typing_extensions import override

from pa_core import (
    AnyTrainer,
    SaveBestModelCallback,
    SaveTrainingStateCallback,
    StepBasedEvaluationCallback,
    Trainer,
    TrainerCallback,
    TrainerPlaceholderValues,
)
from pa_core.testing import make_classification
from tests.support.pa_preflight.data import lines, of, pictures, points, texts
from tests.support.pa_preflight.models import text_classifier
from tests.support.pa_preflight.networks import freeze_norms, usual_step
from tests.support.pa_preflight.scripts import (
    Healthy,
    Planting,
    Script,
    classes,
    conv_net,
    images,
    numbers,
    perceptron,
    script,
    with_layer,
)

planted, healthy = Planting(), Healthy()

# -- learning rates and schedules --------------------------------------------------------------------------------------

_updates = TrainerPlaceholderValues.NUM_EPOCHS * TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH


def _scheduled(kind: Any, *, by_epoch: bool = False, num_epochs: int = 3, **options: Any) -> Script:
    after = "epoch" if by_epoch else "update"
    return classes(create_scheduler_fn=partial(kind, **options), num_epochs=num_epochs, step_scheduler=after)


def _with_factors(factor: Callable[[int], float]) -> Script:
    return _scheduled(LambdaLR, lr_lambda=factor)


def _scheduler_that_nobody_steps(parameters: Any) -> Optimizer:
    optimizer = Adam(parameters, lr=0.01)
    CosineAnnealingLR(optimizer, T_max=45)
    return optimizer


# The learning rate is far too low to learn anything.
planted["batch-not-learnt", "tiny_rate", "Search for a rate with pa_schedulers.find_learning_rate"] = lambda: classes(
    train=partial(SGD, lr=1e-9)
)
# The same in a regression, with Adam.
planted["batch-not-learnt", "tiny_rate_with_adam"] = lambda: numbers(train=partial(Adam, lr=1e-9))
# The same with a DataLoader of the script.
planted["batch-not-learnt", "tiny_rate_with_a_loader"] = lambda: classes(
    data=DataLoader(points(), batch_size=32, shuffle=True), train=partial(SGD, lr=1e-9)
)
# SGD leaps over the minimum further and further.
planted["rate-too-high", "rate_of_a_hundred", "Search for a rate with pa_schedulers.find_learning_rate"] = lambda: (
    classes(train=partial(SGD, lr=100.0))
)
# SGD with momentum diverges in a regression.
planted["rate-too-high", "rate_that_diverges"] = lambda: numbers(train=partial(SGD, lr=5.0, momentum=0.9))
# The learning rate is 0.
planted["rate-is-zero", "no_rate", "the factor of the scheduler"] = lambda: classes(train=partial(Adam, lr=0.0))
# The warm-up is divided with ``//``, so its factor is 0 in the whole run.
planted["rate-is-zero", "factor_of_zero"] = lambda: _with_factors(lambda step: step // 1000)
# Learning takes place, and far too little of it for the length of the run.
planted["weights-barely-move", "rate_of_a_millionth", "Raise the learning rate"] = lambda: numbers(
    train=partial(Adam, lr=1e-6)
)
# Plain SGD moves the weights by what clipping leaves of the gradients.
planted["weights-barely-move", "clipped_to_a_ten_thousandth"] = lambda: numbers(
    train=partial(SGD, lr=0.05), gradient_clip_norm=1e-2
)
# A rate as for fine-tuning, which is high enough for a wide network.
healthy["small_rate"] = lambda: classes(perceptron(8, 4, hidden=2048), train=partial(Adam, lr=3e-5))
# Gradients are clipped to a norm of a millionth.
planted["clipping-too-low", "gradients_clipped_to_nothing", "such as a norm of 1"] = lambda: classes(
    train=partial(SGD, lr=0.1), gradient_clip_norm=1e-6
)
# Each element of the gradients is clipped to a hundred-millionth.
planted["clipping-too-low", "elements_clipped_to_nothing"] = lambda: numbers(
    train=partial(SGD, lr=0.1, momentum=0.9), gradient_clip_value=1e-8
)
# The function of ``LambdaLR`` returns the learning rate, which multiplies the one of the optimizer.
planted["rate-far-below", "schedule_that_returns_rates", "return factors"] = lambda: _with_factors(
    lambda update: 0.01 * 0.99**update
)
# A warm-up of 1,000 updates in a run of 45.
planted["schedule-does-not-fit", "warm_up_for_longer_than_the_run", "Give the warm-up a tenth"] = lambda: _scheduled(
    LinearLR, start_factor=0.01, total_iters=1000
)
# A step of ``StepLR`` is meant for epochs, and comes after each second update.
planted["schedule-does-not-fit", "epochs_counted_in_updates", "unit that the scheduler counts"] = lambda: _scheduled(
    StepLR, step_size=2
)
# The rate is halved in each update instead of in each epoch.
planted["schedule-does-not-fit", "decay_of_epochs_after_each_update", "unit that the scheduler counts"] = lambda: (
    _scheduled(ExponentialLR, gamma=0.5)
)
# The length of the cosine is in updates, and the scheduler is stepped after epochs.
planted["schedule-does-not-fit", "cosine_of_updates_after_each_epoch", "number of steps that the run makes"] = lambda: (
    _scheduled(CosineAnnealingLR, T_max=450, by_epoch=True, num_epochs=30)
)
# ``OneCycleLR`` was made for a run of 5,000 updates.
planted["schedule-does-not-fit", "cycle_of_another_run", "number of steps that the run makes"] = lambda: _scheduled(
    OneCycleLR, max_lr=0.01, total_steps=5000, pct_start=0.002
)
# All milestones come after the last epoch.
planted["schedule-does-not-fit", "milestones_after_the_run", "number of steps that the run makes"] = lambda: _scheduled(
    MultiStepLR, milestones=[30, 60], by_epoch=True, num_epochs=10
)
# ``T_max`` is a number of epochs, and the scheduler is stepped after each update.
planted["schedule-does-not-fit", "cosine_that_rises_again", "number of steps of the whole run"] = lambda: _scheduled(
    CosineAnnealingLR, T_max=9, num_epochs=9
)
# A milestone is meant for an epoch, and comes in the first one.
planted["schedule-does-not-fit", "milestones_of_epochs_in_updates", "Count the milestones"] = lambda: _scheduled(
    MultiStepLR, milestones=[2, 4], num_epochs=10
)
# A scheduler is made for the optimizer, and not given to the trainer.
planted["scheduler-not-given", "scheduler_that_nobody_steps", "create_scheduler_fn"] = lambda: classes(
    train=_scheduler_that_nobody_steps
)
# SGD with momentum, and a scheduler that is told the length of the run.
healthy["momentum_with_a_cycle"] = lambda: images(
    train=partial(SGD, lr=0.02, momentum=0.9, nesterov=True),
    create_scheduler_fn=partial(OneCycleLR, max_lr=0.1, total_steps=_updates),
)
# The rate begins at a thousandth of its value.
healthy["warm_up"] = lambda: _scheduled(LinearLR, start_factor=1e-3, total_iters=10)
# The rate of the first update is 0.
healthy["warm_up_from_zero"] = lambda: _with_factors(lambda step: min(1.0, step / 10))
# The optimizer has a rate of 1, and the schedule has the rates, as in "Attention is all you need".
healthy["noam_schedule"] = lambda: classes(
    text_classifier(),
    data=texts(),
    train=partial(Adam, lr=1.0, betas=(0.9, 0.98)),
    create_scheduler_fn=partial(LambdaLR, lr_lambda=lambda step: 0.05 * min((step + 1) ** -0.5, (step + 1) / 20)),
)

# -- options of optimizers and layers ----------------------------------------------------------------------------------


def _in_groups(kind: Any, **of_head: Any) -> Any:
    """Makes an optimizer with one group for the first layer and one for the last."""

    def make(parameters: Any) -> Optimizer:
        every = [*parameters]
        optimizer: Optimizer = kind([{"params": every[:2]}, {"params": every[2:], **of_head}])
        return optimizer

    return make


def _with_momentum(momentum: float) -> nn.Sequential:
    model = conv_net()
    model[1] = nn.BatchNorm2d(8, momentum=momentum)
    return model


# A group says ``learning_rate``, as in Keras.
planted["option-without-effect", "rate_of_a_group_misspelt", "Name it lr"] = lambda: classes(
    train=_in_groups(partial(SGD, lr=0.01), learning_rate=0.05)
)
# A group says ``weight_decays``.
planted["option-without-effect", "decay_of_a_group_misspelt", "Name it weight_decay"] = lambda: classes(
    train=_in_groups(partial(AdamW, lr=0.01), weight_decays=0.1)
)
# The body is trained with a tenth of the rate of the head.
healthy["several_parameter_groups"] = lambda: classes(train=_in_groups(partial(Adam, lr=2e-3), lr=2e-2))
# The averages of gradients and of squares have each other's decay.
planted["unusual-option", "betas_swapped", "unless it was chosen on purpose"] = lambda: classes(
    train=partial(Adam, lr=0.01, betas=(0.999, 0.9))
)
# A momentum of 0.999 averages over a thousand updates.
planted["unusual-option", "momentum_of_nearly_one"] = lambda: numbers(train=partial(SGD, lr=1e-4, momentum=0.999))
# AdamW pulls the weights to 0 as strongly as it moves them.
planted["unusual-option", "decay_of_ten", "a usual weight decay: 0.01 to 0.1"] = lambda: classes(
    train=partial(AdamW, lr=0.01, weight_decay=10.0)
)
# Dropout is given the share of what is kept.
planted["unusual-option", "dropout_of_the_share_that_is_kept", "the fraction to drop"] = lambda: classes(
    with_layer(nn.Dropout(0.9))
)
# Batch norm has the momentum of Keras, which is one minus that of torch.
planted["unusual-option", "momentum_of_another_library", "momentum is the fraction of the newest batch"] = lambda: (
    images(_with_momentum(0.99))
)
# Batch norm averages over more batches than the run has.
planted["unusual-option", "statistics_that_stay", "momentum is the fraction of the newest batch"] = lambda: classes(
    nn.Sequential(nn.BatchNorm1d(8, momentum=0.002), *perceptron(8, 4))
)
# A single layer with SGD.
healthy["linear_classifier"] = lambda: classes(
    nn.Linear(8, 4), train=partial(SGD, lr=0.1), eval_dataset=points(96, seed=2)
)
# Cross entropy of the logits of a small network.
healthy["classification_of_vectors"] = lambda: classes(eval_dataset=points(96, seed=2))
# The mean squared error of standardised targets.
healthy["regression"] = lambda: numbers(eval_dataset=lines(96, seed=2))
# A regression with Adagrad.
healthy["adagrad"] = lambda: numbers(loss=nn.HuberLoss(), train=partial(Adagrad, lr=0.05))
# A classification with RMSprop.
healthy["rms_prop"] = lambda: classes(train=partial(RMSprop, lr=3e-3))

# -- batches, callbacks and states -------------------------------------------------------------------------------------


class _Notes(TrainerCallback):
    """Has a state that it may not get back."""

    def __init__(self, state: dict[str, Any], *, keeps_what_it_loads: bool) -> None:
        self.state, self.keeps_what_it_loads = state, keeps_what_it_loads

    @override
    def state_dict(self) -> dict[str, Any]:
        return self.state

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.state = state_dict if self.keeps_what_it_loads else {}


def _evaluated(*callbacks: TrainerCallback) -> Script:
    return numbers(eval_dataset=lines(96, seed=2), callbacks=callbacks)


def _saving(*callbacks: TrainerCallback, model: nn.Module | None = None, **others: Any) -> Script:
    return script(
        model or perceptron(4, 3),
        nn.CrossEntropyLoss(),
        make_classification(96),
        callbacks=[
            *callbacks,
            SaveTrainingStateCallback(Path(tempfile.gettempdir(), "states"), **others.pop("saving", {})),
        ],
        **others,
    )


def _batch_size_of_the_loaders() -> Script:
    train, evaluation = ({"batch_size": size, "drop_last": True} for size in (64, 96))
    made = classes(eval_dataset=points(96, seed=2), train_dataloader_kwargs=train, eval_dataloader_kwargs=evaluation)
    del made.arguments["per_device_batch_size"]
    return made


def _continued_training() -> Script:
    made = numbers(eval_dataset=lines(96, seed=2))
    longer: dict[str, Any] = {**made.arguments, "num_epochs": 20}
    made.trainer.train(**longer)
    return Script(made.trainer, {**made.arguments, "reset_run_history": False})


def _learnt_already() -> Script:
    made = classes(perceptron(8, 4, hidden=64), data=points(64))
    longer: dict[str, Any] = {**made.arguments, "num_epochs": 150}
    made.trainer.train(**longer)
    return made


# Evaluations are due after 1,000 updates.
planted["callback-settings", "evaluation_after_the_run", "smaller eval_every_n_steps"] = lambda: _evaluated(
    StepBasedEvaluationCallback(1000)
)
# States are due after ten epochs of three, and not at the end.
planted["callback-settings", "state_after_the_run", "smaller save_every_n_epochs"] = lambda: _evaluated(
    SaveTrainingStateCallback("states", save_every_n_epochs=10, save_at_end=False)
)
# A callback has a path in its state, and not a string.
planted["state-not-saved", "path_in_a_state", "Let each state_dict() return tensors"] = lambda: _saving(
    _Notes({"file": Path("log")}, keeps_what_it_loads=True)
)
# A callback returns a state, and does not load it.
planted["state-not-loaded", "state_that_is_forgotten", "Let load_state_dict() restore"] = lambda: _saving(
    _Notes({"seen": 3}, keeps_what_it_loads=False)
)
# Each of 40,000 updates saves 32 MB, and all states are kept.
planted["disk-too-small", "state_after_each_update", "Pass a smaller max_checkpoints"] = lambda: _saving(
    model=perceptron(4, 3, hidden=1_000_000),
    train=partial(SGD, lr=1e-4),
    max_num_train_steps=40_000,
    saving={"save_every_n_steps": 1},
)
# Four small batches make an update.
healthy["accumulated_gradients"] = lambda: classes(per_device_batch_size=8, gradient_accumulation_steps=4)
# The number of samples of an update is given.
healthy["samples_of_an_update"] = lambda: numbers(per_device_batch_size=16, samples_per_update=64)
# The batch sizes are among the arguments of the loaders, and the last batch is left out.
healthy["batch_size_of_the_loaders"] = _batch_size_of_the_loaders
# The model has been trained already, and has little left to learn.
healthy["continued_training"] = _continued_training
# The model has learnt all samples by heart, and is trained further.
healthy["learnt_already"] = _learnt_already

if importlib.util.find_spec("pa_callbacks_extra") is not None:  # which is not everywhere where checks are tested
    from pa_callbacks_extra import EarlyStoppingCallback, ModelEmaCallback

    # The loss would have to improve by more than it is.
    planted["callback-settings", "improvements_larger_than_the_loss", "small compared with the loss"] = lambda: (
        _evaluated(EarlyStoppingCallback(early_stopping_patience=1, early_stopping_threshold=100.0))
    )
    # A patience of ten epochs, in a run of three.
    planted["callback-settings", "patience_of_more_than_the_run", "smaller patience"] = lambda: _evaluated(
        EarlyStoppingCallback(early_stopping_patience=10, early_stopping_threshold=0.0)
    )
    # The average looks back over 10,000 updates, in a run of 45.
    planted["callback-settings", "average_of_more_than_the_run", "smaller decay"] = lambda: _evaluated(
        ModelEmaCallback(decay=0.9999)
    )
    # The decay is the share of the newest weights, as batch norm has it.
    planted[
        "callback-settings", "average_with_the_share_of_the_new", "fraction of the average that an update keeps"
    ] = lambda: _evaluated(ModelEmaCallback(decay=0.01))
    # The best model and the best average are saved to the same file.
    planted["callback-settings", "two_models_in_one_file", "its own save_path"] = lambda: _evaluated(
        SaveBestModelCallback("best.pt"), ModelEmaCallback(decay=0.9, save_path="best.pt")
    )

# -- steps -------------------------------------------------------------------------------------------------------------


def _divided_by(number: int) -> Any:
    def step(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
        loss, outputs = usual_step(trainer, batch)
        return loss / number, outputs

    return step


def _adds_losses(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    loss, outputs = usual_step(trainer, batch)
    trainer.total = getattr(trainer, "total", 0.0) + loss
    return loss, outputs


def _keeps_outputs(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    trainer.kept = (*getattr(trainer, "kept", ()), trainer.model(batch[0]).mean())
    return usual_step(trainer, batch)


def _seeds(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return usual_step(trainer, batch)


def _mixes_up(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    inputs, targets = batch
    share = 0.7 + 0.3 * torch.rand((), device=inputs.device)
    others = torch.randperm(len(inputs), device=inputs.device)
    outputs = trainer.model(share * inputs + (1 - share) * inputs[others])
    soft = share * functional.one_hot(targets, 4) + (1 - share) * functional.one_hot(targets[others], 4)
    return functional.cross_entropy(outputs, soft), outputs


def _mixes_in_place(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    pixels, targets = batch
    pixels.mul_(0.8).add_(pixels.flip(0), alpha=0.2)
    soft = 0.8 * functional.one_hot(targets, 4) + 0.2 * functional.one_hot(targets.flip(0), 4)
    outputs = trainer.model(pixels)
    return functional.cross_entropy(outputs, soft), outputs


def _learns_from_teacher(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        wanted = trainer.teacher(batch[0]).log_softmax(dim=1)
    outputs = trainer.model(batch[0])
    loss = functional.kl_div(outputs.log_softmax(dim=1), wanted, reduction="batchmean", log_target=True)
    return loss, outputs


def _distillation() -> Script:
    teacher = perceptron(8, 4)
    first = classes(teacher)
    first.trainer.train(**first.arguments)
    made = classes(nn.Linear(8, 4), None, step=_learns_from_teacher)
    vars(made.trainer)["teacher"] = teacher.eval()
    return made


def _weighted(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    outputs = trainer.model(batch[0])
    losses = functional.cross_entropy(outputs, batch[1], reduction="none")
    return (losses * trainer.weights[batch[1]]).mean(), outputs


class _MakesWeights(TrainerCallback):
    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        vars(trainer)["weights"] = torch.tensor([1.0, 1.0, 2.0, 3.0])


@dataclass
class _Batch:
    inputs: Tensor
    targets: Tensor

    @classmethod
    def of(cls, samples: list[tuple[Tensor, Tensor]]) -> _Batch:
        inputs, targets = zip(*samples, strict=True)
        return cls(torch.stack(inputs), torch.stack(targets))


def _of_parts(trainer: Any, batch: Any) -> Any:
    return Trainer.calculate_train_batch_loss(trainer, (batch.inputs, batch.targets))


# The step divides the loss, as the trainer does.
planted["loss-divided-twice", "divided_by_the_accumulation_steps", "Return the mean over the batch"] = lambda: classes(
    step=_divided_by(4), gradient_accumulation_steps=4
)
# The mean is divided by the number of samples.
planted["loss-divided-twice", "mean_divided_by_the_samples"] = lambda: classes(step=_divided_by(32))
# A sum of losses has the graphs of all steps.
planted["graphs-kept", "losses_added_up", "keep value.detach()"] = lambda: classes(step=_adds_losses)
# A mean of each batch is kept with what its backward pass needs.
planted["graphs-kept", "outputs_in_a_list"] = lambda: images(step=_keeps_outputs)
# The seed is set in each step, so that dropout leaves out the same units.
planted["draws-repeat", "seed_in_each_step", "Seed once"] = lambda: classes(with_layer(nn.Dropout(0.2)), step=_seeds)
# The step mixes samples and targets at random, in training only.
healthy["mix_up"] = lambda: classes(step=_mixes_up, eval_dataset=points(96, seed=2))
# The step changes its batch, as the mix-up of timm does.
healthy["batch_mixed_in_place"] = lambda: images(step=_mixes_in_place)
# The student learns the outputs of a teacher, which was trained on the labels that it does not see.
healthy["distillation"] = _distillation
# The step needs what a callback of the script makes at the start of the run.
healthy["weights_made_by_a_callback"] = lambda: classes(loss=None, step=_weighted, callbacks=[_MakesWeights])
# A ``collate_fn`` makes an object of each batch.
healthy["batches_as_dataclasses"] = lambda: classes(
    methods={"calculate_train_batch_loss": _of_parts}, collate_fn=_Batch.of
)
# Samples end with their number in the file, which the step does not use.
healthy["third_item_is_an_index"] = lambda: classes(
    data=of(points(), lambda x, y: (x, y, torch.arange(len(x)))), step=usual_step
)

# -- overridden methods ------------------------------------------------------------------------------------------------


def _only_clips(trainer: Any) -> None:
    nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)


def _clears_and_steps(trainer: Any) -> None:
    trainer.optimizer.zero_grad()
    trainer.optimizer.step()


def _clears_first_group(trainer: Any) -> None:
    for parameter in trainer.optimizer.param_groups[0]["params"]:
        parameter.grad = None


def _does_nothing(_trainer: Any) -> None:
    """Calls no ``super()``."""


def _trains_in_evaluation_mode(trainer: Any) -> None:
    Trainer.train_epoch_start(trainer)
    trainer.model.eval()


def _trains_the_head(trainer: Any) -> None:
    Trainer.train_epoch_start(trainer)
    trainer.model.eval()
    trainer.model.get_submodule("1").train()


def _evaluates_in_training_mode(trainer: Any) -> None:
    Trainer.eval_epoch_start(trainer)
    trainer.model.train()


def _freezes_norms(trainer: Any) -> None:
    Trainer.train_epoch_start(trainer)
    freeze_norms(trainer)


def _counts_from_zero(trainer: Any) -> None:
    Trainer.train_epoch_start(trainer)
    trainer.num_correct = 0


def _counts(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    loss, outputs = usual_step(trainer, batch)
    trainer.num_correct += int((outputs.argmax(dim=1) == batch[1]).sum())
    return loss, outputs


def _clips_and_steps(trainer: Any) -> None:
    nn.utils.clip_grad_norm_(trainer.model.parameters(), 5.0)
    Trainer.optimizer_step(trainer)


def _sets_to_zero(trainer: Any) -> None:
    trainer.optimizer.zero_grad(set_to_none=False)


def _makes_loader(trainer: Any, batch_size: int, train_dl_kwargs: Any = None) -> Any:
    return DataLoader(trainer.train_dataset, batch_size=2 * batch_size, shuffle=True, drop_last=True)


def _linear_probe() -> Script:
    model = nn.Sequential(conv_net(16).requires_grad_(False), nn.Sequential(nn.Dropout(0.1), nn.Linear(16, 4)))
    of_head = Adam(model.get_submodule("1").parameters(), lr=0.01)
    return images(model, train=of_head, methods={"train_epoch_start": _trains_the_head})


# An overridden ``optimizer_step`` clips, and does not step.
planted["weights-do-not-change", "step_forgotten", "optimizer_step that does not call the optimizer"] = lambda: classes(
    methods={"optimizer_step": _only_clips}
)
# An overridden ``optimizer_step`` clears the gradients before it steps.
planted["weights-do-not-change", "gradients_cleared_before_the_step"] = lambda: numbers(
    methods={"optimizer_step": _clears_and_steps}
)
# An overridden ``optimizer_zero_grad`` does nothing.
planted["gradients-not-cleared", "gradients_kept", "optimizer_zero_grad that does not call zero_grad"] = lambda: (
    classes(methods={"optimizer_zero_grad": _does_nothing})
)
# An overridden ``optimizer_zero_grad`` knows the first of two parameter groups only.
planted["gradients-not-cleared", "gradients_of_the_second_group_kept"] = lambda: classes(
    train=_in_groups(partial(Adam, lr=0.01), lr=0.02), methods={"optimizer_zero_grad": _clears_first_group}
)
# An overridden ``train_epoch_start`` leaves the model in evaluation mode.
planted["not-in-training-mode", "evaluation_mode_in_training", "Call model.train()"] = lambda: images(
    methods={"train_epoch_start": _trains_in_evaluation_mode}
)
# The model is in evaluation mode, and its head in training mode: the rest is frozen.
healthy["linear_probe"] = _linear_probe
# An overridden ``eval_epoch_start`` puts the model back into training mode.
planted["trains-in-evaluation", "training_mode_in_evaluations", "Call model.eval()"] = lambda: images(
    eval_dataset=pictures(80, seed=2), methods={"eval_epoch_start": _evaluates_in_training_mode}
)
# An overridden ``eval_epoch_start`` calls no ``super()``, so dropout stays on.
planted["trains-in-evaluation", "training_mode_kept_in_evaluations"] = lambda: classes(
    with_layer(nn.Dropout(0.2)), eval_dataset=points(96, seed=2), methods={"eval_epoch_start": _does_nothing}
)
# A trainer whose overrides all do their duty.
healthy["overridden_methods"] = lambda: classes(
    step=_counts,
    methods={
        "train_epoch_start": _counts_from_zero,
        "optimizer_step": _clips_and_steps,
        "optimizer_zero_grad": _sets_to_zero,
    },
)
# Only BatchNorm is left in evaluation mode, as it is in many a fine-tuning.
healthy["frozen_batch_norm"] = lambda: images(methods={"train_epoch_start": _freezes_norms})
# BatchNorm keeps its statistics, as in detection, where a batch is one picture.
healthy["frozen_batch_norm_with_batches_of_one"] = lambda: images(
    data=pictures(160),
    train=partial(SGD, lr=0.01),
    methods={"train_epoch_start": _freezes_norms},
    per_device_batch_size=1,
)
# ``create_train_dataloader`` is overridden, with another batch size.
healthy["loader_of_an_override"] = lambda: classes(methods={"create_train_dataloader": _makes_loader})
