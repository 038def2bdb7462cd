"""A step that needs the network is started again behind the site's prefix, once."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sft.errors import SftError
from sft.network import enter_network
from sft.site import Site
from tests.unit.certificates import make_certificate

SCRIPT = """
import os, sys
from sft.network import enter_network
from sft.site import Site
print("started", flush=True)
enter_network(Site("here", network_prefix=sys.argv[1]))
print("behind", os.environ.get("PROXY"))
"""


def lines(folder: Path, prefix: str) -> list[str]:
    """What a step prints that is a script file, as Snakemake makes one."""
    (folder / "step.py").write_text(SCRIPT)
    command = [sys.executable, folder / "step.py", prefix]
    return subprocess.run(command, capture_output=True, text=True).stdout.splitlines()


def test_step_without_a_prefix_goes_on_where_it_is(tmp_path):
    assert lines(tmp_path, "") == ["started", "behind None"]


def test_step_is_started_again_behind_the_prefix(tmp_path):
    assert lines(tmp_path, "env PROXY=tunnel") == ["started", "started", "behind tunnel"]


def test_prefix_that_is_no_command_is_named(monkeypatch):
    monkeypatch.delenv("SFT_BEHIND_PREFIX", raising=False)
    monkeypatch.setattr("os.environ", {"PATH": "/nowhere"})
    with pytest.raises(SftError, match=r"network_prefix: 'proxychains9' does not start"):
        enter_network(Site("here", network_prefix="proxychains9 -q"))


# The tunnel's certificate


def tunnel(folder: Path, validity: str) -> Site:
    """A site whose prefix is no command: it is refused where its certificate is not."""
    return Site(
        "here",
        network_prefix="proxychains9 -q",
        tunnel_credential=str(make_certificate(folder, validity)),
    )


@pytest.fixture
def outside(monkeypatch) -> None:
    monkeypatch.delenv("SFT_BEHIND_PREFIX", raising=False)


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize(
    ("validity", "gigabytes", "found"),
    [
        ("-1h:+30m", 100, "valid until .*, needed for 67 minutes from .*nothing was sent"),
        ("-2h:-1h", 0, "valid until .*, needed for 0 minutes from"),
        ("+1h:+2h", 0, "valid only from .*; renew it, then run again"),
        ("-1h:+2h", 100, "'proxychains9' does not start"),
        ("-1h:+30m", 10, "'proxychains9' does not start"),
        ("always:forever", 1000, "'proxychains9' does not start"),
    ],
)
def test_certificate_has_to_outlast_what_is_sent(tmp_path, validity, gigabytes, found):
    with pytest.raises(SftError, match=rf"profiles/here/config.yaml, .*{found}"):
        enter_network(tunnel(tmp_path, validity), gigabytes * 1e9)


@pytest.mark.usefixtures("outside")
def test_key_instead_of_its_certificate_is_refused(tmp_path):
    site = replace(tunnel(tmp_path, "+1d"), tunnel_credential=str(tmp_path / "user.pub"))
    with pytest.raises(SftError, match=r"tunnel_credential: .*user.pub: not a certificate"):
        enter_network(site)


@pytest.mark.usefixtures("outside")
def test_certificate_that_is_not_there_is_refused():
    site = Site("here", network_prefix="true", tunnel_credential="/nowhere/id-cert.pub")
    with pytest.raises(SftError, match=r"/nowhere/id-cert\.pub: no such file"):
        enter_network(site)


def test_step_behind_the_prefix_does_not_look_at_the_certificate(monkeypatch):
    monkeypatch.setenv("SFT_BEHIND_PREFIX", "1")
    site = Site("here", network_prefix="true", tunnel_credential="/nowhere/id-cert.pub")
    enter_network(site, 1e12)
