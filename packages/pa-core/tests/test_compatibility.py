"""What accelerate can be set up to do works, has no effect or is refused, as docs/beyond-ddp.md says.

Models are compiled as in docs/speed-and-memory.md.
"""

from __future__ import annotations

import copy
import inspect
import os
import re
import warnings
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import (
    AutocastKwargs,
    DataLoaderConfiguration,
    DDPCommunicationHookType,
    DeepSpeedPlugin,
    DistributedDataParallelKwargs,
    DistributedType,
    DynamoBackend,
    FullyShardedDataParallelPlugin,
    GradientAccumulationPlugin,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    KwargsHandler,
    ParallelismConfig,
    ProfileKwargs,
    ProjectConfiguration,
    TorchDynamoPlugin,
)
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader, TensorDataset
from typing_extensions import override

from pa_core import (
    AnyTrainer,
    StopTrainingError,
    Trainer,
    TrainerCallback,
    UnsupportedConfigurationError,
    gather_objects,
)
from pa_core.sharding.sharding_plan import ShardingSettings
from pa_data.orders import epoch_order
from tests.support.callbacks import AlsoAt, CallAt
from tests.support.explained import assert_explained
from tests.support.loops import optimizer_of, train_by_hand, updates_of
from tests.support.models import weights_of
from tests.support.pa_core.entries import StepTrainer, squared_error
from tests.support.sharded_models import whole_weights

DOCS = Path(__file__).parents[3] / "docs" / "beyond-ddp.md"
IN_PARTS = {"dataloader_config", "fsdp_plugin", "gradient_accumulation_plugin", "kwargs_handlers"}
NOT_HANDLERS = {"GradientAccumulationPlugin", "TorchDynamoPlugin"}  # by class only; accelerate takes them elsewhere
"""Arguments whose fields or classes have rows of their own."""


def table(of: str = "argument") -> dict[str, str]:
    """The rows of the tables of arguments, or of fields: a name, and its status."""
    tables = [part for part in DOCS.read_text().split("\n\n") if part.startswith(f"| {of} | status")]
    return dict(re.findall(r"^\| `([\w.]+)` \| ([a-z ]+) \|", "\n".join(tables), re.MULTILINE))


def installed_settings() -> set[str]:
    """What the Accelerator that is installed can be given: arguments, fields of two of them, classes of handlers."""
    arguments = {*inspect.signature(Accelerator).parameters}
    parts = {
        f"{kind.__name__}.{field.name}"
        for kind in (DataLoaderConfiguration, GradientAccumulationPlugin)
        for field in fields(kind)
    }
    handlers = {kind.__name__ for kind in KwargsHandler.__subclasses__()} - NOT_HANDLERS
    return arguments | parts | handlers | {"FP8RecipeKwargs"}


def on_cpu(**kwargs: Any) -> Any:
    """An Accelerator as a user's `create_accelerator` would make it."""
    return Accelerator(cpu=True, **kwargs)


def loading(**kwargs: Any) -> Any:
    """An Accelerator with settings for loaders."""
    return on_cpu(dataloader_config=DataLoaderConfiguration(**kwargs))


def accumulating(**kwargs: Any) -> Any:
    """An Accelerator with a plugin for accumulation."""
    return on_cpu(gradient_accumulation_plugin=GradientAccumulationPlugin(**kwargs))


def handling(handler: KwargsHandler, **kwargs: Any) -> Any:
    """An Accelerator with one handler."""
    return on_cpu(kwargs_handlers=[handler], **kwargs)


def in_tensor_parallel() -> Any:
    """An Accelerator whose processes compute the same samples together."""
    return on_cpu(parallelism_config=ParallelismConfig(cp_size=2))


