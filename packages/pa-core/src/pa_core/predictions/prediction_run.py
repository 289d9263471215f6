"""One run that predicts: it yields the predictions on the first process, or has each process write its own."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from typing_extensions import override

from pa_core.any_trainer import AnyTrainer, TrainerCallback
from pa_core.data.loaders import Loaders
from pa_core.default_step import name_step
from pa_core.distributed import gather_objects, processes
from pa_core.distributed.collectives import broadcast_tensors, num_processes, rank
from pa_core.distributed.comparison import require_same
from pa_core.predictions.job import Pieces, PredictionJob
from pa_core.predictions.written import Writing
from pa_core.sharding.sharded_states import gathering
from pa_data import move_to_device

_collectives: Any = dist  # torch annotates its collectives only in part


class PredictionRun:
    """Predicts the samples of a job once, in their order.

    Args:
        trainer: The trainer, whose events are called.
        job: What to predict.
        loaders: Says with which arguments loaders are made by default.
        predict_batch: Called with a batch, returns the predictions for it.
        models: Returns the modules whose weights decide the predictions, by name.
        running: The context of the run, in which the model is ready.
    """

    def __init__(
        self,
        trainer: AnyTrainer,
        job: PredictionJob,
        loaders: Loaders,
        *,
        predict_batch: Callable[[Any], Any],
        models: Callable[[], Mapping[str, nn.Module]],
        running: AbstractContextManager[None],
    ) -> None:
        self._trainer = trainer
        self._job = job
        self._loaders = loaders
        self._predict_batch = predict_batch
        self._models = models
        self._running = running

    def batches(self) -> Generator[Any, None, None]:
        """Yield the predictions for each batch on the first process; the others take part in each step."""
        trainer, job = self._trainer, self._job
        pieces = Pieces(job.num_samples, job.batch_size)
        steps = -(-len(pieces) // trainer.num_processes)
        # In the last step, a process for which no batch is left repeats the last one, which nobody is given twice.
        numbers = torch.arange(trainer.process_index, steps * trainer.num_processes, trainer.num_processes)
        numbers.clamp_(max=len(pieces) - 1)
        with self._running:
            require_same(self._identity, trainer.device)
            self._call_event(TrainerCallback.on_prediction_run_start, num_batches=steps)
            for step, (number, batch) in enumerate(zip(numbers, self._loader(pieces, numbers), strict=True), start=1):
                if not _goes_on(trainer.device):
                    break
                predicted = _gather_on_first(self._predict(batch, step, pieces.positions(int(number))))
                try:
                    with processes.apart():
                        yield from predicted[: len(pieces) - (step - 1) * trainer.num_processes]
                except GeneratorExit:
                    if step < steps:
                        _goes_on(trainer.device, stops=True)
                    break
            self._call_event(TrainerCallback.on_prediction_run_end)

    def write(self, writing: Writing) -> None:
        """Predict and write the pieces that are not there yet, each process some of them.

        Args:
            writing: What the predictions are written to.
        """
        with self._running, closing(writing):
            identity = self._identity()
            require_same(lambda: identity, self._trainer.device)
            numbers = writing.open(identity, partial(self._trainer.print, flush=True))
            num_batches = sum(1 for number in numbers for _ in writing.pieces.batches(int(number)))
            most = max(gather_objects(num_batches)) if self._trainer.is_sharded else num_batches
            self._call_event(TrainerCallback.on_prediction_run_start, num_batches=num_batches)
            predicted = self._predicted_pieces(writing.pieces, numbers)
            for number in numbers:
                writing.write(int(number), predicted)
            self._follow_others(writing.pieces, most - num_batches)
            writing.finish()
            self._call_event(TrainerCallback.on_prediction_run_end)

    def _follow_others(self, pieces: Pieces, times: int) -> None:
        """Call the pieces of a sharded model for the processes that have more batches, which need them."""
        if times:
            batch = next(iter(self._loader(pieces, torch.zeros(1, dtype=torch.int64))))
            with self._job.draws_of_batch(0, self._trainer.device), torch.no_grad():
                for _ in range(times):
                    self._predict_batch(batch)

    def _predicted_pieces(self, pieces: Pieces, numbers: Tensor) -> Iterator[Any]:
        batches = self._loader(pieces, numbers) if len(numbers) else ()
        positions = (one for number in numbers for one in pieces.batches(int(number)))
        for step, (batch, of_batch) in enumerate(zip(batches, positions, strict=True), start=1):
            yield self._predict(batch, step, of_batch)

    def _loader(self, pieces: Pieces, numbers: Tensor) -> Iterable[Any]:
        return self._job.loader(pieces, numbers, self._loaders.default_kwargs, self._trainer.device)

    def _predict(self, batch: Any, step: int, positions: range) -> Any:
        with self._job.draws_of_batch(positions.start, self._trainer.device), torch.no_grad():
            try:
                predictions = self._predict_batch(batch)
            except Exception as error:
                name_step(error, f"prediction step {step}", batch, self._trainer.get_model())
                raise
        predictions = move_to_device(predictions, torch.device("cpu"))
        self._call_event(TrainerCallback.on_prediction_step_end, batch_size=len(positions))
        return predictions

    def _identity(self) -> dict[str, str]:
        """What decides the predictions: pieces of others are not mixed with theirs."""
        return {
            "weights": _digest_of_weights(self._models()),
            "trainer": type(self._trainer).__qualname__,
            "mixed_precision": self._trainer.mixed_precision,
            **{name: str(value) for name, value in self._job.describe().items() if name != "collate_fn"},
        }

    def _call_event(self, event: Callable[..., None], **kwargs: int) -> None:
        self._trainer.callback_handler.call_event(event, self._trainer, **kwargs)


def _goes_on(device: torch.device, *, stops: bool = False) -> bool:
    """Whether there is another step, as the first process decides; every process must call this."""
    stop = torch.tensor([stops], device=device)
    if num_processes() > 1:
        broadcast_tensors([stop])
    return not bool(stop.item())


def _gather_on_first(predictions: object) -> list[Any]:
    """Return what each process has predicted, on the first one; nothing on the others. Every process must call it."""
    if num_processes() == 1:
        return [predictions]
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(predictions)
    gathered: list[Any] | None = [None] * num_processes() if rank() == 0 else None
    _collectives.gather_object(file.getvalue(), gathered)
    return [pickle.loads(one) for one in gathered or []]


class _Pickler(pickle.Pickler):
    """Leaves out the rest of what a tensor is a view of, such as the other tokens of a sequence."""

    @override
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Tensor and obj.layout is torch.strided and obj.untyped_storage().nbytes() > obj.nbytes:
            whole: Any = obj.clone(memory_format=torch.contiguous_format)
            return whole.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return NotImplemented


def _digest_of_weights(models: Mapping[str, nn.Module]) -> str:
    """Return a digest of the classes, the parameters and the buffers of models; every process must call this.

    It is the same whether a model is sharded or not.
    """
    whole = hashlib.sha256()
    for name, model in sorted(models.items()):
        whole.update(f"{name} {type(model).__qualname__.removeprefix('FSDP')}\n".encode())
        tensors = {key: value for key, value in model.state_dict().items() if isinstance(value, Tensor)}
        with gathering(tensors.values()) as of_all:
            for key, tensor in zip(tensors, of_all, strict=True):
                whole.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
                whole.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return whole.hexdigest()
