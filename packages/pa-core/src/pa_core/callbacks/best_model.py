"""Keeping the best model of a run."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from typing_extensions import override

from pa_core.checkpoints.checkpoint import as_url, read_checkpoint
from pa_core.distributed.collectives import raise_on_all
from pa_core.engine.any_trainer import AnyTrainer, TrainerCallback
from pa_core.engine.best_metric import (
    FALSE_BY_DEFAULT,
    BestMetric,
    require_watchable,
    resolve_direction,
    watched_value,
)
from pa_core.errors import CheckpointError, ConfigurationError


class SaveBestModelCallback(TrainerCallback):
    """Save the model whenever a metric improves, and load the best model when the run ends.

    Use it to train for longer than needed and still get the best model. It does not end the run early; add
    ``EarlyStoppingCallback`` from ``pa_callbacks_extra`` for that. To resume an interrupted run, use
    ``SaveTrainingStateCallback``, whose states contain the best value of this callback.

    The metric is checked at the end of each epoch that is evaluated. A metric whose name begins with ``intermediate_``
    is also checked at the end of each evaluation within an epoch. Besides the weights, the file holds the name of the
    metric (``watch_metric``), its value (``best_value``) and the epoch (``best_epoch``). Load the file with
    ``trainer.load_checkpoint``. A value that is NaN is never the best. If every value is NaN, no file is written, and
    the model keeps the weights of the last update.

    Args:
        save_path: The file; it should end in ``.pt``. It is replaced at each improvement. A relative path, such as the
            default ``best_model.pt``, is in the working directory at the start of the run. Missing folders are created.
        watch_metric: The name of the metric in the run history. The default, ``eval_loss_epoch``, is the mean loss of
            the evaluation after an epoch, and needs an ``eval_dataset``.
        greater_is_better: Whether a higher value is better. The default, False, suits a loss. If you leave it out and
            the name of the metric suggests the opposite, for example "accuracy", a warning is shown.
        reset_on_train: Whether each training run starts without a best value. With the default, True, each run is
            judged by itself. If False, a run has to improve on the previous runs of the trainer, and the best model of
            all runs is loaded at its end. A run that continues from a training state always keeps the best value of
            that state.
        save_optimizer: Whether the file contains the state of the optimizer. The default, True, lets you continue the
            training from the best model. Pass False for a smaller file: Adam's state is twice as large as the weights.
        save_scheduler: Whether the file contains the state of the scheduler, if there is a scheduler. The default,
            True, matches the default of ``save_optimizer``.
        load_saved_checkpoint: Whether the best model is loaded at the end of the run, with the states of the optimizer
            and the scheduler, if they were saved. This is the default, so that you can evaluate the best model right
            after ``train()``. If False, the model keeps the weights of the last update.
        trainable_only: Whether the file leaves out the parameters that are frozen, for example the base model of an
            adapter. Frozen parameters must stay frozen throughout the run. The default, False, saves all parameters.

    Attributes:
        best: A ``BestMetric``: ``best.value`` is the best value so far (None before the first value), and
            ``best.epoch`` is the number of its epoch. Training states contain both.

    Raises:
        ConfigurationError: No evaluation of the run records the metric (raised when the run starts); or, with
            ``trainable_only``, parameters were frozen or unfrozen during the run, so the file would not contain all
            trained parameters.
        MetricNotFoundError: ``watch_metric`` was not recorded by the end of the first epoch.
        CheckpointError: The file cannot be written (raised when the run starts), or the file to load at the end of the
            run is not the file that this callback saved.

    Example:
        >>> import tempfile, torch
        >>> from pa_core import SaveBestModelCallback, Trainer
        >>> model = torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> samples = torch.utils.data.TensorDataset(torch.ones(8, 1), torch.ones(8, 1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_best = SaveBestModelCallback(f"{folder}/best.pt")
        ...     trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[save_best])
        ...     trainer.train(samples, num_epochs=3, eval_dataset=samples)
        ...     torch.load(f"{folder}/best.pt", weights_only=True)["best_epoch"]
        3
        >>> save_best.best.epoch
        3
    """

    joins_sanity_evaluation = False
    only_observes = True

    def __init__(
        self,
        save_path: str | Path = "best_model.pt",
        watch_metric: str = "eval_loss_epoch",
        greater_is_better: bool = FALSE_BY_DEFAULT,
        reset_on_train: bool = True,
        save_optimizer: bool = True,
        save_scheduler: bool = True,
        load_saved_checkpoint: bool = True,
        *,
        trainable_only: bool = False,
    ) -> None:
        self.save_path = save_path
        self._started_in = Path()
        self.watch_metric = watch_metric
        self.greater_is_better: bool = resolve_direction(watch_metric, greater_is_better)
        self.reset_on_train = reset_on_train
        self.save_optimizer = save_optimizer
        self.save_scheduler = save_scheduler
        self.load_saved_checkpoint = load_saved_checkpoint
        self.trainable_only = trainable_only
        self._trained: set[str] | None = None
        self.best: BestMetric = BestMetric(self.greater_is_better)

    @property
    def path(self) -> Path:
        """The file of the best model, as a ``pathlib.Path``.

        A relative ``save_path`` is joined to the working directory at the start of the last training run, so a script
        that changes its directory still finds the file. Before the first run, it is ``save_path`` itself. The file
        exists only after the first improvement.

        Example:
            >>> from pa_core import SaveBestModelCallback
            >>> SaveBestModelCallback("best.pt").path.name
            'best.pt'
        """
        return self._started_in / self.save_path

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Check that the model can be saved, and forget the best value of earlier runs if ``reset_on_train`` is True.

        Args:
            trainer: The trainer.
            **kwargs: Not used.

        Raises:
            ConfigurationError: No evaluation of the run records the metric.
            CheckpointError: The file cannot be written.
        """
        require_watchable(trainer, self.watch_metric)
        self._started_in = Path.cwd()
        self._trained = None
        if type(self).save_best is SaveBestModelCallback.save_best:  # an override may save other values
            self._require_writable(trainer)
        if self.reset_on_train:
            self.best.reset()

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, *, is_intermediate: bool = False, **kwargs: Any) -> None:
        """Save the model within an epoch, if the metric begins with ``intermediate_`` and has improved.

        Args:
            trainer: The trainer.
            is_intermediate: Whether the evaluation is within a training epoch; otherwise nothing happens.
            **kwargs: Not used.
        """
        is_of_set = trainer.eval_set_of_metric(self.watch_metric) in (None, trainer.eval_name)
        if is_intermediate and is_of_set and self.watch_metric.startswith(trainer.run_history.metric_name_prefix):
            self._save_if_better(trainer)

    @override
    def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Save the model if the metric was evaluated in this epoch and has improved.

        Args:
            trainer: The trainer.
            **kwargs: Not used.

        Raises:
            MetricNotFoundError: The metric was not recorded.
        """
        if trainer.is_evaluated_in_epoch(self.watch_metric):
            self._save_if_better(trainer)

    def _save_if_better(self, trainer: AnyTrainer) -> None:
        if self.trainable_only:
            trained = _names_of_trained(trainer)
            if changed := sorted(trained ^ (trained if self._trained is None else self._trained)):
                raise ConfigurationError(
                    f"{changed[0]}, one of {len(changed)}, was frozen or unfrozen since the first epoch: a file with "
                    "trainable_only would lack some of them. Leave out trainable_only of SaveBestModelCallback."
                )
            self._trained = trained
        value = watched_value(trainer, self.watch_metric)
        if self.best.update(value, trainer.run_history.current_epoch):
            self.save_best(trainer)

    @override
    def on_training_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Load the best model, if it exists and ``load_saved_checkpoint`` is True.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        if self.load_saved_checkpoint and self.best.value is not None and not trainer.was_complete:
            self.load_best(trainer)

    def save_best(self, trainer: AnyTrainer) -> None:
        """Write the model to ``path``; override it to save other values or in another format.

        The callback calls it on every process at each improvement, after ``best`` was updated, so you need not call it
        yourself. This implementation calls ``trainer.save_checkpoint``, in which only the first process writes. An
        override need not call ``super()``, but must also let only one process write. Also override ``load_best``, or
        pass ``load_saved_checkpoint=False``, because ``load_best`` expects a file that ``trainer.save_checkpoint``
        wrote, with the values of ``best``.

        Args:
            trainer: The trainer whose model is saved.

        Raises:
            OSError: The file cannot be written, for example because the disk is full.

        Example:
            >>> import tempfile, torch
            >>> from pa_core import AnyTrainer, SaveBestModelCallback, Trainer
            >>> class SaveSafetensors(SaveBestModelCallback):
            ...     def save_best(self, trainer: AnyTrainer) -> None:
            ...         trainer.save_model(self.path)  # a folder; the first process writes
            >>> model = torch.nn.Linear(1, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> samples = torch.utils.data.TensorDataset(torch.ones(8, 1), torch.ones(8, 1))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     save = SaveSafetensors(f"{folder}/best", load_saved_checkpoint=False)
            ...     trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[save])
            ...     trainer.train(samples, num_epochs=1, eval_dataset=samples)
            ...     sorted(file.name for file in save.path.iterdir())
            ['model.safetensors']
        """
        trainer.save_checkpoint(
            self.path,
            checkpoint_kwargs=self._what_identifies_the_best(),
            save_optimizer=self.save_optimizer,
            save_scheduler=self.save_scheduler,
            **({"trainable_only": True} if self.trainable_only else {}),  # an override may not have this argument
        )

    def load_best(self, trainer: AnyTrainer) -> None:
        """Load the best model into the trainer, from the file that ``save_best`` wrote.

        The callback calls it on every process at the end of the run, if ``load_saved_checkpoint`` is True and a model
        was saved, so you need not call it yourself. With ``load_saved_checkpoint=False``, call it on every process
        after ``train()`` when you want the best model. Override it together with ``save_best``.

        Args:
            trainer: The trainer. The weights of its model are replaced, and so are the states of the optimizer and the
                scheduler if they were saved.

        Raises:
            CheckpointError: The file is missing, or another run has replaced it. The model is then not changed.

        Example:
            >>> import tempfile, torch
            >>> from pa_core import SaveBestModelCallback, Trainer
            >>> model = torch.nn.Linear(1, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> samples = torch.utils.data.TensorDataset(torch.ones(8, 1), torch.ones(8, 1))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     save_best = SaveBestModelCallback(f"{folder}/best.pt", load_saved_checkpoint=False)
            ...     trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[save_best])
            ...     trainer.train(samples, num_epochs=2, eval_dataset=samples)
            ...     save_best.load_best(trainer)
        """
        expected = self._what_identifies_the_best()
        # On the meta device, no weight is read.
        content = read_checkpoint(self.path, torch.device("meta")) if self.path.exists() else {}
        found = {name: content.get(name) for name in expected}
        if found != expected:
            raise CheckpointError(
                f"The best model cannot be loaded at the end of the run: its file {self.path} was replaced or removed. "
                f"It has {found}, and this run saved {expected}. The model has the weights of the last update. Give "
                "each run its own save_path, or pass load_saved_checkpoint=False."
            )
        trainer.load_checkpoint(self.path, load_optimizer=self.save_optimizer, load_scheduler=self.save_scheduler)

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the best value and its epoch, for a training state.

        The trainer calls it when it captures a training state, so you need not call it yourself. The file of the best
        model is not part of the state.

        Returns:
            A dictionary with the keys "value" (a float, or None before the first value) and "epoch" (an integer or
            None).

        Example:
            >>> from pa_core import SaveBestModelCallback
            >>> SaveBestModelCallback().state_dict()
            {'value': None, 'epoch': None}
        """
        return self.best.state_dict()

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best value of a resumed run, so that only a better model replaces the file.

        The trainer calls it on every process when a run resumes, after ``on_training_run_start``, so you need not call
        it yourself.

        Args:
            state_dict: The result of ``state_dict``.

        Example:
            >>> from pa_core import SaveBestModelCallback
            >>> save_best = SaveBestModelCallback()
            >>> save_best.load_state_dict({"value": 0.25, "epoch": 3})
            >>> save_best.best.value
            0.25
        """
        self.best.load_state_dict(state_dict)

    def _require_writable(self, trainer: AnyTrainer) -> None:
        """Raise an error, before any time is spent, if no file can be written to the path."""
        problem = None
        if trainer.is_local_main_process and not trainer.was_complete:
            path = self.path.resolve()
            try:
                if as_url(self.save_path) is not None:
                    raise OSError("it is a URL, and models are saved to a file on this machine")
                if path.exists() and not path.is_file():
                    raise OSError(f"it is a {'folder' if path.is_dir() else 'device or pipe'}")
                path.parent.mkdir(parents=True, exist_ok=True)
                tempfile.TemporaryFile(dir=path.parent).close()
            except OSError as error:
                problem = CheckpointError(
                    f"{type(self).__name__} cannot save a model to save_path={str(self.save_path)!r}: {error}. Choose "
                    "another path."
                )
        raise_on_all(problem)

    def _what_identifies_the_best(self) -> dict[str, Any]:
        return {"watch_metric": self.watch_metric, "best_value": self.best.value, "best_epoch": self.best.epoch}


def _names_of_trained(trainer: AnyTrainer) -> set[str]:
    return {
        f"{model}.{name}"
        for model, module in trainer.named_models().items()
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }
