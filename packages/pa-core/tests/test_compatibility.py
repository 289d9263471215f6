"""What accelerate can be set up to do works as docs/beyond-ddp.md says, or is refused before the first step.

Among them is a model from `torch.compile`, as in docs/speed-and-memory.md.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import (
    DDPCommunicationHookType,
    DistributedDataParallelKwargs,
    DistributedType,
    DynamoBackend,
    FullyShardedDataParallelPlugin,
    ParallelismConfig,
    TorchDynamoPlugin,
)
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import (
    AnyTrainer,
    StopTrainingError,
    Trainer,
    TrainerCallback,
    UnsupportedConfigurationError,
    gather_objects,
)
from pa_core.data import epoch_order
from tests.support.explained import assert_explained
from tests.support.loops import updates_of
from tests.support.models import weights_of
from tests.support.sharded_models import whole_weights

DOCS = Path(__file__).parents[3] / "docs" / "beyond-ddp.md"
CLIP_AT = 0.3


def table() -> dict[str, str]:
    """The rows of the table: a setting, and its status."""
    text = next(part for part in DOCS.read_text().split("\n\n") if part.startswith("| setting | status"))
    rows = [line.strip("| ").split(" | ") for line in text.splitlines()[2:]]
    return dict(rows)


def on_cpu(**kwargs: Any) -> Any:
    """An Accelerator as a user's `_create_accelerator` would make it."""
    return Accelerator(cpu=True, **kwargs)


def with_ddp(**kwargs: Any) -> Callable[[], Any]:
    """An Accelerator with settings for DistributedDataParallel."""
    return lambda: on_cpu(kwargs_handlers=[DistributedDataParallelKwargs(**kwargs)])


def of_type(name: str) -> Callable[[], Any]:
    """An Accelerator that says it is of a kind which no CPU can run."""

    def create() -> Any:
        accelerator = on_cpu()
        accelerator.state.distributed_type = DistributedType[name]
        return accelerator

    return create


def with_parallelism() -> Any:
    """An Accelerator whose processes compute the same samples together."""
    return on_cpu(parallelism_config=ParallelismConfig(cp_size=2))


def in_fp8() -> Any:
    """An Accelerator that says it computes in fp8, for which no CPU has the packages."""
    accelerator = on_cpu()
    accelerator.state._mixed_precision = "fp8"
    return accelerator


def compiling(**kwargs: Any) -> Callable[[], Any]:
    """An Accelerator that compiles, without a code generator."""
    return lambda: on_cpu(dynamo_plugin=TorchDynamoPlugin(backend=DynamoBackend.AOT_EAGER, **kwargs))


HOOK = DDPCommunicationHookType
ACCELERATORS: dict[str, Callable[[], Any]] = {
    "`DistributedDataParallel`, as it is": on_cpu,
    "`find_unused_parameters=True`": with_ddp(find_unused_parameters=True),
    "`static_graph=True`": with_ddp(static_graph=True),
    "`gradient_as_bucket_view=True`": with_ddp(gradient_as_bucket_view=True),
    "`broadcast_buffers=False`": with_ddp(broadcast_buffers=False),
    "`bucket_cap_mb=1`": with_ddp(bucket_cap_mb=1),
    "`comm_hook=FP16`": with_ddp(comm_hook=HOOK.FP16),
    "`comm_hook=BF16`": with_ddp(comm_hook=HOOK.BF16),
    "`comm_hook=POWER_SGD`": with_ddp(comm_hook=HOOK.POWER_SGD),
    "`comm_hook=BATCHED_POWER_SGD`": with_ddp(comm_hook=HOOK.BATCHED_POWER_SGD),
    "`dynamo_backend`": compiling(),
    "`dynamo_backend`, regional": compiling(use_regional_compilation=True),
    "`DEEPSPEED`": of_type("DEEPSPEED"),
    "FSDP2": lambda: on_cpu(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2)),
    "FSDP1": lambda: on_cpu(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=1)),
    "`MEGATRON_LM`": of_type("MEGATRON_LM"),
    "`XLA`": of_type("XLA"),
    "`ParallelismConfig` with tensor, context or sequence parallelism": with_parallelism,
    '`mixed_precision="fp8"`': in_fp8,
}
TWO_RANKS_ONLY = {"a model from `fully_shard`", "a model in `DistributedDataParallel`"}


