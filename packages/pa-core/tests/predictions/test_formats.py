"""What is in a file of predictions: each value is read back as it was, or refused with a way out; ids tell samples."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import BatchOutputError, CheckpointError, ConfigurationError, Trainer
from pa_core.predictions import ResumableWriter
from tests.support.explained import assert_explained

AWKWARD = (
    "a\rb",
    "a\nb",
    "a\r\nb",
    'say "yes"',
    "a,b",
    " before",
    "behind ",
    "\ttab",
    "",
    "a\x0bb\x0cc\x1cd\x85e\u2028f\u2029g",
    "\u0130\U0001f600",
    "\r",
)


def written(path: Path, batches: list[Any], ids: Any = None) -> Path:
    """Write batches of samples, each to a piece of its own."""
    sizes = [len(next(iter(batch.values()))) if isinstance(batch, dict) else len(batch) for batch in batches]
    with closing(ResumableWriter(path, sum(sizes), sizes[0], samples_per_piece=1, ids=ids)) as writer:
        writer.open({})
        remaining: Iterator[Any] = iter(batches)
        for piece in writer.missing:
            writer.write(piece, [(positions, next(remaining)) for positions in writer.batches(piece)])
        writer.finish()
    return path


def test_a_table_of_text_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    """Line ends of all kinds, spaces, quotes and separators are within quotes, in names of columns too."""
    path = written(tmp_path / "text.csv", [{"a\rb": AWKWARD, "n": range_of(AWKWARD)}])
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows == [["a\rb", "n"], *([text, str(number)] for number, text in enumerate(AWKWARD))]
    with path.open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(file, skipinitialspace=True)) == rows
    options = pyarrow.csv.ParseOptions(newlines_in_values=True)
    table = pyarrow.csv.read_csv(path, parse_options=options)
    assert table["a\rb"].to_pylist() == list(AWKWARD)


def range_of(values: Any) -> list[int]:
    """The numbers of values."""
    return list(range(len(values)))


def test_a_line_of_json_is_a_line_to_every_program(tmp_path: Path) -> None:
    """No character within a string ends a line, and halves of surrogate pairs are escaped."""
    texts = [*AWKWARD, "half \ud800 of a pair"]
    content = written(tmp_path / "text.jsonl", [texts]).read_text(encoding="utf-8")
    assert [json.loads(line)["prediction"] for line in content.splitlines()] == texts


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_text_that_no_file_can_hold_is_refused(suffix: str, tmp_path: Path) -> None:
    """Half of a surrogate pair is an error that says what to write instead."""
    with pytest.raises(BatchOutputError) as refused:
        written(tmp_path / f"text.{suffix}", [["half \ud800 of a pair"]])
    assert_explained(refused.value, ".jsonl")


LARGE = 2**60 + 1


@pytest.mark.parametrize(
    "batches",
    [
        [torch.tensor([LARGE]), torch.tensor([0.5])],
        [[LARGE], [0.5]],
        [torch.tensor([[LARGE, 1]]), torch.tensor([[0.5, 1.0]])],
        [[{"x": LARGE}], [{"x": 0.5}]],
        [torch.tensor([2**63 + 5], dtype=torch.uint64), torch.tensor([-1])],
        [[2**70], [1]],
    ],
)
def test_numbers_that_do_not_go_into_one_column_are_refused_with_a_way_out(batches: list[Any], tmp_path: Path) -> None:
    """Whole numbers that doubles cannot hold, beside fractions, are no error of Arrow's; JSON lines take them."""
    with pytest.raises(BatchOutputError) as refused:
        written(tmp_path / "numbers.parquet", batches)
    assert_explained(refused.value, "strings for large whole numbers")
    lines = written(tmp_path / "numbers.jsonl", batches).read_text().splitlines()
    assert [json.loads(line)["prediction"] for line in lines] == [
        batch[0].tolist() if isinstance(batch, Tensor) else batch[0] for batch in batches
    ]


