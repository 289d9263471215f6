"""Noticing that the distribution pytorch-accelerated is installed too, whose files have the same names.

pip lets one overwrite the files of the other without a warning. Which of them is imported depends on the order of
installation; here we know that it is ours, and that the other will change or remove it sooner or later. There is no
later moment than the import to say so, as everything else belongs to other packages. Looking takes 0.2 ms of the
40 ms that importing ours takes, on top of the seconds of torch, which has loaded ``importlib.metadata`` already.
"""

from __future__ import annotations

import importlib.metadata
import warnings

__all__ = ["warn_if_installed"]


def warn_if_installed() -> None:
    """Warn, on behalf of the import of the package that calls this, if the other distribution is there."""
    try:
        version = importlib.metadata.version("pytorch-accelerated")
    except importlib.metadata.PackageNotFoundError:
        return
    warnings.warn(
        f"Two distributions provide the package pytorch_accelerated: pa-compat, which was imported, and "
        f"pytorch-accelerated {version}. They overwrite each other's files: an upgrade or a removal of one changes or "
        "breaks the other. To keep pa-compat: pip uninstall pytorch-accelerated, and then "
        "pip install --force-reinstall --no-deps pa-compat.",
        UserWarning,
        stacklevel=3,  # the line that imports the package
    )
