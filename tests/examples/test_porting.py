"""Scripts of other loops and trainers become ours with few changes, train as well, and survive a kill."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
import torch

from tests.crashes.recording import digest
from tests.examples.porting import PAGES, PORTS, Port, changes, with_differences
from tests.launching import Launch

MOST_CHANGED_LINES = {"trainer": 15, "own": 25}
EACH_TIME = {"accelerate/tumours", "transformers/classify"}
"""The port of a script whose loop stays its own, and that of one that becomes a trainer; `--whole-proof` trains all."""
KILLED_AFTER = Path(__file__).with_name("killed_after.py")

all_ports = pytest.mark.parametrize("port", PORTS, ids=lambda port: port.name)
trained_ports = [
    pytest.param(port, id=port.name, marks=[] if port.name in EACH_TIME else [pytest.mark.whole_proof])
    for port in PORTS
]


@all_ports
def test_few_lines_change(port: Port) -> None:
    """Of scripts of 60 to 150 lines, at most 15 are new or changed where our loop trains, 25 where it stays theirs."""
    changed, gone = changes(port.name)
    assert 60 <= len(port.original.read_text().splitlines()) <= 150
    assert 0 < changed <= MOST_CHANGED_LINES[port.loop]
    assert gone > changed


@pytest.mark.parametrize("kind", sorted({port.kind for port in PORTS}))
def test_a_page_shows_a_difference_and_the_numbers_of_all(kind: str) -> None:
    """Run ``python -m tests.examples.porting`` after a change of the scripts."""
    page = (PAGES / f"{kind}.md").read_text()
    ports = [port for port in PORTS if port.kind == kind]
    assert with_differences(page) == page
    assert any(f"<!-- diff: {port.name} -->" in page for port in ports)
    for port in ports:
        assert f"`{port.name}.py`: " in page
        for script in (port.original, port.port):
            assert f"(../../examples/porting/{kind}/{script.name})" in page


@pytest.mark.whole_proof
@pytest.mark.parametrize("port", [one for one in trained_ports if not str(one.id).startswith("lightning")])
def test_a_script_learns_as_its_port_does(launch: Launch, port: Port) -> None:
    """It ends with a metric between the bounds that hold for the port too; `tests/peers` tries those of Lightning."""
    script = launch(port.original, *port.arguments)
    assert script.status == 0
    assert port.has_learned(script.output)


@pytest.mark.parametrize("port", trained_ports)
def test_a_port_that_is_killed_ends_as_one_that_is_not(tmp_path: Path, port: Port) -> None:
    """It learns; killed in mid-run and started again, it ends with the same weights and optimizer, bit for bit."""
    whole, interrupted = tmp_path / "whole", tmp_path / "interrupted"
    for folder in (whole, interrupted):
        folder.mkdir()
    launch, launch_again = Launch(whole), Launch(interrupted)

    uninterrupted = launch(port.port, *port.arguments)
    assert uninterrupted.status == 0
    assert port.has_learned(uninterrupted.output)
    killed = launch_again(KILLED_AFTER, str(port.kill_at), str(port.port), *port.arguments)
    assert killed.status == -signal.SIGKILL
    resumed = launch_again(port.port, *port.arguments)

    assert resumed.status == 0
    assert "Resuming from" in resumed.output
    expected = _results(whole, port.weights)
    assert any(name.endswith("final/optimizers.safetensors") for name in expected)
    assert _results(interrupted, port.weights) == expected


def test_a_script_with_accelerate_on_two_ranks(launch: Launch) -> None:
    """The port prints once, and recognises the digits."""
    port = launch(_script("accelerate/digits"), "--epochs=3", "--output=ported", ranks=2)
    assert port.status == 0
    assert port.output.count("epoch 2 loss") == 1
    assert _last(r"epoch 2 loss [\d.]+ accuracy ([\d.]+)", port.output) > 0.9
    assert (launch.folder / "ported" / "model" / "model.safetensors").exists()


def _script(name: str) -> Path:
    return next(port.port for port in PORTS if port.name == name)


def _results(folder: Path, exported: str) -> dict[str, str]:
    """Digests of the models and optimizers in the last states of a run, and of the weights that it exported.

    What its processes could draw next is left out: the scripts seed torch alone.
    """
    saved = [path for part in ("models", "optimizers") for path in folder.rglob(f"final/{part}.safetensors")]
    states = {str(path.relative_to(folder)): digest(path.read_bytes()) for path in saved}
    path = folder / exported
    weights = path.read_bytes() if path.suffix == ".safetensors" else torch.load(path, weights_only=True)
    return {**states, exported: digest(weights)}


def _last(pattern: str, output: str) -> float:
    return float(re.findall(pattern, output)[-1])
