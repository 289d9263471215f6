"""The precision of a run: over with the run, one for all trainers of a process, and with a scaler where it is fp16."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import (
    ConfigurationError,
    NonFiniteLossError,
    Run,
    SaveTrainingStateCallback,
    StopTrainingError,
    Trainer,
    TrainerCallback,
    TrainerWithTimmScheduler,
    UnsupportedConfigurationError,
)
from pa_core.distributed import num_processes
from pa_core.testing import RecordingCallback, TinyClassifier, make_classification, make_regression
from tests.support.callbacks import FailAt, TellAt
from tests.support.models import weights_of

on_one_and_two_ranks = pytest.mark.runs_on("one_process", "two_ranks")


class InBf16(Trainer[nn.Module]):
    """A trainer whose author chose its precision."""

    @override
    def _create_accelerator(self) -> Any:
        return Accelerator(cpu=True, mixed_precision="bf16")


class InFp16(Trainer[nn.Module]):
    """A trainer in real fp16 on a CPU, where torch can do it: as accelerate sets up one on a GPU."""

    @override
    def _create_accelerator(self) -> Any:
        accelerator: Any = Accelerator(cpu=True, mixed_precision="fp16")
        accelerator.native_amp = True
        accelerator.scaler = GradScaler("cpu", init_scale=1024.0)
        return accelerator


def first_steps(function: Callable[[], object]) -> TellAt:
    """Calls a function after the first step of each epoch."""
    return TellAt("on_train_step_end", lambda _, told: function() if told["step"] == 1 else None)


Kind: TypeAlias = Callable[..., Trainer[nn.Module]]


def trainer_in(kind: Kind, model: nn.Module, *callbacks: TrainerCallback) -> Trainer[nn.Module]:
    """A trainer of one of the classes above."""
    return kind(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks)


def computes_in(model: nn.Module) -> torch.dtype:
    """The precision of the first layer of a network, whatever its outputs are converted to."""
    seen: list[torch.dtype] = []
    layer = next(one for one in model.modules() if isinstance(one, nn.Linear))
    handle = layer.register_forward_hook(lambda _module, _inputs, output: seen.append(output.dtype))
    model(torch.zeros(2, 4))
    handle.remove()
    return seen[0]


def fail() -> None:
    """Fail in the middle of a run."""
    raise LookupError("in mid-run")


def is_untouched(model: nn.Module) -> bool:
    """Whether a model computes in its own precision, and nothing was left in it."""
    return computes_in(model) == torch.float32 and vars(model).keys() == vars(TinyClassifier()).keys()


def test_no_trace_of_a_preparation_that_failed() -> None:
    """A model that accelerate has begun to prepare when it gives up is the user's own again."""
    model = TinyClassifier()

    def fails_late(prepared: nn.Module) -> bool:
        if "forward" in vars(prepared):
            fail()
        return False

    class FailsToPlace(InBf16):
        @override
        def _create_accelerator(self) -> Any:
            accelerator = super()._create_accelerator()
            accelerator.verify_device_map = fails_late
            return accelerator

    with pytest.raises(LookupError):
        trainer_in(FailsToPlace, model).train(make_classification(16), 1)
    assert is_untouched(model)


def test_no_trace_of_a_run_that_failed() -> None:
    """A run that an exception ends in mid-epoch, in training or evaluation, leaves a model that computes in fp32."""
    model = TinyClassifier()
    with pytest.raises(LookupError):
        trainer_in(InBf16, model, first_steps(fail)).train(make_classification(16), 1)
    assert is_untouched(model)

    with pytest.raises(LookupError):
        trainer_in(InBf16, model, FailAt("on_eval_step_start", LookupError())).evaluate(make_classification(16))
    assert is_untouched(model)


@on_one_and_two_ranks
def test_no_trace_of_a_run_that_was_stopped() -> None:
    """A run that stops early, in mid-epoch, leaves a model that computes in fp32."""
    model, during = TinyClassifier(), list[torch.dtype]()
    look = first_steps(lambda: during.append(computes_in(model)))
    trainer = trainer_in(InBf16, model, look, FailAt("on_train_step_end", StopTrainingError("enough")))
    trainer.train(make_classification(16), 1, per_device_batch_size=2)
    assert during == [torch.bfloat16]
    assert is_untouched(model)


