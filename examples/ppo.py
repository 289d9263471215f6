"""Reinforcement learning with PPO.

A sample of the dataset is an episode that is still to be played: where it starts, and the draws that choose actions. So
episodes have an order, and are shared by processes and resumed like any other data. Each batch of them is played with
the present policy, and makes eight updates. Training states are saved before the next batch is played. Run the script
again to resume. Delete outputs/ppo to start over.

    python examples/ppo.py
    torchrun --nproc-per-node 2 examples/ppo.py
    accelerate launch --mixed_precision bf16 examples/ppo.py

The first line that it prints, and the last one:

    Epoch 1: the pole stands for 52.3 steps
    Epoch 5: the pole stands for 188.0 steps
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from torch.utils.data import TensorDataset

from pa_core import Run, SaveTrainingStateCallback

STEPS = 200
LIMITS = torch.tensor([2.4, 0.2, torch.inf, torch.inf])  # beyond which the pole does not stand


def make_episodes(number: int) -> TensorDataset:
    """Return starts of a cart with a pole (position, angle, and how fast both change), and draws for each step."""
    return TensorDataset(torch.rand(number, 4) * 0.1 - 0.05, torch.rand(number, STEPS))


def push(state: Tensor, to_the_right: Tensor) -> Tensor:
    """Push carts of 1 kg to one side for 20 ms, each with a pole of 0.1 kg and 1 m, and return where that leads."""
    _, angle, speed, turning = state.unbind(-1)
    sine, cosine = angle.sin(), angle.cos()
    force = (20.0 * to_the_right - 10.0 + 0.05 * turning.square() * sine) / 1.1
    bending = (9.8 * sine - cosine * force) / (0.5 * (4 / 3 - 0.1 * cosine.square() / 1.1))
    gain = force - 0.05 * bending * cosine / 1.1
    return state + 0.02 * torch.stack([speed, turning, gain, bending], dim=-1)


class Rollout(NamedTuple):
    """What has happened in some episodes: a row for each step."""

    states: Tensor
    actions: Tensor
    logits: Tensor
    values: Tensor
    returns: Tensor


def play(player: nn.Module, state: Tensor, draws: Tensor) -> Rollout:
    """Play episodes until the pole falls; a return is between 0 and 1, the larger the later it does."""
    steps: list[tuple[Tensor, ...]] = []
    stands = torch.ones_like(draws[:, 0])
    with torch.no_grad():
        for draw in draws.unbind(1):
            logit, value = player(state).unbind(1)
            action = (draw < logit.sigmoid()).float()
            steps.append((state, action, logit, value, stands))
            state = push(state, action)
            stands = stands * (state.abs() < LIMITS.to(state.device)).all(1)
    returns = [torch.zeros_like(stands)]
    for *_, stood in reversed(steps):
        returns.insert(0, stood * (0.05 + 0.95 * returns[0]))
    states, actions, logits, values, stood = (torch.stack(one) for one in zip(*steps, strict=True))
    return Rollout(*(one[stood > 0] for one in (states, actions, logits, values, torch.stack(returns[:-1]))))


def loss_of(player: nn.Module, rollout: Rollout) -> Tensor:
    """Return the clipped loss of the policy plus the loss of the expected returns."""
    logits, values = player(rollout.states).unbind(1)
    sign, advantages = 2 * rollout.actions - 1, rollout.returns - rollout.values
    ratio = (logsigmoid(sign * logits) - logsigmoid(sign * rollout.logits)).exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    return torch.mean((values - rollout.returns).square() - gain)


def main(epochs: int = 5, output: Path = Path("outputs/ppo")) -> None:
    """Play and learn; print for how many steps the pole stands."""
    torch.manual_seed(0)
    player = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))  # logit of a push to the right, and value
    run = Run(
        player,
        torch.optim.Adam(player.parameters(), lr=3e-3),
        make_episodes(128),
        num_epochs=epochs,
        per_device_batch_size=16,
        max_updates_per_batch=8,
        callbacks=[SaveTrainingStateCallback(output / "states", save_every_n_epochs=1, max_checkpoints=2)],
        resume_from=output / "states",
        resume_missing="start",
    )
    with run:
        for epoch in run.epochs():
            for starts, draws in run.batches():
                rollout = play(player, starts, draws)
                run.log("steps", len(rollout.states) / len(starts))
                for steps in run.batches([rollout] * 8):
                    run.backward(loss_of(player, steps))
                    run.step()
            mean = run.run_history.get_latest_metric("train_steps_epoch")
            run.print(f"Epoch {epoch + 1}: the pole stands for {mean:.1f} steps")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Learn to balance a pole.")
    parser.add_argument("--epochs", type=int, default=5, help="how often to play all episodes")
    parser.add_argument("--output", type=Path, default=Path("outputs/ppo"), help="the folder for the training states")
    main(**vars(parser.parse_args()))
