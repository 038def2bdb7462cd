"""A small site for the doctor: its profile and table on disk, and Slurm's commands on PATH."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from sft.doctor import Check, run_doctor

BASE = {
    "environment": "otagent",
    "stage": "sft",
    "finetuning_type": "full",
    "template": "qwen3",
    "cutoff_len": 4096,
    "global_batch_size": 96,
    "learning_rate": 1e-5,
    "num_train_epochs": 3,
}
CONFIG = {
    "experiments": "t.tsv",
    "models": "models.yaml",
    "mixes": "mixes.yaml",
    "datasets": ["datasets.yaml"],
    "namespace": "laion",
    "upload_to": "folder",
    "upload_folder": "",
    "registry_file": "",
    "pathvars": {"results": "results"},
}
LOCAL = {"config": {"site": "here", "environments": {"otagent": "true"}}}
SLURM = {
    "executor": "slurm",
    "jobs": 200,
    "cores": 1024,
    "slurm-status-command": "squeue",
    "slurm-no-requeue": True,
    "slurm-keep-successful-logs": True,
    "default-resources": {"slurm_account": "lab", "slurm_partition": "cpu", "runtime": 60},
    "set-resources": {
        "train": {"slurm_partition": "gpu", "qos": "normal", "gres": "'gpu:4'", "runtime": 1439}
    },
    "config": {
        "site": "here",
        "launcher": "slurm",
        "gpus_per_node": 4,
        "gpu_request": "gres",
        "max_nodes": 16,
        "environments": {"otagent": "true"},
    },
}
PARTITION = (
    "PartitionName={name} AllowGroups=ALL AllowAccounts={accounts} AllowQos={qos} AllocNodes=ALL "
    "Default={default} QoS={own_qos} DefaultTime=00:30:00 Hidden=NO MaxNodes=UNLIMITED "
    "MaxTime={wall} MinNodes=0 Nodes={nodes} OverSubscribe=NO State={state} TotalCPUs=128 "
    "TotalNodes=4 MaxMemPerNode=UNLIMITED"
)
TITLES = {
    "associations": "Account|Partition|QOS|Def QOS|MaxSubmit|MaxJobs|GrpJobs|GrpSubmit",
    "qos": "Name|MaxWall|MaxTRES|MaxSubmitPU|MaxJobsPU|GrpJobs|GrpSubmit",
    "squeue": "JOBID|ACCOUNT|QOS|REASON",
    "sinfo": "PARTITION|STATE|NODES",
}


def partition(name: str, **changed: str) -> str:
    """A partition of four nodes as scontrol shows it."""
    usual = {"accounts": "ALL", "qos": "ALL", "own_qos": "N/A", "wall": "1-00:00:00"}
    usual |= {"state": "UP", "default": "NO", "nodes": "n[1-4]"}
    return PARTITION.format(name=name, **usual | changed)


class DoctorSite:
    """The files of a workflow in the current folder with one site, for a test to spoil."""

    def __init__(self, profile: Mapping[str, Any]) -> None:
        self.profile = self.copy_of(profile)
        self.config = dict(CONFIG)
        self.base = dict(BASE)
        self.rows = [{"name": "run", "num_nodes": "1"}]
        Path("small").mkdir()
        Path("chats.jsonl").write_text('{"a": 1}\n')
        self.write("models.yaml", {"small": {"folder": "small"}, "big": {"hub": "org/big"}})
        self.write("datasets.yaml", {"chats": {"file_name": "chats.jsonl"}})
        self.write("mixes.yaml", {"chats": {"datasets": ["chats"]}})

    @staticmethod
    def copy_of(profile: Mapping[str, Any]) -> dict[str, Any]:
        """A profile that a test may change."""
        return yaml.safe_load(yaml.safe_dump(dict(profile)))

    @property
    def facts(self) -> dict[str, Any]:
        """What the profile says under `config:`."""
        return self.profile["config"]

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a mapping as YAML."""
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(yaml.safe_dump(content, sort_keys=False))

    def check(self, network: bool = False) -> list[Check]:
        """What the doctor says of the site as it is now."""
        self.write("config/config.yaml", self.config)
        self.write("profiles/here/config.yaml", self.profile)
        self.write("base.yaml", self.base)
        usual = {"base_config": "base.yaml", "model": "small", "mix": "chats"}
        rows = [usual | each for each in self.rows]
        columns = list(dict.fromkeys(key for row in rows for key in row))
        lines = ["\t".join(columns)]
        lines += ["\t".join(row.get(key, "") for key in columns) for row in rows]
        Path("t.tsv").write_text("\n".join(lines) + "\n")
        return run_doctor(Path("profiles/here"), [], lambda check: None, network)

    def found(self, subject: str, network: bool = False) -> list[Check]:
        """The checks whose subject begins so."""
        return [each for each in self.check(network) if each.subject.startswith(subject)]

    def only(self, subject: str, network: bool = False) -> Check:
        """The one check whose subject begins so."""
        (check,) = self.found(subject, network)
        return check


