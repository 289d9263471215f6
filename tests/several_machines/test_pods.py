"""The pods of docs/kubernetes.md (job.yaml), in network namespaces: deleted, lost, and replaced as by a Job."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
import yaml

from tests.several_machines.machines import ROOT, Machine, has_namespaces, two_pods
from tests.several_machines.test_several_machines import SOON, TRAIN, require_weights_of, undisturbed, updates

__all__ = ["undisturbed"]

pytestmark = [
    pytest.mark.whole_proof,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not has_namespaces(), reason="needs network namespaces"),
]

FOLDER = ROOT / "examples" / "kubernetes"
SERVICE, JOB = yaml.safe_load_all((FOLDER / "job.yaml").read_text())
(CONTAINER,) = JOB["spec"]["template"]["spec"]["containers"]
SHORTER = {
    "launch.py": str(FOLDER / "launch.py"),
    "--nproc-per-node 8": "--nproc-per-node 1",
    "--rdzv-conf ": f"--rdzv-conf {SOON},",
}


@dataclass
class Pods:
    """Pods that are replaced as the controller of the Job replaces them."""

    machines: tuple[Machine, Machine]
    folder: Path
    failures: list[str] = field(default_factory=list[str])
    _running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict[int, "subprocess.Popen[bytes]"])

    def start(self, index: int) -> None:
        """Start the container of a pod, for one process and a script of these tests."""
        *shell, line = CONTAINER["command"]
        for printed, here in (SHORTER | {"train.py": f"{TRAIN} {self.folder} 0.25 600"}).items():
            assert line.count(printed) == 1
            line = line.replace(printed, here)
        variables = {one["name"]: one["value"] for one in CONTAINER["env"]} | {"JOB_COMPLETION_INDEX": str(index)}
        command = ["env", *(f"{name}={value}" for name, value in variables.items()), *shell, line]
        self._running[index] = self.machines[index].start(command, self.folder / f"pod{index}.log")

    def delete(self, index: int) -> None:
        """Delete a pod: the first process of its container gets SIGTERM."""
        self._running[index].terminate()

    def lose(self, index: int) -> None:
        """End the node of a pod at once."""
        self.machines[index].kill()

    def wait_until(self, is_so: Callable[[], bool], *, replace: bool = True) -> None:
        """Replace the pods that end, by the policies of the Job, until something is the case."""
        until = time.monotonic() + 150
        while not is_so():
            assert time.monotonic() < until, "nothing more happens"
            for index, pod in list(self._running.items()):
                if replace and (status := pod.poll()) is not None:
                    self._ended(index, status)
            time.sleep(0.1)

    def have_succeeded(self) -> bool:
        """Whether the pods that the Job needs have ended well."""
        (rule,) = JOB["spec"]["successPolicy"]["rules"]
        return self._running[int(rule["succeededIndexes"])].poll() == 0

    def _ended(self, index: int, status: int) -> None:
        ignored = JOB["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"]
        if status != 0:
            if status not in ignored:
                self.failures.append(f"pod {index}: {status}")
            self.start(index)


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    """The two pods, training; what they printed is shown when a test fails."""
    with two_pods(JOB["metadata"]["name"], SERVICE["metadata"]["name"]) as machines:
        started = Pods(machines, tmp_path)
        for index in range(2):
            started.start(index)
        started.wait_until(lambda: len(updates(tmp_path)) >= 7)
        yield started
    for log in sorted(tmp_path.glob("*.log")):
        print(f"{log.name}:\n{log.read_text()[-6000:]}")  # noqa: T201 - shown when a test fails


def test_a_deleted_pod(pods: Pods, tmp_path: Path, undisturbed: dict[str, torch.Tensor]) -> None:
    """Both save a state, so no update is repeated; the new pod joins the other, and nothing counts as a failure."""
    pods.delete(1)
    pods.wait_until(pods.have_succeeded)
    assert pods.failures == []
    made = updates(tmp_path)
    assert [update for update, _ in made] == list(range(1, len(made) + 1))
    assert made[-1][1] == 2
    require_weights_of(tmp_path, undisturbed)


def test_the_first_pod_is_deleted(pods: Pods, tmp_path: Path, undisturbed: dict[str, torch.Tensor]) -> None:
    """The other fails, once, as the store of the rendezvous is gone; both are replaced, and continue."""
    pods.delete(0)
    pods.wait_until(pods.have_succeeded)
    assert pods.failures == ["pod 1: 1"]
    assert updates(tmp_path)[-1][1] == 2
    require_weights_of(tmp_path, undisturbed)


def test_a_node_is_lost(pods: Pods, tmp_path: Path, undisturbed: dict[str, torch.Tensor]) -> None:
    """The first pod trains alone from the newest state, until there is a second one again."""
    pods.lose(1)
    pods.wait_until(lambda: updates(tmp_path)[-1][1] == 1, replace=False)
    pods.wait_until(pods.have_succeeded)
    assert updates(tmp_path)[-1][1] == 2
    require_weights_of(tmp_path, undisturbed)
