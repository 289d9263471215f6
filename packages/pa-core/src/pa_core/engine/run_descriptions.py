"""Descriptions of a run that must be the same on all processes, at its start and in its course."""

from __future__ import annotations

from collections.abc import Mapping

from pa_core.distributed.comparison import PLACE
from pa_core.engine import rank_checks
from pa_core.engine.any_trainer import AnyTrainer
from pa_core.training_state.progress import Progress
from pa_distributed import require_same


def require_same_parts(trainer: AnyTrainer, *, is_training: bool) -> None:
    """Compare models, loaders and optimizers after their creation, before the first exchange.

    Args:
        trainer: The trainer.
        is_training: Whether the run trains.

    Raises:
        RanksDifferError: They differ between processes.
    """
    require_same(lambda: {**_used(trainer, is_training=is_training), **trainer.named_models(), **trainer.modules})


def describe_start(trainer: AnyTrainer, progress: Progress) -> dict[str, object]:
    """Return the values that must be the same before the first training step, including schedulers.

    Args:
        trainer: The trainer.
        progress: The position of the run.
    """
    schedulers = _titled("scheduler", trainer.named_schedulers())
    return {
        **describe_course(trainer, progress, is_training=True),
        **rank_checks.describe_schedulers(schedulers),
        "preemptible": trainer.preemptible,
    }


def describe_course(trainer: AnyTrainer, progress: Progress, *, is_training: bool) -> dict[str, object]:
    """Return the values that must stay the same on all processes in the course of a run.

    Args:
        trainer: The trainer.
        progress: The position of the run.
        is_training: Whether the run trains.
    """
    updates = progress.updates
    place = f"{progress.stage}, after {updates} update{'' if updates == 1 else 's'}"
    return {PLACE: place, **_used(trainer, is_training=is_training)}


def _used(trainer: AnyTrainer, *, is_training: bool) -> dict[str, object]:
    """Describe the loaders and the trained models of a run."""
    values = _describe_evaluation(trainer)
    if is_training:
        values |= rank_checks.describe_trained(trainer.named_models())
        values |= rank_checks.describe_loader("training", trainer.train_dataloader)
        values |= _titled("optimizer", trainer.named_optimizers())
    return values


def _describe_evaluation(trainer: AnyTrainer) -> dict[str, object]:
    loaders = trainer.eval_dataloaders
    if not loaders:
        return rank_checks.describe_loader("evaluation", trainer.eval_dataloader)
    values: dict[str, object] = {"evaluation set in progress": trainer.eval_name}
    for name, loader in loaders.items():
        values |= rank_checks.describe_loader(f"evaluation of {name}:", loader)
    return values


def _titled(kind: str, by_name: Mapping[str, object]) -> dict[str, object]:
    """Add the kind to the names, because models have the same names."""
    return {name if name == kind else f"{kind} {name}": value for name, value in by_name.items()}
