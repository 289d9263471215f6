"""The jobs of docs/slurm.md with a real Slurm, without GPUs: they train, are stopped or hit, and resume.

The command of examples/slurm/README.md is one of them.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import pytest

from tests.docs.pages import Page, printed_commands
from tests.launching import free_port
from tests.slurm import slowly
from tests.slurm.cluster import NODES, Cluster, cluster, wait_until, why_not

ROOT = Path(__file__).parents[2]
PAGE = "docs/slurm.md"
BLOCKS = Page(ROOT / PAGE, (ROOT / PAGE).read_text()).blocks()
FILES = {name: block.code for block in BLOCKS if (name := block.says("file"))}
SUBMIT, SUBMIT_ONE_NODE, SUBMIT_ARRAY = (
    line.removeprefix("sbatch ").split() for line in printed_commands(PAGE, "sbatch ")
)
WITHOUT_SCONTROL = [
    ("train.py", "            requeue(JOB)\n", "            pass\n"),
    ("job.sbatch", "srun torchrun", "srun python launch.py"),
]
"""What the page says of containers."""
ONE_PROCESS = ("one_node.sbatch", "exec torchrun --standalone --nproc-per-node 2 train.py", "srun python train.py")
EPOCHS, UPDATES = 15, 150

pytestmark = [pytest.mark.whole_proof, pytest.mark.timeout(600), pytest.mark.skipif(bool(why_not()), reason=why_not())]


@dataclass(frozen=True)
class Job:
    """A job of the page, in a folder in which its script runs longer than it is left alone.

    Attributes:
        slurm: Where it runs.
        folder: Its folder.
        number: Its number, with that of the task if it is one of an array.
        states: The folder of its training states.
    """

    slurm: Cluster
    folder: Path
    number: str
    states: str = "states"

    @property
    def output(self) -> str:
        """What it has printed."""
        output = self.folder / f"slurm-{self.number}.out"
        return output.read_text() if output.exists() else ""

    @property
    def restarts(self) -> str:
        """How often Slurm has started it again, as the page looks it up; nothing if Slurm has forgotten the job."""
        (command,) = printed_commands(PAGE, "scontrol show")
        shown = subprocess.run(
            command.replace("17", self.number),
            shell=True,
            env=self.slurm.env,
            capture_output=True,
            text=True,
            check=False,
        )
        return "".join(re.findall(r"Restarts=(\d+)", shown.stdout)[:1])

    def wait_for_state(self) -> None:
        """Wait until it has saved a training state."""
        wait_until(lambda: list((self.folder / self.states).glob("*/manifest.json")), 150)

    def wait_until_requeued(self, seconds: float = 260) -> None:
        """Wait until Slurm is going to start it again."""
        wait_until(lambda: self.restarts == "1", seconds)
        assert "Resuming from" not in self.output

    def start_again(self) -> None:
        """Let it start before Slurm's two minutes are over, when it has been requeued."""
        self.wait_until_requeued()
        wait_until(lambda: not self.slurm.has_steps(self.number), 90)  # or a node may refuse it as one that it runs
        self.slurm.start_now(self.number)

    def wait_until_complete(self) -> str:
        """Wait until it has trained to the end after its second start; return the hash of its weights."""
        wait_until(lambda: self.slurm.state(self.number) not in ("PENDING", "RUNNING", "COMPLETING"), 200)
        assert (self.slurm.state(self.number), self.restarts) == ("COMPLETED", "1")
        assert self.output.count(f"Training ended: {EPOCHS} epochs, {UPDATES} updates") == 1
        return hash_of(self.folder / self.states)

    def assert_nothing_was_lost(self) -> None:
        """It has resumed from the state that it saved when it was told to end."""
        (stopped,) = re.findall(
            r"after update (\d+). The newest training state is step_\1: no update is lost", self.output
        )
        assert 0 < int(stopped) < UPDATES
        resumed = re.findall(rf"Resuming from {self.states}/step_{stopped}: .*, after update {stopped}\.", self.output)
        assert len(resumed) == 1


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    """A cluster of two nodes."""
    with cluster() as started:
        yield started


