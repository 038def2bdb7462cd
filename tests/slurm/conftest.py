"""One private Slurm for all tests of a run; after each test it is as at the start."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, missing
from tests.slurm.faults import check_row
from tests.slurm.project import Project, Run, make_project


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip this folder's tests where no cluster can be started; the reason is one line a file."""
    if reason := missing():
        for item in items:
            if item.path.is_relative_to(Path(__file__).parent):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def session_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster, with accounting. Its folder stays where a test failed: its log/ says more."""
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
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def session_project(session_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project whose tokens are made and whose rows are rendered, by jobs of the cluster."""
    project = make_project(tmp_path_factory.mktemp("project") / "p", session_cluster)
    rendered = [f"results/runs/{name}/train.yaml" for name in ("one", "two")]
    snakemake = project.snakemake(*rendered)
    text = snakemake.communicate(timeout=300)[0]
    assert snakemake.returncode == 0, text
    return project


@pytest.fixture
def project(session_project: Project, cluster: Cluster) -> Project:
    """The project, on a cluster that is put right after the test."""
    return session_project


@pytest.fixture
def new_run(project: Project, request: pytest.FixtureRequest) -> Iterator[Callable[..., Run]]:
    """A function that renders a run (see `Run.render`), named after the test."""
    runs: list[Run] = []

    def make(**changes: object) -> Run:
        name = request.node.name.removeprefix("test_").replace("[", "-").strip("]")[:60]
        run = Run(project, f"{name}-{len(runs)}").render(**changes)
        runs.append(run)
        return run

    yield make
    for run in runs:
        run.stop()


@pytest.fixture
def undisturbed_run(project: Project) -> Callable[..., Run]:
    """A function that gives a complete run like this that nothing disturbed."""

    def find(**changes: object) -> Run:
        key = repr(sorted(changes.items()))
        if key not in UNDISTURBED:
            run = Run(project, f"undisturbed-{len(UNDISTURBED)}").render(**changes)
            run.train()
            UNDISTURBED[key] = run
        return UNDISTURBED[key]

    return find


@pytest.fixture
def undisturbed(undisturbed_run: Callable[..., Run]) -> Callable[..., str]:
    """A function that gives the weights' hash of a run like this that nothing disturbed."""
    return lambda **changes: undisturbed_run(**changes).weights()


UNDISTURBED: dict[str, Run] = {}


@pytest.fixture
def table(request: pytest.FixtureRequest) -> Callable[[str, Run, str], None]:
    """A function that compares what happened to a run at a fault with docs/faults.md."""
    update = request.config.getoption("--update-golden")

    def check(fault: str, run: Run, happens: str) -> None:
        check_row(fault, run.endings(), happens, update)

    return check
