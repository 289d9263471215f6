"""The lines of docs/several-machines.md, on two machines that can be killed and cut off."""

from __future__ import annotations

import re
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
SOON = re.findall(r"`--rdzv-conf (\S+)`", (ROOT / PAGE).read_text())[0]
"""What the page shortens the waiting with."""
needs_namespaces = pytest.mark.skipif(not has_namespaces(), reason="needs network namespaces")


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
    line: str,
    machines: tuple[Machine, Machine],
    folder: Path,
    *run: str,
    soon: bool = False,
    with_addresses: bool = False,
) -> list[list[str]]:
    """What to type on each machine, after a line of the page, which is for eight GPUs and another script."""
    port = free_port()
    commands: list[list[str]] = []
    for number, machine in enumerate(machines):
        words = shlex.split(line)
        words[words.index("--nproc-per-node") + 1] = "1"
        settings = [SOON] if soon else []
        own = ["--local-addr", machine.address] if with_addresses or machine.namespace is None else []
        if machine.namespace is None:  # two launchers on one machine, which both have its name
            words[words.index("node1:29400")] = f"{machine.address}:{port}"
            settings += [f"is_host={int(number == 0)}"]
        own += ["--rdzv-conf", ",".join(settings)] if settings else []
        assert words[-1] == "train.py"
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


def require_torchrun(
    machines: tuple[Machine, Machine],
    folder: Path,
    expected: dict[str, torch.Tensor],
    before: str = ":",
    *,
    with_addresses: bool = False,
) -> None:
    """Started by torchrun on both machines, a run ends with the weights of one process."""
    line = printed_commands(PAGE, "torchrun --nnodes 2")[0]
    commands = on_two_machines(line, machines, folder, "0", "600", with_addresses=with_addresses)
    launchers = [one.start(typed, folder / "log", before) for one, typed in zip(machines, commands, strict=True)]
    assert [launcher.wait(timeout=120) for launcher in launchers] == [0, 0], (folder / "log").read_text()
    assert {count for _, count in updates(folder)} == {2}
    require_weights_of(folder, expected)


def test_torchrun(machines: tuple[Machine, Machine], tmp_path: Path, undisturbed: dict[str, torch.Tensor]) -> None:
    """Started by torchrun on both machines, a run ends with the weights of one process."""
    require_torchrun(machines, tmp_path, undisturbed)


@needs_namespaces
@pytest.mark.parametrize(("own_address", "with_addresses"), [("127.0.1.1", False), ("127.0.0.1", True)])
def test_torchrun_where_the_name_of_a_machine_leads_to_itself(
    tmp_path: Path, undisturbed: dict[str, torch.Tensor], own_address: str, *, with_addresses: bool
) -> None:
    """It takes the line of the page that names the interface, and for 127.0.0.1 the option that it names."""
    (before,) = printed_commands(PAGE, "GLOO_SOCKET_IFNAME")
    assert "`--local-addr`" in (ROOT / PAGE).read_text()
    with two_machines(own_address) as machines:
        require_torchrun(machines, tmp_path, undisturbed, before, with_addresses=with_addresses)


def test_accelerate(machines: tuple[Machine, Machine], tmp_path: Path, undisturbed: dict[str, torch.Tensor]) -> None:
    """Started by accelerate on both machines, a run ends with the weights of one process."""
    here = {"16": "2"}
    if machines[0].namespace is None:
        here |= {"29500": str(free_port()), "node1": machines[0].address}
    launchers: list[subprocess.Popen[bytes]] = []
    for machine, line in zip(machines, printed_commands(PAGE, "accelerate launch"), strict=True):
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
    first, second = on_two_machines(line, machines, tmp_path, "0.25", "600", soon=True)
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


@needs_namespaces
def test_a_machine_that_is_cut_off(
    machines: tuple[Machine, Machine], tmp_path: Path, undisturbed: dict[str, torch.Tensor]
) -> None:
    """A machine that vanishes without closing a connection is given up after max_wait_seconds; the run goes on."""
    line = printed_commands(PAGE, "torchrun --nnodes 1:2")[0]
    commands = on_two_machines(line, machines, tmp_path, "0.25", "15", soon=True)
    launcher, _ = (
        one.start(command, tmp_path / f"{one.name}.log") for one, command in zip(machines, commands, strict=True)
    )
    wait_for(lambda: len(updates(tmp_path)) >= 7, launcher)
    machines[1].pull_cable()
    assert launcher.wait(timeout=200) == 0, (tmp_path / "node1.log").read_text()
    assert updates(tmp_path)[-1][1] == 1
    require_weights_of(tmp_path, undisturbed)
