"""Run a step where it reaches the network: through the command that the site's users have."""

import os
import re
import shlex
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

from sft.errors import SftError
from sft.site import Site
from sft.step import log

_MARK = "SFT_BEHIND_PREFIX"
BYTES_PER_S = 25e6  # a guess at a slow way; 131 GB have taken 4 minutes on a good one


def enter_network(site: Site, bytes_to_send: float = 0) -> None:
    """Start this process again behind the site's network prefix (a proxy, a tunnel), if it has one.

    To be called first by a script that needs the network. Raises SftError where the prefix is no
    command, and where the tunnel's certificate would end before `bytes_to_send` have passed.
    """
    if site.network_prefix and _MARK not in os.environ:
        if site.tunnel_credential:
            _check_certificate(site, timedelta(seconds=bytes_to_send / BYTES_PER_S))
        os.environ[_MARK] = "1"
        command = [*shlex.split(site.network_prefix), sys.executable, *sys.argv]
        try:
            os.execvp(command[0], command)
        except OSError as error:
            raise SftError(
                f"profiles/{site.name}/config.yaml, network_prefix: {command[0]!r} does not start: "
                f"{error.strerror}; correct it, or leave it out where the network is open"
            ) from error


def read_validity(shown: str) -> tuple[datetime | None, datetime | None]:
    """From when and until when a certificate is valid, as `ssh-keygen -L` shows it, in local time.

    None stands for no limit.
    """
    valid = re.search(r"Valid: (?:from (\S+) to (\S+)|after (\S+)|before (\S+)|forever)", shown)
    times = valid[1] or valid[3], valid[2] or valid[4]
    start, end = (time and datetime.fromisoformat(time) for time in times)
    return start, end


def _check_certificate(site: Site, needed: timedelta) -> None:
    """Refuse a certificate that is not valid now, or not for long enough."""
    where = f"profiles/{site.name}/config.yaml, tunnel_credential: {site.tunnel_credential}"
    if not Path(site.tunnel_credential).is_file():
        raise SftError(f"{where}: no such file; get a certificate from the site, or correct it")
    try:
        shown = subprocess.run(
            ["ssh-keygen", "-L", "-f", site.tunnel_credential],
            env={name: os.environ[name] for name in ("PATH", "TZ") if name in os.environ},
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        log.info("%s: not checked, there is no ssh-keygen here", where)
        return
    if shown.returncode:
        raise SftError(f"{where}: not a certificate; name that (…-cert.pub), not the key")
    start, end = read_validity(shown.stdout)
    now = datetime.now()
    if start and start > now:
        raise SftError(f"{where}: valid only from {start} on; renew it, then run again")
    if end and end < now + needed:
        minutes = needed.total_seconds() / 60
        raise SftError(
            f"{where}: valid until {end}, needed for {minutes:.0f} minutes from {now:%F %T} on; "
            "renew it, then run again: nothing was sent"
        )