SETTINGS: dict[str, Callable[[], Any]] = {
    "device_placement": partial(on_cpu, device_placement=False),
    "mixed_precision": partial(on_cpu, mixed_precision="bf16"),
    "gradient_accumulation_steps": partial(on_cpu, gradient_accumulation_steps=2),
    "cpu": on_cpu,
    "rng_types": partial(on_cpu, rng_types=["torch"]),
    "log_with": partial(on_cpu, log_with="tensorboard", project_dir="runs"),
    "project_dir": partial(on_cpu, project_dir="runs"),
    "project_config": lambda: on_cpu(project_config=ProjectConfiguration(total_limit=2)),
    "step_scheduler_with_optimizer": partial(on_cpu, step_scheduler_with_optimizer=False),
    "dynamo_backend": partial(on_cpu, dynamo_backend="aot_eager"),
    "dynamo_plugin": lambda: on_cpu(dynamo_plugin=TorchDynamoPlugin(backend=DynamoBackend.AOT_EAGER)),
    "deepspeed_plugin": lambda: on_cpu(deepspeed_plugin=DeepSpeedPlugin(zero_stage=1)),
    "deepspeed_plugins": lambda: on_cpu(deepspeed_plugins=DeepSpeedPlugin(zero_stage=0)),
    "parallelism_config": lambda: on_cpu(parallelism_config=ParallelismConfig(dp_shard_size=1)),
    "torch_tp_plugin": in_tensor_parallel,
    "DataLoaderConfiguration.dispatch_batches": partial(loading, dispatch_batches=False),
    "DataLoaderConfiguration.even_batches": partial(loading, even_batches=False),
    "DataLoaderConfiguration.use_seedable_sampler": partial(loading, use_seedable_sampler=True),
    "DataLoaderConfiguration.data_seed": partial(loading, data_seed=7),
    "DataLoaderConfiguration.non_blocking": partial(loading, non_blocking=True),
    "DataLoaderConfiguration.use_stateful_dataloader": partial(loading, use_stateful_dataloader=True),
    "GradientAccumulationPlugin.num_steps": partial(accumulating, num_steps=2),
    "GradientAccumulationPlugin.adjust_scheduler": partial(accumulating, num_steps=1, adjust_scheduler=False),
    "GradientAccumulationPlugin.sync_with_dataloader": partial(accumulating, num_steps=1, sync_with_dataloader=False),
    "GradientAccumulationPlugin.sync_each_batch": partial(accumulating, num_steps=1, sync_each_batch=True),
    "DistributedDataParallelKwargs": lambda: handling(DistributedDataParallelKwargs(bucket_cap_mb=1)),
    "InitProcessGroupKwargs": lambda: handling(InitProcessGroupKwargs()),
    "AutocastKwargs": lambda: handling(AutocastKwargs(enabled=False), mixed_precision="bf16"),
    "GradScalerKwargs": lambda: handling(GradScalerKwargs(init_scale=2.0)),
    "ProfileKwargs": lambda: handling(ProfileKwargs()),
}
"""How to ask for each setting on one CPU process."""

ELSEWHERE = {
    "split_batches": "test_what_is_refused_on_several_processes",
    "DataLoaderConfiguration.split_batches": "test_what_is_refused_on_several_processes",
    # By the environment or the kind of process that they make.
    "megatron_lm_plugin": "test_settings_that_are_refused",
    "FP8RecipeKwargs": "test_settings_that_are_refused",
    "AORecipeKwargs": "test_settings_that_are_refused",
    "TERecipeKwargs": "test_settings_that_are_refused",
    "MSAMPRecipeKwargs": "test_settings_that_are_refused",
}
"""Settings that one CPU process cannot ask for, and the test of each."""

WARNINGS = {
    "gradient_accumulation_steps": r"gradient_accumulation_steps=2 of accelerate has no effect",
    "rng_types": r"rng_types=\['torch'\] has no effect",
    "log_with": r"log_with has no effect. Pass TrackerCallback",
    "project_dir": r"project_dir and project_config have no effect",
    "project_config": r"project_dir and project_config have no effect",
    "step_scheduler_with_optimizer": r"step_scheduler_with_optimizer=False has no effect",
    "DataLoaderConfiguration.dispatch_batches": r"dispatch_batches=False has no effect",
    "DataLoaderConfiguration.use_seedable_sampler": r"use_seedable_sampler=True has no effect",
    "DataLoaderConfiguration.data_seed": r"data_seed=7 has no effect",
    "GradientAccumulationPlugin.num_steps": r"gradient_accumulation_steps=2 of accelerate has no effect",
    "GradientAccumulationPlugin.sync_with_dataloader": r"sync_with_dataloader=False has no effect",
    "GradientAccumulationPlugin.sync_each_batch": r"sync_each_batch=True has no effect",
    "ProfileKwargs": r"ProfileKwargs have no effect",
    "GradScalerKwargs": r"GradScalerKwargs have no effect in 'no'",
}
"""What making a trainer warns of."""


