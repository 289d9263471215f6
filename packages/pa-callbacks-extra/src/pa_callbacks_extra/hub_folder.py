"""Writes the files for the Hugging Face Hub: the weights, a model card and the settings."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from pa_callbacks_extra.experiment_trackers import flatten_config
from pa_core import AnyTrainer, InMemoryRunHistory, RanksDifferError

MARKS = ("<!-- pa: begin. The next push replaces the text from here to the mark at the end. -->", "<!-- pa: end -->")
"""What the generated part of a model card begins and ends with."""
_HEADER = """---
tags:
- pytorch
- pa-core
---
"""
_TO_LOAD_A_FILE = """from huggingface_hub import hf_hub_download
from safetensors.torch import load_model

load_model(model, hf_hub_download("{repo_id}", "model.safetensors"))"""
_TO_LOAD_TRAINED = """from huggingface_hub import hf_hub_download
from safetensors.torch import load_file

model.load_state_dict(load_file(hf_hub_download("{repo_id}", "model.safetensors")), strict=False)"""
_TO_LOAD_FILES = """from huggingface_hub import load_torch_model, snapshot_download

load_torch_model(model, snapshot_download("{repo_id}"))"""


@dataclass(frozen=True)
class Content:
    """What a folder for the Hub contains.

    Attributes:
        repo_id: The repository.
        config: Settings in addition to the settings of the run.
        add_files: A function that is called with the folder, and writes more files; None for none.
        trainable_only: Whether frozen parameters are left out.
    """

    repo_id: str
    config: Mapping[str, object]
    add_files: Callable[[Path], object] | None
    trainable_only: bool


@dataclass(frozen=True)
class Moment:
    """The moment in a run from which the weights are.

    Attributes:
        epoch: The last epoch of the metrics that belong to the weights.
        name: The moment, for example "from epoch 3".
        description: The reason to push the weights of this moment.
    """

    epoch: int
    name: str
    description: str


def write_folder(trainer: AnyTrainer, folder: Path, content: Content, moment: Moment, fingerprint: str | None) -> None:
    """Write a folder; every process has to call this, and the first process writes.

    The folder gets its name when it is complete.

    Args:
        trainer: The trainer with the weights.
        folder: The folder, which is replaced if it exists.
        content: What to write.
        moment: The moment from which the weights are.
        fingerprint: The digest of the results of the run; None if it has not ended.

    Raises:
        OSError: The first process cannot write.
    """
    incomplete = folder.with_name(f".{folder.name}")
    if trainer.is_main_process:
        shutil.rmtree(incomplete, ignore_errors=True)
        incomplete.mkdir(parents=True)
    trainer.save_model(incomplete, trainable_only=content.trainable_only)
    if trainer.is_main_process:
        settings = flatten_config({**_settings_of_run(trainer), **content.config})
        (incomplete / "settings.json").write_text(json.dumps(settings, indent=2) + "\n", "utf-8")
        (incomplete / "README.md").write_text(
            _card(trainer, incomplete, content, moment, fingerprint, settings), "utf-8"
        )
        if content.add_files is not None:
            content.add_files(incomplete)
        shutil.rmtree(folder, ignore_errors=True)
        incomplete.rename(folder)


def fingerprint_of(trainer: AnyTrainer) -> str | None:
    """Return the digest of the results of a run, or None if the processes have different results."""
    try:
        return trainer.fingerprint()
    except RanksDifferError:
        return None


def _settings_of_run(trainer: AnyTrainer) -> dict[str, Any]:
    """Return the settings, except which process has written them."""
    return {name: value for name, value in trainer.run_config.to_dict().items() if not name.endswith("process_zero")}


def _card(
    trainer: AnyTrainer,
    folder: Path,
    content: Content,
    moment: Moment,
    fingerprint: str | None,
    settings: Mapping[str, object],
) -> str:
    model = trainer.get_model(keep_torch_compile=False)
    weights = "trained weights, without frozen weights," if content.trainable_only else "weights"
    described = f"a `{type(model).__name__}` with {_count(model):,} parameters"
    begin, end = MARKS
    parts = [
        begin,
        f"# {content.repo_id.rpartition('/')[2]}",
        f"The {weights} of {described}, {moment.name}: {moment.description}.",
        "## Load the weights",
        "`model` is the module that was trained, in a program with its code:",
        f"```python\n{_code(folder, content)}\n```",
        "## Metrics",
        _table("metric", _metrics(trainer, moment.epoch)),
        "## Settings",
        "`settings.json` has them too.",
        _table("setting", settings),
    ]
    if fingerprint is not None:
        parts.append(f"Fingerprint of the run (`trainer.fingerprint()`): `{fingerprint}`")
    return _HEADER + "\n\n".join([*parts, end]) + "\n"


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _code(folder: Path, content: Content) -> str:
    if len([*folder.glob("model*.safetensors")]) > 1:
        template = _TO_LOAD_FILES
    else:
        template = _TO_LOAD_TRAINED if content.trainable_only else _TO_LOAD_A_FILE
    return template.format(repo_id=content.repo_id)


def _metrics(trainer: AnyTrainer, epoch: int) -> dict[str, float]:
    """Return the last value of each metric until the end of an epoch."""
    history: object = trainer.run_history
    if not isinstance(history, InMemoryRunHistory):
        return {}
    return {record.metric: record.value for record in history.records() if record.epoch <= epoch}


def _table(name: str, values: Mapping[str, Any]) -> str:
    rows = [f"| {key} | {_cell(value)} |" for key, value in values.items()]
    return "\n".join([f"| {name} | value |", "|---|---|", *rows])


def _cell(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
