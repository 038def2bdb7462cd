"""A private Slurm of eight nodes on one host: real daemons on loopback, fake GPUs, as root.

Its partitions, QOS and nodes mirror three sites in small; what the tests of faults need is added.
Each node is a pair of namespaces of its own, with its host name and its /etc/slurm, in which one
slurmd runs; all else is shared with the host. No service of the host is used. All is written below
the given folder, but for cgroups, which stop() removes: where the host lets root make them, a job
is contained as on a real site; elsewhere its leftovers are killed when it has ended.

    python -m tests.slurm.cluster up FOLDER [--no-accounting]
    python -m tests.slurm.cluster down FOLDER

With `SLURM_CONF=FOLDER/etc/slurm.conf` in the environment, sbatch, squeue and so on speak to it.
"""

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sft.process import ProcessId, parse_process_id, process_id
from tests.slurm.config import (
    GPUS,
    JUPITER,
    NODES,
    accounting_commands,
    cluster_name,
    config_files,
)

WAIT_S = 60
STOP_S = 5
# AF_UNIX paths end at 108 bytes; the longest is a step's socket below spool/<node>/.
LONGEST_FOLDER = 108 - 1 - len(f"/spool/{JUPITER[0]}/{JUPITER[0]}_12345678.4294967291")
COMMANDS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurmdbd": "slurmdbd",
    "munged": "munge",
    "mariadbd": "mariadb-server",
    "sbatch": "slurm-client",
    "unshare": "util-linux",
}
MODES = {"slurmdbd.conf": 0o600, "epilog": 0o755}
CGROUPS = Path("/sys/fs/cgroup")
CONTROLLERS = ("freezer", "memory")
SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


class Job(NamedTuple):
    """A job as squeue shows it; `nodes` is "" while it waits."""

    state: str
    reason: str
    nodes: str