def trainer_with(
    create: Callable[[], Any],
    model: nn.Module | None = None,
    *callbacks: TrainerCallback,
    kind: type[Trainer[nn.Module]] = Trainer,
    optimizer: Optimizer | None = None,
) -> Trainer[nn.Module]:
    """A trainer with an Accelerator of one's own."""

    def create_accelerator(_self: object) -> Any:
        return create()

    configured: Any = type("Configured", (kind,), {"create_accelerator": create_accelerator})
    model = nn.Linear(1, 1) if model is None else model
    optimizer = optimizer or SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer: Trainer[nn.Module] = configured(model, nn.MSELoss(), optimizer, callbacks=callbacks)
    return trainer


def trainer_of(name: str) -> Trainer[nn.Module]:
    """A trainer with an Accelerator with this setting."""
    return trainer_with(SETTINGS[name])


def rows_that(*outcomes: str) -> list[str]:
    """The settings of which the table says this, and which one CPU process can ask for."""
    return [name for name, outcome in table().items() if outcome in outcomes and name not in ELSEWHERE]


def test_the_table_names_each_setting_of_the_installed_accelerate() -> None:
    """A new argument, field or handler of accelerate has to be looked at before this is green again."""
    assert installed_settings() - table().keys() == set()


def test_each_row_is_tested() -> None:
    """No row is written down without a test of it, and none is tested that is not written down."""
    assert table().keys() - IN_PARTS == SETTINGS.keys() | ELSEWHERE.keys()
    assert {name for name in IN_PARTS if table()[name] == "see below"} == IN_PARTS
    warned = {name for name, outcome in table().items() if outcome == "ignored"}
    assert WARNINGS.keys() == warned | {"GradScalerKwargs"}


