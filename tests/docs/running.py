"""Runs scripts of pages: python blocks and commands in processes that are forked, in a folder of the page's own."""

from __future__ import annotations

import json
import shlex
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.docs.comparison import differs
from tests.docs.pages import Block, Page, Script, is_excused, is_run
from tests.launching import as_a_reader, forked_python, run_command

HERE = Path(__file__).parent
BESIDE_TORCHVISION = HERE.parent / "support" / "beside_torchvision.py"
TIME_LIMIT = 150  # seconds for a script of a page, on a machine that does much else
FOLDER = "/home/me"  # what a page shows as the folder that it is run in
PROGRAMS = {
    "python": [],
    "torchrun": ["-m", "torch.distributed.run"],
    "accelerate": [str(HERE / "accelerate_program.py")],
    "pip": ["-c", "raise SystemExit('A page installs nothing here: say that the block is not run.')"],
}


@dataclass(frozen=True)
class Step:
    """What one process does in one go, and what the page says comes of it."""

    kind: str
    code: str
    line: int
    name: str = ""
    shown: str | None = None
    raises: str = ""
    status: int = 0
    same_results: bool = False

    def problem(self, printed: str, result: dict[str, Any]) -> str:
        """What is otherwise than the page says."""
        error: str = result.get("error", "")
        if result.get("report") and not self.raises:
            return f"{printed}{result['report']}"
        if self.raises and error.partition(":")[0].strip().rpartition(".")[2] != self.raises:
            return f"{self.raises} was not raised, but {error or 'nothing'}"
        if result.get("status", 0) != self.status:
            return f"it ended with the exit status {result['status']} instead of {self.status}:\n{printed}"
        if self.shown is not None and differs(printed + error, self.shown, same_results=self.same_results):
            return f"it printed\n{printed}{error}\ninstead of\n{self.shown}"
        return ""


def run_page(page: Page, folder: Path, *, needs: bool = False) -> list[str]:
    """Run the scripts of a page; return what is wrong, with the lines of the page.

    Args:
        page: the page.
        folder: where its files are, one for all its scripts.
        needs: run the scripts that need packages of the environment for other libraries instead of all others, whose
            files are written all the same.
    """
    if page.tested_by:
        return []
    beside = folder / "beside"
    page_folder = folder / "page"
    beside.mkdir()
    page_folder.mkdir()
    _write_programs(beside / "bin")
    for number, script in enumerate(page.scripts()):
        files = Script([block for block in script.blocks if block.says("file")])
        runs = script if bool(script.needs) == needs else files
        if runs.blocks and (problems := _run_script(page, runs, page_folder, beside / str(number))):
            return problems
    return []


def _run_script(page: Page, script: Script, folder: Path, beside: Path) -> list[str]:
    steps = list(_steps(script))
    if not steps:
        return []
    beside.mkdir()
    as_json = [{**vars(step), "may_fail": bool(step.raises)} for step in steps]
    (beside / "steps").write_text(json.dumps({"page": page.path.name, "steps": as_json}))
    programs = beside.parent / "bin"
    env = {
        **as_a_reader(folder.parent),
        "COLUMNS": "80",
        "MPLBACKEND": "agg",
        "PATH": f"{programs}:{sysconfig.get_path('scripts')}:/usr/local/bin:/usr/bin:/bin",
        "PET_LOCAL_ADDR": "127.0.0.1",
        "PET_STANDALONE": "1",  # on a port that torch finds itself: several pages are run at once
        "PYTHON_EXEC": str(programs / "python"),  # which torchrun starts
    }
    scripts = [*([str(BESIDE_TORCHVISION)] if script.needs else []), str(HERE / "run_steps.py")]
    # Of packages of others, some keep a folder for as long as their process lives: a fork would end with that of all.
    python = [sys.executable] if script.needs else forked_python()
    command = [*python, "-u", *scripts, str(beside / "steps"), str(beside / "results")]
    ran = run_command(command, folder=folder, env=env, timeout=TIME_LIMIT)

    results = (beside / "results").read_text().splitlines() if (beside / "results").exists() else []
    for number, (step, result) in enumerate(zip(steps, results, strict=False)):
        printed = (beside / f"results.{number}").read_text(errors="replace").replace(str(folder), FOLDER)
        if problem := step.problem(printed, json.loads(result.replace(str(folder), FOLDER))):
            return [f"{page}:{step.line}: {problem}"]
    if len(results) < len(steps):
        unfinished = beside / f"results.{len(results)}"
        printed = unfinished.read_text(errors="replace") if unfinished.exists() else ran.output
        return [f"{page}:{steps[len(results)].line}: the process ended in this block, with {ran.status}:\n{printed}"]
    return [f"{page}: the process ended with {ran.status}:\n{ran.output}"] if ran.status else []


def _steps(script: Script) -> Iterator[Step]:
    """What a process does for the blocks of a script, with the output that they and the blocks after them show."""
    for block, after in zip(script.blocks, [*script.blocks[1:], None], strict=True):
        if is_excused(block):
            continue
        if block.says("file"):
            yield Step("file", block.code, block.line, name=block.says("file"))
        elif block.language == "console":
            yield from _commands(block)
        elif is_run(block):
            shown = after.code if after and after.language == "text" and not _in_rank_local_block(after) else None
            same = "same results" in (block.comments if shown is None or after is None else after.comments)
            yield Step(
                block.language, block.code, block.line, shown=shown, raises=block.says("raises"), same_results=same
            )


def _in_rank_local_block(block: Block) -> bool:
    return bool(block.says("file")) or is_excused(block)


def _commands(block: Block) -> Iterator[Step]:
    """Each line after a ``$``, with the lines up to the next one as its output; without any, whatever it prints."""
    commands: list[tuple[int, str, list[str]]] = []
    for number, line in enumerate(block.code.splitlines(), start=block.line):
        if line.startswith("$ "):
            commands.append((number, line.removeprefix("$ "), []))
        elif commands and commands[-1][1].endswith("\\"):
            commands[-1] = (commands[-1][0], f"{commands[-1][1]}\n{line.removeprefix('> ')}", [])
        elif commands:
            commands[-1][2].append(line)
    for place, (number, command, output) in enumerate(commands, start=1):
        status = int(block.says("exits") or 0) if place == len(commands) else 0
        shown = "\n".join(output) if "".join(output).strip() else None
        same = "same results" in block.comments
        yield Step("console", command, number, shown=shown, status=status, same_results=same)


def _write_programs(folder: Path) -> None:
    """Write the programs that a page calls by name, which fork where the tests can."""
    folder.mkdir()
    for name, arguments in PROGRAMS.items():
        python = [sys.executable] if name == "pip" else forked_python()
        words = shlex.join([*python, *arguments])
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        program.chmod(0o755)
