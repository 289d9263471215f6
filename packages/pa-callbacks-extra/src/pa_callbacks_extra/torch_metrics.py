"""Computes torchmetrics metrics in training and evaluation."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from typing_extensions import TypeVar, override

from pa_callbacks_extra.metric_states import (
    MetricStates,
    compute_over_processes,
    fits,
    has_samples,
    keep_apart,
    put_back,
    take_out,
)
from pa_callbacks_extra.prediction_ranges import PredictionRanges, judging_by_value
from pa_core import AnyTrainer, ConfigurationError, TrainerCallback, UnsupportedConfigurationError, gather_objects
from pa_core.distributed import num_processes, rank
from pa_core.user_warnings import warn_user

if TYPE_CHECKING:
    from torchmetrics import Metric, MetricCollection


# The bounds make type checkers infer Any for the arguments of a lambda; without them, pyright infers object.
BatchT_contra = TypeVar("BatchT_contra", bound=Any, default=Any, contravariant=True)
OutputT_contra = TypeVar("OutputT_contra", bound=Any, default=Any, contravariant=True)

_OF_THE_TRAINER = ("train_loss_epoch", "eval_loss_epoch", "evaluation_loss")


def _model_outputs(_batch: Any, output: Any) -> Any:
    return output["model_outputs"]


def _second_of_batch(batch: Any, _output: Any) -> Any:
    return batch[1]


class TorchMetricsCallback(TrainerCallback[AnyTrainer, BatchT_contra, OutputT_contra]):
    """Computes torchmetrics metrics over epochs, and records them in the run history.

    Use it to compute, for example, accuracy, F1 or AUROC over all processes without a custom evaluation loop. A metric
    called ``accuracy`` is recorded as ``train_accuracy`` at the end of a training epoch, as ``eval_accuracy`` after an
    evaluation within a training run, and as ``evaluation_accuracy`` by ``evaluate()``. A single metric has the name of
    its class. For a named evaluation set, such as ``val``, the metric is called ``eval_val_accuracy`` or
    ``evaluation_val_accuracy``. If a metric is a vector, each element is recorded separately, as ``eval_recall_0`` and
    so on.

    Values cover all samples of all processes, each counted once. Training and evaluation have separate copies of the
    metrics, so an evaluation within a training epoch does not affect the training metrics. The metrics that you pass
    are not changed. The copies are placed on the device of the run. Training states contain the metrics of an
    interrupted training epoch.

    If you use type annotations, write ``TorchMetricsCallback[Batch, Output](...)``, so that type checkers check both
    functions.

    Place it before callbacks that watch or log its metrics. A trainer may have several such callbacks, each with a
    different ``name``, for metrics of different predictions.

    Args:
        metrics: A metric, or a ``MetricCollection`` that gives each of them a name.
        predictions: A function that is called with a batch and the return value of ``calculate_*_batch_loss``, and
            returns the first argument of the metrics. The default returns ``output["model_outputs"]``, the outputs of
            the model in a default step.
        targets: A function with the same parameters that returns the second argument of the metrics; None for metrics
            that take only predictions. The default returns ``batch[1]``, the targets of a default step.
        in_training: Whether to compute the metrics over training epochs. The default is False, because the model
            changes within the epoch, and metrics take time in each step.
        in_evaluation: Whether to compute the metrics over evaluations. The default is True.
        name: The name of the task, which distinguishes several of these callbacks. It comes before the name of each
            metric, as in ``eval_depth_accuracy``. The default, an empty name, adds nothing.

    Attributes:
        train_metrics: The copy for training; None if ``in_training`` is False.
        eval_metrics: The copy for evaluations; None if ``in_evaluation`` is False.
        instance_name: The name of the task.

    Raises:
        ConfigurationError: The constructor raises it if ``metrics`` is not a metric, ``predictions`` or ``targets`` is
            not a function, the metrics would never be computed, or the trainer itself already uses one of the names.
            ``train()`` and ``evaluate()`` raise it if another callback of this kind has a metric of the same name, or a
            metric is neither a number nor a vector of numbers.
        UnsupportedConfigurationError: torchmetrics is not installed.

    Example:
        >>> import torch
        >>> from torchmetrics import MetricCollection
        >>> from torchmetrics.classification import MulticlassAccuracy
        >>> from pa_callbacks_extra import TorchMetricsCallback
        >>> from pa_core import DEFAULT_CALLBACKS, Trainer
        >>> from pa_core.testing import TinyClassifier, make_classification
        >>> metrics = TorchMetricsCallback(MetricCollection({"accuracy": MulticlassAccuracy(num_classes=3)}))
        >>> callbacks = [metrics, *DEFAULT_CALLBACKS]
        >>> trainer = Trainer(TinyClassifier(), torch.nn.CrossEntropyLoss(), None, callbacks=callbacks)
        >>> _ = trainer.evaluate(make_classification(30))  # doctest: +ELLIPSIS
        Evaluation...
        >>> 0 <= trainer.run_history.get_latest_metric("evaluation_accuracy") <= 1
        True
    """

    only_observes = True

    def __init__(
        self,
        metrics: Metric | MetricCollection,
        *,
        predictions: Callable[[BatchT_contra, OutputT_contra], Any] = _model_outputs,
        targets: Callable[[BatchT_contra, OutputT_contra], Any] | None = _second_of_batch,
        in_training: bool = False,
        in_evaluation: bool = True,
        name: str = "",
    ) -> None:
        collection = _as_collection(metrics).clone()
        keep_apart(collection)
        _check_functions(predictions, targets)
        if not (in_training or in_evaluation):
            raise ConfigurationError(
                "The metrics would never be computed with in_training=False, in_evaluation=False. Pass "
                "in_evaluation=True, or leave the callback out."
            )
        self.instance_name: str = name
        self._declared_names = self._names(collection.keys(), in_training, in_evaluation)
        self._predictions = predictions
        self._targets = targets
        self.train_metrics: MetricCollection | None = collection.clone() if in_training else None
        self.eval_metrics: MetricCollection | None = collection.clone() if in_evaluation else None
        self._evaluated: list[MetricCollection] = []
        self._judging_by_value = judging_by_value(collection.modules())
        self._ranges: dict[MetricCollection, PredictionRanges] = {}
        self._prefix_of_evaluation = "eval_"
        self._earlier: list[MetricStates] = []

    def update_metrics(self, metrics: MetricCollection, batch: BatchT_contra, output: OutputT_contra) -> None:
        """Update the metrics with a batch; override it for metrics that take more than two arguments.

        The callback calls it on each process after each step of a training or an evaluation with metrics, so you need
        not call it yourself. This implementation passes the results of ``predictions`` and ``targets`` to
        ``metrics.update``. An override need not call ``super()``. It should detach tensors that have an autograd graph,
        because metrics may keep their arguments. It must not communicate with other processes.

        Args:
            metrics: The copy for training or for evaluations, a ``MetricCollection``; call its ``update``.
            batch: The batch, on the device.
            output: The return value of ``calculate_*_batch_loss`` for the batch.

        Example:
            >>> import torch
            >>> from torchmetrics.retrieval import RetrievalMRR
            >>> from pa_callbacks_extra import TorchMetricsCallback
            >>> class RetrievalMetrics(TorchMetricsCallback):
            ...     def update_metrics(self, metrics, batch, output):
            ...         metrics.update(output["model_outputs"].detach(), batch[1], indexes=batch[2])
            >>> callback = RetrievalMetrics(RetrievalMRR())
            >>> batch = [None, torch.tensor([0, 1]), torch.tensor([0, 0])]
            >>> callback.update_metrics(callback.eval_metrics, batch, {"model_outputs": torch.tensor([0.9, 0.2])})
            >>> callback.eval_metrics.compute()
            {'RetrievalMRR': tensor(0.5000)}
        """
        arguments = [self._predictions(batch, output)]
        if self._targets is not None:
            arguments.append(self._targets(batch, output))
        if self._judging_by_value:
            self._ranges.setdefault(metrics, PredictionRanges()).note(arguments[0])
        # Metrics may keep their arguments, and so the graph of each batch.
        metrics.update(*_detached(arguments))

    # Training epochs

    @override
    def on_prepare_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Raise an error for names that another callback of this kind has too.

        Args:
            trainer: The trainer.
            **kwargs: Not used.

        Raises:
            ConfigurationError: Two metrics have the same name.
        """
        for other in trainer.callback_handler.callbacks:
            if isinstance(other, TorchMetricsCallback) and other is not self:
                for name in sorted(self._declared_names & other._declared_names):
                    raise _collision(name, type(cast("object", other)).__name__)

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Forget the epoch in which an earlier run was stopped, and place the metrics on the device.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._begin("eval_")
        if self.train_metrics is not None:
            self.train_metrics.to(trainer.device).reset()

    @override
    def on_train_step_end(
        self, trainer: AnyTrainer, batch: BatchT_contra, batch_output: OutputT_contra, **kwargs: Any
    ) -> None:
        """Update the training metrics.

        Args:
            trainer: The trainer.
            batch: The batch, on the device.
            batch_output: The outputs of the step.
            **kwargs: Not used.
        """
        if self.train_metrics is not None:
            self.update_metrics(self.train_metrics, batch, batch_output)

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Record the training metrics.

        Args:
            trainer: The trainer.
            **kwargs: Not used.

        Raises:
            ConfigurationError: A metric is neither a number nor a vector of numbers.
        """
        if self.train_metrics is not None:
            self._record(trainer, "train_", self.train_metrics, self._earlier)
            self.train_metrics.reset()
            self._earlier = []

    # Evaluations

    @override
    def on_evaluation_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Remember that ``evaluate()`` is running, because its metrics have the prefix ``evaluation_``.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._begin("evaluation_")

    @override
    def on_eval_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Begin an evaluation, perhaps within another evaluation, such as the evaluation of averaged weights.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        if self.eval_metrics is not None:
            metrics = self.eval_metrics.clone() if self._evaluated else self.eval_metrics
            metrics.to(trainer.device).reset()
            self._evaluated.append(metrics)

    @override
    def on_eval_step_end(
        self, trainer: AnyTrainer, batch: BatchT_contra, batch_output: OutputT_contra, **kwargs: Any
    ) -> None:
        """Update the evaluation metrics.

        Args:
            trainer: The trainer.
            batch: The batch, on the device.
            batch_output: The outputs of the step.
            **kwargs: Not used.
        """
        if self.eval_metrics is not None:
            self.update_metrics(self._evaluated[-1], batch, batch_output)

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Record the evaluation metrics.

        Args:
            trainer: The trainer.
            **kwargs: Not used.

        Raises:
            ConfigurationError: A metric is neither a number nor a vector of numbers.
        """
        if self.eval_metrics is not None:
            # While a named set is evaluated, the names of recorded metrics begin with "eval_" and the name of the set.
            prefix = "" if trainer.eval_name in trainer.eval_sets else self._prefix_of_evaluation
            self._record(trainer, prefix, self._evaluated.pop())

    def _begin(self, prefix_of_evaluation: str) -> None:
        self._prefix_of_evaluation = prefix_of_evaluation
        self._evaluated = []
        self._ranges = {}
        self._earlier = []

    # State of a resumed run

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the training metrics that each process has accumulated in the current epoch, for a training state.

        The trainer calls it on every process when it saves a training state, so you need not call it yourself. It waits
        for all processes and gathers their states. Evaluation metrics are not included, because an interrupted
        evaluation is not resumed.

        Returns:
            A dictionary with the keys "processes" (the metric states of each process, in their order) and "earlier"
            (metric states from before an earlier resume). Both are empty lists if ``in_training`` is False.

        Example:
            >>> from torchmetrics import MeanMetric
            >>> from pa_callbacks_extra import TorchMetricsCallback
            >>> TorchMetricsCallback(MeanMetric(), targets=None).state_dict()
            {'processes': [], 'earlier': []}
        """
        if self.train_metrics is None:
            return {"processes": [], "earlier": []}
        return {"processes": gather_objects(take_out(self.train_metrics)), "earlier": self._earlier}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the training metrics of an interrupted epoch, on any number of processes.

        The trainer calls it on every process when a run resumes, so you need not call it yourself. If the script has
        different metrics now, they are computed over the remaining samples of the interrupted epoch, and a
        ``UserWarning`` is given.

        Args:
            state_dict: The result of ``state_dict``.

        Example:
            >>> from torchmetrics import MeanMetric
            >>> from pa_callbacks_extra import TorchMetricsCallback
            >>> saved = TorchMetricsCallback(MeanMetric(), targets=None, in_training=True)
            >>> saved.train_metrics.update(0.25)
            >>> resumed = TorchMetricsCallback(MeanMetric(), targets=None, in_training=True)
            >>> resumed.load_state_dict(saved.state_dict())
            >>> resumed.train_metrics.compute()
            {'MeanMetric': tensor(0.2500)}
        """
        processes: list[MetricStates] = state_dict["processes"]
        with_samples = [states for states in (*state_dict["earlier"], *processes) if has_samples(states)]
        if self.train_metrics is None or not with_samples:
            return
        if not all(fits(self.train_metrics, states) for states in with_samples):
            warnings.warn(
                "The training metrics differ from those in the training state. In the resumed epoch, they cover "
                "only the remaining samples.",
                UserWarning,
                stacklevel=2,
            )
        elif len(processes) == num_processes():
            self._earlier = list(state_dict["earlier"])
            put_back(self.train_metrics, processes[rank()])
        else:
            self._earlier = with_samples

    # Recording

    @property
    def _prefix_of_task(self) -> str:
        return f"{self.instance_name}_" if self.instance_name else ""

    def _names(self, names: Iterable[Hashable], in_training: bool, in_evaluation: bool) -> set[str]:
        """Return the names in the run history, as far as they are known before the metrics are computed."""
        prefixes = [*(["train_"] if in_training else []), *(["eval_", "evaluation_"] if in_evaluation else [])]
        recorded = {f"{prefix}{self._prefix_of_task}{name}" for prefix, name in itertools.product(prefixes, names)}
        for name in recorded.intersection(_OF_THE_TRAINER):
            raise _collision(name, "the trainer itself")
        return recorded

    def _record(
        self, trainer: AnyTrainer, prefix: str, metrics: MetricCollection, earlier: Sequence[MetricStates] = ()
    ) -> None:
        """Record the metrics over the samples of all processes; every process must call this."""
        self._require_one_range(metrics, trainer.device)
        numbers = dict[str, float]()
        prefix += self._prefix_of_task
        for name, number in _numbers_in(compute_over_processes(metrics, earlier)):
            if prefix + name in numbers or prefix + name in _OF_THE_TRAINER:
                raise _collision(prefix + name, "another metric of this callback, or the trainer itself")
            numbers[prefix + name] = number
        for name, number in numbers.items():
            trainer.run_history.update_metric(name, number)

    def _require_one_range(self, metrics: MetricCollection, device: torch.device) -> None:
        """Warn, once, if a sigmoid or softmax was applied to some updates only."""
        ranges = self._ranges.pop(metrics, PredictionRanges())
        if not self._judging_by_value:
            return
        outside, updates = ranges.count(device)
        if 0 < outside < updates:
            warn_user(
                f"{', '.join(self._judging_by_value)} took the predictions of {outside} of {updates} updates for "
                "logits, because some were not from 0 to 1, and other updates for probabilities: the values "
                "depend on how the samples are divided into batches. Pass probabilities, as in "
                'predictions=lambda batch, output: output["model_outputs"].sigmoid(), or '
                ".softmax(1) for classes."
            )
            self._judging_by_value = []


