"""Evaluation sets: datasets that a run evaluates with separate names, and their epochs."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

from torch.utils.data import DataLoader, Dataset

from pa_core.data.custom_loader import end_workers, is_dataloader
from pa_core.data.data_arguments import DataArgument
from pa_core.errors import ConfigurationError
from pa_core.run_config import check_count
from pa_core.tracking.run_history import RunHistory, recording_with_prefix
from pa_core.types import SizedIterable
from pa_data.batches import is_array


@dataclass(frozen=True)
class EvaluationSet:
    """A dataset to evaluate less often than after each epoch, in a mapping of several evaluation sets.

    Use it for a large test set whose evaluation after each epoch would take too much time. Pass it to ``train()`` as a
    value in the ``eval_dataset`` mapping, next to plain datasets. ``trainer.eval_sets`` holds the sets of a run, each
    as an ``EvaluationSet``. An ``EvaluationSet`` is frozen, so you cannot assign its attributes.

    Args:
        dataset: The samples to evaluate, or a ``DataLoader`` of them.
        every_n_epochs: The set is evaluated after each epoch whose number, counted from 1, is a multiple of this, and
            after the last epoch. The default, 1, evaluates it after each epoch, like a plain dataset.

    Attributes:
        dataset: The samples or the loader that was passed.
        every_n_epochs: The number that was passed.

    Raises:
        ConfigurationError: ``every_n_epochs`` is not a positive whole number.

    Example:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from pa_core import EvaluationSet, Trainer
        >>> samples = TensorDataset(torch.ones(8, 1), torch.ones(8, 1))
        >>> model = torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[])
        >>> sets = {"val": samples, "test_ood": EvaluationSet(samples, every_n_epochs=2)}
        >>> trainer.train(samples, num_epochs=3, eval_dataset=sets)
        >>> [record.epoch for record in trainer.run_history.records("eval_val_loss_epoch")]
        [1, 2, 3]
        >>> [record.epoch for record in trainer.run_history.records("eval_test_ood_loss_epoch")]
        [2, 3]
    """

    dataset: Dataset[Any] | DataLoader[Any]
    every_n_epochs: int = 1

    def __post_init__(self) -> None:
        check_count("every_n_epochs", self.every_n_epochs)


EvaluationData: TypeAlias = (
    Dataset[Any] | DataLoader[Any] | Mapping[str, Dataset[Any] | DataLoader[Any] | EvaluationSet] | None
)
"""The type of evaluation data: a dataset, several sets by name, or None."""


_EVALUATION = {True: "eval", False: "evaluation"}
"""The prefixes of metrics, in a training run and in ``evaluate()``."""


class _Evaluates(Protocol):
    """The run, with the attributes of the set that is being evaluated."""

    eval_dataset: Dataset[Any] | None
    eval_dataloader: SizedIterable | None
    run_history: RunHistory


class EvaluationSets:
    """The evaluation data of a run: a single dataset without a name, several sets with names, or none.

    The run has the attributes ``eval_dataset`` and ``eval_dataloader`` of the set that is being evaluated, and
    otherwise of the first set.

    Args:
        data: The argument of the run.
        argument: The name of the argument.
        kwargs: The arguments for the loaders, if there are any; with several sets, only for datasets.

    Attributes:
        given: The sets by name; empty for a single dataset or none.
        data: The data arguments by the names of the sets, or by None for a single dataset.
        name: The name of the set that is being evaluated or whose loader is being made, or of an evaluation in a custom
            training loop; None for a single dataset.

    Raises:
        ConfigurationError: The data cannot be evaluated, or the name of a set cannot be part of the name of a metric.
    """

    def __init__(self, data: EvaluationData = None, argument: str = "", kwargs: dict[str, Any] | None = None) -> None:
        self.name: str | None = None
        self.given: dict[str, EvaluationSet] = {}
        if isinstance(data, EvaluationSet):
            raise ConfigurationError(
                f'An evaluation set has a name. Pass {argument}={{"val": EvaluationSet(...)}}, whose loss is '
                "eval_val_loss_epoch."
            )
        if not _are_sets(data):
            single = cast("Dataset[Any] | DataLoader[Any] | None", data)
            self.data: dict[str | None, DataArgument] = {None: DataArgument(single, argument, kwargs)}
        else:
            self.given = _checked(data, argument)
            # With DataLoaders only, arguments are an error, as they have no effect; with datasets, they are for these.
            are_loaders = all(is_dataloader(evaluation_set.dataset) for evaluation_set in self.given.values())
            self.data = {
                name: DataArgument(
                    evaluation_set.dataset,
                    f'{argument}["{name}"]',
                    None if is_dataloader(evaluation_set.dataset) and not are_loaders else kwargs,
                )
                for name, evaluation_set in self.given.items()
            }
        self._first: str | None = next(iter(self.data))
        self._every: dict[str | None, int] = {
            name: evaluation_set.every_n_epochs for name, evaluation_set in self.given.items()
        } or {None: 1}
        self._loaders: dict[str, SizedIterable] = {}

    @property
    def first(self) -> DataArgument:
        """The single dataset, or the dataset of the first set."""
        return next(iter(self.data.values()))

    def last_given(self, dataset: Dataset[Any] | None) -> EvaluationData:
        """Return the data of the previous run, to evaluate it again.

        Args:
            dataset: The dataset of the trainer; if a script has assigned a new dataset since then, that dataset is
                evaluated instead.
        """
        if dataset is not self.first.dataset:
            return dataset
        return self.given or self.first.data

    # The loaders

    def make_loaders(self, run: _Evaluates, make: Callable[[DataArgument], SizedIterable | None]) -> None:
        """Create the loaders, and set the datasets and loaders of the run.

        Args:
            run: The run.
            make: A function that creates the loader of a set, whose dataset the run has at this time, and returns None
                without a dataset.
        """
        # The first set comes last, because the run keeps its dataset and its loader.
        for name, data in reversed(self.data.items()):
            self.name, run.eval_dataset = name, data.dataset
            run.eval_dataloader = make(data)
            if name is not None:
                self._loaders = {name: cast("SizedIterable", run.eval_dataloader), **self._loaders}
        self.name = None

    def loaders(self, run: _Evaluates) -> dict[str, SizedIterable]:
        """Return the loaders of the sets by name; empty for a single dataset or none.

        Args:
            run: The run, which has the loader of the current set.
        """
        of_run = {self.name or self._first: cast("SizedIterable", run.eval_dataloader)}
        return {name: of_run.get(name, loader) for name, loader in self._loaders.items()}

    def change_loaders(self, run: _Evaluates, change: Callable[[SizedIterable], SizedIterable]) -> None:
        """Replace each loader.

        Args:
            run: The run.
            change: A function that is called with a loader and returns its replacement.
        """
        if run.eval_dataloader is not None:
            run.eval_dataloader = change(run.eval_dataloader)
        for name in [name for name in self._loaders if name != self._first]:
            self._loaders[name] = change(self._loaders[name])

    # Evaluations

    def due(self, epoch: int, *, is_last: bool) -> list[str | None]:
        """Return the names of the sets to evaluate after an epoch, or None for a single dataset.

        Args:
            epoch: The number of the epoch in the run, from 1.
            is_last: Whether the run ends with this epoch.
        """
        return [name for name, every in self._every.items() if is_last or epoch % every == 0]

    def within_epoch(self) -> list[str | None]:
        """Return the names of the sets to evaluate within an epoch: the sets that are evaluated after each epoch."""
        return [name for name, every in self._every.items() if every == 1]

    def chosen(self, names: Collection[str]) -> list[str | None]:
        """Return the sets with these names, in the order of the mapping.

        Args:
            names: Names of sets.

        Raises:
            ConfigurationError: A name is unknown.
        """
        for name in names:
            if name not in self.given:
                raise ConfigurationError(
                    f"There is no evaluation set with the name {name!r}. "
                    f"Choose from those that were passed as eval_dataset: {', '.join(map(repr, self.given)) or 'none'}."
                )
        return [name for name in self.given if name in names]

    @contextmanager
    def evaluating(self, run: _Evaluates, name: str | None, *, is_training: bool = True) -> Generator[None]:
        """Return the context of the evaluation of a set, whose dataset and loader the run has within the block.

        The names of metrics begin with the name of the set. If a callback replaces the loader, its replacement stays
        there for this evaluation.

        Args:
            run: The run.
            name: The name of the set; None for a single dataset, for which nothing changes.
            is_training: Whether the evaluation is part of a training run.
        """
        if name is None:
            yield
            return
        before = run.eval_dataset, run.eval_dataloader, self.name
        if name != self._first:
            run.eval_dataset, run.eval_dataloader = self.data[name].dataset, self._loaders[name]
        self.name, loader = name, run.eval_dataloader
        try:
            with recording_with_prefix(run.run_history, f"{_EVALUATION[is_training]}_{name}_"):
                yield
        finally:
            run.eval_dataset, run.eval_dataloader, self.name = before
            if len(self.given) > 1:
                # Each set would keep as many workers as the training has.
                end_workers(loader)

    # Names

    def loss_name(self, *, is_training: bool) -> str:
        """Return the name of the loss, for recording within the context of the evaluation.

        Args:
            is_training: Whether the evaluation is part of a training run.
        """
        name = "loss_epoch" if is_training else "loss"
        return name if self.name is not None else f"{_EVALUATION[is_training]}_{name}"

    def set_of_metric(self, metric_name: str) -> str | None:
        """Return the name of the set that a metric belongs to; None if it belongs to no set.

        Args:
            metric_name: The full name of the metric, perhaps with the prefix of a callback before it.

        Example:
            >>> data = Dataset()
            >>> sets = EvaluationSets({"test": data, "test_ood": data}, "eval_dataset")
            >>> sets.set_of_metric("eval_test_ood_loss_epoch"), sets.set_of_metric("train_loss_epoch")
            ('test_ood', None)
        """
        fitting = [name for name in self.given if re.search(rf"(^|_)eval_{name}_", metric_name)]
        return max(fitting, key=len, default=None)


def _are_sets(data: object) -> bool:
    """Whether data is a mapping of names; a mapping that has a sample at 0 is a dataset."""
    if not isinstance(data, Mapping):
        return False
    mapping = cast("Mapping[object, object]", data)
    return 0 not in [*mapping.keys()] and not any(map(is_array, mapping.values()))


def _checked(data: EvaluationData, argument: str) -> dict[str, EvaluationSet]:
    sets: dict[str, EvaluationSet] = {}
    for name, value in cast("Mapping[object, Any]", data).items():
        if not isinstance(name, str) or not name.isidentifier():
            raise ConfigurationError(
                "An evaluation set cannot have this name.",
                given=f"{argument}={{{name!r}: ...}}",
                do="Choose letters, digits and underscores: the metrics of the set are named after it.",
            )
        if value is None:
            raise ConfigurationError(
                f'None as {argument}["{name}"] is not a dataset. Leave the name out if there is no dataset.'
            )
        sets[name] = value if isinstance(value, EvaluationSet) else EvaluationSet(value)
    if not sets:
        raise ConfigurationError(
            f"{argument} must be at least one dataset with its name, or None for no evaluation, got {{}}."
        )
    return sets
