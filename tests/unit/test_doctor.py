"""The doctor as people call it: what a profile, a table, a shell and a checkout tell."""

import http.server
import importlib.metadata
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from sft.doctor import Check, Printer, Verdict, has_fault, run_doctor, sum_up
from sft.doctor.host import judge_certificate
from sft.errors import SftError
from sft.hub_token import token_origins
from tests.unit.certificates import make_certificate
from tests.unit.doctoring import LOCAL, SLURM, DoctorSite

TOKEN_VARIABLES = (
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "XDG_CACHE_HOME"),
    *("HF_ENDPOINT", "SFT_REGISTRY_URL"),
)


@pytest.fixture
def site(tmp_path, monkeypatch) -> DoctorSite:
    """A site that trains on this computer, and a home without a token."""
    monkeypatch.chdir(tmp_path)
    for name in TOKEN_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    # Its environment is no environment: that of the tests starts it, and finds no torch.
    monkeypatch.setattr("sft.doctor.check_environments", lambda catalog: iter(()))
    return DoctorSite(LOCAL)


@pytest.fixture
def slurm_site(site) -> DoctorSite:
    """A site with Slurm, which is not asked here."""
    site.profile = DoctorSite.copy_of(SLURM)
    return site


@pytest.fixture(autouse=True)
def silent_slurm(monkeypatch):
    monkeypatch.setattr("sft.doctor.check_slurm", lambda *asked: iter(()))


# How it is shown


def test_checks_are_printed_one_a_line_below_their_area(capsys):
    printer = Printer()
    printer(Check("slurm", "accounts", Verdict.OK, "yours are lab"))
    printer(Check("slurm", "wall", Verdict.FAULT, "found\n  3000", "lower it"))

    assert capsys.readouterr().out.splitlines() == [
        "slurm",
        "  ok           accounts: yours are lab",
        "  fault        wall: found 3000; lower it",
    ]


def test_sum_counts_each_verdict():
    checks = [Check("a", "b", verdict, "") for verdict in Verdict] + [
        Check("a", "b", Verdict.WARNING, "")
    ]

    assert sum_up(checks) == "1 fault, 2 warnings, 1 not checked, 1 ok"


@pytest.mark.parametrize("verdict", [Verdict.OK, Verdict.WARNING, Verdict.UNCHECKED])
def test_only_a_fault_is_one(verdict):
    assert not has_fault([Check("a", "b", verdict, "")])


def test_whole_site_without_a_fault_has_none(site):
    assert [check.line for check in site.check() if check.verdict == Verdict.FAULT] == []


def test_doctor_leaves_no_file_behind(site):
    site.check()
    before = sorted(Path().rglob("*"))
    site.check()

    assert sorted(Path().rglob("*")) == before


# The profile


def test_missing_profile_is_refused(site):
    site.check()
    with pytest.raises(SftError, match="no such file"):
        run_doctor(Path("profiles/elsewhere.yaml"), [], print)


def test_placeholders_are_named_in_facts_and_resources(slurm_site):
    slurm_site.facts["hf_home"] = "/project/FILL_IN/hf"
    slurm_site.profile["default-resources"]["slurm_account"] = "FILL_IN"
    check = slurm_site.only("placeholders")

    assert check.verdict == Verdict.FAULT
    assert "hf_home, default-resources.slurm_account" in check.found
    assert "profiles/here/config.yaml" in check.remedy


def test_folder_that_is_to_be_filled_in_is_not_checked(site):
    site.facts["hf_home"] = "/project/FILL_IN/hf"

    assert site.only("hf_home").verdict == Verdict.UNCHECKED


def test_unknown_key_stops_the_checks_with_its_line(site):
    site.facts["gpu_per_node"] = 4
    first, last = site.check()

    assert "gpu_per_node" in first.subject
    assert (first.verdict, last.verdict) == (Verdict.FAULT, Verdict.UNCHECKED)


def test_results_on_scratch_stop_the_checks(site, tmp_path):
    site.facts.update({"scratch_folder": str(tmp_path), "pathvars": {"results": f"{tmp_path}/r"}})
    first, _ = site.check()

    assert "what is there is purged" in first.line


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        ("slurm-status-command", None, "found nothing, expected squeue"),
        ("slurm-no-requeue", False, "found False, expected true"),
        ("slurm-keep-successful-logs", None, "found nothing, expected true"),
        ("cores", 10, "found 10, with jobs: 200"),
        ("executor", None, "found none, and launcher: slurm"),
    ],
)
def test_setting_of_the_executor_that_costs_jobs_is_a_warning(slurm_site, key, value, found):
    slurm_site.profile[key] = value
    if value is None:
        del slurm_site.profile[key]
    check = slurm_site.only(key)

    assert check.verdict == Verdict.WARNING
    assert found in check.found


def test_good_settings_of_the_executor_are_silent(slurm_site):
    assert [check.subject for check in slurm_site.check() if check.area == "profile"] == [
        "placeholders"
    ]


