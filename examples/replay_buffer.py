"""Reinforcement learning with a replay buffer.

A sample of the dataset is an episode to play. Its steps go into a buffer, the same on all processes, and twenty updates
follow. Run it again to resume, with the buffer. Delete outputs/replay_buffer to start over.

    python examples/replay_buffer.py
    torchrun --nproc-per-node 2 examples/replay_buffer.py
    accelerate launch --mixed_precision bf16 examples/replay_buffer.py

The first and the last line that it prints:

    Epoch 1: 25.2 steps to the exit, 1209 steps in the buffer
    Epoch 8: 11.2 steps to the exit, 6350 steps in the buffer
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from pa_core import Run, SaveTrainingStateCallback

MAZE = "#######", "#.....#", "#.###.#", "#...#.#", "###.#.#", "#...#.E", "#######"
STEPS, EXPLORED = 30, 0.2
CELLS = torch.tensor([[character != "#" for character in row] for row in MAZE]).flatten()
EXIT = "".join(MAZE).index("E")
MOVES = torch.tensor([-len(MAZE[0]), len(MAZE[0]), -1, 1])


def make_episodes(number: int) -> TensorDataset:
    """Return free cells to start in, and two draws for each step: whether to try something, and what."""
    starts = CELLS.nonzero().squeeze(1)[torch.randint(int(CELLS.sum()) - 1, (number,))]
    return TensorDataset(starts, torch.rand(number, STEPS, 2))


class ReplayBuffer:
    """All steps so far, and the draws of samples from them; the same on all processes, if all add the same."""

    def __init__(self) -> None:
        self.rows = torch.empty(0, 3, dtype=torch.long)
        self.generator = torch.Generator().manual_seed(0)

    def sample(self, number: int, process: int, num_processes: int) -> Tensor:
        """Return the share of a process in rows that all processes draw together."""
        drawn = torch.randint(len(self.rows), (number,), generator=self.generator)
        return self.rows[drawn[process::num_processes]]

    def state_dict(self) -> dict[str, Tensor]:
        """Return all of it."""
        return {"rows": self.rows, "generator": self.generator.get_state()}

    def load_state_dict(self, state_dict: dict[str, Tensor]) -> None:
        """Continue from what was saved."""
        self.rows = state_dict["rows"]
        self.generator.set_state(state_dict["generator"])


def play(model: nn.Module, cells: Tensor, draws: Tensor) -> Tensor:
    """Play episodes, and return their steps: where, which move, and where it has led to."""
    steps: list[Tensor] = []
    with torch.no_grad():
        for draw in draws.unbind(1):
            best = model(cells).argmax(1)
            move = torch.where(draw[:, 0] < EXPLORED, (4 * draw[:, 1]).long(), best)
            led_to = cells + MOVES.to(cells.device)[move]
            led_to = torch.where(CELLS.to(cells.device)[led_to], led_to, cells)
            steps.append(torch.stack([cells, move, led_to], dim=1))
            cells = torch.where(cells == EXIT, cells, led_to)
    rows = torch.stack(steps, dim=1)  # an episode after the other, so in the same order on any number of processes
    return rows[rows[:, :, 0] != EXIT]


def loss_of(model: nn.Module, target: nn.Module, rows: Tensor) -> Tensor:
    """Return how far the values are from those that follow: each step costs 1, and the exit ends it."""
    cells, moves, led_to = rows.unbind(1)
    with torch.no_grad():
        ahead = target(led_to).max(1).values * (led_to != EXIT)
    return nn.functional.smooth_l1_loss(model(cells).gather(1, moves[:, None]).squeeze(1), 0.9 * ahead - 1)


def main(epochs: int = 8, output: Path = Path("outputs/replay_buffer")) -> None:
    """Play and learn; print how many steps it takes to the exit."""
    torch.manual_seed(0)
    model, target = (nn.Sequential(nn.Embedding(len(CELLS), 64), nn.ReLU(), nn.Linear(64, 4)) for _ in range(2))
    run = Run(
        {"model": model, "target": target},
        {"model": torch.optim.Adam(model.parameters(), lr=1e-2)},
        make_episodes(48),
        num_epochs=epochs,
        per_device_batch_size=12,
        max_updates_per_batch=20,
        callbacks=[SaveTrainingStateCallback(output / "states", save_every_n_epochs=2, max_checkpoints=2)],
        resume_from=output / "states",
        resume_missing="start",
    )
    run.register_for_checkpointing(buffer := ReplayBuffer())
    with run:
        for epoch in run.epochs():
            for cells, draws in run.batches():
                steps = play(model, cells, draws)
                run.log("steps", len(steps) / len(cells))
                buffer.rows = torch.cat([buffer.rows, run.gather(steps).cpu()])
                samples = (buffer.sample(120, run.process_index, run.num_processes) for _ in range(20))
                for rows in run.batches(samples):
                    run.backward(loss_of(model, target, rows))
                    run.step()
                target.load_state_dict(model.state_dict())
            mean, size = run.run_history.get_latest_metric("train_steps_epoch"), len(buffer.rows)
            run.print(f"Epoch {epoch + 1}: {mean:.1f} steps to the exit, {size} steps in the buffer")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Learn to walk through a maze.")
    parser.add_argument("--epochs", type=int, default=8, help="how often to play all episodes")
    parser.add_argument("--output", type=Path, default=Path("outputs/replay_buffer"), help="the folder for the states")
    main(**vars(parser.parse_args()))
