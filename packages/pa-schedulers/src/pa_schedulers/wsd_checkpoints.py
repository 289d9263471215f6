"""Saves before and after each decay of a warmup-stable-decay schedule, and resumes from these checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typing_extensions import override

from pa_checkpoint import Folder
from pa_core import AnyTrainer, ConfigurationError, TrainerCallback
from pa_schedulers.wsd_scheduler import WSDLrScheduler


class WSDCheckpointCallback(TrainerCallback):
    """Saves a run with a ``WSDLrScheduler`` before and after each decay.

    Pass this callback to a trainer in ``callbacks``, and pass ``WSDLrScheduler.create_scheduler_fn()`` to ``train``.
    Use the callback if you might later want to train for longer. A run that continues from the state before a decay
    trains at the full rate, as if there had been no decay. ``save_dir`` then contains the following, named after the
    number of updates:

    - ``checkpoint_<step>_wsd_pre_decay``, a training state. A new run can continue the stable phase from it, and
      ``train(resume_from=...)`` repeats the decay;
    - ``checkpoint_<step>_wsd_post_decay.pt``, an export of the weights after the decay, as ``save_checkpoint`` writes
      it.

    Both contain the following entries, which ``load_training_state`` returns for a training state: ``step``,
    ``checkpoint_type`` (``"wsd_pre_decay"`` or ``"wsd_post_decay"``), and ``total_steps`` and ``decay_fraction`` of the
    schedule.

    To continue, start a run with ``initial_checkpoint`` and a schedule made with
    ``is_continuation_from_checkpoint=True``. The run begins with the weights and the optimizer of the checkpoint and a
    stable phase of the new length, and counts its updates from 1. From a checkpoint before the decay, this is the
    schedule of MiniCPM (arXiv 2404.06395). From a checkpoint after the decay, it is WSD-S (arXiv 2410.05192). A run
    that is resumed does not load the initial checkpoint a second time.

    Args:
        save_dir: The folder to save into, which is created if it is missing. If a run uses several machines, they have
            to share this folder. While a run uses the folder, no other run can use it. The default is ``checkpoints``
            in the current folder.
        save_optimizer: Whether exports contain the state of the optimizer. With the default, True, a run can continue
            from the exports. Training states always contain it.
        save_scheduler: Whether exports contain the state of the scheduler. With the default, True, a run can continue
            from the exports. Training states always contain it.
        initial_checkpoint: The checkpoint to start from: a training state, a folder of training states (the newest is
            used), or the file of an export. With the default, None, the run starts from the weights of the model.

    Raises:
        ConfigurationError: When a run starts: its scheduler is not a ``WSDLrScheduler``, or is not a continuation
            although there is an initial checkpoint; or the run would replace its own initial checkpoint. It is a
            ``ValueError``.
        FolderInUseError: When a run starts: another live run saves its states in the folder.

    Example:
        >>> import tempfile, torch
        >>> from pa_core import DEFAULT_CALLBACKS, Trainer
        >>> from pathlib import Path
        >>> from pa_schedulers import WSDCheckpointCallback, WSDLrScheduler
        >>> model = torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> samples = torch.utils.data.TensorDataset(torch.ones(80, 1), torch.ones(80, 1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save = WSDCheckpointCallback(folder)
        ...     trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[*DEFAULT_CALLBACKS, save])
        ...     trainer.train(samples, num_epochs=2, create_scheduler_fn=WSDLrScheduler.create_scheduler_fn())
        ...     sorted(path.name for path in Path(folder).iterdir())  # doctest: +ELLIPSIS
        Training starts: 2 epochs ...
        ['checkpoint_18_wsd_pre_decay', 'checkpoint_20_wsd_post_decay.pt']
    """

    def __init__(
        self,
        save_dir: str | Path = "checkpoints",
        save_optimizer: bool = True,
        save_scheduler: bool = True,
        initial_checkpoint: str | Path | None = None,
    ) -> None:
        self.save_dir: Path = Path(save_dir)
        self.save_optimizer = save_optimizer
        self.save_scheduler = save_scheduler
        self.initial_checkpoint: Path | None = None if initial_checkpoint is None else Path(initial_checkpoint)
        self._started_in = Path()

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Check that the run can be saved, before any time is spent, and load the initial checkpoint.

        The trainer calls it when a run starts; you need not call it yourself.

        Args:
            trainer: The trainer of the run.
            **kwargs: Not used.

        Raises:
            ConfigurationError: The scheduler of the run is not a ``WSDLrScheduler``, or is not a continuation although
                there is an initial checkpoint; or the run would replace its own initial checkpoint.
            FolderInUseError: Another live run saves its states in the folder.
        """
        scheduler = _scheduler_of(trainer)
        self._started_in = Path.cwd()
        trainer.reserve_state_folder(self.save_dir)
        is_resumed = trainer.num_updates_completed > 0
        if self.initial_checkpoint is not None and not is_resumed:
            self._require_a_continuation(scheduler, self.initial_checkpoint)
            self._continue_from(self.initial_checkpoint, trainer, scheduler)

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        """Save if a decay begins or has ended.

        The trainer calls it after each optimizer update; you need not call it yourself.

        Args:
            trainer: The trainer of the run.
            update: The number of the update; not used, since the schedule counts its own steps.
            **kwargs: Not used.

        Raises:
            CheckpointError: The checkpoint cannot be written, for example because the disk is full.
        """
        scheduler = _scheduler_of(trainer)
        step = scheduler.get_current_step()
        phase = scheduler.get_phase_info(step)
        if step == phase["pre_decay_step"]:
            sequence = Folder(self._started_in / self.save_dir).next_sequence()
            entries = _entries(scheduler, step, "wsd_pre_decay")
            trainer.save_training_state(self._pre_decay_path(step), entries, sequence=sequence)
        if step == phase["period_end"]:
            trainer.save_checkpoint(
                self._post_decay_path(step),
                _entries(scheduler, step, "wsd_post_decay"),
                save_optimizer=self.save_optimizer,
                save_scheduler=self.save_scheduler,
            )

    def _pre_decay_path(self, step: int) -> Path:
        return self._started_in / self.save_dir / f"checkpoint_{step}_wsd_pre_decay"

    def _post_decay_path(self, step: int) -> Path:
        return self._started_in / self.save_dir / f"checkpoint_{step}_wsd_post_decay.pt"

    def _continue_from(self, checkpoint: Path, trainer: AnyTrainer, scheduler: WSDLrScheduler) -> None:
        if checkpoint.is_dir():
            trainer.load_training_state(checkpoint)
        else:
            trainer.load_checkpoint(checkpoint)
        # Also where the export has no state of the scheduler, or the state of a continuation like this schedule.
        scheduler.start_stable_phase()

    def _require_a_continuation(self, scheduler: WSDLrScheduler, checkpoint: Path) -> None:
        if not scheduler.is_continuation_from_checkpoint:
            raise ConfigurationError(
                f"The schedule would resume the saved schedule of initial_checkpoint={str(checkpoint)!r}, not continue "
                "from it. Pass "
                "create_scheduler_fn=WSDLrScheduler.create_scheduler_fn(is_continuation_from_checkpoint=True), or "
                "resume_from to resume the same run."
            )
        for period in scheduler.get_decay_info():
            written = (self._pre_decay_path(period["pre_decay_step"]), self._post_decay_path(period["period_end"]))
            for path in map(Path.resolve, written):
                if path.exists() and checkpoint.resolve() in (path, *path.parents):
                    raise ConfigurationError(
                        f"The run would replace the checkpoint {path.name} that it resumes from: "
                        f"save_dir={str(self.save_dir)!r} and initial_checkpoint={str(checkpoint)!r}. Choose another "
                        "save_dir."
                    )


def _entries(scheduler: WSDLrScheduler, step: int, checkpoint_type: str) -> dict[str, Any]:
    return {
        "step": step,
        "checkpoint_type": checkpoint_type,
        "total_steps": scheduler.total_steps,
        "decay_fraction": scheduler.decay_phase_ratio,
    }


def _scheduler_of(trainer: AnyTrainer) -> WSDLrScheduler:
    scheduler = trainer.scheduler
    if not isinstance(scheduler, WSDLrScheduler):
        raise ConfigurationError(
            f"A {type(scheduler).__name__} has no decays to save before and after. Pass "
            "create_scheduler_fn=WSDLrScheduler.create_scheduler_fn(), or leave WSDCheckpointCallback out."
        )
    return scheduler
