"""Sends metrics, settings and training progress to experiment trackers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from pa_callbacks_extra.experiment_trackers import ExperimentTrackers, flatten_config, open_trackers, require_trackers
from pa_callbacks_extra.reported_points import MEMORY, SPEED
from pa_core import AnyTrainer, LogMetricsCallback
from pa_core.callbacks import ScalarTransfer, check_count
from pa_core.distributed import sum_over_processes

_BYTES_IN_GIB = 2**30

_last_opened: dict[str, ExperimentTrackers] = {}
"""By the name of each tracker: MLflow and Weights & Biases confuse a second run of a process with the first."""


@dataclass(eq=False)
class _Report:
    """The values of a step; some values may not have arrived from the accelerator yet."""

    step: int
    values: dict[str, float]
    num_missing: int


@dataclass
class _Window:
    """The part of the training since the last report, or since the epoch began.

    Attributes:
        loss_totals: The sum of the losses of all processes, and the number of their samples, when this part began.
        samples: The sample count when this part began.
        seconds: The clock reading when this part began, moved forward by the time of evaluations since then.
        paused_at: The clock reading when the current evaluation began.
    """

    loss_totals: Tensor | None = None
    samples: int = 0
    seconds: float = 0.0
    paused_at: float | None = None


class TrackerCallback(LogMetricsCallback):
    """Sends metrics and settings to TensorBoard, MLflow, Weights & Biases and other experiment trackers.

    Use it with a trainer; in a custom loop, use ``open_trackers``. Each metric of the run history is sent whenever it
    has been updated: after training epochs, evaluations and ``evaluate()``. The run config is sent once, when training
    starts. Every ``every_n_updates`` updates, the callback also sends

    - ``train/loss``: the mean loss over the samples of all processes since the last report or the start of the epoch;
    - ``train/learning_rate``: the learning rate of the update, or ``train/learning_rate_0`` and so on if there are
      several parameter groups;
    - ``train/gradient_norm``: the gradient norm before clipping, if the run clips by norm
      (``gradient_clip_norm=math.inf`` measures the norm without clipping);
    - ``train/samples_per_second``: the samples of all processes per second, not counting the time of evaluations;
    - ``train/accelerator_memory_gib``: the peak tensor memory in GiB, if the first process uses a CUDA device.

    The x axis is the number of optimizer updates. It continues over several ``train()`` calls and after interruptions,
    and so does the run in MLflow, SwanLab, TensorBoard, Trackio and Weights & Biases; other trackers begin a new run. A
    training state contains the last reports. If the process is killed before a tracker has written them, the resumed
    run sends them again. Trackers are opened when ``train()`` or ``evaluate()`` starts. They stay open until
    ``finish()`` is called, the script ends, or another ``TrackerCallback`` opens the same trackers, because a process
    can have only one run in a tracker at a time. Only the first process opens trackers and writes to them.

    Between reports, nothing is read from an accelerator. A report never waits for the device: it is sent when its
    values have arrived, a few updates later.

    Args:
        trackers: A name or several names of ``pa_callbacks_extra.experiment_trackers.known_trackers()``, for example
            ``"tensorboard"``; their packages have to be installed.
        project_name: The name of the project in the trackers. With TensorBoard, it is the name of the run's folder in
            ``logging_dir``, so each run needs a different name.
        logging_dir: The folder for trackers that write files. The default is ``runs``, which ``tensorboard --logdir
            runs`` shows.
        config: Settings to record in addition to the run config; they override its entries. The default adds none.
        init_kwargs: Additional arguments for each tracker, by tracker name, for example ``{"wandb": {"mode":
            "offline"}}``. By default, no additional arguments are passed.
        every_n_updates: The number of updates from one report to the next, at least 1. The default, 50, is enough for a
            smooth curve, and takes little time even if the tracker is on another machine.

    Attributes:
        tracker_names: The names of the trackers, a tuple. The other arguments are attributes too, as given.

    Raises:
        ConfigurationError: A tracker is unknown, or ``every_n_updates`` is not a positive whole number. ``train()`` and
            ``evaluate()`` raise it if a tracker rejects its arguments.
        UnsupportedConfigurationError: The package of a tracker is not installed.

    Example:
        >>> import tempfile, torch
        >>> from pa_callbacks_extra import TrackerCallback
        >>> from pa_core import DEFAULT_CALLBACKS, Trainer
        >>> model = torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> samples = torch.utils.data.TensorDataset(torch.ones(8, 1), torch.ones(8, 1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     track = TrackerCallback("tensorboard", "line", logging_dir=folder)
        ...     trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[*DEFAULT_CALLBACKS, track])
        ...     trainer.train(samples, num_epochs=1)  # doctest: +ELLIPSIS
        ...     track.finish()
        Training starts: 1 epoch ...
        >>> track.step
        1
    """

    only_observes = True

    def __init__(
        self,
        trackers: str | Iterable[str],
        project_name: str,
        *,
        logging_dir: str | Path = "runs",
        config: Mapping[str, object] = MappingProxyType({}),
        init_kwargs: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
        every_n_updates: int = 50,
    ) -> None:
        check_count("every_n_updates", every_n_updates)
        self.tracker_names: tuple[str, ...] = require_trackers(trackers)
        self.project_name = project_name
        self.logging_dir = logging_dir
        self.config = config
        self.init_kwargs = init_kwargs
        self.every_n_updates = every_n_updates
        self._open: ExperimentTrackers | None = None
        self._run_ids: dict[str, str] = {}
        self._unsettled: list[tuple[int, dict[str, float]]] = []
        self._stored_config: dict[str, bool | int | float | str] | None = None
        self._last_step = 0
        self._epoch = 0
        self._updates_of_earlier_runs = 0
        self._updates_of_this_run = 0
        self._window = _Window()
        self._learning_rates: list[float | Tensor] = []
        self._under_way = ScalarTransfer[tuple[_Report, str]]()

    # When trackers are opened and finished

    @override
    def on_prepare_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Continue counting from the previous run.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        super().on_prepare_start(trainer, **kwargs)
        self._updates_of_earlier_runs += self._updates_of_this_run
        self._updates_of_this_run = 0
        self._window = _Window()
        self._under_way.clear()

    @override
    def on_evaluation_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Open the trackers.

        Args:
            trainer: The trainer.
            **kwargs: Not used.

        Raises:
            ConfigurationError: A tracker rejects its arguments.
        """
        self._open_trackers()

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Start measuring the training in this epoch.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        super().on_train_epoch_start(trainer, **kwargs)
        self._window.loss_totals = None
        self._look_at_clock(trainer)
        self._learning_rates = _learning_rates_of(trainer.optimizer)
        self._updates_of_this_run = trainer.num_updates_completed
        self._epoch = trainer.run_history.current_epoch

    @override
    def on_train_step_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Open the trackers before the first step, once the state of a resumed run has been loaded.

        Args:
            trainer: The trainer.
            **kwargs: Not used.

        Raises:
            ConfigurationError: A tracker rejects its arguments.
        """
        opened = self._open_trackers()
        if self._stored_config is None:
            self._stored_config = flatten_config({**trainer.run_config.to_dict(), **self.config})
            opened.store_config(self._stored_config)

    @override
    def on_training_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Send the remaining reports; the trackers stay open for evaluations.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self.on_training_run_epoch_end(trainer)
        self._send(self._under_way.wait_for_all())
        self._updates_of_this_run = trainer.num_updates_completed

    @override
    def on_exception(self, trainer: AnyTrainer, exception: BaseException, **kwargs: Any) -> None:
        """With several processes, finish the trackers, because a failed process may be killed before Python exits.

        A single process finishes them when Python exits, because trackers can detect then that the run has failed.

        Args:
            trainer: The trainer.
            exception: The exception.
            **kwargs: Not used.
        """
        if trainer.num_processes > 1:
            self.finish()

    def finish(self) -> None:
        """End the runs in the trackers now instead of at the end of the script.

        You call it when no more reports will follow, for example between the cells of a notebook, or before the folder
        of the trackers is moved. Later reports open the trackers again and continue the runs. Without open trackers,
        and on processes other than the first, it does nothing.

        Example:
            >>> import tempfile
            >>> import torch
            >>> from pa_callbacks_extra import TrackerCallback
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     track = TrackerCallback("tensorboard", "line", logging_dir=folder)
            ...     track.log_image("noise", torch.rand(8, 8))
            ...     track.finish()  # the files are complete
        """
        if self._open is not None:
            self._open.finish()

    def _open_trackers(self) -> ExperimentTrackers:
        if self._open is None or not self._open.is_open:
            for name in self.tracker_names:
                if name in _last_opened:
                    _last_opened[name].finish()
            self._open = open_trackers(
                self.tracker_names,
                self.project_name,
                logging_dir=self.logging_dir,
                config=self._stored_config,
                init_kwargs=self.init_kwargs,
                run_ids=self._run_ids,
                last_step=self._last_step,
                unsettled=self._unsettled,
            )
            self._unsettled = []
            self._run_ids |= self._open.run_ids
            _last_opened.update(dict.fromkeys(self.tracker_names, self._open))
        return self._open

    # Reports after epochs

    @override
    def log_metrics(self, trainer: AnyTrainer, metrics: dict[str, float]) -> None:
        """Send metrics of the run history to the trackers, at the current ``step``.

        The callback calls it on every process after each training epoch and each evaluation, with the metrics that were
        updated, so you need not call it yourself. Reports that are still pending are sent first, so that steps stay in
        order. Override it to select or rename metrics, and call ``super().log_metrics(...)`` on every process. The
        epoch number is sent with them as ``epoch``.

        Args:
            trainer: The trainer.
            metrics: The latest values of the updated metrics as Python numbers, by their full names, for example
                ``{"eval_loss_epoch": 0.25}``.

        Raises:
            ConfigurationError: A tracker that has to be opened rejects its arguments.

        Example:
            >>> from pa_callbacks_extra import TrackerCallback
            >>> class WithoutTrainingMetrics(TrackerCallback):
            ...     def log_metrics(self, trainer, metrics):
            ...         wanted = {name: value for name, value in metrics.items() if "train" not in name}
            ...         super().log_metrics(trainer, wanted)
        """
        self._send(self._under_way.wait_for_all())
        opened = self._open_trackers()
        self._updates_of_this_run = trainer.num_updates_completed
        self._last_step = self.step
        opened.log({**metrics, "epoch": self._epoch}, self._last_step)

    # Reports of a script

    @property
    def step(self) -> int:
        """The position on the x axis, an integer: the number of optimizer updates in all training runs so far.

        It is 0 before the first update, grows by 1 with each update, and continues in a resumed run. Pass it with
        everything that you send through ``native``.

        Example:
            >>> from pa_callbacks_extra import TrackerCallback
            >>> TrackerCallback("tensorboard", "line").step  # before the first training
            0
        """
        return self._updates_of_earlier_runs + self._updates_of_this_run

    def log_image(self, name: str, image: Tensor) -> None:
        """Send an image to MLflow, SwanLab, TensorBoard, Trackio or Weights & Biases; every process may call this.

        You call it in a custom callback, for example in ``on_eval_epoch_end``. It opens the trackers if they are not
        open, and needs pillow (``pip install pillow``). For figures, audio and tables, use ``native``.

        Args:
            name: The name of the image in the trackers, at the current ``step``.
            image: A tensor of shape ``(channels, height, width)`` with 1, 3 or 4 channels, or ``(height, width)``, on
                any device. Its values are floating-point numbers from 0 to 1, or ``torch.uint8`` numbers from 0 to 255.
                ``torchvision.utils.make_grid`` makes an image of a batch.

        Raises:
            ConfigurationError: The tensor does not have such a shape.
            UnsupportedConfigurationError: A tracker does not support images. Use ``native`` to get the tracker's own
                object.
            ImportError: pillow is not installed.

        Example:
            >>> import tempfile
            >>> import torch
            >>> from pa_callbacks_extra import TrackerCallback
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     track = TrackerCallback("tensorboard", "digits", logging_dir=folder)
            ...     track.log_image("first digit", torch.rand(1, 28, 28))  # for example in on_eval_epoch_end
            ...     track.finish()
        """
        self._open_trackers().log_image(name, image, self.step)

    def native(self, name: str) -> Any:
        """Return the object of a tracker's own package, for figures, text, audio and anything else that it supports.

        You call it in a custom callback or after a run. It opens the trackers if they are not open. Pass ``step`` with
        everything that you send, so that the values line up with the metrics. Check whether the result is None, because
        only the first process opens trackers.

        Args:
            name: A name of ``tracker_names``.

        Returns:
            The ``SummaryWriter`` of TensorBoard, or the run of another tracker; None on processes other than the first.

        Raises:
            ConfigurationError: This callback does not have this tracker.

        Example:
            >>> import tempfile
            >>> import torch
            >>> from pa_callbacks_extra import TrackerCallback
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     track = TrackerCallback("tensorboard", "weights", logging_dir=folder)
            ...     if (writer := track.native("tensorboard")) is not None:
            ...         writer.add_histogram("weights", torch.rand(100), track.step)
            ...     track.finish()
        """
        return self._open_trackers().native(name)

    # Reports every few updates

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        """Count the update, and report on the training if a report is due.

        Args:
            trainer: The trainer.
            update: The number of optimizer updates of this run so far.
            **kwargs: Not used.
        """
        self._updates_of_this_run = update
        step = self.step
        if step % self.every_n_updates == 0:
            self._report(trainer, step)
        if (step + 1) % self.every_n_updates == 0:
            self._learning_rates = _learning_rates_of(trainer.optimizer)
        self._send(self._under_way.arrived())

    @override
    def on_eval_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Stop the training clock.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        super().on_eval_epoch_start(trainer, **kwargs)
        if self._window.paused_at is None:
            self._window.paused_at = trainer.run_history.clock.seconds

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Resume the training clock, and send the evaluation metrics.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        super().on_eval_epoch_end(trainer, **kwargs)
        if self._window.paused_at is not None:
            self._window.seconds += trainer.run_history.clock.seconds - self._window.paused_at
            self._window.paused_at = None

    def _report(self, trainer: AnyTrainer, step: int) -> None:
        """Report the state of the training; every process has to call this."""
        totals = sum_over_processes(trainer.loss_tracker.totals().to(trainer.device))
        before = torch.zeros_like(totals) if self._window.loss_totals is None else self._window.loss_totals
        loss_and_samples = totals - before.to(totals)
        values: dict[str, float | Tensor] = {
            "train/loss": loss_and_samples[0] / loss_and_samples[1],
            **self._learning_rates_by_name(),
            **self._samples_per_second(trainer),
            **_accelerator_memory(trainer.device),
            "epoch": self._epoch,
        }
        if trainer.gradient_norm is not None:
            values["train/gradient_norm"] = trainer.gradient_norm
        self._window.loss_totals = totals
        self._look_at_clock(trainer)
        if trainer.run_config.is_world_process_zero:
            self._send_when_known(step, values)

    def _look_at_clock(self, trainer: AnyTrainer) -> None:
        clock = trainer.run_history.clock
        self._window.samples, self._window.seconds = clock.samples, clock.seconds

    def _learning_rates_by_name(self) -> dict[str, float | Tensor]:
        rates, name = self._learning_rates, "train/learning_rate"
        return {name: rates[0]} if len(rates) == 1 else {f"{name}_{index}": rate for index, rate in enumerate(rates)}

    def _samples_per_second(self, trainer: AnyTrainer) -> dict[str, float]:
        clock = trainer.run_history.clock
        seconds = clock.seconds - self._window.seconds
        return {SPEED: (clock.samples - self._window.samples) / seconds} if seconds > 0 else {}

    def _send_when_known(self, step: int, values: Mapping[str, float | Tensor]) -> None:
        on_device = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        on_host: dict[str, float] = {name: value for name, value in values.items() if not isinstance(value, Tensor)}
        report = _Report(step, on_host, num_missing=len(on_device))
        for name, value in on_device.items():
            self._under_way.send(value, tag=(report, name))

    def _send(self, arrived: Iterable[tuple[tuple[_Report, str], float]]) -> None:
        for (report, name), value in arrived:
            report.values[name] = value
            report.num_missing -= 1
            if report.num_missing == 0:
                self._last_step = report.step
                self._open_trackers().log(report.values, report.step)

    # State of a resumed run

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the position on the x axis, the identifiers of the runs and the last reports, for a training state.

        The trainer calls it on every process when it saves a training state, so you need not call it yourself. It sends
        pending reports, and waits until MLflow has written everything that it logs asynchronously. The state contains
        the last reports because a tracker may not have written them when the process is killed; a resumed run then
        sends them again.

        Returns:
            A dictionary of numbers, text and lists, for ``load_state_dict``.

        Example:
            >>> from pa_callbacks_extra import TrackerCallback
            >>> state = TrackerCallback("tensorboard", "line").state_dict()
            >>> state["last_step"], state["unsettled"]
            (0, [])
        """
        self._send(self._under_way.wait_for_all())
        if self._open is not None and self._open.is_open:
            self._open.settle()
            unsettled = self._open.unsettled()
        else:
            unsettled = self._unsettled
        totals = self._window.loss_totals
        return {
            "updates_of_earlier_runs": self._updates_of_earlier_runs,
            "loss_totals": None if totals is None else [float(total) for total in totals],
            "stored_config": self._stored_config,
            "last_step": self._last_step,
            "epoch": self._epoch,
            "run_ids": dict(self._run_ids),
            "unsettled": [[step, values] for step, values in unsettled],
        }

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of the first process, and continue its runs in the trackers instead of the open runs.

        The trainer calls it on every process when a run resumes, after ``on_training_run_start``, so you need not call
        it yourself. Open trackers are finished, and are opened again for the next report.

        Args:
            state_dict: The result of ``state_dict``.

        Raises:
            KeyError: An entry is missing.

        Example:
            >>> from pa_callbacks_extra import TrackerCallback
            >>> saved, resumed = TrackerCallback("tensorboard", "line"), TrackerCallback("tensorboard", "line")
            >>> resumed.load_state_dict(saved.state_dict())
            >>> resumed.step
            0
        """
        self.finish()
        totals = state_dict["loss_totals"]
        self._window.loss_totals = None if totals is None else torch.tensor(totals, dtype=torch.float64)
        self._updates_of_earlier_runs = state_dict["updates_of_earlier_runs"]
        self._updates_of_this_run = 0
        self._stored_config = state_dict["stored_config"]
        self._last_step = state_dict["last_step"]
        self._epoch = state_dict.get("epoch", 0)
        self._run_ids = dict(state_dict["run_ids"])
        self._unsettled = [(step, values) for step, values in state_dict.get("unsettled", [])]


def _learning_rates_of(optimizer: Optimizer) -> list[float | Tensor]:
    """Return the rates of the next update; a rate that is a tensor is copied, since schedulers change it in place."""
    rates = [group["lr"] for group in optimizer.param_groups]
    return [rate.clone() if isinstance(rate, Tensor) else float(rate) for rate in rates]


def _accelerator_memory(device: torch.device) -> dict[str, float]:
    if device.type != "cuda":
        return {}
    return {MEMORY: torch.cuda.max_memory_allocated(device) / _BYTES_IN_GIB}
