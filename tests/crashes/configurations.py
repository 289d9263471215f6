"""The ways in which the script is called."""

from __future__ import annotations

from dataclasses import dataclass, replace

from typing_extensions import override

from tests.crashes.phases import Phase

__all__ = ["Configuration"]


@dataclass(frozen=True)
class Configuration:
    """How the script is called.

    Attributes:
        ranks: The number of processes.
        accumulation: The batches of each process in an update.
        precision: The mixed precision.
        workers: The processes that load data, of each rank.
        every: When states are saved, as arguments of the script.
        asynchronous: Whether they are written in the background.
        max_states: How many are kept; None keeps all.
        loop: The name of a loop of the script's own; None for that of the trainer.
        is_sharded: Whether the weights are split over the processes.
        data: One of the kinds of data that do not just come shuffled; None for those that do.
        others: Further arguments.
    """

    ranks: int = 1
    accumulation: int = 1
    precision: str = "no"
    workers: int = 0
    every: tuple[str, ...] = ("--states-every-n-steps=4",)
    asynchronous: bool = False
    max_states: int | None = None
    loop: str | None = None
    is_sharded: bool = False
    data: str | None = None
    others: tuple[str, ...] = ()

    @override
    def __str__(self) -> str:
        """Return a name for a test."""
        every = "+".join(one.removeprefix("--states-every-n-").replace("=", " ") for one in self.every)
        kept = f"{self.max_states} kept" if self.max_states else "all kept"
        how = "asynchronous" if self.asynchronous else "synchronous"
        split = f"{self.ranks} ranks, {self.accumulation} accumulated, {self.workers} workers, {self.precision}"
        sharded = ", sharded" if self.is_sharded else ""
        own_loop = f", own loop of {self.loop}" if self.loop else ""
        return f"{split}, {every}, {how}, {kept}{sharded}{own_loop}" + (f", {self.data}" if self.data else "")

    def arguments(self) -> list[str]:
        """Return the arguments of the script."""
        return [
            f"--accumulation={self.accumulation}",
            f"--workers={self.workers}",
            *self.every,
            *(["--asynchronous"] if self.asynchronous else []),
            *([f"--max-states={self.max_states}"] if self.max_states else []),
            *([f"--loop={self.loop}"] if self.loop else []),
            *([f"--data={self.data}"] if self.data else []),
            *self.others,
        ]

    def environment(self) -> dict[str, str]:
        """Return the variables that accelerate's launcher would set."""
        sharding = {
            "ACCELERATE_USE_FSDP": "true",
            "FSDP_VERSION": "2",
            "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
            "FSDP_TRANSFORMER_CLS_TO_WRAP": "Linear",
        }
        return {"ACCELERATE_MIXED_PRECISION": self.precision, **(sharding if self.is_sharded else {})}

    def uninterrupted(self) -> Configuration:
        """Return that of the run to compare with: it saves no states, and loads its data by itself."""
        return replace(self, workers=0, every=("--without-states",), asynchronous=False, max_states=None)

    def phases(self) -> list[Phase]:
        """Return the phases that a run of this kind comes to."""
        never = {Phase.NONE}
        if self.accumulation == 1:
            never.add(Phase.GROUP)
        if self.max_states is None:
            never.add(Phase.REMOVING)
        if self.loop not in (None, "one model"):  # these evaluate after epochs only
            never.add(Phase.INTERMEDIATE_EVALUATION)
        return [phase for phase in Phase if phase not in never]
