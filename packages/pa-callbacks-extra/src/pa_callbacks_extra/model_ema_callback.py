"""Averages the weights of a run, and keeps the best average."""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

from torch import nn
from typing_extensions import override

from pa_callbacks_extra.model_ema import ModelEma, check_decay, is_lazy
from pa_callbacks_extra.sync_batch_norm_layers import restore_layers
from pa_callbacks_extra.tensor_pairs import computed_tensors, named_tensors
from pa_core import (
    AnyTrainer,
    CallbackHandler,
    ConfigurationError,
    LogMetricsCallback,
    SaveBestModelCallback,
    TrainerCallback,
)
from pa_core.callbacks import FALSE_BY_DEFAULT, CallbackLike, check_count, recording_with_prefix
from pa_core.distributed import broadcast_buffers
from pa_core.user_warnings import warn_user

_PREFIX = "ema_model_"


class ModelEmaFactory(Protocol):
    """The type of the ``model_ema`` argument of ``ModelEmaCallback``: a function that creates the average of a model.

    ``ModelEma`` and its subclasses are such functions, and so is a ``functools.partial`` of any of them. Use the type
    in annotations, or when you pass a custom function, for example to set ``warm_up``.

    Example:
        >>> from functools import partial
        >>> from torch import nn
        >>> from pa_callbacks_extra import ModelEma, ModelEmaCallback, ModelEmaFactory
        >>> make_average: ModelEmaFactory = partial(ModelEma, warm_up=True)
        >>> make_average(nn.Linear(1, 1), decay=0.99).warm_up
        True
        >>> average = ModelEmaCallback(model_ema=make_average)
    """

    def __call__(self, model: Any, /, *, decay: float) -> ModelEma:
        """Create the average of the trainer's model.

        ``ModelEmaCallback`` calls it on every process at the start of each training run or, with lazy modules, after
        the first update. An implementation copies the weights and does not change the model. An exception that it
        raises ends the run. See the example in :class:`ModelEmaFactory`.

        Args:
            model: The trainer's model, without wrappers.
            decay: The fraction of the average that each update of the average keeps, from 0 to 1.

        Returns:
            The average, a ``ModelEma`` or an instance of a subclass. The callback moves it to the device and updates it
            during the run; ``ModelEmaCallback.ema`` returns it.
        """
        ...


