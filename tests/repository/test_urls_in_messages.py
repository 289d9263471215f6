"""No message shows what a URL has besides its place: users, passwords, signatures and tokens."""

from __future__ import annotations

import ast
import builtins
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

import pa_data.errors
import pa_distributed
from pa_checkpoint import CheckpointError, RemoteFolder, save
from pa_checkpoint._remote_folder import RemoteCheckpoint
from pa_core import SaveTrainingStateCallback, Trainer
from pa_core.testing import make_regression
from pa_core.user_warnings import warn_user
from pa_data.files import ShardedFiles, TextLines

SECRET = "hunter2"
SOURCES = sorted(Path(__file__).parents[2].glob("packages/*/src/**/*.py"))

_PLACES = frozenset({"url", "_url", "upload_to", "resume_from", "place", "input_dir"})
"""What may be a URL: names and attributes of the sources."""
_SHORTENS = frozenset({"without_secrets", "warn_user"})
_PRINTS = frozenset({"print", "write", "print_once", "report", "_say", "warn", "add_note"})


@pytest.mark.parametrize("module", [pa_data.errors, pa_distributed], ids=lambda m: m.__name__)
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:hunter2@host/a/b.tar", "https://***@host/a/b.tar"),
        ("s3://AKIA:hun/ter+2@bucket/x: gone", "s3://***@bucket/x: gone"),
        ("at 'https://host/a?X-Amz-Signature=hunter2&b=1', line 3", "at 'https://host/a?***', line 3"),
        ("URL('https://host/a?sig=hunter2#t=1'))", "URL('https://host/a?***'))"),
        ("zip://a.csv::https://u:hunter2@host:8080/b.zip?sas=hunter2", "zip://a.csv::https://***@host:8080/b.zip?***"),
        ("https://hunter2@host and ftp://u:p@ss@host/x", "https://***@host and ftp://***@host/x"),
        ("abfs://c@account.dfs.core.windows.net/x#access_token=hunter2.", "abfs://***@account.dfs.core.windows.net/x#***."),
        ("s3://bucket/part-?.parquet and https://host:443/a@b", "s3://bucket/part-?.parquet and https://host:443/a@b"),
        ("Did you mean a@b?x=1, or C:/x?y=2?", "Did you mean a@b?x=1, or C:/x?y=2?"),
    ],
)  # fmt: skip
def test_a_text_is_shown_without_secrets(module: Any, text: str, shown: str) -> None:
    """The place stays readable, and so does what is around it; each distribution at the bottom does the same."""
    assert module.without_secrets(text) == shown


@pytest.mark.parametrize(("kind", "parts"), [(CheckpointError, 4), (pa_data.errors.ShardError, 1)])
def test_no_part_of_an_error_has_secrets(kind: type[Exception], parts: int) -> None:
    """Whoever writes a new message need not think of it."""
    url = f"https://me:{SECRET}@host/x?key={SECRET}"
    error = kind(*[url] * parts)
    assert SECRET not in f"{error} {error!r} {vars(error)}"


def test_no_warning_has_secrets() -> None:
    """As with errors."""
    with pytest.warns(UserWarning, match=r"https://\*\*\*@host/x\?\*\*\* is gone"):
        warn_user(f"https://me:{SECRET}@host/x?key={SECRET} is gone")


