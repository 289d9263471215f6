"""The reference on the built site: where each name is described, and where code on pages leads."""

from __future__ import annotations

import importlib
import inspect
import re
from collections import Counter
from pathlib import Path

import pytest
from sphinx.util.inventory import InventoryFile

from docs.reference_links import OF_TORCH, is_about_trials
from tests.repository.api import MODULES

TORCH = "https://docs.pytorch.org/docs/stable/"
LINKED_CODE = re.compile(r'<a class="reference (?:internal|external)" href="([^"]+)"[^>]*><code[^>]*>(.*?)</code></a>')


def linked_code(page: Path) -> list[tuple[str, str]]:
    """The text and the address of each code span that is a link."""
    found = LINKED_CODE.findall(page.read_text(encoding="utf-8"))
    return [(re.sub(r"<[^>]+>", "", code), address) for address, code in found]


@pytest.fixture(scope="module")
def described(site: Path) -> set[str]:
    """The names of all objects that the site describes, without second names."""
    objects = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    of_python = (entries for kind, entries in objects.items() if kind.startswith("py:") and kind != "py:module")
    return {name for entries in of_python for name, item in entries.items() if item.uri.endswith(f"#{name}")}


@pytest.mark.parametrize("module", MODULES)
def test_each_public_name_is_described_once(module: str, described: set[str]) -> None:
    """Under one of the names by which it is imported; whoever has another finds it by the search."""
    public = importlib.import_module(module)
    named = {name: getattr(public, name) for name in public.__all__}
    values = {name: value for name, value in named.items() if not inspect.ismodule(value)}
    places: Counter[str] = Counter()
    for full_name in described:
        home, _, last_part = full_name.rpartition(".")
        if last_part in values and home in MODULES:
            places[last_part] += getattr(importlib.import_module(home), last_part, None) is values[last_part]
    assert {name: places[name] for name in values} == dict.fromkeys(values, 1)


def test_the_trainer_and_run_come_first(site: Path) -> None:
    """The page of pa_core begins with a table of the classes that most programs use."""
    names = [text for text, address in linked_code(site / "api/pa_core.html") if "pa_core/" in address]
    assert names[:3] == ["Trainer", "Run", "Update"]


def test_the_page_of_a_class_lists_its_methods_and_those_of_its_bases(site: Path) -> None:
    """With links to where they are described."""
    links = linked_code(site / "api/pa_core/Trainer.html")
    assert ("train", "#pa_core.Trainer.train") in links
    assert ("create_scheduler", "#pa_core.Trainer.create_scheduler") in links
    assert ("save_model", "AnyTrainer.html#pa_core.AnyTrainer.save_model") in links


def test_a_description_leads_to_the_source(site: Path) -> None:
    """Of a class, of a method and of a function."""
    trainer = (site / "api/pa_core/Trainer.html").read_text(encoding="utf-8")
    assert 'href="../../_modules/pa_core/trainer.html#Trainer"' in trainer
    assert 'href="../../_modules/pa_core/trainer.html#Trainer.train"' in trainer
    assert "_modules/pa_core/tracking/plot.html#plot_run_history" in (site / "api/pa_core.html").read_text()


def test_names_of_torch_lead_to_its_documentation(site: Path) -> None:
    """Also those that pa_trial has as well, which are linked to on the pages of trials alone."""
    pages = {page.relative_to(site).with_suffix("").as_posix(): page for page in site.rglob("*.html")}
    last_parts = {name.rpartition(".")[2] for name in OF_TORCH}
    linked: Counter[str] = Counter()
    for name, page in pages.items():
        for text, address in linked_code(page):
            if not is_about_trials(name):
                assert "api/pa_trial" not in address or text.startswith("pa_trial"), (name, text)
                assert "api/" not in address or text not in last_parts, (name, text)
                linked[text] += address.startswith(TORCH)
    assert linked["DataLoader"] > 20
    assert linked["DistributedSampler"] > 2


@pytest.mark.parametrize("name", OF_TORCH)
def test_torch_has_the_names_that_lead_to_its_documentation(name: str) -> None:
    """At the places that their full names say."""
    module, _, last_part = name.rpartition(".")
    assert inspect.isclass(getattr(importlib.import_module(module), last_part))


def test_a_name_that_another_library_has_is_not_ours_on_the_page_about_it(site: Path) -> None:
    """As `EarlyStoppingCallback` of transformers."""
    assert "EarlyStoppingCallback" not in dict(linked_code(site / "coming-from/transformers.html"))
    assert "EarlyStoppingCallback" in dict(linked_code(site / "callbacks.html"))
