"""Loops and evaluations of sharded models are those of one process, also where a process has no sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import BatchOutput, Run, Trainer
from pa_core.types import SizedIterable
from tests.support.callbacks import TellAt
from tests.support.loops import updates_of
from tests.support.pa_core.sharding.by_hand import loss_of, require_same, updates_by_hand
from tests.support.sharded_models import TinyTransformer, sentences, sharded, tiny_transformer

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
                run.backward(loss + torch.inf if run.is_padding_batch else loss)
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


SIZES, BATCH_SIZES = (2, 3, 8, 13), (1, 2, 5)


class CountsErrors(Trainer):
    """Logs a metric of its own in each evaluation step."""

    @override
    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_eval_batch_loss(batch)
        self.log("errors", (output["model_outputs"].argmax(-1) != batch[1]).double().mean())
        return output


class OwnBatches:
    """No ``DataLoader``: one more batch on each following process."""

    def __len__(self) -> int:
        return 1 + 2 * dist.get_rank()

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return (sentences(3, seed=10 * dist.get_rank() + number) for number in range(len(self)))


def all_own_batches() -> tuple[Tensor, Tensor]:
    """Those of both processes."""
    batches = [sentences(3, seed=seed) for seed in (0, 10, 11, 12)]
    words, classes = zip(*batches, strict=True)
    return torch.cat(words), torch.cat(classes)


class OwnLoader(CountsErrors):
    """Evaluates batches of its own."""

    @override
    def create_eval_dataloader(
        self, batch_size: int, eval_dl_kwargs: dict[str, Any] | None = None
    ) -> SizedIterable[Any]:
        return OwnBatches()


def expected_metrics(model: TinyTransformer, words: Tensor, classes: Tensor) -> tuple[Tensor, float, float]:
    """The predictions, the loss and the share of errors of one process, in one batch."""
    with torch.no_grad():
        logits = model(words)
    loss = nn.functional.cross_entropy(logits, classes).item()
    return logits, loss, (logits.argmax(-1) != classes).double().mean().item()


def test_every_sample_counts_once() -> None:
    """The loss, a logged metric and gathered predictions, for many sizes of the dataset and of its batches."""
    model, plain, gathered = sharded(tiny_transformer()), tiny_transformer(), list[Tensor]()
    note = TellAt(
        "on_eval_step_end", lambda one, told: gathered.append(one.gather(told["batch_output"]["model_outputs"]))
    )
    trainer = CountsErrors(model, nn.CrossEntropyLoss(), None, callbacks=[note])
    for size in SIZES:
        for batch_size in BATCH_SIZES:
            words, classes = sentences(size, seed=size)
            gathered.clear()
            trainer.evaluate(TensorDataset(words, classes), batch_size)
            logits, loss, errors = expected_metrics(plain, words, classes)
            latest = trainer.run_history.get_latest_metric
            torch.testing.assert_close(torch.cat(gathered), logits, rtol=0, atol=1e-12)
            assert latest("evaluation_loss") == pytest.approx(loss, abs=1e-7)
            assert latest("evaluation_errors") == pytest.approx(errors, abs=1e-7)


def test_loaders_of_different_lengths() -> None:
    """Of a custom loader, each process evaluates its own batches; one without any calls the model for the others."""
    model, plain = sharded(tiny_transformer()), tiny_transformer()
    trainer = OwnLoader(model, nn.CrossEntropyLoss(), None, callbacks=[])
    trainer.evaluate(TensorDataset(*sentences(4)))
    _, loss, errors = expected_metrics(plain, *all_own_batches())
    assert trainer.run_history.get_latest_metric("evaluation_loss") == pytest.approx(loss, abs=1e-7)
    assert trainer.run_history.get_latest_metric("evaluation_errors") == pytest.approx(errors, abs=1e-7)


class TwoHeads(TinyTransformer):
    """Has keyword arguments, and an output that no loss needs, from a block that is used for nothing else."""

    @override
    def forward(self, words: Tensor, *, twice: dict[str, Any] | None = None) -> Any:
        hidden = self.embed(words)
        first, second = self.blocks[0](hidden), self.blocks[1](hidden)
        factor = 1.0 if twice is None else twice["factor"]
        return {"first": self.head(first.mean(dim=1)) * factor, "unused": self.head(second.mean(dim=1))}


def two_heads() -> TwoHeads:
    """The same on each process."""
    torch.manual_seed(0)
    return TwoHeads().double()


class CallsTwice(Trainer[Any, Any, Any, Any]):
    """Calls the model twice in a step, and leaves out what it returns beside."""

    @override
    def calculate_train_batch_loss(self, batch: Any) -> BatchOutput:
        words, classes = batch
        with torch.no_grad():
            weight = self.model(words)["unused"].softmax(-1).amax()
        logits = self.model(words=words, twice={"factor": torch.tensor(0.5).double() * weight})["first"]
        return {"loss": nn.functional.cross_entropy(logits, classes), "model_outputs": logits, "batch_size": len(words)}


def test_last_step_with_a_sample_on_one_process_only() -> None:
    """One sample is left for two processes: the update is that of one process, accumulated or not."""
    for accumulation in (1, 2):
        data = TensorDataset(*sentences(2 * 4 * accumulation + 1))
        model = sharded(tiny_transformer())
        trainer = Trainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks=[])
        trainer.train(data, 1, per_device_batch_size=4, gradient_accumulation_steps=accumulation)
        expected = tiny_transformer()
        optimizer = SGD(expected.parameters(), lr=0.1)
        list(updates_by_hand(expected, data, trainer.run_config.seed, 8 * accumulation, optimizer=optimizer))
        require_same(model, expected)


def test_a_step_calls_the_model_as_it_likes() -> None:
    """Twice, with keyword arguments, without gradients, and with a loss that needs a part of the outputs."""
    data = TensorDataset(*sentences(9))
    model = sharded(two_heads())
    trainer = CallsTwice(model, None, SGD(model.parameters(), lr=0.1), callbacks=[])
    trainer.train(data, 2, per_device_batch_size=4)
    assert trainer.num_updates_completed == 4
