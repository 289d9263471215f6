"""Several models in a loop of one's own, each with its optimizer, schedule and name, and their precision."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from pa_core import ConfigurationError, Run, SaveTrainingStateCallback
from tests.support.loops import updates_of
from tests.support.pa_core.custom_loops.gans import REAL, gan, noise


def train(run: Run[Any, Any]) -> None:
    """The discriminator first, on real and made points in two passes, then the generator against it."""
    generator, discriminator = run.models["generator"], run.models["discriminator"]
    loss_func = nn.BCEWithLogitsLoss()
    with run:
        for update in run.updates():
            for real, numbers in update:
                made = generator(noise(numbers))
                of_real, of_made = discriminator(real), discriminator(made.detach())
                update.backward(loss_func(of_real, torch.ones_like(of_real)), model="discriminator")
                update.backward(loss_func(of_made, torch.zeros_like(of_made)), model="discriminator")
                verdict = discriminator(made)
                update.backward(loss_func(verdict, torch.ones_like(verdict)), model="generator")
            update.step("discriminator")
            update.step("generator")


def weights(run: Run[Any, Any]) -> dict[str, Tensor]:
    """All weights of a run."""
    return {name: value.clone() for name, value in run.get_model().state_dict().items()}


def test_it_is_the_loop_by_hand() -> None:
    """One process, whole batches: what the same loop makes of the same batches in plain torch."""
    run, by_hand = gan(), gan()
    train(run)
    generator, discriminator = by_hand.models["generator"], by_hand.models["discriminator"]
    optimizers = by_hand.optimizers
    schedule = ExponentialLR(optimizers["generator"], 0.9)
    loss_func = nn.BCEWithLogitsLoss()
    for real, numbers in updates_of(TensorDataset(REAL, torch.arange(22)), run.run_config.seed, epochs=2, samples=4):
        made = generator(noise(numbers))
        of_real, of_made = discriminator(real), discriminator(made.detach())
        loss = loss_func(of_real, torch.ones_like(of_real)) + loss_func(of_made, torch.zeros_like(of_made))
        optimizers["discriminator"].zero_grad()
        loss.backward(retain_graph=True)
        optimizers["generator"].zero_grad()
        verdict = discriminator(made)
        loss_func(verdict, torch.ones_like(verdict)).backward(inputs=list(generator.parameters()))
        optimizers["discriminator"].step()
        optimizers["generator"].step()
        schedule.step()
    for name, value in weights(run).items():
        torch.testing.assert_close(value, by_hand.get_model().state_dict()[name], rtol=1e-12, atol=1e-12)


def test_losses_of_passes_after_the_step_of_another_model_are_recorded() -> None:
    """A generator that learns from the discriminator as it is after its step; passes before and after it add up."""
    run = gan(num_epochs=1)
    with run:
        for real, _ in run.batches():
            made = run.models["generator"](real[:, :3]).sum() * 0
            run.backward(made + 1.0, model="generator", retain_graph=True)
            run.backward(run.models["discriminator"](real).sum() * 0 + 3.0, model="discriminator")
            run.step("discriminator")
            run.backward(made + 4.0, model="generator")
            run.step("generator")
    assert run.run_history.get_latest_metric("train_discriminator_loss_epoch") == pytest.approx(3.0)
    assert run.run_history.get_latest_metric("train_generator_loss_epoch") == pytest.approx(5.0)
    assert set(run.run_history.get_metric_names()) == {"train_discriminator_loss_epoch", "train_generator_loss_epoch"}


def test_a_model_without_an_optimizer_is_placed_and_saved(tmp_path: Path) -> None:
    """A teacher, or a target network that the loop changes by itself."""

    def distil(**options: Any) -> Run[Any, Any]:
        torch.manual_seed(0)
        student, teacher = nn.Linear(2, 1), nn.Linear(2, 1).requires_grad_(False)
        optimizer = SGD(student.parameters(), lr=0.1)
        data = TensorDataset(torch.ones(8, 2))
        return Run({"student": student, "teacher": teacher}, {"student": optimizer}, data, num_epochs=1, **options)

    run = distil(callbacks=[SaveTrainingStateCallback(tmp_path)])
    with run:
        for (inputs,) in run.batches():
            run.backward((run.models["student"](inputs) - run.models["teacher"](inputs)).square().mean())
            run.step()
        run.models["teacher"].get_parameter("weight").fill_(7.0)
    assert "train_loss_epoch" in set(run.run_history.get_metric_names())
    again = distil(resume_from=tmp_path)
    with again:
        assert list(again.updates()) == []
    assert again.models["teacher"].get_parameter("weight").tolist() == [[7.0, 7.0]]


def test_a_checkpoint_has_the_weights_of_all_models(tmp_path: Path) -> None:
    """Several optimizers are in training states alone."""
    run = gan()
    train(run)
    run.save_checkpoint(tmp_path / "gan.pt")
    other = gan(seed=8)
    assert "optimizer_state_dict" not in other.load_checkpoint(tmp_path / "gan.pt")
    for name, value in weights(run).items():
        assert torch.equal(value, weights(other)[name]), name


class TestMistakes:
    """What is refused, and how it is said."""

    def test_a_name_is_missing_or_unknown(self) -> None:
        """The names of the run are listed."""
        with pytest.raises(ConfigurationError, match="'generator', 'discriminator'"), gan() as run:
            for real, _ in run.batches():
                run.backward(run.models["discriminator"](real).mean())
        with pytest.raises(ConfigurationError, match="'critic'"), gan() as run:
            for _ in run.batches():
                run.step("critic")
        with pytest.raises(ConfigurationError, match=r"'discriminator'., got 'critic'"), gan() as run:
            for real, _ in run.batches():
                run.backward(run.models["discriminator"](real).mean(), model="critic")

    def test_the_name_of_a_model_that_the_loss_does_not_depend_on(self) -> None:
        """The other half of a GAN: the generator would get no gradients, and its step would change nothing."""
        with pytest.raises(ConfigurationError, match=r"'generator'(.|\n)*model="), gan() as run:
            for update in run.updates():
                for real, _ in update:
                    update.backward(run.models["discriminator"](real).mean(), model="generator")
                update.step("generator")

    def test_gradients_without_a_step(self) -> None:
        """They would be added to those of the next update, unless the run was resumed in between."""
        with pytest.raises(ConfigurationError, match=r"update 2 with a backward pass of 'generator'"), gan() as run:
            for update in run.updates():
                for real, numbers in update:
                    made = run.models["generator"](noise(numbers))
                    update.backward(run.models["discriminator"](real).mean(), model="discriminator")
                    update.backward(run.models["discriminator"](made).mean(), model="generator")
                update.step("discriminator")
                if update.number % 2 == 1:
                    update.step("generator")

    def test_a_last_batch_without_a_backward_pass(self) -> None:
        """On several processes the gradients would not have been exchanged."""
        run = gan(gradient_accumulation_steps=2)
        with pytest.raises(ConfigurationError, match=r"A step of 'discriminator'[\s\S]*last batch"), run:
            for update in run.updates():
                for real, _ in update:
                    if not update.is_at_last_batch:
                        update.backward(run.models["discriminator"](real).mean(), model="discriminator")
                update.step("discriminator")

    def test_a_backward_pass_of_a_frozen_model(self) -> None:
        """Its gradients would go nowhere, though those of other models in the graph could be computed."""
        run = gan()
        with pytest.raises(ConfigurationError, match=r"Nothing is trained by(.|\n)*'discriminator'"), run:
            run.models["discriminator"].requires_grad_(False)
            for _, numbers in run.batches():
                made = run.models["generator"](noise(numbers))
                run.backward(run.models["discriminator"](made).mean(), model="discriminator")

    def test_one_schedule_of_several_optimizers(self) -> None:
        """It would be that of the first one alone; and one of another optimizer would change nothing."""
        with pytest.raises(ConfigurationError, match="'generator', 'discriminator'"):
            gan(create_scheduler_fn=partial(ExponentialLR, gamma=0.9))

        def of_the_other(optimizer: Optimizer) -> ExponentialLR:
            assert optimizer is not others
            return ExponentialLR(others, gamma=0.9)

        run = gan(create_scheduler_fn={"generator": of_the_other})
        others = run.optimizers["discriminator"]
        with pytest.raises(ConfigurationError, match="a scheduler of another optimizer"), run:
            pass

    def test_names_that_do_not_fit(self) -> None:
        """Each optimizer and each schedule has the name of what it is for."""
        model = nn.Linear(1, 1)
        optimizer = SGD(model.parameters(), lr=0.1)
        data = TensorDataset(torch.ones(4, 1))
        with pytest.raises(ConfigurationError, match="'student'"):
            Run({"model": model}, {"student": optimizer}, data, num_epochs=1)
        with pytest.raises(ConfigurationError, match="'teacher'"):
            Run(
                {"model": model}, {"model": optimizer}, data, num_epochs=1, create_scheduler_fn={"teacher": lambda o: o}
            )
        with pytest.raises(ConfigurationError, match="none of the model's parameters"):
            Run({"model": model, "other": nn.Linear(1, 1)}, {"other": optimizer}, data, num_epochs=1)


Call = Callable[[Run[nn.Sequential, Any], Tensor], Tensor]


def warnings_of(call: Call, *, precision: Any = "bf16", dtype: torch.dtype = torch.float32) -> list[str]:
    """What is warned of in a run of two updates whose outputs come from a function."""
    model = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1)).to(dtype)
    data = TensorDataset(torch.ones(8, 2, dtype=dtype))
    run = Run(
        model, SGD(model.parameters(), lr=0.1), data, num_epochs=1, per_device_batch_size=4, mixed_precision=precision
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with run:
            for (inputs,) in run.batches():
                run.backward(call(run, inputs).square().mean())
                run.step()
    return [str(one.message) for one in caught]


def in_parts(run: Run[nn.Sequential, Any], inputs: Tensor) -> Tensor:
    """The layers one by one, which bypasses the precision of the model."""
    outputs: Tensor = run.model[1](run.model[0](inputs))
    return outputs


def in_autocast(run: Run[nn.Sequential, Any], inputs: Tensor) -> Tensor:
    """The layers one by one, in the precision of the run."""
    with run.autocast():
        return in_parts(run, inputs)


def whole(run: Run[nn.Sequential, Any], inputs: Tensor) -> Tensor:
    """The model itself."""
    outputs: Tensor = run.model(inputs)
    return outputs


def recomputed(run: Run[nn.Sequential, Any], inputs: Tensor) -> Tensor:
    """A graph that is not there before the backward pass."""
    outputs: Tensor = checkpoint(run.model, inputs.requires_grad_(), use_reentrant=True)
    return outputs


def without_products(run: Run[nn.Sequential, Any], inputs: Tensor) -> Tensor:
    """Nothing that autocast would compute in another precision."""
    return sum(parameter.sum() for parameter in run.model.parameters()) * inputs


def test_a_part_that_is_called_computes_in_fp32() -> None:
    """Which is said once, with what to do."""
    (message,) = warnings_of(in_parts)
    assert "is bf16" in message
    assert "with run.autocast()" in message


@pytest.mark.parametrize("call", [whole, in_autocast, recomputed, without_products])
def test_what_computes_as_it_was_asked_to(call: Call) -> None:
    """Or what does not tell, or has nothing that could be computed in another precision."""
    assert warnings_of(call) == []


@pytest.mark.parametrize(("precision", "dtype"), [("no", torch.float32), ("bf16", torch.float64)])
def test_where_no_mixed_precision_would_have_an_effect(precision: str, dtype: torch.dtype) -> None:
    """None was asked for, or the model is in double precision, which autocast leaves alone."""
    assert warnings_of(in_parts, precision=precision, dtype=dtype) == []
