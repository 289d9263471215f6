"""Datasets in many files, and the order of their samples."""

from __future__ import annotations

import itertools
import pickle
import random
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pa_data.errors import DataError, EmptyDatasetError, ShardError
from pa_data.files import JsonLines, ShardedFiles, ShardFile, ShardOrder, TextLines
from tests.support.shards import numbered, samples_in_order, write_json_lines

COUNTS = (5, 31, 1, 17, 40, 2, 23)


@pytest.mark.parametrize("num_shards", range(1, 8))
def test_each_sample_comes_once_on_any_number_of_processes(tmp_path: Path, num_shards: int) -> None:
    """One to seven files of uneven length on one to four processes: the same samples and draws, each once."""
    total = sum(COUNTS[:num_shards])
    data = numbered(write_json_lines(tmp_path, COUNTS[:num_shards]), window=16, lanes=2, block=3)
    one = samples_in_order(data, num_processes=1, batch_size=12)
    assert sorted(sample[0] for sample in one) == list(range(total))
    for num_processes, batch_size in ((2, 6), (3, 4), (4, 3)):
        assert samples_in_order(data, num_processes=num_processes, batch_size=batch_size) == one


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # more of them than cores
@pytest.mark.parametrize(("num_workers", "num_processes"), [(1, 2), (2, 1), (3, 2)])
def test_workers_change_nothing(tmp_path: Path, num_workers: int, num_processes: int) -> None:
    """With workers, the same samples come in the same order, with the same draws."""
    data = numbered(write_json_lines(tmp_path, COUNTS), window=20, lanes=4, block=4)
    alone = samples_in_order(data, num_processes=num_processes, batch_size=4)
    assert samples_in_order(data, num_processes=num_processes, batch_size=4, num_workers=num_workers) == alone


def test_an_epoch_resumes_at_any_sample_on_any_number_of_processes(tmp_path: Path) -> None:
    """Forty runs that were stopped anywhere continue with the very samples and draws that were to come."""
    pattern = write_json_lines(tmp_path, COUNTS)
    one = samples_in_order(numbered(pattern, window=16), num_processes=1, batch_size=1)
    choose = random.Random(5)
    for _ in range(40):
        start, num_processes = choose.randrange(len(one)), choose.randint(1, 4)
        data = numbered(pattern, window=16)
        rest = samples_in_order(data, num_processes=num_processes, start=start, batch_size=choose.randint(1, 9))
        assert rest == one[start:]


def test_workers_that_are_spawned_are_sent_the_dataset(tmp_path: Path) -> None:
    """A dataset that was read from can be pickled; files are opened anew by whoever gets it."""
    data = ShardedFiles(write_json_lines(tmp_path, (3, 4)), JsonLines())
    assert data[4]["id"] == 4
    assert [sample["id"] for sample in pickle.loads(pickle.dumps(data))] == list(range(7))


def test_an_index_is_the_place_of_a_sample_in_all_files(tmp_path: Path) -> None:
    """Samples are numbered over all files, sorted by name; a sample can be located in its file."""
    data = ShardedFiles(write_json_lines(tmp_path, (3, 4)), JsonLines())
    assert (len(data), data.counts) == (7, (3, 4))
    assert [sample["id"] for sample in data] == list(range(7))
    assert data[-1]["id"] == 6
    assert (data.locate(2), data.locate(3)) == ((0, 2), (1, 0))
    for index in (7, -8):
        with pytest.raises(IndexError, match=f"no sample {index} in 7 samples of 2 files"):
            data.locate(index)


class NumpyRows:
    """A user's own reader of rows of arrays."""

    def count(self, file: ShardFile) -> int:
        """Return the number of rows."""
        return len(self.open(file))

    def open(self, file: ShardFile) -> NDArray[np.int64]:
        """Map the array into memory."""
        rows: NDArray[np.int64] = np.load(file.path, mmap_mode="r")
        return rows


def test_a_reader_of_your_own_takes_four_lines(tmp_path: Path) -> None:
    """Anything with a count and rows is a reader."""
    for name, rows in {"a": range(3), "b": range(3, 8)}.items():
        np.save(tmp_path / name, np.array([[row, row * 10] for row in rows]))
    data = ShardedFiles(str(tmp_path / "*.npy"), NumpyRows(), transform=lambda row: tuple(map(int, row)))
    assert list(data) == [(row, row * 10) for row in range(8)]


def test_files_that_are_named_by_themselves_keep_their_order(tmp_path: Path) -> None:
    """A list of paths is taken as it is, and moving the folder does not change the identity of the order."""
    write_json_lines(tmp_path / "before", (3, 4))
    names = ["01.jsonl", "00.jsonl"]
    before = ShardedFiles([tmp_path / "before" / name for name in names], JsonLines())
    assert [sample["id"] for sample in before] == [3, 4, 5, 6, 0, 1, 2]
    (tmp_path / "before").rename(tmp_path / "after")
    after = ShardedFiles([tmp_path / "after" / name for name in names], JsonLines())
    assert after.default_order.fingerprint == before.default_order.fingerprint


