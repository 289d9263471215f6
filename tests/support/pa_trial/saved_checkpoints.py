"""Checkpoints of trials as another version, or another training, would have written them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from pa_checkpoint import Folder

__all__ = ["changed_trial_state"]


def changed_trial_state(checkpoint: Path, **entries: Any) -> Path:
    """Write a checkpoint beside another one that says something else of where its training stood."""
    name = f"changed-{checkpoint.name}"
    with Folder(checkpoint.parent).writing(name, summary={}) as staging:
        for path in checkpoint.iterdir():
            if path.name != "manifest.json":
                shutil.copy(path, staging)
        state = json.loads((checkpoint / "trial_state.json").read_text())
        (staging / "trial_state.json").write_text(json.dumps({**state, **entries}))
    return checkpoint.with_name(name)
