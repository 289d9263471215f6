"""What tests set around a printed command, the page sets as well: readers have nothing but the page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.docs.pages import ROOT, all_pages

NAME = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+")
SCRIPTS = [
    "crashes/test_torchrun.py",
    "docs/*.py",
    "docs_with_others/*.py",
    "examples/*.py",
    "launching.py",
    "several_machines/*.py",
    "slurm/*.py",
    "trackers/*.py",
]
"""Files of ``tests`` that run what pages print."""

NOT_PRINTED = {
    "CUDA_VISIBLE_DEVICES": "a machine without a GPU",
    "GRADIO_ANALYTICS_ENABLED": "nothing leaves the machine",
    "HF_HOME": "the folder of a user who has not called accelerate config",
    "HF_HUB_OFFLINE": "nothing is downloaded",
    "JOB_COMPLETION_INDEX": "Kubernetes sets it",
    "MLFLOW_DISABLE_TELEMETRY": "nothing leaves the machine",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "MLflow writes at once, and in the background",
    "MLFLOW_TRACKING_URI": "a folder of the test's own",
    "OMP_NUM_THREADS": "torchrun sets it for several processes; the machine does much else",
    "PET_LOCAL_ADDR": "several pages are run at once",
    "PET_STANDALONE": "several pages are run at once",
    "PYTHON_EXEC": "ranks are forked from a process that has imported torch",
    "SLURMD_NODENAME": "Slurm sets it",
    "SLURM_CONF": "a cluster of the test's own",
    "SLURM_JOB_ID": "Slurm sets it",
    "SLURM_JOB_NODELIST": "Slurm sets it",
    "SLURM_JOB_NUM_NODES": "Slurm sets it",
    "TOKENIZERS_PARALLELISM": "hides a warning about forks, which tests make",
    "TRACKIO_DIR": "a folder of the test's own",
    "WANDB_API_KEY": "a server of the test's own",
    "WANDB_BASE_URL": "a server of the test's own",
    "WANDB_CONSOLE": "the output belongs to the test",
    "WANDB_SILENT": "the output belongs to the test",
}
"""Variables that tests set and no page does, with the reason why its reader does not need them."""


def names_that_are_set(script: Path) -> Iterator[str]:
    """Names of variables that a file passes to a process, in whatever form."""
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.Dict):
            yield from (key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg
        elif (
            isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and isinstance(node.slice, ast.Constant)
        ):
            yield str(node.slice.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"^([A-Z0-9_]+)=", node.value)


def names_that_are_printed() -> set[str]:
    """Names of variables that a block of a page for users sets: in a command, an export, a job or a manifest."""
    pages = [page for page in all_pages() if not str(page).startswith("docs/maintainers")]
    blocks = [block.code for page in pages for block in page.blocks() if block.language in ("bash", "console", "yaml")]
    return {name for code in blocks for name in re.findall(r"\b([A-Z][A-Z0-9_]+)(?:=|, value:)", code)}


def test_tests_set_no_variable_that_no_page_sets() -> None:
    """A command that works only with what a test sets around it does not work for its reader."""
    scripts = [path for one in SCRIPTS for path in ROOT.glob(f"tests/{one}") if path != Path(__file__)]
    set_by = {name: str(path.relative_to(ROOT)) for path in scripts for name in names_that_are_set(path)}
    of_tests = {name: path for name, path in set_by.items() if NAME.fullmatch(name) and not name.startswith("TESTS_")}
    printed = names_that_are_printed()
    forgotten = {name: path for name, path in of_tests.items() if name not in printed and name not in NOT_PRINTED}
    assert forgotten == {}, "Set them in the command that the page prints, or say in NOT_PRINTED why readers need not."
    assert NOT_PRINTED.keys() - of_tests.keys() == set(), "No test sets them any more."
    assert NOT_PRINTED.keys() & printed == set(), "A page sets them."
