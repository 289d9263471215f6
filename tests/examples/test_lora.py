"""The example with a LoRA, killed and resumed, ends as if nothing had happened, and writes the frozen base once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.shared_launches import LAUNCHES, SharedLaunches
from tests.launching import Launch

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "lora.py"
BESIDE_TORCHVISION = HERE.parent / "support" / "beside_torchvision.py"


@pytest.mark.whole_proof
def test_a_killed_run_ends_with_the_bits_of_one_that_was_not(launch: Launch, shared_launch: SharedLaunches) -> None:
    """After SIGKILL, two ranks go on with the same adapters, dropout and samples; states share one file of the base."""
    way = "torchrun with two ranks"
    whole = shared_launch("lora", way)
    arguments = [str(EXAMPLE), *LAUNCHES["lora"].of(way), "--output=killed"]

    killed = launch(BESIDE_TORCHVISION, str(HERE / "killed_after.py"), "33", *arguments, ranks=2)
    assert killed.status != 0
    resumed = launch(BESIDE_TORCHVISION, *arguments, ranks=2)

    assert resumed.status == 0
    assert "Resuming from killed/states/step_20" in resumed.output
    assert resumed.output.splitlines()[-2:] == whole.output.splitlines()[-2:]
    written = whole.folder / "outputs" / "lora"
    bases = [path.stat() for path in written.glob("states/*/models.constant.safetensors")]
    assert [base.st_nlink for base in bases] == [2, 2]
    for small in (*written.glob("states/*/models.safetensors"), written / "adapters" / "adapter_model.safetensors"):
        assert small.stat().st_size < bases[0].st_size / 5
