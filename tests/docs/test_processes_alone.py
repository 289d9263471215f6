"""The report of docs/processes-alone.md is what its script prints when one process sleeps, here for seconds."""

from __future__ import annotations

from pathlib import Path

from tests.docs.comparison import differs
from tests.docs.pages import ROOT, Page
from tests.launching import Launch

PAGE = ROOT / "docs" / "processes-alone.md"
EXCHANGE = "        dist.all_reduce"
ASLEEP = """        if step == 3 and dist.get_rank() == 1:
            time.sleep(3600)
"""


def test_a_process_that_sleeps_is_reported_as_on_the_page(launch: Launch) -> None:
    """With the stacks of both, and what each has done last."""
    blocks = Page(PAGE, PAGE.read_text()).blocks()
    (script,) = (block.code for block in blocks if block.says("file") == "train.py")
    (_, shown) = next(block.code for block in blocks if block.says("tested by")).split("\n", 1)
    assert script.count(EXCHANGE) == script.count("import torch\n") == script.count("max_wait_seconds=60") == 1
    script = script.replace("import torch\n", "import time, torch\n").replace(
        "max_wait_seconds=60", "max_wait_seconds=3"
    )
    path = launch.folder / "train.py"
    path.write_text(script.replace(EXCHANGE, f"{ASLEEP}{EXCHANGE}"))
    launched = launch(Path("train.py"), ranks=2, fresh=True)
    assert launched.status == 1
    printed = "\n".join(line for line in launched.output.splitlines() if line.startswith("[rank"))
    assert not differs(by_rank(printed.replace(f"{launch.folder}/", "")), by_rank(shown)), printed


def by_rank(printed: str) -> str:
    """Lines of several ranks, rank by rank: which of them prints first is chance."""
    ranks: dict[str, list[str]] = {}
    rank = ""
    for line in printed.splitlines():
        rank = line.partition(":")[0] if line.startswith("[rank") else rank
        ranks.setdefault(rank, []).append(line)
    return "\n".join(line for rank in sorted(ranks) for line in ranks[rank])
