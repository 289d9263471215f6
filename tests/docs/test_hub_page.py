"""The code of docs/hub.md, with a small server in place of the Hugging Face Hub."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.pages import ROOT, Page
from tests.launching import Launch
from tests.support.pa_callbacks_extra.hub_server import serving

PAGE = ROOT / "docs" / "hub.md"
TEST = Path(__file__).relative_to(ROOT).as_posix()
SAME = """
import huggingface_hub
trained = {name: value.clone() for name, value in model.state_dict().items()}
nn.init.zeros_(model[0].weight)
"""
COMPARE = """
assert all(torch.equal(value, trained[name]) for name, value in model.state_dict().items())
assert trained["0.weight"].any()
"""


def test_the_page_pushes_and_loads(launch: Launch, tmp_path: Path) -> None:
    """Its script pushes a model once, with the files of its table, and its other code loads and pushes the weights."""
    train, load, push = (
        block.code for block in Page(PAGE, PAGE.read_text()).blocks() if block.says("tested by") == TEST
    )
    with serving() as hub:
        env: dict[str, str | None] = {**hub.environment(tmp_path / "home")}
        launched = launch(f"{train}{SAME}{load}{COMPARE}{push}", env=env)
        assert launched.status == 0
        assert f"Pushed the model to {hub.url}/me/digits/commit/1" in launched.output
        repository = hub.repositories["me/digits"]
        assert repository.files.keys() == {*re.findall(r"^\| `(\S+)` \|", PAGE.read_text(), re.MULTILINE)}
        assert len(repository.commits) == 1
        assert load.strip() in repository.files["README.md"].decode()
