"""A loop by hand in plain torch, which does everything that the kit asks for."""

import copy
import math
import os
import random
from datetime import timedelta
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Subset

ABOUT = "by hand: torch alone"
OFFERS = {
    "processes": "gradients are summed over ranks, and divided by the number of samples of all ranks",
    "accumulate": "batches of an update are counted, and the end of the epoch ends a group",
    "tokens": "the divisor of an update is the number of its tokens",
    "clip": "after the division",
    "schedules": "stepped after updates, epochs or evaluations",
    "evaluate": "sums of losses and counts over ranks",
    "metric": "outputs are gathered",
    "resume": "states are written beside the older one, and renamed",
    "other_number": "a state says how many samples all ranks have seen",
    "augment": "generators are seeded by seed, epoch and rank",
    "weighted": "all ranks draw the same, and take every n-th",
    "stream": "every n-th sample",
    "ema": "a copy of the weights, saved with them",
    "best": "a copy of the weights of the lowest loss",
    "early_stopping": "a count, saved with the weights",
    "timeout": "of the process group",
    "unused": "parameters without gradients are left out",
    "frozen": "eval() of the layer after every train()",
    "optimizers": "a list",
}


def train(job, seen):
    rank, world = job.rank, job.processes
    folder = Path(job.folder)
    if not job.resume and any(folder.glob("state-*.pt")):
        raise FileExistsError(f"{folder} holds states of another run: resume it, or choose another folder")
    if world > 1:
        dist.init_process_group("gloo", timeout=timedelta(seconds=job.timeout))
    model = job.model()
    if job.frozen:
        model.norm.requires_grad_(False)
    optimizers = job.make_optimizers(model)
    schedule = job.make_schedule(optimizers[0])
    kept = {"epoch": 0, "samples": 0, "update": 0, "best_loss": math.inf, "bad": 0, "best": None, "random": None}
    kept["ema"] = copy.deepcopy(model.state_dict())
    parts = [model, *optimizers, *([schedule] if schedule else [])]
    if job.resume:
        kept = load(folder, parts)
    restore = kept.pop("random", None) if rank == 0 else None

    def total(tensor):
        if world > 1:
            dist.all_reduce(tensor)
        return tensor

    def update(count):
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        count = total(count.clone())
        for gradient in gradients:
            total(gradient).div_(count)
        if job.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), job.clip)
        if not all(gradient.isfinite().all() for gradient in gradients):
            raise FloatingPointError("a gradient is not finite")
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if schedule and job.schedule in ("updates", "chained"):
            schedule.step()
        if job.ema:
            for name, value in model.state_dict().items():
                kept["ema"][name].mul_(job.ema).add_(value, alpha=1 - job.ema)
        kept["update"] += 1
        if job.save_every and kept["update"] % job.save_every == 0 and rank == 0:
            save(folder, parts, kept)

    while kept["epoch"] < job.epochs and not (job.patience and kept["bad"] >= job.patience):
        epoch = kept["epoch"]
        torch.manual_seed(job.seed * 1000 + epoch * 100 + rank)
        random.seed(job.seed * 1000 + epoch * 100 + rank)
        model.train()
        if job.frozen:
            model.norm.eval()
        done, batches, count = kept["samples"], 0, torch.zeros(())
        loading = loader(job, epoch)
        for number, (x, y) in enumerate(loading):
            if (number + 1) * job.batch * world <= done:
                continue
            if restore is not None:
                torch.set_rng_state(restore[0])
                random.setstate(restore[1])
                restore = None
            job.losses(model(x), y).sum().backward()
            count += job.count(y)
            batches += 1
            kept["samples"] += job.batch * world
            if batches == job.accumulate or number + 1 == len(loading):
                update(count)
                batches, count = 0, torch.zeros(())
        restore = None
        if job.eval_samples:
            loss, metric = evaluate(job, model, total)
            seen.evaluated(loss, metric)
            better = loss < kept["best_loss"]
            kept["bad"] = 0 if better else kept["bad"] + 1
            if better:
                kept["best_loss"], kept["best"] = loss, copy.deepcopy(model.state_dict())
            if schedule and job.schedule == "plateau":
                schedule.step(loss)
        if schedule and job.schedule == "epochs":
            schedule.step()
        kept["epoch"], kept["samples"] = epoch + 1, 0
    seen.finished(model, ema=kept["ema"], best=kept["best"])


def loader(job, epoch):
    generator = torch.Generator().manual_seed(job.seed * 1000 + epoch * 100)
    data = job.train_set()
    if job.stream:
        mine = list(islice(data, job.rank, None, job.processes))
    elif job.weighted:
        weights = torch.tensor(job.weights())
        order = torch.multinomial(weights, job.samples, replacement=True, generator=generator)
        mine = Subset(data, order[job.rank :: job.processes].tolist())
    else:
        order = torch.randperm(job.samples, generator=generator)
        mine = Subset(data, order[job.rank :: job.processes].tolist())
    seeds = torch.Generator().manual_seed(job.seed * 1000 + epoch * 100 + job.rank * 10)
    return DataLoader(mine, job.batch, num_workers=job.workers, generator=seeds)


@torch.no_grad()
def evaluate(job, model, total):
    model.eval()
    sums, outputs = torch.zeros(2), []
    for x, y in DataLoader(Subset(job.eval_set(), range(job.rank, job.eval_samples, job.processes)), job.batch):
        outputs.append(model(x))
        sums += torch.stack([job.losses(outputs[-1], y).sum(), job.count(y)])
    sums = total(sums)
    outputs = [torch.cat(outputs)]
    if job.processes > 1:
        gathered = [None] * job.processes
        dist.all_gather_object(gathered, outputs[0])
        outputs = gathered
    return (sums[0] / sums[1]).item(), job.metric(torch.cat(outputs))


def save(folder, parts, kept):
    state = {"parts": [part.state_dict() for part in parts], "kept": kept | {"random": random_states()}}
    path = folder / f"state-{kept['update']:08}.pt"
    torch.save(state, folder / "unfinished")
    os.replace(folder / "unfinished", path)
    for old in sorted(folder.glob("state-*.pt"))[:-2]:
        old.unlink()


def random_states():
    return torch.get_rng_state(), random.getstate()


def load(folder, parts):
    for path in sorted(folder.glob("state-*.pt"), reverse=True):
        try:
            state = torch.load(path, weights_only=False)
        except (RuntimeError, EOFError) as error:
            print(f"{path} is damaged, the state before it is used: {error}")
            continue
        for part, saved in zip(parts, state["parts"], strict=True):
            part.load_state_dict(saved)
        return state["kept"]
    raise FileNotFoundError(f"no whole state in {folder}")
