"""The writer alone, in a loop by hand: what was interrupted is completed, and shared by processes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

from pa_core import CheckpointError, ConfigurationError, Trainer, gather_objects
from pa_core.predictions import ResumableWriter

IDENTITY = {"weights": "those of Monday"}


def squares(path: Path, *, most: int, identity: dict[str, str] = IDENTITY) -> list[range]:
    """Write some of the missing pieces of the squares of ten numbers, and finish if these were all."""
    with closing(ResumableWriter(path, num_samples=10, batch_size=2, samples_per_piece=3)) as writer:
        writer.open(identity)
        for piece in writer.missing[:most]:
            writer.write(piece, ((batch, [one**2 for one in batch]) for batch in writer.batches(piece)))
        if most >= len(writer.missing):
            writer.finish()
        return list(writer.missing)


def test_a_loop_by_hand_completes_what_another_has_begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pieces have whole batches; those that are there are not asked for again, and gone at the end."""
    path = tmp_path / "squares.csv"
    assert squares(path, most=2) == [range(0, 4), range(4, 8), range(8, 10)]
    assert squares(path, most=3) == [range(8, 10)]
    assert "2 of 3 pieces of the predictions are in" in capsys.readouterr().out
    assert path.read_text().split() == ["prediction", *(str(one**2) for one in range(10))]
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_not_complete_is_no_file(tmp_path: Path) -> None:
    """Finishing without a piece is an error that names its samples."""
    path = tmp_path / "squares.jsonl"
    squares(path, most=1)
    with closing(ResumableWriter(path, num_samples=10, batch_size=2, samples_per_piece=3)) as writer:
        writer.open(IDENTITY)
        with pytest.raises(CheckpointError, match=r"0+4-0+8\.jsonl"):
            writer.finish()
    assert not path.exists()


def test_a_writer_knows_its_file_before_it_is_open(tmp_path: Path) -> None:
    """And which pieces are missing only then."""
    writer = ResumableWriter(tmp_path / "squares.csv", num_samples=10, batch_size=2)
    assert writer.path == tmp_path / "squares.csv"
    assert writer.missing == []


@pytest.mark.runs_on("two_ranks")
def test_processes_that_do_not_share_a_disk_are_told_so(tmp_path: Path) -> None:
    """All of them, before anything is predicted."""
    assert len(set(gather_objects(tmp_path))) == 2
    trainer = Trainer(torch.nn.Identity(), None, None, callbacks=[])
    with pytest.raises(ConfigurationError, match="do not share"):
        trainer.predict(TensorDataset(torch.arange(9.0)), 2, write=tmp_path / "p.csv")


def test_a_forged_identity_lets_no_piece_of_others_in(tmp_path: Path) -> None:
    """What the document says is not enough: the digest of each piece knows what it is a prediction of."""
    path = tmp_path / "squares.csv"
    squares(path, most=1, identity={"weights": "those of Tuesday"})
    (identity,) = tmp_path.glob("*.pieces/identity.json")
    identity.write_text(identity.read_text().replace("Tuesday", "Monday"))
    with pytest.raises(CheckpointError, match=r"0+-0+4\.csv.*Remove it"):
        squares(path, most=3)
    assert not path.exists()


def test_pieces_of_another_identity_are_refused(tmp_path: Path) -> None:
    """The error names what differs."""
    squares(tmp_path / "squares.csv", most=1)
    with pytest.raises(CheckpointError, match="weights: those of Monday, now those of Tuesday"):
        squares(tmp_path / "squares.csv", most=1, identity={"weights": "those of Tuesday"})


def test_what_is_no_file_is_not_removed_either(tmp_path: Path) -> None:
    """A folder with the name of a piece is named, even where other pieces are removed, before anything is written."""
    path = tmp_path / "squares.csv"
    squares(path, most=1)
    (piece,) = tmp_path.glob("*.pieces/0*")
    piece.unlink()
    piece.mkdir()
    writer = ResumableWriter(path, 10, 2, samples_per_piece=3, other_pieces="remove")
    with closing(writer), pytest.raises(CheckpointError, match=rf"{piece.name}.*Remove it"):
        writer.open({"weights": "those of Tuesday"})
    assert piece.is_dir()
