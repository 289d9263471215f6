"""The forward passes of a sharded model in its steps, in which every process takes part, with samples or without."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain, repeat
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pa_core._torch import map_tensors
from pa_core.distributed.collectives import values_of_all
from pa_core.errors import UnsupportedConfigurationError
from pa_core.sharding.calls_for_all import CallsForAll, differentiable, not_compiled, zero_loss_of

__all__ = ["ForwardPasses"]

_T = TypeVar("_T")


_NONE_LEFT: Any = object()


class ForwardPasses:
    """Makes up for the calls of a process that has no loss: it has no sample, or was stopped in its step.

    Args:
        model: The sharded model, as a step calls it.
        device: The device of the run.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1)
        >>> passes = ForwardPasses(model, torch.device("cpu"))
        >>> with passes.step():
        ...     _ = model(torch.ones(1, 2))
        ...     loss = passes.loss_without_samples()  # stopped after the first call
        >>> abs(loss.item())
        0.0
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model = model
        self._device = device
        self._calls = CallsForAll(model, device)
        self._teller: int | None = None
        self._is_in_step = self._is_telling = self._follows = False
        self._outputs: list[Any] = []
        self._calls_of_step = 1
        self._last_inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._first_inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._hook = model.register_forward_hook(not_compiled(self._note), with_kwargs=True)

    @property
    def follows(self) -> bool:
        """Whether this process has no sample in the current step, and calls the model as another process does."""
        return self._follows

    def close(self) -> None:
        """Leave the model alone."""
        self._hook.remove()

    @contextmanager
    def step(self, *, is_empty: bool = False, some_are_empty: bool = False) -> Generator[None]:
        """Within the context, a step calls the model as often on each process, and as often as the last one.

        Args:
            is_empty: Whether this process has no sample.
            some_are_empty: Whether any process may have none; every process must enter the context then.
        """
        teller, are_empty = self._find_teller(is_empty=is_empty) if some_are_empty else (None, False)
        self._is_in_step, self._teller, self._follows = True, teller, is_empty
        self._is_telling = are_empty and not is_empty
        try:
            with self._calls.telling(teller) if teller is not None and self._is_telling else nullcontext():
                yield
            self._calls_of_step = len(self._outputs)
        finally:
            self._is_in_step = self._is_telling = self._follows = False
            self._outputs.clear()
            self._last_inputs = None

    def end(self, loss: Tensor) -> None:
        """Tell the processes without a sample, if there are any, that the model is not called any more in this step.

        Args:
            loss: The loss of the step.
        """
        if self._is_telling:
            self._calls.end(loss)

    def loss_without_samples(self) -> Tensor:
        """Return a loss whose gradients are zero, after the calls that the other processes make in this step.

        Raises:
            UnsupportedConfigurationError: This process was stopped before its first call of the model in the run.
        """
        if not self._follows:
            return zero_loss_of(self._model, self._outputs_with_missing_calls())
        return zero_loss_of(self._model, [] if self._teller is None else self._calls.follow(self._teller))

    def until_all_end(self, batches: Iterable[_T]) -> Iterator[_T]:
        """Iterate over the evaluation batches of this process; then call the model as long as others have batches.

        Every process must iterate to the end.

        Args:
            batches: The batches of this process, whose number others need not share.
        """
        for batch in chain(batches, repeat(_NONE_LEFT)):
            teller, are_empty = self._find_teller(is_empty=batch is _NONE_LEFT)
            if teller is None:
                return
            if batch is _NONE_LEFT:
                self._calls.follow(teller)
            elif not are_empty:
                yield batch
            else:
                with self._calls.telling(teller):
                    yield batch
                    self._calls.end()

    def _find_teller(self, *, is_empty: bool) -> tuple[int | None, bool]:
        """Return the first process with a sample, None without one, and whether some process has none."""
        flags: Any = values_of_all(torch.tensor([is_empty], device=self._device)).flatten()
        of_each: list[bool] = flags.tolist()
        return (of_each.index(False) if False in of_each else None), any(of_each)

    def _note(self, _model: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: object) -> None:
        if self._is_in_step:
            self._outputs.append(output)
            self._last_inputs = arguments, keywords
            if self._first_inputs is None:
                self._first_inputs = map_tensors(_without_content, self._last_inputs)

    def _outputs_with_missing_calls(self) -> list[Tensor]:
        """The outputs of this step, after calls with any inputs for those that it still lacks."""
        for _ in range(self._calls_of_step - len(self._outputs)):
            self._call_again()
        return [tensor for output in self._outputs for tensor in differentiable(output)]

    def _call_again(self) -> None:
        inputs = self._last_inputs
        if inputs is None and self._first_inputs is not None:
            inputs = map_tensors(partial(_with_content, self._device), self._first_inputs)
        if inputs is None:
            raise _stopped_before_first_call()
        arguments, keywords = inputs
        self._model(*arguments, **keywords)


def _without_content(tensor: Tensor) -> Tensor:
    """What takes no memory and tells the shape; of whole numbers such as words, the content, which must be valid."""
    return tensor.detach().to("meta") if tensor.is_floating_point() else tensor.detach().clone()


def _with_content(device: torch.device, tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor, device=device) if tensor.is_meta else tensor


def _stopped_before_first_call() -> UnsupportedConfigurationError:
    return UnsupportedConfigurationError(
        "A process was stopped before it called its sharded model for the first time, for which the others wait.",
        given="a StopTrainingError in the first step of a run",
        do="Raise StopTrainingError in a callback, such as in on_train_step_end.",
    )
