"""The files in a private Slurm's etc/: nodes, partitions and QOS like three sites' in small."""

import random
import socket
import zlib
from pathlib import Path

LEONARDO = ("lrdn0001", "lrdn0002", "lrdn0003", "lrdn0004")
JUPITER = ("jpbo-001-01", "jpbo-001-02")
VISTA = ("c601-001", "c601-002")
NODES = LEONARDO + JUPITER + VISTA
GPUS = 4
ACCOUNTS = ("lab_leonardo", "lab_jupiter", "lab_vista")  # the first is root's default
SUSPENDED_ACCOUNT = "lab_suspended"
SUSPENDED_QOS = "suspended"
QOS = {
    "boost_qos_dbg": ("MaxWall=00:30:00", "MaxTRESPerJob=node=2", "Priority=1000"),
    "boost_qos_bprod": (),
    SUSPENDED_QOS: ("GrpJobs=0",),
}
PORTS = range(20000, 32000)  # below those that the kernel gives away itself

SLURM_CONF = """\
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A requeued job waits for cred_expire seconds before it starts again; 120 where nothing is said.
AuthInfo=socket={folder}/run/munge.sock,cred_expire=20
CredType=cred/munge
MailProg=/bin/true
MpiDefault=none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=5
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
# More CPUs and memory are declared than the host has.
SlurmdParameters=config_overrides
ReturnToService=1
SlurmctldTimeout=30
SlurmdTimeout=20
BatchStartTimeout=60
InactiveLimit=0
KillWait=10
OverTimeLimit=0
MinJobAge=300
# Clusters share the host's network, and a job's port and its meeting follow from its id.
FirstJobId={first_job}
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=batch_sched_delay=1,sched_interval=2,bf_interval=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
"""
ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={accounting_port}
AccountingStoragePass={folder}/run/munge.sock
AccountingStorageEnforce=associations,limits,qos,safe
AccountingStorageTRES=gres/gpu
"""
SLURMDBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.sock
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={accounting_port}
SlurmUser=root
LogFile={folder}/log/slurmdbd.log
PidFile={folder}/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
"""
WITH_CGROUPS = """\
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
"""
CGROUP_CONF = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint={folder}/cgroup
ConstrainRAMSpace=yes
"""
WITHOUT_CGROUPS = """\
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
Epilog={folder}/etc/epilog
"""
# `disabled` is fatal in 22.05; no cgroup is made, as no plugin asks for one.
NO_CGROUP_CONF = "CgroupPlugin=cgroup/v1\n"
# proctrack/linuxproc loses the children of a process that ends before them.
EPILOG = """\
#!/bin/sh
for file in $(grep -lzxF "SLURM_JOB_ID=$SLURM_JOB_ID" /proc/[0-9]*/environ); do
  pid=${file#/proc/} pid=${pid%/environ}
  [ "$pid" = $$ ] && continue
  [ "$(readlink /proc/$pid/ns/mnt)" = "$(readlink /proc/$$/ns/mnt)" ] && kill -KILL "$pid"
done
exit 0
"""
NODE_KINDS = {
    LEONARDO: "CPUs=32 Sockets=1 CoresPerSocket=32 RealMemory=494000 Gres=gpu:4 Feature=a100",
    JUPITER: "CPUs=288 Sockets=4 CoresPerSocket=72 RealMemory=860000 Gres=gpu:4 Feature=gh200",
    VISTA: "CPUs=72 Sockets=1 CoresPerSocket=72 RealMemory=237000 Feature=gh200",
}
# A GPU must be a device for slurmd; each node binds one to these files.
GRES_CONF = """\
AutoDetect=off
NodeName=lrdn[0001-0004],jpbo-001-[01-02] Name=gpu Count=4 File={folder}/dev/nvidia[0-3]
"""
PARTITIONS = """\
PartitionName=DEFAULT DefaultTime=00:30:00 PreemptMode=OFF State=UP
PartitionName=boost_usr_prod Nodes=lrdn[0001-0004] Default=YES MaxTime=24:00:00 \
AllowQos=normal,boost_qos_dbg,boost_qos_bprod
PartitionName=lrd_all_serial Nodes=lrdn0004 MaxNodes=1 MaxTime=04:00:00
PartitionName=booster Nodes=jpbo-001-[01-02] MaxTime=12:00:00
PartitionName=high Nodes=jpbo-001-[01-02] MaxTime=12:00:00 PriorityTier=10
PartitionName=low Nodes=jpbo-001-[01-02] MaxTime=12:00:00 PreemptMode=REQUEUE GraceTime=5
PartitionName=low_cancel Nodes=jpbo-001-[01-02] MaxTime=12:00:00 PreemptMode=CANCEL GraceTime=5
PartitionName=gh Nodes=c601-[001-002] MaxTime=48:00:00 OverSubscribe=EXCLUSIVE
PartitionName=gh-dev Nodes=c601-[001-002] MaxTime=02:00:00 OverSubscribe=EXCLUSIVE
"""


def cluster_name(folder: Path) -> str:
    """The name of the cluster of a folder, other than every other folder's."""
    return f"test{zlib.crc32(bytes(folder)):08x}"


def config_files(folder: Path, accounting: bool, cgroups: bool) -> dict[str, str]:
    """The text of each file in etc/, with ports on which nothing listens now."""
    controller_port, accounting_port, *node_ports = _free_ports(2 + len(NODES))
    values = {
        "folder": folder,
        "name": cluster_name(folder),
        "host": socket.gethostname().split(".")[0],
        "controller_port": controller_port,
        "first_job": 1 + zlib.crc32(bytes(folder)) % 15000,
        "accounting_port": accounting_port,
    }
    addresses = {node: f"127.0.1.{number}" for number, node in enumerate(NODES, start=1)}
    parts = [
        SLURM_CONF,
        WITH_CGROUPS if cgroups else WITHOUT_CGROUPS,
        ACCOUNTING if accounting else "",
        *map(_node_line, NODES, addresses.values(), node_ports),
        PARTITIONS,
    ]
    hosts = "".join(f"{address} {node}\n" for node, address in addresses.items())
    texts = {
        "slurm.conf": "".join(parts),
        "gres.conf": GRES_CONF,
        "cgroup.conf": CGROUP_CONF if cgroups else NO_CGROUP_CONF,
        **({"slurmdbd.conf": SLURMDBD_CONF} if accounting else {}),
    }
    filled = {name: text.format(**values) for name, text in texts.items()}
    return filled | {"epilog": EPILOG, "hosts": Path("/etc/hosts").read_text() + hosts}


def accounting_commands(folder: Path) -> list[tuple[str, ...]]:
    """What sacctmgr is told so that the cluster has its QOS and accounts, and root may use them.

    Slurm makes the QOS `normal` and the user root itself. A command takes 0.4 s, so these are few.
    """
    cluster = f"cluster={cluster_name(folder)}"
    allowed = ",".join(["normal", *(qos for qos in QOS if qos != SUSPENDED_QOS)])
    owned, suspended = ",".join(ACCOUNTS), SUSPENDED_ACCOUNT
    user = ("add", "user", "root", cluster)
    return [
        ("add", "cluster", cluster_name(folder)),
        *(("add", "qos", qos, *limits) for qos, limits in QOS.items()),
        ("add", "account", f"{owned},{suspended}", cluster),
        (*user, f"account={owned}", f"qos={allowed}", "defaultqos=normal"),
        (*user, f"account={suspended}", f"qos={SUSPENDED_QOS}", f"defaultqos={SUSPENDED_QOS}"),
        ("modify", "user", "root", "set", f"defaultaccount={ACCOUNTS[0]}"),
    ]


def _node_line(node: str, address: str, port: int) -> str:
    kind = next(kind for nodes, kind in NODE_KINDS.items() if node in nodes)
    return (
        f"NodeName={node} NodeHostname={node} NodeAddr={address} Port={port} "
        f"ThreadsPerCore=1 {kind} State=UNKNOWN\n"
    )


def _free_ports(count: int) -> list[int]:
    """Ports drawn by chance, so that clusters that start at the same time get others."""
    drawn = random.SystemRandom().sample(PORTS, len(PORTS))
    free: list[int] = []
    for port in drawn:
        if len(free) == count:
            break
        free += [port] if _is_free(port) else []
    return free


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
