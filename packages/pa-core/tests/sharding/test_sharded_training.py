"""A model that is sharded over two processes is trained as one process would train it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import (
    AnyTrainer,
    NonFiniteLossError,
    RanksDifferError,
    StopTrainingError,
    TerminateOnNaNCallback,
    Trainer,
    TrainerCallback,
    UnsupportedConfigurationError,
    gather_objects,
)
from pa_core._tensors import is_sharded
from tests.support.callbacks import CallAt, Notes
from tests.support.pa_core import entries
from tests.support.pa_core.entries import Step
from tests.support.pa_core.sharding.by_hand import require_same, updates_by_hand
from tests.support.sharded_models import (
    LENGTH,
    WORDS,
    TinyTransformer,
    sentences,
    sharded,
    tiny_transformer,
    whole_weights,
)

pytestmark = pytest.mark.runs_on("two_ranks")

UPDATES, PER_UPDATE = 5, 12
DATA = TensorDataset(*sentences(4 * PER_UPDATE + 5))
"""Samples for five updates of two batches of three on each of two processes; the last one is a batch of 3 and of 2."""


def train_by_hand(model: TinyTransformer, seed: int | None, **options: Any) -> TinyTransformer:
    """Make the updates as one process would."""
    list(updates_by_hand(model, DATA, seed, PER_UPDATE, **options))
    return model


def trainer_of(model: nn.Module, *callbacks: Any, **kwargs: Any) -> Trainer:
    """A trainer of a sharded model."""
    optimizer = AdamW(list(model.parameters()), lr=0.01)
    return Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=callbacks, **kwargs)


def train(trainer: Trainer, **kwargs: Any) -> None:
    """Make the updates, of two batches each."""
    trainer.train(DATA, 1, per_device_batch_size=3, gradient_accumulation_steps=2, **kwargs)
    assert trainer.num_updates_completed == UPDATES


@pytest.mark.parametrize(
    ("settings", "clip"),
    [
        ({}, None),
        ({"gradient_clip_norm": 0.1}, nn.utils.clip_grad_norm_),
        ({"gradient_clip_value": 0.001}, nn.utils.clip_grad_value_),
    ],
)
def test_five_updates_are_those_of_one_process(settings: dict[str, float], clip: Callable[..., Any] | None) -> None:
    """Accumulated, with an uneven last batch, clipped, in float64; the norm is that of all pieces."""
    results: list[Any] = []

    def before_step(model: nn.Module) -> None:
        results.extend(clip(model.parameters(), bound) for bound in settings.values() if clip is not None)

    trainer = trainer_of(sharded(tiny_transformer()))
    train(trainer, **settings)
    expected = train_by_hand(tiny_transformer(), trainer.run_config.seed, before_step=before_step)
    require_same(trainer.model, expected)
    assert all(map(is_sharded, trainer.model.parameters()))
    if "gradient_clip_norm" in settings:
        assert not is_sharded(trainer.gradient_norm)
        torch.testing.assert_close(trainer.gradient_norm, results[-1], rtol=1e-12, atol=0)


def test_what_is_left_out_of_sharding_is_trained_too() -> None:
    """A script that shards the blocks alone has the rest averaged, clipped together, and started from rank zero."""
    from torch.distributed.fsdp import fully_shard

    model = tiny_transformer()
    for block in model.blocks:
        fully_shard(block)
    with torch.no_grad():
        model.head.weight += dist.get_rank()
    trainer = trainer_of(model)
    train(trainer, gradient_clip_norm=0.1)

    def clip(model: nn.Module) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    expected = train_by_hand(tiny_transformer(), trainer.run_config.seed, before_step=clip)
    require_same(model, expected)


def loss_over_words(model: nn.Module, words: Tensor, classes: Tensor) -> Tensor:
    """The mean over words, of which samples have different numbers."""
    counts = words[:, 0] + 1
    losses = nn.functional.cross_entropy(model(words), classes, reduction="none")
    return (losses * counts).sum() / counts.sum()


def words_and_loss(model: nn.Module, batch: list[Tensor]) -> tuple[Tensor, int]:
    """The same, with the number of words."""
    return loss_over_words(model, *batch), int((batch[0][:, 0] + 1).sum())


def train_by_step(model: nn.Module, step: Step, optimizer: Optimizer | None = None, **options: Any) -> AnyTrainer:
    """Train with losses of the script's own."""
    arguments: dict[str, Any] = {"per_device_batch_size": 3, "gradient_accumulation_steps": 2, **options}
    return entries.train(
        "Trainer", model, optimizer or AdamW(model.parameters(), lr=0.01), DATA, step=step, **arguments
    )


