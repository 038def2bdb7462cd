"""The registry on a real SQLite file, on a real Postgres, and there in tables that a team made."""

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from threading import Barrier

import psycopg
import pytest
import sqlalchemy as sa

from sft.registry import DatasetRow, Registration, RegistryError, list_models, register
from tests.postgres import PASSWORD, Postgres, running_postgres

TEAM_SQL = Path(__file__).parents[1] / "data" / "team_registry.sql"
START = datetime(2026, 3, 1, 8, 30, tzinfo=UTC)


def dataset(name: str, created_by: str = "laion") -> DatasetRow:
    return DatasetRow(name, f"https://hub/{name}", created_by, {"rows": 10}, "a" * 64, "b" * 40, 10)


REGISTRATION = Registration(
    name="laion/agent-8b",
    base_model="Qwen/Qwen3-8B",
    declare_base=True,
    datasets=(dataset("laion/traces"),),
    agent_name="traces",
    created_by="laion",
    creation_location="leonardo",
    weights_location="https://hub/laion/agent-8b",
    training_start=START,
    training_end=START + timedelta(hours=5),
    training_parameters={"config_blob": "https://hub/config.json", "hf_repo": "laion/agent-8b"},
)
MIX = replace(REGISTRATION, datasets=(dataset("laion/b"), dataset("laion/a")))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres", "team"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty registry: a new SQLite file, a new database, or one with a team's own tables."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/registry.db"
        return
    with request.getfixturevalue("postgres").database() as empty:
        if request.param == "team":
            execute(empty, TEAM_SQL.read_text())
        yield empty


@pytest.fixture
def team(postgres: Postgres) -> Iterator[str]:
    """A Postgres with the tables of a team."""
    with postgres.database() as empty:
        execute(empty, TEAM_SQL.read_text())
        yield empty


@pytest.fixture
def old_team(team: str) -> str:
    """The same from before a model could have several datasets."""
    execute(team, "ALTER TABLE models DROP COLUMN dataset_names")
    return team


