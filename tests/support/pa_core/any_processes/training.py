"""Training one of the configurations, in each of the processes of a run."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import Dataset
from typing_extensions import override

from pa_core import (
    AnyTrainer,
    InMemoryRunHistory,
    Run,
    SaveBestModelCallback,
    SaveTrainingStateCallback,
    Trainer,
    TrainerCallback,
)
from tests.support.callbacks import OfOneStart
from tests.support.pa_core.any_processes.comparison import Result, result_of
from tests.support.pa_core.any_processes.configuration import Configuration
from tests.support.pa_core.any_processes.data import collate, ordered, read
from tests.support.pa_core.any_processes.models import Network

__all__ = ["Kill", "train"]

_NO_WORKERS = {"num_workers": 0}


@dataclass(frozen=True)
class Kill:
    """When a process of a run is killed.

    Attributes:
        where: After the step of an update, or in a batch of an evaluation.
        number: The how manieth one it is, from 1.
        rank: Which process it is.
    """

    where: Literal["update", "evaluation"]
    number: int
    rank: int = 0


class _KillItself(OfOneStart):
    """Kills this process if it has the rank of the kill."""

    def __init__(self, kill: Kill) -> None:
        self._where, self._left = kill.where, kill.number if os.environ.get("RANK", "0") == str(kill.rank) else 0

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        self._count("update")

    @override
    def on_eval_step_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self._count("evaluation")

    def _count(self, where: str) -> None:
        self._left -= where == self._where
        if where == self._where and self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class _LogValues(TrainerCallback):
    """Logs something of each step, and of each update."""

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        trainer.log("of_steps", batch[0].float().mean())

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        trainer.log("of_updates", next(iter(trainer.model.parameters())).mean())

    @override
    def on_eval_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        trainer.log("of_steps", batch[0].float().mean())


def train(
    configuration: Configuration, folder: Path, *, saves_states: bool = False, kill: Kill | None = None
) -> Result:
    """Train, or go on training where states are in the folder, and return everything that the run ended with.

    Args:
        configuration: What is trained.
        folder: Where the run writes.
        saves_states: Whether it saves training states there, and resumes from them.
        kill: When one of the processes is killed; None lets them be.
    """
    torch.manual_seed(configuration.seed)
    callbacks = [_LogValues(), *_callbacks(configuration, folder)]
    states: dict[str, Any] = {}
    if saves_states:
        callbacks.append(SaveTrainingStateCallback(folder / "states", save_every_n_steps=1 + configuration.seed % 2))
        states = {"resume_from": folder / "states", "resume_missing": "start"}
    if kill is not None:
        callbacks.insert(0, _KillItself(kill))
    made: dict[str, Any] = {"callbacks": callbacks, "mixed_precision": configuration.precision}
    if configuration.is_reproducible:
        made["reproducible"] = "any_processes"
    loop = _LOOPS[configuration.loop]
    trainer = loop(configuration, made, _run_options(configuration) | states)
    return result_of(_parts(trainer, configuration, folder))


def _network(configuration: Configuration) -> Network:
    return Network(
        configuration.layers,
        has_embedding=configuration.has_embedding,
        has_frozen_layer=configuration.has_frozen_layer,
    )


def _optimizer(configuration: Configuration, model: nn.Module) -> Optimizer:
    options = {"lr": 0.1, "momentum": 0.9} if configuration.optimizer == "SGD" else {"lr": 0.01}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return cast("Optimizer", getattr(torch.optim, configuration.optimizer)(trained, **options))


def _callbacks(configuration: Configuration, folder: Path) -> list[TrainerCallback]:
    names, metric = configuration.callbacks, f"{next(iter(configuration.eval_sizes))}_loss_epoch"
    found: list[TrainerCallback] = []
    if "best model" in names:
        found.append(SaveBestModelCallback(folder / "best.pt", watch_metric=metric))
    if importlib.util.find_spec("pa_callbacks_extra"):  # not where pa-core is tested alone
        from pa_callbacks_extra import EarlyStoppingCallback, ModelEmaCallback

        if "average" in names:
            evaluates = configuration.loop == "trainer"
            found.append(ModelEmaCallback(0.9, evaluates, folder / "average.pt", f"ema_model_{metric}"))
        if "early stopping" in names:
            found.append(EarlyStoppingCallback(early_stopping_threshold=1.0, watch_metric=metric))
    return found


def _run_options(configuration: Configuration) -> dict[str, Any]:
    data, order = ordered(configuration)
    by = configuration.scheduler
    return {
        "train_dataset": data,
        "order": order,
        "num_epochs": configuration.epochs,
        "per_device_batch_size": configuration.micro_batch,
        "samples_per_update": configuration.samples_per_update,
        "gradient_clip_value": 0.02 if configuration.clips_value else None,
        "gradient_clip_norm": 0.2 if configuration.clips_norm else None,
        "create_scheduler_fn": partial(StepLR, step_size=1, gamma=0.7) if by else None,
        "step_scheduler": by or "update",
        "train_dataloader_kwargs": {**_workers(configuration), "drop_last": configuration.drop_last},
        "collate_fn": collate,
    }


def _workers(configuration: Configuration) -> dict[str, Any]:
    """Half of the streams are read by a worker, which has to keep its place in them."""
    if not configuration.has_streams or configuration.seed % 2 == 0:
        return _NO_WORKERS
    return {"num_workers": 1, "multiprocessing_context": "fork"}  # not from a server, which would import torch anew


def _eval_sets(configuration: Configuration) -> dict[str, Dataset[Any]]:
    return {name: read(configuration, size) for name, size in configuration.eval_sizes.items()}


def _train_by_trainer(configuration: Configuration, made: Mapping[str, Any], options: dict[str, Any]) -> AnyTrainer:
    model = _network(configuration)
    trainer: Trainer[Any, Any, Any, Any] = Trainer(
        model, nn.CrossEntropyLoss(), _optimizer(configuration, model), **made
    )
    sets = _eval_sets(configuration)
    evaluated = {name.removeprefix("eval_"): one for name, one in sets.items()}
    options["eval_dataset"] = evaluated if len(sets) > 1 else sets["eval"]
    trainer.train(eval_dataloader_kwargs=_NO_WORKERS, **options)
    return trainer


def _train_by_run(configuration: Configuration, made: Mapping[str, Any], options: dict[str, Any]) -> AnyTrainer:
    model, loss_of = _network(configuration), nn.CrossEntropyLoss()
    run: Run[Any, Any] = Run(model, _optimizer(configuration, model), **made, **options)
    with run:
        for _ in run.epochs():
            for inputs, targets in run.batches():
                # A mean over tokens: batches of as many samples do not weigh the same.
                run.backward(loss_of(model(inputs), targets), num_items=inputs.shape[0] * inputs.shape[1])
                run.step()
            for name, data in _eval_sets(configuration).items():
                for inputs, targets in run.evaluation_batches(data, name=name, dataloader_kwargs=_NO_WORKERS):
                    run.log("loss", loss_of(model(inputs), targets))
    return run


def _train_two_models(configuration: Configuration, made: Mapping[str, Any], options: dict[str, Any]) -> AnyTrainer:
    """A teacher, and a student that is trained to say what it says."""
    models = {name: _network(configuration) for name in ("teacher", "student")}
    optimizers = {name: _optimizer(configuration, model) for name, model in models.items()}
    if factory := options.pop("create_scheduler_fn"):
        options["create_scheduler_fn"] = dict.fromkeys(models, factory)
    run: Run[Any, Any] = Run(models, optimizers, **made, **options)

    def losses(inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        said = models["teacher"](inputs)
        followed = nn.functional.cross_entropy(models["student"](inputs), said.detach().softmax(1))
        return {"teacher": nn.functional.cross_entropy(said, targets), "student": followed}

    with run:
        for _ in run.epochs():
            for update in run.updates():
                for batch in update:
                    for name, loss in losses(*batch).items():
                        update.backward(loss, model=name)
                for name in models:
                    update.step(name)
            for name, data in _eval_sets(configuration).items():
                for batch in run.evaluation_batches(data, name=name, dataloader_kwargs=_NO_WORKERS):
                    run.log("loss", losses(*batch)["student"])
    return run


_LOOPS: dict[str, Callable[[Configuration, Mapping[str, Any], dict[str, Any]], AnyTrainer]] = {
    "trainer": _train_by_trainer,
    "run": _train_by_run,
    "two models": _train_two_models,
}


def _parts(trainer: AnyTrainer, configuration: Configuration, folder: Path) -> dict[str, object]:
    history = cast("InMemoryRunHistory", trainer.run_history)
    records = {
        f"{number} {one.metric}, epoch {one.epoch}, update {one.update}, {one.samples} samples": one.value
        for number, one in enumerate(history.records())
    }
    parts: dict[str, object] = {
        "updates": trainer.num_updates_completed,
        "history": records,
        "weights": {name: model.state_dict() for name, model in trainer.named_models().items()},
        "optimizers": {name: one.state_dict() for name, one in trainer.named_optimizers().items()},
        "schedulers": {name: one.state_dict() for name, one in trainer.named_schedulers().items()},
        "files": {
            path.name: torch.load(path, weights_only=True)["model_state_dict"] for path in sorted(folder.glob("*.pt"))
        },
    }
    if configuration.is_reproducible:
        parts["fingerprint"] = cast("Any", trainer).fingerprint()
    return parts | {"predictions": _predictions(trainer, configuration)}


def _predictions(trainer: AnyTrainer, configuration: Configuration) -> list[Any]:
    *_, model = trainer.named_models().values()
    predicting: Trainer[Any, Any, Any, Any] = Trainer(
        model, None, None, callbacks=[], mixed_precision=cast("Any", configuration.precision)
    )
    data = read(configuration, 19)
    return list(predicting.predict(data, configuration.micro_batch, _NO_WORKERS, collate))
