"""Runs with loaders of the user's own go on in mid-epoch, as well as each kind of loader allows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, Sampler, SubsetRandomSampler
from typing_extensions import override

from pa_core import (
    AnyTrainer,
    CheckpointError,
    LimitBatchesCallback,
    ProgressBarCallback,
    StepBasedEvaluationCallback,
    TrainerCallback,
)
from pa_core.callbacks import progress_bar
from tests.launching import Launch
from tests.support.pa_core.training_states.interrupted_loaders import MakeLoader, Result, interrupt, run
from tests.support.pa_core.training_states.own_loaders import (
    BATCH_SIZE,
    ON_ONE_PROCESS,
    ON_TWO_PROCESSES,
    PERSISTENT,
    SAMPLES,
    BatchesByEpoch,
    BatchesOfGenerator,
    EagerSampler,
    OwnDraws,
    ShuffledStream,
    generator,
    loader,
    stateful,
    weighted,
)
from tests.support.pa_core.training_states.small_runs import DrawingDataset

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is split over the processes by accelerate"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata 0.11 calls it with torch 2.13
]

PAGE = Path(__file__).parents[4] / "docs" / "resuming-custom-data-loaders.md"
ROWS = {
    loader: columns
    for loaders, *columns in re.findall(
        r"^\| <!-- ([\w ]+) --> [^|]* \| ([^|]*) \| (\w+) \| (\w+|-) \|$", PAGE.read_text(), re.MULTILINE
    )
    for loader in loaders.split()
}


def compare(folder: Path, make: MakeLoader, place: tuple[str, int], **options: Any) -> tuple[Result, Result]:
    """Return what an uninterrupted run comes to, and one that goes on with the last state of another process."""
    interrupt(folder, make, place, **options)
    options.pop("every", None)
    return run(make, **options), run(make, seed=99, resume_from=folder, **options)


def check_row(row: str, whole: Result, resumed: Result) -> None:
    """What the page says is so, and what it says is not so is not so either."""
    _, order, draws = ROWS[row]
    assert (resumed.order == whole.order) == (order == "same")
    if draws != "-":
        assert (resumed.draws == whole.draws) == (draws == "same")
    assert (resumed.fingerprint == whole.fingerprint) == (order == draws == "same")


def test_each_loader_that_is_tested_belongs_to_a_row_of_the_page() -> None:
    """No guarantee is written down without a test, and none is tested in secret."""
    assert sorted(ROWS) == sorted([*ON_ONE_PROCESS, *ON_TWO_PROCESSES])


@pytest.mark.parametrize("row", ON_ONE_PROCESS)
def test_a_run_goes_on_in_mid_epoch_as_the_page_says(
    tmp_path: Path, row: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second epoch goes on, and the third one follows; a line says which way was taken."""
    whole, resumed = compare(tmp_path, ON_ONE_PROCESS[row], ("on_train_step_end", 9))
    check_row(row, whole, resumed)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Resuming mid-epoch")]
    assert len(lines) == 1
    ways = {"state": "resumes from its own state", "epoch start": "Fetching 2 batches of .* again"}
    assert re.search(ways[ROWS[row][0]], lines[0])


@pytest.mark.runs_on("two_ranks")
@pytest.mark.parametrize("row", ON_TWO_PROCESSES)
def test_two_processes_go_on_in_mid_epoch_as_the_page_says(shared_tmp_path: Path, row: str) -> None:
    """Each with its part of the loader, as accelerate split it."""
    whole, resumed = compare(shared_tmp_path, ON_TWO_PROCESSES[row], ("on_train_step_end", 5), every=5)
    check_row(row, whole, resumed)


@pytest.mark.runs_on("two_ranks")
@pytest.mark.parametrize("workers", [0, 1])
def test_processes_share_the_samples_of_a_stateful_loader(workers: int) -> None:
    """Each sample comes once in an epoch, also where the generators of the processes differ."""

    def make() -> Any:
        own = torch.Generator().manual_seed(torch.distributed.get_rank())
        return stateful(shuffle=True, num_workers=workers, generator=own)

    order = run(make).order
    epochs = [sorted(order[first : first + SAMPLES]) for first in range(0, 3 * SAMPLES, SAMPLES)]
    assert epochs == [list(range(SAMPLES))] * 3