def execute(url: str, statements: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(statements)


@pytest.fixture
def sqlite_file(tmp_path: Path) -> Path:
    return tmp_path / "team.db"


def rows(url: str, table: str) -> list[dict]:
    backend = "postgresql+psycopg" if url.startswith("postgres") else "sqlite"
    engine = sa.create_engine(sa.make_url(url).set(drivername=backend), poolclass=sa.NullPool)
    with engine.connect() as connection:
        found = connection.exec_driver_sql(f"SELECT * FROM {table} ORDER BY name")
        return [dict(row) for row in found.mappings()]


def model(url: str, name: str = REGISTRATION.name) -> dict:
    (row,) = (row for row in list_models(url) if row["name"] == name)
    return row


def inspect_tables(url: str) -> sa.Inspector:
    backend = "postgresql+psycopg" if url.startswith("postgres") else "sqlite"
    return sa.inspect(sa.create_engine(sa.make_url(url).set(drivername=backend)))


REQUIRED_COLUMNS = {
    "datasets": "id name created_by creation_location data_location generation_parameters "
    "dataset_type",
    "agents": "id name",
    "models": "id name created_by creation_location is_external weights_location training_start "
    "training_parameters agent_id",
}
OPTIONAL_COLUMNS = {
    "datasets": "creation_time generation_start generation_end generation_status "
    "data_generation_hash hf_fingerprint hf_commit_hash num_tasks last_modified updated_at",
    "agents": "agent_version_hash description updated_at",
    "models": "base_model_id creation_time dataset_id dataset_names wandb_link updated_at "
    "training_end training_status training_type traces_location_s3 description",
}


@pytest.mark.parametrize("table", ["datasets", "agents", "models"])
def test_new_table_has_the_columns_of_the_team(url, table):
    register(url, REGISTRATION)
    columns = inspect_tables(url).get_columns(table)
    required = {column["name"] for column in columns if not column["nullable"]}
    optional = {column["name"] for column in columns if column["nullable"]}
    assert required == set(REQUIRED_COLUMNS[table].split())
    assert optional == set(OPTIONAL_COLUMNS[table].split())


def test_model_refers_to_model_dataset_and_agent(url):
    register(url, REGISTRATION)
    keys = inspect_tables(url).get_foreign_keys("models")
    assert {(key["constrained_columns"][0], key["referred_table"]) for key in keys} == {
        ("base_model_id", "models"),
        ("dataset_id", "datasets"),
        ("agent_id", "agents"),
    }


def test_only_the_name_of_a_dataset_is_unique(url):
    register(url, REGISTRATION)
    inspector = inspect_tables(url)
    unique = {
        table: [each["column_names"] for each in inspector.get_unique_constraints(table)]
        for table in ("datasets", "agents", "models")
    }
    assert unique == {"datasets": [["name"]], "agents": [], "models": []}


@pytest.mark.parametrize(
    ("table", "column"), [("datasets", "dataset_type"), ("models", "training_type")]
)
def test_type_other_than_sft_and_rl_is_refused_by_the_table(tmp_path, table, column):
    register(f"sqlite:///{tmp_path}/registry.db", REGISTRATION)
    with sqlite3.connect(tmp_path / "registry.db") as connection:
        connection.execute(f"UPDATE {table} SET {column} = 'RL'")
        with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
            connection.execute(f"UPDATE {table} SET {column} = 'DPO'")


def test_ids_returned_are_those_of_the_rows(url):
    ids = register(url, REGISTRATION)
    row = model(url)
    assert ids == {
        "model_id": row["id"],
        "base_model_id": row["base_model_id"],
        "dataset_ids": [row["dataset_id"]],
        "agent_id": row["agent_id"],
        "created": True,
    }
    assert row["base_model_id"] == model(url, "Qwen/Qwen3-8B")["id"]


def test_row_says_what_the_registration_says(url):
    register(url, replace(REGISTRATION, wandb_link="https://wandb/run"))
    row = model(url)
    assert {key: row[key] for key in ("created_by", "creation_location", "weights_location")} == {
        "created_by": "laion",
        "creation_location": "leonardo",
        "weights_location": "https://hub/laion/agent-8b",
    }
    assert (row["is_external"], row["training_type"]) == (False, "SFT")
    assert row["wandb_link"] == "https://wandb/run"
    assert row["training_parameters"] == REGISTRATION.training_parameters
    assert row["dataset_names"] is None


def test_second_run_leaves_one_row_and_the_same_ids(url):
    first = register(url, REGISTRATION)
    second = register(url, REGISTRATION)
    assert second == first | {"created": False}
    counts = [len(rows(url, table)) for table in ("models", "datasets", "agents")]
    assert counts == [2, 1, 1]  # the model and its base


def test_second_run_keeps_the_time_of_creation_and_updates_the_rest(url):
    register(url, REGISTRATION)
    first = model(url)
    register(url, replace(REGISTRATION, weights_location="https://hub/laion/moved"))
    second = model(url)
    assert second["creation_time"] == first["creation_time"] is not None
    assert second["weights_location"] == "https://hub/laion/moved"
    assert second["updated_at"] >= first["creation_time"]


def register_at_once(url: str, registrations: list[Registration]) -> list[dict]:
    barrier = Barrier(len(registrations))

    def write(registration: Registration) -> dict:
        barrier.wait()
        return register(url, registration)

    with ThreadPoolExecutor(len(registrations)) as pool:
        return list(pool.map(write, registrations))


def test_twenty_writers_of_one_model_leave_one_row(url):
    results = register_at_once(url, [REGISTRATION] * 20)
    assert sorted(result.pop("created") for result in results) == [False] * 19 + [True]
    assert all(result == results[0] for result in results)
    assert [row["name"] for row in list_models(url)] == ["Qwen/Qwen3-8B", "laion/agent-8b"]


def test_twelve_writers_of_twelve_models_share_base_dataset_and_agent(url):
    cells = [replace(MIX, name=f"laion/cell-{number}") for number in range(12)]
    register_at_once(url, cells)
    counts = [len(rows(url, table)) for table in ("models", "datasets", "agents")]
    assert counts == [13, 2, 1]


def test_writer_killed_before_commit_leaves_nothing_and_the_next_run_registers(url):
    script = textwrap.dedent("""
        import sys, time
        import sqlalchemy as sa
        from test_registry import REGISTRATION
        from sft.registry import register

        inserted = []

        @sa.event.listens_for(sa.Engine, "after_cursor_execute")
        def note(connection, cursor, statement, *_):
            if statement.startswith("INSERT INTO models"):
                inserted.append(statement)

        @sa.event.listens_for(sa.Engine, "commit")
        def pause(connection):
            if inserted:
                print(len(inserted), flush=True)
                time.sleep(60)

        register(sys.argv[1], REGISTRATION)
    """)
    writer = subprocess.Popen(
        [sys.executable, "-c", script, url],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
    )
    assert writer.stdout.readline() == "2\n"  # the base and the model are inserted
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    assert [rows(url, table) for table in ("models", "datasets", "agents")] == [[], [], []]
    assert register(url, REGISTRATION)["created"]


def test_model_of_another_creator_is_refused(url):
    register(url, REGISTRATION)
    with pytest.raises(RegistryError, match=r"registered by 'laion', not by 'other'.*take_over"):
        register(url, replace(REGISTRATION, created_by="other", weights_location="elsewhere"))
    assert model(url)["weights_location"] == REGISTRATION.weights_location


def test_refused_registration_leaves_no_other_row(url):
    register(url, REGISTRATION)
    refused = replace(
        REGISTRATION, created_by="other", agent_name="new", datasets=(dataset("other/new"),)
    )
    with pytest.raises(RegistryError):
        register(url, refused)
    assert [len(rows(url, table)) for table in ("datasets", "agents")] == [1, 1]


def test_model_of_another_creator_is_taken_over_when_the_row_says_so(url):
    register(url, REGISTRATION)
    taker = replace(REGISTRATION, created_by="other", weights_location="elsewhere", take_over=True)
    assert not register(url, taker)["created"]
    row = model(url)
    assert (row["weights_location"], row["created_by"]) == ("elsewhere", "laion")


def test_dataset_of_another_creator_is_used_as_it_is(url):
    first = register(url, replace(REGISTRATION, datasets=(dataset("laion/traces", "somebody"),)))
    before = rows(url, "datasets")
    changed = replace(dataset("laion/traces"), num_tasks=99, data_location="elsewhere")
    second = register(url, replace(REGISTRATION, datasets=(changed,)))
    assert second["dataset_ids"] == first["dataset_ids"]
    assert rows(url, "datasets") == before


def test_unknown_base_is_refused_with_the_near_names(url):
    register(url, REGISTRATION)
    wrong = replace(REGISTRATION, name="laion/b", base_model="Qwen/Qwen-8B", declare_base=False)
    with pytest.raises(RegistryError, match=r"'Qwen/Qwen-8B' is not registered.*Qwen/Qwen3-8B"):
        register(url, wrong)
    assert len(list_models(url)) == 2


def test_declared_base_is_added_as_external(url):
    register(url, REGISTRATION)
    base = model(url, "Qwen/Qwen3-8B")
    assert (base["is_external"], base["created_by"]) == (True, "Qwen")
    assert (base["base_model_id"], base["dataset_id"], base["training_type"]) == (None, None, None)


def test_known_base_is_used_without_a_declaration(url):
    register(url, REGISTRATION)
    child = replace(REGISTRATION, name="laion/c", base_model=REGISTRATION.name, declare_base=False)
    assert register(url, child)["base_model_id"] == model(url)["id"]


def test_several_datasets_are_recorded_by_name_in_order(url):
    ids = register(url, MIX)["dataset_ids"]
    row = model(url)
    assert (row["dataset_id"], row["dataset_names"]) == (None, "laion/b,laion/a")
    names = {each["name"]: str(each["id"]) for each in rows(url, "datasets")}
    assert ids == [names["laion/b"], names["laion/a"]]


def test_model_that_went_from_a_mix_to_one_dataset_names_only_that(url):
    register(url, MIX)
    ids = register(url, REGISTRATION)["dataset_ids"]
    row = model(url)
    assert (row["dataset_id"], row["dataset_names"]) == (ids[0], None)


def test_two_rows_of_one_name_are_refused_with_both_ids(url):
    first = register(url, REGISTRATION)["model_id"]
    second = register(url, replace(REGISTRATION, name="laion/twin"))["model_id"]
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE models SET name = 'laion/agent-8b' WHERE name = 'laion/twin'"
        )
    with pytest.raises(RegistryError) as caught:
        register(url, REGISTRATION)
    assert first in str(caught.value) and second in str(caught.value)


