"""Measures what the tables of the documentation say of other libraries: ``python -m tests.peers.comparison``.

Each library trains the same task with its defaults, in `programs`. PEERS_PYTHON names an interpreter that has them;
``python3 noxfile.py -s peers`` makes one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

__all__ = ["LIBRARIES", "PEERS", "Measured", "measure"]

PROGRAMS = Path(__file__).with_name("programs")
PEERS = os.environ.get("PEERS_PYTHON")
LIBRARIES = ("accelerate", "lightning", "pa", "pytorch_accelerated", "transformers")
WITHOUT_STATES = {"pytorch_accelerated"}
"""What can resume after an epoch only."""

_EVAL_MEAN = fmean((0, 1, 2, 3, 4, 5, 6, 7, 100))
_UPDATES_PER_EPOCH = 4
_KILLED_IN_UPDATE = 8


@dataclass(frozen=True)
class Measured:
    """What a library does.

    Attributes:
        whole_updates_alike: Whether whole updates see the same samples on one process and on two.
        last_update_alike: Whether the last, smaller update of an epoch does.
        alike_on_two_and_four: Whether all updates see the same samples on two processes and on four.
        repeated_in_an_epoch: How many samples an epoch of 50 sees twice, on two processes.
        evaluates_exactly: Whether two processes report the mean over 9 samples in batches of 2.
        same_bits: Whether weights are bit-for-bit identical on one process and on two.
        resumes_samples: Whether a run that was killed mid-epoch resumes with the samples that would have come.
        resumes_weights: Whether it ends with the weights of an undisturbed run.
        resumes_augmented: The same with augmentation that draws from torch's global generator.
    """

    whole_updates_alike: bool = False
    last_update_alike: bool = False
    alike_on_two_and_four: bool = False
    repeated_in_an_epoch: int = 0
    evaluates_exactly: bool = False
    same_bits: bool = False
    resumes_samples: bool = False
    resumes_weights: bool = False
    resumes_augmented: bool = False


class Library:
    """Runs the program of a library.

    Args:
        name: One of ``LIBRARIES``.
        folder: Where its runs write.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._folder = folder
        self._python = Path(sys.executable if name == "pa" else PEERS or "")

    def run(self, folder: str, *options: str, processes: int = 1) -> None:
        """Run it, until it ends or kills itself.

        Args:
            folder: Where it writes, within the folder of the library.
            options: Its command line.
            processes: How many processes train.
        """
        program = str(PROGRAMS / f"{self._name}_loop.py")
        command = [str(self._python), program]
        if processes > 1:
            command = [str(self._python), "-m", "torch.distributed.run", "--standalone"]
            command += ["--nproc-per-node", str(processes), program]
        env = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        ran = subprocess.run(
            [*command, str(self._folder / folder), *options],
            cwd=self._folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        is_to_die = "--die-after" in options
        if ran.returncode != (-signal.SIGKILL if is_to_die else 0):
            raise RuntimeError(f"{self._name} {folder} ended with {ran.returncode}:\n{ran.stdout}\n{ran.stderr}")

    def updates(self, folder: str, start: int = 0) -> dict[int, list[int]]:
        """Return the samples of each update; of a run that was resumed, those of its second life.

        Args:
            folder: Where the run has written.
            start: How many lines of each process to leave out.
        """
        seen: dict[int, list[int]] = {}
        for path in (self._folder / folder).glob("seen-*.jsonl"):
            for line in path.read_text().splitlines()[start:]:
                step = json.loads(line)
                seen.setdefault(step["update"], []).extend(step["numbers"])
        return {update: sorted(numbers) for update, numbers in seen.items()}

    def weights(self, folder: str) -> list[str]:
        """Return the final weights."""
        weights: list[str] = json.loads((self._folder / folder / "end.json").read_text())["weights"]
        return weights

    def eval_mean(self, folder: str) -> float:
        """Return the mean of the values that were evaluated."""
        return float(json.loads((self._folder / folder / "end.json").read_text())["eval_mean"])


def measure(name: str) -> Measured:
    """Run a library on one process and two, undisturbed, killed and resumed.

    Args:
        name: One of ``LIBRARIES``.
    """
    with tempfile.TemporaryDirectory() as folder:
        library = Library(name, Path(folder))
        library.run("one")
        library.run("two", "--evaluate", processes=2)
        library.run("four", processes=4)
        one, two = library.updates("one"), library.updates("two")
        alike = {update: one[update] == two.get(update) for update in one}
        last = [update for update in alike if update % _UPDATES_PER_EPOCH == _UPDATES_PER_EPOCH - 1]
        first_epoch = [number for update in range(_UPDATES_PER_EPOCH) for number in two[update]]
        return Measured(
            whole_updates_alike=all(same for update, same in alike.items() if update not in last),
            last_update_alike=all(alike[update] for update in last),
            alike_on_two_and_four=two == library.updates("four"),
            repeated_in_an_epoch=len(first_epoch) - len({*first_epoch}),
            evaluates_exactly=abs(library.eval_mean("two") - _EVAL_MEAN) < 1e-4,
            same_bits=library.weights("one") == library.weights("two"),
            **({} if name in WITHOUT_STATES else _resumes(library, one)),
        )


def _resumes(library: Library, undisturbed: dict[int, list[int]]) -> dict[str, bool]:
    _kill_and_resume(library, "killed")
    library.run("augmented", "--augmented")
    _kill_and_resume(library, "augmented_and_killed", "--augmented")
    resumed = library.updates("killed", start=_KILLED_IN_UPDATE)
    return {
        "resumes_samples": all(numbers == undisturbed[update] for update, numbers in resumed.items()),
        "resumes_weights": library.weights("killed") == library.weights("one"),
        "resumes_augmented": library.weights("augmented_and_killed") == library.weights("augmented"),
    }


def _kill_and_resume(library: Library, folder: str, *options: str) -> None:
    library.run(folder, *options, "--die-after", str(_KILLED_IN_UPDATE))
    library.run(folder, *options, "--resume")


def main() -> None:
    """Print what was measured of each library, or of those that are named."""
    for name in sys.argv[1:] or LIBRARIES:
        print(name, json.dumps(asdict(measure(name)), indent=2))  # noqa: T201 - a program that talks to its user


if __name__ == "__main__":
    main()
