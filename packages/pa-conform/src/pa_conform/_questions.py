"""The questions: each trains with an adapter, and compares what was seen with what arithmetic says."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pa_conform._kit import LIMIT, Adapter, Failed, Kit, Launch, four

Job = dict[str, object]
RESUMED: Job = {"epochs": 3, "save_every": 4}
"""Six updates an epoch, a state after every fourth, so that states lie within epochs."""
KILLED = 9
"""The update after which a run is killed: the third one of the second epoch, and the one after a save."""


@dataclass(frozen=True)
class Answer:
    """What a question has found out.

    Attributes:
        question: its name.
        result: `"pass"`, `"fail"`, or `"not offered"`.
        seen: what was seen, as a sentence.
    """

    question: str
    result: Literal["pass", "fail", "not offered"]
    seen: str


class Trial:
    """One adapter, as a question asks it."""

    def __init__(self, kit: Kit, adapter: Adapter) -> None:
        """Takes what trains."""
        self.kit, self.adapter = kit, adapter

    def run(
        self,
        job: Job | None = None,
        *,
        plan: dict[str, int] | None = None,
        folder: Path | None = None,
        limit: float = LIMIT,
        may_fail: bool = False,
        **more: object,
    ) -> Launch:
        """Trains; a process that fails, though nothing was planned to go wrong, answers the question."""
        result = self.kit.launch(self.adapter, {**(job or {}), **more}, plan or {}, folder, limit)
        if result.failed and not may_fail:
            rank = next((n for n in result.failed if not result.ranks[n].ended_by_kit), result.failed[0])
            ended = result.ranks[rank]
            how = f"did not end within {limit:.0f} s" if ended.ended_by_kit else "failed"
            raise Failed(f"rank {rank} {how}: {ended.last_line}")
        return result

    def resumed(self, job: Job, plan: dict[str, int]) -> tuple[Launch, Launch, Launch, int]:
        """A whole run, a killed one, the one that resumed it, and the update that it went on from."""
        whole = self.run(job)
        folder = self.kit.folder()
        killed = self.run(job, plan=plan, folder=folder, may_fail=True)
        if not killed.failed:
            raise Failed("the run ended before it could be killed: nothing was saved or evaluated when it was asked for")
        rest = self.run(job, folder=folder, resume=True)
        return whole, killed, rest, len(whole.updates) - len(rest.updates)


@dataclass(frozen=True)
class Question:
    """A question to a training loop.

    Attributes:
        name: a short name.
        asks: the question, in one sentence.
        matters: why its answer matters.
        needs: what an adapter has to offer for it to be asked.
    """

    name: str
    asks: str
    matters: str
    needs: tuple[str, ...]
    check: Callable[[Trial], str]

    def ask(self, kit: Kit, adapter: Adapter) -> Answer:
        """Asks one adapter."""
        missing = [need for need in self.needs if need not in adapter.offers]
        if missing:
            return Answer(self.name, "not offered", f"the adapter does not offer {', '.join(missing)}")
        try:
            return Answer(self.name, "pass", self.check(Trial(kit, adapter)))
        except Failed as failed:
            return Answer(self.name, "fail", str(failed))


QUESTIONS: list[Question] = []


def question(asks: str, matters: str, *needs: str) -> Callable[[Callable[[Trial], str]], Callable[[Trial], str]]:
    """Adds a question, named as its check."""

    def add(check: Callable[[Trial], str]) -> Callable[[Trial], str]:
        QUESTIONS.append(Question(check.__name__, asks, matters, needs, check))
        return check

    return add


def close(one: Sequence[float], other: Sequence[float], tolerance: float = 1e-5) -> bool:
    """Whether all numbers are equal, but for rounding."""
    return len(one) == len(other) and all(
        math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance) for a, b in zip(one, other, strict=True)
    )


def short(numbers: Sequence[float]) -> str:
    """A few numbers to read."""
    shown = ", ".join(f"{number:.5g}" for number in numbers[:12])
    return f"[{shown}{', ...' if len(numbers) > 12 else ''}]"


def expect(found: Sequence[float], wanted: Sequence[float], what: str) -> None:
    """Fails where numbers differ."""
    if not close(found, wanted):
        raise Failed(f"{what}: {short(found)} instead of {short(wanted)}")


def by_arithmetic(updates: Sequence[Sequence[int]], job: Job) -> list[float]:
    """The weights after these updates: the gradient of the mean error over all samples, or tokens, of each."""
    from pa_conform._job import features, target, tokens

    weights, rate, clip = [0.01, 0.01, 0.02, 0.02], float(str(job.get("rate", 0.1))), float(str(job.get("clip", 0)))
    rates = [rate, rate, *([rate / 2] * 2 if job.get("optimizers") == 2 else [rate] * 2)]
    for samples in updates:
        parts = [(i, token) for i in samples for token in (range(tokens(i)) if job.get("tokens") else (0,))]
        gradient = [0.0] * 4
        for part in parts:
            inputs = features(*part)
            error = sum(w * x for w, x in zip(weights, inputs, strict=True)) - target(*part)
            gradient = [g + 2 * error * x / len(parts) for g, x in zip(gradient, inputs, strict=True)]
        norm = math.sqrt(sum(g * g for g in gradient))
        scale = min(1.0, clip / (norm + 1e-6)) if clip else 1.0
        weights = [w - r * g * scale for w, r, g in zip(weights, rates, gradient, strict=True)]
    return weights


def each_once(launch: Launch, samples: int, epochs: int, what: str) -> None:
    """Fails where an epoch of the updates does not have every sample once."""
    found = [i for update in launch.updates for i in update]
    lost = sorted({i for i in range(samples) if found.count(i) < epochs})
    again = sorted({i for i in found if found.count(i) > epochs})
    if lost or again or len(found) != samples * epochs:
        raise Failed(f"{what}: {len(lost)} of {samples} samples were left out, {len(again)} came too often")
    if sorted(found[:samples]) != list(range(samples)):
        raise Failed(f"{what}: samples of different epochs are mixed")


def trained_as_if(launch: Launch, job: Job) -> str:
    """Fails where the last weights are not those that arithmetic has for the seen updates."""
    expect(launch.weights(), by_arithmetic(launch.updates, job), f"weights after {len(launch.updates)} updates")
    return f"weights after {len(launch.updates)} updates are {short(launch.weights())}, as by arithmetic"


def went_on(whole: Launch, killed: Launch, rest: Launch, start: int) -> str:
    """Fails where a resumed run did not see the remaining samples, or has other weights in the end."""
    done = len(killed.updates)
    if start <= 0:
        raise Failed(f"the run started again from the beginning after {done} updates: {len(rest.updates)} updates followed")
    if rest.updates != whole.updates[start:]:
        wanted = {i for update in whole.updates[start : start + 3] for i in update}
        other = len(wanted - {i for update in rest.updates[:3] for i in update})
        raise Failed(f"resumed after {start} updates, {other} of the next {len(wanted)} samples are others")
    expect(rest.weights(), whole.weights(), "weights of the resumed run at its end")
    return f"killed after {done} updates and resumed after {start}: samples and weights are those of a run without a kill"


@question("Does every sample train once an epoch, on 1, 2 and 3 processes?", "Lost samples lower no metric visibly.", "processes")
def each_sample_once(trial: Trial) -> str:
    for processes in (1, 2, 3):
        each_once(trial.run(processes=processes, batch=2), 24, 2, f"on {processes} processes")
    return "24 samples came once in each of 2 epochs on 1, 2 and 3 processes"


@question("Are updates the same on 1 and 2 processes with equal batches in all?", "A result should not depend on how many devices were free.", "processes")
def same_updates(trial: Trial) -> str:
    one, two = trial.run(batch=4), trial.run(batch=2, processes=2)
    differ = sum(a != b for a, b in zip(one.updates, two.updates, strict=False))
    if differ or len(one.updates) != len(two.updates):
        raise Failed(f"{differ} of {len(one.updates)} updates have other samples on 2 processes, which made {len(two.updates)}")
    expect(two.weights(), one.weights(), "weights on 2 processes")
    return f"all {len(one.updates)} updates have the same samples, and weights are equal"


@question("Is the shorter last group of an accumulation averaged over its own samples?", "A group that is divided by too much, or goes on in the next epoch, trains otherwise.", "accumulate")
def short_group(trial: Trial) -> str:
    job: Job = {"accumulate": 4}
    launch = trial.run(job)
    each_once(launch, 24, 2, "accumulating 4 of 6 batches")
    sizes = [len(update) for update in launch.updates]
    if sizes != [16, 8, 16, 8]:
        raise Failed(f"updates have {sizes} samples instead of [16, 8, 16, 8]")
    return trained_as_if(launch, job)


@question("Does every token weigh the same over the batches of an update?", "Means of means weigh tokens of short texts more.", "tokens", "accumulate")
def tokens_accumulated(trial: Trial) -> str:
    job: Job = {"tokens": True, "accumulate": 2, "batch": 2}
    return trained_as_if(trial.run(job), job)


@question("Does every token weigh the same over processes?", "Otherwise the result depends on how texts are spread.", "tokens", "processes")
def tokens_over_ranks(trial: Trial) -> str:
    job: Job = {"tokens": True, "batch": 3, "processes": 2}
    return trained_as_if(trial.run(job), job)


@question("Are gradients clipped after they are averaged over batches and processes?", "Clipped before, large gradients weigh less than they should.", "clip", "accumulate", "processes")
def clipped_average(trial: Trial) -> str:
    job: Job = {"clip": 0.5, "batch": 2, "accumulate": 2, "processes": 2}
    return trained_as_if(trial.run(job), job)


def rates_are(trial: Trial, launch: Launch, wanted: list[float]) -> str:
    """Fails where an update of any rank had another rate."""
    for rank in range(len(launch.ranks)):
        expect(launch.rates(rank), wanted, f"rates of updates on rank {rank}")
    return f"{len(wanted)} updates used {short(wanted)}"


@question("Does a schedule by epochs change the rate between epochs only?", "Stepped at updates, it ends training early.", "schedules")
def rate_by_epochs(trial: Trial) -> str:
    return rates_are(trial, trial.run(schedule="epochs", epochs=3), [0.1 * 0.5 ** (update // 6) for update in range(18)])


@question("Does OneCycle take one step an update, with accumulation and 2 processes?", "Stepped at batches or by every process, it is over before training is.", "schedules", "accumulate", "processes")
def rate_by_updates(trial: Trial) -> str:
    total, peak = 12, 0.3 * 12 - 1
    wanted: list[float] = []
    for update in range(total):
        rising = update <= peak
        start, end = (0.004, 0.1) if rising else (0.1, 0.004 / 1e4)
        done = update / peak if rising else (update - peak) / (total - 1 - peak)
        wanted.append(end + (start - end) / 2 * (1 + math.cos(math.pi * done)))
    return rates_are(trial, trial.run(schedule="updates", batch=1, accumulate=2, processes=2), wanted)


@question("Does a plateau of the evaluation's loss lower the rate?", "A schedule that is given another loss, or none, does nothing or too much.", "schedules", "evaluate")
def rate_on_plateau(trial: Trial) -> str:
    launch = trial.run(schedule="plateau", eval_samples=8, epochs=5)
    rate, best, wanted = 0.1, math.inf, list[float]()
    for loss in launch.losses:
        wanted += [rate] * 6
        rate, best = (rate, loss) if loss < best * (1 - 1e-4) else (rate * 0.1, best)
    return rates_are(trial, launch, wanted)


@question("Does a chained schedule go on after a kill where it was?", "A warm-up that starts again undoes what was learned.", "schedules", "resume")
def rate_resumed(trial: Trial) -> str:
    wanted = [0.1 * (0.1 + 0.9 * u / 4) if u < 4 else 0.1 * 0.8 ** (u - 4) for u in range(18)]
    whole, _, rest, start = trial.resumed({**RESUMED, "schedule": "chained"}, {"kill": KILLED})
    rates_are(trial, whole, wanted)
    return f"resumed after {start} updates, " + rates_are(trial, rest, wanted[max(start, 0) :])


def loss_of(weights: Sequence[float], samples: int) -> float:
    """The mean error of an evaluation."""
    from pa_conform._job import features, target

    errors = [sum(w * x for w, x in zip(weights, features(i), strict=True)) - target(i, slope=0.5) for i in range(samples)]
    return sum(error * error for error in errors) / samples


@question("Is the loss of an evaluation exact where ranks and batches have different sizes?", "Means of batches, and samples that are repeated to fill them, change the number that models are chosen by.", "evaluate", "processes")
def evaluation_exact(trial: Trial) -> str:
    launch = trial.run(eval_samples=7, batch=2, processes=2)
    wanted = [loss_of(four(weights), 7) for weights in launch.ranks[0].weights_evaluated]
    if len(wanted) != 2:
        raise Failed(f"2 epochs were followed by {len(wanted)} evaluations")
    expect(launch.losses, wanted, "losses of 7 samples on 2 processes")
    return f"losses of 7 samples on 2 processes are {short(wanted)}, as by arithmetic"


@question("Is a metric that is no mean computed over all samples of all ranks?", "The mean of medians is no median.", "metric", "evaluate", "processes")
def metric_over_ranks(trial: Trial) -> str:
    from pa_conform._job import features

    launch = trial.run(eval_samples=7, batch=2, processes=3)
    wanted = [
        sorted(sum(w * x for w, x in zip(four(weights), features(i), strict=True)) for i in range(7))[3]
        for weights in launch.ranks[0].weights_evaluated
    ]
    expect([math.nan if m is None else m for m in launch.ranks[0].metrics], wanted, "medians of 7 outputs on 3 processes")
    return f"medians of 7 outputs on 3 processes are {short(wanted)}, as by arithmetic"


@question("After a kill within an epoch, are samples and weights those of a run without it?", "Repeated and lost samples are the usual price of preemption.", "resume")
def killed_at_an_update(trial: Trial) -> str:
    return went_on(*trial.resumed(RESUMED, {"kill": KILLED}))


@question("After a kill in an evaluation, is it made up for?", "Otherwise its epoch has no number, and best models and early stopping miss it.", "resume", "evaluate")
def killed_in_an_evaluation(trial: Trial) -> str:
    whole, killed, rest, start = trial.resumed({**RESUMED, "eval_samples": 8}, {"kill_in_evaluation": 12})
    if start != len(whole.updates):
        went_on(whole, killed, rest, start)
    expect(rest.losses, whole.losses[min(1, len(killed.losses)) :][-len(rest.losses) or 0 :], "losses after the kill")
    if len(set(killed.losses + rest.losses)) < len(whole.losses):
        raise Failed(f"{len(whole.losses)} epochs have {len(killed.losses)} evaluations before and {len(rest.losses)} after a kill")
    return f"killed in the evaluation of epoch 2, resumed after {start} updates: all {len(whole.losses)} evaluations are there"


@question("After a kill while a state is written, does the run go on from a whole one?", "A state that is written over the last one leaves none.", "resume")
def killed_in_a_save(trial: Trial) -> str:
    return went_on(*trial.resumed({**RESUMED, "ballast": True}, {"kill_in_save": KILLED}))


@question("Resumed on 1 instead of 2 processes, does the epoch have every sample once?", "Fewer devices are free after a preemption.", "resume", "processes", "other_number")
def resumed_on_fewer(trial: Trial) -> str:
    folder = trial.kit.folder()
    job: Job = {"batch": 2, "epochs": 2, "save_every": 4}
    killed = trial.run(job, plan={"kill": KILLED}, folder=folder, processes=2, may_fail=True)
    rest = trial.run(job, folder=folder, resume=True)
    trained = sum(len(update) for update in rest.updates)
    start = (48 - trained) // 4
    if not 0 < start <= len(killed.updates):
        raise Failed(f"{trained} samples followed on 1 process after {4 * len(killed.updates)} of 48 on 2")
    found = sorted(i for update in [*killed.updates[:start], *rest.updates] for i in update)
    if found != sorted([*range(24)] * 2):
        raise Failed(f"{len(set(range(24)) - {i for i in set(found) if found.count(i) == 2})} of 24 samples did not come twice in 2 epochs")
    return f"after {start} updates on 2 processes, 1 process trained on exactly the {trained} samples that were left"


def draws(launch: Launch) -> list[float]:
    """All random numbers that samples drew."""
    return [number for rank in launch.ranks for update in rank.updates for pair in update.draws for number in pair]


@question("Does the same seed give the same augmentations?", "Without that no run can be repeated.", "augment")
def draws_repeated(trial: Trial) -> str:
    one = trial.run(augment=True)
    two = trial.run(augment=True, folder=trial.kit.folder())
    same = sum(a == b for a, b in zip(draws(one), draws(two), strict=False))
    if same < len(draws(one)):
        raise Failed(f"{len(draws(one)) - same} of {len(draws(one))} random numbers differ with the same seed")
    return f"all {same} random numbers are the same with the same seed"


@question("Do augmentations differ between epochs, workers and ranks?", "Workers with equal seeds augment everything in the same way.", "augment", "processes")
def draws_differ(trial: Trial) -> str:
    launch = trial.run(augment=True, workers=2, processes=2, batch=2)
    found = draws(launch)
    if len(set(found)) < len(found):
        raise Failed(f"{len(found) - len(set(found))} of {len(found)} random numbers on 2 ranks with 2 workers were drawn before")
    return f"{len(found)} random numbers of 2 epochs, 2 ranks and 2 workers all differ"


@question("After a kill, are augmentations those of a run without it?", "A resumed run is only the same if its random numbers are.", "augment", "resume")
def draws_resumed(trial: Trial) -> str:
    job: Job = {**RESUMED, "augment": True}
    whole, killed, rest, start = trial.resumed(job, {"kill": KILLED})
    went_on(whole, killed, rest, start)
    wanted = draws(whole)[-len(draws(rest)) :]
    differ = sum(a != b for a, b in zip(draws(rest), wanted, strict=True))
    if differ:
        raise Failed(f"{differ} of {len(wanted)} random numbers after the kill are others")
    return f"all {len(wanted)} random numbers after the kill are those of a run without it"


@question("Do two ranks draw different samples with a weighted sampler, by its weights?", "Each rank for itself draws the same samples as the others.", "weighted", "processes")
def weighted_on_two_ranks(trial: Trial) -> str:
    launch = trial.run(weighted=True, processes=2, batch=2)
    one, two = ([i for u in rank.updates for batch in u.samples for i in batch] for rank in launch.ranks)
    if any(i % 2 == 0 for i in one + two):
        raise Failed("samples of weight 0 were drawn")
    if one == two:
        raise Failed(f"both ranks drew the same {len(one)} samples")
    if len(one + two) != 48:
        raise Failed(f"2 epochs of 24 samples have {len(one + two)} draws")
    return "48 draws on 2 ranks follow the weights, and the ranks differ"


@question("Does a stream train every sample once an epoch on 2 processes, with and without a length?", "Every process reads the whole stream, unless somebody divides it.", "stream", "processes", "accumulate")
def streamed_once(trial: Trial) -> str:
    for kind in ("sized", "unsized"):
        job: Job = {"stream": kind, "batch": 2, "accumulate": 4, "processes": 2}
        launch = trial.run(job)
        each_once(launch, 24, 2, f"a stream that is {kind}")
        trained_as_if(launch, job)
    return "24 samples of a stream came once in each of 2 epochs on 2 processes, and weights are as by arithmetic"


@question("Do averaged weights go on after a kill?", "An average that starts again forgets most of the training.", "ema", "resume")
def average_resumed(trial: Trial) -> str:
    whole, killed, rest, start = trial.resumed({**RESUMED, "ema": 0.9}, {"kill": KILLED})
    went_on(whole, killed, rest, start)
    if close(whole.weights(1), whole.weights()):
        raise Failed("averaged weights are the last ones")
    expect(rest.weights(1), whole.weights(1), "averaged weights after a kill")
    return f"averaged weights after a kill are {short(rest.weights(1))}, as without it"


FALLING_AND_RISING: Job = {"eval_samples": 8, "epochs": 8, "rate": 0.05, "save_every": 4}


@question("Are the best weights those of the lowest loss?", "A reference to weights that train on is no copy.", "best", "evaluate")
def best_is_best(trial: Trial) -> str:
    launch = trial.run(FALLING_AND_RISING, best=True)
    number = launch.losses.index(min(launch.losses))
    wanted = four(launch.ranks[0].weights_evaluated[number])
    expect(launch.weights(2), wanted, f"best weights, of evaluation {number + 1} of {len(launch.losses)}")
    return f"the best weights are those of evaluation {number + 1} of {len(launch.losses)}, whose loss is the lowest"


@question("Does early stopping count on after a kill?", "A count that starts again trains longer after every preemption.", "early_stopping", "evaluate", "resume")
def early_stop_resumed(trial: Trial) -> str:
    job: Job = {**FALLING_AND_RISING, "patience": 2}
    whole = trial.run(job)
    best = whole.losses.index(min(whole.losses))
    if len(whole.losses) != best + 3:
        raise Failed(f"with a patience of 2, {len(whole.losses) - best - 1} evaluations followed the best one")
    _, _, rest, start = trial.resumed(job, {"kill": 6 * (best + 2) + 5})
    if start <= 0 or len(rest.losses) != len(whole.losses) - start // 6:
        raise Failed(f"resumed after {start} updates, {len(rest.losses)} evaluations followed, not {len(whole.losses) - max(start, 0) // 6}")
    return f"training stops after evaluation {len(whole.losses)}, with and without a kill"


@question("Is a damaged newest state noticed?", "A run that silently starts again loses days.", "resume")
def damaged_state(trial: Trial) -> str:
    whole, folder = trial.run(RESUMED), trial.kit.folder()
    killed = trial.run(RESUMED, plan={"kill": 14}, folder=folder, may_fail=True)
    files = [file for file in folder.rglob("*") if file.is_file()]
    if not files:
        raise Failed("no state was saved")
    newest = max(file.stat().st_mtime_ns for file in files)
    recent = [file for file in files if newest - file.stat().st_mtime_ns < 20_000_000]
    largest = max(recent, key=lambda file: file.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])
    rest = trial.run(RESUMED, folder=folder, resume=True, may_fail=True)
    if rest.failed:
        return f"the run refused to start: {rest.ranks[0].last_line}"
    return "an older state was used: " + went_on(whole, killed, rest, len(whole.updates) - len(rest.updates))


@question("Are the states of two runs in one folder kept apart?", "A forgotten folder makes a new run go on from an old one.", "resume")
def two_runs_in_a_folder(trial: Trial) -> str:
    folder = trial.kit.folder()
    trial.run(RESUMED, plan={"kill": 14}, folder=folder, may_fail=True)
    second = trial.run(RESUMED, plan={"kill": KILLED}, folder=folder, may_fail=True, seed=1)
    if not second.updates and second.ranks[0].code > 0:
        return f"the second run refused to start: {second.ranks[0].last_line}"
    whole, rest = trial.run(RESUMED, seed=1), trial.run(RESUMED, folder=folder, resume=True, seed=1)
    return "the second run was resumed: " + went_on(whole, second, rest, len(whole.updates) - len(rest.updates))


@question("When one rank fails, does the run end soon, and say why?", "A run that hangs is paid for until somebody looks.", "processes")
def rank_fails(trial: Trial) -> str:
    launch = trial.run(processes=2, batch=2, plan={"fail": 3}, may_fail=True, limit=12.0)
    one, two = launch.ranks
    if two.code == 0 or "this failure of rank 1 was planned" not in two.text:
        raise Failed(f"rank 1 failed at update 4, ended with {two.code}, and said last: {two.last_line}")
    if one.code == 0:
        raise Failed("rank 0 ended as if nothing had happened")
    return f"rank 1 said why, and all ended within {max(one.seconds, two.seconds):.0f} s"


@question("When one rank hangs, do the others notice in time, and say so?", "A device that hangs is common, and stops all the others.", "processes", "timeout")
def rank_hangs(trial: Trial) -> str:
    launch = trial.run(processes=2, batch=2, timeout=2.0, plan={"hang": 3}, may_fail=True, limit=8.0)
    if launch.ranks[0].ended_by_kit or launch.ranks[0].code == 0:
        raise Failed("rank 1 hung at update 4; with a timeout of 2 s, rank 0 still waited after 8 s")
    return f"with a timeout of 2 s, rank 0 ended after {launch.ranks[0].seconds:.0f} s: {launch.ranks[0].last_line}"


@question("Does a loss of one rank that is no number leave all weights numbers?", "One bad sample ruins weights, and all states that are saved after it.", "processes")
def not_a_number(trial: Trial) -> str:
    launch = trial.run(processes=2, batch=2, plan={"not_a_number": 3}, may_fail=True, limit=12.0)
    if all(rank.code > 0 and not rank.ended_by_kit for rank in launch.ranks):
        return f"the run ended: {launch.ranks[0].last_line}"
    if launch.failed:
        raise Failed(f"ranks {launch.failed} ended otherwise than the others: {launch.ranks[launch.failed[0]].last_line}")
    if not all(math.isfinite(weight) for weight in launch.weights()):
        raise Failed("training went on to its end with weights that are no numbers")
    return "the update was left out, and all weights are numbers"


@question("Does a model with a parameter that nothing depends on train on 2 processes?", "Heads that are switched off are common.", "unused", "processes")
def unused_parameter(trial: Trial) -> str:
    job: Job = {"unused": True, "processes": 2, "batch": 2}
    return trained_as_if(trial.run(job), job)


@question("Do the statistics of a frozen layer stay as they are?", "train() of the whole model makes them follow the new data.", "frozen", "evaluate")
def frozen_statistics(trial: Trial) -> str:
    launch = trial.run(frozen=True, eval_samples=4)
    for rank in launch.ranks:
        parts = rank.finished[0] if rank.finished else {}
        if parts:
            expect(parts["norm.running_mean"], [0.0] * 4, "the mean of a frozen layer")
    return "mean and variance of a frozen layer are what they were"


@question("Do two optimizers both step in every update?", "A forgotten step or cleared gradient goes unnoticed.", "optimizers")
def several_optimizers(trial: Trial) -> str:
    job: Job = {"optimizers": 2}
    return trained_as_if(trial.run(job), job)


@question("Does dropout differ between the batches of an update, and is it on after an evaluation?", "A loop that does not return to train() regularizes in the first epoch only.", "accumulate", "evaluate")
def dropout_goes_on(trial: Trial) -> str:
    launch = trial.run(dropout=0.5, batch=12, samples=48, accumulate=2, eval_samples=4)
    for number, update in enumerate(launch.ranks[0].updates):
        if all(all(value == 1 for value in kept) for kept in update.kept):
            raise Failed(f"nothing was dropped in update {number + 1}")
        if update.kept[0] == update.kept[1]:
            raise Failed(f"both batches of update {number + 1} dropped the same")
    return f"{len(launch.updates)} updates of 2 batches dropped different values, also after an evaluation"


LONG = 4_000


@question(f"Does memory stay as it is over {LONG} updates?", "A list of losses with their graphs ends a run after days.")
def memory_stays(trial: Trial) -> str:
    launch = trial.run(samples=LONG, batch=1, epochs=1)
    updates = launch.ranks[0].updates
    if len(updates) != LONG:
        raise Failed(f"{LONG} batches made {len(updates)} updates")
    grown = (updates[-1].memory - updates[LONG // 4].memory) / (LONG * 3 / 4)
    if grown > 400:
        raise Failed(f"the process grew by {grown:.0f} bytes an update")
    return f"the process grew by {grown:.0f} bytes an update"


@question("Does an update cost less than 5 ms besides the model?", "Small models are bound by their loop.")
def cost_of_an_update(trial: Trial) -> str:
    times = [update.time for update in trial.run(samples=LONG, batch=1, epochs=1).ranks[0].updates[100:]]
    cost = sorted(b - a for a, b in zip(times, times[1:], strict=False))[len(times) // 2] * 1000
    if cost > 5:
        raise Failed(f"an update of a model with four weights takes {cost:.1f} ms")
    return f"an update of a model with four weights takes {cost:.2f} ms"


def ask(adapter: str | Path, only: Sequence[str] = (), kit: Kit | None = None) -> list[Answer]:
    """Asks an adapter all questions, or some.

    Args:
        adapter: its file.
        only: names of questions; all where there are none.
        kit: one that is kept, so that trainings are run once for several calls.

    Returns:
        The answers, in the order of the questions.

    Raises:
        ValueError: the file is no adapter, or a question has another name.
    """
    read = Adapter.read(adapter)
    known = {asked.name: asked for asked in QUESTIONS}
    unknown = [name for name in only if name not in known]
    if unknown:
        raise ValueError(f"there is no question {unknown[0]}: questions are {', '.join(known)}")
    if kit is not None:
        return [known[name].ask(kit, read) for name in only or known]
    with Kit() as own:
        return ask(adapter, only, own)


def as_json(adapter: Adapter, answers: Sequence[Answer]) -> dict[str, object]:
    """What a file of results says of one adapter."""
    return {"adapter": adapter.path.name, "about": adapter.about, "answers": [asdict(answer) for answer in answers]}
