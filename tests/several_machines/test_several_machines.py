"""The lines of docs/several-machines.md, on two machines that can be killed and cut off."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.docs.pages import printed_commands
from tests.launching import free_port
from tests.several_machines import train
from tests.several_machines.machines import ROOT, Machine, has_namespaces, two_machines

pytestmark = [pytest.mark.whole_proof, pytest.mark.timeout(300)]

PAGE = "docs/several-machines.md"
TRAIN = str(Path(train.__file__).relative_to(ROOT))
SOON = "last_call_timeout=5,join_timeout=60,keep_alive_interval=1,keep_alive_max_attempt=3"


@pytest.fixture
def machines() -> Iterator[tuple[Machine, Machine]]:
    """Two machines."""
    with two_machines() as pair:
        yield pair


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The weights of one process that nothing has interrupted."""
    folder = tmp_path_factory.mktemp("undisturbed")
    subprocess.run(
        [sys.executable, "-m", "tests.several_machines.train", str(folder), "0", "600"], check=True, cwd=ROOT
    )
    return weights_of(folder)


def on_two_machines(
    line: str, machines: tuple[Machine, Machine], folder: Path, port: int, *run: str
) -> list[list[str]]:
    """What to type on each machine, after a line of the page: one process each, and the addresses of these machines."""
    commands: list[list[str]] = []
    for number, machine in enumerate(machines):
        words = shlex.split(line.replace("node1:29400", f"{machines[0].address}:{port}"))
        words[words.index("--nproc-per-node") + 1] = "1"
        # Namespaces have no host names by which a launcher would know that it is the first one.
        own = ["--local-addr", machine.address, "--rdzv-conf", f"is_host={int(number == 0)},{SOON}"]
        commands.append(["env", *words[:-1], *own, TRAIN, str(folder), *run])  # before which a line may set variables
    return commands


def updates(folder: Path) -> list[tuple[int, int]]:
    """Each update that was made, with the number of processes that made it."""
    notes = folder / "updates.txt"
    if not notes.exists():
        return []
    return [(int(update), int(count)) for update, count in map(str.split, notes.read_text().splitlines())]


def wait_for(is_so: Callable[[], bool], *launchers: subprocess.Popen[bytes], seconds: float = 100.0) -> None:
    """Wait until something is the case, as long as the launchers run."""
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until, "nothing more happens"
        assert all(launcher.poll() is None for launcher in launchers), "a launcher has ended"
        time.sleep(0.1)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    """The weights that a run has left behind."""
    weights: dict[str, torch.Tensor] = torch.load(folder / "weights.pt")
    return weights


def require_weights_of(folder: Path, expected: dict[str, torch.Tensor]) -> None:
    """The weights of a run are those of another one, up to rounding."""
    weights = weights_of(folder)
    assert weights.keys() == expected.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(weight, expected[name], rtol=0, atol=1e-12)


def test_torchrun(machines: tuple[Machine, Machine], tmp_path: Path, undisturbed: dict[str, torch.Tensor]) -> None:
    """Started by torchrun on both machines, a run ends with the weights of one process."""
    line = printed_commands(PAGE, "torchrun --nnodes 2")[0]
    commands = on_two_machines(line, machines, tmp_path, free_port(), "0", "600")
    launchers = [one.start(command, tmp_path / "log") for one, command in zip(machines, commands, strict=True)]
    assert [launcher.wait(timeout=120) for launcher in launchers] == [0, 0], (tmp_path / "log").read_text()
    assert {count for _, count in updates(tmp_path)} == {2}
    require_weights_of(tmp_path, undisturbed)


def test_accelerate(machines: tuple[Machine, Machine], tmp_path: Path, undisturbed: dict[str, torch.Tensor]) -> None:
    """Started by accelerate on both machines, a run ends with the weights of one process."""
    port = str(free_port())
    launchers: list[subprocess.Popen[bytes]] = []
    for machine, line in zip(machines, printed_commands(PAGE, "accelerate launch"), strict=True):
        here = {"16": "2", "29500": port, "node1": machines[0].address}
        words = [here.get(word, word) for word in shlex.split(line)]
        launchers.append(machine.start([*words[:-1], TRAIN, str(tmp_path), "0", "600"], tmp_path / "log"))
    assert [launcher.wait(timeout=120) for launcher in launchers] == [0, 0], (tmp_path / "log").read_text()
    assert {count for _, count in updates(tmp_path)} == {2}
    require_weights_of(tmp_path, undisturbed)


def test_a_machine_that_is_killed_and_comes_back(
    machines: tuple[Machine, Machine], tmp_path: Path, undisturbed: dict[str, torch.Tensor]
) -> None:
    """A run whose second machine is killed goes on with the first, and with both when it is back; nothing is lost."""
    line = printed_commands(PAGE, "torchrun --nnodes 1:2")[0]
    first, second = on_two_machines(line, machines, tmp_path, free_port(), "0.25", "600")
    launcher = machines[0].start(first, tmp_path / "first.log")
    machines[1].start(second, tmp_path / "second.log")
    wait_for(lambda: len(updates(tmp_path)) >= 7, launcher)
    machines[1].kill()
    wait_for(lambda: (updates(tmp_path) or [(0, 0)])[-1][1] == 1 and updates(tmp_path)[-1][0] >= 10, launcher)
    returned = machines[1].start(second, tmp_path / "second.log")
    wait_for(lambda: updates(tmp_path)[-1][1] == 2, launcher)
    assert [launcher.wait(timeout=120), returned.wait(timeout=20)] == [0, 0], (tmp_path / "first.log").read_text()

    assert updates(tmp_path)[0][1] == 2
    assert "rank 1" in (tmp_path / "first.log").read_text()
    require_weights_of(tmp_path, undisturbed)


@pytest.mark.skipif(not has_namespaces(), reason="needs network namespaces, whose cable can be pulled")
def test_a_machine_that_is_cut_off(
    machines: tuple[Machine, Machine], tmp_path: Path, undisturbed: dict[str, torch.Tensor]
) -> None:
    """A machine that vanishes without closing a connection is given up after max_wait_seconds; the run goes on."""
    line = printed_commands(PAGE, "torchrun --nnodes 1:2")[0]
    commands = on_two_machines(line, machines, tmp_path, free_port(), "0.25", "15")
    launcher, _ = (
        one.start(command, tmp_path / f"{one.interface}.log") for one, command in zip(machines, commands, strict=True)
    )
    wait_for(lambda: len(updates(tmp_path)) >= 7, launcher)
    machines[1].pull_cable()
    assert launcher.wait(timeout=200) == 0, (tmp_path / f"{machines[0].interface}.log").read_text()
    assert updates(tmp_path)[-1][1] == 1
    require_weights_of(tmp_path, undisturbed)