@pytest.mark.parametrize("name", rows_that("supported", "not needed"))
def test_what_needs_no_word(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer with the setting is made and trains, without a warning."""
    monkeypatch.chdir(tmp_path)
    if name in WARNINGS:
        with pytest.warns(UserWarning, match=WARNINGS[name]):
            trainer = trainer_of(name)
    else:
        trainer = trainer_of(name)
    inputs = torch.ones(4, 1)
    trainer.train(TensorDataset(inputs, inputs), 1)
    assert trainer.num_updates_completed == 1


@pytest.mark.parametrize("name", rows_that("ignored"))
def test_what_is_warned_of(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making a trainer with the setting says that it has no effect, where the trainer is made."""
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer_of(name)
    ours = [one for one in caught if re.search(WARNINGS[name], str(one.message))]
    assert [one.filename for one in ours] == [__file__]


@pytest.mark.parametrize("name", rows_that("error"))
def test_what_is_refused(name: str) -> None:
    """A trainer with the setting cannot be made, and the error says what to do."""
    with pytest.raises(UnsupportedConfigurationError) as caught:
        trainer_of(name)
    assert_explained(caught.value, "is not supported")


@pytest.mark.parametrize("name", ["fsdp_plugin", "deepspeed_plugin", "megatron_lm_plugin"])
def test_a_plugin_for_sharding_is_refused(name: str) -> None:
    """Also one that accelerate ignores on a CPU, or whose package is not there; later trainers are as without it."""
    before = dict(os.environ)
    plugin = FullyShardedDataParallelPlugin() if name == "fsdp_plugin" else object()
    with pytest.raises(UnsupportedConfigurationError, match="FSDP" if name == "fsdp_plugin" else name):
        trainer_with(partial(on_cpu, **{name: plugin}))
    assert dict(os.environ) == before
    trainer_of("cpu")


@pytest.mark.runs_on("two_ranks")
def test_what_is_refused_on_several_processes() -> None:
    """Batches that would be split, and uneven numbers of them where a loader is not the trainer's own."""
    for create in (partial(on_cpu, split_batches=True), partial(loading, split_batches=True)):
        with pytest.raises(UnsupportedConfigurationError, match="divide per_device_batch_size by 2"):
            trainer_with(create)
    data = TensorDataset(torch.ones(10, 1), torch.ones(10, 1))
    trainer = trainer_with(partial(loading, even_batches=False))
    trainer.train(data, 1, per_device_batch_size=2)
    assert trainer.run_history.clock.samples == 10
    with pytest.raises(UnsupportedConfigurationError, match="even_batches"):
        trainer.train(DataLoader(data, batch_size=2), 1)


def test_split_batches_on_one_process() -> None:
    """One process has nothing to split: the argument changes nothing there."""
    trainer = trainer_with(partial(on_cpu, split_batches=True))
    trainer.train(TensorDataset(torch.ones(8, 1), torch.ones(8, 1)), 1, per_device_batch_size=4)
    assert trainer.num_updates_completed == 2


CHECKPOINTING = {"activation_checkpointing": True}
PLUGIN_FIELDS: dict[str, dict[str, Any]] = {
    "transformer_cls_names_to_wrap": {
        "auto_wrap_policy": "transformer_based_wrap",
        "transformer_cls_names_to_wrap": ["Linear"],
    },
    "min_num_params": {"auto_wrap_policy": "size_based_wrap", "min_num_params": 7},
    "activation_checkpointing_offload": {**CHECKPOINTING, "activation_checkpointing_offload": True},
    **{
        name: {name: value}
        for name, value in (
            *(("fsdp_version", 1), ("auto_wrap_policy", callable), ("reshard_after_forward", False)),
            *(("mixed_precision_policy", MixedPrecisionPolicy(param_dtype=torch.bfloat16)), ("cpu_offload", True)),
            *(("ignored_modules", "head"), *CHECKPOINTING.items(), ("cpu_ram_efficient_loading", True)),
            *(("sync_module_states", True), ("use_orig_params", True), ("backward_prefetch", "BACKWARD_PRE")),
            *(("limit_all_gathers", False), ("state_dict_type", "FULL_STATE_DICT"), ("param_init_fn", print)),
            *(("state_dict_config", object()), ("optim_state_dict_config", object())),
            *(("sharding_strategy", "FULL_SHARD"), ("forward_prefetch", True)),
        )
    },
}
"""How to ask for each field of the plugin."""


def sharding_trainer(**asked: Any) -> Trainer[nn.Module]:
    """A trainer whose Accelerator has a plugin with these fields."""
    fields_of_plugin: Any = {"fsdp_version": 2, **asked}
    return trainer_with(lambda: on_cpu(fsdp_plugin=FullyShardedDataParallelPlugin(**fields_of_plugin)))


def settings_of(trainer: Any) -> ShardingSettings | None:
    """How a trainer shards its model, None where it does not: on one process, nothing public tells."""
    settings: ShardingSettings | None = trainer._setup.sharding
    return settings


def test_the_table_names_each_field_of_the_plugin() -> None:
    """A new field of the plugin has to be looked at before this is green again; each row has a test."""
    assert {field.name for field in fields(FullyShardedDataParallelPlugin)} - table("field").keys() == set()
    assert table("field").keys() == PLUGIN_FIELDS.keys()


@pytest.mark.parametrize("name", PLUGIN_FIELDS)
def test_fields_of_the_plugin(name: str) -> None:
    """What is supported changes how models are sharded, and the rest does not; what is refused raises."""
    outcome, default = table("field")[name], settings_of(sharding_trainer())
    asked = PLUGIN_FIELDS[name]
    if name not in {field.name for field in fields(FullyShardedDataParallelPlugin)}:
        pytest.skip("newer than this version of accelerate")
    if outcome == "error":
        with pytest.raises(
            (ValueError, UnsupportedConfigurationError), match=f"{name}|fsdp_version=1|reshard_after_forward"
        ):
            sharding_trainer(**asked)
    elif outcome == "ignored":
        with pytest.warns(UserWarning, match=f"{name} has no effect"):
            sharding_trainer(**asked)
    else:
        assert (settings_of(sharding_trainer(**asked)) == default) == (outcome == "not needed")


def test_a_plugin_is_that_of_its_trainer_alone() -> None:
    """Accelerate would tell all later Accelerators of the process to shard, with the first version of FSDP."""
    before = dict(os.environ)
    sharding_trainer()
    assert dict(os.environ) == before
    assert settings_of(trainer_of("cpu")) is None


def test_what_a_launcher_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """`accelerate launch --use_fsdp --fsdp_version 2` and its other arguments come as variables."""
    launched = {
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_TRANSFORMER_CLS_TO_WRAP": "Block,Other",
        "FSDP_ACTIVATION_CHECKPOINTING": "true",
    }
    for variable, value in launched.items():
        monkeypatch.setenv(variable, value)
    settings = settings_of(trainer_of("cpu"))
    assert settings is not None
    assert settings.block_classes == ("Block", "Other")
    assert settings.checkpoints_activations
    monkeypatch.setenv("FSDP_VERSION", "1")
    with pytest.raises(UnsupportedConfigurationError, match="FSDP_VERSION=1"):
        trainer_of("cpu")


CLIP_AT = 0.3


def settings() -> dict[str, str]:
    """The rows of the table: a setting, and its status."""
    text = next(part for part in DOCS.read_text().split("\n\n") if part.startswith("| setting | status"))
    rows = [line.strip("| ").split(" | ") for line in text.splitlines()[2:]]
    return dict(rows)


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
    "data parallelism with the default settings": on_cpu,
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
    "`dynamo_backend` with regional compilation": compiling(use_regional_compilation=True),
    "a [configuration of DeepSpeed](deepspeed.md), run by FSDP2": lambda: on_cpu(
        deepspeed_plugin=DeepSpeedPlugin(zero_stage=3)
    ),
    "`DEEPSPEED`: an `Accelerator` with DeepSpeed's own engine": of_type("DEEPSPEED"),
    "FSDP2": lambda: on_cpu(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2)),
    "FSDP1": lambda: on_cpu(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=1)),
    "`MEGATRON_LM`": of_type("MEGATRON_LM"),
    "`XLA`": of_type("XLA"),
    "`ParallelismConfig` with tensor, context or sequence parallelism": in_tensor_parallel,
    '`mixed_precision="fp8"`': in_fp8,
}
TWO_RANKS_ONLY = {
    "a model that you have sharded with `fully_shard`",
    "a model that you have wrapped in `DistributedDataParallel`",
}


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
    "a model that `torch.compile` has returned": lambda model: cast(
        "nn.Module", torch.compile(model, backend="aot_eager")
    ),
    "a model that you have sharded with `fully_shard`": sharded,
    "a model that you have wrapped in `DistributedDataParallel`": DistributedDataParallel,
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