@dataclass
class Cluster:
    """The Slurm of a folder. All that its methods need is on disk: one made anew takes over."""

    folder: Path
    children: list[subprocess.Popen] = field(default_factory=list, repr=False)

    @classmethod
    def start(cls, folder: Path, accounting: bool = True) -> "Cluster":
        """A cluster whose nodes are all idle; nothing of it runs on where this fails.

        A folder that was used before keeps its job ids and its accounting.
        """
        cluster = cls(Path(folder).resolve())
        cluster._refuse()
        try:
            cluster._write_files(accounting)
            cluster._mount_small_disk()
            cluster._start_munge()
            if accounting:
                cluster._start_database()
                cluster.start_accounting()
                cluster._add_accounts()
            cluster.start_controller()
            for node in NODES:
                cluster._start_node(node)
                cluster._spawn_slurmd(node)
            cluster.wait_idle()
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def stop(self) -> None:
        """End every process of the cluster and of its jobs. What does not run is passed over."""
        if self._runs("slurmctld"):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.run("scancel", "--user=root", timeout_s=STOP_S)
        for node in NODES:
            self.kill_node(node)
            self._end(f"node-{node}", signal.SIGKILL)
        for name in ("slurmctld", "slurmdbd", "mariadbd", "munged"):
            self._end(name, signal.SIGTERM)
        if self.small_disk.is_mount():
            self.ask("umount", "--lazy", str(self.small_disk))
        # A process leaves its cgroup a moment after its namespaces.
        self._wait_until(self._cgroups_are_removed, "its cgroups are empty", STOP_S)
        for child in self.children:
            child.wait()
        self.children.clear()

    def environment(self) -> dict[str, str]:
        """The variables that make Slurm's commands speak to this cluster."""
        path = os.environ.get("PATH", "")
        return {"SLURM_CONF": str(self.slurm_conf), "PATH": f"{path}:{SYSTEM_PATH}"}

    @property
    def slurm_conf(self) -> Path:
        return self.folder / "etc" / "slurm.conf"

    @property
    def small_disk(self) -> Path:
        """A folder with a file system of its own that the host and all nodes see."""
        return self.folder / "small"

    def resize_small_disk(self, megabytes: int) -> None:
        """Set how much the small disk holds; nothing of what lies there is lost."""
        self.ask("mount", "-o", f"remount,size={megabytes}m", str(self.small_disk))

    @property
    def accounting(self) -> bool:
        """Whether the cluster was started with slurmdbd."""
        return (self.folder / "etc" / "slurmdbd.conf").exists()

    def run(self, *command: str, timeout_s: float = WAIT_S) -> subprocess.CompletedProcess:
        """A finished command, successful or not, with its texts."""
        return subprocess.run(
            command,
            env=os.environ | self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def ask(self, *command: str) -> str:
        """What a command prints; RuntimeError with its complaint where it fails."""
        done = self.run(*command)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr}")
        return done.stdout.strip()

    def submit(self, *arguments: str) -> str:
        """The id of a job that sbatch accepts."""
        return self.ask("sbatch", "--parsable", *arguments)

    def queue(self) -> dict[str, Job]:
        """Every job that slurmctld remembers, ended ones too (for MinJobAge), by its id."""
        text = self.ask("squeue", "--states=all", "--noheader", "--format=%i|%T|%r|%N")
        rows = (line.split("|") for line in text.splitlines())
        return {job: Job(*rest) for job, *rest in rows}

    def accounted(self, job: str) -> Job:
        """A job as sacct shows it; its state is "" while slurmdbd has not heard of it."""
        command = ("sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={job}")
        text = self.ask(*command, "--format=State,Reason,NodeList")
        return Job(*text.split("|")) if text else Job("", "", "")

    def wait_for_job(self, job: str, *states: str, wait_s: float = WAIT_S) -> Job:
        """The job once squeue shows it in one of the states."""
        what = f"job {job} is {' or '.join(states)}"
        self._wait_until(lambda: self.queue()[job].state in states, what, wait_s)
        return self.queue()[job]

    def wait_for_reason(self, job: str, wait_s: float = WAIT_S) -> str:
        """Why a pending job waits, once the scheduler has looked at it."""
        unseen = ("None", "Priority")
        what = f"a reason is given for job {job}"
        self._wait_until(lambda: self.queue()[job].reason not in unseen, what, wait_s)
        return self.queue()[job].reason

    def wait_idle(self, wait_s: float = WAIT_S) -> None:
        """Return when every node answers and is idle."""
        self._wait_until(lambda: set(self.nodes().values()) == {"idle"}, "nodes are idle", wait_s)

    def nodes(self) -> dict[str, str]:
        """Each node's state in sinfo's words, such as idle, mixed, down*; {} without an answer."""
        done = self.run("sinfo", "--Node", "--noheader", "--format=%N %T")
        return dict(line.split() for line in done.stdout.splitlines())

    def clean(self) -> None:
        """Bring back what a test stopped or set down, and end its jobs."""
        self.start_controller()
        if self.accounting:
            self.start_accounting()
        self.ask("scancel", "--user=root")
        for node in NODES:
            self.start_slurmd(node)
        for node, state in self.nodes().items():
            if state.startswith(("down", "drain")):
                with contextlib.suppress(RuntimeError):  # it has come back by itself
                    self.set_node(node, "resume")
        self.wait_idle()

    def set_node(self, node: str, state: str, reason: str = "test") -> None:
        """Set a node to down, drain or resume, as an administrator does."""
        self.ask("scontrol", "update", f"NodeName={node}", f"State={state}", f"Reason={reason}")

    def kill_slurmd(self, node: str) -> None:
        """Kill a node's daemon. The jobs' own processes go on, as they do on a real node."""
        self._end(f"slurmd-{node}", signal.SIGKILL)

    def kill_node(self, node: str) -> None:
        """Kill all that runs on a node, as a power failure does."""
        holder = self._process(f"node-{node}")
        if not (holder and holder.runs()):
            return
        while found := _processes_of(holder):
            for pid in found:
                _signal(pid, signal.SIGKILL)
            time.sleep(0.02)

    def start_slurmd(self, node: str) -> None:
        """Start a node's daemon where it does not run."""
        if not self._runs(f"slurmd-{node}"):
            self._spawn_slurmd(node)

    def stop_controller(self) -> None:
        self._end("slurmctld", signal.SIGTERM)

    def start_controller(self) -> None:
        """Start slurmctld where it does not run, and wait until it answers."""
        if not self._runs("slurmctld"):
            self._spawn("slurmctld", "slurmctld", "-D")
            self._wait_for("slurmctld", lambda: "UP" in self.run("scontrol", "ping").stdout)

    def stop_accounting(self) -> None:
        """Stop slurmdbd; its database goes on."""
        self._end("slurmdbd", signal.SIGTERM)

    def start_accounting(self) -> None:
        """Start slurmdbd where it does not run, and wait until it answers."""
        if not self._runs("slurmdbd"):
            self._spawn("slurmdbd", "slurmdbd", "-D", MYSQL_UNIX_PORT=str(self._database))
            self._wait_for("slurmdbd", lambda: self._succeeds("sacctmgr", "list", "cluster"))

    def _refuse(self) -> None:
        if reason := missing():
            raise RuntimeError(reason)
        if len(str(self.folder)) > LONGEST_FOLDER:
            raise ValueError(
                f"{self.folder}: {len(str(self.folder))} characters; sockets below it allow "
                f"{LONGEST_FOLDER}; take a shorter folder, such as one in /tmp"
            )
        if running := [path.stem for path in self._records() if self._runs(path.stem)]:
            raise RuntimeError(f"{self.folder}: {', '.join(running)} run already; stop it first")

    def _write_files(self, accounting: bool) -> None:
        for name in ("dev", "etc", "log", "munge", "run", "spool", "state"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        for path in self._records():
            path.unlink()
        for gpu in range(GPUS):
            (self.folder / "dev" / f"nvidia{gpu}").touch()
        for node in NODES:
            (self.folder / "spool" / node).mkdir(exist_ok=True)
        cgroups = can_make_cgroups()
        if cgroups:
            self._make_cgroups()
        etc = self.folder / "etc"
        shutil.rmtree(etc)
        etc.mkdir()
        for name, text in config_files(self.folder, accounting, cgroups).items():
            (etc / name).write_text(text)
            (etc / name).chmod(MODES.get(name, 0o644))

    def _mount_small_disk(self) -> None:
        """Mount what nodes can see too: they get the mounts that there are when they start."""
        self.small_disk.mkdir(exist_ok=True)
        self.ask("mount", "-t", "tmpfs", "-o", "size=1m", "small", str(self.small_disk))

    def _make_cgroups(self) -> None:
        """Make cgroups of the cluster's own: Slurm names a node's alike, whatever the cluster."""
        mounts = self.folder / "cgroup"
        shutil.rmtree(mounts, ignore_errors=True)
        mounts.mkdir()
        for controller in CONTROLLERS:
            own = self._cgroup(controller)
            own.mkdir(exist_ok=True)
            (mounts / controller).symlink_to(own)

    def _cgroups_are_removed(self) -> bool:
        folders = [self._cgroup(controller) for controller in CONTROLLERS]
        for folder in folders:
            for path, _, _ in os.walk(folder, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(path)
        return not any(folder.exists() for folder in folders)

    def _cgroup(self, controller: str) -> Path:
        return CGROUPS / controller / cluster_name(self.folder)

    def _start_munge(self) -> None:
        key = self.folder / "munge" / "munge.key"
        if not key.exists():
            key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        key.parent.chmod(0o700)
        self._spawn(
            *("munged", "munged", "--foreground", "--force", "--num-threads=4"),
            *(f"--key-file={key}", f"--socket={self.folder}/run/munge.sock"),
            *(f"--pid-file={self.folder}/run/munged.pid", f"--seed-file={key.parent}/seed"),
            f"--log-file={self.folder}/log/munge.log",
        )
        self._wait_for("munged", (self.folder / "run" / "munge.sock").is_socket)

    def _start_database(self) -> None:
        """Start a MariaDB that listens on nothing but a socket in the folder."""
        data = self.folder / "db"
        options = (
            *("--no-defaults", "--user=root", f"--datadir={data}"),
            *("--innodb-log-file-size=8M", "--innodb-buffer-pool-size=16M"),
        )
        if not (data / "mysql").exists():
            self.ask("mariadb-install-db", *options, "--skip-test-db", "--skip-name-resolve")
        self._spawn(
            *("mariadbd", "mariadbd", *options, "--skip-networking", f"--socket={self._database}"),
            *("--aria-pagecache-buffer-size=8M", "--key-buffer-size=1M", "--skip-log-bin"),
            *("--innodb-flush-log-at-trx-commit=0", "--innodb-lock-wait-timeout=900"),
            f"--pid-file={self.folder}/run/mariadbd.pid",
        )
        ping = ("mariadb-admin", "--no-defaults", f"--socket={self._database}", "ping")
        self._wait_for("mariadbd", lambda: self._succeeds(*ping))

    @property
    def _database(self) -> Path:
        return self.folder / "run" / "mysql.sock"

    def _add_accounts(self) -> None:
        """Make the cluster's QOS and accounts in a new database."""
        made = self.folder / "state" / "accounts.made"
        if made.exists():
            return
        for command in accounting_commands(self.folder):
            done = self.run("sacctmgr", "--immediate", *command)
            # A start that was interrupted may have made a part of them.
            if done.returncode and not re.search("already exists|Nothing new added", done.stdout):
                raise RuntimeError(f"sacctmgr {' '.join(command)}: {done.stdout}{done.stderr}")
        made.touch()

    def _start_node(self, node: str) -> None:
        """Make a node's namespaces; a sleeping process holds them, whatever else ends."""
        hosts, etc = self.folder / "etc" / "hosts", self.folder / "etc"
        ready = self.folder / "run" / f"node-{node}.ready"
        ready.unlink(missing_ok=True)
        script = (
            f"set -e; hostname {node}; mount --bind {hosts} /etc/hosts; "
            f"mount --bind {etc} /etc/slurm; "
            # slurmd takes only a device for a GPU.
            f"for gpu in dev/nvidia*; do mount --bind /dev/null $gpu; done; "
            f"touch {ready}; exec sleep infinity"
        )
        self._spawn(f"node-{node}", "unshare", "--uts", "--mount", "sh", "-c", script)
        self._wait_for(f"node-{node}", ready.exists)

    def _spawn_slurmd(self, node: str) -> None:
        holder = str(self._process(f"node-{node}").pid)
        enter = ("nsenter", f"--target={holder}", "--uts", "--mount")
        self._spawn(f"slurmd-{node}", *enter, "slurmd", "-D", "-N", node)

    def _spawn(self, name: str, *command: str, **variables: str) -> None:
        """Start a process in a session of its own and write down which it is."""
        environment = {"SLURM_CONF": str(self.slurm_conf), "PATH": SYSTEM_PATH} | variables
        with open(self.folder / "log" / f"{name}.out", "ab") as log:
            child = subprocess.Popen(
                command,
                env=environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.children.append(child)
        self._record(name).write_text(str(process_id(child.pid)))

    def _end(self, name: str, number: signal.Signals) -> None:
        process = self._process(name)
        if process is None:
            return
        deadline = time.monotonic() + STOP_S
        while process.runs():
            late = time.monotonic() > deadline
            _signal(process.pid, signal.SIGKILL if late else number)
            time.sleep(0.05)

    def _runs(self, name: str) -> bool:
        process = self._process(name)
        return process is not None and process.runs()

    def _process(self, name: str) -> ProcessId | None:
        record = self._record(name)
        return parse_process_id(record.read_text()) if record.exists() else None

    def _record(self, name: str) -> Path:
        return self.folder / "run" / f"{name}.process"

    def _records(self) -> list[Path]:
        return sorted((self.folder / "run").glob("*.process"))

    def _succeeds(self, *command: str) -> bool:
        return self.run(*command).returncode == 0

    def _wait_for(self, name: str, answers: Callable[[], bool]) -> None:
        """Return when a process that was started answers; RuntimeError where it ends instead."""

        def settled() -> bool:
            return answers() or not self._runs(name)

        self._wait_until(settled, f"{name} answers")
        if not self._runs(name):
            log = self.folder / "log" / f"{name}.out"
            raise RuntimeError(f"{name} ended at once; {log} ends with:\n{log.read_text()[-1000:]}")

    def _wait_until(self, condition: Callable[[], bool], what: str, wait_s: float = WAIT_S) -> None:
        deadline = time.monotonic() + wait_s
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.folder}/log: not within {wait_s:g} s: {what}")
            time.sleep(0.05)


def missing() -> str:
    """Why no cluster can be started here, with the remedy; "" where one can."""
    path = f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"
    absent = [package for name, package in COMMANDS.items() if not shutil.which(name, path=path)]
    if absent:
        return f"{', '.join(absent)} not installed; as root, `make slurm` installs Slurm"
    if os.getuid() != 0:
        return "a private Slurm needs root, for its nodes' namespaces"
    tried = subprocess.run(
        ["unshare", "--uts", "--mount", "true"], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        return f"a private Slurm needs namespaces, which are refused: {tried.stderr.strip()}"
    return ""


def can_make_cgroups() -> bool:
    """Whether Slurm 22.05 can use cgroups here: of version 1, and writable."""
    return all(os.access(CGROUPS / each / "cgroup.procs", os.W_OK) for each in CONTROLLERS)


def _processes_of(holder: ProcessId) -> list[int]:
    """The processes in the namespaces that a holder made, itself left out."""
    namespace = _namespace(holder.pid)
    if namespace in (None, _namespace(os.getpid())):  # it has not made them yet
        return []
    pids = (int(path.name) for path in Path("/proc").glob("[0-9]*"))
    return [pid for pid in pids if pid != holder.pid and _namespace(pid) == namespace]


def _namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:  # it ended
        return None


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def main() -> None:
    parser = argparse.ArgumentParser(description="A private Slurm on this host.")
    parser.add_argument("action", choices=("up", "down"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--no-accounting", action="store_true", help="without slurmdbd")
    arguments = parser.parse_args()
    if arguments.action == "down":
        Cluster(arguments.folder.resolve()).stop()
        return
    cluster = Cluster.start(arguments.folder, accounting=not arguments.no_accounting)
    print(f"export SLURM_CONF={cluster.slurm_conf}")


if __name__ == "__main__":
    main()
