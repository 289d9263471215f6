"""Without DeepSpeed: the refusals of its engine, and runs on one process, which do not use it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import nn
from typing_extensions import override

from pa_core import ConfigurationError, Trainer, UnsupportedConfigurationError
from pa_core.engine.exchange import Part
from pa_core.testing import make_regression
from pa_deepspeed import ZeroEngine


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`install(version)` pretends that DeepSpeed is installed."""

    def pretend(version: str) -> None:
        folder = tmp_path / f"deepspeed-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: deepspeed\nVersion: {version}\n")
        monkeypatch.syspath_prepend(tmp_path)

    return pretend


@pytest.fixture
def installed(install: Callable[[str], None]) -> None:
    """Pretend that a supported version is installed."""
    install("0.19.8")


def run_on(processes: int, *, precision: str = "no", model: nn.Module | None = None, compiled: bool = False) -> Any:
    """Return the parts of a run that an engine reads before it starts."""
    return SimpleNamespace(
        num_processes=processes,
        mixed_precision=precision,
        device=torch.device("cpu"),
        callback_handler=SimpleNamespace(callbacks=[]),
        get_model=lambda keep_torch_compile=True: nn.Linear(1, 1) if compiled and keep_torch_compile else model,
    )


def part_of(model: nn.Module, *optimizers: torch.optim.Optimizer, **others: nn.Module) -> Part:
    """Return a part of a run that trains modules."""
    accelerator: Any = Accelerator()
    part = Part(accelerator, num_averaged=2, scales_all=False)
    part.start({"model": model, **others})
    part.optimizers.update({f"optimizer_{number}": optimizer for number, optimizer in enumerate(optimizers)})
    return part


class ZeroTrainer(Trainer[Any, Any, Any, Any]):
    """A trainer with the engine."""

    @override
    def create_exchange(self) -> ZeroEngine:
        return ZeroEngine(self)


def train(kind: type[Trainer[Any, Any, Any, Any]]) -> str:
    """Train, and return a digest of everything."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    trainer = kind(model, nn.MSELoss(), optimizer, callbacks=[])
    trainer.train(make_regression(64), 2, per_device_batch_size=8, samples_per_update=16, gradient_clip_norm=0.1)
    return trainer.fingerprint()


@pytest.mark.usefixtures("installed")
def test_a_run_on_one_process_needs_no_engine() -> None:
    """On one process, the run is the run of a plain trainer, bit for bit, and DeepSpeed is not imported."""
    assert train(ZeroTrainer) == train(Trainer)


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is not None, reason="DeepSpeed is installed")
def test_deepspeed_has_to_be_installed() -> None:
    """Without DeepSpeed, the error says how to install it."""
    with pytest.raises(UnsupportedConfigurationError, match=r'pip install "deepspeed>=0.19.8,<0.20"'):
        train(ZeroTrainer)


def test_an_untested_version_of_deepspeed_is_refused(install: Callable[[str], None]) -> None:
    """The engine is driven by more than DeepSpeed's documented interface, so its versions are a range."""
    install("0.20.1")
    with pytest.raises(UnsupportedConfigurationError, match=r"0\.20\.1"):
        ZeroEngine(run_on(2))


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("stage", [0, 4, "2", True])
def test_other_stages_are_refused(stage: Any) -> None:
    """ZeRO has the stages 1, 2 and 3."""
    with pytest.raises(ConfigurationError, match="stage must be 1, 2 or 3"):
        ZeroEngine(run_on(2), stage=stage)


@pytest.mark.usefixtures("installed")
def test_settings_without_effect_or_test_are_refused_by_name() -> None:
    """Offloading and unknown settings are refused; sizes of messages are not."""
    ZeroEngine(run_on(2), settings={"reduce_bucket_size": 1000, "overlap_comm": True})
    with pytest.raises(UnsupportedConfigurationError, match=r"'offload_optimizer'[\s\S]*FSDP2 with cpu_offload"):
        ZeroEngine(run_on(2), settings={"offload_optimizer": {"device": "cpu"}})
    with pytest.raises(UnsupportedConfigurationError, match="'zero_hpz_partition_size'"):
        ZeroEngine(run_on(2), settings={"zero_hpz_partition_size": 8})
    with pytest.raises(UnsupportedConfigurationError, match="overlap_comm has no effect"):
        ZeroEngine(run_on(2), stage=1, settings={"overlap_comm": True})