def _numbers_in(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Return the numbers to record: the value of a metric, or each element of a vector under a separate name."""
    for name, value in values.items():
        tensor = torch.as_tensor(value) if isinstance(value, Tensor | float | int) else None
        if tensor is None or tensor.dim() > 1:
            found = f"a {type(value).__name__}" if tensor is None else f"a tensor of shape {tuple(tensor.shape)}"
            raise ConfigurationError(
                f"{name} is {found}, but a metric must be a number or a vector of numbers. Use a metric "
                "that averages, or override update_metrics and keep it for yourself."
            )
        if tensor.dim() == 0:
            yield name, tensor.item()
        else:
            yield from ((f"{name}_{index}", element.item()) for index, element in enumerate(tensor))


def _detached(value: object) -> Any:
    """Return tensors without their graphs, including tensors nested in lists, tuples and mappings."""
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, Mapping):
        mapping = cast("Mapping[object, object]", value)
        return {key: _detached(item) for key, item in mapping.items()}
    if isinstance(value, list | tuple):
        return [_detached(item) for item in cast("Iterable[object]", value)]
    return value


def _as_collection(metrics: object) -> MetricCollection:
    try:
        from torchmetrics import Metric, MetricCollection
    except ModuleNotFoundError as error:
        raise UnsupportedConfigurationError(
            f"torchmetrics is not installed ({error}). pip install 'pa-callbacks-extra[torchmetrics]'"
        ) from error
    if isinstance(metrics, Metric):
        return MetricCollection([metrics])
    if isinstance(metrics, MetricCollection) and len(metrics):
        return metrics
    raise ConfigurationError(
        f"metrics must be a metric of torchmetrics, or a MetricCollection that is not empty, got {metrics!r}."
    )


def _check_functions(predictions: object, targets: object) -> None:
    for name, function in (("predictions", predictions), ("targets", targets)):
        if not callable(function) and not (function is None and name == "targets"):
            raise ConfigurationError(
                f"{name} must be a function of a batch and of the step's return value, got {function!r}."
            )


def _collision(name: str, other: str) -> ConfigurationError:
    return ConfigurationError(
        f"Two metrics have the same name: {name} is recorded by {other} too. Give the metric another name in the "
        "MetricCollection, or pass name= for the metrics of another task."
    )
