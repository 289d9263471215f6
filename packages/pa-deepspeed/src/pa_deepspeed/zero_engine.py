"""DeepSpeed's engine as the exchange of a trainer or run."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from pa_core import AnyTrainer
from pa_core.distributed import broadcast_buffers, sum_over_processes
from pa_core.engine.exchange import Alone, BatchPlace, Part
from pa_core.errors import ConfigurationError, UnsupportedConfigurationError
from pa_core.types import SizedIterable
from pa_data.rng import restored_rng_states
from pa_deepspeed import _requirements
from pa_deepspeed._engine import SPLITS_WEIGHTS, begin_pass
from pa_deepspeed._shares import Shares


class ZeroEngine(Alone):
    """Train with DeepSpeed's engine in stage 1, 2 or 3 of ZeRO, in place of averaging gradients.

    Return an instance from ``create_exchange`` of your trainer or ``Run``, and launch the script with ``torchrun`` or
    ``accelerate launch``. The engine divides optimizer states among the processes, from stage 2 on also gradients, and
    in stage 3 also weights. All arguments of ``train()`` keep their meaning: the run weights the batches, clips, and
    steps the schedulers; DeepSpeed exchanges gradients and steps the optimizer. Training states contain whole tensors,
    and can be resumed on any number of processes, in any stage, and without DeepSpeed.

    The engine starts with the first batch, and is removed after the last update: at the end of the run, the model and
    the optimizer are whole, as in a run without DeepSpeed. On a single process, DeepSpeed is not used. Weights and
    gradients are in fp32; with ``mixed_precision="bf16"``, the model computes in bf16, as in other runs.

    Every parameter is stepped in each update, with a gradient of zero if no loss depends on it. The loss of each batch
    has to depend on the same parameters on all processes. Between two updates in stage 3, weights are empty except
    within ``calculate_eval_batch_loss``, checkpoints and training states.

    Args:
        run: The trainer or run.
        stage: What is divided among the processes: 1, only optimizer states; 2, the default, also gradients; 3, also
            weights, which takes the least memory, and sends weights in each forward and backward pass.
        settings: Settings of DeepSpeed's ``zero_optimization`` section for the size of messages, for example
            ``{"reduce_bucket_size": 50_000_000}`` in elements. None, the default, sends up to 25 million elements in a
            message.

    Attributes:
        stage: The stage.
        num_averaged: The number of processes.
        is_exact: False, so that ``reproducible="any_processes"`` raises ``UnsupportedConfigurationError``.
        shares_buffers: True: all processes use the buffers of the first process.
        splits_models: Whether weights are divided: in stage 3 on several processes.
        pads_batches: Whether there are several processes, which all have to run each backward pass.

    Raises:
        ConfigurationError: The stage is not 1, 2 or 3.
        UnsupportedConfigurationError: DeepSpeed is not installed or has an untested version, accelerate has its own
            configuration of DeepSpeed, the run is in fp16, or a setting is not supported. When a run starts: there are
            several models or optimizers, ``fully_shard`` or ``torch.compile`` was applied, the optimizer does not
            update each element on its own, or a parameter is not in fp32.

    Example:
        >>> import torch
        >>> from pa_core import Trainer
        >>> from pa_deepspeed import ZeroEngine
        >>> class ZeroTrainer(Trainer):
        ...     def create_exchange(self):
        ...         return ZeroEngine(self, stage=2)
    """

    def __init__(self, run: AnyTrainer, stage: int = 2, settings: Mapping[str, object] | None = None) -> None:
        self._settings = dict(settings or {})
        _requirements.check_settings(stage, self._settings)
        _requirements.check_installation()
        _requirements.check_run(run)
        self.stage: int = stage
        self.num_averaged: int = run.num_processes
        self.splits_models: bool = stage == SPLITS_WEIGHTS and run.num_processes > 1
        self.pads_batches: bool = run.num_processes > 1
        self._run = run
        self._parts: list[Part] = []
        self._called: Mapping[str, nn.Module] = {}
        self._shares: Shares | None = None
        self._hooks: list[RemovableHandle] = []
        self._hook_of_pass: RemovableHandle | None = None
        self._has_gradients = False
        self._has_ended = False
        self._is_lost = False

    # The course of a run

    @override
    def add(self, part: Part, called: Mapping[str, nn.Module], *, overlaps: bool) -> None:
        """Check that the engine can train a part; the engine itself starts with the first batch.

        Args:
            part: The module to train, and its optimizer.
            called: All modules that the steps of the run call.
            overlaps: Not used.

        Raises:
            ConfigurationError: An earlier run ended with an error, so that states were lost.
            UnsupportedConfigurationError: The engine cannot train the part.
        """
        if self.num_averaged == 1:
            return
        if self._is_lost:
            raise ConfigurationError(
                "An earlier run ended with an error, and each process has only its share of the states.",
                do="Create the model, the optimizer and the trainer again, and resume from a training state.",
            )
        _requirements.check_modules(self._run, part, self._parts, self.stage)
        if part.optimizers:  # a Run sets them later
            _requirements.check_optimizers(part)
        self._parts.append(part)
        self._called = called

    @override
    def close(self) -> None:
        """Remove the engine if the run ended with an error, which loses states, and in stage 3 weights."""
        self._end_pass()
        if self._shares is not None:
            self._shares.abandon()
            self._shares, self._is_lost = None, True
        while self._hooks:
            self._hooks.pop().remove()
        self._parts, self._called, self._has_gradients, self._has_ended = [], {}, False, False

    @override
    def start_epoch(self, models: Callable[[], Mapping[str, nn.Module]]) -> None:
        """Prepare to start the engine again if a callback has frozen or unfrozen parameters.

        Args:
            models: Not used.
        """
        if self._shares is not None and not self._shares.fit():
            self._release()

    @override
    def start_batch(self, place: BatchPlace) -> None:
        """Start the engine before the first batch, and send the buffers of the first process in each update.

        Args:
            place: The place of the batch in its update.
        """
        if self.num_averaged == 1:
            return
        if self._shares is None:
            self._start()
        self._has_ended = False
        if place.starts_group:
            for module in self._called.values():
                broadcast_buffers(module)

    def _start(self) -> None:
        module, optimizer = _requirements.check_optimizers(self._parts[0])
        with restored_rng_states(self._run.device, ()):
            self._shares = Shares(module, optimizer, self.stage, self._settings, self._run.device)
        self._shares.engine.set_gradient_accumulation_boundary(False)
        if not self._hooks:
            self._hooks.append(optimizer.register_step_pre_hook(self._step))

    def _release(self) -> None:
        """Make weights and states whole, and remove the engine; every process must call this."""
        self._end_pass()
        if self._shares is not None:
            self._shares.release()
            self._shares = None
        self._has_gradients = False

    @override
    def drop_update(self) -> None:
        """Make weights and states whole, because the run ends; the engine starts again if it has another batch."""
        self._release()
        self._has_ended = True

    @override
    def average_each_pass(self, part: Part) -> None:
        """Raise an error for a trainer with its own loop.

        Args:
            part: The trained part.

        Raises:
            UnsupportedConfigurationError: The trainer overrides ``_run_train_epoch``.
        """
        if self.num_averaged > 1:
            raise UnsupportedConfigurationError(
                "ZeroEngine needs the loop of the trainer. Do not override _run_train_epoch, or use Run."
            )

    # An update

    @override
    def start_pass(self, part: Part, loss: Tensor) -> None:
        """Let DeepSpeed take part in a backward pass: it exchanges gradients, and in stage 3 weights, within the pass.

        Args:
            part: The trained part.
            loss: The loss of the pass.
        """
        if self._shares is None:
            return
        self._end_pass()
        self._has_gradients = True
        engine = self._shares.engine
        engine.optimizer.clear_backward_seen_flag()
        if loss.requires_grad:
            hooked: Any = loss  # torch annotates register_hook in part

            def begin(_gradient: Tensor) -> None:
                begin_pass(engine)

            self._hook_of_pass = hooked.register_hook(begin)

    def _end_pass(self) -> None:
        if self._hook_of_pass is not None:
            self._hook_of_pass.remove()
            self._hook_of_pass = None

    @override
    def finish(self, part: Part, flags: Callable[[], Sequence[float]]) -> Tensor | None:
        """Complete the gradients of the shares, and add up the flags.

        Args:
            part: The trained part.
            flags: Returns six numbers of this process.

        Returns:
            The sums of these numbers over all processes; None on a single process.
        """
        if self._shares is None:
            return None
        self._end_pass()
        self._shares.collect_gradients()
        sums = torch.tensor(flags(), dtype=torch.float64, device=self._run.device)
        return sum_over_processes(sums)

    @override
    def scale_gradients(self, part: Part, factor: float | Tensor) -> None:
        """Multiply the gradients of the shares of this process by a factor.

        Args:
            part: The trained part.
            factor: The factor.
        """
        if self._shares is None:
            super().scale_gradients(part, factor)
            return
        for gradient in self._shares.gradients():
            gradient.mul_(factor)

    @override
    def clip_gradients(self, part: Part, *, value: float | None, norm: float | None) -> Tensor | None:
        """Clip the gradients of the shares, by the norm over the shares of all processes.

        Args:
            part: The trained part.
            value: The largest absolute value of an element, or None.
            norm: The largest norm of all gradients together, or None.

        Returns:
            The norm before it was clipped; None if ``norm`` is None.
        """
        if self._shares is None:
            return super().clip_gradients(part, value=value, norm=norm)
        return self._shares.clip(value=value, norm=norm)

    def _step(self, _optimizer: Optimizer, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Step the shares when the script's optimizer is stepped, which itself finds no gradients."""
        if self._shares is None:
            return
        given = (*arguments[1:], *keywords.values())  # the first argument is the optimizer
        if any(value is not None for value in given):
            raise UnsupportedConfigurationError("ZeroEngine steps an optimizer without a closure.")
        self._shares.step()
        self._shares.engine.set_gradient_accumulation_boundary(False)

    @override
    def end_update(self) -> None:
        """Begin to collect the gradients of the next update."""
        self._has_gradients = False

    @override
    def batches_to_evaluate(self, loader: SizedIterable, batches: Iterable[Any], *, is_trial: bool) -> Iterable[Any]:
        """Start the engine if a run resumes with an evaluation, and return the batches unchanged.

        The engine moves weights in memory, and products of matrices depend on their addresses, in the last digit.

        Args:
            loader: Not used.
            batches: The batches of this process.
            is_trial: Whether only the first batches are evaluated and nothing is recorded.

        Returns:
            The ``batches`` argument itself.
        """
        if self._parts and self._shares is None and not (is_trial or self._has_ended):
            self._start()
        return batches

    @override
    def holds_gradients(self, part: Part) -> bool:
        """Return whether a backward pass of the update was run, whose gradients DeepSpeed keeps.

        Args:
            part: The trained part.
        """
        return self._has_gradients

    # Whole tensors

    @override
    def whole(self, *, optimizers: bool = True, changes: bool = False) -> AbstractContextManager[None]:
        """Return a context in which weights and optimizer states are whole tensors on every process.

        Args:
            optimizers: Whether the states of the optimizer are needed.
            changes: Whether weights and states may be changed within the context. The engine then starts again with the
                next batch.
        """
        if self._shares is None:
            return nullcontext()
        return self._changed() if changes else self._shares.whole(optimizers=optimizers)

    @contextmanager
    def _changed(self) -> Generator[None]:
        self._release()
        yield