class FakeSlurm:
    """Slurm's commands in a folder on PATH; each prints what a test gives it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in ("scancel", "squeue", "sinfo", "sbatch", "sacctmgr", "scontrol"):
            self.says(name, "")
        self.says("sbatch", "", "sbatch: Job 1 to start at 2030-01-01T00:00:00 using 4 processors")
        self.says("squeue", TITLES["squeue"])
        self.nodes("cpu|idle|4", "gpu|idle|4")
        self.partitions = [partition("cpu"), partition("gpu")]
        self.associations = ["lab||normal,long|normal||||"]
        self.qos = ["normal||||||", "long||||||"]
        self.reservations = "No reservations in the system"
        self.enforced, self.age_s = "associations,limits,qos,safe", 300
        self.ping = "Slurmctld(primary) at host is UP"

    def says(self, command: str, output: str, errors: str = "", code: int = 0) -> None:
        """Let a command print these and end so."""
        self.script(
            command,
            f"printf '%s\\n' {shlex.quote(output)}\n"
            f"printf '%s' {shlex.quote(errors)} >&2\nexit {code}",
        )

    def script(self, command: str, text: str) -> None:
        """Let a command be this text of bash."""
        path = self.folder / command
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)

    def nodes(self, *lines: str) -> None:
        """Let sinfo list these, and the nodes n1 to n4."""
        listing = shlex.quote("\n".join([TITLES["sinfo"], *lines]))
        self.script("sinfo", f"[[ $* == *--Node* ]] && seq -f n%g 4 || printf '%s\\n' {listing}")

    def write(self) -> None:
        """Write the commands whose answers are fields of this."""
        answers = {
            "ping": self.ping,
            "partition": "\n".join(self.partitions),
            "reservation": self.reservations,
            "config": f"ClusterName = here\nMinJobAge = {self.age_s} sec\n"
            f"AccountingStorageEnforce = {self.enforced}",
        }
        cases = "".join(
            f"  *{word}*) printf '%s\\n' {shlex.quote(text)};;\n" for word, text in answers.items()
        )
        # n[1-4] is n{1..4} in bash; tests write nothing that is less plain.
        expand = """eval "printf '%s\\n' $(sed 's/\\[/{/; s/\\]/}/; s/-/../' <<< "$3")\""""
        hostnames = f"  *hostnames*) {expand};;\n"
        self.script("scontrol", f"case $* in\n{hostnames}{cases}esac")
        associations = shlex.quote("\n".join([TITLES["associations"], *self.associations]))
        qos = shlex.quote("\n".join([TITLES["qos"], *self.qos]))
        self.script(
            "sacctmgr",
            f"[[ $* == *associations* ]] && printf '%s\\n' {associations} || printf '%s\\n' {qos}",
        )

    @property
    def path(self) -> str:
        """PATH with these commands first."""
        return f"{self.folder}:{os.environ['PATH']}"