def test_team_keeps_the_time_of_a_change_by_itself(team):
    register(team, REGISTRATION)
    first = model(team)
    register(team, replace(REGISTRATION, weights_location="https://hub/laion/moved"))
    assert model(team)["updated_at"] > first["updated_at"] >= first["creation_time"]


def test_base_that_the_server_numbered_is_used_under_its_id(team):
    execute(team, "INSERT INTO agents (name) VALUES ('external')")
    execute(
        team,
        "INSERT INTO models (name, created_by, creation_location, is_external, weights_location, "
        "training_start, training_parameters, agent_id) SELECT 'Qwen/Qwen3-8B', 'Qwen', 'x', true, "
        "'y', now(), '{}', id FROM agents",
    )
    [base] = rows(team, "models")
    ids = register(team, replace(REGISTRATION, declare_base=False))
    assert ids["base_model_id"] == str(base["id"])


def test_parameters_are_an_object_that_the_team_can_ask(team):
    register(team, REGISTRATION)
    with psycopg.connect(team) as connection:
        question = "SELECT training_parameters ->> 'hf_repo' FROM models WHERE NOT is_external"
        assert connection.execute(question).fetchall() == [("laion/agent-8b",)]


def test_older_tables_of_a_team_have_the_mix_in_the_parameters(old_team):
    ids = register(old_team, MIX)
    assert register(old_team, MIX) == ids | {"created": False}
    row = model(old_team)
    assert row["training_parameters"]["dataset_names"] == ["laion/b", "laion/a"]
    assert (row["dataset_id"], "dataset_names" in row) == (None, False)