def test_numbered_files_can_be_abbreviated(tmp_path: Path) -> None:
    """Names with a range of numbers in braces stand for all of them, in their order."""
    write_json_lines(tmp_path, (1,) * 12)
    data = ShardedFiles(str(tmp_path / "{08..11}.jsonl"), JsonLines())
    assert [Path(path).name for path in data.paths] == ["08.jsonl", "09.jsonl", "10.jsonl", "11.jsonl"]
    with pytest.raises(ShardError, match=r"missing(.|\n)*12.jsonl"):
        ShardedFiles(str(tmp_path / "{08..12}.jsonl"), JsonLines())


def test_given_counts_are_believed_until_a_file_is_opened(tmp_path: Path) -> None:
    """With counts nothing is read at the start; a file that has another number of samples is found when it is used."""
    pattern = write_json_lines(tmp_path, (3, 4))
    second = (tmp_path / "01.jsonl").rename(tmp_path / "elsewhere")
    data = ShardedFiles([tmp_path / "00.jsonl", tmp_path / "01.jsonl"], JsonLines(), counts=(3, 5))
    assert len(data) == 8
    assert data[0]["id"] == 0
    second.rename(tmp_path / "01.jsonl")
    with pytest.raises(ShardError, match=r"01.jsonl: 5 in counts, and 4 in the file"):
        data[3]
    with pytest.raises(ValueError, match="1 counts, the smallest 3, and 2 files"):
        ShardedFiles(pattern, JsonLines(), counts=(3,))


def test_what_is_wrong_with_files_is_said(tmp_path: Path) -> None:
    """A pattern without files, a missing, repeated or empty file, and a folder are errors that name it."""
    pattern = write_json_lines(tmp_path, (3, 4))
    with pytest.raises(ShardError, match=r"No file fits the pattern(.|\n)*\*.json'"):
        ShardedFiles(str(tmp_path / "*.json"), JsonLines())
    with pytest.raises(ShardError, match=r"missing(.|\n)*none.jsonl"):
        ShardedFiles(tmp_path / "none.jsonl", JsonLines())
    with_counts = ShardedFiles(tmp_path / "none.jsonl", JsonLines(), counts=[3])  # nothing is read at the start
    with pytest.raises(ShardError, match=r"missing(.|\n)*none.jsonl"):
        _ = with_counts[0]
    with pytest.raises(ShardError, match=r"named twice(.|\n)*00.jsonl"):
        ShardedFiles([pattern, tmp_path / "00.jsonl"], JsonLines())
    with pytest.raises(ShardError, match=r"named twice(.|\n)*00.jsonl"):
        ShardedFiles([tmp_path / "00.jsonl", f"{tmp_path}/./00.jsonl", tmp_path / "01.jsonl"], JsonLines())
    with pytest.raises(ShardError, match="folder was given"):
        ShardedFiles(tmp_path, JsonLines())
    with pytest.raises(ShardError, match="no files"):
        ShardedFiles([], JsonLines())
    (tmp_path / "02.jsonl").touch()
    with pytest.warns(UserWarning, match=r"1 of 3 files hold no sample, such as .*02.jsonl"):
        assert len(ShardedFiles(pattern, JsonLines())) == 7
    with pytest.raises(EmptyDatasetError, match=r"02.jsonl"):
        ShardedFiles(tmp_path / "02.jsonl", TextLines())


def test_a_file_that_changes_during_a_run_is_an_error(tmp_path: Path) -> None:
    """Samples are not taken from a file that is another one than that which was counted."""
    data = ShardedFiles(write_json_lines(tmp_path, (3, 4)), JsonLines())
    assert data[0] == {"id": 0, "padding": ""}
    (tmp_path / "01.jsonl").write_text('{"id": 1}\n')
    with pytest.raises(ShardError, match=r"changed since(.|\n)*01.jsonl, .* bytes before and 10 bytes now"):
        data[4]


def test_few_files_are_open_at_a_time(tmp_path: Path) -> None:
    """However many files there are, a process has only those open that the window reaches over."""
    data = ShardedFiles(write_json_lines(tmp_path, (2,) * 300), JsonLines(), window=50)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for sample in itertools.islice(data, 600):
        assert sample["id"] >= 0
    assert len(list(Path("/proc/self/fd").iterdir())) - before <= 50 + 1