def _told(action: Callable[[], object]) -> str:
    """All that an action that fails tells: its traceback, with what led to it, and its warnings."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            action()
        except Exception as error:
            text = "".join(traceback.format_exception(error, limit=0))
            return text + repr(error) + str([str(one.message) for one in seen])
    raise AssertionError("nothing was raised")


_URLS = [
    f"memory://me:{SECRET}@bucket/states?X-Amz-Signature={SECRET}",
    f"unknown://me:{SECRET}@host/states?sig={SECRET}",
    f"simplecache::memory://me:{SECRET}@bucket/x?sig={SECRET}",
    f"file:///nothing?sig={SECRET}",
]


@pytest.mark.parametrize("url", _URLS)
def test_no_error_of_a_store_shows_secrets(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither ours nor those of the libraries that led to it."""
    monkeypatch.setattr("pa_checkpoint._remote_folder.PAUSES", ())
    save(tmp_path / "step_1", {"step": 1})
    trainer = Trainer(nn.Linear(4, 1), nn.MSELoss(), SGD([nn.Parameter(torch.ones(1))], lr=0.1), callbacks=[])
    actions: list[Callable[[], object]] = [
        lambda: RemoteFolder(url).fetch(tmp_path / "fetched"),
        lambda: RemoteFolder(url).download(RemoteCheckpoint("1_1_aaaaaaaaaaaa_x.json", 1, 1, "a" * 12, "x"), tmp_path),
        lambda: trainer.load_training_state(url),
        lambda: trainer.train(make_regression(8), 1, resume_from=url),
        lambda: ShardedFiles([f"{url}/*.jsonl"], TextLines()),
        lambda: ShardedFiles([f"{url}/a.jsonl"], TextLines())[0],
    ]
    for number, action in enumerate(actions):
        told = _told(action)
        assert SECRET not in told, (number, told)


def test_a_run_with_a_store_prints_no_secrets(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What it prints when it begins, resumes, fetches and waits, and its states."""
    url = f"memory://me:{SECRET}@bucket/{tmp_path.name}?sig={SECRET}"
    for folder, epochs in (("first", 1), ("second", 2)):
        model = nn.Linear(4, 1)
        states = SaveTrainingStateCallback(tmp_path / folder, upload_to=url)
        trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[states])
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            trainer.train(make_regression(8), epochs, resume_from=url, resume_missing="start")
        assert not [one for one in seen if SECRET in str(one.message)]
    printed = "".join(capfd.readouterr())
    assert "Fetching" in printed
    assert "There is no training state" in printed
    assert SECRET not in printed


def _name_of(call: ast.AST) -> str:
    function = call.func if isinstance(call, ast.Call) else call
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _unguarded(node: ast.AST) -> Iterator[str]:
    """What is written out and may be a URL, unless a function shortens it."""
    if isinstance(node, ast.Call) and _name_of(node) in _SHORTENS:
        return
    if isinstance(node, ast.FormattedValue):
        yield from (
            _name_of(one) for one in ast.walk(node.value) if _name_of(one) in _PLACES and not _is_guarded(node, one)
        )
    for child in ast.iter_child_nodes(node):
        yield from _unguarded(child)


def _is_guarded(value: ast.AST, name: ast.AST) -> bool:
    calls = [one for one in ast.walk(value) if isinstance(one, ast.Call) and _name_of(one) in _SHORTENS]
    return any(name in ast.walk(one) for one in calls)


def _found(source: str) -> list[str]:
    """Lines that print, warn of, or raise as one of Python's own errors what may be a URL, and do not shorten it."""
    tree, found = ast.parse(source), list[str]()
    shortens = (
        {"print_once"} if "from pa_core.user_warnings import" in source and " print_once" in source else set[str]()
    )
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        is_message = _name_of(node) in _PRINTS - shortens or _name_of(node) in vars(builtins)
        if is_message and (names := [*_unguarded(node)]):
            found.append(f"line {node.lineno}: {', '.join(names)}")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_what_is_printed_or_raised_without_ones_own_errors_is_shortened(path: Path) -> None:
    """Our errors and `warn_user` shorten by themselves; what goes past them has to say `without_secrets`."""
    if path.name not in ("user_warnings.py", "given_groups.py"):  # which shortens, and which knows no URLs
        assert _found(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        'print(f"Fetching {url}")',
        'sys.stdout.write(f"{self.store.url}: sent")',
        'raise ValueError(f"{place!r} is not known")',
        'warnings.warn("There is nothing in " f"{resume_from}", stacklevel=2)',
        'self._say(f"{str(self.upload_to).rstrip()} is full")',
    ],
)
def test_a_new_message_with_a_url_is_found(source: str) -> None:
    """This test sees what it is for, and leaves alone what is shortened."""
    assert len(_found(source)) == 1
    assert _found(f"print(without_secrets({source!r}))") == []
    assert _found('print(f"Fetching {without_secrets(url)}")') == []
