"""Warns if the distribution pytorch-accelerated is installed too, whose files have the same names.

pip lets each distribution overwrite the files of the other without a warning, so the order of installation decides
which is imported. Here we know that it is pa-compat, and that the other will change or remove it sooner or later.
The import is the last moment for a warning, as everything else belongs to other packages. The check takes 0.2 ms of the
40 ms that importing pa-compat takes, on top of the seconds of torch, which has loaded ``importlib.metadata`` already.
"""

from __future__ import annotations

import importlib.metadata
import warnings

__all__ = ["warn_if_installed"]


def warn_if_installed() -> None:
    """Warn, on behalf of the import of the calling package, if the other distribution is installed."""
    try:
        version = importlib.metadata.version("pytorch-accelerated")
    except importlib.metadata.PackageNotFoundError:
        return
    warnings.warn(
        f"Two distributions provide the package pytorch_accelerated: pa-compat, which was imported, and "
        f"pytorch-accelerated {version}. They overwrite each other's files: upgrading or removing either breaks "
        "the other. To keep pa-compat: pip uninstall pytorch-accelerated, and then "
        "pip install --force-reinstall --no-deps pa-compat.",
        UserWarning,
        stacklevel=3,  # the line that imports the package
    )
