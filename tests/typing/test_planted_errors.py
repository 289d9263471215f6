"""The typing tests notice what they are there for: an installed package is spoilt, and a checker must turn red."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.typing.checkers import TypedEnvironment
from tests.typing.open_types import find_open_types, line_for, read_reasons

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def spoilt(environment: TypedEnvironment, tmp_path: Path) -> Iterator[TypedEnvironment]:
    """The environment of all typing tests; whatever happens to pa_core in it is undone."""
    package = environment.site_packages / "pa_core"
    shutil.copytree(package, tmp_path / "pa_core")
    yield environment
    shutil.rmtree(package)
    shutil.copytree(tmp_path / "pa_core", package)


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """A folder with code of a user's, which both checkers find nothing wrong with."""
    folder = tmp_path / "user"
    folder.mkdir()
    (folder / "script.py").write_text(
        "from pa_core import RunHistory\n\n\ndef read(history: RunHistory) -> int:\n    return history.current_epoch\n"
    )
    return folder


def test_a_package_without_its_marker_has_no_types(spoilt: TypedEnvironment, user: Path) -> None:
    """Without `py.typed` in the wheel, mypy takes nothing from it, and there is no score."""
    assert spoilt.mypy(user).status == 0
    (spoilt.site_packages / "pa_core" / "py.typed").unlink()
    assert "[import-untyped]" in spoilt.mypy(user).output
    assert spoilt.completeness("pa_core").score == 0


def test_callbacks_of_any_kind_would_be_noticed(spoilt: TypedEnvironment, code: Path, tmp_path: Path) -> None:
    """Were any object taken for a callback, lines that must fail would not, and both checkers say so."""
    _replace(
        spoilt.site_packages / "pa_core" / "trainer.py",
        "callbacks: Iterable[CallbackLike[Self]] = DEFAULT_CALLBACKS,  # pyright: ignore[reportArgumentType]",
        "callbacks: Iterable[Any] = DEFAULT_CALLBACKS,",
    )
    folder = tmp_path / "code"
    shutil.copytree(code, folder)
    shutil.rmtree(folder / "tests" / "typing" / "must_pass")
    for path in (folder / "tests" / "typing" / "must_fail").glob("*.py"):
        if path.name != "callbacks.py":
            path.unlink()

    by_mypy, by_pyright = spoilt.mypy(folder).output, spoilt.pyright(folder).output

    assert by_mypy.count('Unused "type: ignore') == by_pyright.count('Unnecessary "#') >= 3


def test_a_function_without_types_would_be_noticed(spoilt: TypedEnvironment) -> None:
    """One public function without annotations is named, and the score is no longer full."""
    with (spoilt.site_packages / "pa_core" / "checkpoint.py").open("a") as file:
        file.write("\n\ndef convert(weights):\n    return weights\n")
    completeness = spoilt.completeness("pa_core")
    assert completeness.score < 1
    assert [line for line in completeness.incomplete if line.startswith("pa_core.checkpoint.convert")] != []


def test_an_attribute_without_a_type_would_be_noticed(spoilt: TypedEnvironment) -> None:
    """A public attribute whose type would have to be inferred is named: checkers need not infer the same."""
    _replace(
        spoilt.site_packages / "pa_core" / "callbacks" / "best_model.py",
        "self.best: BestMetric = BestMetric(",
        "self.best = BestMetric(",
    )
    assert any("SaveBestModelCallback.best" in line for line in spoilt.completeness("pa_core").incomplete)


def test_a_type_given_up_would_be_noticed(spoilt: TypedEnvironment) -> None:
    """`Any` is a known type to a checker; that there is one more of them is seen all the same."""
    package = spoilt.site_packages / "pa_core"
    _replace(
        package / "any_trainer.py", "def num_epochs_completed(self) -> int", "def num_epochs_completed(self) -> Any"
    )
    places = find_open_types([package])
    assert [place for place in places if line_for(place, read_reasons()) is None] == [
        "pa_core.AnyTrainer.num_epochs_completed.return"
    ]


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
