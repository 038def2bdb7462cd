"""SSH certificates as the authority of a site makes them."""

import subprocess
from pathlib import Path


def make_certificate(folder: Path, validity: str) -> Path:
    """A certificate of a user, made as a site's authority makes it."""
    for name in ("authority", "user"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True)
    subprocess.run(
        [
            *("ssh-keygen", "-q", "-s", str(folder / "authority"), "-I", "me", "-n", "me"),
            *("-V", validity, str(folder / "user.pub")),
        ],
        check=True,
    )
    return folder / "user-cert.pub"
