"""Executes the steps of a script of a page in this process: `run_steps.py STEPS RESULTS`, both files of JSON.

It imports nothing that a page may import, and knows nothing of what a page expects.
"""

from __future__ import annotations

import codeop
import doctest
import json
import linecache
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any


class Process:
    """A program that is fed its code in pieces, as the module ``__main__``."""

    def __init__(self, page: str) -> None:
        self.page = page
        self.main = ModuleType("__main__")
        self.main.__file__ = page
        self.lines: list[str] = []
        self.compile = codeop.Compile()
        sys.modules["__main__"] = self.main
        sys.argv = [page]
        sys.path[0] = str(Path.cwd())

    def python(self, code: str, line: int) -> dict[str, str]:
        """Execute code that stands on this line of the page; say with which error it ends, if it does."""
        self.lines += ["\n"] * (line - 1 - len(self.lines))
        self.lines += code.splitlines(keepends=True)
        linecache.cache[self.page] = (0, None, self.lines, self.page)  # for tracebacks, and for inspect.getsource
        try:
            exec(self.compile("\n" * (line - 1) + code, self.page, "exec"), self.main.__dict__)
        except BaseException as error:
            return {
                "error": "".join(traceback.format_exception_only(error)),
                "report": "".join(traceback.format_exception(error)),
            }
        return {}

    def session(self, code: str, line: int) -> dict[str, str]:
        """Execute what stands behind `>>>`; report what was printed and is not what is shown."""
        examples = doctest.DocTestParser().get_doctest(code, {}, self.page, self.page, line)
        examples.globs = self.main.__dict__
        report: list[str] = []
        options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        doctest.DocTestRunner(optionflags=options).run(examples, out=report.append, clear_globs=False)
        return {"report": "".join(report)}

    def step(self, step: dict[str, Any]) -> dict[str, Any]:
        """Do what a step says; return what came of it beside its output."""
        if step["kind"] == "file":
            Path(step["name"]).parent.mkdir(parents=True, exist_ok=True)
            Path(step["name"]).write_text(step["code"])
            return {}
        if step["kind"] == "console":
            ended = subprocess.run(["bash", "-c", step["code"]], stdin=subprocess.DEVNULL, check=False)
            return {"status": ended.returncode if ended.returncode >= 0 else 128 - ended.returncode}
        run = self.session if step["kind"] == "pycon" else self.python
        return run(step["code"], step["line"])


def main(steps_file: Path, results_file: Path) -> None:
    """Execute the steps, each with its output in a file, until one ends with an error."""
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # which a shell ignores for what it starts in the background
    script: dict[str, Any] = json.loads(steps_file.read_text())
    process = Process(script["page"])
    kept = [os.dup(number) for number in (1, 2)]
    for number, step in enumerate(script["steps"]):
        with results_file.with_suffix(f".{number}").open("wb") as output:
            for standard in (1, 2):
                os.dup2(output.fileno(), standard)
            result = process.step(step)
            sys.stdout.flush()
            sys.stderr.flush()
            for standard, file in zip((1, 2), kept, strict=True):
                os.dup2(file, standard)
        with results_file.open("a") as results:
            results.write(json.dumps(result) + "\n")
        if result.get("report") and not step["may_fail"]:
            break


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
