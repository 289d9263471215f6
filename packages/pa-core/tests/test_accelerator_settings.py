"""Each setting of an Accelerator is supported, ignored or an error, as the table in docs/beyond-ddp.md says."""

from __future__ import annotations

import inspect
import os
import re
import warnings
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import (
    AutocastKwargs,
    DataLoaderConfiguration,
    DistributedDataParallelKwargs,
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
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from typing_extensions import override

from pa_core import Trainer, UnsupportedConfigurationError
from pa_core.sharding.sharding_plan import ShardingSettings
from tests.support.explained import assert_explained

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
    """An Accelerator as a user's `_create_accelerator` would make it."""
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
    # In packages/pa-core/tests/test_compatibility.py, by the environment or the kind of process that they make.
    "deepspeed_plugin": "test_what_is_refused",
    "deepspeed_plugins": "test_what_is_refused",
    "megatron_lm_plugin": "test_what_is_refused",
    "FP8RecipeKwargs": "test_what_is_refused",
    "AORecipeKwargs": "test_what_is_refused",
    "TERecipeKwargs": "test_what_is_refused",
    "MSAMPRecipeKwargs": "test_what_is_refused",
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


def trainer_with(create: Callable[[], Any]) -> Trainer:
    """A trainer with an Accelerator of one's own."""

    class Configured(Trainer):
        @override
        def _create_accelerator(self) -> Any:
            return create()

    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    return Configured(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=[])


def trainer_of(name: str) -> Trainer:
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


def policy_of_torch() -> Any:
    """In which dtype to compute, as FSDP2 is told."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return MixedPrecisionPolicy(param_dtype=torch.bfloat16)


PLUGIN_FIELDS: dict[str, Callable[[], dict[str, Any]]] = {
    "fsdp_version": lambda: {"fsdp_version": 1},
    "auto_wrap_policy": lambda: {"auto_wrap_policy": callable},
    "transformer_cls_names_to_wrap": lambda: {
        "auto_wrap_policy": "transformer_based_wrap",
        "transformer_cls_names_to_wrap": ["Linear"],
    },
    "min_num_params": lambda: {"auto_wrap_policy": "size_based_wrap", "min_num_params": 7},
    "reshard_after_forward": lambda: {"reshard_after_forward": False},
    "mixed_precision_policy": lambda: {"mixed_precision_policy": policy_of_torch()},
    "cpu_offload": lambda: {"cpu_offload": True},
    "ignored_modules": lambda: {"ignored_modules": "head"},
    "activation_checkpointing": lambda: {"activation_checkpointing": True},
    "activation_checkpointing_offload": lambda: {
        "activation_checkpointing": True,
        "activation_checkpointing_offload": True,
    },
    "cpu_ram_efficient_loading": lambda: {"cpu_ram_efficient_loading": True},
    "sync_module_states": lambda: {"sync_module_states": True},
    "use_orig_params": lambda: {"use_orig_params": True},
    "backward_prefetch": lambda: {"backward_prefetch": "BACKWARD_PRE"},
    "limit_all_gathers": lambda: {"limit_all_gathers": False},
    "state_dict_type": lambda: {"state_dict_type": "FULL_STATE_DICT"},
    "state_dict_config": lambda: {"state_dict_config": object()},
    "optim_state_dict_config": lambda: {"optim_state_dict_config": object()},
    "param_init_fn": lambda: {"param_init_fn": print},
    "sharding_strategy": lambda: {"sharding_strategy": "FULL_SHARD"},
    "forward_prefetch": lambda: {"forward_prefetch": True},
}
"""How to ask for each field of the plugin."""


def sharding_trainer(**asked: Any) -> Trainer:
    """A trainer whose Accelerator has a plugin with these fields."""
    fields_of_plugin: Any = {"fsdp_version": 2, **asked}
    return trainer_with(lambda: on_cpu(fsdp_plugin=FullyShardedDataParallelPlugin(**fields_of_plugin)))


def settings_of(trainer: Any) -> ShardingSettings | None:
    """How a trainer shards its model, None where it does not: on one process, nothing public tells."""
    settings: ShardingSettings | None = trainer._engine.sharding
    return settings


def test_the_table_names_each_field_of_the_plugin() -> None:
    """A new field of the plugin has to be looked at before this is green again; each row has a test."""
    assert {field.name for field in fields(FullyShardedDataParallelPlugin)} - table("field").keys() == set()
    assert table("field").keys() == PLUGIN_FIELDS.keys()


@pytest.mark.parametrize("name", PLUGIN_FIELDS)
def test_fields_of_the_plugin(name: str) -> None:
    """What is supported changes how models are sharded, and the rest does not; what is refused raises."""
    outcome, default = table("field")[name], settings_of(sharding_trainer())
    asked = PLUGIN_FIELDS[name]()
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