PLACES = {
    "in the first epoch": ("on_train_step_end", 3),
    "at the end of an epoch": ("on_train_epoch_end", 12),
    "in an evaluation": ("on_eval_step_end", 12),
    "between two epochs": ("on_train_epoch_start", 12),
}


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("row", ["generator", "stateful", "iterable_state"])
def test_a_run_goes_on_anywhere(shared_tmp_path: Path, row: str) -> None:
    """Whatever comes next: a step, an evaluation, or an epoch."""
    make = ON_ONE_PROCESS[row]
    whole = run(make)
    for name, (event, update) in PLACES.items():
        is_split = torch.distributed.is_initialized()
        interrupt(shared_tmp_path / name, make, (event, update // 2 if is_split else update), every=1)
        resumed = run(make, seed=99, resume_from=shared_tmp_path / name)
        assert resumed.order == whole.order, name
        assert resumed.fingerprint == whole.fingerprint or (row == "iterable_state" and is_split), name


@pytest.mark.parametrize("row", ["workers", "persistent", "stateful_workers", "stateful_streams"])
def test_workers_start_as_they_would_have_gone_on(tmp_path: Path, row: str) -> None:
    """Between two epochs, with new workers or with those that would have been kept, the order is the same."""
    whole, resumed = compare(tmp_path, ON_ONE_PROCESS[row], ("on_train_epoch_start", 12))
    assert resumed.order == whole.order
    assert (resumed.fingerprint == whole.fingerprint) == (row != "persistent")


@pytest.mark.parametrize("kind", [loader, stateful])
@pytest.mark.parametrize("part", ["dataset", "batch_sampler"])
def test_generators_of_datasets_and_batch_samplers_go_on(tmp_path: Path, kind: Callable[..., Any], part: str) -> None:
    """Without workers they are where they were, whether batches are fetched again or not."""

    def make() -> Any:
        return kind(OwnDraws(), shuffle=True) if part == "dataset" else kind(batch_sampler=BatchesOfGenerator())

    whole, resumed = compare(tmp_path, make, ("on_train_step_end", 9))
    assert resumed.fingerprint == whole.fingerprint


def test_loaders_are_told_which_epoch_begins(tmp_path: Path) -> None:
    """Also in a run that goes on: the second epoch is the second one there too."""

    def epochs(**options: Any) -> list[int]:
        told: list[int] = []

        class Told(BatchesByEpoch):
            @override
            def set_epoch(self, epoch: int) -> None:
                told.append(epoch)

        run(lambda: loader(batch_sampler=Told()), **options)
        return told

    interrupt(tmp_path, ON_ONE_PROCESS["batch_sampler"], ("on_train_step_end", 9))
    assert (epochs(), epochs(resume_from=tmp_path, resume_allow=("loader",))) == ([0, 1, 2], [1, 2])


def sampled(sampler: Sampler[int], **options: Any) -> Any:
    """A stateful loader with a sampler, and workers that are kept."""
    return stateful(sampler=sampler, **PERSISTENT, **options)


OTHERS: dict[str, MakeLoader] = {
    "a generator for samplers and workers": lambda: loader(shuffle=True, generator=generator(), **PERSISTENT),
    "generator of numpy": lambda: loader(sampler=EagerSampler()),
    "subset": lambda: loader(sampler=SubsetRandomSampler(range(SAMPLES), generator=generator())),
    "stateful with a sampler that draws from the streams": lambda: sampled(weighted()),
    "stateful with a generator": lambda: sampled(RandomSampler(range(SAMPLES), generator=generator())),
    "stateful over a stream": lambda: stateful(ShuffledStream(), num_workers=2),
    "stateful with rare snapshots": lambda: stateful(shuffle=True, num_workers=1, snapshot_every_n_steps=3),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_the_order_is_the_same_for_any_sampler_that_draws_when_an_epoch_begins(tmp_path: Path, kind: str) -> None:
    """Whoever's generator it draws from, and whatever else draws from it."""
    whole, resumed = compare(tmp_path, OTHERS[kind], ("on_train_step_end", 9))
    assert resumed.order == whole.order


@pytest.mark.parametrize("row", ["random", "stateful"])
def test_batches_of_a_group_and_limited_epochs_stay_together(tmp_path: Path, row: str) -> None:
    """Groups of batches, and the limit of the epoch, are counted from its first batch."""
    limited: dict[str, Any] = {"gradient_accumulation_steps": 2, "every": 1}
    for limit in (6, 5):
        interrupt(
            tmp_path / str(limit), ON_ONE_PROCESS[row], ("on_train_step_end", 4), LimitBatchesCallback(limit), **limited
        )
        options: dict[str, Any] = {"gradient_accumulation_steps": 2}
        whole = run(ON_ONE_PROCESS[row], LimitBatchesCallback(limit), **options)
        resumed = run(ON_ONE_PROCESS[row], LimitBatchesCallback(limit), resume_from=tmp_path / str(limit), **options)
        assert resumed.fingerprint == whole.fingerprint


@pytest.mark.parametrize("row", ["random", "generator", "stateful"])
def test_a_limited_epoch_of_which_no_batch_is_left_is_followed_by_a_whole_one(tmp_path: Path, row: str) -> None:
    """A run resumed after the last update of an epoch that is limited trains on all batches of the next."""
    limit = LimitBatchesCallback(4)
    interrupt(tmp_path, ON_ONE_PROCESS[row], ("on_train_epoch_end", 1), limit, every=1)
    resumed = run(ON_ONE_PROCESS[row], limit, seed=99, resume_from=tmp_path)
    assert resumed == run(ON_ONE_PROCESS[row], limit)


@pytest.mark.parametrize("row", ["random", "stateful"])
def test_a_run_is_resumed_again_and_again_in_the_same_epoch(tmp_path: Path, row: str) -> None:
    """Each process may come only one update further than the one before it."""
    make = ON_ONE_PROCESS[row]
    for update in (1, 2, 3, 8):
        interrupt(tmp_path, make, ("on_train_step_end", update), every=1, resume_from=tmp_path, resume_missing="start")
    assert run(make, resume_from=tmp_path).fingerprint == run(make).fingerprint


def test_loaders_of_evaluations_disturb_nothing(tmp_path: Path) -> None:
    """Workers that would have been kept draw no second seed from the streams of the training."""

    def evaluation() -> Any:
        return loader(DrawingDataset(12), sampler=RandomSampler(range(12), generator=generator()), **PERSISTENT)

    def whole_or_resumed(**options: Any) -> Result:
        return run(ON_ONE_PROCESS["random"], StepBasedEvaluationCallback(3), make_evaluation=evaluation, **options)

    interrupt(
        tmp_path,
        ON_ONE_PROCESS["random"],
        ("on_train_step_end", 9),
        StepBasedEvaluationCallback(3),
        make_evaluation=evaluation,
    )
    assert whole_or_resumed(resume_from=tmp_path).fingerprint["weights"] == whole_or_resumed().fingerprint["weights"]


def test_a_loader_on_one_process_stays_the_object_that_it_is() -> None:
    """Its class, with whatever it overrides, and its attributes are there; batches are moved nonetheless."""

    class Doubled(DataLoader[Any]):
        note = "mine"

        @override
        def __iter__(self) -> Any:
            return (batch for batch in super().__iter__() for _ in range(2))

        @override
        def __len__(self) -> int:
            return 2 * super().__len__()

    mine = Doubled(DrawingDataset(SAMPLES), batch_size=BATCH_SIZE)
    seen: list[str] = []

    class Look(TrainerCallback):
        @override
        def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            loader_of_run: Any = trainer.train_dataloader
            seen.append(loader_of_run.note)

    assert len(run(lambda: mine, Look()).order) == 3 * 2 * SAMPLES
    assert seen == ["mine"] * 3


REFUSED: dict[str, tuple[MakeLoader, str, str]] = {
    "sampler": (lambda: loader(sampler=weighted()), "random", "WeightedRandomSampler, batches of 6, on 1 process"),
    "workers": (lambda: stateful(shuffle=True, num_workers=2), "stateful", "batches of 6, 2 workers, on 1 process"),
    "kind": (
        lambda: stateful(shuffle=True),
        "random",
        "StatefulDataLoader with RandomSampler, batches of 6, 0 workers",
    ),
    "stream": (
        lambda: loader(ShuffledStream()),
        "iterable_workers",
        "DataLoader with ShuffledStream, .* 0 workers, on 1",
    ),
    "batch size": (lambda: loader(shuffle=True, batch_size=3), "random", "batches of 3, on 1 process"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_position_in_another_loader_is_refused_unless_it_is_allowed(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message tells the loaders apart; where it is allowed, as many samples are passed over."""
    other, saved, description = REFUSED[name]
    interrupt(tmp_path, ON_ONE_PROCESS[saved], ("on_train_step_end", 9))
    options: dict[str, Any] = {"gradient_accumulation_steps": 2} if name == "batch size" else {}
    with pytest.raises(CheckpointError, match=r'resume_allow=\("loader",\)') as refused:
        run(other, resume_from=tmp_path, **options)
    assert re.search(rf"loader=.*{description}", refused.value.given)
    resumed = run(other, resume_from=tmp_path, resume_allow=("loader",), **options)
    assert len(resumed.order) == 3 * SAMPLES
    batches = "4 batches" if name == "batch size" else "2 batches"
    assert f"{batches} of" in (printed := capsys.readouterr().out)
    assert "samples may occur twice or never" in printed


SCRIPT = """
from pathlib import Path
import pytest
from tests.support.pa_core.training_states.own_loaders import ON_ONE_PROCESS
from tests.support.pa_core.training_states.interrupted_loaders import interrupt
interrupt(Path("states"), ON_ONE_PROCESS["random"], ("on_train_step_end", 5))
"""


def test_another_number_of_processes_is_refused(launch: Launch) -> None:
    """Of a loader that is not the trainer's, nobody knows which samples the other processes had."""
    root = str(Path(__file__).parents[4])
    launch(SCRIPT, ranks=2, env={"PYTHONPATH": root})
    options: dict[str, Any] = {"gradient_accumulation_steps": 2, "resume_from": launch.folder / "states"}
    with pytest.raises(CheckpointError, match="on 1 process") as refused:
        run(ON_ONE_PROCESS["random"], **options)
    assert "on 2 processes" in refused.value.expected
    assert "Only the trainer's own order can continue on different processes" in refused.value.do
    resumed = run(ON_ONE_PROCESS["random"], **options, resume_allow=("loader",))
    assert len(resumed.order) == 3 * SAMPLES


def test_a_loader_that_has_become_shorter_is_an_error(tmp_path: Path) -> None:
    """Its position is not in the data any more."""
    interrupt(tmp_path, ON_ONE_PROCESS["batches"], ("on_train_step_end", 11), every=1)
    with pytest.raises(CheckpointError, match="fewer batches than were trained on"):
        run(lambda: Promising(ON_ONE_PROCESS["batches"]()[:2]), resume_from=tmp_path, resume_allow=("loader",))


class Promising:
    """Has fewer batches than it says."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return SAMPLES // BATCH_SIZE

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def test_the_bar_of_the_epoch_shows_the_way_to_the_position(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts the batches that are fetched again, and goes on from there."""
    interrupt(tmp_path, ON_ONE_PROCESS["random"], ("on_train_step_end", 9))
    monkeypatch.setattr(progress_bar, "SECONDS_BETWEEN_LINES", 0.0)
    capsys.readouterr()
    run(ON_ONE_PROCESS["random"], ProgressBarCallback(), resume_from=tmp_path)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Epoch 2: ")]
    assert lines[:2] == [f"Epoch 2: {batches}/6 batches, skipping the batches trained on before" for batches in (1, 2)]
    assert lines[2].startswith("Epoch 2: 3/6 batches, loss=")


def test_nothing_is_fetched_ahead_of_what_is_trained_on(tmp_path: Path) -> None:
    """When a state is saved, no batch is in flight; at the end of an epoch, nothing is fetched again for it."""
    fetched: list[int] = []

    class Counting(DrawingDataset):
        @override
        def __getitem__(self, index: int) -> Any:
            fetched.append(index)
            return super().__getitem__(index)

    ahead: list[int] = []

    class Count(TrainerCallback):
        @override
        def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
            ahead.append(len(fetched) - update * BATCH_SIZE)

    run(lambda: loader(Counting(SAMPLES), shuffle=True), Count())
    assert ahead == [0] * 18
    interrupt(tmp_path, ON_ONE_PROCESS["random"], ("on_train_epoch_end", 12), every=12)
    fetched.clear()
    run(lambda: loader(Counting(SAMPLES), shuffle=True), resume_from=tmp_path)
    assert len(fetched) == SAMPLES