@on_one_and_two_ranks
def test_no_trace_in_another_model() -> None:
    """Evaluating another model in the middle of a run changes neither: both are their own when the run is over."""
    model, other = TinyClassifier(), TinyClassifier()
    evaluating = trainer_in(InBf16, other)
    trainer = trainer_in(InBf16, model, first_steps(lambda: evaluating.evaluate(make_classification(8))))
    trainer.train(make_classification(16), 2, make_classification(8), per_device_batch_size=4)
    assert is_untouched(model)
    assert is_untouched(other)


@on_one_and_two_ranks
def test_a_model_of_two_trainers() -> None:
    """A trainer that evaluates the model of another in the middle of its run leaves it in the precision of the run."""
    model, during = TinyClassifier(), list[torch.dtype]()
    evaluating = trainer_in(InBf16, model)

    def evaluate() -> None:
        evaluating.evaluate(make_classification(8))
        during.append(computes_in(model))

    trainer_in(InBf16, model, first_steps(evaluate)).train(make_classification(16), 2, per_device_batch_size=4)
    assert during == [torch.bfloat16] * 2
    assert is_untouched(model)
    evaluating.train(make_classification(16), 1, per_device_batch_size=4)
    assert is_untouched(model)


def test_fp16_that_would_be_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, asking for fp16 warns that fp32 runs, and everything that describes the run says so."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    model = TinyClassifier()
    with pytest.warns(UserWarning, match="'fp16' has no effect on the device cpu: the run computes in fp32") as caught:
        trainer = trainer_in(Trainer, model)
    assert caught[0].filename == __file__
    assert trainer.describe_run().endswith("precision fp32")
    during: list[torch.dtype] = []
    trainer.callback_handler.add_callback(first_steps(lambda: during.append(computes_in(model))))
    trainer.train(make_classification(8), 1)
    assert during == [torch.float32]
    assert trainer.run_config.mixed_precision == "no"


def test_fp16_where_it_works() -> None:
    """With a scaler, forward runs in fp16, the norm that is clipped is that of the real gradients, weights are fp32."""
    model, during = TinyClassifier(), list[torch.dtype]()
    note = first_steps(lambda: during.append(computes_in(model)))
    trainer = InFp16(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=1.0), [note])
    before = weights_of(model)
    trainer.train(
        make_classification(16), 1, per_device_batch_size=4, gradient_accumulation_steps=4, gradient_clip_norm=0.01
    )
    assert during == [torch.float16]
    assert (trainer.describe_run()[-4:], trainer.run_config.mixed_precision) == ("fp16", "fp16")
    assert (weights_of(model) - before).norm().item() == pytest.approx(0.01, rel=1e-3)
    assert is_untouched(model)


