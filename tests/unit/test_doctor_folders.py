"""Folders and their file systems, as true ones as a test can make."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from sft.doctor import Check, Verdict
from sft.doctor.folders import Mount, check_folder, check_sight, mount_of, parse_mount
from sft.files import write_json
from tests.unit.doctoring import LOCAL, DoctorSite
from tests.unit.planning import DELPHI_CONFIG, write_receipt

LUSTRE = Mount(Path("/"), "lustre", "rw,flock")
EXT4 = Mount(Path("/"), "ext4", "rw")
TB = 10**12


def check(path: Path, mount: Mount = LUSTRE, shared: bool = True) -> Check:
    return check_folder("results", path, [mount], shared)


def room(**changed: int) -> SimpleNamespace:
    """The numbers of a file system with plenty of room."""
    usual = {"f_frsize": 4096, "f_blocks": 10**9, "f_bavail": 10**9 // 2}
    return SimpleNamespace(**usual | {"f_files": 10**6, "f_favail": 10**6 // 2} | changed)


@pytest.fixture
def site(tmp_path, monkeypatch) -> DoctorSite:
    """A site whose folders alone are looked at."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sft.doctor.check_environments", lambda catalog: iter(()))
    monkeypatch.setattr("sft.doctor.check_slurm", lambda *asked: iter(()))
    return DoctorSite(LOCAL)