@pytest.fixture(scope="module")
def undisturbed(slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """The hash of the weights without Slurm and interruptions, by the number of processes."""
    hashes: dict[int, str] = {}
    for number in (1, 2):
        folder = tmp_path_factory.mktemp("undisturbed")
        write_files(folder)
        command = ["torchrun", "--nproc-per-node", str(number), "--master-port", str(free_port()), "train.py"]
        subprocess.run(command, cwd=folder, env=slurm.env, check=True)
        hashes[number] = hash_of(folder / "states")
    return hashes


@pytest.fixture
def submit(slurm: Cluster, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Submits a job in a folder of its own, after changes of the files of the page; no job is left behind."""

    def submit_job(
        command: list[str], *options: str, changes: Sequence[tuple[str, str, str]] = (), is_slow: bool = True
    ) -> Job:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        write_files(folder)
        if is_slow:
            change(folder / "train.py", "save_states])", "save_states, Slowly()])")
        for name, before, after in changes:
            change(folder / name, before, after)
        return Job(slurm, folder, slurm.run("sbatch", *options, *command, folder=folder).split()[-1])

    yield submit_job
    for output in sorted(tmp_path.glob("*/*.out")):
        print(f"{output.relative_to(tmp_path)}:\n{output.read_text()[-6000:]}")  # noqa: T201 - shown when a test fails
    slurm.run("scancel", "--user=root")
    wait_until(lambda: not slurm.run("squeue", "-h"), 90)


def write_files(folder: Path) -> None:
    """Write the files of the page, for a longer run on nodes without GPUs, the same each time."""
    for name, content in FILES.items():
        (folder / name).write_text(content)
    shutil.copy(slowly.__file__, folder)
    shutil.copy(ROOT / "examples" / "kubernetes" / "launch.py", folder)
    change(folder / "train.py", "import torch\nfrom", "import torch\nfrom slowly import Slowly\nfrom")
    change(folder / "train.py", "    model = ", "    torch.manual_seed(0)\n    model = ")
    change(folder / "train.py", "num_epochs=10,", f"num_epochs={EPOCHS},")
    for name, num_processes in (("job.sbatch", 1), ("one_node.sbatch", 2)):
        change(folder / name, "#SBATCH --gpus-per-node=8\n", "")
        change(folder / name, "--nproc-per-node 8", f"--nproc-per-node {num_processes}")


def change(file: Path, before: str, after: str) -> None:
    """Change the one place of a file that says something else here."""
    assert file.read_text().count(before) == 1, before
    file.write_text(file.read_text().replace(before, after))


def hash_of(states: Path) -> str:
    """The hash of the weights at the end of a run."""
    return hashlib.sha256((states / "final" / "models.safetensors").read_bytes()).hexdigest()


def assert_printed(output: str, page_shows: str) -> None:
    """The output has the lines that the page shows, in this order, apart from numbers and names of nodes."""
    lines = [_without_numbers(line) for line in output.splitlines()]
    for shown in page_shows.splitlines():
        words = _without_numbers(shown.removesuffix("...").rstrip())
        found = [number for number, line in enumerate(lines) if line.startswith(words)]
        assert found, shown
        del lines[: found[0]]


def _without_numbers(line: str) -> str:
    return re.sub(r"\d[\d.,:T-]*", "0", re.sub(r"127\.0\.0\.\d", "n1", line))


def test_two_nodes_train_together(submit: Callable[..., Job], slurm: Cluster, undisturbed: dict[int, str]) -> None:
    """The job ends with all epochs, on a process of each node, and prints each epoch once."""
    job = submit(SUBMIT, is_slow=False)
    wait_until(lambda: slurm.state(job.number) not in ("PENDING", "RUNNING", "COMPLETING"), 200)
    assert (slurm.state(job.number), job.restarts) == ("COMPLETED", "0")
    assert "2 processes" in job.output
    assert job.output.count(f"Training ended: {EPOCHS} epochs, {UPDATES} updates") == 1
    assert hash_of(job.folder / "states") == undisturbed[2]


def test_a_job_resumes_after_its_time_limit(
    submit: Callable[..., Job], slurm: Cluster, undisturbed: dict[int, str]
) -> None:
    """It is told before its limit, or knows it; it saves a state in time, and is requeued.

    The signal reaches the processes of `srun`, or with `B:` what the shell has become, but not both. All jobs run at
    the same time, which takes two minutes.
    """
    deadline = (
        ("job.sbatch", "#SBATCH --signal=TERM@120\n", ""),
        ("train.py", 'stop_on_signals=("SIGTERM",)', 'deadline="slurm", deadline_margin=20'),
    )
    told_by_step = submit(SUBMIT, "--time=4")  # of which Slurm may cut a minute
    told_by_shell = submit(SUBMIT_ONE_NODE, "--time=4")
    knows_deadline = submit(SUBMIT, "--time=2", changes=deadline)
    not_told = submit(SUBMIT, "--time=4", changes=[("job.sbatch", "=TERM@120", "=B:TERM@120")])
    wait_until(lambda: slurm.state(knows_deadline.number) == "RUNNING")
    end = datetime.fromisoformat(slurm.show(knows_deadline.number)["EndTime"]).timestamp()

    told = (knows_deadline, told_by_step, told_by_shell)
    for job in told:
        job.start_again()
    for job in told:
        assert job.wait_until_complete() == undisturbed[2]
        job.assert_nothing_was_lost()
    assert_printed(
        told_by_step.output, next(block.code for block in BLOCKS if "$ cat" in block.code).partition("\n")[2]
    )
    assert "Preempted (the deadline) after update" in knows_deadline.output
    (saved,) = (knows_deadline.folder / "states").glob("step_*/manifest.json")
    assert end - 20 < saved.stat().st_mtime < end

    assert (slurm.state(not_told.number), not_told.restarts) == ("FAILED", "0")
    assert "The newest training state is step_" in not_told.output


def test_jobs_that_are_cancelled_are_gone(submit: Callable[..., Job], slurm: Cluster) -> None:
    """Their user's scancel leaves a state, and nothing that starts them again."""
    jobs = [submit(SUBMIT), submit(SUBMIT_ONE_NODE), submit(SUBMIT, changes=WITHOUT_SCONTROL)]
    for job in jobs:
        job.wait_for_state()
    slurm.run("scancel", *(job.number for job in jobs))
    wait_until(lambda: not slurm.run("squeue", "-h"), 90)
    assert [(slurm.state(job.number), job.restarts) for job in jobs] == [("CANCELLED", "0")] * 3
    assert all("no update is lost" in job.output for job in jobs[:2])


def test_a_node_that_crashes_requeues_the_job(
    submit: Callable[..., Job], slurm: Cluster, undisturbed: dict[int, str]
) -> None:
    """Slurm notices it; the job resumes from its last periodic state when the node is back."""
    job = submit(SUBMIT)
    job.wait_for_state()
    slurm.crash(NODES[1])
    job.wait_until_requeued()
    slurm.start_node(NODES[1])
    slurm.repair(NODES[1])
    job.start_again()
    assert job.wait_until_complete() == undisturbed[2]
    assert re.findall(r"Resuming from states/epoch_\d+: ", job.output)


def test_a_node_that_is_set_down_requeues_the_job(
    submit: Callable[..., Job], slurm: Cluster, undisturbed: dict[int, str]
) -> None:
    """It is told, and resumes where it was when there are two nodes again."""
    job = submit(SUBMIT)
    job.wait_for_state()
    slurm.run("scontrol", "update", f"nodename={NODES[0]}", "state=down", "reason=test")
    job.wait_until_requeued()
    slurm.repair(NODES[0])
    job.start_again()
    assert job.wait_until_complete() == undisturbed[2]
    assert "Resuming from states/step_" in job.output  # whatever its first node printed is lost


def test_preempted_jobs_resume_after_the_urgent_one(
    submit: Callable[..., Job], slurm: Cluster, undisturbed: dict[int, str]
) -> None:
    """With a grace time of their partition, or with the usual time between SIGTERM and SIGKILL."""
    jobs = [submit(SUBMIT, f"--partition={partition}") for partition in ("low", "low_at_once")]
    for job in jobs:
        job.wait_for_state()
    slurm.run("sbatch", "--wait", "--partition=high", "--nodes=2", "--exclusive", "--wrap=true", folder=jobs[0].folder)
    for job in jobs:
        job.start_again()
    for job in jobs:
        assert job.wait_until_complete() == undisturbed[2]
        job.assert_nothing_was_lost()


def test_tasks_of_an_array_share_a_node_and_nothing_else(
    submit: Callable[..., Job], slurm: Cluster, undisturbed: dict[int, str]
) -> None:
    """Each has its states and its port; of two, the one that is told to end is requeued alone."""
    array = submit(SUBMIT_ARRAY, f"--nodelist={NODES[0]}")
    tasks = [replace(array, number=f"{array.number}_{task}", states=f"states/{task}") for task in range(2)]
    for task in tasks:
        task.wait_for_state()
    slurm.run("scancel", "--signal=TERM", tasks[1].number)  # as at its time limit; its number is that of the array
    tasks[1].wait_until_requeued()
    assert (slurm.state(tasks[0].number), tasks[0].restarts) == ("RUNNING", "0")
    tasks[1].start_again()
    assert tasks[1].wait_until_complete() == undisturbed[1]
    tasks[1].assert_nothing_was_lost()


def test_status_75_requeues_jobs_where_the_cluster_says_so(
    submit: Callable[..., Job], slurm: Cluster, undisturbed: dict[int, str]
) -> None:
    """With RequeueExit=75, scripts need not call Slurm, on one process or with a launcher that keeps the status."""
    alone = submit(SUBMIT_ONE_NODE, changes=[WITHOUT_SCONTROL[0], ONE_PROCESS])
    several = submit(SUBMIT, changes=WITHOUT_SCONTROL)
    for job, num_processes in ((alone, 1), (several, 2)):
        job.wait_for_state()
        slurm.run("scancel", "--signal=TERM", job.number)
        job.start_again()
        assert job.wait_until_complete() == undisturbed[num_processes]
        job.assert_nothing_was_lost()
