"""FSDP2 runs a configuration of DeepSpeed, as docs/deepspeed.md says, and accelerate never makes DeepSpeed's engine."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin
from torch import nn
from torch.optim import AdamW
from torch.utils.data import TensorDataset

from pa_core import (
    ConfigurationError,
    Run,
    SaveTrainingStateCallback,
    Trainer,
    UnsupportedConfigurationError,
)
from pa_core._tensors import is_sharded
from pa_core.sharding.sharding_plan import ShardingSettings
from tests.launching import Launch
from tests.support.callbacks import FailAt
from tests.support.explained import assert_explained
from tests.support.pa_core.sharding.by_hand import require_same, updates_by_hand
from tests.support.sharded_models import sentences, tiny_transformer

DATA = TensorDataset(*sentences(53))
PER_UPDATE = 12
AUTO: dict[str, Any] = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}

# What the documentation of transformers shows for stage 3, with what accelerate fills in.
PUBLISHED: dict[str, Any] = {
    "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2},
    "bf16": {"enabled": "auto"},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "cpu", "pin_memory": True},
        "overlap_comm": True,
        "contiguous_gradients": True,
        "sub_group_size": 1e9,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9,
        "stage3_gather_16bit_weights_on_model_save": True,
    },
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "steps_per_print": 2000,
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "wall_clock_breakdown": False,
}


@pytest.fixture(autouse=True)
def without_deepspeed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let each import of deepspeed fail, and each question of accelerate for it; the variables stay as they are."""

    def fail(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("accelerate was asked for DeepSpeed")

    monkeypatch.setitem(sys.modules, "deepspeed", None)
    monkeypatch.setattr(Accelerator, "_prepare_deepspeed", fail)
    for module in ("accelerate.accelerator", "accelerate.state"):
        monkeypatch.setattr(f"{module}.is_deepspeed_available", fail)
    yield
    assert os.environ.get("ACCELERATE_USE_DEEPSPEED") in {None, "true"}


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Set the variables of `accelerate launch --use_deepspeed`, with a file of this content or without a file."""

    def set_variables(content: dict[str, Any] | None = None, **variables: object) -> None:
        monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
        for name, value in variables.items():
            monkeypatch.setenv(f"ACCELERATE_{name}", str(value))
        if content is not None:
            (tmp_path / "ds.json").write_text(json.dumps(content))
            monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(tmp_path / "ds.json"))

    return set_variables


def config(stage: int = 2, **settings: Any) -> dict[str, Any]:
    """The content of a small file."""
    return {**AUTO, "zero_optimization": {"stage": stage}, **settings}


def trainer_of(*callbacks: Any, **options: Any) -> Trainer[nn.Module]:
    """A trainer of a model of two blocks, in double precision."""
    model = tiny_transformer()
    return Trainer(model, nn.CrossEntropyLoss(), AdamW(model.parameters(), lr=0.01), callbacks, **options)


def with_plugin(**options: Any) -> Trainer[nn.Module]:
    """A trainer whose Accelerator gets a plugin of DeepSpeed."""

    class WithPlugin(Trainer[nn.Module]):
        def create_accelerator(self) -> Any:  # type: ignore[explicit-override]
            return Accelerator(**options)

    model = tiny_transformer()
    return WithPlugin(model, nn.CrossEntropyLoss(), AdamW(model.parameters(), lr=0.01), callbacks=[])


def processes() -> int:
    """The number of processes of the tests."""
    return dist.get_world_size() if dist.is_initialized() else 1


def train(trainer: Trainer[nn.Module], epochs: int = 1, **options: Any) -> None:
    """Make updates of two batches on each process."""
    size = PER_UPDATE // 2 // processes()
    trainer.train(DATA, epochs, per_device_batch_size=size, gradient_accumulation_steps=2, **options)


def settings_of(trainer: Any) -> ShardingSettings | None:
    """How a trainer shards its model; on one process, nothing public tells."""
    settings: ShardingSettings | None = trainer._setup.sharding
    return settings


def clip(model: nn.Module) -> None:
    """Clip as the runs do."""
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_each_stage(stage: int, launched: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    """Updates are those of one process without DeepSpeed, weights are sharded from stage 1 on, and a line says so."""
    launched(config(stage))
    trainer = trainer_of()
    train(trainer, gradient_clip_norm=0.1)
    expected = tiny_transformer()
    list(updates_by_hand(expected, DATA, trainer.run_config.seed, PER_UPDATE, before_step=clip))
    require_same(trainer.model, expected)
    assert {is_sharded(one) for one in trainer.model.parameters()} == {stage > 0 and processes() > 1}
    settings = settings_of(trainer)
    assert (settings is None) == (stage == 0)
    assert settings is None or settings.reshard_after_forward == (stage == 3)
    printed = capsys.readouterr().out
    if trainer.is_main_process:
        run_by = "DDP" if stage == 0 else "FSDP2"
        assert printed.startswith(f"DeepSpeed's configuration, run by {run_by}: ZeRO {stage}, ")
        assert ("nothing is sharded" in printed) == (stage == 0 or processes() == 1)
        assert ("so are gradients" in printed) == (stage == 1 and processes() > 1)


@pytest.mark.runs_on("two_ranks")
def test_a_run_resumes_at_another_stage(launched: Callable[..., None], shared_tmp_path: Path) -> None:
    """A state of stage 3 is resumed at stage 1 as if the run had never stopped, as training states of FSDP2 are."""
    launched(config(0))
    whole = trainer_of()
    torch.manual_seed(7)
    train(whole, epochs=2)

    launched(config(3))
    save = SaveTrainingStateCallback(shared_tmp_path, save_every_n_epochs=1)
    trainer = trainer_of(save, FailAt("on_optimizer_step_end", KeyboardInterrupt(), update=7))
    torch.manual_seed(7)
    with pytest.raises(KeyboardInterrupt):
        train(trainer, epochs=2)

    launched(config(1))
    resumed = trainer_of()
    train(resumed, epochs=2, resume_from=shared_tmp_path)
    assert resumed.num_updates_completed == 10
    require_same(resumed.model, whole.model)


def test_a_published_file(launched: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    """The file of the documentation of transformers trains; a warning names its settings that have no effect."""
    launched(PUBLISHED)
    with pytest.warns(UserWarning, match="have no effect: fp16.hysteresis, .*overlap_comm.*stage3_max_live") as caught:
        trainer = trainer_of()
    assert "gather_16bit" not in str(caught[0].message)
    train(trainer, gradient_clip_norm=0.1)
    settings = settings_of(trainer)
    assert settings is not None
    assert settings.offloads_to_cpu
    assert settings.reshard_after_forward
    assert "ZeRO 3" in capsys.readouterr().out


def test_variables_of_the_launcher(launched: Callable[..., None]) -> None:
    """Without a file, the variables are the configuration; without a stage it is accelerate's default, ZeRO 2."""
    launched(DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE="cpu")
    settings = settings_of(trainer_of())
    assert settings is not None
    assert (settings.offloads_to_cpu, settings.reshard_after_forward) == (True, False)
    launched(DEEPSPEED_ZERO_STAGE=3, DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE="none", GRADIENT_CLIPPING=0.5)
    trainer = trainer_of()
    with pytest.raises(ConfigurationError, match=r"gradient_clipping=0.5 in .* gradient_clip_norm=0.1 in"):
        train(trainer, gradient_clip_norm=0.1)
    train(trainer, gradient_clip_norm=0.5)


def test_a_plugin_of_the_script() -> None:
    """A plugin is read as the file is, in a script's own loop too, and leaves no trace for later trainers."""
    plugin = DeepSpeedPlugin(hf_ds_config=config(3, gradient_clipping=0.1))
    for name in ("deepspeed_plugin", "deepspeed_plugins"):
        trainer = with_plugin(cpu=True, **{name: plugin})
        with pytest.raises(ConfigurationError, match=r"gradient_clipping=0.1 .* gradient_clip_norm=0 in the run"):
            train(trainer)
        train(trainer, gradient_clip_norm=0.1)
        settings = settings_of(trainer)
        assert settings is not None
        assert settings.reshard_after_forward
    assert settings_of(trainer_of()) is None


def test_an_own_loop(launched: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    """A `Run` follows the configuration as a trainer does."""
    launched(config(2, gradient_accumulation_steps=2))
    model = tiny_transformer()

    def run(**options: Any) -> Run:
        return Run(model, AdamW(model.parameters()), DATA, num_epochs=1, per_device_batch_size=6, **options)

    with pytest.raises(ConfigurationError, match=r"accumulation_steps=2 in .* gradient_accumulation_steps=1"), run():
        pass
    with run(gradient_accumulation_steps=2) as one:
        for update in one.updates():
            for words, classes in update:
                update.backward(nn.functional.cross_entropy(model(words), classes))
            update.step()
    assert "run by FSDP2: ZeRO 2" in capsys.readouterr().out


VALUES = {
    "train_micro_batch_size_per_gpu": (5, "per_device_batch_size=6"),
    "gradient_accumulation_steps": (3, "gradient_accumulation_steps=2"),
    "train_batch_size": (16, "samples_per_update=12"),
    "gradient_clipping": (1.5, "gradient_clip_norm=0 "),
}
"""A value of each setting of the run that is not that of the run, and what the error says of the run."""


@pytest.mark.parametrize("name", VALUES)
def test_values_of_the_run(name: str, launched: Callable[..., None]) -> None:
    """A value has to be that of `train()`: the error names both; the right value and "auto" train."""
    other, of_run = VALUES[name]
    launched({**config(), name: other})
    with pytest.raises(ConfigurationError) as caught:
        train(trainer_of())
    assert_explained(caught.value, f"{name}={other:g} in the configuration", of_run, f'set {name} to "auto"')
    right = float(of_run.split("=")[1])
    for value in ("auto", int(right)):
        launched({**config(), name: value})
        trainer = trainer_of()
        train(trainer)
        assert trainer.num_updates_completed == 5


def zero(**settings: Any) -> dict[str, Any]:
    """A file with these settings in its section of ZeRO."""
    return config(zero_optimization={"stage": 3, **settings})


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "the section optimizer": (config(optimizer={"type": "AdamW", "params": {"lr": "auto"}}), "Pass the optimizer to"),
    "the section scheduler": (config(scheduler={"type": "WarmupLR", "params": {}, "x": 1}), "create_scheduler_fn"),
    "the section activation_checkpointing": (
        config(activation_checkpointing={"partition_activations": True}),
        "activation_checkpointing=True",
    ),
    "zero_optimization.offload_param.device='nvme'": (
        zero(offload_param={"device": "nvme", "nvme_path": "/local_nvme"}),
        'Offload to "cpu"',
    ),
    "zero_optimization.offload_optimizer.device='nvme'": (zero(offload_optimizer={"device": "nvme"}), 'to "cpu"'),
    "zero_optimization.offload_optimizer.ratio=0.3": (zero(offload_optimizer={"device": "cpu", "ratio": 0.3}), ""),
    "the section tensor_parallel": (config(tensor_parallel={"autotp_size": 2}), ""),
    "zero_optimization.zero_quantized_weights=True": (zero(zero_quantized_weights=True), ""),
    "zero_optimization.zero_hpz_partition_size=8": (zero(zero_hpz_partition_size=8), ""),
    "zero_optimization.stage=4": (zero(stage=4), ""),
    "zero_optimization.stgae=3": (zero(stgae=3), ""),
    "the section flops_profiler": (config(flops_profiler={"enabled": True}), ""),
    "communication_data_type='fp32'": (config(communication_data_type="fp32"), ""),
    "fp16.loss_scale=128": (config(0, fp16={"enabled": True, "loss_scale": 128}), ""),
    "bf16.immediate_grad_update=True": (config(bf16={"enabled": True, "immediate_grad_update": True}), ""),
    "gradient_clipping='much'": (config(gradient_clipping="much"), ""),
    "zero_force_ds_cpu_optimizer=True": (config(zero_force_ds_cpu_optimizer=True), ""),
}


@pytest.mark.parametrize("given", REFUSED)
def test_settings_without_a_counterpart(given: str, launched: Callable[..., None]) -> None:
    """Each is an error with its name, which says what to do."""
    content, advice = REFUSED[given]
    launched(content)
    with pytest.raises(UnsupportedConfigurationError) as caught:
        trainer_of()
    assert_explained(caught.value, f"given:    {given}\n", advice, "Remove these settings")


def test_sections_that_are_switched_off(launched: Callable[..., None]) -> None:
    """They request nothing, so they are no error."""
    launched(config(flops_profiler={"enabled": False}, fp16={"enabled": False, "loss_scale": 128}, amp=None))
    train(trainer_of())


def test_experts_and_zero_init(launched: Callable[..., None]) -> None:
    """Layers with experts are an error, and `zero.Init` has no effect."""
    launched(config(3), DEEPSPEED_ZERO3_INIT="true")
    with pytest.warns(UserWarning, match="no effect: zero3_init_flag"):
        trainer_of()
    launched(config(3), DEEPSPEED_MOE_LAYER_CLS_NAMES="Experts")
    with pytest.raises(UnsupportedConfigurationError, match="transformer_moe_cls_names='Experts'"):
        trainer_of()


@pytest.mark.parametrize("content", ["{", '{"train_batch_size": 8}', None])
def test_a_file_that_cannot_be_read(content: str | None, tmp_path: Path, launched: Callable[..., None]) -> None:
    """A file that is missing, no JSON, or without a section of ZeRO is an error that names the file."""
    path = tmp_path / "broken.json"
    if content is not None:
        path.write_text(content)
    launched(DEEPSPEED_CONFIG_FILE=path)
    with pytest.raises(ConfigurationError, match=re.escape(str(path))):
        trainer_of()


@pytest.mark.parametrize("plugins", [{"a": DeepSpeedPlugin(zero_stage=2)}, object()])
def test_what_is_not_a_plugin(plugins: object) -> None:
    """Several plugins, for several models, are an error, and so is anything else."""
    with pytest.raises(UnsupportedConfigurationError, match="single DeepSpeedPlugin"):
        with_plugin(cpu=True, deepspeed_plugin=plugins)


def test_two_kinds_of_sharding(launched: Callable[..., None]) -> None:
    """A plugin of FSDP next to a configuration of DeepSpeed is an error."""
    launched(config(3))
    with pytest.raises(UnsupportedConfigurationError, match="together with a plugin of FSDP"):
        with_plugin(cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))