def refuse(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let the next write of a probe fail so, as a quota or a read-only mount lets it."""

    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.fsync", fail)


def test_writable_folder_with_room_is_good(tmp_path):
    found = check(tmp_path)

    assert found.verdict == Verdict.OK
    assert f"{tmp_path}, on lustre, " in found.found
    assert found.found.endswith("file locks work")


def test_probe_leaves_nothing(tmp_path):
    check(tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_folder_that_can_be_made_is_not_made(tmp_path):
    found = check(tmp_path / "a" / "b")

    assert f"to be made below {tmp_path}" in found.found
    assert not (tmp_path / "a").exists()


def test_file_in_the_way_is_a_fault(tmp_path):
    (tmp_path / "file").touch()
    found = check(tmp_path / "file" / "results")

    assert found.verdict == Verdict.FAULT
    assert "a file is in the way" in found.remedy


def test_link_to_what_is_gone_is_a_fault(tmp_path):
    (tmp_path / "results").symlink_to(tmp_path / "purged")
    found = check(tmp_path / "results")

    assert found.verdict == Verdict.FAULT
    assert f"a link to {tmp_path}/purged, which is not there" in found.found


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EACCES, "a folder of your own"),
        (errno.EROFS, "mounted read-only"),
        (errno.ENOSPC, "are used up"),
        (errno.EDQUOT, "your quota is used up"),
        (errno.EIO, "the site's support"),
    ],
)
def test_write_that_fails_is_a_fault_with_its_remedy(tmp_path, monkeypatch, number, remedy):
    refuse(monkeypatch, number)
    found = check(tmp_path)

    assert found.verdict == Verdict.FAULT
    assert os.strerror(number) in found.found
    assert remedy in found.remedy


def test_file_system_without_locks_is_a_warning(tmp_path, monkeypatch):
    def fail(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", fail)
    found = check(tmp_path)

    assert found.verdict == Verdict.WARNING
    assert "no file locks (No locks available)" in found.found


def test_locks_of_one_host_alone_are_told(tmp_path):
    found = check(tmp_path, Mount(Path("/"), "lustre", "rw,localflock"))

    assert "count on this host alone" in found.found


@pytest.mark.parametrize(
    ("changed", "remedy"),
    [
        ({"f_bavail": 10**9 // 25}, "it is nearly full"),
        ({"f_favail": 10**6 // 25}, "delete small files"),
    ],
)
def test_nearly_full_file_system_is_a_warning(tmp_path, monkeypatch, changed, remedy):
    monkeypatch.setattr("os.statvfs", lambda path: room(**changed))
    found = check(tmp_path)

    assert found.verdict == Verdict.WARNING
    assert remedy in found.remedy


def test_file_system_that_counts_no_files_is_not_full_of_them(tmp_path, monkeypatch):
    monkeypatch.setattr("os.statvfs", lambda path: room(f_files=0, f_favail=0))
    found = check(tmp_path)

    assert found.verdict == Verdict.OK
    assert "files free" not in found.found


def test_local_disk_is_a_warning_where_jobs_run_on_other_nodes(tmp_path):
    assert check(tmp_path, EXT4).verdict == Verdict.WARNING
    assert check(tmp_path, EXT4, shared=False).verdict == Verdict.OK


def test_local_disk_is_told_where_jobs_start_from_it(tmp_path):
    assert check_sight("checkout", tmp_path, [EXT4]).verdict == Verdict.WARNING
    assert check_sight("checkout", tmp_path, [LUSTRE]).verdict == Verdict.OK


def test_memory_disk_below_a_shared_root_is_seen(tmp_path):
    mounts = [LUSTRE, Mount(tmp_path, "tmpfs", "rw")]

    assert check_folder("results", tmp_path / "r", mounts, True).verdict == Verdict.WARNING


def test_mount_with_a_space_in_its_name_is_read():
    line = r"36 35 98:0 /a /mnt/my\040disk rw,noatime master:1 shared:2 - nfs4 host:/a rw,vers=4.2"

    assert parse_mount(line + "\n") == Mount(Path("/mnt/my disk"), "nfs4", "rw,vers=4.2")


def test_later_mount_on_the_same_point_hides_the_first():
    mounts = [Mount(Path("/"), "rootfs", "rw"), Mount(Path("/"), "overlay", "rw")]

    assert mount_of(Path("/somewhere"), mounts).kind == "overlay"


def test_folder_with_a_longer_name_is_not_on_the_mount():
    mounts = [LUSTRE, Mount(Path("/data"), "nfs", "rw")]

    assert mount_of(Path("/database"), mounts).kind == "lustre"


def test_folder_out_of_sight_is_looked_at_from_the_nearest_that_is_not(tmp_path, monkeypatch):
    hidden = tmp_path / "closed" / "results"
    true_stat = os.stat

    def stat(path, *args, **kwargs):
        if str(path) == str(hidden):
            raise PermissionError(errno.EACCES, "Permission denied")
        return true_stat(path, *args, **kwargs)

    hidden.parent.mkdir()
    monkeypatch.setattr("os.stat", stat)

    assert f"to be made below {hidden.parent}" in check(hidden).found


# Of a site


def test_scratch_that_is_not_there_guards_nothing(site):
    site.facts["scratch_folder"] = "/nowhere"

    assert site.only("scratch_folder").verdict == Verdict.WARNING


def test_hub_cache_on_scratch_is_a_warning(site, tmp_path):
    (tmp_path / "scratch").mkdir()
    scratch = tmp_path / "scratch"
    site.facts.update({"scratch_folder": str(scratch), "hf_home": f"{scratch}/hf"})
    checks = site.found("hf_home")

    assert [each.verdict for each in checks] == [Verdict.OK, Verdict.WARNING]


def test_long_folder_for_sockets_is_a_fault(site, monkeypatch, tmp_path):
    folder = tmp_path / ("x" * 68)
    folder.mkdir()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(folder))
    found = site.only("TMPDIR")

    assert found.verdict == Verdict.FAULT
    assert "expected at most 68" in found.found


@pytest.mark.parametrize(("length", "verdict"), [(68, Verdict.OK), (69, Verdict.FAULT)])
def test_forty_bytes_are_left_for_the_names_of_sockets(site, monkeypatch, length, verdict):
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/" + "x" * (length - 1))

    assert site.only("TMPDIR").verdict == verdict


def test_tmpdir_that_is_not_there_is_a_warning(site, monkeypatch):
    monkeypatch.setenv("TMPDIR", "/nowhere")

    assert site.only("TMPDIR").found == "/nowhere is no folder here"


def test_receipt_that_is_cut_short_is_a_fault_and_the_checks_go_on(site):
    Path("results/datasets/chats").mkdir(parents=True)
    Path("results/datasets/chats/fetched.json").write_text('{"made": {')
    checks = site.found("results")

    assert [each.verdict for each in checks] == [Verdict.OK, Verdict.FAULT]
    assert site.found("TMPDIR")


def fill_model(site: DoctorSite) -> None:
    """Give the model a size: 9.7B parameters."""
    write_json(Path("small/config.json"), DELPHI_CONFIG)
    site.base |= {"save_steps": 100, "save_total_limit": 2}


@pytest.mark.parametrize(("free", "verdict"), [(TB, Verdict.OK), (TB // 10, Verdict.WARNING)])
def test_room_for_the_checkpoints_of_all_runs_is_compared(site, monkeypatch, free, verdict):
    fill_model(site)
    monkeypatch.setattr("os.statvfs", lambda path: room(f_frsize=1, f_blocks=TB, f_bavail=free))
    found = site.only("checkpoints")

    assert found.verdict == verdict
    assert found.found.startswith("1 of 1 runs that are not complete write up to 389 GB")


def test_complete_run_needs_no_room(site):
    fill_model(site)
    write_receipt(Path("results/runs/run/trained.json"), {})

    assert site.found("checkpoints") == []


def test_model_that_is_not_here_yet_is_left_out_of_the_room(site):
    site.rows.append({"name": "other", "model": "big", "num_nodes": "1"})
    fill_model(site)

    assert site.only("checkpoints").found.startswith("1 of 2 runs")


def test_temporary_files_are_compared_with_tmp_of_a_node(site):
    Path("chats.jsonl").write_text("x" * 10**6)
    site.profile["executor"] = "slurm"
    site.facts.update({"launcher": "slurm", "tmp_gb": 0.001})
    found = site.only("temporary files")

    assert found.verdict == Verdict.WARNING
    assert "chats is 1 MB and may spill 3 MB; /tmp of a compute node (tmp_gb) has 1 MB" in (
        found.found
    )


def test_unknown_tmp_of_a_node_is_not_checked(site):
    site.profile["executor"] = "slurm"
    site.facts["launcher"] = "slurm"

    assert site.only("temporary files").verdict == Verdict.UNCHECKED


def test_spill_folder_with_room_is_good(site, tmp_path):
    site.facts.update({"launcher": "slurm", "tmp_gb": 1e-9, "spill_folder": str(tmp_path)})

    assert site.only("temporary files").verdict == Verdict.OK


def test_size_of_a_fetched_dataset_comes_from_its_receipt(site):
    write_receipt(
        Path("results/datasets/chats/fetched.json"),
        {"files": [{"path": "a", "size": 4 * 10**9}, {"path": "b", "size": 10**9}]},
    )

    assert "chats is 5 GB and may spill 15 GB" in site.only("temporary files").found
