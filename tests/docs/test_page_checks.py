"""What the tests of the pages find: a page that says what is not so is red."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.comparison import differs
from tests.docs.pages import Page
from tests.docs.running import run_page

GOOD = """# A page

```python
from helpers import double

print("loss", double(1.5))
```

```text
loss 2.0
```

<!-- raises: ValueError -->
```python
raise ValueError("no batches")
```
```text
ValueError: no batches
```

<!-- file: train.py -->
```python
import sys

print("trained", sys.argv[1:])
sys.exit(3)
```

<!-- exits: 3 -->
```console
$ python train.py --epochs 7 2>&1
trained ['--epochs', '2']
```

<!-- new script -->
```pycon
>>> "double" in globals()
False
>>> 1 + 1
2
```
"""
HELPERS = """<!-- file: helpers.py -->
```python
def double(number):
    return 2 * number
```

"""


def problems(text: str, folder: Path) -> list[str]:
    """What the tests find in a page with this text."""
    page = Page(folder / "page.md", text)
    folder.mkdir()
    return page.problems() or run_page(page, folder)


def test_a_page_that_does_what_it_shows_has_no_problems(tmp_path: Path) -> None:
    """Scripts, files, commands, errors, sessions: all of it is run and compared."""
    assert problems(HELPERS + GOOD, tmp_path / "folder") == []


def test_a_problem_is_named_with_its_line(tmp_path: Path) -> None:
    """The first line of the code of its block."""
    assert problems("# A page\n\n```python\n1 / 0\n```\n", tmp_path / "folder")[0].startswith("page.md:4: ")


@pytest.mark.parametrize(
    ("changed", "into", "found"),
    [
        ('print("loss"', 'print("Loss"', "Loss 3.0"),
        ("* number", "* nomber", "NameError: name 'nomber' is not defined"),
        ("no batches\n```\n\n<!-- file", "no batch\n```\n\n<!-- file", "ValueError: no batches"),
        ('raise ValueError("no batches")', "1 / 0", "ValueError was not raised, but ZeroDivisionError"),
        ("exits: 3", "exits: 4", "the exit status 3 instead of 4"),
        (">>> 1 + 1\n2", ">>> 1 + 1\n3", "Got:\n    2"),
        ('"double" in', 'import os; os._exit(5); "double" in', "the process ended in this block, with 5"),
        ("<!-- new script -->", "<!-- next script -->", "unknown comment <!-- next script -->"),
        ("```text\nloss", "Prints:\n\n```json\n```\n\n```text\nloss", "neither a file nor the output"),
        ("<!-- raises: ValueError -->", "<!-- not run: for fun -->", "'for fun' is none of the reasons"),
        ("<!-- raises: ValueError -->", "<!-- tested by: tests/no.py -->", "tests/no.py does not name"),
    ],
)
def test_a_page_that_says_what_is_not_so_is_red(tmp_path: Path, changed: str, into: str, found: str) -> None:
    """Whatever is wrong is named with its line, and nothing is passed over."""
    text = HELPERS + GOOD
    assert changed in text
    try:
        problem = "\n".join(problems(text.replace(changed, into, 1), tmp_path / "folder"))
    except ValueError as error:
        problem = str(error)
    assert found in problem
    assert re.match(r"page\.md:\d+: ", problem)


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("epoch  train loss\n    1      1.9031\n", "epoch  train loss\n    1   0.4"),
        ("    2   41,203  0.10 s\n", "    2   *3,203  1:12.10 s"),
        ("best *0.1\n", "best 0.2"),
        ("a warning\nof two lines\nend", "...\nend"),
        ("W1127 10:06:40.872000 15493 torch/utils/flop_counter.py:113] triton not found\nend", "end"),
        ("saved to /tmp/1/x.pt, 3 MB", "saved to .../x.pt, 4 MB"),
        ("lr 1e-05, id 0x7f1a", "lr 2.0, id 0x7"),
    ],
)
def test_numbers_and_dots_stand_for_what_differs(printed: str, shown: str) -> None:
    """Another run, on another machine, has other numbers and the same words."""
    assert not differs(printed, shown)


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("epoch  train loss  lr\n    1      1.9  0.1\n", "epoch  train loss\n    1   0.4"),
        ("a warning\nend", "end"),
        ("accuracy nan", "accuracy 0.9"),
        ("layer1", "layer"),
    ],
)
def test_other_words_lines_and_columns_are_differences(printed: str, shown: str) -> None:
    """What a reader would miss, or find in addition, is not passed over."""
    assert differs(printed, shown)


@pytest.mark.parametrize(
    ("printed", "shown", "is_stale"),
    [
        ("loss 0.326", "loss 0.327", False),
        ("loss 0.326", "loss 0.204", True),
        ("    2  *0.9153  0.003      6,195  0.250 s", "    2  *0.9150  0.003      9,195  1.250 s", False),
        ("    2  *0.9153  0.003      6,195  0.25 s", "    2  *0.9153  0.004      6,195  0.25 s", True),
        ("epoch 1\nepoch 2\nloss 0.5000", "...\nloss 0.5001", False),
    ],
)
def test_results_that_a_page_promises_are_compared(printed: str, shown: str, is_stale: bool) -> None:
    """Where a page says so, a reader gets the losses that it shows, up to rounding; times are nobody's promise."""
    assert differs(printed, shown, same_results=True) == is_stale
