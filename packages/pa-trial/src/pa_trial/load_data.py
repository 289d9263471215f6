"""The description from which a trial is made again: its class, by name, and its configuration."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from pa_trial.progress import TrialProgress
from pa_trial.user_warnings import warn_user


def describe_trial(
    trial_class: type[Any], hparams: Mapping[str, Any] | None, exp_conf: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the stored description of a trial; a warning names the entries that JSON cannot hold.

    Args:
        trial_class: Its class.
        hparams: Its hyperparameters.
        exp_conf: Its experiment configuration.
    """
    left_out: list[str] = []
    document = {
        "trial_type": "PyTorchTrial",
        "experiment_config": _storable("exp_conf", exp_conf, left_out),
        "hparams": _storable("hparams", hparams, left_out),
        "trial_cls_spec": name_of_class(trial_class),
        "is_trainer": True,
    }
    if left_out:
        warn_user(
            f"{', '.join(left_out)} cannot be written as JSON and will not be in the checkpoints: "
            "load_trial_from_checkpoint_path will make the trial without it."
        )
    return document


def describe_checkpoint(progress: TrialProgress) -> dict[str, Any]:
    """Return the metadata of a checkpoint in Determined's form.

    Args:
        progress: The counters of the training.
    """
    try:
        own_version = version("pa-trial")
    except PackageNotFoundError:
        own_version = "unknown"
    return {
        "pa_trial_version": own_version,
        "framework": f"torch-{torch.__version__}",
        "format": "pickle",  # Determined's name for the format of torch.save
        "steps_completed": progress.batches_trained,
    }


def name_of_class(trial_class: type[Any]) -> str:
    """Return the name by which a class can be imported, in the form ``module:name``.

    Args:
        trial_class: The class; for a module that ``python -m`` runs, the name of that module is used.
    """
    module = trial_class.__module__
    if module == "__main__":
        spec = getattr(sys.modules[module], "__spec__", None)
        module = getattr(spec, "name", module)
    return f"{module}:{trial_class.__qualname__}"


def _storable(of: str, entries: Mapping[str, Any] | None, left_out: list[str]) -> dict[str, Any] | None:
    if entries is None:
        return None
    stored: dict[str, Any] = {}
    for name, value in entries.items():
        try:
            stored[name] = json.loads(json.dumps(value, default=_plain))
        except (TypeError, ValueError, RecursionError):
            left_out.append(f"{of}[{name!r}]")
    return stored


def _plain(value: object) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return cast("Any", value).tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError
