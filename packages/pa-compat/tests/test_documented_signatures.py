"""What the reference documents can be called as it documents it: names, order and defaults of all parameters."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

from pytorch_accelerated import TrainerPlaceholderValues, callbacks, tracking
from pytorch_accelerated.utils import ModelEma
from tests.support.pa_compat.documented_events import EVENTS

SCHEDULE = (
    "k_decay=1.0, lr_min=1e-6, min_lr_ratio=None, num_warmup_epochs=0, warmup_starting_lr=1e-6, "
    "warmup_starting_lr_ratio=None, num_cooldown_epochs=0"
)
WSD = (
    "decay_phase_ratio=0.1, lr_min=1e-6, warmup_starting_lr=1e-6, use_inverse_sqrt_decay=True, num_checkpoints=1, "
    "is_continuation_from_checkpoint=False"
)
SIGNATURES = {
    "trainer.Trainer": "model, loss_func, optimizer, callbacks=DEFAULT_CALLBACKS, run_history=None",
    "trainer.Trainer.train": "self, train_dataset, num_epochs, eval_dataset=None, per_device_batch_size=8, "
    "max_num_train_steps=None, gradient_accumulation_steps=1, gradient_clip_value=None, create_scheduler_fn=None, "
    "train_dataloader_kwargs=None, eval_dataloader_kwargs=None, reset_run_history=True, collate_fn=None, *, "
    "resume_from=None",
    "trainer.Trainer.evaluate": "self, dataset=None, per_device_batch_size=8, dataloader_kwargs=None, collate_fn=None",
    "trainer.Trainer.save_checkpoint": "self, save_path, checkpoint_kwargs=None, save_optimizer=True, "
    "save_scheduler=True, save_per_node=True",
    "trainer.Trainer.load_checkpoint": "self, checkpoint_path, load_optimizer=True, load_scheduler=True",
    "trainer.Trainer.save_training_state": "self, output_dir, checkpoint_kwargs=None",
    "trainer.Trainer.load_training_state": "self, input_dir",
    "trainer.Trainer.print": "self, *args, **kwargs",
    "trainer.Trainer.gather": "self, tensor, padding_value=None",
    "trainer.Trainer.get_model": "self, keep_torch_compile=True",
    "trainer.Trainer.create_train_dataloader": "self, batch_size, train_dl_kwargs=None",
    "trainer.Trainer.create_eval_dataloader": "self, batch_size, eval_dl_kwargs=None",
    "trainer.Trainer.get_default_train_dl_kwargs": "self, batch_size",
    "trainer.Trainer.get_default_eval_dl_kwargs": "self, batch_size",
    "trainer.Trainer.create_scheduler": "self",
    "trainer.Trainer.calculate_train_batch_loss": "self, batch",
    "trainer.Trainer.calculate_eval_batch_loss": "self, batch",
    "trainer.Trainer.backward_step": "self, loss",
    **{
        f"trainer.Trainer.{hook}": "self"
        for hook in (
            "eval_epoch_end",
            "eval_epoch_start",
            "evaluation_run_end",
            "evaluation_run_start",
            "optimizer_step",
            "optimizer_zero_grad",
            "scheduler_step",
            "train_epoch_end",
            "train_epoch_start",
            "training_run_end",
            "training_run_epoch_end",
            "training_run_start",
            "_clip_gradients",
            "_create_accelerator",
            "_prepare_model_optimizer_and_dataloaders",
            "_run_training",
        )
    },
    "trainer.Trainer._create_run_config": "self, per_device_batch_size, num_epochs, gradient_accumulation_steps, "
    "max_num_train_steps, gradient_clip_value",
    "trainer.Trainer._run_train_epoch": "self, train_dl",
    "trainer.Trainer._run_eval_epoch": "self, valid_dl, is_training=True",
    "notebook_launcher": "function, args=(), num_processes=None",
    **{
        f"callbacks.{name}": ""
        for name in (
            "ConvertSyncBatchNormCallback",
            "LogMetricsCallback",
            "MoveModulesToDeviceCallback",
            "PrintProgressCallback",
            "ProgressBarCallback",
            "TerminateOnNaNCallback",
            "TrainerCallback",
        )
    },
    "callbacks.LogMetricsCallback.log_metrics": "self, trainer, metrics",
    "callbacks.SaveBestModelCallback": "save_path='best_model.pt', watch_metric='eval_loss_epoch', "
    "greater_is_better=False, reset_on_train=True, save_optimizer=True, save_scheduler=True, "
    "load_saved_checkpoint=True",
    "callbacks.SaveTrainingStateCallback": "save_dir='training_states', save_every_n_epochs=None, "
    "save_every_n_steps=None, save_at_end=True, max_checkpoints=None",
    "callbacks.EarlyStoppingCallback": "early_stopping_patience=1, early_stopping_threshold=0.01, "
    "watch_metric='eval_loss_epoch', greater_is_better=False, reset_on_train=True",
    "callbacks.ModelEmaCallback": "decay=0.99, evaluate_during_training=True, save_path='ema_model.pt', "
    "watch_metric='ema_model_eval_loss_epoch', greater_is_better=False, model_ema=ModelEma, callbacks=()",
    "callbacks.WSDCheckpointCallback": "save_dir='checkpoints', save_optimizer=True, save_scheduler=True, "
    "initial_checkpoint=None",
    "callbacks.LimitBatchesCallback": "num_batches",
    "callbacks.StepBasedEvaluationCallback": "eval_every_n_steps",
    "callbacks.LimitEvalStepsCallback": "num_eval_steps, limit_intermediate_only=True",
    "callbacks.get_default_callbacks": "progress_bar=True",
    "callbacks.CallbackHandler": "callbacks",
    "callbacks.CallbackHandler.add_callback": "self, callback",
    "callbacks.CallbackHandler.add_callbacks": "self, callbacks",
    "callbacks.CallbackHandler.call_event": "self, event, *args, **kwargs",
    "tracking.RunHistory.get_latest_metric": "self, metric_name",
    "tracking.RunHistory.get_metric_names": "self",
    "tracking.RunHistory.get_metric_values": "self, metric_name",
    "tracking.RunHistory.reset": "self",
    "tracking.RunHistory.set_metric_name_prefix": "self, prefix=''",
    "tracking.RunHistory.update_metric": "self, metric_name, metric_value",
    "tracking.RunHistory.delete_metric": "self, metric_name",
    "tracking.InMemoryRunHistory": "",
    "tracking.LossTracker": "",
    "tracking.LossTracker.update": "self, loss, batch_size=1",
    "tracking.LossTracker.reset": "self",
    "run_config.TrainerRunConfig": "num_epochs, train_per_device_batch_size, train_dl_kwargs, "
    "eval_per_device_batch_size, eval_dl_kwargs, gradient_accumulation_steps, gradient_clip_value, "
    "train_total_batch_size, eval_total_batch_size, num_update_steps_per_epoch, max_num_train_steps, "
    "is_local_process_zero, is_world_process_zero, is_distributed, mixed_precision, num_processes",
    "run_config.TrainerRunConfig.to_dict": "self",
    "finetuning.ModelFreezer": "model, freeze_batch_norms=False",
    "finetuning.ModelFreezer.freeze": "self, from_index=0, to_index=-2, set_modules_as_eval=False",
    "finetuning.ModelFreezer.get_layer_groups": "self",
    "finetuning.ModelFreezer.get_layers": "self",
    "finetuning.ModelFreezer.get_trainable_parameters": "self",
    "finetuning.ModelFreezer.unfreeze": "self, from_index=-1, to_index=0, set_modules_as_training=True",
    "schedulers.cosine_scheduler.CosineLrScheduler": "optimizer, total_num_epochs, num_update_steps_per_epoch, "
    + SCHEDULE,
    "schedulers.cosine_scheduler.CosineLrScheduler.create_scheduler_fn": "total_num_epochs=Values.NUM_EPOCHS, "
    "num_update_steps_per_epoch=Values.NUM_UPDATE_STEPS_PER_EPOCH, " + SCHEDULE,
    "schedulers.cosine_scheduler.CosineLrScheduler.get_updated_values": "self, num_updates",
    "schedulers.scheduler_base.SchedulerBase": "optimizer, param_group_field='lr'",
    "schedulers.scheduler_base.SchedulerBase.get_updated_values": "self, num_updates",
    "schedulers.scheduler_base.SchedulerBase.load_state_dict": "self, state_dict",
    "schedulers.scheduler_base.SchedulerBase.state_dict": "self",
    "schedulers.scheduler_base.SchedulerBase.step_update": "self, num_updates",
    "schedulers.scheduler_base.StatefulSchedulerBase": "optimizer, param_group_field='lr'",
    "schedulers.scheduler_base.StatefulSchedulerBase.step": "self",
    "schedulers.wsd_scheduler.WSDLrScheduler": "optimizer, num_epochs=None, num_update_steps_per_epoch=None, "
    "total_steps=None, num_warmup_steps=0, " + WSD,
    "schedulers.wsd_scheduler.WSDLrScheduler.create_scheduler_fn": "total_num_epochs=Values.NUM_EPOCHS, "
    "num_update_steps_per_epoch=Values.NUM_UPDATE_STEPS_PER_EPOCH, num_warmup_epochs=None, " + WSD,
    **{
        f"schedulers.wsd_scheduler.WSDLrScheduler.{query}": "self"
        for query in ("get_checkpoint_steps", "get_current_phase_info", "get_current_step", "get_decay_info")
    },
    "schedulers.wsd_scheduler.WSDLrScheduler.get_phase_info": "self, step",
    "utils.DataLoaderSlice": "dl, slice_size",
    "utils.LimitBatches": "num_batches",
    "utils.ModelEma": "model, decay=0.9999",
    "utils.remove_padding": "padded_tensor, pad_value",
    "utils.worker_init_fn": "worker_id",
}
"""By the documented path: the parameters as the reference gives them."""


def documented(path: str) -> Any:
    """The object at a path, looked for in the longest module that there is."""
    parts = f"pytorch_accelerated.{path}".split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for name in parts[length:]:
            found = inspect.getattr_static(found, name) if inspect.isclass(found) else getattr(found, name)
        return found.__get__(None, object) if isinstance(found, classmethod) else found
    raise AssertionError(path)


def parameters_of(text: str) -> list[inspect.Parameter]:
    """The parameters that a text writes down."""
    names = {"DEFAULT_CALLBACKS": callbacks.DEFAULT_CALLBACKS, "ModelEma": ModelEma, "Values": TrainerPlaceholderValues}
    return list(inspect.signature(eval(f"lambda {text}: None", names)).parameters.values())


@pytest.mark.parametrize("path", SIGNATURES)
def test_the_documented_parameters_are_accepted(path: str) -> None:
    """The documented parameters come first, in their order and with their defaults; others have defaults too."""
    ours = list(inspect.signature(documented(path)).parameters.values())
    if ours and ours[0].name == "cls":
        del ours[0]
    expected = parameters_of(SIGNATURES[path])

    by_position = [one for one in expected if one.kind in (one.POSITIONAL_OR_KEYWORD, one.VAR_POSITIONAL)]
    by_name = {one.name: one for one in ours}
    assert [one.name for one in ours[: len(by_position)]] == [one.name for one in by_position]
    for parameter in expected:
        if parameter.default is not parameter.empty:
            assert by_name[parameter.name].default == parameter.default, parameter.name
    further = [one for one in ours[len(by_position) :] if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    assert all(one.default is not one.empty for one in further)


@pytest.mark.parametrize("event", EVENTS)
def test_a_documented_event_is_one(event: str) -> None:
    """A callback that listens to a documented event overrides a method of the base class, with its parameters."""
    names = list(inspect.signature(getattr(callbacks.TrainerCallback, event)).parameters)

    of_a_step = ["batch", "batch_output"] if event.endswith("step_end") else []
    assert names == ["self", "trainer", *of_a_step, "kwargs"]


def test_a_run_history_of_ones_own_implements_the_documented_methods_only() -> None:
    """What is abstract in the base class is what the reference says a history has to implement, and no more."""
    abstract = {
        "get_latest_metric",
        "get_metric_names",
        "get_metric_values",
        "metric_name_prefix",
        "reset",
        "set_metric_name_prefix",
        "update_metric",
    }
    assert tracking.RunHistory.__abstractmethods__ <= abstract | {"current_epoch"}