def test_updates_are_means_over_items() -> None:
    """Items that are counted only when the step runs weigh the same on both processes."""
    model = sharded(tiny_transformer())
    trainer = train_by_step(model, words_and_loss)
    require_same(model, train_by_hand(tiny_transformer(), trainer.run_config.seed, loss_of=loss_over_words))


class Freezes(TrainerCallback):
    """Freezes a module until an update, and another one from there on."""

    def __init__(self, first: nn.Module, then: nn.Module, update: int) -> None:
        self.first, self.then, self.update = first, then, update

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.first.requires_grad_(False)

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        if update == self.update:
            self.first.requires_grad_(True)
            self.then.requires_grad_(False)


def test_layers_are_frozen_and_unfrozen_in_mid_run() -> None:
    """What is unfrozen gets the gradients of all processes, also a block that was frozen when the run began."""
    model = sharded(tiny_transformer())
    trainer = trainer_of(model, Freezes(model.blocks[0], model.blocks[1], update=2))
    train(trainer)
    expected = tiny_transformer()
    expected.blocks[0].requires_grad_(False)
    for update in updates_by_hand(expected, DATA, trainer.run_config.seed, PER_UPDATE):
        if update == 2:
            expected.blocks[0].requires_grad_(True)
            expected.blocks[1].requires_grad_(False)
    require_same(model, expected)


def test_a_request_of_one_process_stops_all_at_the_same_update() -> None:
    """The update is not made, and its gradients are not in the next run."""

    def stop(_trainer: Any) -> None:
        if dist.get_rank() == 1:
            raise StopTrainingError

    model = sharded(tiny_transformer())
    trainer = trainer_of(model, CallAt("on_train_step_end", stop, 1))
    trainer.train(DATA, 1, per_device_batch_size=3, gradient_accumulation_steps=2)
    assert gather_objects(trainer.num_updates_completed) == [1, 1]
    before = whole_weights(model)
    again = trainer_of(model)
    again.train(DATA, 1, per_device_batch_size=6, max_num_train_steps=1)
    expected = tiny_transformer()
    expected.load_state_dict(before)
    require_same(model, train_by_hand(expected, again.run_config.seed, most=1))


