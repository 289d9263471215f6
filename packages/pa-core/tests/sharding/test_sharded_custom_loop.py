"""A loop of one's own trains sharded models as one process would."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.utils.data import TensorDataset

from pa_core import Run
from tests.support.loops import updates_of
from tests.support.pa_core.sharding.by_hand import loss_of, require_same, updates_by_hand
from tests.support.sharded_models import sentences, sharded, tiny_transformer

pytestmark = pytest.mark.runs_on("two_ranks")

PER_UPDATE = 12
DATA = TensorDataset(*sentences(2 * PER_UPDATE + 5))


def whole_batches(seed: int | None) -> list[list[Tensor]]:
    """The samples of each update, as one process would have them."""
    return list(updates_of(DATA, seed, 1, PER_UPDATE))


def test_updates_are_those_of_one_process() -> None:
    """Batches of a group have several passes, one of them twice through a graph, and gradients are clipped."""
    model, expected = sharded(tiny_transformer()), tiny_transformer()
    optimizer = AdamW(model.parameters(), lr=0.01)
    arguments: dict[str, Any] = {"per_device_batch_size": 3, "gradient_accumulation_steps": 2}
    with Run(model, optimizer, DATA, num_epochs=1, gradient_clip_norm=0.1, **arguments) as run:
        for update in run.updates():
            for words, classes in update:
                loss = loss_of(model, words, classes)
                update.backward(loss, retain_graph=True)
                update.backward(loss * 0.5)
                update.backward(model(words).square().mean())
            update.step()

    def loss_by_hand(model: nn.Module, words: Tensor, classes: Tensor) -> Tensor:
        squares: Tensor = model(words).square()
        return loss_of(model, words, classes) * 1.5 + squares.mean()

    def clip(model: nn.Module) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    list(updates_by_hand(expected, DATA, run.run_config.seed, PER_UPDATE, loss_of=loss_by_hand, before_step=clip))
    assert run.num_updates_completed == 3
    require_same(model, expected)


def test_several_updates_out_of_one_batch_are_those_of_one_process() -> None:
    """Of pieces that the loop makes, of which the second process has none in the last update."""
    model, expected = sharded(tiny_transformer()), tiny_transformer()
    arguments: dict[str, Any] = {"per_device_batch_size": PER_UPDATE // 2, "max_updates_per_batch": 2}
    data = TensorDataset(*(tensor[: 2 * PER_UPDATE] for tensor in DATA.tensors))
    with Run(model, SGD(model.parameters(), lr=0.1), data, num_epochs=1, **arguments) as run:
        for words, classes in run.batches():
            pieces = list(zip(words.split(3), classes.split(3), strict=True))
            for some_words, some_classes in run.batches(pieces[: 2 - dist.get_rank()]):
                loss = loss_of(model, some_words, some_classes)
                run.backward(loss + torch.inf if run.is_at_empty_batch else loss)
                run.step()
    optimizer = SGD(expected.parameters(), lr=0.1)
    for words, classes in updates_of(data, run.run_config.seed, 1, PER_UPDATE):
        for rows in ([0, 1, 2, 6, 7, 8], [3, 4, 5]):
            torch.autograd.backward(loss_of(expected, words[rows], classes[rows]))
            optimizer.step()
            optimizer.zero_grad()
    assert run.num_updates_completed == 4
    require_same(model, expected)


def judged(critic: nn.Module, outputs: Tensor) -> Tensor:
    """What a critic thinks of outputs."""
    return nn.functional.softplus(critic(outputs)).mean()


def critic() -> nn.Sequential:
    """A critic of outputs, the same on each process."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()


def test_sharded_models_are_trained_against_each_other() -> None:
    """A pass through another model leaves the gradients of that alone, in graphs that both are in."""
    from torch.distributed.fsdp import fully_shard

    models: dict[str, Any] = {"maker": sharded(tiny_transformer()), "critic": fully_shard(critic())}
    optimizers: dict[str, Any] = {name: SGD(model.parameters(), lr=0.1) for name, model in models.items()}
    teacher = sharded(tiny_transformer(seed=5)).requires_grad_(False)
    maker, judge = models["maker"], models["critic"]
    with Run(
        {**models, "teacher": teacher},
        optimizers,
        DATA,
        num_epochs=1,
        per_device_batch_size=3,
        gradient_accumulation_steps=2,
    ) as run:
        for update in run.updates():
            for words, _ in update:
                made, taught = maker(words), teacher(words)
                update.backward(judged(judge, made) - judged(judge, taught), model="critic", retain_graph=True)
                update.backward(-judged(judge, made), model="maker")
            update.step("critic")
            update.step("maker")
    expected = {"maker": tiny_transformer(), "critic": critic()}
    optimizers = {name: SGD(model.parameters(), lr=0.1) for name, model in expected.items()}
    plain_teacher = tiny_transformer(seed=5)
    for words, _ in whole_batches(run.run_config.seed):
        made, taught = expected["maker"](words), plain_teacher(words).detach()
        loss = judged(expected["critic"], made) - judged(expected["critic"], taught)
        torch.autograd.backward(loss, retain_graph=True, inputs=list(expected["critic"].parameters()))
        torch.autograd.backward(-judged(expected["critic"], made), inputs=list(expected["maker"].parameters()))
        for optimizer in optimizers.values():
            optimizer.step()
            optimizer.zero_grad()
    for name, model in models.items():
        require_same(model, expected[name])
