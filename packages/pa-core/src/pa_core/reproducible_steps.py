"""Steps of a run that are bit-for-bit identical on any number of processes.

An update is cut into micro-batches by position. Each of them draws from its own RNGs and begins with the buffers
from before the update, and their gradients are added up in a fixed tree. So it does not matter who computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from pa_core.any_trainer import AnyTrainer
from pa_core.data.custom_loader import describe_loader, innermost, is_keyed, is_slice
from pa_core.data.data_arguments import GivenData, order_makes_batches
from pa_core.engine import Engine
from pa_core.errors import ConfigurationError, UnsupportedConfigurationError
from pa_core.model_tensors import is_sharded_module
from pa_core.run_arguments import RunArguments
from pa_core.trained import MicroBatch
from pa_core.types import SizedIterable
from pa_core.undoing import restored
from pa_data import KeyedDataLoader
from pa_data.orders import order_of_dataset
from pa_data.rng import mix, seed_rng

_AFTER_UPDATE: Final = -1
_EVALUATION: Final = -2
_AFTER_EVALUATION: Final = -3
"""What extends the key of an update where no index of a micro-batch does."""

_WAY_OUT = "or leave reproducible out, with which means agree to 1e-12 on any number of processes."


class ReproducibleSteps:
    """Prepares and ends the micro-batches of a run.

    Args:
        engine: The parts of the trainer.
        overlaps: Whether each micro-batch has one backward pass, so that gradients may be sent during the last one.
    """

    def __init__(self, engine: Engine, *, overlaps: bool) -> None:
        self._engine = engine
        self._overlaps = overlaps
        self._part: MicroBatch | None = None
        self._samples = 0  # of the steps of the update so far
        self._is_rehearsed = False

    @staticmethod
    def check_arguments(data: Iterable[GivenData], asked: RunArguments) -> None:
        """Raise an error for arguments that a reproducible run cannot follow, before a loader is made.

        Args:
            data: The data to train on or to evaluate.
            asked: The arguments of the run.

        Raises:
            ConfigurationError: An argument contradicts, or the size of updates is missing.
        """
        if asked.max_updates_per_batch is not None or asked.gradient_accumulation_steps != 1:
            name = "gradient_accumulation_steps" if asked.max_updates_per_batch is None else "max_updates_per_batch"
            raise ConfigurationError(
                f"The updates of a reproducible run follow from samples_per_update: leave out {name}, {_WAY_OUT}"
            )
        for one in data:
            if one.purpose == "eval" or one.loader is not None:
                continue
            kwargs = one.kwargs or {}
            if order_makes_batches(one.order, one.data, kwargs):
                order = order_of_dataset(one.data) if one.order is None else one.order
                raise ConfigurationError(
                    "A reproducible run makes its batches itself, by position in the order of the samples.",
                    given=f"the order {type(order).__name__}, whose batches of any size make updates of any size",
                    do=f"Pass LengthGrouped, which groups samples of similar length, or another order, {_WAY_OUT}",
                )
            if asked.samples_per_update is None and "samples_per_update" not in kwargs:
                raise ConfigurationError(
                    "A reproducible run needs the size of its updates: pass samples_per_update=..., which is the same "
                    "on any number of processes."
                )

    def require_usable(self, loaders: Iterable[SizedIterable | None], models: Mapping[str, nn.Module]) -> None:
        """Raise an error for loaders and models with which a run follows the number of processes.

        Args:
            loaders: The loaders of the run.
            models: What it calls, by name.

        Raises:
            ConfigurationError: A loader is limited or has its own order.
            UnsupportedConfigurationError: A model is sharded, or has layers that follow the number of processes.
        """
        self._is_rehearsed = False
        for loader in loaders:
            if loader is not None:
                self._require_own_batches(loader)
        for name, model in models.items():
            if is_sharded_module(model):
                raise _unsupported(
                    f"The model {name!r} is sharded, and fully_shard adds up gradients in its own order."
                )
            for path, layer in cast("Iterable[tuple[str, nn.Module]]", model.named_modules()):  # annotated in part
                if isinstance(layer, nn.SyncBatchNorm):
                    raise _unsupported(f"{name}.{path} is a SyncBatchNorm, whose statistics follow the processes.")
                if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse:
                    raise _unsupported(f"{name}.{path} has sparse gradients, which are added up in another order.")

    def _require_own_batches(self, loader: SizedIterable, *, may_be_limited: bool = False) -> KeyedDataLoader[Any]:
        own = innermost(loader)
        if not is_keyed(own) or not own.fixed_batches:
            raise ConfigurationError(
                "A reproducible run makes its batches itself, by position in the order of the samples.",
                given=describe_loader(own),
                do=f"Pass a dataset with a length, or a stream with a __len__, without a sampler, {_WAY_OUT}",
            )
        if is_slice(loader) and not may_be_limited:
            raise ConfigurationError(
                "A limit counts the batches of each process, and means other samples on a different number of them.",
                given=f"reproducible, and {loader.slice_size} batches of a loader",
                do="Pass max_num_train_steps, or a torch.utils.data.Subset to evaluate.",
            )
        return own

    def rehearse(self, part: MicroBatch, batch: Any, trainer: AnyTrainer, compute: Callable[[Any], Tensor]) -> None:
        """Compute the first micro-batch of a run several times beforehand, which is undone.

        Args:
            part: The part of the batch in its update.
            batch: The batch.
            trainer: The trainer.
            compute: Computes the gradients of a batch, and returns its loss.

        Raises:
            UnsupportedConfigurationError: It depends on what was computed before it.
        """
        if self._is_rehearsed or part.micro_batch is None:
            return
        self._is_rehearsed = True
        from pa_core.rehearsal import Rehearsal  # nothing else needs it

        engine, micro_batch = self._engine, part.micro_batch
        trees = [trained.tree for trained in engine.trained.values()]
        roots: dict[str, object] = {**trainer.named_models(), **trainer.modules, "trainer": trainer}
        if trainer.loss_func is not None:
            roots["loss_func"] = trainer.loss_func
        handled = [one for one in roots.values() if isinstance(one, nn.Module)]

        @contextmanager
        def in_turn() -> Generator[None]:
            self._seed(micro_batch)
            with engine.means.step():
                yield
            for tree in trees:
                tree.restore_buffers()

        with restored(roots, engine.device), engine.kept(trainer):
            for tree in trees:
                tree.save_buffers()
            Rehearsal(roots, handled, in_turn, compute).require_independent(batch)

    # Updates

    def start_update(self) -> None:
        """Begin an update."""
        self._part, self._samples = None, 0

    def start_step(self, part: MicroBatch) -> None:
        """Begin a step, after the one before.

        Args:
            part: The part of its batch in the update.
        """
        self.end_step()
        if self._samples == 0:
            for trained in self._engine.trained.values():
                trained.tree.start_update(part.num_micro_batches)
        self._samples += part.global_samples or 0
        self._part = part
        if part.micro_batch is not None:
            self._seed(part.micro_batch)
            for trained in self._engine.trained.values():
                trained.tree.start_batch(overlaps=self._overlaps)

    def end_step(self) -> None:
        """Take the gradients of the step in progress, if there is one."""
        part, self._part = self._part, None
        if part is not None and part.micro_batch is not None:
            for trained in self._engine.trained.values():
                trained.tree.end_batch(part.weight)

    def end_update(self) -> None:
        """End an update: what the first process logs from now on counts as often as the update has samples."""
        self._seed(_AFTER_UPDATE)
        self._engine.means.count_samples(self._samples if self._engine.accelerator.process_index == 0 else 0)

    def drop_update(self) -> None:
        """Let the buffers be what they were before an update that is not made; does nothing between two updates."""
        self._part = None
        for trained in self._engine.trained.values():
            trained.tree.drop_update()

    # Evaluations

    def batches_to_evaluate(self, loader: SizedIterable, batches: Iterable[Any], *, is_trial: bool) -> Iterator[Any]:
        """Iterate over the batches of an evaluation, which draws by position, and begins each with the same buffers.

        Args:
            loader: The loader.
            batches: Its batches, on the device.
            is_trial: Whether the evaluation is left after the first batches, and nothing is recorded.

        Raises:
            ConfigurationError: The loader is limited, or has its own order.
        """
        keyed = self._require_own_batches(loader, may_be_limited=is_trial)
        trees = [trained.tree for trained in self._engine.trained.values()]
        for tree in trees:
            tree.save_buffers()
        for step, batch in enumerate(batches):
            self._seed(_EVALUATION, keyed.split.piece(step, keyed.rank).start)
            yield batch
            for tree in trees:
                tree.restore_buffers()
        self._seed(_AFTER_EVALUATION)

    def _seed(self, *place: int) -> None:
        key = mix(self._engine.resumption.seed, self._engine.progress.updates, *place)
        seed_rng(key)
        if self._engine.device.type != "cpu":
            torch.get_device_module(self._engine.device).manual_seed(key)


def _unsupported(problem: str) -> UnsupportedConfigurationError:
    return UnsupportedConfigurationError(f"{problem} Change it, {_WAY_OUT}")