@pytest.mark.parametrize(
    ("facts", "subject", "verdict"),
    [
        ({"login_internet": False}, "network_on", Verdict.FAULT),
        ({"login_minutes": 1.3}, "network_on", Verdict.WARNING),
        ({"network_on": "batch", "compute_internet": False}, "network_prefix", Verdict.FAULT),
        ({"tunnel": True}, "network_prefix", Verdict.FAULT),
        ({"compute_internet": False, "wandb_mode": "online"}, "wandb_mode", Verdict.FAULT),
    ],
)
def test_facts_of_the_network_that_contradict_each_other_are_told(site, facts, subject, verdict):
    site.facts.update(facts)

    assert site.only(subject).verdict == verdict


# The table


def test_fault_of_a_row_is_told_and_the_checks_go_on(site):
    site.rows[0]["num_nodes"] = "9"
    checks = site.check()

    assert any("num_nodes: found 9" in check.line for check in checks)
    assert any(check.area == "folders" for check in checks)


def test_request_that_no_qos_starts_is_told(slurm_site):
    slurm_site.facts["max_minutes"] = 720
    lines = [check.line for check in slurm_site.check() if check.area == "experiments"]

    assert any("runtime: found 1439 minutes, expected at most 720" in line for line in lines)


def test_site_without_a_row_is_a_warning(site):
    site.rows[0]["sites"] = "there"
    site.write("profiles/there/config.yaml", {})

    assert site.only("table").line.startswith("warning")


# Secrets


@pytest.fixture
def hub_site(site) -> DoctorSite:
    site.rows[0]["model"] = "big"
    return site