def test_a_block_that_is_unfrozen_in_mixed_precision_gets_gradients() -> None:
    """Torch has noted of its parameters nothing that it needs to exchange their gradients, when they were frozen."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.manual_seed(0)
    model = TinyTransformer()
    block = model.blocks[0].requires_grad_(False)
    for one in (block, model):
        fully_shard(one, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    before = whole_weights(model)
    trainer_of(model, Freezes(block, nn.Module(), update=1)).train(
        DATA, 1, per_device_batch_size=6, max_num_train_steps=2
    )
    after = whole_weights(model)
    assert [name for name in after if after[name].equal(before[name])] == []


@pytest.mark.parametrize("by_blocks", [False, True])
def test_calls_without_a_backward_pass_leave_nothing_gathered(by_blocks: bool) -> None:
    """Neither before the run, nor in a callback, nor in an evaluation, which has the weights of the last update.

    A callback calls the model on all processes, also after the last update, for which one of them has no sample.
    """
    from torch.distributed.fsdp import fully_shard

    seen: list[float] = Notes()

    def call(trainer: AnyTrainer) -> None:
        model = trainer.get_model()
        with torch.no_grad():
            seen.append(model(DATA.tensors[0][:2]).sum().item())
        assert all(map(is_sharded, model.parameters()))
        with torch.no_grad():
            model.get_parameter("head.bias").mul_(1)  # would be lost on what is gathered

    model, data = tiny_transformer(), TensorDataset(*(tensor[:-4] for tensor in DATA.tensors))
    if by_blocks:
        sharded(model)
    else:
        fully_shard(model)
    trainer = trainer_of(model, CallAt("on_optimizer_step_end", call))
    with torch.no_grad():
        model(DATA.tensors[0][:2])
    trainer.train(data, 1, DATA, per_device_batch_size=6)
    expected = tiny_transformer()
    list(updates_by_hand(expected, data, trainer.run_config.seed, PER_UPDATE))
    require_same(model, expected)
    words, classes = DATA.tensors
    loss = nn.functional.cross_entropy(expected(words), classes).item()
    assert trainer.run_history.get_latest_metric("eval_loss_epoch") == pytest.approx(loss, rel=1e-12)
    first, second = gather_objects([*seen])
    assert first == second
    assert len(first) == 5


def test_a_model_computes_in_the_precision_of_the_run() -> None:
    """Where fully_shard was told none, by autocast; the weights stay what they are."""
    model = sharded(TinyTransformer())
    kinds: set[torch.dtype] = set()
    model.blocks[0].get_submodule("feed.0").register_forward_hook(
        lambda _layer, _inputs, output: kinds.add(output.dtype)
    )
    trainer_of(model, mixed_precision="bf16").train(DATA, 1, per_device_batch_size=3, max_num_train_steps=1)
    assert kinds == {torch.bfloat16}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_a_loss_that_is_not_finite_on_one_process_ends_the_run_on_all() -> None:
    """Before the update that it would spoil."""
    updates = 0

    def count(_trainer: Any) -> None:
        nonlocal updates
        updates += 1

    def spoiled(model: nn.Module, batch: Any) -> Tensor:
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        return loss * float("nan") if dist.get_rank() == 1 and updates == 1 else loss

    model = sharded(tiny_transformer())
    with pytest.raises(NonFiniteLossError):
        train_by_step(model, spoiled, callbacks=[TerminateOnNaNCallback, CallAt("on_optimizer_step_end", count)])
    assert updates == 1
    assert all(weights.isfinite().all() for weights in whole_weights(model).values())


def with_batch_norm() -> nn.Sequential:
    """A network whose running statistics change with each batch, the same on each process."""
    torch.manual_seed(0)
    size = LENGTH * 4
    return nn.Sequential(nn.Embedding(WORDS, 4), nn.Flatten(), nn.BatchNorm1d(size), nn.Linear(size, 3)).double()


def test_buffers_and_added_modules_are_as_beside_a_plain_model() -> None:
    """Each step begins with the buffers of rank zero, and what is added is averaged, and clipped with the rest."""
    from torch.distributed.fsdp import fully_shard

    class WithHead(Trainer):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> Any:
            words, classes = batch
            loss = nn.functional.cross_entropy(self.modules["head"](self.model(words)), classes)
            return {"loss": loss, "model_outputs": None, "batch_size": len(words)}

    results: list[dict[str, Tensor]] = []
    for sharding in (True, False):
        model, head = with_batch_norm(), nn.Linear(3, 3, dtype=torch.float64)
        if sharding:
            fully_shard(model)
        trainer = WithHead(model, None, SGD(model.parameters(), lr=0.1), callbacks=[])
        with torch.no_grad():
            head.weight.copy_(torch.eye(3))
            head.bias.zero_()
        trainer.add_module("head", head, SGD(head.parameters(), lr=0.1))
        torch.manual_seed(1)
        train(trainer, gradient_clip_norm=0.1)
        results.append(
            {**whole_weights(model), **whole_weights(nn.ModuleDict({"head": head})), **dict(model.named_buffers())}
        )
    torch.testing.assert_close(*results, rtol=0, atol=1e-12)


def test_what_would_not_be_averaged_over_all_processes_is_refused() -> None:
    """A mesh of some of the processes, another divisor, and pieces that fully_shard does not know of."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "tensor"))
    of_some = tiny_transformer()
    fully_shard(of_some, mesh=mesh["tensor"])
    divided = tiny_transformer()
    fully_shard(divided).set_gradient_divide_factor(1.0)
    split = tiny_transformer()
    split.head.weight = nn.Parameter(distribute_tensor(split.head.weight.detach(), mesh["data"], [Shard(0)]))
    for model, given in ((of_some, "mesh has 1"), (divided, "divide_factor"), (split, "DTensor")):
        with pytest.raises(UnsupportedConfigurationError, match=given):
            trainer_of(model).train(DATA, 1)