def trainer_of_row(row: str, model: nn.Module, *callbacks: TrainerCallback) -> Trainer[nn.Module]:
    """The trainer of a row of the table."""
    return trainer_with(ACCELERATORS.get(row, on_cpu), MODELS.get(row, as_it_is)(model), *callbacks)


def settings_that(*verdicts: str) -> list[str]:
    """The settings of which the table says this."""
    return [row for row, said in settings().items() if said in verdicts]


def test_the_table_is_complete() -> None:
    """Each row either works in some way, or is refused, or was not tried; and each is tested that can be."""
    tried = {*settings_that("supported", "rounded"), *settings_that("error")}
    assert tried | set(settings_that("untested")) == set(settings())
    assert tried == ACCELERATORS.keys() | MODELS.keys()


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.filterwarnings("ignore:.broadcast_buffers. is deprecated:FutureWarning")  # in favour of a newer name
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # torch hides it
@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, marks=pytest.mark.more_cases if "regional" in row else ())
        for row in settings_that("supported", "rounded")
    ],
)
def test_what_works(row: str, shared_tmp_path: Path) -> None:
    """Uneven clipped updates are those of whole batches, evaluation is exact, all stop together, names are plain."""
    if row in TWO_RANKS_ONLY and not dist.is_initialized():
        return
    model, data, unseen = small_network(), regression(37), regression(13)
    by_hand, path = copy.deepcopy(model), shared_tmp_path / "checkpoint.pt"
    trainer = trainer_of_row(row, model, CallAt("on_train_epoch_end", lambda one: one.save_checkpoint(path)))
    given = trainer.model
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    run = partial(trainer.train, data, 2, unseen, 8 // ranks, gradient_accumulation_steps=3)
    run(gradient_clip_norm=CLIP_AT)
    assert trainer.model is given

    updates = updates_of(data, trainer.run_config.seed, 2, samples=24)
    train_by_hand(by_hand, optimizer_of("sgd", by_hand), updates, clip_norm=CLIP_AT)
    tolerance = 1e-12 if settings()[row] != "rounded" else 0.05
    weights = torch.cat([one.reshape(-1) for one in whole_weights(model).values()])
    torch.testing.assert_close(weights, weights_of(by_hand), rtol=0, atol=tolerance)
    assert all(torch.equal(weights, other) for other in gather_objects(weights))

    with torch.no_grad():
        expected = nn.functional.mse_loss(model(unseen.tensors[0]), unseen.tensors[1]).item()
    assert float(trainer.run_history.get_latest_metric("eval_loss_epoch")) == pytest.approx(expected, abs=1e-12)

    trainer.save_model(shared_tmp_path / "exported")
    content = trainer.load_checkpoint(path)
    assert content["model_state_dict"].keys() == by_hand.state_dict().keys()
    assert torch.equal(weights, torch.cat([one.reshape(-1) for one in content["model_state_dict"].values()]))
    if trainer.run_config.is_world_process_zero:
        assert load_file(shared_tmp_path / "exported" / "model.safetensors").keys() == by_hand.state_dict().keys()

    def stop_on_the_last_rank(one: AnyTrainer) -> None:
        if one.process_index == one.num_processes - 1 and one.run_history.current_epoch == 2:
            raise StopTrainingError("on the last rank")

    trainer.callback_handler.add_callback(AlsoAt("on_train_step_end", stop_on_the_last_rank))
    run()
    assert gather_objects(trainer.num_updates_completed) == [2] * ranks


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("row", settings_that("error"))
def test_settings_that_are_refused(row: str) -> None:
    """A trainer of a refused setting cannot be made, and the error says what was given and what to do."""
    if row in TWO_RANKS_ONLY and not dist.is_initialized():
        return
    with pytest.raises(UnsupportedConfigurationError) as caught:
        trainer_of_row(row, small_network())
    assert_explained(caught.value, "is not supported. ")


@pytest.mark.runs_on("two_ranks")
@pytest.mark.parametrize("hook", [row for row in settings_that("supported", "rounded") if "comm_hook" in row])
def test_counts_are_not_compressed(hook: str) -> None:
    """Counts of items that half precision cannot hold weigh a step as they do without compression."""

    def counted(network: Any, batch: Any) -> tuple[Tensor, int]:
        return squared_error(network, batch) * 1e-3, 70_001 if dist.get_rank() == 0 else 210_003

    model, data = small_network(), regression(8)
    by_hand = copy.deepcopy(model)
    optimizer = SGD(model.parameters(), lr=100)
    trainer = trainer_with(ACCELERATORS[hook], model, kind=StepTrainer, optimizer=optimizer)
    vars(trainer)["step"] = counted
    trainer.train(data, 1, per_device_batch_size=4)

    order = epoch_order(8, seed=cast("int", trainer.run_config.seed), epoch=0).indices(0, 8)
    batches = [data[part] for part in torch.split(order, 4)]
    losses = [nn.functional.mse_loss(by_hand(inputs), targets) for inputs, targets in batches]
    torch.autograd.backward(0.25 * losses[0] + 0.75 * losses[1])
    SGD(by_hand.parameters(), lr=0.1).step()
    tolerance = 1e-3 if "BF16" in hook else 1e-4
    torch.testing.assert_close(weights_of(model), weights_of(by_hand), rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("ACCELERATE_USE_FSDP", "true", "ACCELERATE_USE_FSDP"),
        ("ACCELERATE_USE_MEGATRON_LM", "true", "ACCELERATE_USE_MEGATRON_LM"),
        ("ACCELERATE_MIXED_PRECISION", "fp8", "fp8"),
    ],
)
def test_what_a_launcher_asked_for(variable: str, value: str, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused, also where accelerate would ignore it, miss a package, or convert no layers to fp8."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(UnsupportedConfigurationError, match=named):
        trainer_of_row("", small_network())