class ModelEmaCallback(SaveBestModelCallback):
    """Keeps an exponential moving average of the weights, evaluates the average and saves it.

    Use it because averaged weights often generalize better than the last weights. It works with a trainer; in a custom
    loop, use ``ModelEma``. Each training run begins a new average with the current weights and updates it after each
    optimizer update. With lazy modules, which get their shapes in the first forward pass, the average begins after the
    first update. The callback does not change how the model itself is trained, and the model has its own weights at the
    end of the run; the average is in the file and in ``ema``. Training states contain the average and the best value.

    After each epoch, the averaged weights are put into the model for an evaluation with the model's own code, precision
    and hooks. The metrics of the average have the prefix ``ema_model_``, as in ``ema_model_eval_loss_epoch``, or
    ``ema_model_eval_val_loss_epoch`` for an evaluation set ``val``. The average is saved whenever ``watch_metric``
    improves. The file is a checkpoint of the model with averaged weights, which ``trainer.load_checkpoint`` can load.

    Place it after callbacks whose metrics are part of the evaluation, and before callbacks that log or watch metrics,
    such as ``DEFAULT_CALLBACKS``, which would otherwise get the metrics of the average one epoch late. If a
    ``LogMetricsCallback`` comes before it, a warning is given. It does not matter whether it comes before or after
    ``ConvertSyncBatchNormCallback``.

    On several processes, all have the same average; its buffers, such as the running statistics of batch norm layers,
    come from the first process. If the model is sharded, each process averages its own shards, and the file contains
    the whole average.

    Args:
        decay: The fraction of the average that each optimizer update keeps, from 0 to 1. The average looks back over
            about ``1 / (1 - decay)`` updates. The default, 0.99, looks back over 100 updates, which suits even short
            runs; pass 0.999 or 0.9999 for long runs.
        evaluate_during_training: Whether to evaluate the average after each epoch, and save it when it is the best so
            far. This is the default. The evaluation takes as long as evaluating the model. If False, the average is
            saved after each epoch, and no ``eval_dataset`` is needed.
        save_path: The file to save to, which should end in ``.pt``. A relative path, such as the default
            ``ema_model.pt``, is in the working directory at the start of the run.
        watch_metric: The metric to watch, by its name in the run history. The default is the mean loss of the average
            in the evaluation after an epoch.
        greater_is_better: Whether a higher value is better. The default, False, suits a loss. If you omit it and the
            name of the metric suggests that higher is better, as ``accuracy`` does, a warning is given.
        model_ema: A function that creates the average. It is called with the model and ``decay=...``. The default,
            ``ModelEma``, has a constant decay. For a decay that warms up, pass ``functools.partial(ModelEma,
            warm_up=True)``.
        callbacks: Callbacks, as classes or instances, for the evaluation of the average; no others are called during
            it. By default there are none, so only the loss is recorded. You may pass a callback that records metrics
            both here and to the trainer.
        update_every_n_steps: The number of optimizer updates from one update of the average to the next; 1 by default.
            A larger number saves time. Each update of the average then keeps ``decay`` to the power of this number, so
            the average still looks back over the same number of optimizer updates.

    Attributes:
        best: ``best.value`` is the best value, or None before the first value, and ``best.epoch`` is its epoch, counted
            from 1.
        callbacks: The callbacks for the evaluation of the average.
        path: The file to save to, as a path.

    Raises:
        ConfigurationError: The decay is not between 0 and 1, or ``update_every_n_steps`` is not a positive whole
            number. ``train()`` raises it when a run starts if there is no dataset to evaluate the average on, or if the
            optimizer averages the weights itself.
        CheckpointError: ``train()`` raises it when a run starts if the file cannot be written.
        MetricNotFoundError: ``watch_metric`` was not recorded by the end of the first epoch.

    Example:
        >>> import tempfile, torch
        >>> from pa_callbacks_extra import ModelEmaCallback
        >>> from pa_core import DEFAULT_CALLBACKS, Trainer
        >>> model = torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> samples = torch.utils.data.TensorDataset(torch.ones(8, 1), torch.ones(8, 1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     average = ModelEmaCallback(decay=0.5, save_path=f"{folder}/ema_model.pt")
        ...     trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[average, *DEFAULT_CALLBACKS])
        ...     trainer.train(samples, num_epochs=3, eval_dataset=samples)
        ...     saved = torch.load(f"{folder}/ema_model.pt", weights_only=True)  # doctest: +ELLIPSIS
        Training starts: 3 epochs ...
        >>> torch.equal(saved["model_state_dict"]["weight"], average.ema.module.state_dict()["weight"])
        True
        >>> len(list(trainer.run_history.get_metric_values("ema_model_eval_loss_epoch")))
        3
    """

    def __init__(
        self,
        decay: float = 0.99,
        evaluate_during_training: bool = True,
        save_path: str | Path = "ema_model.pt",
        watch_metric: str = "ema_model_eval_loss_epoch",
        greater_is_better: bool = FALSE_BY_DEFAULT,
        model_ema: ModelEmaFactory = ModelEma,
        callbacks: Iterable[CallbackLike[AnyTrainer]] = (),
        *,
        update_every_n_steps: int = 1,
    ) -> None:
        check_decay(decay)
        check_count("update_every_n_steps", update_every_n_steps)
        super().__init__(
            save_path,
            watch_metric,
            greater_is_better,
            save_optimizer=False,
            save_scheduler=False,
            load_saved_checkpoint=False,
        )
        self.decay = decay
        self.evaluate_during_training = evaluate_during_training
        self.model_ema = model_ema
        self.callbacks: list[TrainerCallback[AnyTrainer, Any, Any]] = CallbackHandler(callbacks).callbacks
        self.update_every_n_steps = update_every_n_steps
        self._ema: ModelEma | None = None
        self._users_model: nn.Module | None = None

    @property
    def ema(self) -> ModelEma:
        """The average of the current or last training run, a ``ModelEma``.

        ``ema.module`` is the averaged copy of the model, and ``ema.num_updates`` is the number of its updates. Each
        training run begins a new average, which remains available after the run. For example, ``average.ema(inputs)``
        predicts with the average after ``train()``. On several processes, all have the same average once the run has
        ended.

        Raises:
            ConfigurationError: There has been no training run yet or, with lazy modules, no update yet.

        Example:
            >>> import tempfile, torch
            >>> from pa_callbacks_extra import ModelEmaCallback
            >>> from pa_core import Trainer
            >>> from pa_core.testing import make_regression
            >>> model = torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     average = ModelEmaCallback(evaluate_during_training=False, save_path=f"{folder}/ema_model.pt")
            ...     trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[average])
            ...     trainer.train(make_regression(64), num_epochs=1)
            >>> average.ema.num_updates, average.ema(torch.ones(2, 4)).shape
            (8, torch.Size([2, 1]))
        """
        if self._ema is None:
            raise ConfigurationError(
                f"{type(self).__name__} has no average yet. Call trainer.train() first; the average begins when the "
                "run starts."
            )
        return self._ema

    @contextmanager
    def averaged_weights(self, trainer: AnyTrainer) -> Generator[None]:
        """Give the model of a run the averaged weights within a ``with`` block, for evaluating or saving it.

        You call it in a callback or after the run, on every process. The model's own weights are always restored.
        ``evaluate_average`` runs a whole evaluation in such a block; ``ema.applied_to`` does the same for a custom
        loop.

        Args:
            trainer: The trainer of the run.

        Raises:
            ConfigurationError: The model has changed since the run started, or there is no average yet.

        Example:
            >>> import torch
            >>> from pa_callbacks_extra import ModelEmaCallback
            >>> from pa_core import Trainer
            >>> from pa_core.testing import make_regression
            >>> class Export(ModelEmaCallback):
            ...     def save_best(self, trainer):
            ...         with self.averaged_weights(trainer):
            ...             self.exported = trainer.model.weight.clone()
            >>> model = torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> export, data = Export(decay=0.5), make_regression(16)
            >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[export])
            >>> trainer.train(data, num_epochs=1, eval_dataset=data)
            >>> torch.equal(export.exported, export.ema.module.weight)
            True
        """
        broadcast_buffers(self.ema.module)
        with self.ema.applied_to(trainer.model):
            yield

    @override
    def on_prepare_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Record the parts of the model, before its methods are replaced for mixed precision.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        if trainer.is_sharded:  # the average of a sharded model has no methods
            return
        model = trainer.get_model(keep_torch_compile=False)
        shared: dict[int, Any] = {id(tensor): tensor for tensor in named_tensors(model).values()}
        shared |= {id(tensor): tensor.detach() for tensor in computed_tensors(model)}
        self._users_model = copy.deepcopy(model, shared)
        restore_layers(self._users_model)

    @override
    def on_evaluation_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Keep the average of the last training run.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._users_model = None

    @override
    def on_prediction_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Keep the average of the last training run.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._users_model = None

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Begin a new average with the weights of the model.

        Args:
            trainer: The trainer.
            **kwargs: Not used.

        Raises:
            ConfigurationError: There is no dataset to evaluate the average on, the metric would never be recorded, or
                the optimizer averages the weights itself.
            CheckpointError: The file cannot be written.
        """
        super().on_training_run_start(trainer, **kwargs)
        self._require_writable(trainer)
        if averaging := [
            type(optimizer).__name__ for optimizer in trainer.named_optimizers().values() if hasattr(optimizer, "eval")
        ]:
            raise ConfigurationError(
                "The optimizer averages the weights itself, and has weights to evaluate and weights to train.",
                given=f"{type(self).__name__} and {averaging[0]}, which has train() and eval()",
                do=f"Leave {type(self).__name__} out: evaluations, checkpoints and exports have the average of the "
                "optimizer.",
            )
        if self.evaluate_during_training and trainer.eval_dataloader is None:
            raise ConfigurationError(
                f"{type(self).__name__}(evaluate_during_training=True) has no evaluation dataset to evaluate the "
                "average on. Pass eval_dataset to Trainer.train(), or evaluate_during_training=False to save the "
                "newest average."
            )
        if self.evaluate_during_training:
            self._warn_of_loggers_before(trainer)
        self._ema = None
        if not is_lazy(trainer.get_model(keep_torch_compile=False)):
            self._begin(trainer)

    def _begin(self, trainer: AnyTrainer) -> None:
        """Create the average from the current weights."""
        decay = self.decay**self.update_every_n_steps
        if trainer.is_sharded:
            self._ema = self.model_ema(trainer.get_model(keep_torch_compile=False), decay=decay)
        else:
            users_model = cast("nn.Module", self._users_model)  # on_prepare_start has set it
            self._ema = self.model_ema(users_model, decay=decay).to(trainer.device)
            self._ema.reset(trainer.model)
        self._users_model = None

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        """Update the average, or create it if the shapes were not known when the run started.

        Args:
            trainer: The trainer.
            update: The number of optimizer updates of this run so far.
            **kwargs: Not used.
        """
        if self._ema is None:
            self._begin(trainer)
        if update % self.update_every_n_steps == 0:
            self.ema.update(trainer.model)

    @override
    def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Evaluate the average, and save it if it is the best so far.

        With ``evaluate_during_training=False``, it is not evaluated, and is saved after every epoch.

        Args:
            trainer: The trainer.
            **kwargs: Not used.

        Raises:
            MetricNotFoundError: The metric was not recorded.
        """
        if self.evaluate_during_training:
            self.evaluate_average(trainer)
            super().on_training_run_epoch_end(trainer, **kwargs)
        else:
            self._save(trainer, {"epoch": trainer.run_history.current_epoch})

    @override
    def on_training_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Leave the same average on all processes.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        if self._ema is not None:  # a lazy model without an update has no average
            broadcast_buffers(self._ema.module)

    def evaluate_average(self, trainer: AnyTrainer) -> None:
        """Run an evaluation epoch with the averaged weights, and leave everything else unchanged.

        This callback calls it after each epoch if ``evaluate_during_training`` is True, so you need not call it
        yourself. To evaluate the average at other times, for example every 100 updates, call it on every process in a
        custom callback. Metrics are recorded with the prefix ``ema_model_``, and only the callbacks in ``callbacks``
        are called.

        Args:
            trainer: The trainer, in a training run with an ``eval_dataset``.

        Raises:
            ConfigurationError: There is no average yet, or the model has changed since the run started.

        Example:
            >>> from pa_callbacks_extra import ModelEmaCallback
            >>> class EvaluateOften(ModelEmaCallback):
            ...     def on_optimizer_step_end(self, trainer, update, **kwargs):
            ...         super().on_optimizer_step_end(trainer, update, **kwargs)
            ...         if update % 100 == 0:
            ...             self.evaluate_average(trainer)
        """
        with (
            self.averaged_weights(trainer),
            trainer.callback_handler.replaced_by(self.callbacks),
            recording_with_prefix(trainer.run_history, _PREFIX),
        ):
            trainer.run_evaluation_epoch()

    @override
    def save_best(self, trainer: AnyTrainer) -> None:
        """Write the averaged model to ``path``; override it to save something else or in another format.

        The callback calls it on every process after each epoch in which the ``watch_metric`` of the average has
        improved, once ``best`` is updated, so you need not call it yourself. With ``evaluate_during_training=False``,
        it is not called, and the average is saved after each epoch instead. The file is a checkpoint of the model with
        averaged weights, without optimizer and scheduler. An override need not call ``super()``, but must let only one
        process write. See also the example in ``averaged_weights``.

        Args:
            trainer: The trainer of the run. Its model has its own weights; enter ``averaged_weights(trainer)`` for the
                average.

        Raises:
            OSError: The file cannot be written, for example because the disk is full.

        Example:
            >>> from pa_callbacks_extra import ModelEmaCallback
            >>> class SaveSafetensors(ModelEmaCallback):
            ...     def save_best(self, trainer):
            ...         with self.averaged_weights(trainer):
            ...             trainer.save_model(self.path.with_suffix(""))  # a folder; the first process writes
            >>> average = SaveSafetensors(save_path="ema_model.pt")
        """
        self._save(trainer, self._what_identifies_the_best())

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the average, the best value and its epoch, for a training state.

        The trainer calls it when it saves a training state, so you need not call it yourself. To save the average
        alone, use the file of the callback, or ``ema.state_dict()``.

        Returns:
            A dictionary with the keys "best" (a dictionary of the value and the epoch) and "average" (the state dict of
            ``ema``, or None before the average begins).

        Example:
            >>> from pa_callbacks_extra import ModelEmaCallback
            >>> ModelEmaCallback().state_dict()
            {'best': {'value': None, 'epoch': None}, 'average': None}
        """
        return {"best": super().state_dict(), "average": None if self._ema is None else dict(self._ema.state_dict())}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the average and the best value of the resumed run.

        The trainer calls it on every process when a run resumes, after ``on_training_run_start``, so you need not call
        it yourself.

        Args:
            state_dict: The result of ``state_dict``.

        Raises:
            RuntimeError: The saved average belongs to another model.

        Example:
            >>> from pa_callbacks_extra import ModelEmaCallback
            >>> average = ModelEmaCallback()
            >>> average.load_state_dict({"best": {"value": 0.25, "epoch": 3}, "average": None})
            >>> average.best.value
            0.25
        """
        super().load_state_dict(state_dict["best"])
        if state_dict["average"] is not None:
            self.ema.load_state_dict(state_dict["average"])

    def _warn_of_loggers_before(self, trainer: AnyTrainer) -> None:
        callbacks = trainer.callback_handler.callbacks
        before = callbacks[: callbacks.index(self)] if self in callbacks else []
        names = [type(callback).__name__ for callback in before if isinstance(callback, LogMetricsCallback)]
        if names:
            warn_user(
                f"{', '.join(names)} is called before {type(self).__name__}, so that metrics of the averaged model are "
                f"logged an epoch late. Give {type(self).__name__} before the callbacks that log metrics."
            )

    def _save(self, trainer: AnyTrainer, description: dict[str, Any]) -> None:
        with self.averaged_weights(trainer):
            trainer.save_checkpoint(
                self.path, checkpoint_kwargs=description, save_optimizer=False, save_scheduler=False
            )
