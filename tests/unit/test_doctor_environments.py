"""Trainers' environments: true ones, with small packages in the place of large ones."""

import venv
from pathlib import Path

import pytest

from sft.doctor import Check, Verdict
from sft.trainers.probe import serves
from tests.unit.doctoring import LOCAL, DoctorSite

TORCH = """
import types

version = types.SimpleNamespace(cuda={cuda!r}, hip=None)
cuda = types.SimpleNamespace(
    device_count=lambda: {gpus},
    get_arch_list=lambda: ["sm_80", "sm_86"],
    get_device_capability=lambda index: {capability},
)
"""


class Environment:
    """A virtual environment whose packages a test writes."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.folder = folder
        (self.packages,) = folder.glob("lib/python*/site-packages")
        self.line = f"source {folder}/bin/activate"
        self.torch()
        for name, version in {
            "transformers": "5.6.0",
            "datasets": "4.0.0",
            "accelerate": "1.11.0",
            "llamafactory": "0.9.5",
        }.items():
            self.install(name, version)

    def install(self, name: str, version: str, text: str = "") -> None:
        """Put a package there, its module of the same name with this text."""
        (self.packages / f"{name.replace('-', '_')}.py").write_text(text)
        record = self.packages / f"{name.replace('-', '_')}-{version}.dist-info"
        record.mkdir(exist_ok=True)
        (record / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )

    def torch(self, cuda: str | None = None, gpus: int = 0, capability: tuple = (8, 0)) -> None:
        self.install("torch", "2.9.1", TORCH.format(cuda=cuda, gpus=gpus, capability=capability))

    def command(self, name: str, text: str) -> None:
        """Put a command of bash there."""
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)


@pytest.fixture
def environment(tmp_path) -> Environment:
    return Environment(tmp_path / "otagent")


@pytest.fixture
def site(tmp_path, monkeypatch, environment) -> DoctorSite:
    monkeypatch.chdir(tmp_path)
    site = DoctorSite(LOCAL)
    site.facts["environments"] = {"otagent": environment.line}
    return site


def checks(site: DoctorSite) -> list[Check]:
    return [check for check in site.check() if check.area == "environments"]


def faults(site: DoctorSite) -> list[str]:
    return [check.line for check in checks(site) if check.verdict == Verdict.FAULT]


def test_good_environment_is_told_with_its_versions(site):
    (check,) = checks(site)

    assert check.verdict == Verdict.OK
    assert check.found.endswith(
        "torch 2.9.1, transformers 5.6.0, datasets 4.0.0, accelerate 1.11.0, llamafactory 0.9.5"
    )


# How it is entered


@pytest.mark.parametrize(
    ("line", "found", "remedy"),
    [
        ("source /nowhere/bin/activate", "No such file or directory", "correct its line"),
        (
            "module load cuda",
            "module: command not found",
            "let `setup` source the file that defines it",
        ),
        ("conda activate otagent", "conda: command not found", "enter conda by the path"),
        (
            "false",
            "cannot be entered: exit code 1, not a word",
            "try the line in a fresh shell",
        ),
    ],
)
def test_environment_that_cannot_be_entered_is_a_fault(site, line, found, remedy):
    site.facts["environments"] = {"otagent": line}
    (check,) = checks(site)

    assert check.verdict == Verdict.FAULT
    assert found in check.found
    assert remedy in check.remedy


def test_nothing_comes_from_the_shell_that_asks(site, environment, monkeypatch):
    monkeypatch.setenv("ONLY_HERE", "1")
    script = Path("enter.sh")  # a profile holds no $
    script.write_text(f"test -z ${{ONLY_HERE:-}} && {environment.line}")
    site.facts["environments"] = {"otagent": f"source {script.resolve()}"}

    assert faults(site) == []


def test_python_that_does_not_start_is_a_fault(site, environment):
    (environment.folder / "bin" / "python").unlink()
    (environment.folder / "bin" / "python").write_bytes(b"\x7fELF of another machine")
    (environment.folder / "bin" / "python").chmod(0o755)
    (check,) = checks(site)

    assert "its python does not run sft" in check.found
    assert "built for another CPU architecture" in check.remedy


def test_line_that_is_to_be_filled_in_is_not_run(site):
    site.facts["environments"] = {"otagent": "source FILL_IN/bin/activate"}

    assert [check.verdict for check in checks(site)] == [Verdict.UNCHECKED]


def test_environment_that_no_row_needs_is_not_entered(site):
    site.facts["environments"]["other"] = "false"

    assert [check.verdict for check in checks(site)] == [Verdict.OK, Verdict.UNCHECKED]


def test_each_environment_is_entered_where_no_row_says_which(site, environment):
    site.rows[0]["sites"] = "there"
    site.write("profiles/there/config.yaml", {})
    site.facts["environments"]["other"] = environment.line

    assert [check.verdict for check in checks(site)] == [Verdict.OK, Verdict.OK]


# What it holds


@pytest.mark.parametrize(
    ("key", "value", "package"),
    [
        ("deepspeed", "ds_z3.json", "deepspeed"),
        ("flash_attn", "fa2", "flash_attn"),
        ("enable_liger_kernel", True, "liger_kernel"),
    ],
)
def test_package_that_a_row_needs_is_a_fault_where_it_is_missing(site, key, value, package):
    site.base[key] = value
    (line,) = faults(site)

    assert f"{package} is missing, which is needed for {key}" in line
    assert " of run;" in line


def test_flash_attention_of_the_site_is_needed(site):
    site.facts["attn"] = "fa2"

    assert "attn: sdpa does without flash_attn" in faults(site)[0]


def test_row_that_leaves_flash_attention_out_does_not_need_it(site):
    site.facts["attn"] = "fa2"
    site.base["flash_attn"] = "sdpa"

    assert faults(site) == []


def test_trainer_that_is_missing_is_a_fault(site, environment):
    (environment.packages / "llamafactory.py").unlink()

    assert "llamafactory is missing" in faults(site)[0]


def test_package_that_does_not_import_is_a_fault_with_its_error(site, environment):
    environment.install("accelerate", "1.11.0", "raise ImportError('GLIBC_2.34 not found')")
    (line,) = faults(site)

    assert "accelerate does not import: ImportError: GLIBC_2.34 not found" in line
    assert "load a newer gcc" in line


@pytest.mark.parametrize(
    "error",
    ["RuntimeError('0 active drivers ([]). There should only be one.')", "OSError('libcuda.so.1')"],
)
def test_package_that_only_wants_a_gpu_is_a_warning(site, environment, error):
    site.base["deepspeed"] = "ds_z3.json"
    environment.install("deepspeed", "0.18.4", f"raise {error}")
    found = checks(site)

    assert [check.verdict for check in found] == [Verdict.OK, Verdict.WARNING]
    assert "run this in a short job on a compute node" in found[1].remedy


def test_package_that_crashes_python_is_named(site, environment):
    environment.install("datasets", "4.0.0", "import os; os.kill(os.getpid(), 4)")
    (line,) = faults(site)

    assert "exit code -4 while datasets is imported" in line


def test_environment_that_hangs_is_given_up(site, environment, monkeypatch):
    monkeypatch.setattr("sft.doctor.environments.IMPORT_S", 1.0)
    environment.install("torch", "2.9.1", "import time; time.sleep(60)")
    (line,) = faults(site)

    assert "no answer in 1 s" in line


def test_pin_that_is_not_kept_is_a_fault(site):
    site.facts["environment_pins"] = {"otagent": "torch==2.9.1 transformers==5.3.0 flash-attn"}

    assert [line.split(" at here: ")[1].split(";")[0] for line in faults(site)] == [
        "transformers: found 5.6.0, expected ==5.3.0",
        "flash-attn: found none, expected any version",
    ]


def test_pin_that_is_no_requirement_is_a_fault(site):
    site.facts["environment_pins"] = {"otagent": "torch=2.9"}

    assert "found 'torch=2.9'" in faults(site)[0]


# GPUs


@pytest.mark.parametrize(
    ("torch", "verdict", "found"),
    [
        ({}, Verdict.FAULT, "a build for the CPU"),
        ({"cuda": "12.8"}, Verdict.UNCHECKED, "CUDA 12.8; there is no GPU on this host"),
        ({"cuda": "12.8", "gpus": 4}, Verdict.OK, "with CUDA 12.8 sees 4 GPUs"),
        (
            {"cuda": "12.8", "gpus": 4, "capability": (9, 0)},
            Verdict.FAULT,
            "no code for sm_90",
        ),
    ],
)
def test_torch_is_held_against_the_gpus(site, environment, torch, verdict, found):
    site.facts["gpus_per_node"] = 4
    environment.torch(**torch)
    _, check = checks(site)

    assert check.verdict == verdict
    assert found in check.found


@pytest.mark.parametrize(
    ("served", "capability", "runs"),
    [
        (["sm_80"], (8, 0), True),
        (["sm_80"], (8, 6), True),
        (["sm_86"], (8, 0), False),
        (["sm_80"], (9, 0), False),
        (["sm_90a"], (9, 0), True),
        (["compute_90"], (12, 0), True),
        (["compute_90"], (8, 0), False),
        (["sm_100", "sm_120"], (12, 1), True),
    ],
)
def test_code_runs_on_gpus_of_its_major_version(served, capability, runs):
    assert serves(served, *capability) == runs


# Compilers


@pytest.fixture
def offloading(site, environment) -> DoctorSite:
    """A site with a run that offloads its optimizer, and what DeepSpeed then needs."""
    site.base |= {"deepspeed": "ds_z3_optim_offload.json", "bf16": True}
    site.facts["variables"] = {"CC": "mygcc", "CXX": "myg++"}
    environment.install("deepspeed", "0.18.4")
    for name in ("mygcc", "myg++"):
        environment.command(name, f"echo '{name} (GCC) 14.3.0'")
    environment.command("ninja", "true")
    return site


def test_compilers_that_are_there_are_silent(offloading):
    assert faults(offloading) == []


def test_compiler_that_is_not_there_is_a_fault(offloading, environment):
    (environment.folder / "bin" / "myg++").unlink()
    (line,) = faults(offloading)

    assert "CXX=myg++: myg++ is not found, and run offloads its optimizer" in line


def test_compiler_of_nvidia_is_a_fault(offloading, environment):
    environment.command("mygcc", "echo; echo 'nvc 25.9-0 64-bit target on aarch64 Linux'")

    assert "CC=mygcc: " in faults(offloading)[0]


def test_missing_ninja_is_a_fault(offloading, environment):
    (environment.folder / "bin" / "ninja").unlink()
    line = f"{environment.line}; PATH={environment.folder}/bin"  # this host may have a ninja
    offloading.facts["environments"]["otagent"] = line

    assert "ninja is not found" in faults(offloading)[0]


def test_compilers_are_not_asked_for_where_nothing_is_offloaded(offloading, environment):
    (environment.folder / "bin" / "mygcc").unlink()
    offloading.base["deepspeed"] = "ds_z3.json"

    assert faults(offloading) == []
