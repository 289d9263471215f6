"""Tar archives whose files are samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from pa_data.errors import ShardError
from pa_data.files import ShardedFiles, TarSample, TarSamples
from tests.support.shards import write_tar


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "tgz"])
def test_files_of_one_name_are_a_sample(tmp_path: Path, ending: str) -> None:
    """Samples are what WebDataset takes for one: the name ends at the first dot, and the rest tells files apart."""
    long = "folder/" * 30 + "x"
    members = {
        "a/1.jpg": b"picture",
        "a/1.seg.png": b"mask",
        ".hidden": b"",
        "b.c/1.jpg": b"",
        "plain": b"no ending",
        f"{long}.txt": b"x" * 5000,
    }
    data = ShardedFiles(write_tar(tmp_path / f"a.{ending}", members), TarSamples())
    assert [data[index] for index in (3, 2, 1, 0)] == [
        TarSample(long, {"txt": b"x" * 5000}),
        TarSample("plain", {"": b"no ending"}),
        TarSample("b.c/1", {"jpg": b""}),
        TarSample("a/1", {"jpg": b"picture", "seg.png": b"mask"}),
    ]


def test_archives_that_cannot_be_divided_into_samples_are_refused(tmp_path: Path) -> None:
    """Files of one sample that are apart, and a file that comes twice, would make other samples: errors name them."""
    apart = [("1.jpg", b""), ("2.jpg", b""), ("1.cls", b"")]
    with pytest.raises(ShardError, match=r"apart.tar: 1.cls, and other files between"):
        ShardedFiles(write_tar(tmp_path / "apart.tar", apart), TarSamples())
    twice = [("1.jpg", b""), ("1.jpg", b"")]
    with pytest.raises(ShardError, match=r"twice.tar: 1.jpg twice"):
        ShardedFiles(write_tar(tmp_path / "twice.tar", twice), TarSamples())


@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
def test_an_archive_that_was_cut_off_is_an_error(tmp_path: Path, ending: str) -> None:
    """Archives that end within a file, and files that are no archive, say so with their name."""
    path = write_tar(tmp_path / f"a.{ending}", {f"{key}.bin": bytes(range(256)) * 40 for key in range(3)})
    path.write_bytes(path.read_bytes()[: 12_000 if ending == "tar" else -30])
    with pytest.raises(ShardError, match=rf"(cannot be read|ends too early)(.|\n)*a.{ending}"):
        ShardedFiles(path, TarSamples())
    path.write_bytes(b"no archive" * 100)
    with pytest.raises(ShardError, match=rf"a.{ending}"):
        ShardedFiles(path, TarSamples())


@pytest.mark.parametrize("size", [5 * 1024, 5 * 1024 + 100], ids=["between two files", "within a header"])
def test_an_archive_without_its_end_is_an_error(tmp_path: Path, size: int) -> None:
    """Cut off between two files or in a header, it would otherwise pass for one with fewer samples."""
    path = write_tar(tmp_path / "a.tar", {f"{key}.bin": b"1" for key in range(10)})
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ShardError, match=r"a.tar: .* before the end"):
        ShardedFiles(path, TarSamples())


def test_a_damaged_header_is_an_error(tmp_path: Path) -> None:
    """It does not end the archive, which would leave out the samples that follow."""
    path = write_tar(tmp_path / "a.tar", {f"{key}.bin": b"1" for key in range(10)})
    content = bytearray(path.read_bytes())
    content[5 * 1024] ^= 1
    path.write_bytes(content)
    with pytest.raises(ShardError, match=r"a.tar: .* before the end"):
        ShardedFiles(path, TarSamples())
