"""A stop that only one of two ranks asks for: both end after the same update, and none waits for the other."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator, DistributedDataParallelKwargs
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR
from typing_extensions import override

from pa_core import (
    AnyTrainer,
    NonFiniteLossError,
    StepBasedEvaluationCallback,
    StopTrainingError,
    TerminateOnNaNCallback,
    Trainer,
    TrainerCallback,
    gather_objects,
)
from pa_core.engine.any_trainer import EVENT_NAMES
from pa_core.errors import RanksDifferError
from pa_core.testing import RecordingCallback, TinyClassifier, make_classification
from tests.support.callbacks import AlsoAt, CallAt, FailAt
from tests.support.models import weights_of

pytestmark = pytest.mark.runs_on("two_ranks")

BATCH_SIZE = 4
EVAL_DATA = make_classification(8, seed=1)
IN_ORDER = {"shuffle": False}


class StopsOnOneRank(Trainer[TinyClassifier]):
    """Raises on rank 1 at the n-th call of a place in the run; evaluation steps gather, as users' steps do."""

    place = ""
    nth = 3
    rank = 1
    unused_parameters = False
    at_end: Tensor | None = None

    @override
    def _create_accelerator(self) -> Any:
        handler = DistributedDataParallelKwargs(find_unused_parameters=self.unused_parameters)
        return Accelerator(cpu=True, kwargs_handlers=[handler])

    def pass_by(self, place: str) -> None:
        """Count the calls of the place, and stop at the n-th."""
        if place == self.place and dist.get_rank() == self.rank:
            self.nth -= 1
            if self.nth == 0:
                raise StopTrainingError(place)

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        self.pass_by("before the model")
        output = super().calculate_train_batch_loss(batch)
        self.pass_by("after the model")
        return output

    @override
    def scheduler_step(self) -> None:
        self.pass_by("scheduler_step")

    @override
    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_eval_batch_loss(batch)
        output["all_outputs"] = self.gather(output["model_outputs"])
        self.pass_by("evaluation step")
        return output


class PassBy(TrainerCallback[StopsOnOneRank]):
    """Lets the trainer stop at events too."""

    def __init__(self) -> None:
        for event in EVENT_NAMES - {"on_init_end"}:
            setattr(self, event, partial(self._pass_by, event))

    @staticmethod
    def _pass_by(event: str, trainer: StopsOnOneRank, **_: Any) -> None:
        trainer.pass_by(event)


def state_of(model: nn.Module) -> Tensor:
    """Weights and statistics as a row of numbers."""
    return torch.cat([value.detach().double().flatten() for value in model.state_dict().values()])[None]


def make_two(
    place: str,
    *callbacks: TrainerCallback,
    nth: int = 3,
    rank: int = 1,
    batch_norm: bool = True,
    kind: type[StopsOnOneRank] = StopsOnOneRank,
) -> StopsOnOneRank:
    """A trainer that stops on one of two ranks; `place` says where, and empty: nowhere."""
    torch.manual_seed(0)
    model = TinyClassifier(batch_norm=batch_norm)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    note = AlsoAt("on_training_run_end", lambda one: setattr(one, "at_end", state_of(one.model)))
    trainer = kind(model, nn.CrossEntropyLoss(), optimizer, callbacks=[RecordingCallback(), *callbacks, note, PassBy()])
    trainer.place, trainer.nth, trainer.rank = place, nth, rank
    return trainer


def train_two(trainer: Trainer[Any], **kwargs: Any) -> None:
    """Two epochs of five updates on two ranks, in a fixed order; rank 1 has no sample in the last step."""
    data = make_classification(4 * 2 * BATCH_SIZE + 2)
    schedule = partial(ExponentialLR, gamma=1.0)
    arguments: dict[str, Any] = {"num_epochs": 2, "eval_dataset": EVAL_DATA, "create_scheduler_fn": schedule, **kwargs}
    trainer.train(data, per_device_batch_size=BATCH_SIZE, train_dataloader_kwargs=IN_ORDER, **arguments)


