"""Scripts of other loops become ones of ``Run`` with few changes, train as well, and can do more."""

from __future__ import annotations

import re

import pytest

from tests.examples.porting import PAGE, SCRIPTS, changes, differences, with_differences
from tests.launching import Launch

MOST_CHANGED_LINES = 25
PORTS = ["plain_torch", "with_accelerate", "character_model"]


@pytest.mark.parametrize("name", PORTS)
def test_few_lines_change(name: str) -> None:
    """Of scripts of 60 to 150 lines, at most 25 are new or changed, and more are gone than come."""
    length = len((SCRIPTS / f"{name}.py").read_text().splitlines())
    changed, gone = changes(name)
    assert 60 <= length <= 150
    assert 0 < changed <= MOST_CHANGED_LINES
    assert gone > changed


def test_the_page_shows_the_differences_and_their_numbers() -> None:
    """Run ``python -m tests.examples.porting`` after a change of the scripts."""
    page = PAGE.read_text()
    assert page.count("<!-- diff: ") == len(PORTS)
    assert with_differences(page) == page
    for name in PORTS:
        changed, gone = changes(name)
        assert f"`{name}.py`: {changed} lines new or changed, {gone} gone" in page


def test_a_difference_leaves_indentation_aside() -> None:
    """A line that only moved into a block is no change."""
    shown = differences("character_model")
    assert "-            print(f" not in shown
    assert "+    for update in run.updates():" in shown


def test_a_plain_script_and_its_port_learn_alike(launch: Launch) -> None:
    """Both recognise the digits; the port, started again, has nothing left to train."""
    plain = launch(SCRIPTS / "plain_torch.py", "--epochs=2")
    port = launch(SCRIPTS / "plain_torch_ported.py", "--epochs=2")
    again = launch(SCRIPTS / "plain_torch_ported.py", "--epochs=2")
    for launched in (plain, port):
        assert _last(r"epoch 1 accuracy ([\d.]+)", launched.output) > 0.9
    assert "Resuming from" in again.output
    assert "accuracy" not in again.output


def test_a_script_with_accelerate_on_two_ranks(launch: Launch) -> None:
    """The port prints once, and recognises the digits."""
    assert launch(SCRIPTS / "with_accelerate.py", "--epochs=1").status == 0
    port = launch(SCRIPTS / "with_accelerate_ported.py", "--epochs=3", "--output=ported", ranks=2)
    assert port.status == 0
    assert port.output.count("epoch 2 loss") == 1
    assert _last(r"epoch 2 loss [\d.]+ accuracy ([\d.]+)", port.output) > 0.9
    assert (launch.folder / "ported" / "model" / "model.safetensors").exists()


def test_a_character_model_on_two_ranks(launch: Launch) -> None:
    """Both learn to spell; the port goes on with the next update, and knows its best loss."""
    few = ("--max-iters=40", "--eval-interval=20", "--eval-iters=2")
    script = launch(SCRIPTS / "character_model.py", *few)
    port = launch(SCRIPTS / "character_model_ported.py", *few, "--out-dir=ported", ranks=2)
    assert (script.status, port.status) == (0, 0)
    for launched in (script, port):
        first, *_, last = [float(loss) for loss in re.findall(r"val loss ([\d.]+)", launched.output)]
        assert last < first - 1
    assert port.output.count("step 40:") == 1
    longer = launch(SCRIPTS / "character_model_ported.py", "--max-iters=50", *few[1:], "--out-dir=ported")
    assert "after update 41" in longer.output


def _last(pattern: str, output: str) -> float:
    return float(re.findall(pattern, output)[-1])
