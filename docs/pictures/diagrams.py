"""Which samples are where, asked of what decides it in a run."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch leaves the type of `tolist` open)

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.utils.data import RandomSampler

from docs.pictures.drawing import Picture
from pa_data import UpdateSplit
from pa_data.files import ShardOrder
from pa_data.orders import LengthGrouped

KINDS = ("one", "two", "three", "four")
"""The colours of processes and of files."""


def draw_update(picture: Picture) -> None:
    """An update of three processes with two batches of eight samples each, and a short one."""
    y = 18
    for samples, title in ((48, "An update: 3 processes x 2 batches x 8 samples"), (20, "The last one of an epoch")):
        split = UpdateSplit(samples, 48, 8, 3)
        picture.text(8, y, title, "bold")
        end = y + 20 + 60 * len(split)
        for rank, kind in enumerate(KINDS[:3]):
            x = 62 + 118 * rank
            picture.text(x, y + 22, f"process {rank}", "middle")
            for step in range(len(split)):
                piece, top = split.piece(step, rank), y + 32 + 60 * step
                picture.box(x - 54, top, 108, 46, kind)
                picture.text(x, top + 18, f"samples {piece[0]} to {piece[-1]}", "middle")
                for place in range(len(piece)):
                    picture.box(x - 48 + 12 * place, top + 28, 10, 10, f"{kind} solid")
            picture.line((x, end), (x, end + 20), tip=True)
        picture.box(8, end + 20, 344, 42, "faint", f"gradient of the mean loss of {samples} samples", "optimizer step")
        y = end + 92
    picture.text(8, y - 12, "Each process goes down its column. Gradients are", "faint")
    picture.text(8, y + 4, "exchanged once, in the last backward pass.", "faint")


def draw_shares(picture: Picture) -> None:
    """The same updates of sixteen samples on one, two and four processes."""
    y = 18
    for num_processes in (1, 2, 4):
        for rank, kind in enumerate(KINDS[:num_processes]):
            picture.box(96 + 64 * rank, y - 10, 12, 12, kind)
            picture.text(112 + 64 * rank, y, f"rank {rank}")
        split = UpdateSplit(38, 16, 8, num_processes)
        pieces = (
            (split.piece(step, rank), kind)
            for step in range(len(split))
            for rank, kind in enumerate(KINDS[:num_processes])
        )
        samples = [(str(sample), kind) for piece, kind in pieces for sample in piece]
        y = add_samples(picture, y, "1 process" if num_processes == 1 else f"{num_processes} processes", samples)
    picture.text(8, y - 8, "Each row is an update: the same samples in the same", "faint")
    picture.text(8, y + 8, "update. The last one has what is left of the epoch.", "faint")


def draw_windows(picture: Picture) -> None:
    """The samples of four files as an epoch reads them."""
    named = [(f"{file}{sample}", kind) for file, kind in zip("abcd", KINDS, strict=True) for sample in range(8)]
    y = add_samples(picture, 18, "4 files of 8 samples", named)
    for window, lanes, block in ((8, 1, 1), (16, 1, 1), (16, 2, 4)):
        title = f"window={window}" if lanes == 1 else f"window={window}, lanes={lanes}, block={block}"
        order = ShardOrder(tuple("abcd"), (8,) * 4, window, lanes, block).epoch_order(32, seed=0, epoch=0)
        y = add_samples(picture, y, title, [named[index] for index in order.indices(0, 32).tolist()])


def add_samples(picture: Picture, y: int, title: str, samples: Iterable[tuple[str, str]]) -> int:
    """Draw samples in rows of sixteen, each with its colour, and return where there is room below them."""
    picture.text(8, y, title, "bold")
    row = 0
    for place, (name, kind) in enumerate(samples):
        row = place // 16
        picture.box(8 + 21.5 * (place % 16), y + 10 + 25 * row, 20, 22, kind, name)
    return y + 60 + 25 * row


def draw_padding(picture: Picture) -> None:
    """Four batches of samples of many lengths, shuffled and grouped."""
    generator = torch.Generator().manual_seed(0)
    lengths = (torch.rand(512, generator=generator) ** 2 * 390).long() + 2
    shuffled = torch.tensor([*RandomSampler(lengths, generator=generator)])
    grouped = LengthGrouped(lengths, group_size=8).epoch_order(512, seed=0, epoch=0).indices(0, 512)
    y = 18
    for title, order in (("Shuffled", shuffled), ("LengthGrouped(lengths, group_size=8)", grouped)):
        batches = lengths[order].view(-1, 8)
        padding = 1 - float(lengths.sum() / (8 * batches.amax(1).sum()))
        picture.text(8, y, title, "bold")
        for batch in batches[:4].tolist():
            for length in batch:
                y += 6
                picture.box(8, y, 0.85 * max(batch), 5, "faint")
                picture.box(8, y, 0.85 * length, 5, "one solid")
            y += 6
        picture.text(8, y + 18, f"{padding:.0%} of what the model computes is padding (grey)")
        y += 48
