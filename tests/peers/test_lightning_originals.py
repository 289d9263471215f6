"""Scripts of Lightning, trained by Lightning itself, learn what their ports do."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.examples.porting import PORTS, Port
from tests.launching import run_command

LIGHTNING = os.environ.get("PEERS_PYTHON")
"""An interpreter that has Lightning; `python3 noxfile.py -s peers` makes one."""


@pytest.mark.timeout(600)  # both scripts; the first import of Lightning compiles it
@pytest.mark.skipif(LIGHTNING is None, reason="there is no interpreter that has Lightning")
@pytest.mark.parametrize("port", [port for port in PORTS if port.kind == "lightning"], ids=lambda port: port.name)
def test_a_script_of_lightning_and_its_port_learn_alike(tmp_path: Path, port: Port) -> None:
    """Both end with a metric between the same bounds."""
    for python, script in ((LIGHTNING or "", port.original), (sys.executable, port.port)):
        folder = tmp_path / script.stem
        folder.mkdir()
        launched = run_command([python, str(script), *port.arguments], folder=folder, timeout=300)
        assert launched.status == 0
        assert port.has_learned(launched.output)