def test_role_that_may_make_no_table_registers_in_those_of_a_team(postgres, team):
    execute(
        team,
        f"DROP ROLE IF EXISTS writer; CREATE ROLE writer LOGIN PASSWORD '{PASSWORD}';"
        "GRANT SELECT, INSERT, UPDATE ON models, datasets, agents TO writer",
    )
    try:
        assert register(team.replace("//sft:", "//writer:"), REGISTRATION)["created"]
    finally:
        execute(team, "DROP OWNED BY writer; DROP ROLE writer")


def test_role_without_rights_is_told_what_it_may_not(team):
    execute(
        team, f"CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}'; GRANT SELECT ON models TO reader"
    )
    try:
        with pytest.raises(RegistryError, match="permission denied for table agents"):
            register(team.replace("//sft:", "//reader:"), REGISTRATION)
    finally:
        execute(team, "DROP OWNED BY reader; DROP ROLE reader")


def test_password_that_the_server_refuses_is_not_in_the_error(postgres):
    url = postgres.url("postgres", password="".join(["s3", "cret"]))  # not in this file's lines
    with pytest.raises(RegistryError) as caught:
        register(url, REGISTRATION)
    told = "".join(traceback.format_exception(caught.value))
    assert "password authentication failed" in told
    assert "s3cret" not in told


