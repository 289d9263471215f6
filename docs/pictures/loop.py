"""The loop of a run: the methods of the trainer that it calls, and the events between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from pa_core.tracking.plot_style import DARK, LIGHT, PlotStyle

__all__ = ["draw"]


@dataclass(frozen=True)
class Row:
    """What happens at one moment: the trainer calls a method of its own, then an event of the callbacks."""

    method: str = ""
    event: str = ""
    remark: str = ""


@dataclass(frozen=True)
class Box:
    """What happens again and again."""

    label: str
    content: tuple[Row | Box, ...]


LOOP = Box(
    "train()",
    (
        Row(event="on_prepare_start"),
        Row(remark="places and wraps the model, makes loaders and scheduler"),
        Row("training_run_start", "on_training_run_start"),
        Box(
            "each epoch",
            (
                Row("train_epoch_start", "on_train_epoch_start"),
                Box(
                    "each batch",
                    (
                        Row(event="on_train_step_start"),
                        Row("calculate_train_batch_loss", "on_train_step_end"),
                        Row("backward_step"),
                        Box(
                            "each update, after gradient_accumulation_steps batches",
                            (
                                Row("optimizer_step"),
                                Row("scheduler_step"),
                                Row("optimizer_zero_grad", "on_optimizer_step_end"),
                            ),
                        ),
                    ),
                ),
                Row("train_epoch_end", "on_train_epoch_end", "train_loss_epoch is recorded"),
                Row("eval_epoch_start", "on_eval_epoch_start"),
                Box(
                    "each batch",
                    (
                        Row(event="on_eval_step_start"),
                        Row("calculate_eval_batch_loss", "on_eval_step_end"),
                    ),
                ),
                Row("eval_epoch_end", "on_eval_epoch_end", "eval_loss_epoch is recorded"),
                Row("training_run_epoch_end", "on_training_run_epoch_end"),
            ),
        ),
        Row("training_run_end", "on_training_run_end"),
    ),
)

WIDTH, EVENTS_AT, ROW, GAP, INDENT, TOP = 680, 440, 25, 7, 16, 40
CODE = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
WORDS = "system-ui, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif"


def draw(light: Path, dark: Path) -> None:
    """Draw the loop in both styles."""
    for path, style in ((light, LIGHT), (dark, DARK)):
        path.write_text(svg(style))


def svg(style: PlotStyle) -> str:
    """The whole picture."""
    height = TOP + height_of(LOOP) + 8
    header = TOP - 14
    elements = [
        f'<rect width="{WIDTH}" height="{height}" fill="{style.ground}"/>',
        text(28, header, "methods of the trainer", style.text, "heading"),
        text(EVENTS_AT, header, "events of the callbacks", style.curves[0], "heading"),
        *draw_box(LOOP, 8, TOP, style),
    ]
    styles = (
        f".code {{ font: 13px {CODE} }} .words {{ font: italic 12.5px {WORDS} }}"
        f" .label {{ font: 600 12.5px {WORDS} }} .heading {{ font: 600 14px {WORDS} }}"
    )
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
    )
    return "\n".join([opening, f"<style>{styles}</style>", *elements, "</svg>\n"])


def height_of(part: Row | Box) -> int:
    """How much room a part needs, with the gap below it."""
    return ROW if isinstance(part, Row) else ROW + sum(map(height_of, part.content)) + 2 * GAP


def draw_box(box: Box, left: int, top: int, style: PlotStyle) -> Iterator[str]:
    """The frame of what is repeated, its label, and what is in it."""
    height = height_of(box) - GAP
    yield (
        f'<rect x="{left}" y="{top}" width="{WIDTH - 2 * left}" height="{height}" rx="7"'
        f' fill="{style.text}" fill-opacity="0.018" stroke="{style.faint_text}" stroke-opacity="0.45"/>'
    )
    yield text(left + 12, top + 17, box.label, style.faint_text, "label")
    middle = top + ROW
    for part in box.content:
        if isinstance(part, Row):
            yield from draw_row(part, left + 2 * INDENT, middle + 17, style)
        else:
            yield from draw_box(part, left + INDENT, middle + 2, style)
        middle += height_of(part)


def draw_row(row: Row, left: int, line: int, style: PlotStyle) -> Iterator[str]:
    """A method, a remark on it, and the event that follows."""
    if row.method:
        yield text(left, line, row.method, style.text, "code")
    if row.remark:
        yield text(left + 8 * len(row.method) + 10 * bool(row.method), line, row.remark, style.faint_text, "words")
    if row.event:
        if row.method:
            start = left + 8 * len(row.method) + 10 + 7 * len(row.remark)
            yield (
                f'<line x1="{start}" x2="{EVENTS_AT - 8}" y1="{line - 4}" y2="{line - 4}"'
                f' stroke="{style.faint_text}" stroke-opacity="0.6" stroke-dasharray="1 4"/>'
            )
        yield text(EVENTS_AT, line, row.event, style.curves[0], "code")


def text(left: int, line: int, words: str, colour: str, kind: str) -> str:
    """Some words, on a line."""
    return f'<text class="{kind}" x="{left}" y="{line}" fill="{colour}">{escape(words)}</text>'
