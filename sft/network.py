"""Run a step where it reaches the network: through the command that the site's users have."""

import os
import shlex
import sys

from sft.site import Site

_MARK = "SFT_BEHIND_PREFIX"


def enter_network(site: Site) -> None:
    """Start this process again behind the site's network prefix (a proxy, a tunnel), if it has one.

    To be called first by a script that needs the network.
    """
    if site.network_prefix and _MARK not in os.environ:
        os.environ[_MARK] = "1"
        command = [*shlex.split(site.network_prefix), sys.executable, *sys.argv]
        os.execvp(command[0], command)