def test_connection_that_breaks_leaves_nothing_and_the_next_run_registers(team):
    engines = []

    def cut(connection: sa.Connection) -> None:
        engines.append(connection.engine)
        if len(engines) == 2:  # the first commit is that of the tables
            with psycopg.connect(team) as other:
                other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )

    sa.event.listen(sa.Engine, "commit", cut)
    try:
        with pytest.raises(RegistryError, match=r"terminating connection.*run it again"):
            register(team, REGISTRATION)
    finally:
        sa.event.remove(sa.Engine, "commit", cut)
    assert rows(team, "models") == []
    assert register(team, REGISTRATION)["created"]


def test_writer_that_holds_a_name_too_long_is_said_to(team, monkeypatch):
    monkeypatch.setattr("sft.registry.LOCK_WAIT_S", 1)
    with psycopg.connect(team) as other:
        other.execute("SELECT pg_advisory_xact_lock(hashtext('laion/agent-8b'))")
        with pytest.raises(RegistryError, match="lock timeout"):
            register(team, REGISTRATION)
    assert register(team, REGISTRATION)["created"]


TEAM_TABLES = """
CREATE TABLE agents (id TEXT PRIMARY KEY, name TEXT NOT NULL, team TEXT);
CREATE TABLE models (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, base_model_id TEXT REFERENCES models, agent_id TEXT,
    created_by TEXT NOT NULL, creation_location TEXT NOT NULL, creation_time TEXT,
    dataset_id TEXT, is_external BOOLEAN NOT NULL, weights_location TEXT NOT NULL,
    training_start TEXT NOT NULL, training_end TEXT, training_parameters TEXT NOT NULL,
    training_type TEXT, base_model TEXT DEFAULT 'ours', stars INTEGER NOT NULL DEFAULT 0
);
INSERT INTO models VALUES (
    'DEADBEEF-0000-4000-8000-000000000001', 'Qwen/Qwen3-8B', NULL, NULL, 'Qwen', 'x',
    '2025-01-02T03:04:05+01:00', NULL, 1, 'y', '2025-01-02 03:04:05', NULL, '{}', NULL, 'ours', 7
);
"""


@pytest.fixture
def team_file(sqlite_file: Path) -> Path:
    """A registry that somebody else made: no `dataset_names`, two columns that we don't know."""
    with sqlite3.connect(sqlite_file) as connection:
        connection.executescript(TEAM_TABLES)
    return sqlite_file


def test_team_table_is_written_and_not_altered(team_file):
    url = f"sqlite:///{team_file}"
    columns = [column["name"] for column in inspect_tables(url).get_columns("models")]
    register(url, replace(REGISTRATION, declare_base=False))
    assert [column["name"] for column in inspect_tables(url).get_columns("models")] == columns
    row = rows(url, "models")[1]
    assert (row["name"], row["base_model"], row["stars"]) == ("laion/agent-8b", "ours", 0)


def test_id_of_a_team_row_is_kept_as_it_is_written(team_file):
    ids = register(f"sqlite:///{team_file}", replace(REGISTRATION, declare_base=False))
    assert ids["base_model_id"] == "DEADBEEF-0000-4000-8000-000000000001"


def test_mix_is_named_in_the_parameters_where_the_column_lacks(team_file):
    url = f"sqlite:///{team_file}"
    register(url, MIX)
    register(url, MIX)
    expected = MIX.training_parameters | {"dataset_names": ["laion/b", "laion/a"]}
    assert model(url)["training_parameters"] == expected


def test_models_are_listed_with_the_columns_that_the_table_has(team_file):
    (row,) = list_models(f"sqlite:///{team_file}")
    assert "dataset_names" not in row and "stars" not in row
    assert row["creation_time"] == datetime(2025, 1, 2, 2, 4, 5, tzinfo=UTC)


