"""The index of the examples, made from their docstrings and imports.

``python -m tests.examples.index`` writes it into ``examples/README.md`` and ``docs/examples.md``.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

__all__ = ["ORDER", "PAGES", "with_table"]

ROOT = Path(__file__).parents[2]
PAGES = {
    "examples/README.md": "[{name}.py]({name}.py)",
    "docs/examples.md": "[{name}.py](../examples/{name}.py)",
}
ORDER = (
    "train_digits",
    "metrics_in_a_subclass",
    "several_evaluation_sets",
    "custom_logger",
    "custom_event",
    "predict_digits",
    "export_digits",
    "stop_and_resume",
    "train_from_config",
    "schedule_with_decays",
    "progressive_resizing",
    "imbalanced_digits",
    "average_weights",
    "tune_with_optuna",
    "cross_validation",
    "image_folder",
    "finetune_timm",
    "finetune_transformers",
    "lora",
    "classify_texts",
    "character_transformer",
    "vae",
    "gan",
    "distillation",
    "match_captions",
    "truncated_bptt",
    "ppo",
    "replay_buffer",
)
"""From the first steps to special tasks."""

_DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml"}
_COME_WITH_ALL = {"accelerate", "safetensors", "torch", "typing_extensions"}
_BEGIN, _END = "<!-- the examples, written by python -m tests.examples.index -->\n", "<!-- end -->\n"


def with_table(page: str, link: str) -> str:
    """Return a page with the table of today.

    Args:
        page: The text of the page.
        link: How it refers to an example; ``{name}`` stands for its name.
    """
    begin, rest = page.split(_BEGIN)
    _, end = rest.split(_END)
    rows = [f"| {link.format(name=name)} | {teaches(name)} | {', '.join(needs(name))} |\n" for name in ORDER]
    return "".join([begin, _BEGIN, "| file | what it shows | needs |\n|---|---|---|\n", *rows, _END, end])


def teaches(name: str) -> str:
    """Return the first line of the docstring of an example."""
    docstring = ast.get_docstring(_parsed(name)) or ""
    return docstring.splitlines()[0].removesuffix(".")


def needs(name: str) -> list[str]:
    """Return the distributions that an example imports: ours first."""
    modules: set[str] = set()
    for node in ast.walk(_parsed(name)):
        if isinstance(node, ast.ImportFrom):
            modules.add(str(node.module))
        if isinstance(node, ast.Import):
            modules.update(one.name for one in node.names)
    packages = {module.partition(".")[0] for module in modules} - sys.stdlib_module_names - _COME_WITH_ALL
    ours = sorted(package.replace("_", "-") for package in packages if package.startswith("pa_"))
    return [*ours, *sorted(_DISTRIBUTIONS.get(one, one) for one in packages if not one.startswith("pa_"))]


def _parsed(name: str) -> ast.Module:
    return ast.parse((ROOT / "examples" / f"{name}.py").read_text())


if __name__ == "__main__":
    for path, link in PAGES.items():
        page = ROOT / path
        page.write_text(with_table(page.read_text(), link))
