"""Settings of Sphinx: `nox -s docs` builds with warnings as errors and without a network."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the extensions in this folder

project = "pa: PyTorch, accelerated"
project_copyright = "the authors"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "docs.pictures.inlined",
    "docs.reference",
    "docs.reference_links",
]
myst_heading_anchors = 4  # the names that a forge gives them, too
exclude_patterns = ["_build", "maintainers/*-figures.md"]  # the latter are parts of cost.md

html_theme = "furo"
html_title = project
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).with_name("search_scorer.js"))
html_logo = html_favicon = "_static/logo.svg"

autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_class_signature = "separated"
napoleon_google_docstring = True
napoleon_numpy_docstring = False

nitpick_ignore_regex = [
    (r"py:.*", r"(?!pa_|pytorch_accelerated).*"),  # links to other projects would need a network
    (r"py:.*", r".*\.(_\w+(\.\w+)*|\w*T|\w*T_co|\w*T_contra)"),  # private names and type variables have no page
    (r"py:.*", r".*\.BlockOrDecorator"),  # what stands behind `with` or `@`, which nobody has to name
    (
        r"py:.*",
        r"pa_core\.([a-z_]+\.)*(AnyUpdate|Batches|Evaluations|BatchPlace|Part|RunState|Session)",
    ),  # what trainers and runs are made of
    (r"py:.*", r"pa_core\.([a-z_]+\.)*RowDisplay"),  # what the callbacks that print have in common
    (r"py:.*", r"pa_trial\.errors\.(ArgumentType|Configuration)Error"),  # what errors have in common
    (r"py:.*", r"pa_trial\.\w+\.(CoreContext|RunSettings)"),  # what stands for settings that init() makes
    (r"py:.*", r"pa_trial\.\w+\.(TellsSettings|WrapsReducers)"),  # what contexts have in common
    (r"py:.*", r"pa_core\.([a-z_]+\.)*RunPart"),  # as above; a run makes its updates itself
]
