"""A callback that evaluates after a number of updates, within epochs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from typing_extensions import override

from pa_core.engine.any_trainer import AnyTrainer, TrainerCallback
from pa_core.errors import ConfigurationError
from pa_core.run_config import check_count


class StepBasedEvaluationCallback(TrainerCallback):
    """Evaluate within the training epochs, at a regular interval of optimizer updates.

    Use it if epochs are so long that an evaluation after each epoch comes too late. The evaluation after each epoch
    still runs. Updates are counted over the whole run, even across a resume. If the update at which an evaluation is
    due also ends an epoch, only the evaluation after the epoch runs, because another would evaluate the same weights.
    To make these evaluations shorter, add ``LimitEvalStepsCallback``. Nothing is kept in training states.

    The metrics of these evaluations have the prefix ``intermediate_``: the loss is ``intermediate_eval_loss_epoch``,
    and a metric that a callback records as ``accuracy`` is ``intermediate_accuracy``. The names without the prefix keep
    a single value for each epoch, from the evaluation after the epoch. To keep the best model of all evaluations within
    the epochs, pass the name with the prefix to ``SaveBestModelCallback`` as ``watch_metric``.

    Args:
        eval_every_n_steps: The number of optimizer updates (not of batches) between two evaluations, at least 1.
        eval_names: The names of the evaluation sets to evaluate, if ``eval_dataset`` is a dictionary of several sets.
            The default, None, evaluates the sets that are evaluated after each epoch, without sets that an
            ``EvaluationSet`` evaluates less often, because those are usually large.

    Attributes:
        eval_every_n_steps: The value that was passed.
        eval_names: The names that were passed, as a tuple, or None.

    Raises:
        ConfigurationError: The constructor raises it if ``eval_every_n_steps`` is not a positive whole number, or
            ``eval_names`` is a string or empty. ``train()`` raises it, before the first step, if the run has no
            evaluation dataset or no set with such a name.

    Example:
        >>> import torch
        >>> from pa_core import StepBasedEvaluationCallback, Trainer
        >>> model = torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> samples = torch.utils.data.TensorDataset(torch.ones(80, 1), torch.ones(80, 1))
        >>> evaluate_often = StepBasedEvaluationCallback(4)
        >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[evaluate_often])
        >>> trainer.train(samples, num_epochs=1, eval_dataset=samples, per_device_batch_size=8)
        >>> [record.update for record in trainer.run_history.records("intermediate_eval_loss_epoch")]
        [4, 8]
        >>> [record.update for record in trainer.run_history.records("eval_loss_epoch")]
        [10]
    """

    def __init__(self, eval_every_n_steps: int, eval_names: Collection[str] | None = None) -> None:
        check_count("eval_every_n_steps", eval_every_n_steps)
        if isinstance(eval_names, str) or (eval_names is not None and not eval_names):
            raise ConfigurationError(f"eval_names must be a list of names of evaluation sets, got {eval_names!r}.")
        self.eval_every_n_steps = eval_every_n_steps
        self.eval_names: tuple[str, ...] | None = None if eval_names is None else tuple(eval_names)

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Raise an error for a run without a dataset to evaluate.

        Args:
            trainer: The trainer.
            **kwargs: Not used.

        Raises:
            ConfigurationError: There is no evaluation dataset, or no set with a name of ``eval_names``.
        """
        if trainer.eval_dataloader is None:
            raise ConfigurationError(
                "StepBasedEvaluationCallback has no evaluation dataset to evaluate. Pass eval_dataset to "
                "Trainer.train(); in a custom training loop, evaluate without the callback."
            )
        sets = trainer.eval_sets
        chosen = self.eval_names
        if chosen is None and sets and all(evaluation_set.every_n_epochs > 1 for evaluation_set in sets.values()):
            raise ConfigurationError(
                f"StepBasedEvaluationCallback has no set to evaluate: {', '.join(map(repr, sets))} are not evaluated "
                f"in each epoch. Pass StepBasedEvaluationCallback({self.eval_every_n_steps}, "
                f"eval_names=[{next(iter(sets))!r}])."
            )
        if unknown := [name for name in chosen or () if name not in sets]:
            raise ConfigurationError(
                f"StepBasedEvaluationCallback(eval_names=...) got {unknown[0]!r}, and the evaluation sets of this run "
                f"are {', '.join(map(repr, sets)) or 'without names'}. Correct the name, or leave eval_names out."
            )

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        """Evaluate after every ``eval_every_n_steps`` updates, except at the end of an epoch.

        There, the evaluation after the epoch follows anyway.

        Args:
            trainer: The trainer.
            update: The number of optimizer updates of this run so far.
            **kwargs: Not used.
        """
        if update % self.eval_every_n_steps != 0 or update == trainer.run_config.max_num_train_steps:
            return
        if not trainer.epoch_lengths.is_end_of_epoch(update):
            trainer.run_evaluation_epoch(is_intermediate=True, eval_names=self.eval_names)
