"""One private Slurm for all tests of a run; after each test it is as at the start."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, missing


@pytest.fixture(scope="session")
def session_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster, with accounting. Its folder stays where a test failed: its log/ says more."""
    if reason := missing():
        pytest.skip(reason)
    # Not pytest's own folder: the paths of sockets have to be short.
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    cluster = Cluster.start(folder)
    try:
        yield cluster
    finally:
        cluster.stop()
        if not request.session.testsfailed:
            shutil.rmtree(folder)


@pytest.fixture
def cluster(session_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with idle nodes; what a test leaves or stops in it is put right after it."""
    yield session_cluster
    session_cluster.clean()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A new folder whose path is short enough for a cluster of the test's own."""
    if reason := missing():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp") as folder:
        yield Path(folder)
