"""What the README shows first: a run, a picture of one, and a run that was killed."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from docs.terminal.animation import Line
from docs.terminal.killed_run import DRAWN, checksums, draw, record
from tests.docs.comparison import differs
from tests.launching import Launch, forked_python

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> list[Line]:
    """The session of the animation, as it takes place on this machine."""
    return record(tmp_path_factory.mktemp("session"), forked_python())


def texts_of(svg: str) -> list[str]:
    """The lines of text of a picture, without the title of the window."""
    return [element.text or "" for element in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")][1:]


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