def as_it_is(model: nn.Module) -> nn.Module:
    """The model of a row that says nothing of it."""
    return model


def sharded(model: nn.Module) -> nn.Module:
    """The model with its parameters split over two ranks, in place."""
    for block in cast("Blocks", model).blocks:
        fully_shard(block, mesh=init_device_mesh("cpu", (2,)))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    return model


MODELS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "a model from `torch.compile`": lambda model: cast("nn.Module", torch.compile(model, backend="aot_eager")),
    "a model from `fully_shard`": sharded,
    "a model in `DistributedDataParallel`": DistributedDataParallel,
}


def regression(num_samples: int) -> TensorDataset:
    """Samples in double precision."""
    generator = torch.Generator().manual_seed(num_samples)
    inputs = torch.randn(num_samples, 4, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())


class Blocks(nn.Module):
    """Repeated blocks, which regional compilation looks for in a `ModuleList`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 1)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2))

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        for block in self.blocks:
            hidden = block(hidden)
        return cast("Tensor", self.last(hidden))


def small_network() -> nn.Module:
    """A network in double precision, the same on each rank."""
    torch.manual_seed(0)
    return Blocks().double()


def train_by_hand(model: nn.Module, data: TensorDataset, seed: int, samples_per_update: int) -> None:
    """Two epochs of clipped updates, each of the whole batch of the update."""
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    for inputs, targets in updates_of(data, seed, 2, samples_per_update):
        torch.autograd.backward(nn.functional.mse_loss(model(inputs), targets))
        clip_grad_norm_(model.parameters(), CLIP_AT)
        optimizer.step()
        optimizer.zero_grad()


class Checks(TrainerCallback):
    """Saves at the end of each epoch, and stops a run on the last rank alone when told to."""

    def __init__(self, path: Path) -> None:
        self.path, self.stops = path, False

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        last_rank = trainer.run_config.num_processes - 1
        is_here = (dist.get_rank() if last_rank else 0) == last_rank and trainer.run_history.current_epoch == 2
        if self.stops and is_here and kwargs["step"] == 2:
            raise StopTrainingError("on the last rank")

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        trainer.save_checkpoint(self.path)


def trainer_of(row: str, model: nn.Module, *callbacks: TrainerCallback) -> Trainer[nn.Module]:
    """The trainer of a row of the table."""

    class Configured(Trainer[nn.Module]):
        @override
        def _create_accelerator(self) -> Any:
            return ACCELERATORS.get(row, on_cpu)()

    given = MODELS.get(row, as_it_is)(model)
    return Configured(given, nn.MSELoss(), SGD(given.parameters(), lr=0.1, momentum=0.9), callbacks)


def rows_that(*verdicts: str) -> list[str]:
    """The settings of which the table says this."""
    return [row for row, said in table().items() if said in verdicts]


def test_the_table_is_complete() -> None:
    """Each row either works in some way, or is refused, or was not tried; and each is tested that can be."""
    tried = {*rows_that("supported", "rounded"), *rows_that("error")}
    assert tried | set(rows_that("untested")) == set(table())
    assert tried == ACCELERATORS.keys() | MODELS.keys()


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.filterwarnings("ignore:.broadcast_buffers. is deprecated:FutureWarning")  # in favour of a newer name
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # torch hides it
@pytest.mark.parametrize("row", rows_that("supported", "rounded"))
def test_what_works(row: str, shared_tmp_path: Path) -> None:
    """Uneven clipped updates are those of whole batches, evaluation is exact, all stop together, names are plain."""
    if row in TWO_RANKS_ONLY and not dist.is_initialized():
        return
    model, data, unseen = small_network(), regression(37), regression(13)
    by_hand, checks = copy.deepcopy(model), Checks(shared_tmp_path / "checkpoint.pt")
    trainer = trainer_of(row, model, checks)
    given = trainer.model
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    run = partial(trainer.train, data, 2, unseen, 8 // ranks, gradient_accumulation_steps=3)
    run(gradient_clip_norm=CLIP_AT)
    assert trainer.model is given

    assert trainer.run_config.seed is not None
    train_by_hand(by_hand, data, trainer.run_config.seed, samples_per_update=24)
    tolerance = 1e-12 if table()[row] != "rounded" else 0.05
    weights = torch.cat([one.reshape(-1) for one in whole_weights(model).values()])
    torch.testing.assert_close(weights, weights_of(by_hand), rtol=0, atol=tolerance)
    assert all(torch.equal(weights, other) for other in gather_objects(weights))

    with torch.no_grad():
        expected = nn.functional.mse_loss(model(unseen.tensors[0]), unseen.tensors[1]).item()
    assert float(trainer.run_history.get_latest_metric("eval_loss_epoch")) == pytest.approx(expected, abs=1e-12)

    trainer.save_model(shared_tmp_path / "exported")
    content = trainer.load_checkpoint(checks.path)
    assert content["model_state_dict"].keys() == by_hand.state_dict().keys()
    assert torch.equal(weights, torch.cat([one.reshape(-1) for one in content["model_state_dict"].values()]))
    if trainer.run_config.is_world_process_zero:
        assert load_file(shared_tmp_path / "exported" / "model.safetensors").keys() == by_hand.state_dict().keys()

    checks.stops = True
    run()
    assert gather_objects(trainer.num_updates_completed) == [2] * ranks


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("row", rows_that("error"))
def test_what_is_refused(row: str) -> None:
    """A trainer of a refused setting cannot be made, and the error says what was given and what to do."""
    if row in TWO_RANKS_ONLY and not dist.is_initialized():
        return
    with pytest.raises(UnsupportedConfigurationError) as caught:
        trainer_of(row, small_network())
    assert_explained(caught.value, "is not supported. ")


@pytest.mark.runs_on("two_ranks")
@pytest.mark.parametrize("hook", [row for row in rows_that("supported", "rounded") if "comm_hook" in row])
def test_counts_are_not_compressed(hook: str) -> None:
    """Counts of items that half precision cannot hold weigh a step as they do without compression."""

    class CountsItems(Trainer[nn.Module]):
        @override
        def _create_accelerator(self) -> Any:
            return ACCELERATORS[hook]()

        @override
        def calculate_train_batch_loss(self, batch: Any) -> Any:
            output = super().calculate_train_batch_loss(batch)
            items = 70_001 if dist.get_rank() == 0 else 210_003
            return {**output, "loss": output["loss"] * 1e-3, "num_items_in_batch": items}

    model, data = small_network(), regression(8)
    by_hand = copy.deepcopy(model)
    trainer = CountsItems(model, nn.MSELoss(), SGD(model.parameters(), lr=100), [])
    trainer.train(data, 1, per_device_batch_size=4)

    order = epoch_order(8, seed=cast("int", trainer.run_config.seed), epoch=0).indices(0, 8)
    batches = [data[part] for part in torch.split(order, 4)]
    losses = [nn.functional.mse_loss(by_hand(inputs), targets) for inputs, targets in batches]
    torch.autograd.backward(0.25 * losses[0] + 0.75 * losses[1])
    SGD(by_hand.parameters(), lr=0.1).step()
    tolerance = 1e-3 if "BF16" in hook else 1e-4
    torch.testing.assert_close(weights_of(model), weights_of(by_hand), rtol=0, atol=tolerance)


@pytest.mark.parametrize("variable", ["ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP", "ACCELERATE_USE_MEGATRON_LM"])
def test_sharding_that_a_launcher_asked_for(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `accelerate launch` asks for is refused, also where accelerate would ignore it or miss a package."""
    monkeypatch.setenv(variable, "true")
    with pytest.raises(UnsupportedConfigurationError, match=variable):
        trainer_of("", small_network())


def test_fp8_that_a_launcher_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """`accelerate launch --mixed_precision fp8` is refused: its layers would not be converted."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp8")
    with pytest.raises(UnsupportedConfigurationError, match="fp8"):
        trainer_of("", small_network())
