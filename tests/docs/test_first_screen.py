"""What the README shows first: a run, a picture of one, and a run that was killed."""

from __future__ import annotations

import re
import signal
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch

from docs.terminal.animation import Line
from docs.terminal.killed_run import DRAWN, checksums, draw, record
from pa_preflight._registry import KINDS
from tests.docs.comparison import differs
from tests.examples.porting import with_differences
from tests.launching import Launch, forked_python

ROOT = Path(__file__).parents[2]
README, INDEX = ROOT / "README.md", ROOT / "docs" / "index.md"
LOOP = ROOT / "examples" / "porting" / "pytorch" / "loop_ported.py"
KILLED_AFTER = ROOT / "tests" / "examples" / "killed_after.py"
FIGURES = ROOT / "docs" / "maintainers" / "cost-figures.md"


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> list[Line]:
    """The session of the animation, as it takes place on this machine."""
    return record(tmp_path_factory.mktemp("session"), forked_python())


def texts_of(svg: str) -> list[str]:
    """The lines of text of a picture, without the title of the window."""
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")][1:]


def without_checksums(texts: list[str]) -> str:
    """A session without what is another one on each kind of processor."""
    return re.sub(r"(?<=weights is )\w+", "CHECKSUM", "\n".join(texts))


def test_the_quickstart_prints_what_the_readme_shows(launch: Launch) -> None:
    """The example ends, and each line of the README is among those that it prints."""
    (shown,) = re.findall(
        r"^\$ python3 noxfile.py -s quickstart\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE
    )
    launched = launch(ROOT / "examples" / "train_digits.py")
    assert launched.status == 0
    assert not differs(launched.output, shown)


@pytest.mark.parametrize("page", [README, INDEX], ids=lambda page: page.name)
def test_the_loop_before_and_after_is_that_of_two_scripts(page: Path) -> None:
    """The diff is the difference between them; ``with_differences`` of tests/examples/porting.py writes it."""
    text = page.read_text()
    assert "<!-- diff: pytorch/loop -->" in text
    assert with_differences(text) == text


def test_both_first_pages_show_the_same_program() -> None:
    """Who comes from the README to the site finds the program that they have just read."""
    shown = [re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)[0] for page in (README, INDEX)]
    assert shown[0] == shown[1]


def test_the_loop_of_the_readme_resumes_to_the_same_weights(tmp_path: Path) -> None:
    """Killed after 120 updates and started again, it writes the file that an uninterrupted run writes."""
    whole, interrupted = tmp_path / "whole", tmp_path / "interrupted"
    for folder in (whole, interrupted):
        folder.mkdir()
    assert Launch(whole)(LOOP).status == 0
    assert Launch(interrupted)(KILLED_AFTER, "120", str(LOOP)).status == -signal.SIGKILL
    resumed = Launch(interrupted)(LOOP)
    assert resumed.status == 0
    assert "Resuming from" in resumed.output
    weights = [torch.load(folder / "digits.pt") for folder in (whole, interrupted)]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


def test_the_figures_of_the_readme_are_the_measured_ones() -> None:
    """The ratios are those of the table that the benchmarks write, and the number of findings is that of the check."""
    rows = [
        line.split(" | ") for line in FIGURES.read_text().splitlines() if line.startswith("| a step, data in memory |")
    ]
    ratios = {row[1]: row[4] for row in rows}
    peers = sorted(float(ratio) for name, ratio in ratios.items() if not name.startswith(("ours", "by ")))
    text = " ".join(README.read_text().split())
    assert f"on data in memory, it takes {ratios['ours']} times as long" in text
    assert f"take {peers[0]} to {peers[-1]} times as long" in text
    assert f"for {len(KINDS)} kinds of mistakes" in text


def test_a_killed_run_ends_with_the_weights_of_one_that_was_not(session: list[Line]) -> None:
    """The first command is killed in mid-epoch, the second one goes on there, and both checksums are the same."""
    shown = [line.text for line in session]
    assert any(text.startswith("Killed") for text in shown)
    assert any(
        re.fullmatch(r"Resuming from outputs/stop_and_resume/step_\d+: in epoch 4, after update \d+\.", text)
        for text in shown
    )
    first, second = checksums(session)
    assert first == second


def test_the_animation_in_the_readme_shows_this_session(session: list[Line]) -> None:
    """All of it, apart from numbers. Run ``python -m docs.terminal.killed_run`` after a change of what is printed."""
    drawn, committed = texts_of(draw(session)), texts_of(DRAWN.read_text())
    assert drawn == [line.text for line in session]
    assert not differs(without_checksums(drawn), without_checksums(committed))
    assert DRAWN.relative_to(ROOT).as_posix() in README.read_text()


def test_runs_that_end_differently_are_not_drawn() -> None:
    """The picture cannot claim what did not happen."""
    lines = [Line(0.0, "the checksum of the weights is 123"), Line(1.0, "the checksum of the weights is 124")]
    with pytest.raises(ValueError, match=r"123.*124"):
        draw(lines)
