"""A Slurm cluster of two nodes on this machine, of Debian's packages ``slurm-wlm`` and ``munge``."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.launching import as_a_reader, free_ports

PROGRAMS = ("munged", "sbatch", "scancel", "scontrol", "slurmctld", "slurmd", "squeue", "srun")
NODES = ("127.0.0.1", "127.0.0.2")
"""Their names, which lead to this machine without an entry in /etc/hosts."""

_SETTINGS = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={port_of_control}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=30
SlurmctldTimeout=30
SlurmdTimeout=20
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=1,sched_interval=2
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
RequeueExit=75
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=low Nodes={nodes} Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName=low_at_once Nodes={nodes} MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=high Nodes={nodes} MaxTime=INFINITE State=UP PriorityTier=2
"""


@dataclass(frozen=True)
class Cluster:
    """Runs jobs.

    Attributes:
        folder: Where its daemons keep their files.
        env: The environment of its commands and jobs.
    """

    folder: Path
    env: dict[str, str]
    _stack: contextlib.ExitStack

    def start_node(self, node: str) -> None:
        """Start the daemon of a node."""
        _start(self._stack, self.folder, self.env, "slurmd", "-D", "-f", self.env["SLURM_CONF"], "-N", node)

    def crash(self, node: str) -> None:
        """Kill all processes of a node at once."""
        for process in list(_processes_of(node)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def run(self, *command: str, folder: Path | None = None) -> str:
        """Run a command of Slurm, and return what it prints."""
        done = subprocess.run(
            command, cwd=folder, env=self.env, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}"
        return done.stdout.strip()

    def submit(self, folder: Path, *options: str) -> str:
        """Submit the job of a folder, and return its number."""
        return self.run("sbatch", *options, "job.sbatch", folder=folder).split()[-1]

    def show(self, job: str) -> dict[str, str]:
        """What Slurm knows of a job, of an array that of its first task; of one that is gone, nothing."""
        shown = subprocess.run(
            ["scontrol", "show", "job", job, "--oneliner"], env=self.env, capture_output=True, text=True, check=False
        )
        words = shown.stdout.partition("\n")[0].split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def state(self, job: str) -> str:
        """Return the state of a job."""
        return self.show(job).get("JobState", "GONE")

    def repair(self, node: str) -> None:
        """Wait until a node that is down takes jobs again; it may do so by itself when it answers."""
        resume = ["scontrol", "update", f"nodename={node}", "state=resume"]
        subprocess.run(resume, env=self.env, capture_output=True, check=False)
        wait_until(lambda: self.run("sinfo", "-h", "-p", "low", "-n", node, "-o", "%t") == "idle")

    def has_steps(self, job: str) -> bool:
        """Whether a node still has a process of a job, which Slurm may know nothing of after a failure."""
        step = f"slurmstepd: [{job}.".encode()
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if process.read_bytes().startswith(step):
                    return True
        return False

    def start_now(self, job: str) -> None:
        """Let a job that was requeued start before Slurm's two minutes are over."""
        wait_until(lambda: self.state(job) == "PENDING", seconds=90)  # and not COMPLETING
        self.run("scontrol", "update", f"jobid={job}", "starttime=now")


def why_not() -> str:
    """Return why no cluster can be started here, empty if one can."""
    missing = [name for name in PROGRAMS if _find(name) is None]
    if missing:
        return f"{', '.join(missing)} not found: apt-get install --no-install-recommends slurm-wlm munge"
    return "" if os.geteuid() == 0 else "Slurm's daemons have to be started by root"


def wait_until(is_so: Callable[[], object], seconds: float = 100.0) -> None:
    """Wait until something is the case."""
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until, f"not within {seconds} seconds"
        time.sleep(0.2)


@contextlib.contextmanager
def cluster() -> Generator[Cluster]:
    """Start the daemons of a cluster, and end them."""
    with (
        tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as made,
        contextlib.ExitStack() as stack,
    ):
        folder = Path(made)
        folder.chmod(0o755)  # munged wants all to reach its socket
        settings = _write_settings(folder)
        reader = {name: value for name, value in {**os.environ, **as_a_reader(folder)}.items() if value is not None}
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin"])
        env = {**reader, "PATH": path, "SLURM_CONF": str(settings)}
        stack.callback(_show_logs, folder)
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        files = [f"--{name}={folder / f'munge.{name}'}" for name in ("socket", "pid-file", "log-file", "seed-file")]
        _start(stack, folder, env, "munged", "--foreground", "--force", f"--key-file={key}", *files)
        wait_until((folder / "munge.socket").exists, 10)
        _start(stack, folder, env, "slurmctld", "-c", "-D", "-f", str(settings))
        started = Cluster(folder, env, stack)
        for node in NODES:
            started.start_node(node)
        wait_until(lambda: _nodes(started) == "idle" * len(NODES), 60)
        yield started


def _write_settings(folder: Path) -> Path:
    control, *ports = free_ports(1 + len(NODES))
    host = socket.gethostname()
    lines = [
        f"NodeName={node} NodeHostname={host} NodeAddr={node} Port={port} CPUs=4 RealMemory=1000 State=UNKNOWN"
        for node, port in zip(NODES, ports, strict=True)
    ]
    settings = folder / "slurm.conf"
    text = _SETTINGS.format(host=host, folder=folder, port_of_control=control, nodes=",".join(NODES))
    before, partition, after = text.partition("PartitionName")
    settings.write_text(before + "\n".join(lines) + "\n" + partition + after)
    for name in ("state", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir()
    return settings


def _processes_of(node: str) -> Iterator[int]:
    """The daemon of a node, the processes of its jobs, and the daemons that watch these, which are their parents."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_bytes().split(b"\0")
            if command[0].endswith(b"slurmd") and node.encode() in command:
                yield int(process.name)
            elif f"SLURMD_NODENAME={node}".encode() in (process / "environ").read_bytes().split(b"\0"):
                parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
                if (Path("/proc") / parent / "cmdline").read_bytes().startswith(b"slurmstepd"):
                    yield int(parent)
                yield int(process.name)


def _nodes(started: Cluster) -> str:
    shown = subprocess.run(
        ["sinfo", "-h", "-N", "-p", "low", "-o", "%t"], env=started.env, capture_output=True, text=True, check=False
    )
    return "".join(shown.stdout.split())


def _start(stack: contextlib.ExitStack, folder: Path, env: dict[str, str], program: str, *arguments: str) -> None:
    with (folder / f"{program}.out").open("ab") as output:
        daemon = subprocess.Popen([str(_find(program)), *arguments], env=env, stdout=output, stderr=output)

    def end() -> None:
        daemon.terminate()
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    stack.callback(end)


def _find(program: str) -> str | None:
    return shutil.which(program) or shutil.which(program, path="/usr/sbin")


def _show_logs(folder: Path) -> None:
    """Print what the daemons have said; pytest shows it where a test has failed."""
    for log in sorted([*folder.glob("*.log"), *folder.glob("*.out")]):
        print(f"{log.name}:\n{log.read_text(errors='replace')[-3000:]}")  # noqa: T201
