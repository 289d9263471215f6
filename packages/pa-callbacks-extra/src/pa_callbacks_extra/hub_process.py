"""Requests to the Hugging Face Hub that end in time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

_SCRIPT = Path(__file__).with_name("hub_requests.py")


class HubError(Exception):
    """A request to the Hub failed.

    Args:
        problem: The reason, in a line.
        is_final: Whether the Hub would give the same answer again.
    """

    def __init__(self, problem: str, *, is_final: bool) -> None:
        super().__init__(problem)
        self.is_final = is_final


class HubProcess:
    """A process that sends one request to the Hub.

    ``huggingface_hub`` tries again for minutes, in threads that nothing can end and that Python waits for when it
    exits, so each request has a process.

    Args:
        **request: The arguments of a function in ``hub_requests``.

    Raises:
        HubError: The process cannot be started.
    """

    def __init__(self, **request: object) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `answer`
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_SCRIPT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=os.environ | {"HF_HUB_DISABLE_PROGRESS_BARS": "1"},
                start_new_session=True,  # Ctrl-C is for the training
            )
        except OSError as error:
            raise HubError(f"No process can be started ({error}).", is_final=False) from error
        self._request = json.dumps(request).encode() + b"\n"

    def answer(self, seconds: float) -> str:
        """Return the address of the repository, or of the commit.

        Args:
            seconds: The longest time to wait; the process is ended after it.

        Raises:
            HubError: The request failed, or the Hub did not answer in time.
        """
        with self._errors, self._process as process:
            assert process.stdin is not None
            assert process.stdout is not None
            ending = threading.Timer(seconds, process.kill)
            ending.start()
            try:
                process.stdin.write(self._request)
                process.stdin.flush()
                output = process.stdout.read()
            except OSError:  # it has ended
                output = b""
            finally:
                has_time = ending.is_alive()
                ending.cancel()
                process.kill()
            *_, last = [b"", *output.splitlines()]
            answer: dict[str, Any] = json.loads(last) if last else {"problem": self._why(has_time, seconds)}
        if "url" in answer:
            return str(answer["url"])
        raise HubError(answer["problem"], is_final=answer.get("is_final", False))

    def end(self) -> None:
        """End the process, so that ``answer``, which another thread may be in, raises an error."""
        self._process.kill()

    def _why(self, has_time: bool, seconds: float) -> str:
        if not has_time:
            return f"It did not answer within {seconds:.0f} seconds."
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "Its process was ended.")
