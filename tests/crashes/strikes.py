"""What hits a run, and when."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.crashes.configurations import Configuration
from tests.crashes.phases import STORAGE_PHASES, Phase

__all__ = ["Strike", "kills"]

SHARE_OF_THOSE_ASKED_FIRST = 0.2


@dataclass(frozen=True)
class Strike:
    """When a run is hit, and by what.

    Attributes:
        after: The seconds after its start; None where it is aimed at a phase.
        phase: What it is aimed at; the process stands still there until it is hit.
        occurrence: The how manieth time it comes to that phase.
        rank: Which one is looked at, and hit where not all are.
        signal: The name of the signal.
        hits: "group" for all processes at once, workers too; "rank" for that rank alone.
        kill_after: The seconds after which all processes are killed, as by a launcher; None lets them end.
    """

    after: float | None = None
    phase: str | None = None
    occurrence: int = 1
    rank: int = 0
    signal: str = "SIGKILL"
    hits: str = "group"
    kill_after: float | None = None


def kills(configuration: Configuration, seconds: float, chance: random.Random) -> Iterator[Strike]:
    """Yield kills without end: at a random time, and at each of the phases in turn.

    Args:
        configuration: How the script is called.
        seconds: About how long it runs.
        chance: What decides.
    """
    phases = configuration.phases()
    chance.shuffle(phases)
    for phase in itertools.cycle(phases):
        after = Strike(after=chance.uniform(0.0, seconds))
        asked_first = replace(after, signal="SIGTERM", kill_after=chance.uniform(0.0, 0.05))
        yield asked_first if chance.random() < SHARE_OF_THOSE_ASKED_FIRST else _of_some(configuration, after, chance)
        occurrence = 1 if phase is Phase.FIRST_STEP else chance.randint(1, 4)
        yield _of_some(configuration, Strike(phase=phase.name, occurrence=occurrence), chance)


def _of_some(configuration: Configuration, kill: Strike, chance: random.Random) -> Strike:
    """Let a kill hit all processes at once, or one rank a little before the launcher ends the others."""
    if configuration.ranks == 1 or chance.random() < 0.5:
        return kill
    only_first_rank = kill.phase is not None and Phase[kill.phase] in STORAGE_PHASES
    rank = 0 if only_first_rank else chance.randrange(configuration.ranks)
    return replace(kill, hits="rank", rank=rank, kill_after=chance.uniform(0.0, 0.1))
