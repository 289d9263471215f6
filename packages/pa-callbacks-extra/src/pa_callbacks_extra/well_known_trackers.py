"""The trackers whose runs can continue: MLflow, SwanLab, TensorBoard, Trackio, Weights & Biases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from pa_callbacks_extra.reported_points import Point


def _points_nobody_reads(run: Any, since: int, until: int) -> Iterable[Point]:
    return ()


def _waits_for_nothing() -> None:
    pass


@dataclass(frozen=True)
class WellKnownTracker:
    """How a tracker identifies and continues a run and logs images, and which reports a killed process may lose.

    Attributes:
        id_of: A function that is called with the tracker's own object and returns the identifier of the run.
        arguments: A function that is called with the identifier and the last step that belongs to the run, and returns
            arguments that continue the run.
        log_image: A function that is called with the tracker's own object, the name of the image, its pixels and the
            step.
        forgets_config: Whether the config is lost when a run continues.
        points: A function that is called with the tracker's own object, the first step, and the last step that belongs
            to the run, and yields the points that the tracker shows from the first step on.
        late_seconds: The age at which a report is certainly written.
        late_reports: The number of later reports after which a report is certainly written.
        begins_at: A function that is called with the tracker's own object and returns the first step that it accepts.
        settle: A function that waits until all reports are written, if the tracker has a way to wait.
    """

    id_of: Callable[[Any], str]
    arguments: Callable[[str, int], dict[str, Any]]
    log_image: Callable[[Any, str, Any, int], object]
    forgets_config: bool = False
    points: Callable[[Any, int, int], Iterable[Point]] = _points_nobody_reads
    late_seconds: float = 0.0
    late_reports: int = 0
    begins_at: Callable[[Any], int] = lambda run: 0
    settle: Callable[[], object] = _waits_for_nothing

    @property
    def writes_late(self) -> bool:
        """Whether the last reports may not be written if the process is killed."""
        return self.late_seconds > 0 or self.late_reports > 0


def _points_of_mlflow(run: Any, since: int, until: int) -> Iterator[Point]:
    client: Any = import_module("mlflow").MlflowClient()
    run_id: str = run.info.run_id
    for name in client.get_run(run_id).data.metrics:
        if name.startswith("system/"):  # MLflow's own metrics, which count other steps
            continue
        for point in client.get_metric_history(run_id, name):
            if point.step >= since:
                yield Point(name, point.step, point.value)


def _points_of_tensorboard(writer: Any, since: int, until: int) -> Iterable[Point]:
    """Read the files of all starts; TensorBoard hides the points from the first step of a later start on."""
    loader: Any = import_module("tensorboard.backend.event_processing.event_file_loader")
    points: list[Point] = []
    for file in sorted(Path(writer.log_dir).glob("*tfevents*")):
        for event in loader.LegacyEventFileLoader(str(file)).Load():
            if event.session_log.status == event.session_log.START:
                points = [point for point in points if point.step < event.step]
            elif since <= event.step <= until:
                numbers = (value for value in event.summary.value if value.WhichOneof("value") == "simple_value")
                points += [Point(number.tag, event.step, number.simple_value) for number in numbers]
    return points


def _points_of_trackio(run: Any, since: int, until: int) -> Iterator[Point]:
    if run.url is not None:
        raise NotImplementedError("only the database of this machine can be read")
    storage: Any = import_module("trackio.sqlite_storage").SQLiteStorage
    for row in storage.get_logs(run.project, run.name, run_id=run.id):
        if row["step"] >= since:
            numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
            yield from (Point(name, row["step"], value) for name, value in numbers.items() if name != "step")


WELL_KNOWN = {
    "mlflow": WellKnownTracker(
        lambda run: str(run.info.run_id),
        lambda run, step: {"run_id": run},
        lambda run, name, pixels, step: import_module("mlflow").log_image(
            pixels, key=name, step=step, synchronous=True
        ),
        points=_points_of_mlflow,
        # Has an effect only with MLFLOW_ENABLE_ASYNC_LOGGING.
        settle=lambda: import_module("mlflow").flush_async_logging(),
    ),
    # An offline run is written in blocks of 4 to 8 KiB; a report takes up to 1 KiB.
    "swanlab": WellKnownTracker(
        lambda run: str(run.id),
        lambda run, step: {"id": run, "resume": "allow"},
        lambda run, name, pixels, step: run.log({name: import_module("swanlab").Image(pixels)}, step=step),
        forgets_config=True,
        late_seconds=10.0,
        late_reports=100,
    ),
    # A folder is the run; purge_step hides points of later steps that were written there before.
    "tensorboard": WellKnownTracker(
        lambda writer: str(writer.log_dir),
        lambda run, step: {"purge_step": step + 1},
        lambda writer, name, pixels, step: writer.add_image(name, pixels, step, dataformats="HWC"),
        points=_points_of_tensorboard,
    ),
    # Written every half second.
    "trackio": WellKnownTracker(
        lambda run: str(run.name),
        lambda run, step: {"name": run, "resume": "allow"},
        lambda run, name, pixels, step: run.log({name: import_module("trackio").Image(pixels)}, step=step),
        forgets_config=True,
        points=_points_of_trackio,
        late_seconds=30.0,
    ),
    # Written every 15 seconds.
    "wandb": WellKnownTracker(
        lambda run: str(run.id),
        lambda run, step: {"id": run, "resume": "allow"},
        lambda run, name, pixels, step: run.log({name: import_module("wandb").Image(pixels)}, step=step),
        forgets_config=True,
        late_seconds=60.0,
        begins_at=lambda run: int(run.starting_step),
    ),
}