def assert_stopped_alike(trainer: StopsOnOneRank, updates: int) -> None:
    """Both ranks ended after the same update, through the same last events, with the same weights and statistics."""
    recorder = trainer.callback_handler.callbacks[0]
    assert isinstance(recorder, RecordingCallback)
    endings = gather_objects((trainer.num_updates_completed, recorder.events[-2:]))
    assert endings == [(updates, ["on_stop_training_error", "on_training_run_end"])] * 2
    for state in (trainer.at_end, state_of(trainer.model)):
        assert state is not None
        assert torch.equal(*trainer.gather(state))
    expected = make_two("", batch_norm=isinstance(trainer.model.layers[1], nn.BatchNorm1d))
    accumulation = trainer.run_config.gradient_accumulation_steps
    if updates:
        train_two(expected, max_num_train_steps=updates, gradient_accumulation_steps=accumulation)
    assert torch.equal(weights_of(trainer.model), weights_of(expected.model))


IN_STEPS = {
    # where: the number of updates after which both ranks stop, if rank 1 asks for it the third time it comes by
    "on_train_step_start": 2,
    "before the model": 2,
    "after the model": 2,
    "on_train_step_end": 2,
    "scheduler_step": 3,
    "on_optimizer_step_end": 3,
}
BETWEEN_STEPS = {
    # the same, if it asks for it the first time
    "on_training_run_start": 0,
    "on_train_epoch_start": 0,
    "on_train_epoch_end": 5,
    "on_eval_epoch_start": 5,
    "on_eval_step_start": 5,
    "evaluation step": 5,
    "on_eval_step_end": 5,
    "on_eval_epoch_end": 5,
    "on_training_run_epoch_end": 5,
}
IN_GROUPS = ("before the model", "after the model", "on_train_step_end")


class Ask(NamedTuple):
    """Where one rank asks for a stop, in what kind of run, and after how many updates both end."""

    place: str
    nth: int
    updates: int
    rank: int = 1
    batch_norm: bool = True
    unused_parameters: bool = False
    evaluates_every: int | None = None
    accumulation: int = 1
    limit: int | None = None