@pytest.mark.usefixtures("installed")
def test_accelerates_own_configuration_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that is launched with --use_deepspeed has two engines to choose from, so the error names both."""
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(UnsupportedConfigurationError, match="ACCELERATE_USE_DEEPSPEED=true"):
        ZeroEngine(run_on(2))


@pytest.mark.usefixtures("installed")
def test_fp16_is_refused() -> None:
    """DeepSpeed would have to control the scale of the loss."""
    with pytest.raises(UnsupportedConfigurationError, match="fp16"):
        ZeroEngine(run_on(2, precision="fp16"))


@pytest.mark.usefixtures("installed")
def test_reproducible_runs_are_refused() -> None:
    """Sums of gradients depend on the number of processes."""
    with pytest.raises(UnsupportedConfigurationError, match="ZeroEngine, whose is_exact is False"):
        ZeroTrainer(nn.Linear(4, 1), nn.MSELoss(), None, callbacks=[], reproducible="any_processes")


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters())


def _lbfgs(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(model.parameters())


def _adam_of_weight(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam([next(model.parameters())])


def _adam_of_others(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam([*model.parameters(), nn.Parameter(torch.ones(1))])


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("model", "optimizer", "message"),
    [
        (nn.Linear(2, 2), _lbfgs, r"only for an optimizer[\s\S]*LBFGS"),
        (nn.Linear(2, 2), _adam_of_weight, "'bias' is trainable, but no optimizer has it"),
        (nn.Linear(2, 2), _adam_of_others, "1 parameters that are not in the model"),
        (nn.Linear(2, 2).bfloat16(), _adam, r"'weight' in torch\.bfloat16"),
        (nn.Embedding(2, 2, sparse=True), _adam, "sparse gradients"),
    ],
)
def test_what_the_engine_would_not_train_exactly_is_refused(
    model: nn.Module, optimizer: Callable[[nn.Module], torch.optim.Optimizer], message: str
) -> None:
    """Optimizers that do not update each element on its own, and other parameters, are refused before the run."""
    engine = ZeroEngine(run_on(2, model=model))
    with pytest.raises(UnsupportedConfigurationError, match=message):
        engine.add(part_of(model, optimizer(model)), {}, overlaps=True)


@pytest.mark.usefixtures("installed")
def test_several_models_and_compiled_models_are_refused() -> None:
    """An engine trains a single model, which torch has not compiled."""
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    with pytest.raises(UnsupportedConfigurationError, match="the modules model, critic"):
        ZeroEngine(run_on(2, model=model)).add(part_of(model, critic=other), {}, overlaps=True)
    with pytest.raises(UnsupportedConfigurationError, match="the optimizers optimizer_0, optimizer_1"):
        ZeroEngine(run_on(2, model=model)).add(part_of(model, _adam(model), _adam(other)), {}, overlaps=True)
    with pytest.raises(UnsupportedConfigurationError, match=r"torch\.compile"):
        ZeroEngine(run_on(2, model=model, compiled=True)).add(part_of(model, _adam(model)), {}, overlaps=True)
    engine = ZeroEngine(run_on(2, model=model))
    engine.add(part_of(model, _adam(model)), {}, overlaps=True)
    with pytest.raises(UnsupportedConfigurationError, match="the modules model, model"):
        engine.add(part_of(other, _adam(other)), {}, overlaps=True)


@pytest.mark.usefixtures("installed")
def test_a_trainer_with_its_own_loop_is_refused() -> None:
    """Such a loop does not call the methods of an exchange."""
    with pytest.raises(UnsupportedConfigurationError, match="_run_train_epoch"):
        ZeroEngine(run_on(2)).average_each_pass(part_of(nn.Linear(1, 1)))


@pytest.mark.usefixtures("installed")
def test_weights_are_not_averaged_in_stage_3() -> None:
    """The average of a model's weights needs them whole between two steps."""
    model = nn.Linear(2, 2)
    run = run_on(2, model=model)
    run.callback_handler.callbacks.append(type("ModelEmaCallback", (), {})())
    with pytest.raises(UnsupportedConfigurationError, match="ModelEmaCallback"):
        ZeroEngine(run, stage=3).add(part_of(model, _adam(model)), {}, overlaps=True)