def test_a_step_that_goes_round_the_model_is_told_what_to_do() -> None:
    """Torch's own error about mixed tensors does not say that a layer was called by itself."""

    def goes_round(model: Any, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model.head(model.embed(batch[0]).mean(dim=1)), batch[1])

    with pytest.raises(RuntimeError) as raised:
        train_by_step(sharded(tiny_transformer()), goes_round)
    assert any("register_fsdp_forward_method" in note for note in raised.value.__notes__)


class UsesOnRankZero(nn.Sequential):
    """A network whose second layer takes part on one process only."""

    @override
    def forward(self, input: Tensor) -> Tensor:
        outputs: Tensor = self[0](input)
        return outputs + self[1](input) if dist.get_rank() == 0 else outputs


def test_parameters_may_be_unused_on_some_processes_where_accelerate_is_told_so() -> None:
    """A process that leaves some out exchanges zeros for them, so that all exchange the same; from torch 2.13 on."""
    from accelerate import Accelerator, DistributedDataParallelKwargs
    from torch.distributed.fsdp import FSDPModule, fully_shard

    class Finds(Trainer):
        @override
        def create_accelerator(self) -> Any:
            return Accelerator(cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)])

    torch.manual_seed(0)
    model = UsesOnRankZero(nn.Linear(2, 1), nn.Linear(2, 1)).double()
    fully_shard(model)
    before = whole_weights(model)
    inputs = torch.ones(4, 2, dtype=torch.float64)
    trainer = Finds(model, nn.L1Loss(), SGD(model.parameters(), lr=0.1), callbacks=[])
    data = TensorDataset(inputs, torch.full((4, 1), -9.0, dtype=torch.float64))
    if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
        with pytest.raises(UnsupportedConfigurationError, match=r"torch 2\.13 or newer"):
            trainer.train(data, 1, per_device_batch_size=2)
        return
    trainer.train(data, 1, per_device_batch_size=2)
    moved = {name: before[name] - weights for name, weights in whole_weights(model).items()}
    assert moved["0.bias"].item() == pytest.approx(0.1)  # by the mean of the gradients of all samples, 1
    assert moved["1.bias"].item() == pytest.approx(0.05)  # by that of half of them


def test_an_optimizer_that_was_made_before_its_model_was_sharded_by_hand() -> None:
    """The error says when to make it, also where it holds a parameter that stayed the same."""
    model = tiny_transformer()
    optimizer, scale = SGD(model.parameters(), lr=0.1), nn.Parameter(torch.ones(()))
    optimizer.add_param_group({"params": [scale]})
    sharded(model).register_parameter("scale", scale)
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[])
    with pytest.raises(UnsupportedConfigurationError, match="Create it after the calls of fully_shard"):
        trainer.train(TensorDataset(*sentences(8)), 1)


class LikeProdigy(SGD):
    """Its rate depends on all gradients at once, from the second step on."""

    steps = 0

    @override
    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        for group in self.param_groups:
            pieces = [one.grad.to_local() for one in group["params"] if one.grad is not None]
            if self.steps > 1:
                group["d"] = float(sum(piece.square().sum() for piece in pieces))
        return super().step(closure)


@pytest.mark.parametrize("steps", [0, -3])
def test_an_optimizer_whose_step_depends_on_all_weights_is_named(steps: int) -> None:
    """After the first updates, or at the end of the epoch: it is not the script that is blamed."""
    model = sharded(tiny_transformer())
    optimizer = LikeProdigy(model.parameters(), lr=0.01)
    optimizer.param_groups[0]["d"], optimizer.steps = 1e-6, steps
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=())
    with pytest.raises(RanksDifferError, match="AdamW") as caught:
        trainer.train(DATA, 3, per_device_batch_size=3)
    if steps == 0:
        assert "LikeProdigy" in str(caught.value)
        assert ", d: " in str(caught.value)
        assert trainer.num_updates_completed == 2
