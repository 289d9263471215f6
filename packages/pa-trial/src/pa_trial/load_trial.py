"""Rebuilds a trial from one of its checkpoints, to inspect it or to use its models."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from typing_extensions import TypeVar

from pa_trial.checkpoint_files import LOAD_DATA, METADATA, STATE, damaged, read_json
from pa_trial.checkpoint_folder import read_saved
from pa_trial.errors import ConfigurationError, InvalidCheckpointException, NoCheckpointError
from pa_trial.trial import PyTorchTrial
from pa_trial.trial_contents import load_weights
from pa_trial.user_warnings import warn_user

_CODE = "code"
"""The folder into which Determined copied the working directory."""

_TrialT = TypeVar("_TrialT", bound=PyTorchTrial[Any], default=PyTorchTrial[Any])


def load_trial_from_checkpoint_path(
    path: str | os.PathLike[str],
    trial_class: type[_TrialT] | None = None,
    trial_kwargs: dict[str, Any] | None = None,
    torch_load_kwargs: dict[str, Any] | None = None,
    *,
    hparams: dict[str, Any] | None = None,
    trust_pickle: bool = False,
    **kwargs: Any,
) -> _TrialT:
    """Rebuild the trial of a checkpoint with its trained weights, to evaluate or export its models.

    The context of this trial has the hyperparameters and the experiment configuration of the training, but it cannot
    train. Models stay on the device on which the trial creates them, usually the CPU. To continue a training, pass
    ``latest_checkpoint`` to ``Trainer.fit`` instead; to start a new training from the weights, pass ``warm_start``.

    Args:
        path: The folder of the checkpoint, which Determined may have written.
        trial_class: The class of the trial. By default, it is imported under its name in the checkpoint. If there is no
            such module, it is imported from the folder ``code`` of a Determined checkpoint, which runs that code.
        trial_kwargs: The arguments of its constructor in addition to the context; by default none.
        torch_load_kwargs: Arguments of ``torch.load``, such as ``map_location``; by default none.
        hparams: Hyperparameters that replace the saved hyperparameters, for example because Determined did not save
            them. The default, None, uses the saved hyperparameters.
        trust_pickle: Whether objects of any kind are unpickled, which runs any code that the file names. With the
            default, False, only tensors, numbers, strings and NumPy arrays are loaded, and anything else raises an
            error.
        kwargs: Deprecated: pass ``torch_load_kwargs``.

    Returns:
        The trial, an instance of ``trial_class``.

    Raises:
        NoCheckpointError: There is no checkpoint.
        InvalidCheckpointException: The checkpoint is damaged, or its weights belong to different models.
        ConfigurationError: The class cannot be imported under its name, or arguments of ``torch.load`` were passed in
            both ways. The error is also a ``ValueError``.

    Example:
        >>> import tempfile
        >>> import torch
        >>> import pa_trial
        >>> class Zeros(pa_trial.PyTorchTrial[torch.Tensor]):
        ...     def __init__(self, context: pa_trial.PyTorchTrialContext) -> None:
        ...         self.context = context
        ...         self.model = context.wrap_model(torch.nn.Linear(1, 1))
        ...         self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
        ...
        ...     def build_training_data_loader(self) -> pa_trial.DataLoader:
        ...         return pa_trial.DataLoader(torch.ones(4, 1), batch_size=4)
        ...
        ...     build_validation_data_loader = build_training_data_loader
        ...
        ...     def train_batch(self, batch: torch.Tensor, epoch_idx: int, batch_idx: int) -> torch.Tensor:
        ...         loss = self.model(batch).square().mean()
        ...         self.context.backward(loss)
        ...         self.context.step_optimizer(self.optimizer)
        ...         return loss
        ...
        ...     def evaluate_batch(self, batch: torch.Tensor, batch_idx: int) -> pa_trial.Metrics:
        ...         return {"loss": self.model(batch).square().mean()}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with pa_trial.init(checkpoint_dir=folder, metric="loss") as context:
        ...         pa_trial.Trainer(Zeros(context), context).fit(test_mode=True)
        ...         path = f"{folder}/{context.get_latest_checkpoint()}"
        ...     trial = pa_trial.load_trial_from_checkpoint_path(path, trial_class=Zeros)
        >>> trial.model
        Linear(in_features=1, out_features=1, bias=True)
    """
    folder = Path(path)
    options = _options_of_load(torch_load_kwargs, kwargs)
    description = _describe_trial(folder)
    saved = read_saved(folder.absolute(), 0, trust_pickle=trust_pickle, for_weights=True)
    chosen: Any = _import_class(folder, description) if trial_class is None else trial_class
    context = chosen.trial_context_class(
        None,
        None,
        description.get("hparams") if hparams is None else hparams,
        slots_per_trial=1,
        num_gpus=torch.cuda.device_count(),
        exp_conf=description.get("experiment_config"),
        aggregation_frequency=1,
        steps_completed=saved.progress.batches_trained,
        managed_training=False,
        debug_enabled=False,
    )
    trial: _TrialT = chosen(context, **(trial_kwargs or {}))  # its constructor may take more than the context
    load_weights(context.models, saved, {"trust_pickle": trust_pickle, **options})
    return trial


def _options_of_load(torch_load_kwargs: dict[str, Any] | None, kwargs: dict[str, Any]) -> dict[str, Any]:
    if not kwargs:
        return torch_load_kwargs or {}
    if torch_load_kwargs is not None:
        given = f"torch_load_kwargs={torch_load_kwargs!r} and {', '.join(kwargs)}"
        raise ConfigurationError(f"Arguments of torch.load come in two ways: put {given} into torch_load_kwargs.")
    warn_user(
        f"Passing {', '.join(kwargs)} to load_trial_from_checkpoint_path by name is deprecated: pass "
        f"torch_load_kwargs={kwargs!r}.",
        FutureWarning,
    )
    return kwargs


def _describe_trial(folder: Path) -> dict[str, Any]:
    """Return the stored description of the trial of a checkpoint."""
    if (folder / LOAD_DATA).is_file():
        return read_json(folder / LOAD_DATA)
    if not (folder / METADATA).is_file():
        raise NoCheckpointError(
            "There is no checkpoint of a trial in this folder.",
            given=f"{folder}, which {f'has no {LOAD_DATA}' if folder.is_dir() else 'does not exist'}",
            expected="the folder into which a training has saved a checkpoint",
            do="Look in the folder of init(checkpoint_dir=...), where each subfolder has the name of a checkpoint.",
        )
    if "pa_trial_version" in read_json(folder / METADATA):
        raise damaged(folder / LOAD_DATA, "the file is missing")
    raise InvalidCheckpointException(
        "This checkpoint was written by a version of Determined that did not store how to rebuild a trial.",
        given=f"{folder} with {METADATA} and without {LOAD_DATA}",
        do=f"Load its weights with torch.load into the models themselves, from {STATE}.",
    )


def _import_class(folder: Path, description: Mapping[str, Any]) -> type[PyTorchTrial[Any]]:
    spec: Any = description.get("trial_cls_spec")
    try:
        with _also_importing_from(folder / _CODE):
            module, _, name = spec.partition(":")
            # Not pkgutil.resolve_name, which does not support modules with a hyphen; scripts have them.
            found: object = attrgetter(name)(importlib.import_module(module))
            if not (isinstance(found, type) and issubclass(found, PyTorchTrial)):
                raise TypeError(f"{found!r} is not a subclass of PyTorchTrial")
    except Exception as error:  # importing a module may raise any error
        raise ConfigurationError(
            "The class of the trial cannot be imported under the name that it had when the checkpoint was saved.",
            given=f"{folder} with trial_cls_spec {spec!r}: {type(error).__name__}: {error}",
            do="Pass the class: load_trial_from_checkpoint_path(path, trial_class=MyTrial).",
        ) from error
    return found  # pyright: ignore[reportUnknownVariableType]  # the type of its batches is its own


@contextmanager
def _also_importing_from(code: Path) -> Generator[None]:
    """Find modules in a folder too, if it exists, and if they are not found elsewhere."""
    added = [str(code.absolute())] if code.is_dir() else []
    sys.path.extend(added)
    try:
        yield
    finally:
        for path in added:
            sys.path.remove(path)
