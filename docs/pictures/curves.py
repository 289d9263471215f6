"""Curves, as the functions of the pages draw them: drawn when the site is built, and nowhere kept."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# (matplotlib and scikit-learn leave types open)

from __future__ import annotations

import re
import tempfile
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset, random_split

from docs.pictures.drawing import COLOURS, both_colours
from pa_callbacks_extra import ModelEmaCallback
from pa_core import TerminateOnNaNCallback, Trainer, TrainerCallback, plot_run_history
from pa_core.testing import make_classification
from pa_core.tracking.plot_style import DARK, LIGHT
from pa_preflight import plan
from pa_schedulers import CosineLrScheduler, WSDLrScheduler, find_learning_rate, plot_schedule

__all__ = ["CURVES", "svg_of_curve"]

INCHES = (4.0, 2.9)
"""So narrow that a phone shows text of 9 points as 11 pixels."""


def svg_of_curve(name: str) -> str:
    """Draw a curve: as an SVG that is light on light pages, and dark on dark ones."""
    if name not in CURVES:
        raise ValueError(f"There is no curve {name!r}; there are {', '.join(sorted(CURVES))}.")
    save = Figure.savefig

    def save_narrow(figure: Figure, *args: Any, **kwargs: Any) -> None:
        figure.set_size_inches(*INCHES)
        save(figure, *args, **kwargs)

    with tempfile.TemporaryDirectory() as folder, patch.object(Figure, "savefig", save_narrow):
        path = Path(folder, f"{name}.svg")
        with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "font.size": 9}):
            CURVES[name](path)
        svg = path.read_text()
    dark_of = {light.lower(): dark for light, dark in COLOURS.values()} | {LIGHT.grid: DARK.grid}
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)  # when it was drawn
    svg = re.sub(r"(fill|stroke): (#\w{6})", lambda found: both_colours(found[1], found[2], dark_of[found[2]]), svg)
    unsaid = both_colours("fill", *COLOURS["ink"])  # matplotlib leaves black out
    root = f'class="drawing" role="img" width="440" style="{unsaid}"'
    return re.sub(r'width="\S+" height="\S+"', root, svg[svg.index("<svg") :], count=1)


def digits_trainer(lr: float, *callbacks: TrainerCallback) -> tuple[Trainer[Any, Any], Any, Any]:
    """A trainer with the same weights each time, 1,400 scanned digits to train on, and 397 to evaluate on."""
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    digits = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
    data, eval_data = random_split(digits, [1400, 397])
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    return Trainer(model, nn.CrossEntropyLoss(), optimizer, [*callbacks, TerminateOnNaNCallback]), data, eval_data


def draw_history(path: Path) -> None:
    """The losses of a run."""
    trainer, data, eval_data = digits_trainer(0.002)
    trainer.train(data, 12, eval_data, per_device_batch_size=32)
    plot_run_history(trainer.run_history, path)


def draw_average(path: Path) -> None:
    """The evaluation losses of weights that jump, and of their average."""
    trainer, data, eval_data = digits_trainer(0.03, ModelEmaCallback(0.95, save_path=path.with_suffix(".pt")))
    trainer.train(data, 12, eval_data, per_device_batch_size=32)
    plot_run_history(trainer.run_history, path, ["eval_loss_epoch", "ema_model_eval_loss_epoch"])


def draw_learning_rate(path: Path) -> None:
    """A search for a learning rate."""
    trainer, data, _ = digits_trainer(0.002)
    with mpl.rc_context({"axes.titlepad": 22}):  # above the legend
        find_learning_rate(trainer, data, per_device_batch_size=32).plot(path)


def draw_plan(path: Path) -> None:
    """The rates of a plan of six epochs, of which the first warms up."""
    model = nn.Linear(4, 3)
    trainer = Trainer(model, nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters(), lr=0.01), callbacks=[])
    schedule = CosineLrScheduler.create_scheduler_fn(num_warmup_epochs=1)
    planned = plan(trainer, make_classification(320), 6, samples_per_update=32, create_scheduler_fn=schedule)
    planned.plot_rates(path)


def draw_schedule(path: Path) -> None:
    """A schedule with two groups of parameters, as in finetuning: the second learns faster."""
    optimizer = torch.optim.AdamW(nn.Linear(64, 32).parameters(), lr=3e-4)
    optimizer.add_param_group({"params": nn.Linear(32, 10).parameters(), "lr": 1e-3})
    factory = CosineLrScheduler.create_scheduler_fn(num_warmup_epochs=1, num_cooldown_epochs=1, lr_min=1e-5)
    plot_schedule(factory, optimizer, 10, 44, path)


def draw_wsd(path: Path) -> None:
    """A schedule that warms up, stays, and decays before each of three checkpoints."""
    factory = partial(WSDLrScheduler, total_steps=2000, num_warmup_steps=50, num_checkpoints=3, lr_min=1e-5)
    plot_schedule(factory, torch.optim.AdamW(nn.Linear(2, 1).parameters(), lr=1e-3), 10, 200, path)


CURVES = {name.removeprefix("draw_"): draw for name, draw in [*globals().items()] if name.startswith("draw_")}