def test_token_is_told_by_its_place_and_never_shown(hub_site, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    checks = hub_site.check()

    assert "from the variable HF_TOKEN" in next(c.found for c in checks if c.subject == "HF_TOKEN")
    assert not [check for check in checks if "hf_secret" in check.line]


def test_token_of_the_shell_is_said_to_hide_that_of_the_file(hub_site, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_stale")
    hub_site.write("home/.cache/huggingface/token", {"hf": "new"})

    assert "which hides that of the file" in hub_site.only("HF_TOKEN").found


@pytest.mark.parametrize(
    ("variable", "place"),
    [("HF_TOKEN_PATH", "own/token"), ("HF_HOME", "own"), ("XDG_CACHE_HOME", "cache")],
)
def test_token_file_is_found_where_the_hub_client_looks(
    site, monkeypatch, tmp_path, variable, place
):
    monkeypatch.setenv(variable, str(tmp_path / place))
    file = {"own/token": "own/token", "own": "own/token", "cache": "cache/huggingface/token"}[place]
    site.write(file, {"hf": "token"})

    assert token_origins() == [f"the file {tmp_path / file}"]


def test_no_token_is_no_fault_for_public_models(hub_site):
    check = hub_site.only("HF_TOKEN")

    assert (check.verdict, check.remedy) == (
        *(Verdict.OK, "for gated or private ones export HF_TOKEN"),
    )


def test_no_token_is_a_fault_where_releases_go_to_the_hub(site):
    site.config["upload_to"] = "hub"
    check = site.only("HF_TOKEN")

    assert check.verdict == Verdict.FAULT
    assert "a token that may write" in check.remedy


def test_token_is_told_where_releases_go_to_the_hub(site, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    site.config["upload_to"] = "hub"

    assert site.only("HF_TOKEN").found == "from the variable HF_TOKEN"


def test_local_models_ask_for_no_token(site):
    assert site.found("HF_TOKEN") == []


def test_registry_that_is_no_url_is_a_fault_and_never_shown(site, monkeypatch):
    site.rows[0]["register"] = "true"
    monkeypatch.setenv("SFT_REGISTRY_URL", "secret@host/db")
    check = site.only("SFT_REGISTRY_URL")

    assert check.verdict == Verdict.FAULT
    assert "secret" not in check.line


# This host and this checkout


def test_other_architecture_of_a_login_node_is_a_warning(slurm_site, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    slurm_site.facts["arch"] = "aarch64"
    check = slurm_site.only("arch")

    assert check.verdict == Verdict.WARNING
    assert "x86_64 here, aarch64 in the profile" in check.found


def test_short_life_on_a_login_node_names_the_way_out(site):
    site.facts.update({"login_minutes": 1.3, "network_on": "batch"})

    assert "python -m sft drive" in site.only("login_minutes").remedy


def test_packages_of_the_workflow_are_compared_with_pyproject(site, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.1")
    check = site.only("packages")

    assert check.verdict == Verdict.FAULT
    assert "snakemake: found 0.1, expected <10,>=9.27" in check.found


def test_newer_snakemake_that_is_not_released_yet_is_taken(site, monkeypatch):
    true_version = importlib.metadata.version
    versions = {"snakemake": "9.28.0rc1"}
    monkeypatch.setattr(
        "importlib.metadata.version", lambda name: versions.get(name) or true_version(name)
    )

    assert site.only("packages").verdict == Verdict.OK


def test_checkout_without_git_is_not_checked(site, monkeypatch, tmp_path):
    monkeypatch.setattr("sft.doctor.host.git_state", lambda folder: {"commit": None, "dirty": None})

    assert site.only("commit").verdict == Verdict.UNCHECKED


def test_host_without_processes_left_for_git_is_told(site, monkeypatch):
    def fail(folder: Path) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("sft.doctor.host.git_state", fail)

    assert "Resource temporarily unavailable" in site.only("git").found


def test_changed_checkout_is_a_warning(site, monkeypatch):
    state = {"commit": "a" * 40, "dirty": True}
    monkeypatch.setattr("sft.doctor.host.git_state", lambda folder: state)

    assert site.only("commit").line.startswith("warning      commit: aaaaaaaaaaaa with changes")


def test_changed_checkout_is_a_fault_where_the_site_asks_for_clean_code(site, monkeypatch):
    state = {"commit": "a" * 40, "dirty": True, "pushed": True}
    monkeypatch.setattr("sft.doctor.host.git_state", lambda folder: state)
    site.facts["require_clean_git"] = True

    check = site.only("commit")

    assert check.verdict == Verdict.FAULT
    assert check.found.startswith("require_clean_git: aaaaaaaaaaaa with changes; commit them")


# The tunnel


@pytest.mark.parametrize(
    ("validity", "verdict", "found"),
    [
        ("-1h:+12h", Verdict.OK, "valid until"),
        ("-1h:+30m", Verdict.WARNING, "which an upload may outlast"),
        ("-2h:-1h", Verdict.FAULT, "expired at"),
        ("+1h:+2h", Verdict.FAULT, "valid only from"),
        ("always:forever", Verdict.OK, "valid for ever"),
        ("-1h:forever", Verdict.OK, "valid for ever"),
        ("always:-1h", Verdict.FAULT, "expired at"),
    ],
)
def test_certificate_of_the_tunnel_is_judged_by_its_end(site, tmp_path, validity, verdict, found):
    site.facts["tunnel_credential"] = str(make_certificate(tmp_path, validity))
    check = site.only("tunnel_credential")

    assert check.verdict == verdict
    assert found in check.found


def test_key_instead_of_its_certificate_is_a_fault(site, tmp_path):
    make_certificate(tmp_path, "+1d")
    site.facts["tunnel_credential"] = str(tmp_path / "user.pub")
    check = site.only("tunnel_credential")

    assert check.verdict == Verdict.FAULT
    assert "is not a certificate" in check.found


def test_certificate_that_is_not_there_is_a_fault(site):
    site.facts["tunnel_credential"] = "/nowhere/id-cert.pub"

    assert site.only("tunnel_credential").line.startswith("fault")


def test_hour_before_its_end_is_where_a_certificate_becomes_short():
    end = datetime(2026, 1, 1, 12)
    shown = f"        Valid: from 2026-01-01T00:00:00 to {end:%Y-%m-%dT%H:%M:%S}\n"
    verdicts = [
        judge_certificate(Path("c"), shown, end - timedelta(minutes=left)).verdict
        for left in (60, 59, 0)
    ]

    assert verdicts == [Verdict.OK, Verdict.WARNING, Verdict.FAULT]


# The network, which is asked only with --network


class _Hub(http.server.BaseHTTPRequestHandler):
    """A hub that knows one token."""

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_GET(self) -> None:
        known = self.headers["Authorization"] == "Bearer hf_good"
        self.send_response(200 if known and self.path == "/api/whoami-v2" else 401)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch) -> Iterator[None]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hub) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("no_proxy", "*")
        yield
        server.shutdown()


def test_hub_is_not_asked_unless_it_is_wanted(hub_site):
    assert hub_site.only("hub").verdict == Verdict.UNCHECKED


def test_hub_that_is_reached_is_told(hub_site, hub):
    assert hub_site.only("hub", network=True).verdict == Verdict.OK


def test_hub_that_is_not_reached_is_a_fault(hub_site, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "*")
    check = hub_site.only("hub", network=True)

    assert check.verdict == Verdict.FAULT
    assert "Connection refused" in check.found


def test_endpoint_that_is_no_url_is_a_fault(hub_site, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "huggingface.co")

    assert "unknown url type" in hub_site.only("hub", network=True).found


@pytest.mark.parametrize(
    ("token", "verdict"), [("hf_good", Verdict.OK), ("hf_stale", Verdict.FAULT)]
)
def test_token_is_tried(hub_site, hub, monkeypatch, token, verdict):
    monkeypatch.setenv("HF_TOKEN", token)
    _, check = hub_site.found("HF_TOKEN", network=True)

    assert check.verdict == verdict
    assert token not in check.line


def test_login_node_without_internet_asks_nobody(hub_site, hub):
    hub_site.facts.update({"login_internet": False, "network_on": "batch"})

    assert hub_site.found("hub", network=True) == []