def test_listed_model_names_its_base_and_its_datasets(url):
    register(url, MIX)
    row = model(url)
    assert (row["base_model"], row["datasets"]) == ("Qwen/Qwen3-8B", ["laion/b", "laion/a"])
    register(url, REGISTRATION)
    assert model(url)["datasets"] == ["laion/traces"]
    assert model(url, "Qwen/Qwen3-8B")["base_model"] is None


def test_listed_model_of_older_tables_names_its_mix(old_team):
    register(old_team, MIX)
    assert model(old_team)["datasets"] == ["laion/b", "laion/a"]


def test_list_of_a_file_that_is_not_there_makes_none(sqlite_file):
    assert list_models(f"sqlite:///{sqlite_file}") == []
    assert not sqlite_file.exists()


def test_models_of_a_registry_without_tables_are_none(url):
    assert list_models(url) == []


def test_time_of_another_zone_comes_back_in_utc(url):
    start = datetime(2026, 3, 1, 10, 30, 0, 250, tzinfo=timezone(timedelta(hours=2)))
    register(url, replace(REGISTRATION, training_start=start))
    found = model(url)["training_start"]
    assert (found, found.utcoffset()) == (start, timedelta(0))


def test_time_is_stored_in_utc_on_sqlite(sqlite_file):
    start = datetime(2026, 3, 1, 10, 30, tzinfo=timezone(timedelta(hours=2)))
    register(f"sqlite:///{sqlite_file}", replace(REGISTRATION, training_start=start))
    stored = rows(f"sqlite:///{sqlite_file}", "models")[1]["training_start"]
    assert stored == "2026-03-01 08:30:00.000000"


def test_folder_of_a_new_sqlite_file_is_made(tmp_path):
    register(f"sqlite:///{tmp_path}/new/folder/registry.db", REGISTRATION)
    assert (tmp_path / "new/folder/registry.db").is_file()


def test_sqlite_file_is_read_while_another_writes(sqlite_file):
    register(f"sqlite:///{sqlite_file}", REGISTRATION)
    writer = sqlite3.connect(sqlite_file, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("DELETE FROM models")
    assert len(list_models(f"sqlite:///{sqlite_file}")) == 2
    writer.close()


def test_refusal_names_the_registry(sqlite_file):
    with pytest.raises(RegistryError, match=f"^sqlite:///{sqlite_file}: laion/agent-8b: base"):
        register(f"sqlite:///{sqlite_file}", replace(REGISTRATION, declare_base=False))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:s3cret@127.0.0.1:1/team",
        "postgres://user:s3cret@127.0.0.1:1/team?connect_timeout=1&sslpassword=s3cret",
        "postgresql://user:pass@s3cret@127.0.0.1:1/team",
        "postgresql://user:s3cret",
        "mysql://user:s3cret@127.0.0.1:1/team",
        "user:s3cret@127.0.0.1:1/team",
    ],
)
def test_password_is_never_in_an_error(url):
    with pytest.raises(RegistryError) as caught:
        register(url, REGISTRATION)
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


def test_file_that_is_no_database_is_an_error_that_names_it(sqlite_file):
    sqlite_file.write_text("a letter\n" * 100)
    with pytest.raises(RegistryError, match=f"{sqlite_file}: file is not a database"):
        register(f"sqlite:///{sqlite_file}", REGISTRATION)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"base_model": REGISTRATION.name}, "base model is itself"),
        ({"datasets": ()}, "no dataset"),
        ({"datasets": (dataset("a,b"),)}, "'a,b' has a comma"),
        ({"training_end": datetime(2026, 3, 1)}, "training_end has no time zone"),
    ],
)
def test_registration_that_cannot_be_recorded_is_refused_when_built(change, words):
    with pytest.raises(RegistryError, match=words):
        replace(REGISTRATION, **change)