SMALL = (torch.int16, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16)


@pytest.mark.parametrize("dtype", SMALL)
def test_types_that_are_rare_are_written_by_value(dtype: torch.dtype, tmp_path: Path) -> None:
    """Small floats become 32-bit ones, which have the same values."""
    values = torch.tensor([1.0, 2.0]).to(dtype)
    table = pyarrow.parquet.read_table(written(tmp_path / "numbers.parquet", [values]))
    assert table["prediction"].to_pylist() == [1, 2]
    assert written(tmp_path / "numbers.csv", [values]).read_text().split()[1:] in (["1", "2"], ["1.0", "2.0"])


@pytest.mark.parametrize("batch", [{"a": torch.zeros(1, 2), "a_0": ["x"]}, {1: ["x"], "1": ["y"]}])
def test_two_columns_of_one_name_are_refused(batch: Any, tmp_path: Path) -> None:
    """The second one would take the place of the first."""
    with pytest.raises(BatchOutputError, match="more than once"):
        written(tmp_path / "table.csv", [batch])


class Doubles(Trainer[nn.Module, list[Tensor]]):
    """Predicts twice the input."""

    @override
    def predict_batch(self, batch: list[Tensor]) -> dict[str, Tensor]:
        return {"doubled": 2 * batch[0]}


IDS = {"names": [f"{number}.png" for number in range(7)], "numbers": torch.arange(7) * 10, "positions": range(7)}


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
def test_ids_are_beside_the_predictions_of_their_samples(ids: Any, suffix: str, shared_tmp_path: Path) -> None:
    """Names, numbers or positions are a first column, on any number of processes."""
    data = TensorDataset(torch.arange(7))
    path = Doubles(nn.Identity(), None, None, callbacks=[]).predict(
        data, 2, write=shared_tmp_path / f"doubled.{suffix}", samples_per_piece=2, ids=ids
    )
    expected = ids.tolist() if isinstance(ids, Tensor) else list(ids)
    if suffix == "parquet":
        rows = [tuple(row.values()) for row in pyarrow.parquet.read_table(path).to_pylist()]
    elif suffix == "jsonl":
        rows = [tuple(json.loads(line).values()) for line in path.read_text().splitlines()]
    else:
        rows = [
            tuple(type(expected[0])(one) if at == 0 else int(one) for at, one in enumerate(line.split(",")))
            for line in path.read_text().splitlines()[1:]
        ]
    assert rows == [(name, 2 * number) for number, name in enumerate(expected)]


def test_ids_that_do_not_fit_are_refused_before_anything_is_predicted(tmp_path: Path) -> None:
    """Too few of them, a single string, ids for a function or without a file, or a prediction of the same name."""
    data, trainer = TensorDataset(torch.arange(7)), Doubles(nn.Identity(), None, None, callbacks=[])
    for ids in ([1, 2], "abcdefg", torch.zeros(7, 1)):
        with pytest.raises(ConfigurationError) as refused:
            trainer.predict(data, write=tmp_path / "doubled.csv", ids=ids)
        assert_explained(refused.value, "7 samples")
    with pytest.raises(ConfigurationError, match="positions"):
        trainer.predict(data, write=lambda predictions, positions: None, ids=range(7))
    with pytest.raises(ConfigurationError, match="ids must be left out"):
        trainer.predict(data, ids=torch.arange(7))
    with pytest.raises(BatchOutputError, match="more than once"):
        written(tmp_path / "named.csv", [{"id": [1]}], ids=[5])


def test_pieces_of_other_ids_are_refused(tmp_path: Path) -> None:
    """A file has the ids of one call."""
    path = tmp_path / "ids.jsonl"
    for names in ("abc", "abd"):
        with closing(ResumableWriter(path, 3, 1, ids=list(names))) as writer:
            if names == "abd":
                with pytest.raises(CheckpointError, match="ids"):
                    writer.open({})
                break
            writer.open({})
            writer.write(writer.missing[0], [(range(1), [1])])