@pytest.mark.parametrize("scales", [False, True], ids=["fp32", "fp16"])
def test_what_accelerate_would_accumulate(scales: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accumulation that accelerate was told of has no effect, with a warning that says where to ask for it."""
    weights: list[Tensor] = []
    for steps in ("1", "4"):
        monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", steps)
        torch.manual_seed(0)
        model = TinyClassifier()
        kind: type[Trainer[nn.Module]] = InFp16 if scales else Trainer
        if steps == "1":
            trainer = trainer_in(kind, model)
        else:
            with pytest.warns(UserWarning, match="gradient_accumulation_steps=4 of accelerate has no effect"):
                trainer = trainer_in(kind, model)
        trainer.train(make_classification(16), 2)
        weights.append(weights_of(model))
    assert torch.equal(*weights)


@on_one_and_two_ranks
@pytest.mark.parametrize("kind", [Trainer, InFp16])
def test_trainers_that_accumulate_differently(kind: type[Trainer[nn.Module]]) -> None:
    """Two trainers of a process take turns, also one within a run of the other, and each gets what it gets alone."""

    def of(seed: int, *callbacks: TrainerCallback) -> tuple[nn.Module, Trainer[nn.Module]]:
        torch.manual_seed(seed)
        model = TinyClassifier()
        return model, trainer_in(kind, model, *callbacks)

    def train(trainer: Trainer[nn.Module], steps: int) -> None:
        torch.manual_seed(steps)
        trainer.train(make_classification(22), 1, per_device_batch_size=2, gradient_accumulation_steps=steps)

    alone: list[Tensor] = []
    for steps in (4, 1):
        model, trainer = of(steps)
        for _ in range(2):
            train(trainer, steps)
        alone.append(weights_of(model))

    often, updates_often = of(1)
    rarely, updates_rarely = of(4, first_steps(lambda: train(updates_often, 1)))
    for _ in range(2):
        train(updates_rarely, 4)
    assert torch.equal(weights_of(rarely), alone[0])
    assert torch.equal(weights_of(often), alone[1])


@pytest.mark.runs_on("bf16")
def test_the_model_computes_in_bf16_and_its_weights_stay_fp32() -> None:
    """Launched so, training and evaluation run forward in bfloat16; weights, outputs and losses are float32."""
    model, recorder, computed = TinyClassifier(), RecordingCallback(), set[torch.dtype]()
    first: nn.Module = model.layers[0]
    first.register_forward_hook(lambda _module, _inputs, output: computed.add(output.dtype))
    trainer = trainer_in(Trainer, model, recorder)
    trainer.train(make_classification(32), 3, make_classification(16))
    outputs = [arguments["batch_output"] for arguments in recorder.arguments if "batch_output" in arguments]
    assert computed == {torch.bfloat16}
    assert {output[name].dtype for output in outputs for name in ("model_outputs", "loss")} == {torch.float32}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert trainer.run_config.mixed_precision == "bf16"
    assert "bf16" in trainer.describe_run()
    losses = list(trainer.run_history.get_metric_values("train_loss_epoch"))
    assert losses[-1] < losses[0]


def precision_of(kind: Any = Trainer, **arguments: Any) -> tuple[str, torch.dtype]:
    """What a trainer says that it computes in, and what the first layer of its model computes in."""
    model, during = TinyClassifier(), list[torch.dtype]()
    note = first_steps(lambda: during.append(computes_in(model)))
    trainer = kind(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), [note], **arguments)
    trainer.train(make_classification(8), 1, per_device_batch_size=2)
    assert trainer.mixed_precision == trainer.run_config.mixed_precision
    return trainer.mixed_precision, during[0]


class WithDdpSettings(Trainer[nn.Module]):
    """A trainer whose author passes something else to its Accelerator."""

    @override
    def _create_accelerator(self) -> Any:
        return Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)])


@on_one_and_two_ranks
@pytest.mark.parametrize("kind", [Trainer, WithDdpSettings, TrainerWithTimmScheduler])
def test_a_precision_that_the_script_asks_for(kind: Any) -> None:
    """`mixed_precision=` is what the model computes in, also where the Accelerator is made by the user's own method."""
    assert precision_of(kind, mixed_precision="bf16") == ("bf16", torch.bfloat16)


@pytest.mark.parametrize(
    ("asked", "computed"), [("no", ("no", torch.float32)), (None, ("bf16", torch.bfloat16))], ids=["no", "None"]
)
def test_a_precision_against_that_of_the_launch(
    asked: Any, computed: tuple[str, torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the script says wins over `accelerate launch`; None is what it was launched with."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert precision_of(mixed_precision=asked) == computed
    assert os.environ["ACCELERATE_MIXED_PRECISION"] == "bf16"


@on_one_and_two_ranks
def test_two_precisions_for_one_trainer() -> None:
    """Where the trainer and its own `_create_accelerator` ask for different ones, the error names both."""
    with pytest.raises(ConfigurationError) as caught:
        precision_of(InBf16, mixed_precision="no")
    assert "mixed_precision='no' was requested, and the Accelerator from InBf16._create" in str(caught.value)
    assert "has mixed_precision='bf16'" in str(caught.value)


IN_FP32, IN_BF16 = (partial(Trainer[nn.Module], mixed_precision=one) for one in ("no", "bf16"))


@on_one_and_two_ranks
@pytest.mark.parametrize(
    ("first", "second", "there", "wanted"),
    [
        (Trainer, InBf16, "no", "bf16"),
        (InBf16, Trainer, "bf16", "no"),
        (IN_FP32, IN_BF16, "no", "bf16"),
        (IN_BF16, IN_FP32, "bf16", "no"),
        (IN_FP32, partial(WithDdpSettings, mixed_precision="bf16"), "no", "bf16"),
        (IN_BF16, partial(WithDdpSettings, mixed_precision="no"), "bf16", "no"),
    ],
)
def test_a_second_precision_in_one_process(first: Kind, second: Kind, there: str, wanted: str) -> None:
    """Accelerate has one for each process: another one is refused, and the earlier trainer stays as it was."""
    earlier = trainer_in(first, TinyClassifier())
    described = earlier.describe_run()
    with pytest.raises(UnsupportedConfigurationError, match="an earlier trainer or run has chosen them") as caught:
        trainer_in(second, TinyClassifier())
    assert f"mixed_precision='{wanted}' comes after mixed_precision='{there}'" in str(caught.value)
    assert "Pass the same here" in str(caught.value)
    assert earlier.describe_run() == described
    earlier.train(make_classification(8), 1, per_device_batch_size=2)
    assert earlier.run_config.mixed_precision == there
    assert trainer_in(first, TinyClassifier()).describe_run() == described
    assert dist.is_initialized() == (earlier.run_config.num_processes > 1)


@on_one_and_two_ranks
@pytest.mark.parametrize("kind", [Trainer, WithDdpSettings])
def test_a_trainer_on_the_cpu(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cpu=True` runs there without a variable that says so, on several processes too."""
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    trainer = kind(TinyClassifier(), None, None, callbacks=[], cpu=True)
    assert trainer.device == torch.device("cpu")
    assert trainer.num_processes == (dist.get_world_size() if dist.is_initialized() else 1)
    assert "ACCELERATE_USE_CPU" not in os.environ


def test_a_device_that_is_not_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """`cpu=True` against a device that was asked for by name is an error that names both."""
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "meta")
    with pytest.raises(ConfigurationError) as caught:
        Trainer(TinyClassifier(), None, None, cpu=True)
    assert "cpu=True was requested" in str(caught.value)
    assert "has the device meta" in str(caught.value)


@on_one_and_two_ranks
@pytest.mark.parametrize("kind", [InBf16, InFp16, Trainer])
def test_autocast(kind: Any) -> None:
    """Within `trainer.autocast()` torch computes in the precision of the trainer, and outside it as before."""
    trainer = kind(TinyClassifier(), None, None, callbacks=[])
    layer, inputs = nn.Linear(4, 4), torch.ones(2, 4)
    with trainer.autocast():
        inside = layer(inputs).dtype
    assert inside == {InBf16: torch.bfloat16, InFp16: torch.float16, Trainer: torch.float32}[kind]
    assert layer(inputs).dtype == torch.float32


class Scaled(Trainer[nn.Linear]):
    """A trainer whose accelerator scales losses, as accelerate does for fp16."""

    @override
    def _create_accelerator(self) -> Any:
        accelerator: Any = super()._create_accelerator()
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
        return accelerator


class TokenScaled(Scaled):
    """The same, with a loss that counts items."""

    @override
    def calculate_train_batch_loss(self, batch: Any) -> Any:
        return {**super().calculate_train_batch_loss(batch), "num_items_in_batch": len(batch[0])}


def linear(weight: float = 0.1) -> nn.Linear:
    """A linear model with fixed weights."""
    model = nn.Linear(4, 1)
    nn.init.constant_(model.weight, weight)
    nn.init.zeros_(model.bias)
    return model


def weights_after(trainer_class: type[Trainer[nn.Linear]]) -> Tensor:
    """The weights after some clipped updates of uneven batches."""
    model = linear()
    torch.manual_seed(0)
    trainer = trainer_class(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1, momentum=0.9), callbacks=[])
    trainer.train(
        make_regression(21), 2, per_device_batch_size=2, gradient_accumulation_steps=2, gradient_clip_norm=0.5
    )
    return weights_of(model)


@on_one_and_two_ranks
@pytest.mark.parametrize("trainer_class", [Scaled, TokenScaled])
def test_scaling_changes_no_update(trainer_class: type[Scaled]) -> None:
    """Accumulated, clipped and item-weighted updates are those without a scaler: clipping sees unscaled gradients."""
    assert torch.allclose(weights_after(trainer_class), weights_after(Trainer[nn.Linear]), rtol=0, atol=1e-6)


@on_one_and_two_ranks
def test_a_skipped_update_counts_for_nothing_but_the_data() -> None:
    """Where gradients overflow, the weights stay, no scheduler steps and no event fires; the samples are used up."""
    inputs, targets = make_regression(12).tensors
    inputs = inputs.clone()
    inputs[:, 0] = torch.tensor([1e30] + [0.0] * 11)  # its gradient overflows, its loss does not
    model, recorder = linear(weight=1e-15), RecordingCallback()
    trainer = Scaled(model, nn.MSELoss(), SGD(model.parameters(), lr=1e-3), callbacks=[recorder])
    trainer.train(
        TensorDataset(inputs, targets),
        1,
        per_device_batch_size=2,
        create_scheduler_fn=partial(StepLR, step_size=1, gamma=0.5),
        train_dataloader_kwargs={"shuffle": False},
    )
    steps = trainer.run_config.num_update_steps_per_epoch
    assert trainer.num_updates_completed == steps - 1
    assert recorder.events.count("on_optimizer_step_end") == steps - 1
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 * 0.5 ** (steps - 1))
    assert trainer.run_history.clock.samples == 12
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


class ScaledRun(Run[nn.Linear]):
    """A custom loop whose losses are scaled."""

    @override
    def _create_accelerator(self) -> Any:
        accelerator: Any = super()._create_accelerator()
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
        return accelerator


@on_one_and_two_ranks
def test_a_step_says_whether_it_has_made_an_update() -> None:
    """Not after other batches than the last one of an update, and not where gradients overflowed."""
    inputs, targets = make_regression(16).tensors
    inputs = inputs.clone()
    inputs[:8, 0] = 1e30
    model, made = linear(weight=1e-15), list[bool]()
    run = ScaledRun(
        model,
        SGD(model.parameters(), lr=1e-3),
        TensorDataset(inputs, targets),
        num_epochs=1,
        per_device_batch_size=4 // num_processes(),
        gradient_accumulation_steps=2,
        train_dataloader_kwargs={"shuffle": False},
    )
    with run:
        for batch, expected in run.batches():
            run.backward(nn.functional.mse_loss(model(batch), expected))
            made.append(run.step())
    assert made == [False, False, False, True]
    assert run.num_updates_completed == sum(made)


@on_one_and_two_ranks
def test_gradients_that_overflow_for_ever_end_the_run(shared_tmp_path: Path) -> None:
    """Before the scale is zero, which would make the weights NaN; no state of the end is saved, as with such a loss."""
    model, data = linear(weight=1e-15), TensorDataset(torch.full((160, 4), 1e30), torch.zeros(160, 1))
    recorder, save = RecordingCallback(), SaveTrainingStateCallback(shared_tmp_path)
    trainer = Scaled(model, nn.MSELoss(), SGD(model.parameters(), lr=1e-3), callbacks=[recorder, save])
    before = model.weight.detach().clone()
    with pytest.raises(NonFiniteLossError, match=r"overflow(.|\n)*scale of 5\.96e-08(.|\n)*bf16"):
        trainer.train(data, 4, per_device_batch_size=1)
    assert torch.equal(model.weight, before)
    assert trainer.num_updates_completed == 0
    assert recorder.events[-2:] == ["on_stop_training_error", "on_training_run_end"]
    assert not [path for path in shared_tmp_path.iterdir() if not path.name.startswith(".")]


def prepared(model: nn.Module, precision: str, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """A model that a script has given to an accelerator of its own before, in another precision."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", precision)
    AcceleratorState._reset_state(reset_partial_state=True)  # pyright: ignore[reportPrivateUsage]  # accelerate's tests do
    Accelerator(cpu=True).prepare_model(model, evaluation_mode=True)
    AcceleratorState._reset_state(reset_partial_state=True)  # pyright: ignore[reportPrivateUsage]  # accelerate's tests do
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION")
    return model


@pytest.mark.parametrize("part", ["model", "a part of it", "a copy of it"])
@pytest.mark.parametrize("precisions", [("no", "bf16"), ("bf16", "no")], ids=["bf16 after fp32", "fp32 after bf16"])
def test_a_model_that_was_prepared_before_computes_in_the_precision_of_the_run(
    precisions: tuple[str, Any], part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accelerate returns such a model as it is; after the run it is again what the script had made of it."""
    before, now = precisions
    model, during = TinyClassifier(), list[torch.dtype]()
    prepared(model if part != "a part of it" else model.layers, before, monkeypatch)
    if part == "a copy of it":
        model = copy.deepcopy(model)
    first = computes_in(model)
    note = first_steps(lambda: during.append(computes_in(model)))
    optimizer = SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, [note], mixed_precision=now)
    trainer.train(make_classification(8), 1)
    assert during == [torch.bfloat16 if now == "bf16" else torch.float32]
    assert computes_in(model) == first == (torch.bfloat16 if before == "bf16" else torch.float32)


@pytest.mark.parametrize(
    ("dtypes", "described"),
    [
        ([torch.float32, torch.float32], "precision fp32"),
        ([torch.bfloat16, torch.bfloat16], "precision bf16 weights"),
        ([torch.float64, torch.float64], "precision fp64 weights"),
        ([torch.float32, torch.bfloat16], "precision fp32 and bf16 weights"),
    ],
)
def test_the_precision_of_the_weights_is_said(dtypes: list[torch.dtype], described: str) -> None:
    """A model that was loaded in bfloat16 loses small updates, which "fp32" would hide."""
    model = nn.Sequential(*(nn.Linear(2, 2, dtype=dtype) for dtype in dtypes))
    assert Trainer(model, nn.MSELoss(), None, callbacks=[]).describe_run().endswith(described)
    run = Run(model, SGD(model.parameters(), lr=0.1), make_regression(8), num_epochs=1)
    assert run.describe_run().endswith(described)


@pytest.mark.parametrize(("dtype", "described"), [(torch.float32, "bf16"), (torch.bfloat16, "bf16, bf16 weights")])
def test_so_is_it_in_mixed_precision(dtype: torch.dtype, described: str) -> None:
    """After the precision that is computed in."""
    model = nn.Linear(2, 2, dtype=dtype)
    assert InBf16(model, nn.MSELoss(), None, callbacks=[]).describe_run().endswith(f"precision {described}")


@dataclass(frozen=True)
class Output:
    """What a model of a user's returns."""

    value: Any
    name: str = "value"


class Pair(NamedTuple):
    """The same as a named tuple."""

    value: Any
    name: str = "value"


class Model(nn.Module):
    """Returns its result within something."""

    def __init__(self, within: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.within = within

    @override
    def forward(self, inputs: Tensor) -> Any:
        return self.within(self.layer(inputs))


WAYS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "dataclass": (Output, lambda output: output.value),
    "dataclass in a dictionary": (lambda value: {"head": Output(value)}, lambda output: output["head"].value),
    "list in a dataclass": (lambda value: Output([value, 3]), lambda output: output.value[0]),
    "dataclass in a dataclass": (lambda value: Output(Output(value)), lambda output: output.value.value),
    "named tuple": (Pair, lambda output: output.value),
}


@pytest.mark.runs_on("bf16")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("within", "value_of"), WAYS.values(), ids=WAYS)
def test_tensors_in_an_output_of_any_structure_are_float32(
    within: Callable[[Tensor], Any], value_of: Callable[[Any], Tensor], compiled: bool
) -> None:
    """In training, evaluation, predictions and a custom loop, compiled or not; nothing is left in the model."""
    seen: set[torch.dtype] = set()

    class Step(Trainer[Any]):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> Any:
            value = value_of(self.model(batch[0]))
            seen.add(value.dtype)
            return {"loss": nn.functional.mse_loss(value, batch[1]), "model_outputs": value, "batch_size": len(value)}

        calculate_eval_batch_loss = calculate_train_batch_loss

        @override
        def predict_batch(self, batch: Any) -> Any:
            return value_of(self.model(batch[0])).dtype

    plain = Model(within)
    model: Any = torch.compile(plain, backend="eager") if compiled else plain
    data = make_regression(8)
    trainer = Step(model, None, SGD(model.parameters(), lr=0.1), callbacks=[])
    trainer.train(data, 1, data, per_device_batch_size=4)
    assert seen | set(trainer.predict(data, 4)) == {torch.float32}

    with Run(model, SGD(model.parameters(), lr=0.1), data, num_epochs=1, per_device_batch_size=4) as run:
        for inputs, targets in run.batches():
            value = value_of(run.model(inputs))
            assert value.dtype == torch.float32
            run.backward(nn.functional.mse_loss(value, targets))
            run.step()
    assert not plain._forward_hooks  # pyright: ignore[reportPrivateUsage]  # no public way
    assert value_of(model.bfloat16()(torch.ones(1, 4).bfloat16())).dtype == torch.bfloat16
