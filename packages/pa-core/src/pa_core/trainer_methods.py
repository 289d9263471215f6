"""The hooks, loaders, schedulers and predictions of a trainer; subclasses override them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence, Sized
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Literal, cast, overload

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset
from typing_extensions import override

from pa_core.data.data_arguments import DEFAULT_BATCH_SIZE
from pa_core.data.evaluation_sets import EvaluationSets
from pa_core.distributed.comparison import Describe
from pa_core.engine import scheduler_stepping
from pa_core.engine.any_trainer import AnyTrainer, TrainerCallback
from pa_core.engine.modes import put_into_training
from pa_core.engine.parts import Part
from pa_core.engine.prepare import place, shard
from pa_core.engine.run_arguments import NO_ARGUMENTS, RunArguments
from pa_core.engine.run_descriptions import require_same_parts
from pa_core.engine.running import require_ready, running
from pa_core.engine.session import Session
from pa_core.engine.setup import RunKind
from pa_core.errors import ConfigurationError
from pa_core.run_config import TrainerRunConfig, check_count
from pa_core.steps import default_step, input_checks
from pa_core.steps.placeholders import create_scheduler
from pa_core.training_state.own_buffers import buffers_of_first_process
from pa_core.training_state.progress import Stage
from pa_core.types import (
    BatchT,
    ModelT_co,
    OutputT_co,
    PredictionT,
    PredictionWriter,
    PredictsBatches,
    SchedulerFactory,
    SchedulerT,
    SizedIterable,
)
from pa_distributed import print_errors_once

if TYPE_CHECKING:  # few scripts predict; the import of the others stays fast
    from pa_core.predictions.prediction_run import PredictionRun

__all__ = ["TrainerMethods"]


class TrainerMethods(AnyTrainer, Generic[ModelT_co, BatchT, OutputT_co, SchedulerT]):
    """The hooks, loaders, schedulers and predictions of a trainer; ``Trainer`` has the loop."""

    model: ModelT_co
    scheduler: SchedulerT | None
    create_scheduler_fn: SchedulerFactory[SchedulerT] | None  # pyright: ignore[reportIncompatibleVariableOverride]  # narrower
    train_dataloader: SizedIterable
    run_config: TrainerRunConfig
    _created_scheduler: SchedulerT | None
    _create_optimizer_fn: Callable[[Any], Optimizer] | None
    _session: Session  # pyright: ignore[reportIncompatibleVariableOverride]  # narrower

    if TYPE_CHECKING:

        @override
        def get_model(self, keep_torch_compile: bool = True) -> ModelT_co: ...

    # The loaders and the scheduler of a run

    def create_train_dataloader(
        self, batch_size: int, train_dl_kwargs: dict[str, Any] | None = None
    ) -> SizedIterable[BatchT]:
        """Create the loader of the training epochs; override it to use a custom loader.

        The trainer calls it once in each ``train()`` call, on every process, unless a ``DataLoader`` was passed; you
        need not call it yourself. ``self.train_dataset`` is the dataset. Return the same loader on every process,
        because the trainer splits the loader's samples over the processes; ``super()`` need not be called.

        Args:
            batch_size: The number of samples in a batch of one process; ``batch_size`` in ``train_dl_kwargs`` overrides
                it.
            train_dl_kwargs: Arguments of ``torch.utils.data.DataLoader``, which override
                ``get_default_train_dl_kwargs``. A ``sampler`` or ``batch_sampler`` disables the trainer's own order.
                None, the default, overrides nothing.

        Returns:
            A ``KeyedDataLoader``, or a plain ``DataLoader`` if the trainer does not choose the order (with a sampler or
            an ``IterableDataset``). An override may return any iterable with a length.

        Raises:
            ConfigurationError: An argument for the loader cannot work.
            TypeError: An argument for the loader is unknown.
            DataError: ``pa_data`` cannot use the dataset.

        Example:
            >>> from torch.utils.data import DataLoader
            >>> from pa_core import Trainer
            >>> class CustomLoader(Trainer):
            ...     def create_train_dataloader(self, batch_size, train_dl_kwargs=None):
            ...         return DataLoader(self.train_dataset, batch_size, shuffle=True)
        """
        defaults = self.get_default_train_dl_kwargs(batch_size)
        return self._session.create_loader(self.train_dataset, "train", defaults, train_dl_kwargs)

    def get_default_train_dl_kwargs(self, batch_size: int) -> dict[str, Any]:
        """Return the default arguments of the training loader: shuffling and, with an accelerator, pinned memory.

        ``create_train_dataloader`` calls it; you need not call it yourself. To change a default for all runs, override
        it and update the result of ``super()``. To change a default for one run, pass ``train_dataloader_kwargs`` to
        ``train()``.

        Args:
            batch_size: The number of samples in a batch of one process.

        Returns:
            A new dictionary of arguments of ``torch.utils.data.DataLoader``: ``shuffle``, ``batch_size``,
            ``pin_memory`` and ``num_workers``.

        Example:
            >>> from pa_core import Trainer
            >>> class WithoutShortBatches(Trainer):
            ...     def get_default_train_dl_kwargs(self, batch_size):
            ...         return {**super().get_default_train_dl_kwargs(batch_size), "drop_last": True}
        """
        return {"shuffle": True, **self._setup.loaders.default_kwargs(self.train_dataset, batch_size)}

    def create_eval_dataloader(
        self, batch_size: int, eval_dl_kwargs: dict[str, Any] | None = None
    ) -> SizedIterable[BatchT]:
        """Create the loader of an evaluation set; override it to use a custom loader.

        The trainer calls it once for each evaluation set of a run, on every process, unless a ``DataLoader`` was
        passed; you need not call it yourself. ``self.eval_dataset`` is the dataset, and ``self.eval_name`` is the name
        of the set. Return the same loader on every process, because the trainer splits the loader's samples over the
        processes; ``super()`` need not be called.

        Args:
            batch_size: The number of samples in a batch of one process; ``batch_size`` in ``eval_dl_kwargs`` overrides
                it.
            eval_dl_kwargs: Arguments of ``torch.utils.data.DataLoader``, which override ``get_default_eval_dl_kwargs``.
                None, the default, overrides nothing.

        Returns:
            A ``KeyedDataLoader`` or, with a sampler or an ``IterableDataset``, a plain ``DataLoader``. An override may
            return any iterable with a length. Processes share the samples, and each sample is evaluated once.

        Raises:
            ConfigurationError: An argument for the loader cannot work.
            TypeError: An argument for the loader is unknown.
            DataError: ``pa_data`` cannot use the dataset.

        Example:
            >>> from torch.utils.data import DataLoader
            >>> from pa_core import Trainer
            >>> class CustomLoader(Trainer):
            ...     def create_eval_dataloader(self, batch_size, eval_dl_kwargs=None):
            ...         return DataLoader(self.eval_dataset, batch_size)
        """
        dataset, defaults = cast("Dataset[Any]", self.eval_dataset), self.get_default_eval_dl_kwargs(batch_size)
        return self._session.create_loader(dataset, "eval", defaults, eval_dl_kwargs)

    def get_default_eval_dl_kwargs(self, batch_size: int) -> dict[str, Any]:
        """Return the default arguments of the evaluation loader: no shuffling and, with an accelerator, pinned memory.

        ``create_eval_dataloader`` calls it; you need not call it yourself. To change a default for all runs, override
        it and update the result of ``super()``. To change a default for one run, pass ``eval_dataloader_kwargs`` to
        ``train()``.

        Args:
            batch_size: The number of samples in a batch of one process.

        Returns:
            A new dictionary of arguments of ``torch.utils.data.DataLoader``: ``shuffle``, ``batch_size``,
            ``pin_memory`` and ``num_workers``.

        Example:
            >>> from pa_core import Trainer
            >>> class LargeEvaluationBatches(Trainer):
            ...     def get_default_eval_dl_kwargs(self, batch_size):
            ...         return {**super().get_default_eval_dl_kwargs(batch_size), "batch_size": 4 * batch_size}
        """
        dataset = cast("Dataset[Any]", self.eval_dataset)
        return {"shuffle": False, **self._setup.loaders.default_kwargs(dataset, batch_size)}

    def create_scheduler(self) -> SchedulerT | None:
        """Create the scheduler of the run from ``create_scheduler_fn``, with its placeholders replaced by numbers.

        The trainer calls this if ``train()`` is passed a function; you need not call it yourself. It also calls an
        override if no function was passed, unless a scheduler was assigned to ``trainer.scheduler``. In an override,
        ``self.optimizer`` and ``self.run_config``, which has the number of updates, are ready; ``super()`` need not be
        called.

        Returns:
            The scheduler, or None if ``train()`` was passed no function.

        Raises:
            ArgumentTypeError: ``create_scheduler_fn`` is not a function (it is, for example, a scheduler), or it
                returned None; a ``TypeError``.
            ConfigurationError: A placeholder has no value in this run, or the scheduler belongs to another optimizer.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> class Decaying(Trainer):
            ...     def create_scheduler(self):
            ...         return torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=100)
        """
        factory = self.create_scheduler_fn
        if factory is None:
            return None
        return create_scheduler(factory, self.optimizer, self._session.placeholder_values())

    def predict_batch(self, batch: BatchT) -> Any:
        """Return the predictions for a batch; no gradients are recorded, and the model is in evaluation mode.

        ``predict()`` calls it for each batch; you need not call it yourself. Override it to compute predictions from
        the outputs, for example the class with the highest score; ``super()`` returns the outputs. Annotate the return
        type of an override; ``predict()`` then yields values of this type. The method must not communicate with other
        processes.

        Args:
            batch: A batch of the loader, on the device. By default the model is called with the items of a mapping,
                with the first item of a list or a tuple, or with the batch itself if it is anything else.

        Returns:
            The outputs of the model (a mapping is returned without its ``"loss"`` entry). If predictions are written to
            a file, each tensor must have a row for each sample of the batch.

        Raises:
            BatchMismatchError: The batch and the model do not fit together.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> class Classifier(Trainer):
            ...     def predict_batch(self, batch: torch.Tensor) -> torch.Tensor:
            ...         return super().predict_batch(batch).argmax(1)
            >>> trainer = Classifier(torch.nn.Identity(), None, None, callbacks=[])
            >>> list(trainer.predict(torch.eye(3), per_device_batch_size=2))
            [tensor([0, 1]), tensor([2])]
        """
        return default_step.predict_batch(self.model, batch)

    # The hooks of a run; a callback's event of the same name follows each of them

    def training_run_start(self) -> None:
        """Hook that is called once when a training run starts, before ``on_training_run_start``.

        Override it to prepare your own objects for the run; the trainer calls it in ``train()``, on every process. The
        model, the loaders, the optimizer and the scheduler are ready, and a resumed run has loaded its weights. The
        default does nothing, so an override need not call ``super()``. With ``per_device_batch_size="fit"``, it is also
        called before the trial updates, so it may be called twice.

        Example:
            >>> from pa_core import Trainer
            >>> class PrintsLength(Trainer):
            ...     def training_run_start(self) -> None:
            ...         self.print("updates:", self.run_config.max_num_train_steps)
        """

    def train_epoch_start(self) -> None:
        """Hook that is called when a training epoch starts, before ``on_train_epoch_start``.

        Override it to change settings for an epoch, for example to keep some layers in evaluation mode; the trainer
        calls it on every process. The default calls ``model.train()`` and puts the trained added modules into training
        mode, so an override has to call ``super()``. Parts that the script put into evaluation mode, for example batch
        norm layers of a pretrained model, stay in evaluation mode. ``self.num_epochs_completed`` is the epoch number,
        counted from 0.

        Example:
            >>> from pa_core import Trainer
            >>> class PrintsEpochs(Trainer):
            ...     def train_epoch_start(self) -> None:
            ...         super().train_epoch_start()
            ...         self.print("epoch", self.num_epochs_completed + 1)
        """
        put_into_training(self.model)
        self._setup.added.train(self.optimizer)

    def train_epoch_end(self) -> None:
        """Hook that is called after the last update of a training epoch, before its loss is recorded.

        Override it to record your own metrics with ``self.run_history.update_metric(...)``; callbacks can read them in
        ``on_train_epoch_end``, the next event. The trainer calls it on every process. The default does nothing, so an
        override need not call ``super()``. A ``StopTrainingError`` in it ends the run.

        Example:
            >>> from pa_core import Trainer
            >>> class RecordsNorm(Trainer):
            ...     def train_epoch_end(self) -> None:
            ...         norm = sum(parameter.norm().item() for parameter in self.model.parameters())
            ...         self.run_history.update_metric("train_weight_norm", norm)
        """

    def eval_epoch_start(self) -> None:
        """Hook that is called when the evaluation of a set starts, before ``on_eval_epoch_start``.

        Override it to prepare your own metrics; the trainer calls it on every process, in ``train()``, ``evaluate()``
        and ``run_evaluation_epoch()``. The default calls ``model.eval()`` and puts all added modules into evaluation
        mode, so an override has to call ``super()``. ``self.eval_name`` is the name of the set.

        Example:
            >>> from pa_core import Trainer
            >>> class CountsErrors(Trainer):
            ...     def eval_epoch_start(self) -> None:
            ...         super().eval_epoch_start()
            ...         self.num_errors = 0
        """
        self.model.eval()
        self._setup.added.eval()

    def eval_epoch_end(self) -> None:
        """Hook that is called after the last batch of an evaluation set, before the loss of the set is recorded.

        Override it to record your own metrics with ``self.run_history.update_metric(...)``; callbacks can read them in
        ``on_eval_epoch_end``, the next event. The trainer calls it on every process, without gradients, so
        ``self.gather`` may be called in it. ``self.eval_name`` is the name of the set; it is not added to the names of
        your metrics. The default does nothing, so an override need not call ``super()``.

        Example:
            >>> from pa_core import Trainer
            >>> class RecordsScore(Trainer):
            ...     def eval_epoch_end(self) -> None:
            ...         self.run_history.update_metric("eval_score", 1 / (1 + self.loss_tracker.average))
        """

    def training_run_epoch_end(self) -> None:
        """Hook that is called at the end of each epoch, after its training and its evaluation, if any.

        Override it to act on the results of an epoch; the trainer calls it on every process. Schedulers that step after
        each epoch have been stepped, ``num_epochs_completed`` includes the epoch, and ``on_training_run_epoch_end`` is
        the next event. Raise ``StopTrainingError`` to end the run here. The default does nothing, so an override need
        not call ``super()``.

        Example:
            >>> from pa_core import StopTrainingError, Trainer
            >>> class StopWhenGood(Trainer):
            ...     def training_run_epoch_end(self) -> None:
            ...         if self.run_history.get_latest_metric("train_loss_epoch") < 0.1:
            ...             raise StopTrainingError("The loss is below 0.1.")
        """

    def training_run_end(self) -> None:
        """Hook that is called when a training run has ended, before ``on_training_run_end``.

        Override it to release or save your own objects; the trainer calls it on every process, after the last epoch and
        after a ``StopTrainingError``, but not if another exception ended the run. For cleanup that must happen in any
        case, use ``enter_run_context``. The default does nothing, so an override need not call ``super()``.

        Example:
            >>> from pa_core import Trainer
            >>> class Exports(Trainer):
            ...     def training_run_end(self) -> None:
            ...         self.save_model("exported")
        """

    def evaluation_run_start(self) -> None:
        """Hook that is called once when ``evaluate()`` starts, before ``on_evaluation_run_start``.

        Override it to prepare your own objects; the trainer calls it on every process, but not for evaluations in
        ``train()``. The model and the loaders are ready. ``eval_epoch_start`` is then called for each set. The default
        does nothing, so an override need not call ``super()``.

        Example:
            >>> from pa_core import Trainer
            >>> class PrintsStart(Trainer):
            ...     def evaluation_run_start(self) -> None:
            ...         self.print("evaluating", len(self.eval_dataset), "samples")
        """

    def evaluation_run_end(self) -> None:
        """Hook that is called once when ``evaluate()`` has ended, before ``on_evaluation_run_end``.

        Override it to report results; the trainer calls it on every process, but not for evaluations in ``train()``.
        All metrics are already recorded; the result of ``evaluate()`` also includes numbers that you record here. The
        default does nothing, so an override need not call ``super()``.

        Example:
            >>> from pa_core import Trainer
            >>> class PrintsLoss(Trainer):
            ...     def evaluation_run_end(self) -> None:
            ...         self.print("loss:", self.run_history.get_latest_metric("evaluation_loss"))
        """

    # Preparing a run

    def _set_scheduler(self) -> None:
        """Create the scheduler if there is a factory; otherwise keep the present scheduler."""
        is_assigned = self.scheduler is not None and self.scheduler is not self._created_scheduler
        if scheduler_stepping.is_created(type(self), self.create_scheduler_fn, is_assigned=is_assigned):
            self._created_scheduler = self.create_scheduler()
            self.scheduler = self._created_scheduler  # pyright: ignore[reportIncompatibleVariableOverride]  # as above
        else:
            scheduler_stepping.check_kept_scheduler(self.scheduler, self.optimizer, type(self))

    def _prepare_model_optimizer_and_dataloaders(self) -> None:
        """Place the model, and let accelerate split custom data loaders; optimizers stay unchanged."""
        shard(self._session, self.model)
        is_training = self._session.running == "train"
        self.model = cast("ModelT_co", place(self._session, self.model, is_training))  # pyright: ignore[reportIncompatibleVariableOverride]  # as above
        if is_training and self._makes_optimizer:
            self._make_optimizer()
        self._setup.added.prepare(partial(place, self._session), self.optimizer, for_training=is_training)
        if is_training:
            self.train_dataloader = self._setup.loaders.split_for_training(self.train_dataloader)
        if self._session.running != "predict":
            self.change_eval_dataloaders(self._setup.loaders.split)

    @property
    def _makes_optimizer(self) -> bool:
        return self._create_optimizer_fn is not None and cast("Optimizer | None", self.optimizer) is None

    def _make_optimizer(self) -> None:
        model = self.get_model(keep_torch_compile=False)
        with print_errors_once():
            optimizer = cast("Callable[[Any], Optimizer]", self._create_optimizer_fn)(model)
            input_checks.check_kind_of_optimizer(optimizer)
            self._check_optimizer(model, optimizer)
        self.optimizer = optimizer
        require_same_parts(self, is_training=True)

    def _check_optimizer(self, model: nn.Module, optimizer: Optimizer) -> None:
        input_checks.check_optimizer(model, optimizer)

    @contextmanager
    def _running(
        self,
        kind: RunKind,
        arguments: RunArguments = NO_ARGUMENTS,
        eval_sets: EvaluationSets | None = None,
        parts: Mapping[str, Part] = MappingProxyType({}),
        *,
        describe_arguments: Describe | None = None,
        seed: int | None = None,
    ) -> Generator[None]:
        """Return the context of a run, with a new session."""
        eval_sets = eval_sets or self._session.eval_sets
        means = None if parts else self._session.means

        def begin() -> Session:
            self._session = Session(self, self._setup, arguments, parts, eval_sets, means)
            return self._session

        in_progress = self._session.running
        with running(self._setup, kind, in_progress, begin, describe_arguments or arguments.describe, seed):
            yield

    # Predictions

    @overload
    def predict(
        self: PredictsBatches[PredictionT],
        dataset: Dataset[Any],
        per_device_batch_size: int = DEFAULT_BATCH_SIZE,
        dataloader_kwargs: dict[str, Any] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        *,
        write: None = None,
        seed: int = 0,
        samples_per_piece: int | None = None,
        pieces: str | Path | None = None,
        other_pieces: Literal["error", "remove"] = "error",
        ids: Sequence[Any] | Tensor | None = None,
    ) -> Generator[PredictionT, None, None]: ...

    @overload
    def predict(
        self: PredictsBatches[PredictionT],
        dataset: Dataset[Any],
        per_device_batch_size: int = DEFAULT_BATCH_SIZE,
        dataloader_kwargs: dict[str, Any] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        *,
        write: str | Path,
        seed: int = 0,
        samples_per_piece: int | None = None,
        pieces: str | Path | None = None,
        other_pieces: Literal["error", "remove"] = "error",
        ids: Sequence[Any] | Tensor | None = None,
    ) -> Path: ...

    @overload
    def predict(
        self: PredictsBatches[PredictionT],
        dataset: Dataset[Any],
        per_device_batch_size: int = DEFAULT_BATCH_SIZE,
        dataloader_kwargs: dict[str, Any] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        *,
        write: PredictionWriter[PredictionT],
        seed: int = 0,
        samples_per_piece: int | None = None,
        pieces: str | Path | None = None,
        other_pieces: Literal["error", "remove"] = "error",
        ids: Sequence[Any] | Tensor | None = None,
    ) -> None: ...

    def predict(
        self: Any,
        dataset: Dataset[Any],
        per_device_batch_size: int = DEFAULT_BATCH_SIZE,
        dataloader_kwargs: dict[str, Any] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        *,
        write: str | Path | PredictionWriter[Any] | None = None,
        seed: int = 0,
        samples_per_piece: int | None = None,
        pieces: str | Path | None = None,
        other_pieces: Literal["error", "remove"] = "error",
        ids: Sequence[Any] | Tensor | None = None,
    ) -> Generator[Any, None, None] | Path | None:
        """Predict each sample of a dataset once, in order, and yield the predictions or write them to a file.

        You call it on every process, after training or with a loaded model; override ``predict_batch`` to change the
        predictions for a batch. The processes share the batches, which are the same on any number of processes. Random
        numbers depend only on ``seed`` and on the position of the sample for which the dataset draws them, or of the
        batch for which ``predict_batch`` draws them. The random generators of the script stay unchanged. The model is
        in evaluation mode during the predictions.

        Without ``write``, the first process yields the predictions for all batches, with their tensors on the CPU. On
        the other processes, the iterator yields nothing, but you must still iterate over it; it ends when the iterator
        of the first process ends or is closed, for example by a ``break``.

        With a file, each process writes its predictions in parts to a folder next to the file, and the first process
        joins the parts at the end. If the script is killed, call ``predict()`` again, on any number of processes, to
        complete the predictions; existing parts are kept. The file is then byte-for-byte identical to a file that was
        written without an interruption.

        Args:
            dataset: The samples, with or without targets; a dataset with a length, not a ``DataLoader``.
            per_device_batch_size: The number of samples in a batch of one process. The default, 8, fits on almost any
                device.
            dataloader_kwargs: Arguments of ``torch.utils.data.DataLoader`` for the loader, which override the defaults.
                Arguments that change the order raise an error. None, the default, overrides nothing.
            collate_fn: A function that makes a batch of a list of samples. None, the default, keeps the function of the
                previous run.
            write: A file whose name ends in .csv, .jsonl or .parquet, with a row for each sample; or a function, called
                on each process with the predictions for each of its batches and the ``range`` of their positions in the
                dataset. None, the default, yields the predictions.
            seed: The seed of random draws; the default is 0, so that repeated predictions are equal.
            samples_per_piece: The largest number of samples in a part of the file. After a kill, each process predicts
                at most one such part again. The default, None, is a thousandth of all samples, but at most 65,536.
            pieces: The folder for the parts. The default, None, is a folder next to the file, with ``.pieces`` added to
                its name. If ``write`` is a function, the folder holds a record of the positions that were written;
                without a folder, a prediction that was killed starts from the beginning.
            other_pieces: What to do with parts in the folder that belong to a different model, other weights, a
                different number of samples or other arguments: ``"error"``, the default, because they may be the work
                of hours, or ``"remove"``.
            ids: A value for each sample of the dataset, for example its file name; the values are written to a first
                column named ``id``. ``ids=range(len(dataset))`` writes the positions. None, the default, writes no such
                column.

        Returns:
            Without ``write``, an iterator over the predictions for each batch; with a file, the path of the complete
            file; with a function, None.

        Raises:
            ConfigurationError: A ``DataLoader`` was passed, or an argument cannot work.
            DataError: The dataset has no length.
            RanksDifferError: The processes were passed different arguments, models or samples; a ``ValueError``.
            EmptyDatasetError: There is no sample.
            UnsupportedConfigurationError: A Parquet file needs pyarrow, which is not installed.
            CheckpointError: The folder contains parts of other predictions.
            FolderInUseError: Another run is writing the same file.
            BatchOutputError: The predictions do not fit the file, for example because they are not rows.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> trainer = Trainer(torch.nn.Identity(), None, None, callbacks=[])
            >>> list(trainer.predict(torch.arange(3.0), per_device_batch_size=2))
            [tensor([0., 1.]), tensor([2.])]
        """
        from pa_core.predictions import ResumableWriter
        from pa_core.predictions.prediction_run import PredictionRun

        trainer: TrainerMethods[ModelT_co, BatchT, OutputT_co, SchedulerT] = self
        require_ready(trainer._session, "predict")
        of_writing: dict[str, Any] = {"samples_per_piece": samples_per_piece, "pieces": pieces, "ids": ids}
        of_writing |= {"other_pieces": other_pieces}
        with print_errors_once():
            check_count("per_device_batch_size", per_device_batch_size)
            kwargs = dataloader_kwargs or {}
            run = PredictionRun(
                trainer,
                trainer.predict_batch,
                dataset,
                kwargs.get("batch_size", per_device_batch_size),
                kwargs,
                trainer.collate_fn if collate_fn is None else collate_fn,
                seed,
                trainer._setup.loaders,
                models=lambda: {**trainer.named_models(), **trainer._setup.added.called()},
                running=trainer._predicting,
            )
            if write is None:
                _require_nothing_to_write(of_writing)
                return run.batches()
            writer = ResumableWriter(write, len(cast("Sized", dataset)), run.batch_size, **of_writing)
        run.write(writer)
        return writer.path

    @contextmanager
    def _predicting(self, run: PredictionRun) -> Generator[None]:
        """Begin a prediction run, with the model ready within the context."""
        require_ready(self._session, "predict")  # again, because another run may have begun since

        def describe_arguments() -> dict[str, object]:
            return {"call": f"{type(self).__qualname__}.predict()", **run.describe(), "collate_fn": run.collate_fn}

        with self._running("predict", describe_arguments=describe_arguments, seed=run.seed):
            self.callback_handler.call_event(TrainerCallback.on_prepare_start, self)
            require_same_parts(self, is_training=False)
            self._prepare_model_optimizer_and_dataloaders()
            self.run_config = self._create_run_config(run.batch_size, 1, 1, None, None)
            shares_buffers = self._session.shares_buffers
            with (
                self._session.evaluating(Stage.PREDICTION),
                buffers_of_first_process(self, shares_buffers=shares_buffers),
            ):
                self.model.eval()
                self._setup.added.eval()
                yield


def _require_nothing_to_write(arguments: Mapping[str, object]) -> None:
    """Raise an error for arguments that have no effect if the predictions are not written."""
    for name, value in arguments.items():
        if value is not None and not (isinstance(value, str) and value == "error"):
            raise ConfigurationError(f"{name} must be left out without write, a file or a function, got {value!r}.")