def test_bf16_of_the_file(launched: Callable[..., None]) -> None:
    """A run computes in the precision that the file switches on, unless the script requests a different one."""
    launched(config(2, bf16={"enabled": True}), MIXED_PRECISION="no")  # as accelerate launch sets it by default
    with pytest.raises(ConfigurationError, match=r"bf16.enabled=true and mixed_precision='no'"):
        trainer_of(mixed_precision="no")
    launched(MIXED_PRECISION="fp16")
    with pytest.raises(ConfigurationError, match=r"bf16.enabled=true and mixed_precision='fp16'"):
        trainer_of()
    launched(MIXED_PRECISION="no")
    model = nn.Linear(4, 1)
    trainer = Trainer(model, nn.MSELoss(), AdamW(model.parameters()), callbacks=[])
    assert trainer.mixed_precision == "bf16"
    trainer.train(TensorDataset(torch.ones(8, 4), torch.ones(8, 1)), 1)
    assert trainer.run_config.mixed_precision == "bf16"
    assert model.weight.dtype == torch.float32


def test_bf16_of_the_script(launched: Callable[..., None]) -> None:
    """A file that switches bf16 off contradicts a script or a launcher that requests it; "auto" takes theirs."""
    launched(config(2, bf16={"enabled": False}))
    with pytest.raises(ConfigurationError, match=r"bf16.enabled=false and mixed_precision='bf16'"):
        trainer_of(mixed_precision="bf16")
    launched(config(2, bf16={"enabled": "auto"}))
    assert trainer_of(mixed_precision="bf16").mixed_precision == "bf16"


