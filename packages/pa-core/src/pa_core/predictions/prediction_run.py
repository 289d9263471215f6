"""A prediction run: it yields the predictions on the first process, or lets each process write its own."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, cast

import torch
from torch import nn
from torch.utils.data import Dataset

import pa_distributed
from pa_core.data.custom_loader import is_dataloader
from pa_core.data.data_arguments import DataArgument
from pa_core.data.loaders import Loaders
from pa_core.distributed.collectives import gather_objects, num_processes, rank, sum_over_processes
from pa_core.engine.any_trainer import AnyTrainer, TrainerCallback
from pa_core.engine.rank_checks import digest_of_weights
from pa_core.errors import ConfigurationError
from pa_core.predictions.writer import ResumableWriter
from pa_core.run_config import check_count
from pa_core.steps.default_step import name_step
from pa_data import KeyedDataLoader, move_to_device
from pa_data.rng import restored_rng_states, seed_rng
from pa_distributed import rank_local, require_same, run_while_others_wait

_BATCHES = -3  # extends the seed for draws in predict_batch; datasets draw by the index of the sample
_FIXED = ("sampler", "batch_sampler", "shuffle", "drop_last", "algorithm", "split", "seed", "rank", "num_processes")
"""Arguments of a loader that would change the samples or their order."""


@dataclass(frozen=True)
class PredictionRun:
    """Predicts the samples of a dataset once, in their order.

    Attributes:
        trainer: The trainer, whose events are called.
        predict_batch: A function that is called with a batch and returns the predictions for it.
        dataset: The samples.
        batch_size: The number of samples of each batch, except for the last.
        dataloader_kwargs: The arguments for the loader.
        collate_fn: A function that makes a batch of a list of samples.
        seed: The seed of the draws in the dataset and in ``predict_batch``.
        loaders: The loaders of the trainer, which have the default arguments.
        models: A function that returns the modules whose weights determine the predictions, by name.
        running: A function that returns the context of the run, in which the model is ready.

    Raises:
        ConfigurationError: A ``DataLoader`` was passed, or an argument would change the order.
        DataError: The samples have no positions.
        EmptyDatasetError: There is no sample.
    """

    trainer: AnyTrainer
    predict_batch: Callable[[Any], Any]
    dataset: Dataset[Any]
    batch_size: int
    dataloader_kwargs: Mapping[str, Any]
    collate_fn: Callable[[list[Any]], Any] | None
    seed: int
    loaders: Loaders
    models: Callable[[], Mapping[str, nn.Module]]
    running: Callable[[PredictionRun], AbstractContextManager[None]]

    def __post_init__(self) -> None:
        """Raise an error if the data cannot be predicted sample by sample."""
        if is_dataloader(self.dataset):
            raise ConfigurationError(
                f"Predictions come in the order of a dataset, and a {type(self.dataset).__name__} has its own order. "
                "Pass its dataset, and its other arguments as collate_fn and dataloader_kwargs."
            )
        DataArgument(self.dataset, "dataset", None, is_made_by_method=False)
        KeyedDataLoader(self.dataset)  # raises an error without positions or samples
        for name in _FIXED:
            if self.dataloader_kwargs.get(name):
                raise ConfigurationError(
                    f"Predictions come in the order of the dataset, with each sample once. Leave {name}="
                    f"{self.dataloader_kwargs[name]!r} out of dataloader_kwargs; predict a torch.utils.data.Subset for "
                    "other samples or another order."
                )
        check_count("seed", self.seed, minimum=0)
        check_count("batch_size", self.batch_size)

    @property
    def num_samples(self) -> int:
        """The number of samples of the dataset."""
        return len(cast("Sized", self.dataset))

    def describe(self) -> dict[str, object]:
        """Return the settings that determine the predictions, by name."""
        return {"number of samples": self.num_samples, "batch_size": self.batch_size, "seed": self.seed}

    def batches(self) -> Generator[Any, None, None]:
        """Yield the predictions for each batch on the first process; the other processes take part in each step."""
        num_batches = -(-self.num_samples // self.batch_size)
        starts = range(0, num_batches, num_processes())
        # In the last step, a process without a batch repeats the last batch; the repeated predictions are dropped.
        predicted = self._predicted([min(start + rank(), num_batches - 1) for start in starts])
        with self.running(self):
            require_same(self._identity)
            self._call_event(TrainerCallback.on_prediction_run_start, num_batches=len(starts))
            for start in starts:
                if self._first_stops(False):
                    break
                gathered = pa_distributed.gather_objects(next(predicted)[1], on_first_only=True)
                try:
                    with rank_local():
                        yield from gathered[: num_batches - start]
                except GeneratorExit:
                    if start < starts[-1]:
                        self._first_stops(True)
                    break
            self._call_event(TrainerCallback.on_prediction_run_end)

    def _first_stops(self, stops: bool) -> bool:
        """Whether the first process stops; every process must call this."""
        return bool(sum_over_processes(torch.tensor(int(stops), device=self.trainer.device)).item())

    def write(self, writer: ResumableWriter) -> None:
        """Predict and write the missing pieces, which the processes share.

        Args:
            writer: The writer of the pieces.
        """
        with self.running(self), closing(writer):
            identity = self._identity()
            require_same(identity)
            open_writer = partial(writer.open, identity, partial(self.trainer.print, flush=True))
            run_while_others_wait(open_writer if rank() == 0 else None)
            run_while_others_wait(None if rank() == 0 else open_writer)
            run_while_others_wait(partial(self._write_pieces, writer), fails_at_once=True)
            run_while_others_wait(writer.finish if rank() == 0 else None)
            self._call_event(TrainerCallback.on_prediction_run_end)

    def _write_pieces(self, writer: ResumableWriter) -> None:
        pieces = gather_objects(writer.missing)[0][rank() :: num_processes()]
        numbers = [start // self.batch_size for piece in pieces for start in piece[:: self.batch_size]]
        # The other processes of a sharded model need this one in each forward pass: it repeats a batch.
        more = max(gather_objects(len(numbers))) - len(numbers) if self.trainer.is_sharded else 0
        self._call_event(TrainerCallback.on_prediction_run_start, num_batches=more + len(numbers))
        predicted = self._predicted([0] * more + numbers)
        for _ in islice(predicted, more):
            pass
        for piece in pieces:
            writer.write(piece, islice(predicted, len(piece[:: self.batch_size])))

    def _predicted(self, numbers: Sequence[int]) -> Iterator[tuple[range, Any]]:
        """Iterate over the positions of some batches, and the predictions for them on the CPU."""
        device = self.trainer.device
        for step, (number, batch) in enumerate(zip(numbers, self._load(numbers), strict=True), start=1):
            start = number * self.batch_size
            with restored_rng_states(device), torch.no_grad():
                seed_rng(0, self.seed, _BATCHES, start, device=device)
                try:
                    predictions = self.predict_batch(batch)
                except Exception as error:
                    name_step(error, f"prediction step {step}", batch, self.trainer.get_model())
                    raise
            predictions = move_to_device(predictions, torch.device("cpu"))
            positions = range(start, min(start + self.batch_size, self.num_samples))
            self._call_event(TrainerCallback.on_prediction_step_end, batch_size=len(positions))
            yield positions, predictions

    def _load(self, numbers: Sequence[int]) -> Iterator[Any]:
        if not numbers:
            return iter(())
        requested = {name: value for name, value in self.dataloader_kwargs.items() if name not in _FIXED}
        kwargs: dict[str, Any] = {"collate_fn": self.collate_fn, "device": self.trainer.device, "seed": self.seed}
        kwargs |= {**self.loaders.default_kwargs(self.dataset, self.batch_size), **requested}
        return iter(KeyedDataLoader(self.dataset, batches=numbers, **kwargs))

    def _identity(self) -> dict[str, str]:
        """Return the values that determine the predictions, so that pieces of other predictions are not mixed in."""
        return {
            "weights": digest_of_weights(self.models()),
            "trainer": type(self.trainer).__qualname__,
            "mixed_precision": self.trainer.mixed_precision,
            **{name: str(value) for name, value in self.describe().items()},
        }

    def _call_event(self, event: Callable[..., None], **kwargs: int) -> None:
        self.trainer.callback_handler.call_event(event, self.trainer, **kwargs)
