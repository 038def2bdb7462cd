"""A Postgres of the tests' own: Debian's programs, on loopback, as a user without rights."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

DEBIAN = Path("/usr/lib/postgresql")
USERS = ("postgres", "nobody")  # of whom one runs it where the tests belong to root
PASSWORD = "ThisPasswordNobodyMaySee"
START_S, STOP_S = 60.0, 30.0


def find_programs() -> Path | None:
    """The folder of the newest Postgres's programs; None where none is installed."""
    found = {path.parent for path in DEBIAN.glob("*/bin/initdb")}
    if there := shutil.which("initdb"):
        found.add(Path(there).resolve().parent)
    servers = [folder for folder in found if (folder / "postgres").exists()]
    return max(servers, key=lambda folder: folder.parent.name, default=None)


class Postgres:
    """A server that runs; each of its databases is dropped after use."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.folder, self.data = folder, folder / "data"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.user = _user_without_rights()
        self._initialize(programs / "initdb")
        self.log = folder / "postgres.log"
        self.process = self._start(programs / "postgres")

    def url(self, database: str, password: str = PASSWORD) -> str:
        """The URL of a database, as a user writes it."""
        return f"postgresql://sft:{password}@127.0.0.1:{self.port}/{database}"

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of an empty database."""
        name = f"sft_{uuid4().hex[:12]}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name}")
            yield self.url(name)
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def stop(self) -> None:
        """End the server: a fast shutdown, and SIGKILL to what does not end by it."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _initialize(self, initdb: Path) -> None:
        if self.user:
            os.chown(self.folder, self.user.pw_uid, self.user.pw_gid)
        words = self.folder / "password"
        words.write_text(PASSWORD)
        words.chmod(0o644)  # the server's user is another, and its folder is closed
        subprocess.run(
            self._as_user(
                *(initdb, "--pgdata", self.data, "--username", "sft", "--encoding", "UTF8"),
                *("--locale", "C", "--auth", "scram-sha-256", "--pwfile", words, "--no-sync"),
            ),
            check=True,
            capture_output=True,
            cwd=self.folder,
        )

    def _start(self, postgres: Path) -> subprocess.Popen:
        with open(self.log, "wb") as output:
            process = subprocess.Popen(
                self._as_user(
                    *(postgres, "-D", self.data, "-p", str(self.port), "-c", "fsync=off"),
                    *("-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="),
                    *("-c", "timezone=Asia/Tokyo"),  # what is written in UTC is UTC anywhere
                ),
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
            )
        deadline = time.monotonic() + START_S
        while process.poll() is None and time.monotonic() < deadline:
            with suppress(psycopg.OperationalError):
                psycopg.connect(self.url("postgres")).close()
                return process
            time.sleep(0.1)
        process.kill()
        process.wait()
        raise RuntimeError(f"Postgres does not start:\n{self.log.read_text()}")

    def _as_user(self, *command: str | Path) -> list[str | Path]:
        """The command as a user without rights; it ends with the process that starts it."""
        prefix = ["setpriv", "--pdeathsig", "INT"]
        if self.user:
            prefix += ["--reuid", self.user.pw_name, "--regid", str(self.user.pw_gid)]
            prefix += ["--clear-groups"]
        return [*prefix, *command]


def _user_without_rights() -> pwd.struct_passwd | None:
    """Another user where this process belongs to root, to whom Postgres says no."""
    if os.getuid() != 0:
        return None
    users = {each.pw_name: each for each in pwd.getpwall()}
    return next(users[name] for name in USERS if name in users)


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A server of its own, stopped at the end, its folder removed; a skip where none is installed.

    The folder is not below pytest's own, which is closed to all but the user who runs the tests.
    """
    programs = find_programs()
    if programs is None:
        pytest.skip("no Postgres here: apt-get install postgresql, or `make postgres` as root")
    with tempfile.TemporaryDirectory(prefix="sft-postgres-") as folder:
        server = Postgres(programs, Path(folder))
        try:
            yield server
        finally:
            server.stop()