@st.composite
def orders(draw: st.DrawFn) -> ShardOrder:
    """Any order of a few shards."""
    counts = draw(st.lists(st.integers(0, 40), min_size=1, max_size=7))
    lanes = draw(st.integers(1, 5))
    window, block = draw(st.integers(lanes, 60)), draw(st.integers(1, 9))
    return ShardOrder(tuple(map(str, range(len(counts)))), tuple(counts), window, lanes, block)


@settings(max_examples=50)
@given(order=orders(), seed=st.integers(0, 99), part=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_each_sample_comes_once_and_any_part_is_that_of_the_whole(
    order: ShardOrder, seed: int, part: tuple[float, float]
) -> None:
    """An epoch visits each sample once, and a process that asks for a part gets what is there in the whole epoch."""
    total = sum(order.counts)
    whole = order.epoch_order(total, seed=seed, epoch=1).indices(0, total)
    assert sorted(whole.tolist()) == list(range(total))
    start, stop = sorted(int(share * total) for share in part)
    assert torch.equal(order.epoch_order(total, seed=seed, epoch=1).indices(start, stop), whole[start:stop])


def test_a_window_reaches_over_few_shards() -> None:
    """At any time only those files are read that the window reaches over, and samples within it are shuffled."""
    order = ShardOrder(tuple("abcdefgh"), (100,) * 8, window=50)
    shards = order.epoch_order(800, seed=3, epoch=0).indices(0, 800).view(16, 50) // 100
    assert [len(set(window.tolist())) for window in shards] == [1] * 16
    assert len(set(shards[::2, 0].tolist())) == 8
    first, second = (order.epoch_order(800, seed=3, epoch=epoch).indices(0, 800) for epoch in (0, 1))
    assert (first.diff() == 1).float().mean() < 0.1
    assert not torch.equal(first // 100, second // 100)


def test_each_worker_has_a_lane_to_itself() -> None:
    """With as many lanes as processes times workers, and blocks of a batch, each worker reads files of its own."""
    order = ShardOrder(tuple("abcdefgh"), (320,) * 8, window=64, lanes=4, block=8)
    epoch = order.epoch_order(2560, seed=0, epoch=0).indices(0, 2560) // 320
    batches = epoch.view(80, 2, 2, 8)  # steps, of which every other one is the second worker's; processes; samples
    of_workers = [set(batches[:, worker, process].flatten().tolist()) for worker in (0, 1) for process in (0, 1)]
    assert [len(shards) for shards in of_workers] == [2] * 4
    assert set().union(*of_workers) == set(range(8))


def test_the_start_of_an_epoch_and_a_seek_take_no_time() -> None:
    """In a hundred million samples of a thousand files, a run begins or resumes anywhere within ten milliseconds."""
    order = ShardOrder(tuple(map(str, range(1000))), (100_000,) * 1000, lanes=8)
    taken: list[float] = []
    for position in (0, 12_345_678, 99_990_000):
        begin = time.perf_counter()
        order.epoch_order(100_000_000, seed=1, epoch=7).indices(position, position + 64)
        taken.append(time.perf_counter() - begin)
    assert min(taken) < 0.01


def test_the_identity_says_which_samples_come_when() -> None:
    """Other files, counts or windows are another order; what has no influence on it is no part of it."""
    order = ShardOrder(("a", "b"), (3, 4), window=10)
    assert order.fingerprint == ShardOrder(("a", "b"), (3, 4), window=10, block=8).fingerprint
    others = [
        ShardOrder(("a", "c"), (3, 4), window=10),
        ShardOrder(("a", "b"), (4, 3), window=10),
        ShardOrder(("a", "b"), (3, 4), window=11),
        ShardOrder(("a", "b"), (3, 4), window=10, lanes=2),
        ShardOrder(("a", "b"), (3, 4), window=10, lanes=2, block=8),
    ]
    assert len({order.fingerprint, *(other.fingerprint for other in others)}) == 6


@pytest.mark.parametrize(
    ("numbers", "given"),
    [
        ({"window": 0}, "window must be a whole number >= 1, got 0"),
        ({"lanes": 0}, "lanes must be a whole number >= 1, got 0"),
        ({"block": -1}, "block must be a whole number >= 1, got -1"),
        ({"window": 2, "lanes": 3}, "window must be >= lanes=3, which share it, got 2"),
    ],
)
def test_numbers_that_describe_no_order_are_refused(numbers: dict[str, int], given: str) -> None:
    """A window, lanes or a block of nothing are errors that say which."""
    with pytest.raises(DataError, match=given):
        ShardOrder(("a",), (3,), **numbers)


def test_it_is_the_order_of_its_files_only() -> None:
    """The order of files with another dataset, such as a part of them, is refused."""
    with pytest.raises(DataError, match=r"6 samples.*7 samples"):
        ShardOrder(("a", "b"), (3, 4)).epoch_order(6, seed=0, epoch=0)
