"""Run a step where it reaches the network: through the command that the site's users have."""

import os
import shlex
import sys

from sft.errors import SftError
from sft.site import Site

_MARK = "SFT_BEHIND_PREFIX"


def enter_network(site: Site) -> None:
    """Start this process again behind the site's network prefix (a proxy, a tunnel), if it has one.

    To be called first by a script that needs the network. Raises SftError where the prefix is no
    command.
    """
    if site.network_prefix and _MARK not in os.environ:
        os.environ[_MARK] = "1"
        command = [*shlex.split(site.network_prefix), sys.executable, *sys.argv]
        try:
            os.execvp(command[0], command)
        except OSError as error:
            raise SftError(
                f"profiles/{site.name}/config.yaml, network_prefix: {command[0]!r} does not start: "
                f"{error.strerror}; correct it, or leave it out where the network is open"
            ) from error
