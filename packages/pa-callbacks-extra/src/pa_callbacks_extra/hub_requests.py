"""The requests to the Hugging Face Hub, as a script that ``hub_process`` runs in a separate process.

It reads one request from standard input, a line of JSON, and prints the answer as the last line of its output. It ends
when its standard input is closed, and so does not outlive the process that trains.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_FINAL_STATUSES = frozenset(range(400, 500)) - {408, 425, 429}
"""The HTTP statuses of requests that need not be tried again."""


class WrongVisibilityError(Exception):
    """The repository exists with the other visibility, which a push does not change."""


def prepare(api: HfApi, repo_id: str, private: bool) -> str:
    """Create the repository if it is missing, check that the token may write to it, and return its address.

    Args:
        api: The Hub.
        repo_id: The repository.
        private: Whether only its owner may read it.

    Raises:
        WrongVisibilityError: The repository exists with the other visibility.
    """
    api.whoami()
    url = api.create_repo(repo_id, private=private, exist_ok=True)
    api.auth_check(repo_id, write=True)
    if api.repo_info(repo_id).private != private:
        found = "public" if private else "private"
        raise WrongVisibilityError(
            f"The repository exists and is {found}, but private={private}. Pass private={not private}, or change it in "
            "the settings of the repository."
        )
    return str(url)


def push(api: HfApi, repo_id: str, folder: str, message: str, marks: tuple[str, str]) -> str:
    """Send a folder in one commit, which also removes weights that are not in the folder, and return its address.

    A commit without changes is left out.

    Args:
        api: The Hub.
        repo_id: The repository, which exists.
        folder: The folder.
        message: The message of the commit.
        marks: What the generated part of a model card begins and ends with; the rest of a card on the Hub stays.
    """
    card = Path(folder, "README.md")
    if card.exists():
        card.write_text(_merged(card.read_text("utf-8"), _card_on_hub(api, repo_id), *marks), "utf-8")
    commit = api.upload_folder(
        repo_id=repo_id, folder_path=folder, commit_message=message, delete_patterns="model*.safetensors*"
    )
    return commit.commit_url


def _card_on_hub(api: HfApi, repo_id: str) -> str:
    from huggingface_hub.errors import RemoteEntryNotFoundError

    with tempfile.TemporaryDirectory() as cache:
        try:
            return Path(api.hf_hub_download(repo_id, "README.md", cache_dir=cache)).read_text("utf-8")
        except RemoteEntryNotFoundError:
            return ""


def _merged(new: str, there: str, begin: str, end: str) -> str:
    """Return the card on the Hub with the generated part of a new card."""
    if not there or begin not in new:
        return new
    part = begin + new.partition(begin)[2].partition(end)[0] + end
    before, found, rest = there.partition(begin)
    return f"{before}{part}{rest.partition(end)[2]}" if found else f"{there.rstrip()}\n\n{part}\n"


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OfflineModeIsEnabled

    api = HfApi()
    try:
        if "folder" in request:
            return {"url": push(api, **request)}
        return {"url": prepare(api, **request)}
    except (WrongVisibilityError, HFValidationError, LocalTokenNotFoundError, OfflineModeIsEnabled) as error:
        return {"problem": _in_a_line(error), "is_final": True}
    except HfHubHTTPError as error:
        status = error.response.status_code
        return {
            "problem": f"{_in_a_line(error)} (HTTP status {status})",
            "is_final": status in _FINAL_STATUSES,
        }
    except Exception as error:  # packages of others raise errors of any class
        return {"problem": f"{type(error).__name__}: {_in_a_line(error)}", "is_final": False}


def _in_a_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _end_with_the_training() -> None:
    sys.stdin.read()
    os._exit(1)


def main() -> None:
    """Answer the request, and end without waiting for the threads of the upload."""
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_the_training, daemon=True).start()
    print(f"\n{json.dumps(_answer(request))}", flush=True)  # noqa: T201 - the answer
    os._exit(0)


if __name__ == "__main__":
    main()
