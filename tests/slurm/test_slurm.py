"""The job of docs/several-machines.md with a real Slurm, without GPUs: it trains, is stopped or hit, and resumes.

The command is that of examples/slurm/README.md.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import NODES, Cluster, cluster, wait_until, why_not

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "slurm"

pytestmark = [pytest.mark.whole_proof, pytest.mark.timeout(600), pytest.mark.skipif(bool(why_not()), reason=why_not())]

FOREVER = 1_000_000


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    """A cluster of two nodes."""
    with cluster() as started:
        yield started


@pytest.fixture
def folder(slurm: Cluster, tmp_path: Path) -> Iterator[Path]:
    """A copy of the example for nodes without GPUs, in which no job is left behind."""
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    change(tmp_path / "job.sbatch", "#SBATCH --gpus-per-node=8\n", "")
    change(tmp_path / "job.sbatch", "--nproc-per-node 8", "--nproc-per-node 1")
    yield tmp_path
    for output in sorted(tmp_path.glob("*.out")):
        print(f"{output.name}:\n{output.read_text()[-6000:]}")  # noqa: T201 - shown when a test fails
    slurm.run("scancel", "--user=root")
    wait_until(lambda: not slurm.run("squeue", "-h"), 90)


def change(file: Path, before: str, after: str) -> None:
    """Change the one place of a file that says something else here."""
    assert file.read_text().count(before) == 1
    file.write_text(file.read_text().replace(before, after))


def train_forever(folder: Path) -> None:
    """Let the script train for longer than a test."""
    change(folder / "train.py", "num_epochs=10,", f"num_epochs={FOREVER},")


def output_of(folder: Path, job: str) -> str:
    """What a job has printed."""
    output = folder / f"slurm-{job}.out"
    return output.read_text() if output.exists() else ""


def wait_for_state(states: Path) -> None:
    """Wait until a job has saved a training state."""
    wait_until(lambda: list(states.glob("*/manifest.json")), 150)


def wait_until_resumed(slurm: Cluster, folder: Path, job: str, states: str = "states") -> None:
    """Wait until a job that was requeued has begun again where it was."""
    wait_until(lambda: slurm.show(job).get("Restarts") == "1", 260)
    assert "Resuming from" not in output_of(folder, job)
    slurm.start_now(job)
    wait_until(lambda: f"Resuming from {states}/step_" in output_of(folder, job))
    assert slurm.state(job) == "RUNNING"


def test_two_nodes_train_together(slurm: Cluster, folder: Path) -> None:
    """The job ends with all epochs, on a process of each node, and prints each epoch once."""
    job = slurm.submit(folder)
    wait_until(lambda: slurm.state(job) not in ("PENDING", "RUNNING", "COMPLETING"), 200)
    assert slurm.state(job) == "COMPLETED"
    assert "2 processes" in output_of(folder, job)
    assert output_of(folder, job).count("Training ended: 10 epochs, 100 updates") == 1


def test_the_time_limit_requeues_the_job(slurm: Cluster, folder: Path) -> None:
    """Slurm tells the job before its limit; it saves a state, is requeued, and resumes."""
    train_forever(folder)
    job = slurm.submit(folder, "--time=4")  # of which Slurm may cut a minute
    wait_until_resumed(slurm, folder, job)


def test_a_job_that_is_cancelled_is_gone(slurm: Cluster, folder: Path) -> None:
    """Its user's scancel leaves a state, and nothing that starts it again."""
    train_forever(folder)
    job = slurm.submit(folder)
    wait_for_state(folder / "states")
    slurm.run("scancel", job)
    wait_until(lambda: job not in slurm.run("squeue", "-h", "-o", "%i").split(), 90)
    assert slurm.state(job) == "CANCELLED"
    assert slurm.show(job)["Restarts"] == "0"


def test_a_node_that_fails_requeues_the_job(slurm: Cluster, folder: Path) -> None:
    """Slurm itself requeues it, and it resumes when there are two nodes again."""
    train_forever(folder)
    job = slurm.submit(folder)
    wait_for_state(folder / "states")
    slurm.run("scontrol", "update", f"nodename={NODES[0]}", "state=down", "reason=test")
    wait_until(lambda: slurm.state(job) == "PENDING", 120)
    wait_until(lambda: not slurm.has_steps(job), 90)  # or the node refuses the job as one that it runs already
    slurm.repair(NODES[0])
    wait_until_resumed(slurm, folder, job)


def test_tasks_of_an_array_share_a_node_and_nothing_else(slurm: Cluster, folder: Path) -> None:
    """Each has its states and its port; of two, the one that is told to end is requeued alone."""
    train_forever(folder)
    array = slurm.submit(folder, "--array=0-1", "--nodes=1", f"--nodelist={NODES[0]}")
    tasks = [f"{array}_{task}" for task in range(2)]
    for task in range(2):
        wait_for_state(folder / "states" / str(task))
    slurm.run("scancel", "--signal=TERM", tasks[1])  # as at its time limit; its number is that of the whole array
    wait_until(lambda: slurm.show(tasks[1]).get("Restarts") == "1", 90)
    assert (slurm.state(tasks[0]), slurm.show(tasks[0])["Restarts"]) == ("RUNNING", "0")
    wait_until_resumed(slurm, folder, tasks[1], states="states/1")


def test_status_75_requeues_the_job_where_the_cluster_says_so(slurm: Cluster, folder: Path) -> None:
    """With RequeueExit=75, a script that cannot call Slurm leaves a file, and the job ends with 75."""
    page = (ROOT / "docs" / "several-machines.md").read_text()
    train_forever(folder)
    change(folder / "train.py", "            requeue(JOB)\n", '            Path("requeue").touch()\n')
    change(folder / "job.sbatch", "srun torchrun", "rm -f requeue\nsrun torchrun")
    with (folder / "job.sbatch").open("a") as job_file:
        job_file.write("[ -e requeue ] && exit 75\n")
    for line in ('Path("requeue").touch()', "rm -f requeue", "[ -e requeue ] && exit 75"):
        assert line in page
    job = slurm.submit(folder)
    wait_for_state(folder / "states")
    slurm.run("scancel", "--signal=TERM", job)
    wait_until_resumed(slurm, folder, job)