BETWEEN = [Ask(place, 1, updates, rank) for place, updates in BETWEEN_STEPS.items() for rank in (0, 1)]
ASKS = [
    *(
        Ask(place, 3, updates, rank, norm)
        for place, updates in IN_STEPS.items()
        for rank in (0, 1)
        for norm in (True, False)
    ),
    *BETWEEN,
    # The batches of a group that are still to come are not trained on, on either rank.
    *(Ask(place, nth, (nth - 1) // 2, accumulation=2) for place in IN_GROUPS for nth in (1, 2, 3, 4)),
    # Gradients cannot carry the request.
    *(Ask(place, 3, updates, unused_parameters=True) for place, updates in IN_STEPS.items()),
    # The other rank has nothing left to do but to evaluate.
    Ask("on_optimizer_step_end", 4, 4, limit=4),
    # An evaluation after some updates is part of the update that it follows.
    Ask("evaluation step", 1, 2, evaluates_every=2),
]


def is_like_another(ask: Ask) -> bool:
    """Whether the other rank asks for the same: without batch norm, and at every second place between steps."""
    number = [*IN_STEPS, *BETWEEN_STEPS].index(ask.place)
    return (ask.rank == 0 and not ask.batch_norm) or (ask in BETWEEN and number % 2 == ask.rank)


EACH = [pytest.param(ask, marks=pytest.mark.more_cases if is_like_another(ask) else ()) for ask in ASKS]


@pytest.mark.parametrize("ask", EACH, ids=str)
def test_a_stop_of_one_rank_stops_both_at_the_same_update(ask: Ask) -> None:
    """Wherever one rank asks to stop, none waits, none makes an update more, and both can go on."""
    assert dist.get_world_size() == 2
    evaluate = () if ask.evaluates_every is None else (StepBasedEvaluationCallback(ask.evaluates_every),)
    trainer = make_two(ask.place, *evaluate, nth=ask.nth, rank=ask.rank, batch_norm=ask.batch_norm)
    trainer.unused_parameters = ask.unused_parameters
    trainer._accelerator = trainer._create_accelerator()  # pyright: ignore[reportPrivateUsage] - a documented hook
    options = {"gradient_accumulation_steps": ask.accumulation, "max_num_train_steps": ask.limit}
    train_two(trainer, **options)
    assert_stopped_alike(trainer, ask.updates)

    trainer.place = ""
    train_two(trainer)
    assert gather_objects(trainer.num_updates_completed) == [10, 10]


class NaNOnRankOne(StopsOnOneRank):
    """The loss on rank 1 becomes NaN at a place, and stays finite on rank 0."""

    @override
    def pass_by(self, place: str) -> None:
        """Count the calls of the place."""
        self.is_now = place == self.place and dist.get_rank() == 1
        if self.is_now:
            self.nth -= 1

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        return self.spoiled(output)

    @override
    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_eval_batch_loss(batch)
        return self.spoiled(output)

    def spoiled(self, output: dict[str, Any]) -> dict[str, Any]:
        """The output with a loss that is NaN, if it is time."""
        if self.is_now and self.nth == 0:
            output["loss"] = output["loss"] * torch.nan
        return output


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize(("place", "nth"), [("after the model", 3), ("evaluation step", 1)])
def test_a_loss_of_one_rank_that_is_nan_raises_on_both(place: str, nth: int, accumulation: int) -> None:
    """Both ranks end the run through its events, without the update, and both raise the error."""
    trainer = make_two(place, TerminateOnNaNCallback(), nth=nth, kind=NaNOnRankOne)
    with pytest.raises(NonFiniteLossError):
        train_two(trainer, gradient_accumulation_steps=accumulation)
    in_training = {1: 2, 2: 1}
    of_epoch = {1: 5, 2: 3}
    assert_stopped_alike(trainer, (in_training if place == "after the model" else of_epoch)[accumulation])


def test_an_evaluation_loss_of_one_rank_that_is_nan_raises_on_both() -> None:
    """`evaluate()` raises on both ranks too."""
    trainer = make_two("evaluation step", TerminateOnNaNCallback(), nth=1, kind=NaNOnRankOne)
    with pytest.raises(NonFiniteLossError):
        trainer.evaluate(make_classification(20), per_device_batch_size=BATCH_SIZE)
    recorder = trainer.callback_handler.callbacks[0]
    assert isinstance(recorder, RecordingCallback)
    assert recorder.events[-2:] == ["on_stop_training_error", "on_evaluation_run_end"]


GATHERS_AT = (
    *("on_train_step_end", "on_eval_step_end", "on_train_epoch_end", "on_eval_epoch_start", "on_eval_epoch_end"),
    "on_training_run_epoch_end",
)
EVENTS = {"on_train_step_end": 0, "on_optimizer_step_end": 1, **BETWEEN_STEPS}
EVENTS.pop("evaluation step")  # where a step returns nothing, there is nothing to call its callbacks with


@pytest.mark.parametrize(("place", "updates"), EVENTS.items())
def test_callbacks_behind_the_one_that_stops_may_gather(place: str, updates: int) -> None:
    """A callback that gathers is called on both ranks, whichever asked to stop before it."""
    trainer = make_two(place, nth=1)
    gathers = CallAt("on_training_run_end", lambda one: one.gather(torch.ones(1)))
    for event in GATHERS_AT:  # at which users do
        vars(gathers)[event] = vars(gathers)["on_training_run_end"]
    trainer.callback_handler.add_callback(gathers)
    trainer.train(
        make_classification(5 * 2 * BATCH_SIZE),  # each rank has a sample in each step
        2,
        EVAL_DATA,
        per_device_batch_size=BATCH_SIZE,
    )
    assert gather_objects(trainer.num_updates_completed) == [updates, updates]


def test_a_loss_that_is_nan_matters_more_than_another_stop() -> None:
    """If one rank wants to end the run and the other must, both raise."""
    enough = FailAt("on_train_step_end", StopTrainingError("enough"), 2)
    trainer = make_two("after the model", enough, TerminateOnNaNCallback(), kind=NaNOnRankOne)
    with pytest.raises(NonFiniteLossError):
        train_two(trainer)
    assert_stopped_alike(trainer, 2)


class Observer(RecordingCallback):
    """Records all events, and declares that it does nothing else."""

    only_observes = True


class LateStop(TrainerCallback):
    """Stops on rank 1 at the end of an epoch, though it declares not to."""

    only_observes = True

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    @override
    def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        if trainer.process_index == 1 and trainer.num_epochs_completed == self.epoch:
            raise StopTrainingError("against the declaration")


def train_observed(*callbacks: TrainerCallback, **hooks: Any) -> list[list[str]]:
    """Train three epochs of two updates with callbacks and hooks of this rank, and return the events of each rank."""
    torch.manual_seed(0)
    model, recorder = TinyClassifier(), Observer()
    trainer = Trainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks=[recorder, *callbacks])
    vars(trainer).update(hooks)
    trainer.train(make_classification(16), 3, EVAL_DATA, per_device_batch_size=BATCH_SIZE)
    assert torch.equal(*trainer.gather(state_of(model)))
    first, second = gather_objects(trainer.num_updates_completed)
    assert first == second == recorder.events.count("on_optimizer_step_end")
    return gather_objects(recorder.events)


BETWEEN_EPOCHS = ("on_train_epoch_end", "on_eval_epoch_start", "on_eval_epoch_end", "on_training_run_epoch_end")
ENDING = ["on_stop_training_error", "on_training_run_end"]


@pytest.mark.parametrize("epoch", [1, 3])
@pytest.mark.parametrize("event", BETWEEN_EPOCHS)
def test_a_stop_of_the_only_callback_on_one_rank_comes_at_once(event: str, epoch: int) -> None:
    """In each event between epochs, though the other rank has no listener that might stop."""
    stop = FailAt(event, StopTrainingError("enough"), 2 * epoch)
    if dist.get_rank() == 0:
        vars(stop).clear()
    for events in train_observed(stop):
        assert events[-3:] == [event, *ENDING]
        assert events.count(event) == epoch


HOOKS = {
    "train_epoch_end": "on_optimizer_step_end",
    "eval_epoch_start": "on_train_epoch_end",
    "eval_epoch_end": "on_eval_step_end",
    "training_run_epoch_end": "on_eval_epoch_end",
}


@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize(("hook", "last_event"), HOOKS.items())
def test_a_stop_of_a_hook_on_one_rank_comes_at_once(hook: str, last_event: str, nth: int) -> None:
    """Though the other rank does not override the hook."""
    calls: list[None] = []

    def stop() -> None:
        calls.append(None)
        if len(calls) == nth:
            raise StopTrainingError(hook)

    on_other_rank, events = train_observed(**{hook: stop} if dist.get_rank() == 1 else {})
    assert events[-3:] == [last_event, *ENDING]
    assert on_other_rank[-3] in (last_event, f"on_{hook}")


@pytest.mark.parametrize(("epoch", "updates"), [(1, 2), (2, 4), (3, 6)])
def test_a_stop_against_the_declaration_comes_with_the_next_exchange(epoch: int, updates: int) -> None:
    """Before the next update, and after the last epoch at once; no rank waits for another."""
    for events in train_observed(LateStop(epoch)):
        assert events.count("on_optimizer_step_end") == updates
        assert events[-2:] == ENDING


def test_a_rate_that_one_rank_sets_between_epochs_is_found_at_once() -> None:
    """Before the next update, if the callback does not declare that it only observes."""

    def set_rate(trainer: AnyTrainer) -> None:
        trainer.optimizer.param_groups[0]["lr"] = 0.5

    set_there = CallAt("on_training_run_epoch_end", set_rate)
    if dist.get_rank() == 0:
        vars(set_there).clear()
    updates: list[None] = []
    note = AlsoAt("on_optimizer_step_end", lambda _: updates.append(None))
    with pytest.raises(RanksDifferError, match="settings of an optimizer"):
        train_observed(set_there, note)
    assert len(updates) == 2
