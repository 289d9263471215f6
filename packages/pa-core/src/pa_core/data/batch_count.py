"""Counting the batches of custom data loaders, whose lengths may be wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from pa_core.data.custom_loader import describe_loader, has_certain_length, innermost, is_dataloader, length_of
from pa_core.errors import ConfigurationError, EmptyDatasetError
from pa_core.types import SizedIterable
from pa_core.user_warnings import warn_user

_EFFECT_ON_TRAINING = {
    True: "The epoch ends after its length, and the other batches are not trained on. ",
    False: "The run makes fewer updates than planned, and its schedule does not reach its end. ",
}
"""The effect of more batches than the length, and of fewer."""


class BatchCount:
    """Compares the number of batches that a loader yields in an epoch with its length.

    Args:
        loader: The loader of the epoch.
        phase: The purpose of the epoch.
        is_per_process: Whether each of several processes has its own loader, perhaps with a different number of
            batches. Loaders that accelerate splits end together, unless a sample ends a loader.
        num_processes: The number of processes.

    Attributes:
        phase: The purpose of the epoch.
        is_per_process: Whether each of several processes has its own loader.
        is_certain: Whether only a sample that raises ``StopIteration`` can end the loader before its length.
        ends_alone: Whether this process may reach the end while others still have batches.
        expected: The length of the loader; None for a stream.
        given: The number of batches so far.
        has_ended: Whether the loader had no further batch.
        has_more: Whether the loader had a batch beyond its length.

    Example:
        >>> count = BatchCount(["one", "two"], "training")
        >>> list(count.over(["one"])), count.missing
        (['one'], 1)
    """

    def __init__(
        self,
        loader: SizedIterable[Any],
        phase: Literal["training", "evaluation"],
        *,
        is_per_process: bool = False,
        num_processes: int = 1,
    ) -> None:
        self._loader = innermost(loader)
        self.phase: str = phase
        self.is_per_process: bool = is_per_process
        self.is_certain: bool = has_certain_length(self._loader)
        self.ends_alone: bool = is_per_process or (num_processes > 1 and self.is_certain)
        self.expected: int | None = length_of(loader)
        self.given: int = 0
        self.has_ended: bool = False
        self.has_more: bool = False

    @property
    def may_differ(self) -> bool:
        """Whether another process may have a different number of batches; with a ``DataLoader``, never."""
        return self.is_per_process and (self.expected is None or not is_dataloader(self._loader))

    @property
    def missing(self) -> int:
        """The number of batches by which the loader was shorter than its length."""
        return max(0, self.expected - self.given) if self.has_ended and self.expected is not None else 0

    def over(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Iterate over all batches of the epoch, and count them."""
        for batch in batches:
            self.given += 1
            self.has_more = self.expected is not None and self.given > self.expected
            yield batch
        self.has_ended = True

    def warn_of_difference(self) -> bool:
        """Warn if the length was wrong, and return whether it was."""
        if not (self.has_more or self.missing):
            return False
        effect = _EFFECT_ON_TRAINING[self.has_more] if self.phase == "training" else ""
        number = f"more than {self.expected} batches" if self.has_more else f"{self.given} of these batches"
        warn_user(
            f"A loader whose length is {self.expected} yielded {number} in {self.phase}: "
            f"{describe_loader(self._loader)}. {effect}Let __len__ return the number of "
            "batches of an epoch, or of the samples of a dataset; a StopIteration that is raised for a sample ends an "
            "epoch too. Of several workers, each iterates over an "
            "IterableDataset: let each yield its own share (see torch.utils.data.get_worker_info)."
        )
        return True

    def nothing_counted(self) -> EmptyDatasetError:
        """Return the error for an epoch without a batch on any process."""
        length = "" if self.expected is None else f", whose length is {self.expected}"
        return EmptyDatasetError(
            f"The loader yielded no batch in {self.phase}. Got 0 batches of {describe_loader(self._loader)}{length}. "
            "Make it yield its batches each time it is iterated over: an iterator is used up after the first time."
        )

    def ended_by_sample(self) -> ConfigurationError:
        """Return the error for an epoch that a sample ended before the last batch of torch's samplers."""
        return ConfigurationError(
            f"A sample or its collation raised StopIteration, which ended the {self.phase} before its last batch.",
            given=f"{self.given} of {self.expected} batches of {describe_loader(self._loader)} on this process",
            do="Find the call of next() in the dataset or the collate_fn whose iterator is used up, or give it "
            "a default.",
        )

    def too_few_on_a_process(self) -> ConfigurationError:
        """Return the error for a training epoch in which a process had fewer batches than the length of its loader."""
        return ConfigurationError(
            "The training loader of a process ended before its length, while other processes still had batches.",
            given=f"{self.given} of {self.expected} batches of {describe_loader(self._loader)} on this process",
            do="Let each process yield the number of batches that is the length of its loader.",
        )


def require_same_lengths(lengths: Sequence[int | None]) -> None:
    """Raise an error if training loaders have different numbers of batches, because some processes would time out.

    Args:
        lengths: The length of the loader of each process; None for a stream.

    Raises:
        ConfigurationError: The lengths differ.
    """
    if len(set(lengths)) > 1:
        raise ConfigurationError(
            "The training loaders of the processes have different lengths.",
            given=f"{', '.join(map(str, lengths))} batches",
            do="Give each process the same number of batches, or return a torch.utils.data.DataLoader over the "
            "whole dataset, which is split over the processes.",
        )
