"""A check finds no mistakes in the examples."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.examples.porting import PORTS
from tests.examples.shared_launches import LAUNCHES
from tests.examples.ways import EXAMPLES
from tests.launching import as_a_reader, forked_python, run_command

OWN_LOOPS = {"gan", "truncated_bptt", "ppo", "replay_buffer"}
SCRIPTS = {
    **{name: arguments.usual for name, arguments in LAUNCHES.items() if name not in OWN_LOOPS},
    **{f"porting/{one.name}_ported": one.arguments for one in PORTS if one.loop == "trainer"},
    "porting/from_pytorch_accelerated": ("--epochs=6",),
    "slurm/train": (),
}
EACH_TIME = {"image_folder", "finetune_transformers"}
"""In both, a check has found mistakes where there are none."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[] if one in EACH_TIME else [pytest.mark.whole_proof]) for one in SCRIPTS]
)
def test_no_mistake_is_reported_of_an_example(name: str, tmp_path: Path) -> None:
    """Each run of its trainers is checked, and goes on as if it had not been."""
    report, script = tmp_path / "report.txt", EXAMPLES / f"{name}.py"
    python = [sys.executable] if name in LAUNCHES and LAUNCHES[name].fresh else forked_python()
    command = [*python, str(Path(__file__).with_name("checked.py")), str(report), str(script), *SCRIPTS[name]]
    offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    launched = run_command(command, folder=tmp_path, env={**as_a_reader(tmp_path), **offline}, timeout=280)
    assert launched.status == 0, launched.output
    assert report.read_text() == ""
