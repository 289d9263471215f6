"""The distribution whose paths these are, installed beside ours, is noticed."""

from __future__ import annotations

import os

from tests.launching import Launch

METADATA = "Metadata-Version: 2.1\nName: pytorch-accelerated\nVersion: 0.1.40\n"
SCRIPT = """
import sys, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from pytorch_accelerated.trainer import Trainer
    import pytorch_accelerated.callbacks
(warning,) = caught
print(warning.filename == __file__, warning.lineno)
print(warning.message)
"""


def test_the_line_that_imports_is_told_of_the_other_distribution(launch: Launch) -> None:
    """One warning, at the user's own line, names both distributions and what to do; the import goes on.

    All other tests show that there is no warning without it: a warning is an error in them.
    """
    metadata = launch.folder / "installed" / "pytorch_accelerated-0.1.40.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(METADATA)
    path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(metadata.parents[1])])
    launched = launch(SCRIPT, env={"PYTHONPATH": path})

    assert launched.status == 0
    where, *message = launched.output.splitlines()
    assert where == "True 5"
    assert "pa-compat, which was imported, and pytorch-accelerated 0.1.40." in message[0]
    assert "pip uninstall pytorch-accelerated" in message[0]
