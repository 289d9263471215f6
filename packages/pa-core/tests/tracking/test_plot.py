"""The picture of a run's metrics."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from pa_core.errors import ConfigurationError, MetricNotFoundError
from pa_core.tracking import InMemoryRunHistory
from pa_core.tracking.plot import PlotAxis, plot_run_history
from pa_core.tracking.plot_style import DARK, LIGHT, PlotStyle
from tests.launching import Launch
from tests.support.histories import DocumentedHistory

BLUE, ORANGE = (0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)


@pytest.fixture
def history() -> InMemoryRunHistory:
    """Three epochs of a thousand updates, with losses on both datasets, an average model and an accuracy."""
    history = InMemoryRunHistory()
    for epoch in (1, 2, 3):
        history.clock.epoch, history.clock.update, history.clock.samples = epoch, 1000 * epoch, 64_000 * epoch
        history.update_metric("train_loss_epoch", 1 / epoch)
        history.update_metric("eval_loss_epoch", 1.2 / epoch)
        history.update_metric("ema_model_eval_loss_epoch", 1.1 / epoch)
        history.update_metric("accuracy", 1 - 0.5 / epoch)
    return history


def _texts(picture: Path) -> list[str]:
    """Return every text in an SVG: matplotlib writes each as a comment before its outlines."""
    return re.findall(r"<!-- (.*?) -->", picture.read_text())


def _columns_of(picture: Path, colour: tuple[int, int, int]) -> Any:
    """Return, for each column of pixels, how many have the colour."""
    pixels: Any = imread(picture)
    return (np.abs(pixels[..., :3] * 255 - colour).max(axis=-1) < 2).sum(axis=0)


def _has_colour(picture: Path, colour: tuple[int, int, int]) -> bool:
    return bool(_columns_of(picture, colour).any())


def test_a_png_is_saved_with_a_panel_for_each_quantity(tmp_path: Path, history: InMemoryRunHistory) -> None:
    """Training and evaluation share a panel, each in its colour; folders are made."""
    picture = plot_run_history(history, tmp_path / "figures" / "run.png")

    assert picture.read_bytes().startswith(b"\x89PNG")
    assert _has_colour(picture, BLUE)
    assert _has_colour(picture, ORANGE)
    height, width = imread(picture).shape[:2]
    assert width > 2 * height


def test_panels_and_curves_are_named(tmp_path: Path, history: InMemoryRunHistory) -> None:
    """A panel has the name of its quantity, and its curves say what they were measured on."""
    texts = _texts(plot_run_history(history, tmp_path / "run.svg"))

    assert texts.count("loss") == 1
    assert texts.count("accuracy") == 1
    assert {"train", "eval", "ema model eval"} <= set(texts)
    assert texts.count("epoch") == 2


def test_evaluation_sets_share_the_panels_of_their_quantities(tmp_path: Path) -> None:
    """Whatever words their names have; a logged mean of a single dataset whose name ends in "loss" is no set."""
    history = InMemoryRunHistory()
    for metric in ("train_loss_epoch", "eval_val_loss_epoch", "ema_model_eval_val_loss_epoch"):
        history.update_metric(metric, 1.0)
    for metric in ("eval_test_ood_loss_epoch", "eval_val_accuracy", "eval_test_ood_accuracy"):
        history.update_metric(metric, 0.5)
    texts = _texts(plot_run_history(history, tmp_path / "sets.svg"))
    assert (texts.count("loss"), texts.count("accuracy")) == (1, 1)
    assert {"train", "eval val", "eval test ood", "ema model eval val"} <= set(texts)

    single = InMemoryRunHistory()
    for metric in ("eval_loss_epoch", "eval_aux_loss_epoch"):
        single.update_metric(metric, 1.0)
    assert "eval aux loss" in _texts(plot_run_history(single, tmp_path / "single.svg"))


def test_only_the_given_metrics_are_drawn(tmp_path: Path, history: InMemoryRunHistory) -> None:
    """Names choose the curves; one name may be given by itself."""
    for metrics in (["eval_loss_epoch"], "eval_loss_epoch"):
        picture = plot_run_history(history, tmp_path / "run.png", metrics)
        assert _has_colour(picture, ORANGE)
        assert not _has_colour(picture, BLUE)

        texts = _texts(plot_run_history(history, tmp_path / "run.svg", metrics))
        assert "eval loss" in texts
        assert "accuracy" not in texts


_LABELS: list[tuple[PlotAxis, str, str]] = [
    ("epoch", "epoch", "3"),
    ("update", "optimizer updates", "2k"),
    ("samples", "training samples", "150k"),
    ("seconds", "seconds since the start", ""),
]


@pytest.mark.parametrize(("x", "label", "tick"), _LABELS)
def test_metrics_are_drawn_over_any_unit_of_the_clock(
    tmp_path: Path, history: InMemoryRunHistory, x: PlotAxis, label: str, tick: str
) -> None:
    """Epochs, updates, samples and seconds are axes to choose from, and the axis says which it is."""
    texts = _texts(plot_run_history(history, tmp_path / "run.svg", x=x))

    assert label in texts
    assert not tick or tick in texts


def test_many_values_of_an_epoch_are_spread_over_it(tmp_path: Path) -> None:
    """What is recorded at each step is a curve over epochs, not a vertical line at each."""
    history = InMemoryRunHistory()
    for update in range(200):
        history.clock.epoch = 1 + update // 100
        history.update_metric("train_loss", float(update))

    columns = _columns_of(plot_run_history(history, tmp_path / "run.png"), BLUE)

    assert columns.max() < 20


@pytest.mark.parametrize("values", [[1.0], [float("nan")], [1.0, float("nan"), float("inf"), 2.0]])
def test_runs_that_went_wrong_are_drawn_too(tmp_path: Path, values: list[float]) -> None:
    """A single value, or one that is not finite, is no reason to fail or to warn."""
    history = InMemoryRunHistory()
    for value in values * 400:
        history.update_metric("train_loss_step", value)
    history.update_metric("accuracy", values[0])

    for x in ("epoch", "update"):
        assert plot_run_history(history, tmp_path / "run.png", x=x).exists()


def test_matplotlib_is_left_as_it_was(launch: Launch, history: InMemoryRunHistory) -> None:
    """Drawing imports no pyplot and changes neither the backend nor the settings."""
    script = (
        "import sys, json\n"
        "import matplotlib\n"
        "from pa_core.tracking.plot import plot_run_history\n"
        "from pa_core.tracking import InMemoryRunHistory\n"
        "history = InMemoryRunHistory()\n"
        "history.load_state_dict(json.loads(sys.argv[2]))\n"
        "def settings():\n"
        "    return {name: matplotlib.rcParams[name] for name in matplotlib.rcParams if name != 'backend'}\n"
        "before = settings()\n"
        "plot_run_history(history, sys.argv[1])\n"
        "assert 'matplotlib.pyplot' not in sys.modules  # which would choose a backend\n"
        "assert settings() == before\n"
    )
    assert launch(script, "run.png", json.dumps(history.state_dict())).status == 0


def test_importing_does_not_need_matplotlib(launch: Launch) -> None:
    """Without matplotlib everything else works, and drawing says what to install."""
    script = (
        "import sys\n"
        "import pa_core.tracking.plot\n"
        "assert 'matplotlib' not in sys.modules\n"
        "sys.modules['matplotlib'] = None\n"
        "from pa_core.tracking import InMemoryRunHistory\n"
        "history = InMemoryRunHistory()\n"
        "history.update_metric('loss', 1.0)\n"
        "pa_core.tracking.plot.plot_run_history(history, sys.argv[1])\n"
    )
    ran = launch(script, "run.png")

    assert ran.output.splitlines()[-1] == (
        'ImportError: Drawing a run history needs matplotlib. Install it with: pip install "pa-core[plot]"'
    )
    assert not list(launch.folder.glob("*.png"))


def test_what_cannot_be_drawn_is_refused(tmp_path: Path, history: InMemoryRunHistory) -> None:
    """A wrong axis, a wrong name, an empty history and one without moments are errors that help."""
    path = tmp_path / "run.png"
    with pytest.raises(ConfigurationError, match="'epoch', 'update', 'samples', 'seconds', got 'step'"):
        plot_run_history(history, path, x="step")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # the mistake
    with pytest.raises(MetricNotFoundError, match="train_loss_epoch, eval_loss_epoch"):
        plot_run_history(history, path, ["loss"])
    with pytest.raises(ConfigurationError, match="metrics=\\[\\]"):
        plot_run_history(history, path, [])
    with pytest.raises(ConfigurationError, match="No values to draw"):
        plot_run_history(InMemoryRunHistory(), path)
    with pytest.raises(ConfigurationError, match="A DocumentedHistory cannot be drawn"):
        plot_run_history(DocumentedHistory(), path)

    assert not list(tmp_path.iterdir())


def test_a_picture_that_cannot_be_drawn_leaves_the_old_one(tmp_path: Path, history: InMemoryRunHistory) -> None:
    """An ending that matplotlib does not know is refused, and a file of that name stays."""
    path = tmp_path / "run.xyz"
    path.write_bytes(b"old")

    with pytest.raises(ValueError, match="xyz"):
        plot_run_history(history, path)

    assert path.read_bytes() == b"old"


def test_a_dark_picture_has_a_dark_ground_and_light_text(tmp_path: Path, history: InMemoryRunHistory) -> None:
    """It can be read on a dark page, and its curves differ from each other as on a light one."""
    light, dark = (plot_run_history(history, tmp_path / f"{is_dark}.png", dark=is_dark) for is_dark in (False, True))

    assert imread(light)[0, 0, :3].min() > 0.95
    assert imread(dark)[0, 0, :3].max() < 0.1
    assert _has_colour(dark, (0xFF, 0xFF, 0xFF))  # the titles
    assert not _has_colour(dark, (0, 0, 0))
    assert _has_colour(dark, (0x56, 0xB4, 0xE9))
    assert _has_colour(dark, (0xE6, 0x9F, 0x00))


@pytest.mark.parametrize("style", [LIGHT, DARK], ids=["light", "dark"])
def test_text_and_curves_stand_out_from_the_ground(style: PlotStyle) -> None:
    """By the contrasts of the accessibility guidelines (WCAG 2.2): 4.5 for text, 3 for curves."""
    assert min(_contrast(text, style.ground) for text in (style.text, style.faint_text)) >= 4.5
    assert min(_contrast(colour, style.ground) for colour in style.curves[:4]) >= 3
    assert len(set(style.curves)) == len(style.curves)


def _contrast(first: str, second: str) -> float:
    low, high = sorted(map(_luminance, (first, second)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