def test_fp16(launched: Callable[..., None]) -> None:
    """The plugin's fp16 reaches the run, which has no effect on a CPU, as always with a warning."""
    launched(config(0, fp16={"enabled": True}))
    with pytest.warns(UserWarning, match="mixed_precision='fp16' has no effect on the device cpu"):
        assert trainer_of().run_config is None


SCRIPT = """
import sys
sys.modules["deepspeed"] = None
import torch
from accelerate import PartialState
from pa_core import DEFAULT_CALLBACKS, Trainer, world_process_zero_only
from pa_core.testing import make_regression

@world_process_zero_only
def tell():
    print("first of two")

tell()
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
trainer = Trainer(model, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), DEFAULT_CALLBACKS)
trainer.train(make_regression(64), 1)
trainer.print(PartialState().distributed_type.value, trainer.is_sharded, type(model[0].weight).__name__)
"""


def test_two_processes_from_a_launcher(launch: Launch) -> None:
    """Two processes of a launcher find each other without DeepSpeed, even before a trainer is created."""
    done = launch(SCRIPT, ranks=2, env={"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"})
    assert done.status == 0, done.output
    lines = [line for line in done.output.splitlines() if "first of" in line or "DeepSpeed" in line or "MULTI" in line]
    assert lines == [
        "first of two",
        "DeepSpeed's configuration, run by FSDP2: ZeRO 3, optimizer states, gradients and weights are sharded",
        "MULTI_CPU True DTensor",
    ]
    assert "Training starts: 1 epoch of 4 updates, 16 samples per update; 2 processes (gloo)" in done.output
