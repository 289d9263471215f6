"""Checkpoints of trials as other versions would have written them, or another training."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from pa_checkpoint import Folder

__all__ = ["as_of_earlier_version", "changed_trial_state"]


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


def as_of_earlier_version(checkpoint: Path) -> Path:
    """Let a checkpoint be as it was written when its digests were in its metadata."""
    path = checkpoint / "trial_state.json"
    state = json.loads(path.read_text())
    metadata = json.loads((checkpoint / "metadata.json").read_text())
    ((fit, _),) = state.pop("calls").items()
    metadata |= {name: state.pop(name) for name in ("format_version", "num_processes")}
    state["last_val"] = state.pop("last_validation")
    for name in ("initial_batch", "batch_idx", "last_checkpoint"):
        del state[name]
    path.write_text(json.dumps(state))
    (checkpoint / "manifest.json").unlink()
    files = {}
    for name in ("state_dict.pth", "trial_state.json", "load_data.json"):
        content = (checkpoint / name).read_bytes()
        files[name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    metadata |= {"saved_at": path.stat().st_mtime, "fit": fit, "ancestors": [], "files": files}
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode()).hexdigest()
    (checkpoint / "metadata.json").write_text(json.dumps({**metadata, "digest": digest}, indent=1))
    return checkpoint
